"""Prepared launches: ``prepare(kernel[grid, block], *args)``, packed once, launched often.

Owns the packed parameters of a launch and their renewal, by argument or as a whole. Which
plan, which stream and in which context is ``_launch``'s to say, at each call.
"""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport intptr_t
from libc.string cimport memcpy, memset

from stridedview._configuration cimport LaunchConfiguration
from stridedview._launch cimport (
    is_fast, is_observed, launch_packed, observed, plan_of,
)
from stridedview._pack cimport MISMATCH, WAITS, Call, Slot, pack_argument
from stridedview._plan cimport Plan
from stridedview._scalars cimport SET_F_ARRAY

from time import perf_counter_ns

from stridedview import _launch, _signature
from stridedview._configuration import check_configuration

cdef extern from "Python.h":
    const unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    void PyType_Modified(PyTypeObject*)
    PyObject** _items "&PyTuple_GET_ITEM"(object, Py_ssize_t)
    object PyObject_Call(object, object, PyObject*)
    bint PyIndex_Check(object)
    Py_ssize_t PyNumber_AsSsize_t(object, object) except? -1
    ctypedef struct RawType "PyTypeObject":
        unsigned long tp_flags
        Py_ssize_t tp_vectorcall_offset
        void* tp_new

# The high bit of a vectorcall's count says that the slot before the arguments is free.
cdef size_t COUNT_MASK = ~(<size_t>1 << (8 * sizeof(size_t) - 1))


cdef str HOW_TO_MAKE_ONE = "stridedview.prepare() makes prepared launches"


@cython.final
cdef class Packed:
    """The parameters of one launch, packed."""

    def __dealloc__(self):
        PyMem_Free(self.buffer)


@cython.final
cdef class PreparedLaunch:
    """A launch with all its parameters packed; made by :func:`prepare`.

    Calling it launches. It holds its arguments alive. Of a torch tensor the pointer, shape
    and strides are those that it had when it was packed: after ``resize_()``, ``set_()``
    or an assignment to ``.data``, call :meth:`update` with it.
    """

    def __init__(self):
        raise TypeError(HOW_TO_MAKE_ONE)

    @property
    def args(self):
        """The arguments, a tuple."""
        return self.packed.args

    def launch(self):
        """Launch with the packed parameters.

        The stream is chosen at each call, as for any launch: the one that the
        configuration names, else the producers' current one. After a recompilation, or
        in another context, the arguments are packed anew.

        Raises
        ------
        DriverError
            If the driver refuses the launch.
        TypeError
            If a plan has to be made anew and cannot be.
        """
        _launch_now(self)

    def update(self, index, argument):
        """Replace one argument by another of the same signature, and pack it.

        Parameters
        ----------
        index : int
            Position of the argument, from 0.
        argument : object

        Raises
        ------
        IndexError
            If there is no such argument.
        TypeError
            If the index is no integer, or the argument's signature differs: dtype, number
            of dimensions, layout letter, read-only, producer or device. Prepare the launch
            anew then.
        ValueError, BufferError, OverflowError
            If its value cannot be passed; the launch stays as it was.
        """
        cdef Packed old = self.packed
        cdef Py_ssize_t place = _position(index, len(old.args))
        args = (*old.args[:place], argument, *old.args[place + 1:])
        self.packed = _replaced(self.configuration, old, args, place)

    def __call__(self):
        """Launch; see :meth:`launch`."""
        _launch_now(self)

    def __repr__(self):
        name = getattr(self.configuration.dispatcher, "__name__", "kernel")
        return (
            f"<PreparedLaunch of {name}: grid {self.configuration.griddim}, block "
            f"{self.configuration.blockdim}, {len(self.packed.args)} arguments, "
            f"{self.packed.plan.size} bytes>")


cdef object _simulator = None       # (kernel, args) -> its launch or None; _simulator sets it


def set_simulator(prepare):
    """Have :func:`prepare` ask a callable about what is no configuration of ours."""
    global _simulator
    _simulator = prepare


