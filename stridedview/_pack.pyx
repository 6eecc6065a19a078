"""Arguments into parameter words.

Owns the signature word of an argument (what a plan is looked up by), the setters that
write a value as the kernel's formal type wants it, and the block of words of an array:
meminfo and parent (0), size, itemsize, pointer, shape, strides in bytes. It knows nothing
of kernels: ``_launch`` gives it slots with offsets.
"""

from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_New
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.string cimport memcpy
from libc.stdint cimport (
    int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t,
    uintptr_t,
)

from stridedview._dlpack cimport kDLCPU, kDLCUDA
from stridedview._dtype cimport dtype_by_id, dtype_facts, dtype_from_numpy
from stridedview._ingest cimport (
    ROUTE_CAI, ROUTE_DLPACK, ROUTE_HOST, ROUTE_JAX, ROUTE_NONE, ROUTE_TORCH,
    ROUTE_VIEW, import_source, route_of,
)
from stridedview._layout cimport Layout
from stridedview._scalars cimport (
    KIND_ARRAY, KIND_BOOL, KIND_COMPLEX, KIND_ENUM, KIND_FLOAT, KIND_HOST, KIND_INT,
    KIND_OTHER, KIND_SCALAR, KIND_TUPLE, KIND_UINT64, SET_ARRAY, SET_F_ARRAY, SET_FLOAT64,
    SET_INT64, SET_TUPLE, store_float, store_int, store_other, store_uint64,
)
from stridedview._source cimport FIRST_PAGE, Source
from stridedview._torch cimport TorchRoute, torch_route, torch_scalar_type
from stridedview._view cimport NO_STREAM, StridedView

import enum

import numpy as np

from stridedview import _locks

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject*)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    PyTypeObject PyLong_Type
    PyTypeObject PyFloat_Type
    PyTypeObject PyBool_Type
    PyTypeObject PyComplex_Type
    PyTypeObject PyTuple_Type

cdef enum:
    TYPES_KEPT = 4096

cdef dict _kinds = {}           # type -> kind, for the types that are not asked by pointer
cdef dict _type_ids = {}        # named tuple or enum class -> id in a word
cdef object _lock = _locks.lock()


cdef int kind_of(PyTypeObject* type_, PyObject* sample) except -1:
    if type_ is &PyLong_Type:
        return KIND_INT
    if type_ is &PyFloat_Type:
        return KIND_FLOAT
    if type_ is &PyBool_Type:
        return KIND_BOOL
    if type_ is &PyTuple_Type:
        return KIND_TUPLE
    if type_ is &PyComplex_Type:
        return KIND_COMPLEX
    found = _kinds.get(<object>type_)
    if found is not None:
        return found
    return _classify(type_, sample)


cdef int _classify(PyTypeObject* type_, PyObject* sample) except -1:
    cdef int kind = _scalar_kind(<object>type_)
    if kind == KIND_OTHER:
        kind = route_of(type_, sample)
        if kind == ROUTE_NONE:
            return KIND_OTHER       # a torch that is imported later must be seen
    if len(_kinds) >= TYPES_KEPT:
        _kinds.clear()
    _kinds[<object>type_] = kind
    return kind


cdef int _scalar_kind(object type_) except -1:
    # An enum before int, a NumPy scalar before float: they are subclasses.
    if issubclass(type_, enum.Enum):
        return KIND_ENUM
    if issubclass(type_, np.generic):
        return KIND_OTHER if issubclass(type_, np.void) else KIND_SCALAR
    for base, kind in (
        (tuple, KIND_TUPLE), (bool, KIND_BOOL), (int, KIND_INT), (float, KIND_FLOAT),
        (complex, KIND_COMPLEX),
    ):
        if issubclass(type_, base) and not hasattr(type_, "__cuda_array_interface__"):
            return kind
    return KIND_OTHER


# -- arrays -------------------------------------------------------------------------------

cdef inline uint64_t word_of_array(Source* source, int letter) noexcept nogil:
    return (
        <uint64_t>KIND_ARRAY
        | <uint64_t>source.dtype << WORD_DTYPE
        | <uint64_t>source.ndim << WORD_NDIM
        | <uint64_t>letter << WORD_LETTER
        | <uint64_t>source.is_readonly << WORD_READONLY
        | <uint64_t>source.family << WORD_FAMILY
        | <uint64_t>source.device_type << WORD_DEVICE_TYPE
        | <uint64_t>(source.device_id & 0xffff) << WORD_DEVICE
    )


