"""Launch plans and the fast call.

Owns what ``kernel[grid, block, stream, shared](*args)`` does once a signature has been
seen: the arguments are packed at the last plan's slots, each giving a signature word that
is compared with the plan's; the stream and the context are checked; the driver is called.
No Python code runs on a hit. What no plan covers goes to a hook (``numba_cuda``), which
asks Numba and hands back a plan, or launches through Numba's own code.

Memory and streams on a launch: the caller's argument vector holds the producers, the
parameter buffer is this call's own, and the launch goes to the producers' current stream
unless one was named; only then are producers kept beyond the call (see ``_stream``).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from stridedview._configuration cimport LaunchConfiguration, set_launch_entry
from stridedview._driver cimport (
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_PARAM_BUFFER_POINTER,
    CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END, CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_SUCCESS, LaunchAttribute,
    LaunchConfig, driver,
)
from stridedview._pack cimport (
    FAST_FLOAT64, FAST_INT64, FAST_TORCH, FAST_VIEW, Call, Slot, Words, append_words,
    pack_argument, pack_torch, pack_view, takes_python,
)
from stridedview._plan cimport Plan
from stridedview._stream cimport (
    family_stream, keep_until_done, numba_default_stream, order_behind, same_stream,
)
from stridedview._torch cimport torch_stream
from stridedview._view cimport FAMILY_NONE, FAMILY_TORCH

from time import perf_counter_ns

from stridedview._stream import release_done

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject*)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    int Py_EnterRecursiveCall(const char*) except -1
    void Py_LeaveRecursiveCall()

cdef enum:
    INLINE_BUFFER = 4096        # bytes of parameters that need no allocation
    PLANS_KEPT = 4096           # per dispatcher
    COUNTED = 63                # after one launch more it is asked what may go that was kept
    # Not results of the driver's: what a try of the fast way came to.
    TRY_DONE = 0
    TRY_OTHER_SIGNATURE = 1
    TRY_OTHER_CONTEXT = 2

# The high bit of a vectorcall's count says that the slot before the arguments is free.
cdef size_t COUNT_MASK = ~(<size_t>1 << (8 * sizeof(size_t) - 1))

# Whether plans may be used: we are enabled, and nobody observes launches. One flag, so that
# observing costs a launch nothing while nobody does.
cdef bint _fast = False
cdef bint _enabled = False
cdef bint _follow_producers = True
cdef bint _watches_slow = False
# Launches with a plan, and those of them whose plan was made for them.
cdef unsigned long long _planned_count = 0
cdef unsigned long long _missed_count = 0


# -- the fast call ------------------------------------------------------------------------

cdef object _vectorcall(object callable, PyObject** args, size_t count_and_flag,
                        PyObject* names):
    cdef LaunchConfiguration configuration = <LaunchConfiguration>callable
    cdef Py_ssize_t count = <Py_ssize_t>(count_and_flag & COUNT_MASK)
    cdef Plan plan = configuration.plan
    if names is not NULL and len(<tuple>names):
        raise TypeError(f"kernels take no keyword arguments, got {sorted(<tuple>names)}")
    if (
        plan is not None and plan.argument_count == count
        and _is_current(configuration, plan)
        and _try(configuration, plan, args) == TRY_DONE
    ):
        return None
    return launch(configuration, tuple([<object>args[index] for index in range(count)]))


cdef inline bint _is_current(LaunchConfiguration configuration, Plan plan):
    # The guards of a plan; each is a field or a length, so that a hit pays nothing.
    return (
        _fast
        and plan.is_valid
        and plan.generation == configuration.state.generation
        and PyList_GET_SIZE(configuration.callbacks) == 0
        and PyList_GET_SIZE(plan.extensions) == 0
    )


cdef inline int _try(LaunchConfiguration configuration, Plan plan,
                     PyObject** args) except -1:
    cdef double aligned[512]        # INLINE_BUFFER bytes, aligned to 8
    if plan.size <= INLINE_BUFFER:
        return _try_in(configuration, plan, args, <char*>aligned)
    return _try_large(configuration, plan, args)


cdef int _try_large(LaunchConfiguration configuration, Plan plan, PyObject** args) except -1:
    cdef char* buffer = <char*>PyMem_Malloc(plan.size)
    if buffer is NULL:
        raise MemoryError()
    try:
        return _try_in(configuration, plan, args, buffer)
    finally:
        PyMem_Free(buffer)


cdef inline int _try_in(LaunchConfiguration configuration, Plan plan, PyObject** args,
                        char* buffer) except -1:
    cdef Call call
    cdef int result
    call.wait_count = 0
    call.keep = NULL
    result = _pack(configuration, plan, args, buffer, &call)
    if call.keep is NULL:
        if result != 0:
            return TRY_OTHER_SIGNATURE
        return _in_context(configuration, plan, buffer, &call, args)
    return _try_keeping(configuration, plan, buffer, &call, args, result)


cdef int launch_packed(LaunchConfiguration configuration, Plan plan, char* buffer,
                       Call* call, PyObject** args) except -1:
    return _in_context(configuration, plan, buffer, call, args)


cdef int _try_keeping(LaunchConfiguration configuration, Plan plan, char* buffer, Call* call,
                      PyObject** args, int result) except -1:
    # Some producers handed out what must live until the launch is queued.
    try:
        if result != 0:
            return TRY_OTHER_SIGNATURE
        return _in_context(configuration, plan, buffer, call, args)
    finally:
        _drop(call)


cdef inline int _pack(LaunchConfiguration configuration, Plan plan, PyObject** args,
                      char* buffer, Call* call) except -1:
    cdef Slot* slot = plan.slots
    cdef PyObject* argument
    cdef int index, result
    for index in range(plan.argument_count):
        argument = args[index]
        if not _pack_fast(slot, argument, buffer + slot.offset, call):
            result = _pack_named(configuration, slot, argument, index, buffer, call)
            if result != 0:
                return result
        slot += 1 + slot.following
    return 0


cdef inline bint _pack_fast(Slot* slot, PyObject* argument, char* destination,
                            Call* call) except -1:
    cdef int overflow = 0
    if Py_TYPE(argument) is not slot.type:
        return False
    if slot.fast == FAST_TORCH:
        return pack_torch(slot, argument, <uint64_t*>destination)
    if slot.fast == FAST_VIEW:
        return pack_view(slot, argument, <uint64_t*>destination, call)
    if slot.fast == FAST_INT64:
        (<long long*>destination)[0] = PyLong_AsLongLongAndOverflow(
            <object>argument, &overflow)
        return overflow == 0
    if slot.fast == FAST_FLOAT64:
        (<double*>destination)[0] = PyFloat_AS_DOUBLE(<object>argument)
        return True
    return False


cdef int _pack_named(LaunchConfiguration configuration, Slot* slot, PyObject* argument,
                     int index, char* buffer, Call* call) except -1:
    # A producer that launches this kernel again comes here again, with a C stack each time.
    Py_EnterRecursiveCall(" while an argument was imported")
    try:
        if _watches_slow and takes_python(argument):
            _slow_hook(configuration.dispatcher, index, <object>argument)
        return pack_argument(slot, argument, buffer, call)
    except BaseException as error:
        _drop(call)
        return raise_named(configuration.dispatcher, index, error)
    finally:
        Py_LeaveRecursiveCall()


cdef void _drop(Call* call) noexcept:
    if call.keep is not NULL:
        Py_DECREF(<object>call.keep)
        call.keep = NULL


cdef inline int _in_context(LaunchConfiguration configuration, Plan plan, char* buffer,
                            Call* call, PyObject** args) except -1:
    cdef unsigned long long current = 0
    cdef int result = driver.cuCtxGetId(NULL, &current)
    if result == CUDA_SUCCESS and current == plan.context_id:
        return _queue(configuration, plan, buffer, call, args)
    plan.failure = result
    return _elsewhere(configuration, plan, buffer, call, args)


cdef int _elsewhere(LaunchConfiguration configuration, Plan plan, char* buffer,
                    Call* call, PyObject** args) except -1:
    cdef unsigned long long current = 0
    cdef void* popped
    if plan.device < 0:
        return TRY_OTHER_CONTEXT
    # Another device is current, or none: launch where the arrays are, put it back.
    if driver.cuCtxPushCurrent(plan.context) != CUDA_SUCCESS:
        return TRY_OTHER_CONTEXT
    try:
        if driver.cuCtxGetId(NULL, &current) != CUDA_SUCCESS or current != plan.context_id:
            return TRY_OTHER_CONTEXT
        return _queue(configuration, plan, buffer, call, args)
    finally:
        driver.cuCtxPopCurrent(&popped)


cdef int _queue(LaunchConfiguration configuration, Plan plan, char* buffer, Call* call,
                PyObject** args) except -1:
    cdef void* stream = configuration.stream_handle
    cdef bint is_foreign = False
    cdef int result
    if not configuration.is_named:
        if plan.lead == FAMILY_TORCH and _follow_producers:
            torch_stream(plan.stream_device, &stream)
        elif plan.lead != FAMILY_NONE and _follow_producers:
            family_stream(plan.lead, plan.stream_device, &stream)
        else:
            stream = numba_default_stream()
    if (configuration.is_named or plan.family_count > 1 or call.wait_count
            or not _follow_producers):
        is_foreign = _order(plan, call, stream, True)
    result = _call_driver(configuration, plan, buffer, stream)
    if result != CUDA_SUCCESS:
        result = _mend(configuration, plan, buffer, stream, result)
        if result != TRY_DONE:
            return result
    _count()
    if is_foreign and not keep_until_done(_owners(plan, call, args), stream):
        _order(plan, call, stream, False)
    return TRY_DONE


cdef object _owners(Plan plan, Call* call, PyObject** args):
    # What producers handed out for this launch may own memory that they do not.
    cdef tuple found = tuple([<object>args[index] for index in range(plan.argument_count)])
    return found if call.keep is NULL else (found, <object>call.keep)


cdef inline int _count() except -1:
    global _planned_count
    _planned_count += 1
    if _planned_count & COUNTED == 0:
        release_done()      # so that what a launch on a foreign stream kept goes in time
    return 0


cdef int _mend(LaunchConfiguration configuration, Plan plan, char* buffer, void* stream,
               int result) except -1:
    """Try a failed launch once more if its cause can be mended; else raise."""
    if _failed(configuration, plan, result) == TRY_OTHER_CONTEXT:
        return TRY_OTHER_CONTEXT
    result = _call_driver(configuration, plan, buffer, stream)
    if result != CUDA_SUCCESS:
        raise _error_hook(configuration, plan, result, True)
    return TRY_DONE


cdef bint _order(Plan plan, Call* call, void* stream, bint launch_waits) except -1:
    """Put the launch behind its producers, or them behind it.

    Return whether one works on another stream.
    """
    cdef int index
    cdef void* producer = NULL
    cdef bint is_foreign = False
    for index in range(plan.family_count):
        if family_stream(plan.families[index], plan.stream_device, &producer):
            is_foreign |= _order_one(stream, producer, launch_waits)
    for index in range(call.wait_count):
        is_foreign |= _order_one(stream, <void*>call.waits[index], launch_waits)
    return is_foreign


cdef bint _order_one(void* stream, void* producer, bint launch_waits) except -1:
    if same_stream(producer, stream):
        return False
    if launch_waits:
        order_behind(stream, producer)
    else:
        order_behind(producer, stream)
    return True


cdef int _call_driver(LaunchConfiguration configuration, Plan plan, char* buffer,
                      void* stream) except -1:
    cdef size_t size = plan.size
    cdef void* extra[5]
    cdef void** packed = NULL
    cdef unsigned int* grid = configuration.grid
    cdef unsigned int* block = configuration.block
    cdef int result
    if size:
        extra[0] = <void*><uintptr_t>CU_LAUNCH_PARAM_BUFFER_POINTER
        extra[1] = buffer
        extra[2] = <void*><uintptr_t>CU_LAUNCH_PARAM_BUFFER_SIZE
        extra[3] = &size
        extra[4] = <void*><uintptr_t>CU_LAUNCH_PARAM_END
        packed = extra
    if plan.cooperative:
        return _call_cooperative(configuration, plan, packed, stream)
    # A full queue blocks in the driver, and a host callback that needs the GIL would then
    # never let it drain. The configuration and the plan are held by the caller.
    with nogil:
        result = driver.cuLaunchKernel(
            plan.function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
            configuration.shared, stream, NULL, packed)
    return result


cdef int _call_cooperative(LaunchConfiguration configuration, Plan plan, void** packed,
                           void* stream) except -1:
    cdef LaunchAttribute attribute
    cdef LaunchConfig config
    cdef int axis
    cdef int result
    memset(&attribute, 0, sizeof(attribute))
    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    (<int*>attribute.value)[0] = 1
    for axis in range(3):
        config.grid[axis] = configuration.grid[axis]
        config.block[axis] = configuration.block[axis]
    config.shared = configuration.shared
    config.stream = stream
    config.attributes = &attribute
    config.attribute_count = 1
    with nogil:
        result = driver.cuLaunchKernelEx(&config, plan.function, NULL, packed)
    return result


cdef int _failed(LaunchConfiguration configuration, Plan plan, int result) except -1:
    # A plan whose context was reset under it: drop it and take the slow way once.
    if result in (
        CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED,
    ):
        plan.is_valid = False
        plan.failure = result
        return TRY_OTHER_CONTEXT
    # Asked once whether it can be mended (more shared memory than the default allows).
    error = _error_hook(configuration, plan, result, False)
    if error is not None:
        raise error
    return TRY_DONE


# -- the slow way -------------------------------------------------------------------------

cdef object launch(LaunchConfiguration configuration, tuple args):
    """Launch with a plan looked up or made anew, or through Numba's own code."""
    if _fast:
        return _launch(configuration, args)
    if not _enabled:
        return _unpatched_hook(configuration, args)
    return _observe(configuration, args)


