"""Launch configurations: what ``kernel[grid, block, stream, shared]`` gives.

Owns the class that takes the place of Numba's ``_LaunchConfiguration``, the table in which
a dispatcher keeps its configurations and plans, and the hooks to Numba that a
configuration needs. Launching is in ``_launch``.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uintptr_t

from stridedview._stream cimport STREAM_LEGACY, stream_handle

import numbers
import operator
import pickle
import weakref

from stridedview import _stream, _torch_gate

cdef extern from "Python.h":
    const unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    void PyType_Modified(PyTypeObject*)
    object PyObject_Call(object, object, PyObject*)
    ctypedef struct RawMapping "PyMappingMethods":
        object (*mp_subscript)(object, object)
    ctypedef struct RawType "PyTypeObject":
        unsigned long tp_flags
        Py_ssize_t tp_vectorcall_offset
        RawMapping* tp_as_mapping
        object (*tp_call)(object, object, PyObject*)
        PyObject* tp_dict

cdef enum:
    CONFIGURATIONS_KEPT = 4096  # per dispatcher
    ON_STREAMS_KEPT = 128       # of them with a stream object, which each keeps alive
    RECENT = 64

# States found by their dispatcher's address, sooner than in its __dict__. Borrowed: a state
# takes itself out when it ends.
cdef PyObject* _recent[RECENT]

cdef void* launch_entry = NULL
# What stands above: Numba's side. See numba_cuda.
cdef object _configure_hook = None  # (dispatcher, args) -> LaunchConfiguration
cdef object _core_stream = None     # stream as given -> cuda.core Stream
cdef object _swap_args = None       # launch arguments of this thread -> the previous ones
cdef object _current_args = None


def install(*, configure, core_stream, swap_args, current_args):
    """Install Numba's side of a configuration; see the variables above for each hook."""
    global _configure_hook, _core_stream, _swap_args, _current_args
    _configure_hook = configure
    _core_stream = core_stream
    _swap_args = swap_args
    _current_args = current_args


cdef int set_launch_entry(void* entry) except -1:
    global launch_entry
    launch_entry = entry
    return 0


@cython.final
cdef class LaunchArguments:
    """Have Numba see other arguments of this thread's launch within a ``with``.

    In C for the reason that ``_driver`` gives.
    """
    cdef object args

    def __init__(self, args):
        self.args = args

    def __enter__(self):
        self.args = _swap_args(self.args)

    def __exit__(self, *_):
        self.args = _swap_args(self.args)


cdef object _states = weakref.WeakSet()


def invalidate_all():
    """Forget the plans of every kernel: while disabled nobody hears of recompilations."""
    for state in list(_states):
        state.invalidate()