cdef inline bint _is_f_contiguous(const uint64_t* words, int ndim) noexcept nogil:
    cdef int64_t expected = <int64_t>words[3]
    cdef int axis
    for axis in range(ndim):
        if words[5 + axis] != 1 and <int64_t>words[5 + ndim + axis] != expected:
            return False
        expected *= <int64_t>words[5 + axis]
    return True


cdef inline int write_block(uint64_t* words, void* data, const int64_t* shape,
                            const int64_t* strides, int64_t unit, int ndim,
                            int64_t itemsize) noexcept nogil:
    """Write an array's block of 5 + 2 * ndim words and return its layout letter.

    C-contiguous by NumPy's rule: axes of extent 1 do not count, and an empty array is
    contiguous.
    """
    cdef int64_t running = itemsize
    cdef int64_t size = 1
    cdef int64_t extent, stride
    cdef uint64_t* out = words + 5
    cdef bint is_c = True
    cdef int axis = ndim - 1
    while axis >= 0:
        extent = shape[axis]
        stride = running if strides is NULL else strides[axis] * unit
        out[axis] = <uint64_t>extent
        out[ndim + axis] = <uint64_t>stride
        if stride != running and extent != 1:
            is_c = False
        running *= extent
        size *= extent
        axis -= 1
    words[0] = 0
    words[1] = 0
    words[2] = <uint64_t>size
    words[3] = <uint64_t>itemsize
    # An empty array has no address, whatever its producer says.
    words[4] = <uint64_t><uintptr_t>data if size else 0
    if is_c or size == 0:
        return LETTER_C
    return LETTER_F if _is_f_contiguous(words, ndim) else LETTER_A


cdef uint64_t write_array(uint64_t* words, Source* source) noexcept nogil:
    """Write an array's block of words and return its signature word."""
    return word_of_array(source, write_block(
        words, source.data, source.shape, source.strides, source.unit, source.ndim,
        dtype_facts[source.dtype].itemsize))


# -- the fast readings --------------------------------------------------------------------

cdef int prepare_slot(Slot* slot) except -1:
    cdef uint64_t word = slot.word
    slot.fast = FAST_NONE
    if slot.setter == SET_INT64 and word == KIND_INT and slot.type is &PyLong_Type:
        slot.fast = FAST_INT64
    elif slot.setter == SET_FLOAT64 and word == KIND_FLOAT and slot.type is &PyFloat_Type:
        slot.fast = FAST_FLOAT64
    if slot.setter != SET_ARRAY:
        return 0
    slot.dtype = <uint16_t>(word >> WORD_DTYPE & 0xffff)
    slot.ndim = <int32_t>(word >> WORD_NDIM & 0xff)
    slot.letter = <uint8_t>(word >> WORD_LETTER & 3)
    slot.is_readonly = word >> WORD_READONLY & 1
    slot.family = <uint8_t>(word >> WORD_FAMILY & 0xff)
    slot.device_type = <uint8_t>(word >> WORD_DEVICE_TYPE & 0xf)
    slot.device_id = <int32_t>(word >> WORD_DEVICE)
    slot.itemsize = dtype_facts[slot.dtype].itemsize
    slot.misaligned = <uint32_t>(dtype_facts[slot.dtype].alignment - 1)
    slot.scalar_type = torch_scalar_type(slot.dtype)
    if slot.kind == ROUTE_VIEW:
        slot.fast = FAST_VIEW
    elif (slot.kind == ROUTE_TORCH and torch_route.is_c_abi and slot.scalar_type >= 0
            and slot.device_type == kDLCUDA and not slot.is_readonly):
        slot.fast = FAST_TORCH
    return 0