def prepare(configuration, *args):
    """Return a launch with its parameters packed, to be called again and again.

    Parameters
    ----------
    configuration : LaunchConfiguration
        ``kernel[grid, block, stream, shared]``. If it is changed later, the prepared
        launch goes with the change.
    *args
        The arguments of the launch: arrays on a device, numbers, tuples of them.

    Returns
    -------
    PreparedLaunch
        In Numba's CUDA simulator an object with the same methods, which packs nothing.

    Raises
    ------
    TypeError
        If no plan can take the launch: host arrays, records, debug kernels, callbacks and
        extensions go through Numba's own code at each launch.
    """
    cdef PreparedLaunch prepared
    if _simulator is not None and not isinstance(configuration, LaunchConfiguration):
        simulated = _simulator(configuration, args)
        if simulated is not None:
            return simulated
    check_configuration(configuration)
    if not is_fast() and not is_observed():
        raise TypeError("nothing can be prepared while stridedview is disabled; enable() it")
    prepared = PreparedLaunch.__new__(PreparedLaunch)
    prepared.vectorcall = <void*>_vectorcall
    prepared.configuration = configuration
    prepared.packed = _packed(configuration, args)
    return prepared


cdef object _refuse_new(PyObject* cls, PyObject* args, PyObject* keywords):
    raise TypeError(HOW_TO_MAKE_ONE)


# One without parameters would be a crash at its first use, so that __new__ refuses too. In
# this module it goes to Cython's own allocation, not through the slot.
(<RawType*>PreparedLaunch).tp_new = <void*>_refuse_new


cdef Py_ssize_t _position(object index, Py_ssize_t count) except -1:
    cdef Py_ssize_t place
    if not PyIndex_Check(index):
        raise TypeError(
            f"index is an argument's position, an int from 0, not a {type(index).__name__}")
    try:
        place = PyNumber_AsSsize_t(index, IndexError)
    except IndexError:
        place = -1
    if not 0 <= place < count:
        raise IndexError(f"there is no such argument; this launch has {count}, counted from 0")
    return place


# -- launching ----------------------------------------------------------------------------

cdef object _vectorcall(object callable, PyObject** args, size_t count, PyObject* names):
    if count & COUNT_MASK or names is not NULL:
        raise TypeError("a prepared launch takes no arguments; update() replaces one")
    _launch_now(<PreparedLaunch>callable)


cdef inline int _launch_now(PreparedLaunch prepared) except -1:
    cdef Packed packed = prepared.packed
    if is_fast() and _try(prepared.configuration, packed):
        return 0
    return _launch_slowly(prepared)


cdef inline bint _try(LaunchConfiguration configuration, Packed packed) except -1:
    # The guards of a plan, as a launch asks them.
    return (
        packed.plan.is_valid
        and packed.generation == configuration.state.generation
        and PyList_GET_SIZE(configuration.callbacks) == 0
        and PyList_GET_SIZE(packed.plan.extensions) == 0
        and launch_packed(configuration, packed.plan, packed.buffer, &packed.call,
                          _items(packed.args, 0)) == 0
    )


cdef int _launch_slowly(PreparedLaunch prepared) except -1:
    cdef LaunchConfiguration configuration = prepared.configuration
    cdef Packed packed = prepared.packed
    cdef long long start = perf_counter_ns()
    if is_observed() and _try(configuration, packed):
        return observed(configuration, packed.args, perf_counter_ns() - start)
    if (not is_fast() and not is_observed()) or PyList_GET_SIZE(configuration.callbacks) or (
            PyList_GET_SIZE(packed.plan.extensions)):
        PyObject_Call(configuration, packed.args, NULL)
        return 0
    packed = _packed(configuration, packed.args)
    prepared.packed = packed
    if not _try(configuration, packed):
        # The plan that was just made went stale; the ordinary launch says why.
        PyObject_Call(configuration, packed.args, NULL)
        return 0
    if is_observed():
        observed(configuration, packed.args, perf_counter_ns() - start)
    return 0


# -- packing ------------------------------------------------------------------------------

cdef Packed _empty(LaunchConfiguration configuration, Plan plan, tuple args):
    cdef Packed packed = Packed.__new__(Packed)
    packed.plan = plan
    packed.generation = configuration.state.generation
    packed.args = args
    packed.buffer = <char*>PyMem_Malloc(plan.size + 1)
    if packed.buffer is NULL:
        raise MemoryError()
    memset(packed.buffer, 0, plan.size)
    return packed