cdef object _observe(LaunchConfiguration configuration, tuple args):
    # As the vectorcall does, timed; the observers see it afterwards.
    return _observe_since(configuration, args, perf_counter_ns())


cdef object _observe_since(LaunchConfiguration configuration, tuple args, long long start):
    cdef Plan plan = configuration.plan
    if (
        plan is None or not plan.is_valid
        or plan.generation != configuration.state.generation
        or len(configuration.callbacks) != 0 or not _try_plan(configuration, plan, args)
    ):
        _launch(configuration, args)
    _note_observed(configuration, args, perf_counter_ns() - start)


cdef object _note_observed(LaunchConfiguration configuration, tuple args, long long duration):
    for observer in _observers:
        try:
            observer(configuration, args, duration)
        except Exception as error:
            # What was launched cannot be taken back, so that the caller hears of no error.
            PyErr_SetObject(type(error), error)
            PyErr_WriteUnraisable(observer)


cdef object _launch(LaunchConfiguration configuration, tuple args):
    # A producer that launches this kernel again comes here again, with a C stack each time.
    Py_EnterRecursiveCall(" in a launch")
    try:
        return _launch_guarded(configuration, args)
    finally:
        Py_LeaveRecursiveCall()


cdef object _launch_guarded(LaunchConfiguration configuration, tuple args):
    global _missed_count
    cdef Plan plan
    cdef bytes raw
    cdef int device = -1
    if _watches_slow:
        _watch(configuration, args)
    raw = _signature(configuration, args, &device)
    if len(configuration.callbacks):
        raw = None
    if raw is not None:
        plan = _find(configuration, raw, device)
        if plan is not None:
            _make_ready(configuration, plan)
            if _try_plan(configuration, plan, args):
                return None
    plan = _miss(configuration, args, raw, device)
    if plan is None:
        return None
    _make_ready(configuration, plan)
    if not _try_plan(configuration, plan, args):
        if plan.failure != CUDA_SUCCESS:
            raise _error_hook(configuration, plan, plan.failure, True)
        raise RuntimeError(
            "the launch does not match the plan that was just made for it: an argument "
            "changed during the launch")
    _missed_count += 1
    return None