@cython.final
cdef class DispatcherState:
    """What is kept for one dispatcher: its plans and its configurations."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        self.plans = {}
        self.configurations = {}
        self.on_streams = {}
        self.prepared = {}
        self.generation = 1
        _states.add(self)

    def __dealloc__(self):
        for index in range(RECENT):
            if _recent[index] == <PyObject*>self:
                _recent[index] = NULL

    def invalidate(self):
        """Forget every plan: the overloads changed."""
        self.generation += 1
        self.plans.clear()


@cython.final
cdef class LaunchConfiguration:
    """A kernel with its grid, block, stream and dynamic shared memory.

    Takes the place of Numba's ``_LaunchConfiguration`` and has all its attributes. The
    stream is kept as the user gave it, because 0 and None name no stream.

    Parameters
    ----------
    dispatcher : CUDADispatcher
    griddim, blockdim : tuple of 3 int
    stream : int or stream object
    sharedmem : int
        Bytes of dynamic shared memory per block.
    """

    def __cinit__(self, dispatcher, griddim, blockdim, stream, sharedmem):
        if not _has_vectorcall:
            _give_vectorcall(self)
        self.vectorcall = launch_entry
        self._set_up(dispatcher, griddim, blockdim, stream, sharedmem)

    def __init__(self, dispatcher, griddim, blockdim, stream, sharedmem):
        if dispatcher is not self.dispatcher:
            self._set_up(dispatcher, griddim, blockdim, stream, sharedmem)

    cdef int _set_up(self, dispatcher, griddim, blockdim, stream, sharedmem) except -1:
        self.plan = None
        self.dispatcher = dispatcher
        self.state = state_of(dispatcher)
        self.callbacks = []
        self._kernel_launch_config_sensitive = None
        self._griddim = _fill_dimensions(self.grid, griddim, "griddim")
        self._blockdim = _fill_dimensions(self.block, blockdim, "blockdim")
        self._set_shared(sharedmem)
        self._set_stream(stream)
        return 0

    cdef int _set_shared(self, sharedmem) except -1:
        self.shared = _unsigned(sharedmem, "sharedmem")
        self._sharedmem = sharedmem
        return 0

    cdef int _changed(self) except -1:
        # A kernel that was compiled for its configuration is another one now; prepared
        # launches hear of it by the generation.
        if self.state.is_config_sensitive:
            self.state.invalidate()
        return 0

    cdef int _set_stream(self, stream) except -1:
        cdef bint is_named = _stream.is_named(stream)
        self.stream_handle = stream_handle(stream) if is_named else NULL
        self.is_named = is_named
        self._stream = stream
        return 0

    @property
    def griddim(self):
        """Blocks of the grid, (x, y, z)."""
        return self._griddim

    @griddim.setter
    def griddim(self, value):
        self._griddim = _fill_dimensions(self.grid, value, "griddim")
        self._changed()

    @property
    def blockdim(self):
        """Threads of a block, (x, y, z)."""
        return self._blockdim

    @blockdim.setter
    def blockdim(self, value):
        self._blockdim = _fill_dimensions(self.block, value, "blockdim")
        self._changed()

    @property
    def sharedmem(self):
        """Dynamic shared memory of a block, bytes."""
        return self._sharedmem

    @sharedmem.setter
    def sharedmem(self, value):
        self._set_shared(value)
        self._changed()

    @property
    def stream(self):
        """The stream as Numba's own configuration has it: a cuda.core Stream."""
        return _core_stream(self._stream)

    @stream.setter
    def stream(self, value):
        self._set_stream(value)

    @property
    def named_stream(self):
        """Handle (int) of the stream that the user named, or None."""
        return <uintptr_t>self.stream_handle if self.is_named else None

    @property
    def pre_launch_callbacks(self):
        """Callables run before each launch with (kernel, configuration)."""
        return self.callbacks

    @pre_launch_callbacks.setter
    def pre_launch_callbacks(self, value):
        self.callbacks = value if type(value) is list else list(value)

    @property
    def last_plan(self):
        """The plan of the last launch, or None."""
        return self.plan

    @property
    def args(self):
        """The arguments of the launch that runs in this thread, or None."""
        return _current_args()

    def _push_args(self, args):
        return _swap_args(args)

    def _pop_args(self, previous):
        _swap_args(previous)

    def _is_kernel_launch_config_sensitive(self):
        return bool(self._kernel_launch_config_sensitive)

    def __reduce__(self):
        if self.callbacks:
            raise pickle.PicklingError(
                "Cannot pickle configured launches with pre-launch callbacks: functions that "
                "belong to this process")
        # A named default stream is written as the legacy one: 0 would name none.
        stream = (self.named_stream or STREAM_LEGACY) if self.is_named else 0
        # By what Numba's dispatchers have, so that it can be loaded where we are not.
        made_by = operator.methodcaller(
            "configure", self._griddim, self._blockdim, stream, self._sharedmem)
        return made_by, (self.dispatcher,)

    def __call__(self, *args, **kwargs):
        """Launch the kernel."""
        if kwargs:
            raise TypeError(f"kernels take no keyword arguments, got {sorted(kwargs)}")
        return PyObject_Call(self, args, NULL)

    def __repr__(self):
        return (
            f"<LaunchConfiguration of {self.dispatcher!r}: grid {self.griddim}, block "
            f"{self.blockdim}, shared memory {self.sharedmem} bytes>")