cdef bint pack_torch(const Slot* slot, PyObject* tensor, uint64_t* words) noexcept:
    cdef TorchRoute* route = &torch_route
    cdef void* handle = <char*>tensor + route.tensor_offset
    cdef void* data
    cdef int64_t ndim
    cdef int64_t* shape
    cdef int64_t* strides
    cdef int32_t scalar_type
    cdef int32_t device_id
    cdef int32_t code
    if (<uint64_t*>((<char**>handle)[0] + route.key_offset))[0] & ~route.key_ignored != (
            route.key_cuda):
        return False
    code = route.api.get_dim(handle, &ndim)
    code |= route.api.get_dtype(handle, &scalar_type)
    code |= route.api.get_device_index(handle, &device_id)
    if code | (ndim ^ slot.ndim) | (scalar_type ^ slot.scalar_type) | (
            device_id ^ slot.device_id):
        return False
    code = route.api.get_sizes(handle, &shape)
    code |= route.api.get_strides(handle, &strides)
    code |= route.api.get_data_ptr(handle, &data)
    return (
        code == 0
        and write_block(words, data, shape, strides, slot.itemsize, slot.ndim,
                        slot.itemsize) == slot.letter
        and _is_usable(slot, words)
    )


cdef bint pack_view(const Slot* slot, PyObject* view, uint64_t* words, Call* call) noexcept:
    cdef StridedView array = <StridedView>view
    cdef Layout layout = array.layout
    cdef int letter = LETTER_A
    if layout.is_c_contiguous:
        letter = LETTER_C
    elif layout.is_f_contiguous:
        letter = LETTER_F
    if (
        layout.ndim != slot.ndim or letter != slot.letter or array.dtype_id != slot.dtype
        or array.device_id != slot.device_id or array.device_type != slot.device_type
        or array.family != slot.family or array.is_readonly != slot.is_readonly
        or not _has_noted(&call.wait_count, call.waits, array.stream_handle)
    ):
        return False
    memcpy(words, layout.words, (5 + 2 * slot.ndim) * sizeof(uint64_t))
    words[4] = <uint64_t><uintptr_t>array.data if layout.size else 0
    return _is_usable(slot, words) and (
        layout.whole_strides or _misaligned_axis(words, slot.ndim, slot.misaligned) < 0)


cdef inline bint _has_noted(int* count, intptr_t* waits, intptr_t stream) noexcept nogil:
    """Note the stream that an array names; false if a launch with a plan has no room."""
    cdef int index
    if stream == NO_STREAM:
        return True
    for index in range(count[0]):
        if waits[index] == stream:
            return True
    if count[0] == WAITS:
        return False
    waits[count[0]] = stream
    count[0] += 1
    return True


cdef inline bint _is_usable(const Slot* slot, const uint64_t* words) noexcept nogil:
    return words[2] == 0 or (words[4] >= FIRST_PAGE and words[4] & slot.misaligned == 0)


cdef inline int _misaligned_axis(const uint64_t* words, int ndim,
                                 uint64_t mask) noexcept nogil:
    """Return the first axis whose stride leads off the alignment, or -1."""
    cdef int axis
    for axis in range(ndim):
        if words[5 + axis] > 1 and words[5 + ndim + axis] & mask:
            return axis
    return -1


# -- the general way ----------------------------------------------------------------------

cdef inline int check_memory(const uint64_t* words, const Source* source) except -1:
    # torch's tensors come here unchecked; the others were checked by their route.
    cdef uint64_t alignment = <uint64_t>dtype_facts[source.dtype].alignment
    cdef int axis
    if words[2] == 0:
        return 0
    if words[4] < FIRST_PAGE or words[4] & (alignment - 1):
        return _refuse_pointer(words[4], source.dtype)
    axis = _misaligned_axis(words, source.ndim, alignment - 1)
    if axis >= 0:
        raise BufferError(
            f"its stride of {<int64_t>words[5 + source.ndim + axis]} bytes along axis {axis} "
            f"leads off the {alignment} bytes that {dtype_by_id(source.dtype).name} is "
            "aligned to; pass a copy")
    return 0


cdef int _refuse_pointer(uint64_t address, int dtype) except -1:
    if address < FIRST_PAGE:
        raise BufferError(
            f"its pointer is {address:#x}: the memory was freed or never allocated")
    raise BufferError(
        f"its pointer {address:#x} is not aligned to the {dtype_facts[dtype].alignment} "
        f"bytes of {dtype_by_id(dtype).name}; pass a copy (x.clone())")