cdef int _make_ready(LaunchConfiguration configuration, Plan plan) except -1:
    # A launch that the driver refuses spoils a capture: what it would refuse is refused, and
    # what it has to be told is told, before a configuration's first launch.
    if configuration.shared != 0 or (
            configuration.plan is None and (
                plan.cooperative or not is_modest(configuration))):
        _ready_hook(configuration, plan)
    return 0


cpdef bint is_modest(LaunchConfiguration configuration) noexcept:
    """Whether grid and block are within the limits of every device and kernel."""
    # 255 registers a thread are the most.
    cdef unsigned int* grid = configuration.grid
    cdef unsigned int* block = configuration.block
    return (
        0 < grid[0] < 0x80000000 and 0 < grid[1] < 65536 and 0 < grid[2] < 65536
        and 0 < block[0] <= 256 and 0 < block[1] <= 256 and 0 < block[2] <= 64
        and block[0] * block[1] * block[2] <= 256
    )


cdef bytes _signature(LaunchConfiguration configuration, tuple args, int* device):
    """Return the signature words, or None if no plan can take the arguments."""
    cdef Words words
    read_words(configuration.dispatcher, args, &words)
    device[0] = words.device
    if not words.planned:
        return None
    return PyBytes_FromStringAndSize(<char*>words.word, words.count * sizeof(uint64_t))