cdef tuple _fill_dimensions(unsigned int* out, object value, str name):
    """Write three dimensions, all or none; return them as a tuple of their own."""
    cdef unsigned int checked[3]
    cdef int axis
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise TypeError(f"{name} must be three integers, got {value!r}")
    cdef tuple kept = tuple(value)
    for axis in range(3):
        checked[axis] = _unsigned(kept[axis], name)
    for axis in range(3):
        out[axis] = checked[axis]
    return kept


cdef unsigned int _unsigned(object value, str name) except? 0xffffffff:
    # Zero and what exceeds the device's limits is refused at the launch, with the limit.
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 0 or value > 0xffffffff:
        raise ValueError(f"{name} {value} does not fit an unsigned 32-bit integer")
    return value


cdef DispatcherState state_of(object dispatcher):
    """Return the dispatcher's state, made on first use and kept in its ``__dict__``."""
    cdef PyObject** recent = &_recent[(<uintptr_t><PyObject*>dispatcher >> 4) % RECENT]
    cdef DispatcherState state
    if recent[0] != NULL and (<DispatcherState>recent[0]).dispatcher is dispatcher:
        return <DispatcherState>recent[0]
    state = getattr(dispatcher, "_stridedview_state", None)
    if state is None or state.dispatcher is not dispatcher:
        # None yet, or copied from the kernel that this one's function wraps.
        state = DispatcherState(dispatcher)
        dispatcher._stridedview_state = state
    recent[0] = <PyObject*>state
    return state


def dispatcher_state(dispatcher):
    """Return the DispatcherState of a dispatcher."""
    return state_of(dispatcher)


def check_configuration(value):
    """Refuse what is no launch configuration of ours.

    Raises
    ------
    TypeError
        With what it is, and how to get one.
    """
    if isinstance(value, LaunchConfiguration):
        return
    if hasattr(value, "ntasks"):
        advice = "forall() chooses its blocks itself; write them out, kernel[blocks, threads]"
    elif hasattr(value, "py_func") and getattr(value, "grid_dim", None) is None:
        # (A kernel of the simulator holds its grid itself.)
        advice = "name the grid and the block"
    else:
        advice = "stridedview.enable() must come before kernel[grid, block]"
    raise TypeError(
        f"expected kernel[grid, block], got {type(value).__qualname__}; {advice}")


def getitem(self, args):
    """Return the launch configuration ``kernel[args]``; stands for Numba's ``__getitem__``."""
    return _subscript(self, args)


cdef object _subscript(object self, object args):
    if type(args) is not tuple or not 2 <= len(<tuple>args) <= 4:
        raise ValueError("must specify at least the griddim and blockdim")
    return configured(self, <tuple>args)


def set_subscript(kind):
    """Have ``kernel[args]`` of a dispatcher's class call :func:`getitem` without a frame.

    Its ``__getitem__`` has to be a Python function, as torch.compile sees no others; it is
    what setting that attribute again undoes.
    """
    cdef RawType* raw = <RawType*><PyObject*>kind
    raw.tp_as_mapping.mp_subscript = _subscript
    PyType_Modified(<PyTypeObject*>raw)


def set_call(kind, function):
    """Have calls of a class's objects go to a Python function that torch.compile skips.

    It is hidden once torch is there, which may be after numba-cuda was patched: before the
    first call it is too late to do so in Python. Setting ``__call__`` again undoes it.
    """
    global _called
    cdef RawType* raw = <RawType*><PyObject*>kind
    _called = function
    raw.tp_call = _call_hidden
    PyType_Modified(<PyTypeObject*>raw)


cdef object _called = None          # takes (object, *args)
cdef bint _is_hidden = False


