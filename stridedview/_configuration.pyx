"""Launch configurations: what ``kernel[grid, block, stream, shared]`` gives.

Owns the class that takes the place of Numba's ``_LaunchConfiguration``, the table in which
a dispatcher keeps its configurations and plans, and the hooks to Numba that a
configuration needs. Launching is in ``_launch``.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uintptr_t

from stridedview._stream cimport stream_handle

import pickle

from stridedview import _stream

cdef extern from "Python.h":
    const unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    void PyType_Modified(PyTypeObject*)
    object PyObject_Call(object, object, PyObject*)
    ctypedef struct RawType "PyTypeObject":
        unsigned long tp_flags
        Py_ssize_t tp_vectorcall_offset

cdef enum:
    CONFIGURATIONS_KEPT = 4096  # per dispatcher

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
cdef class DispatcherState:
    """What is kept for one dispatcher: its plans and its configurations."""

    def __init__(self):
        self.plans = {}
        self.configurations = {}
        self.prepared = {}
        self.generation = 1

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

    def __cinit__(self):
        self.vectorcall = launch_entry

    def __init__(self, dispatcher, griddim, blockdim, stream, sharedmem):
        self.dispatcher = dispatcher
        self.state = state_of(dispatcher)
        self.callbacks = []
        self._kernel_launch_config_sensitive = None
        self.griddim = griddim
        self.blockdim = blockdim
        self.sharedmem = sharedmem
        self._set_stream(stream)

    cdef int _set_stream(self, stream) except -1:
        self._stream = stream
        self.is_named = _stream.is_named(stream)
        self.stream_handle = stream_handle(stream) if self.is_named else NULL
        return 0

    @property
    def griddim(self):
        """Blocks of the grid, (x, y, z)."""
        return self._griddim

    @griddim.setter
    def griddim(self, value):
        _fill_dimensions(self.grid, value, "griddim")
        self._griddim = value

    @property
    def blockdim(self):
        """Threads of a block, (x, y, z)."""
        return self._blockdim

    @blockdim.setter
    def blockdim(self, value):
        _fill_dimensions(self.block, value, "blockdim")
        self._blockdim = value

    @property
    def sharedmem(self):
        """Dynamic shared memory of a block, bytes."""
        return self._sharedmem

    @sharedmem.setter
    def sharedmem(self, value):
        self.shared = _unsigned(value, "sharedmem")
        self._sharedmem = value

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
        return _rebuild, (
            self.dispatcher, self._griddim, self._blockdim, self.named_stream or 0,
            self._sharedmem)

    def __call__(self, *args, **kwargs):
        """Launch the kernel."""
        if kwargs:
            raise TypeError(f"kernels take no keyword arguments, got {sorted(kwargs)}")
        return PyObject_Call(self, args, NULL)

    def __repr__(self):
        return (
            f"<LaunchConfiguration of {self.dispatcher!r}: grid {self.griddim}, block "
            f"{self.blockdim}, shared memory {self.sharedmem} bytes>")


def _rebuild(dispatcher, griddim, blockdim, stream, sharedmem):
    return dispatcher.configure(griddim, blockdim, stream, sharedmem)


cdef int _fill_dimensions(unsigned int* out, object value, str name) except -1:
    cdef int axis
    for axis in range(3):
        out[axis] = _unsigned(value[axis], name)
    return 0


cdef unsigned int _unsigned(object value, str name) except? 0xffffffff:
    # Zero and what exceeds the device's limits is refused at the launch, with the limit.
    if value < 0 or value > 0xffffffff:
        raise ValueError(f"{name} {value} does not fit an unsigned 32-bit integer")
    return value


cdef DispatcherState state_of(object dispatcher):
    """Return the dispatcher's state, made on first use and kept in its ``__dict__``."""
    state = getattr(dispatcher, "_stridedview_state", None)
    if state is None:
        state = dispatcher.__dict__.setdefault("_stridedview_state", DispatcherState())
    return <DispatcherState>state


def dispatcher_state(dispatcher):
    """Return the DispatcherState of a dispatcher."""
    return state_of(dispatcher)


def getitem(self, args):
    """Return the launch configuration ``kernel[args]``; stands for Numba's ``__getitem__``."""
    if type(args) is not tuple or not 2 <= len(args) <= 4:
        raise ValueError("must specify at least the griddim and blockdim")
    return configured(self, args)


cpdef object configured(object dispatcher, tuple args):
    """Return the LaunchConfiguration for ``dispatcher[args]``, the same for equal args.

    The table is exact in types, so that ``True`` and ``1.0`` are not taken for ``1``, and
    bounded: the oldest configurations are forgotten first.
    """
    cdef DispatcherState state = state_of(dispatcher)
    # One object, read once: comparing streams can run Python code, and other threads.
    cdef tuple last = state.last
    if last is not None and _is_same(<tuple>last[0], args):
        return last[1]
    key = _typed_key(args)
    configuration = state.configurations.get(key)
    if configuration is None:
        configuration = _configure_hook(dispatcher, args)
        if len(state.configurations) >= CONFIGURATIONS_KEPT:
            state.configurations.pop(next(iter(state.configurations)))
        configuration = state.configurations.setdefault(key, configuration)
    state.last = (args, configuration)
    return configuration


cdef bint _is_same(tuple one, tuple other) except -1:
    # Exact in types, and only of what cannot change: ints, tuples of them, or one object.
    cdef Py_ssize_t index
    if one is other:
        return True
    if len(one) != len(other):
        return False
    for index in range(len(one)):
        first = one[index]
        second = other[index]
        if first is second and type(first) is not list:
            continue
        if type(first) is int and type(second) is int:
            if first != second:
                return False
        elif type(first) is not tuple or type(second) is not tuple or not _is_same(
                <tuple>first, <tuple>second):
            return False
    return True


cdef object _typed_key(object value):
    if type(value) is tuple or type(value) is list:
        return tuple([_typed_key(item) for item in value])
    return (type(value), value)


cdef int _give_vectorcall() except -1:
    # Cython gives an extension type a tp_call only; a vectorcall saves the tuple.
    cdef LaunchConfiguration sample = LaunchConfiguration.__new__(LaunchConfiguration)
    cdef RawType* raw = <RawType*>LaunchConfiguration
    raw.tp_vectorcall_offset = <char*>&sample.vectorcall - <char*><PyObject*>sample
    raw.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL
    PyType_Modified(<PyTypeObject*>LaunchConfiguration)
    return 0


_give_vectorcall()