cdef Plan plan_of(LaunchConfiguration configuration, tuple args):
    cdef Plan plan = None
    cdef bytes raw
    cdef int device = -1
    if _watches_slow:
        _watch(configuration, args)
    raw = _signature(configuration, args, &device)
    if raw is not None:
        plan = _find(configuration, raw, device)
    if plan is None or len(plan.extensions) or len(configuration.callbacks):
        plan = _plan_hook(configuration, args, raw, device)
    _make_ready(configuration, plan)
    return plan


cdef int _watch(LaunchConfiguration configuration, tuple args) except -1:
    cdef int index = 0
    for argument in args:
        try:
            _slow_hook(configuration.dispatcher, index, argument)
        except Exception as error:
            raise_named(configuration.dispatcher, index, error)
        index += 1
    return 0


def find_plan(LaunchConfiguration configuration, bytes raw, int device):
    """Return (the plan that a launch of these words would use, or None; "last" or "table").

    "last" is the configuration's own last plan, "table" one found among the dispatcher's.
    """
    cdef Plan plan = _find(configuration, raw, device)
    if plan is None:
        return None, ""
    if plan is configuration.plan and (
            plan.generation == configuration.state.generation):
        return plan, "last"
    return plan, "table"


def launch_counts():
    """Return how many launches used a plan, and for how many of them it was made."""
    return _planned_count, _missed_count