cdef object _call_hidden(object self, object args, PyObject* names):
    global _is_hidden
    if not _is_hidden:
        _is_hidden = _torch_gate.hide_from_dynamo()
    return PyObject_Call(_called, (self, *args), names)


def show_call(kind, function):
    """Make a Python function the ``__call__`` that is seen of an extension type.

    Calls do not go through it; torch.compile, which looks for a Python function, finds it.
    """
    cdef RawType* raw = <RawType*><PyObject*>kind
    (<dict>raw.tp_dict)["__call__"] = function
    PyType_Modified(<PyTypeObject*>raw)


cpdef object configured(object dispatcher, tuple args):
    """Return the LaunchConfiguration for ``dispatcher[args]``, the same for equal args.

    The table is exact in types, so that ``True`` and ``1.0`` are not taken for ``1``, and
    bounded: the oldest configurations are forgotten first.
    """
    cdef DispatcherState state = state_of(dispatcher)
    cdef dict table
    cdef Py_ssize_t kept
    # One object, read once: comparing streams can run Python code, and other threads.
    cdef tuple last = state.last
    if last is not None and _is_same(<tuple>last[0], args):
        return last[1]
    key = _typed_key(args)
    if key is None:
        return _configure_hook(dispatcher, args)        # which refuses what is nested
    table, kept = state.configurations, CONFIGURATIONS_KEPT
    if len(args) > 2 and args[2] is not None and not isinstance(args[2], int):
        table, kept = state.on_streams, ON_STREAMS_KEPT
    try:
        configuration = table.get(key)
    except TypeError:
        # No hash. It is refused by name, unless it is a stream: that is kept by nobody.
        return _configure_hook(dispatcher, args)
    if configuration is None:
        configuration = _configure_hook(dispatcher, args)
        if len(table) >= kept:
            table.pop(next(iter(table), None), None)
        configuration = table.setdefault(key, configuration)
    if _is_plain(args):
        state.last = (args, configuration)
    return configuration


cdef bint _is_plain(tuple args):
    # Nothing in it can change but a stream, which is the same as long as it is itself.
    for item in args:
        if type(item) is list:
            return False
        if type(item) is tuple:
            for size in <tuple>item:
                if type(size) is not int:
                    return False
    return True


cdef bint _is_same(tuple one, tuple other) except -1:
    # Exact in types. `one` is plain: `_is_plain` said so.
    cdef Py_ssize_t index
    if one is other:
        return True
    if len(one) != len(other):
        return False
    for index in range(len(one)):
        first = one[index]
        second = other[index]
        if first is second:
            continue
        if type(first) is int and type(second) is int:
            if first != second:
                return False
        elif type(first) is not tuple or type(second) is not tuple or not _are_same_sizes(
                <tuple>first, <tuple>second):
            return False
    return True


cdef bint _are_same_sizes(tuple one, tuple other) except -1:
    cdef Py_ssize_t index
    if len(one) != len(other):
        return False
    for index in range(len(one)):
        second = other[index]
        if type(second) is not int or one[index] != second:
            return False
    return True


cdef object _typed_key(tuple args):
    """Return a key that is exact in types, or None for what is nested too deeply."""
    cdef list key = []
    for item in args:
        if type(item) is tuple or type(item) is list:
            for size in item:
                if isinstance(size, (tuple, list)):
                    return None
            key.append((type(item), tuple([(type(size), size) for size in item])))
        else:
            key.append((type(item), item))
    return tuple(key)


cdef bint _has_vectorcall = False


cdef int _give_vectorcall(LaunchConfiguration sample) except -1:
    # Cython gives an extension type a tp_call only; a vectorcall saves the tuple.
    global _has_vectorcall
    cdef RawType* raw = <RawType*>LaunchConfiguration
    raw.tp_vectorcall_offset = <char*>&sample.vectorcall - <char*><PyObject*>sample
    raw.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL
    PyType_Modified(<PyTypeObject*>LaunchConfiguration)
    _has_vectorcall = True
    return 0
