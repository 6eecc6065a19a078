"""The one dtype table.

Owns the correspondence between DLPack's (code, bits), NumPy's typestr and dtype,
torch's name and Numba's type name, each under one small integer id. Structured
and datetime dtypes have no fixed entry; they are registered when first seen. The
table knows names only: it imports numpy, and ``ml_dtypes`` when a NumPy dtype of a
type that NumPy itself lacks is asked for, never torch or Numba.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from stridedview._dlpack cimport (
    kDLBfloat,
    kDLBool,
    kDLComplex,
    kDLFloat,
    kDLFloat4_e2m1fn,
    kDLFloat8_e4m3fn,
    kDLFloat8_e4m3fnuz,
    kDLFloat8_e5m2,
    kDLFloat8_e5m2fnuz,
    kDLFloat8_e8m0fnu,
    kDLInt,
    kDLUInt,
)

import copy

import numpy as np

from stridedview import _locks

cdef str VIEW_AS_FLOAT = "pass x.view(torch.float16) with a last axis of pairs"
cdef str VIEW_AS_BYTES = "pass x.view(torch.uint8)"

# name, DLPack code, bits, alignment in bytes, may a kernel take it, what to do if not
cdef list STATIC = [
    ("bool", kDLBool, 8, 1, True, ""),
    ("int8", kDLInt, 8, 1, True, ""),
    ("int16", kDLInt, 16, 2, True, ""),
    ("int32", kDLInt, 32, 4, True, ""),
    ("int64", kDLInt, 64, 8, True, ""),
    ("uint8", kDLUInt, 8, 1, True, ""),
    ("uint16", kDLUInt, 16, 2, True, ""),
    ("uint32", kDLUInt, 32, 4, True, ""),
    ("uint64", kDLUInt, 64, 8, True, ""),
    ("float16", kDLFloat, 16, 2, True, ""),
    ("float32", kDLFloat, 32, 4, True, ""),
    ("float64", kDLFloat, 64, 8, True, ""),
    ("complex64", kDLComplex, 64, 4, True, ""),
    ("complex128", kDLComplex, 128, 8, True, ""),
    ("bfloat16", kDLBfloat, 16, 2, True, ""),
    ("float8_e4m3fn", kDLFloat8_e4m3fn, 8, 1, True, ""),
    ("float8_e5m2", kDLFloat8_e5m2, 8, 1, True, ""),
    ("float8_e8m0fnu", kDLFloat8_e8m0fnu, 8, 1, True, ""),
    ("float8_e4m3fnuz", kDLFloat8_e4m3fnuz, 8, 1, False, VIEW_AS_BYTES),
    ("float8_e5m2fnuz", kDLFloat8_e5m2fnuz, 8, 1, False, VIEW_AS_BYTES),
    ("complex32", kDLComplex, 32, 2, False, VIEW_AS_FLOAT),
    ("float4_e2m1fn_x2", kDLFloat4_e2m1fn, 4, 1, False, VIEW_AS_BYTES),
]

# Names of Numba's own types where they differ from ours; numba_cuda resolves them.
cdef dict NUMBA_NAMES = {
    "bool": "boolean",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e8m0fnu": "fp8_e8m0",
}

# NumPy has these only through ml_dtypes.
cdef frozenset FROM_ML_DTYPES = frozenset({
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "complex32",
})

cdef list _entries = [None]
cdef dict _by_name = {}
cdef dict _by_numpy = {}            # those of fixed entries
cdef dict _registered = {}          # what tells a dtype from those equal to it -> entry
cdef dict _seen = {}                # address of a dtype -> (that, its names, entry)
cdef object _lock = _locks.lock()

cdef enum:
    SEEN_KEPT = 512

# (code, bits) -> id for scalars of one lane, read on the import path.
cdef uint16_t _dlpack_ids[32][256]


cdef class DType:
    """One entry of the dtype table.

    Attributes
    ----------
    id : int
        Index in the table, stable for the life of the process.
    name : str
        The common name, as torch has it ("float32"); for a registered dtype, NumPy's.
    numba_name : str
        Name of the Numba type, or "" for a registered dtype.
    typestr : str
        NumPy's typestr as ``__array_interface__`` has it, or "" where NumPy has none.
    advice : str
        What to do about a type that a kernel cannot take, or "".
    """

    def __init__(self):
        raise TypeError("DType entries come from the table: stridedview.dtype(name)")

    @property
    def itemsize(self):
        """Bytes of one item."""
        return dtype_facts[self.id].itemsize

    @property
    def alignment(self):
        """Bytes to which an item's address must be aligned."""
        return dtype_facts[self.id].alignment

    @property
    def dlpack(self):
        """DLPack's (code, bits), or None if DLPack cannot say this type."""
        cdef DTypeFacts* facts = &dtype_facts[self.id]
        return (facts.code, facts.bits) if facts.bits else None

    @property
    def kernel(self):
        """Whether a Numba kernel can take arrays of this type."""
        return bool(dtype_facts[self.id].kernel)

    @property
    def numpy(self):
        """The NumPy dtype.

        Raises
        ------
        TypeError
            If NumPy has no such type, or has it only with ml_dtypes, which is absent.
        """
        if self._numpy is None:
            self._numpy = _numpy_dtype(self.name)
        return self._numpy

    def __repr__(self):
        return f"DType({self.name!r})"

    def __reduce__(self):
        if self.name in _by_name:
            return dtype, (self.name,)
        return dtype, (self.numpy,)