cdef int _note_keep(Call* call, PyObject* keep) except -1:
    if call.keep is NULL:
        holder = PyList_New(0)
        Py_INCREF(holder)
        call.keep = <PyObject*>holder
    (<list>call.keep).append(<object>keep)
    return 0


cdef int _pack_array(Slot* slot, int route, PyObject* argument, char* buffer,
                     Call* call) except -1:
    cdef Source source
    cdef uint64_t word
    cdef uint64_t* words = <uint64_t*>(buffer + slot.offset)
    import_source(route, argument, &source)
    if source.keep is not NULL:
        try:
            _note_keep(call, source.keep)
        finally:
            Py_DECREF(<object>source.keep)
    if source.ndim != <int>(slot.word >> WORD_NDIM & 0xff) or source.device_type == kDLCPU:
        return MISMATCH
    word = write_array(words, &source)
    if word != slot.word:
        return MISMATCH
    if (slot.setter == SET_F_ARRAY and words[2] != 0
            and not _is_f_contiguous(words, source.ndim)):
        return MISMATCH         # the word's letter is C, whether it is F as well or not
    check_memory(words, &source)
    # Too many streams: the words are read then, and they say that no plan takes this.
    return 0 if _has_noted(&call.wait_count, call.waits, source.stream) else MISMATCH


# -- scalars ------------------------------------------------------------------------------

cdef int pack_argument(Slot* slot, PyObject* argument, char* buffer, Call* call) except -1:
    cdef PyTypeObject* type_ = Py_TYPE(argument)
    cdef int kind = slot.kind if type_ is slot.type else kind_of(type_, argument)
    if kind < KIND_INT:
        if slot.setter > SET_F_ARRAY or kind <= ROUTE_NONE or kind == ROUTE_HOST:
            return MISMATCH
        return _pack_array(slot, kind, argument, buffer, call)
    if kind == KIND_TUPLE:
        return _pack_tuple(slot, argument, buffer, call)
    if slot.setter <= SET_TUPLE:
        return MISMATCH
    return _pack_scalar(slot, kind, <object>argument, buffer + slot.offset)


cdef int _pack_tuple(Slot* slot, PyObject* argument, char* buffer, Call* call) except -1:
    cdef Slot* item = slot + 1
    cdef Py_ssize_t index
    cdef int result
    if slot.setter != SET_TUPLE or _word_of_tuple(<object>argument) != slot.word:
        return MISMATCH
    for index in range(PyTuple_GET_SIZE(<object>argument)):
        result = pack_argument(
            item, <PyObject*>PyTuple_GET_ITEM(<object>argument, index), buffer, call)
        if result != 0:
            return result
        item += 1 + item.following
    return 0


cdef int _pack_scalar(Slot* slot, int kind, object value, char* destination) except -1:
    cdef int overflow = 0
    cdef long long integer
    if kind == KIND_INT:
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            if slot.word != KIND_UINT64:
                return MISMATCH
            return store_uint64(slot.setter, value, destination)
        if slot.word != KIND_INT:
            return MISMATCH
        return store_int(slot.setter, integer, destination)
    if kind == KIND_FLOAT:
        if slot.word != KIND_FLOAT:
            return MISMATCH
        return store_float(slot.setter, PyFloat_AS_DOUBLE(value), destination)
    if _word_of_scalar(kind, value) != slot.word:
        return MISMATCH
    return store_other(slot.setter, kind, value, destination)


cdef bint takes_python(PyObject* argument) except -1:
    cdef int kind = kind_of(Py_TYPE(argument), argument)
    cdef Py_ssize_t index
    if kind != KIND_TUPLE:
        return kind == ROUTE_DLPACK or kind == ROUTE_CAI or kind == ROUTE_JAX
    for index in range(PyTuple_GET_SIZE(<object>argument)):
        if takes_python(<PyObject*>PyTuple_GET_ITEM(<object>argument, index)):
            return True
    return False


# -- signature words ----------------------------------------------------------------------

cdef int _type_id(object type_) except -1:
    """Return a small number for a named tuple or enum class, 0 if there are too many."""
    found = _type_ids.get(type_)
    if found is not None:
        return found
    with _lock:
        if len(_type_ids) >= 60_000:
            return 0
        return _type_ids.setdefault(type_, len(_type_ids) + 1)