cdef Packed _packed(LaunchConfiguration configuration, tuple args):
    """Pack every argument, with a plan found or made for them."""
    return _packed_by(configuration, plan_of(configuration, args), args)


def check_values(LaunchConfiguration configuration, Plan plan, tuple args):
    """Raise what a launch with a plan would, for a value that cannot be packed."""
    _packed_by(configuration, plan, args)


cdef Packed _packed_by(LaunchConfiguration configuration, Plan plan, tuple args):
    cdef Packed packed = _empty(configuration, plan, args)
    cdef Slot* slot = plan.slots
    cdef list packs = []
    for index in range(len(args)):
        packs.append(_pack(configuration, slot, index, packed))
        slot += 1 + slot.following
    packed.packs = tuple(packs)
    _gather_waits(packed)
    return packed


cdef Packed _replaced(LaunchConfiguration configuration, Packed old, tuple args, int index):
    cdef Packed packed = _empty(configuration, old.plan, args)
    cdef Slot* slot = old.plan.slots
    # A stale plan stays stale, so that the next launch packs everything anew.
    packed.generation = old.generation
    memcpy(packed.buffer, old.buffer, old.plan.size)
    for _ in range(index):
        slot += 1 + slot.following
    packs = list(old.packs)
    packs[index] = _pack(configuration, slot, index, packed)
    packed.packs = tuple(packs)
    _gather_waits(packed)
    return packed


cdef tuple _pack(LaunchConfiguration configuration, Slot* slot, int index, Packed packed):
    """Pack one argument; return the streams that it names and what it handed out."""
    cdef Call call
    cdef int result = 0
    argument = packed.args[index]
    kept = None
    call.wait_count = 0
    call.keep = NULL
    try:
        result = pack_argument(slot, <PyObject*>argument, packed.buffer, &call)
    except BaseException as error:
        _launch.raise_named(configuration.dispatcher, index, error)
    finally:
        if call.keep is not NULL:
            kept = <object>call.keep
            Py_DECREF(kept)
    if result == MISMATCH:
        raise _other_signature(configuration, packed.plan, slot, index, argument)
    return tuple([call.waits[wait] for wait in range(call.wait_count)]), kept


cdef object _other_signature(LaunchConfiguration configuration, Plan plan, Slot* slot,
                             int index, object argument):
    words, _ = _launch.signature_words(configuration.dispatcher, (argument,), index)
    expected = _signature.split(plan.words)[index]
    change = "it cannot be packed: it is no array on a device, number or tuple of them"
    if words is not None:
        change = _signature.difference(expected, words) or (
            # Such an array's words say C, and not whether it is F as well.
            "it is not F-contiguous, as the kernel's signature wants it" if _wants_f(slot)
            else "it changes from one reading to the next")
    return TypeError(
        f"{_launch.argument_name(configuration.dispatcher, index)}: {change}; the launch "
        "was prepared for another signature, prepare it anew")


cdef bint _wants_f(Slot* slot) noexcept:
    cdef int index
    for index in range(1 + slot.following):
        if slot[index].setter == SET_F_ARRAY:
            return True
    return False


cdef int _gather_waits(Packed packed) except -1:
    cdef Call* call = &packed.call
    call.wait_count = 0
    # Borrowed from this object, which a launch holds: what a foreign stream's work needs.
    call.keep = <PyObject*>packed.packs
    distinct = dict.fromkeys([stream for streams, _ in packed.packs for stream in streams])
    if len(distinct) > WAITS:
        raise ValueError(f"the arguments name more than {WAITS} streams")
    for stream in distinct:
        call.waits[call.wait_count] = <intptr_t>stream
        call.wait_count += 1
    return 0


cdef int _give_vectorcall() except -1:
    # Cython gives an extension type a tp_call only; a vectorcall saves the tuple.
    cdef PreparedLaunch sample = PreparedLaunch.__new__(PreparedLaunch)
    cdef RawType* raw = <RawType*>PreparedLaunch
    raw.tp_vectorcall_offset = <char*>&sample.vectorcall - <char*><PyObject*>sample
    raw.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL
    PyType_Modified(<PyTypeObject*>PreparedLaunch)
    return 0


_give_vectorcall()