cdef object _numpy_dtype(str name):
    if name not in FROM_ML_DTYPES:
        raise TypeError(f"NumPy has no dtype for {name}")
    try:
        import ml_dtypes
        scalar_type = getattr(ml_dtypes, name)
    except (ImportError, AttributeError) as error:
        raise TypeError(
            f"NumPy has {name} only through the package ml_dtypes, which is not "
            f"usable here ({error}); install it, or read .dtype_name"
        ) from None
    return np.dtype(scalar_type)


cdef DType _append(str name, int itemsize, int alignment, int code, int bits, bint kernel):
    cdef int id = len(_entries)
    cdef DType entry = DType.__new__(DType)
    if id >= DTYPE_CAPACITY:
        raise OverflowError(f"the dtype table is full ({DTYPE_CAPACITY} entries)")
    entry.id = id
    entry.name = name
    entry.numba_name = entry.torch_name = entry.typestr = entry.advice = ""
    dtype_facts[id].itemsize = itemsize
    dtype_facts[id].alignment = alignment
    dtype_facts[id].code = code
    dtype_facts[id].bits = bits
    dtype_facts[id].kernel = kernel
    _entries.append(entry)
    return entry


cdef int _fill_table() except -1:
    cdef DType entry
    for name, code, bits, alignment, kernel, advice in STATIC:
        entry = _append(name, max(bits // 8, 1), alignment, code, bits, kernel)
        entry.numba_name = NUMBA_NAMES.get(name, name)
        entry.torch_name = name
        entry.advice = advice
        _by_name[name] = entry
        # Of less than a byte there is the pair of two lanes only.
        if bits >= 8 and code < 32:
            _dlpack_ids[<int>code][<int>(bits & 255)] = entry.id
        if _is_numpys_own(name):
            entry._numpy = np.dtype(name)
            entry.typestr = entry._numpy.str
            _by_numpy[entry._numpy] = entry
    return 0


cdef bint _is_numpys_own(str name) except -1:
    # ml_dtypes adds its names to NumPy's, but a typestr does not tell them.
    return name == "bool" or (name in np.sctypeDict and np.dtype(name).isbuiltin == 1)


cdef DType dtype_by_id(int id):
    return <DType>_entries[id]


cdef int dtype_from_dlpack(int code, int bits, int lanes) except -1:
    """Return the id for DLPack's triple; BufferError if the table has none."""
    cdef int id = 0
    if lanes == 1 and 0 <= code < 32 and 0 < bits < 256:
        id = _dlpack_ids[code][bits]
    if lanes == 2 and code == kDLFloat4_e2m1fn and bits == 4:
        id = (<DType>_by_name["float4_e2m1fn_x2"]).id
    if id == DTYPE_NONE:
        raise BufferError(
            f"DLPack type (code {code}, bits {bits}, lanes {lanes}) is not supported; "
            "view it as an integer type of the same width"
        )
    return id


cdef int dtype_lanes(int id) noexcept:
    """Return DLPack's lanes: 2 for a packed pair, else 1."""
    cdef DTypeFacts* facts = &dtype_facts[id]
    return 2 if facts.code == kDLFloat4_e2m1fn and facts.bits == 4 else 1


cdef int dtype_from_numpy(object dtype) except -1:
    """Return the id of a NumPy dtype, registering a structured or datetime one."""
    entry = _by_numpy.get(dtype)
    if entry is None:
        entry = _recognize(dtype)
    return (<DType>entry).id


cdef DType _recognize(object dtype):
    # By the very object first, which an array hands out each time. Held, so that no other
    # comes to stand at its address; the names are all of it that can be set.
    cdef tuple known = _seen.get(<uintptr_t><PyObject*>dtype)
    if known is not None and known[0] is dtype and known[1] is dtype.names:
        return known[2]
    entry = _register_numpy(dtype)
    if len(_seen) >= SEEN_KEPT:
        _seen.clear()
    _seen[<uintptr_t><PyObject*>dtype] = dtype, dtype.names, entry
    return entry


cdef DType _register_numpy(object dtype):
    cdef DType entry
    if dtype.name in _by_name and dtype.isnative:
        # ml_dtypes' own dtypes: known by name, hashed on first sight.
        entry = _by_name[dtype.name]
        if entry._numpy is None:
            entry._numpy = dtype
    elif (
        dtype.kind in "VMmSU" and dtype.isnative and dtype.itemsize and not dtype.hasobject
    ):
        if _has_metadata(dtype):
            dtype = _without_metadata(dtype)
        key = _identity(dtype)
        with _lock:
            found = _registered.get(key)
            if found is not None:
                return found
            entry = _append(
                str(dtype), dtype.itemsize, _power_of_two(dtype.alignment), 0, 0,
                dtype.names is not None or dtype.kind in "MmSU",
            )
            # Not the user's own object, whose names can be set at any time.
            entry._numpy = dtype if dtype.names is None else copy.deepcopy(dtype)
            entry.typestr = dtype.str
            if not dtype_facts[entry.id].kernel:
                entry.advice = "view it as uint8"
            _registered[key] = entry
            return entry
    else:
        raise TypeError(_refusal(dtype))
    _by_numpy[dtype] = entry
    return entry


cdef object _identity(object dtype):
    # What NumPy's == leaves out tells dtypes apart as well, at every depth: np.record from
    # np.void, and an aligned struct from one that merely has its offsets.
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _identity(base), shape
    if dtype.names is None:
        return dtype.str, dtype.type
    fields = [(name, dtype.fields[name]) for name in dtype.names]
    return dtype.type, dtype.isalignedstruct, dtype.itemsize, dtype.alignment, tuple(
        [(name, _identity(entry[0]), entry[1:]) for name, entry in fields])


cdef bint _has_metadata(object dtype) except -1:
    if dtype.metadata is not None:
        return True
    if dtype.subdtype is not None:
        return _has_metadata(dtype.subdtype[0])
    for name in dtype.names or ():
        if _has_metadata(dtype.fields[name][0]):
            return True
    return False


cdef object _without_metadata(object dtype):
    # One user's metadata must not appear on another's arrays of an equal dtype; a view
    # has none, whatever its dtype.
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_without_metadata(base), shape))
    if dtype.names is None:
        return np.dtype(dtype.str if dtype.kind in "VMmSU" else dtype.type)
    fields = [dtype.fields[name] for name in dtype.names]
    plain = np.dtype({
        "names": dtype.names,
        "formats": [_without_metadata(entry[0]) for entry in fields],
        "offsets": [entry[1] for entry in fields],
        "titles": [entry[2] if len(entry) > 2 else None for entry in fields],
        "itemsize": dtype.itemsize,
    }, align=dtype.isalignedstruct)
    return plain if dtype.type is np.void else np.dtype((dtype.type, plain))