cdef uint64_t _word_of_tuple(object value) except? 0:
    cdef uint64_t id = 0
    if type(value) is not tuple:
        id = _type_id(type(value))
    return (<uint64_t>KIND_TUPLE | id << WORD_DTYPE
            | <uint64_t>(PyTuple_GET_SIZE(value) & 0xffffffff) << WORD_LETTER)


cdef uint64_t _word_of_scalar(int kind, object value) except? 0:
    cdef int overflow = 0
    if kind == KIND_INT:
        PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow and (value < 0 or value >= 1 << 64):
            raise OverflowError(
                f"{value} does not fit 64 bits; a kernel takes integers from -2**63 to "
                "2**64 - 1")
        return KIND_UINT64 if overflow else KIND_INT
    if kind == KIND_SCALAR:
        return <uint64_t>KIND_SCALAR | <uint64_t>dtype_from_numpy(value.dtype) << WORD_DTYPE
    if kind == KIND_ENUM:
        return <uint64_t>KIND_ENUM | <uint64_t>_type_id(type(value)) << WORD_DTYPE
    return <uint64_t>kind


cdef int append_words(PyObject* argument, int index, Words* words) except -1:
    cdef int kind = kind_of(Py_TYPE(argument), argument)
    cdef uint64_t word
    if words.count == WORDS_KEPT:
        words.planned = False
        return 0
    if kind == KIND_TUPLE:
        return _append_tuple(argument, index, words)
    if kind == KIND_OTHER or kind == ROUTE_HOST:
        words.planned = False
        word = KIND_OTHER
    elif kind < KIND_INT:
        word = _word_of_import(kind, argument, index, words)
    else:
        word = _word_of_scalar(kind, <object>argument)
    words.word[words.count] = word
    words.count += 1
    return 0


cdef int _append_tuple(PyObject* argument, int index, Words* words) except -1:
    cdef Py_ssize_t item
    if type(<object>argument) is not tuple and _type_id(type(<object>argument)) == 0:
        words.planned = False
    words.word[words.count] = _word_of_tuple(<object>argument)
    words.count += 1
    for item in range(PyTuple_GET_SIZE(<object>argument)):
        append_words(<PyObject*>PyTuple_GET_ITEM(<object>argument, item), index, words)
    return 0


cdef uint64_t _word_of_import(int route, PyObject* argument, int index,
                              Words* words) except? 0:
    cdef Source source
    import_source(route, argument, &source)
    if source.keep is NULL:
        return _word_of_source(&source, index, words)
    try:    # shape and strides stand in what `keep` owns
        return _word_of_source(&source, index, words)
    finally:
        Py_DECREF(<object>source.keep)


cdef uint64_t _word_of_source(Source* source, int index, Words* words) except? 0:
    cdef uint64_t block[133]        # 5 + 2 * MAX_NDIM
    cdef uint64_t word
    if source.device_type == kDLCPU:
        words.planned = False
        return KIND_HOST
    if not dtype_facts[source.dtype].kernel:
        entry = dtype_by_id(source.dtype)
        raise TypeError(f"a kernel cannot take dtype {entry.name}; {entry.advice}")
    word = write_array(block, source)
    check_memory(block, source)
    if not _has_noted(&words.wait_count, words.waits, source.stream):
        words.planned = False
    if source.device_type == kDLCUDA:
        _note_device(source, index, words)
    return word


cdef int _note_device(Source* source, int index, Words* words) except -1:
    if words.device < 0:
        words.device = source.device_id
        words.device_argument = index
    elif words.device != source.device_id:
        raise ValueError(other_device(
            source.device_id, words.device_argument, words.device))
    return 0


def other_device(number, index, device):
    """Return what is wrong with an array on ``number``, as argument ``index`` is elsewhere."""
    return (
        f"it is on device {number} but argument {index + 1} is on device {device}; a launch "
        "takes arrays of one device")


def kind_name(value):
    """Return what an argument is: "array", "tuple", "int", "scalar" or "other"."""
    cdef int kind = kind_of(Py_TYPE(<PyObject*>value), <PyObject*>value)
    if kind == KIND_OTHER:
        return "other"
    if kind < KIND_INT:
        return "array"
    if kind == KIND_TUPLE:
        return "tuple"
    return "int" if kind == KIND_INT else "scalar"