cdef int read_words(object dispatcher, tuple args, Words* words, int index=0) except -1:
    words.count = 0
    words.device = -1
    words.device_argument = 0
    words.planned = True
    words.wait_count = 0
    for argument in args:
        try:
            append_words(<PyObject*>argument, index, words)
        except Exception as error:
            raise_named(dispatcher, index, error)
        index += 1
    return 0


def signature_words(dispatcher, args, int first=0):
    """Return (words as bytes, or None if no plan can take them; device or -1).

    ``first`` is the position of the first of ``args`` among a launch's arguments.
    """
    cdef Words words
    read_words(dispatcher, args, &words, first)
    if not words.planned:
        return None, words.device
    raw = PyBytes_FromStringAndSize(<char*>words.word, words.count * sizeof(uint64_t))
    return raw, words.device


cdef object _key(LaunchConfiguration configuration, bytes raw, unsigned long long context_id):
    # Overloads of a kernel that is sensitive to its configuration differ by it.
    if configuration.state.is_config_sensitive:
        return (raw, context_id, configuration._griddim, configuration._blockdim,
                configuration._sharedmem)
    return (raw, context_id)


# Device -> id of the context that its plans were made in last: where arrays of a device that
# is not current are launched. A stale id finds nothing, or a plan that is checked anyway.
cdef dict _context_of_device = {}


cdef Plan _find(LaunchConfiguration configuration, bytes raw, int device):
    cdef unsigned long long current = 0
    cdef dict plans = configuration.state.plans
    if driver.cuCtxGetId is NULL or driver.cuCtxGetId(NULL, &current) != CUDA_SUCCESS:
        current = 0
    plan = plans.get(_key(configuration, raw, current))
    if plan is None and device >= 0:
        plan = plans.get(_key(configuration, raw, _context_of_device.get(device, 0)))
    if plan is None or not (<Plan>plan).is_valid:
        return None
    return <Plan>plan


cdef bint _try_plan(LaunchConfiguration configuration, Plan plan, tuple args) except -1:
    cdef PyObject* inline_args[64]
    cdef PyObject** vector = inline_args
    cdef Py_ssize_t index
    cdef Py_ssize_t count = len(args)
    if plan.argument_count != count or len(plan.extensions):
        return False
    if count > 64:
        vector = <PyObject**>PyMem_Malloc(count * sizeof(PyObject*))
        if vector is NULL:
            raise MemoryError()
    try:
        for index in range(count):
            vector[index] = <PyObject*>args[index]
        if _try(configuration, plan, vector) != TRY_DONE:
            return False
    finally:
        if count > 64:
            PyMem_Free(vector)
    configuration.plan = plan
    return True