cdef str _refusal(object dtype):
    if not dtype.isnative:
        return (
            f"dtype {dtype} has the other byte order; convert with "
            ".astype(dtype.newbyteorder('='))"
        )
    if not dtype.itemsize:
        return f"dtype {dtype} has items of no bytes; give it a field or a size"
    return f"dtype {dtype} has no counterpart on a CUDA device; convert it to a number type"


cdef int _power_of_two(int alignment):
    # A packed record has alignment 1; anything odd would be NumPy's error.
    return alignment if alignment > 0 and alignment & (alignment - 1) == 0 else 1


def dtype(what):
    """Return the table's entry for a dtype.

    Parameters
    ----------
    what : str, DType, or anything ``numpy.dtype`` takes
        "bfloat16" and the float8 names work without ml_dtypes; a torch.dtype is
        taken by its name.

    Returns
    -------
    DType

    Raises
    ------
    TypeError
        If a CUDA device has no such type.
    """
    return find_dtype(what)


cdef DType find_dtype(object what):
    if isinstance(what, DType):
        return what
    if isinstance(what, str):
        found = _by_name.get(what)
        if found is not None:
            return found
    if type(what).__module__ == "torch":
        name = str(what).partition(".")[2]
        if name in _by_name:
            return _by_name[name]
        raise TypeError(f"{what} has no counterpart on a CUDA device")
    return dtype_by_id(dtype_from_numpy(np.dtype(what)))


def is_static(str name):
    """Whether a name is of a fixed entry, not of a registered NumPy dtype."""
    return name in _by_name


def entries():
    """Return every entry of the table, the registered ones included."""
    return tuple(_entries[1:])


_fill_table()