def remember(LaunchConfiguration configuration, Plan plan, generation, bint is_current):
    """File a plan under its words, its context, and where it matters its configuration.

    Parameters
    ----------
    configuration : LaunchConfiguration
    plan : Plan
    generation : int
        The dispatcher's, when the kernel had been resolved.
    is_current : bool
        Whether the kernel was among the dispatcher's then. A plan that is not, or whose
        dispatcher changed since, serves the launch that it was made for and no other.
    """
    cdef dict plans = configuration.state.plans
    if not is_current:
        return
    plan.generation = generation
    if generation != configuration.state.generation:
        return
    if len(plans) >= PLANS_KEPT:
        plans.clear()
    plans[_key(configuration, plan.words, plan.context_id)] = plan
    if plan.device >= 0:
        _context_of_device[plan.device] = plan.context_id


def argument_name(dispatcher, int index):
    """Return how messages name an argument: "argument 2 'b'"."""
    code = getattr(dispatcher, "__code__", None)
    names = code.co_varnames[:code.co_argcount] if code is not None else ()
    name = f" '{names[index]}'" if index < len(names) else ""
    return f"argument {index + 1}{name}"


cpdef int raise_named(object dispatcher, int index, object error) except -1:
    """Raise an error that names the argument, of the same type as ``error`` and from it.

    Only errors about the argument's value are renamed; others are raised as they are, and
    not from themselves: whoever follows the causes would never end.
    """
    if type(error) not in (TypeError, ValueError, BufferError, OverflowError):
        raise error
    raise type(error)(f"{argument_name(dispatcher, index)}: {error}") from error


# -- hooks --------------------------------------------------------------------------------

# What stands above this module: Numba's side of the launch. See numba_cuda.
cdef object _miss = None            # (configuration, args, words or None, device) -> Plan or None
cdef object _unpatched_hook = None  # (configuration, args): launch through Numba's code
cdef object _error_hook = None      # (configuration, plan, code, final) -> error, None to retry
cdef object _ready_hook = None      # (configuration, plan): opt in to what it needs, or raise
cdef object _plan_hook = None       # as `_miss`, but launches nothing: raises if there is none
cdef object _slow_hook = None       # (dispatcher, index, argument): warn of a slow route, raise
cdef list _observers = []           # (configuration, args, nanoseconds), after each launch


def install(*, miss, plan, ready, unpatched, error, slow):
    """Install Numba's side of the launch; see the variables above for each hook."""
    global _miss, _plan_hook, _ready_hook, _unpatched_hook, _error_hook, _slow_hook
    _miss = miss
    _plan_hook = plan
    _ready_hook = ready
    _slow_hook = slow
    _unpatched_hook = unpatched
    _error_hook = error


def set_enabled(bint value, *, bint follow_producers=True, bint watch_slow=False):
    """Switch the launch path; a configuration made before falls to Numba's code when off."""
    global _enabled, _fast, _follow_producers, _watches_slow
    _enabled = value
    _fast = value and not _observers
    _follow_producers = follow_producers
    _watches_slow = watch_slow


def add_observer(observer):
    """Call ``observer(configuration, args, nanoseconds)`` after each launch from now on."""
    global _fast, _observers
    # A new list, as another thread may be walking the old one.
    _observers = [*_observers, observer]
    _fast = False


def remove_observer(observer):
    """Call an observer no more."""
    global _fast, _observers
    _observers = [other for other in _observers if other is not observer]
    _fast = _enabled and not _observers


cdef bint is_fast() noexcept:
    return _fast


cdef bint is_observed() noexcept:
    return _enabled and not _fast


cdef int observed(LaunchConfiguration configuration, tuple args, long long duration) except -1:
    _note_observed(configuration, args, duration)
    return 0


def is_watched():
    """Whether launches are observed: by ``profile``, or for ``bump_version``."""
    return is_observed()


def launch_since(LaunchConfiguration configuration, tuple args, long long start):
    """Launch, observed as begun at ``start``, of ``perf_counter_ns``."""
    if is_observed():
        return _observe_since(configuration, args, start)
    return launch(configuration, args)


def follows_producers():
    """Whether a launch that names no stream goes to its producers' current one."""
    return bool(_follow_producers)


set_launch_entry(<void*>_vectorcall)
