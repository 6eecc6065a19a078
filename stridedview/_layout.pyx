# cython: freethreading_compatible=True
"""Layout: shape, strides and itemsize, immutable and interned.

Owns the one class and every fact that follows from a shape and strides. It knows
no pointer, no dtype and no device. The arithmetic is in _geometry, _indexing and
_axes; here its result becomes the interned object. The operations of everyday are
asked of the memo in _memo first; the rest find their layout in the table of _intern.
"""

from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MIN, int64_t, uint64_t
from libc.string cimport memcpy

cimport cython

from stridedview._axes cimport (
    broadcast_axes,
    expand_axes,
    permute_axes,
    reinterpret_axes,
    reshape_axes,
    squeeze_axes,
)
from stridedview._geometry cimport (
    Axes,
    Geometry,
    add_overflows,
    c_contiguous,
    empty,
    f_contiguous,
    fill_c_strides,
    mul_overflows,
    parse_extents,
    unique,
)
from stridedview._indexing cimport int_index, row_axes, slice_axes, slice_axis, take_rest
from stridedview._intern cimport Interned, enter, find
from stridedview._memo cimport (
    MEMO_COUNT,
    MEMO_FIRST_AXIS,
    MEMO_PERMUTE,
    MEMO_RESHAPE,
    MEMO_REVERSE,
    MEMO_WITHOUT_FIRST,
    OPERANDS,
    recall,
    remember,
)

import operator

cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char* text, Py_ssize_t size)
    char* PyBytes_AS_STRING(object text)
    ctypedef struct PyTypeObject:
        void* tp_new


cdef Layout intern_layout(
        int ndim, const int64_t* shape, const int64_t* strides, int64_t unit,
        int64_t itemsize):
    cdef int64_t key[2 * MAX_NDIM]
    cdef uint64_t h
    cdef Interned found
    cdef int i
    if ndim < 0 or ndim > MAX_NDIM:
        raise ValueError(f"{ndim} dimensions: at most {MAX_NDIM} are supported")
    for i in range(ndim):
        key[i] = shape[i]
    if strides == NULL:
        fill_c_strides(ndim, shape, itemsize, &key[ndim])
    elif unit == 1:
        for i in range(ndim):
            key[ndim + i] = strides[i]
    else:
        for i in range(ndim):
            if mul_overflows(strides[i], unit, &key[ndim + i]):
                raise OverflowError(
                    f"stride {strides[i]} items of {unit} bytes does not fit 64 bits")
    found = find(ndim, key, itemsize, &h)
    if found is not None:
        return <Layout>found
    return <Layout>enter(_make(h, ndim, key, itemsize))


# ---- making a layout -----------------------------------------------------------------


cdef int _check_extents(int ndim, const int64_t* shape, int64_t itemsize) except -1:
    cdef int i
    if itemsize <= 0:
        raise ValueError(f"itemsize must be positive, got {itemsize}")
    for i in range(ndim):
        if shape[i] < 0:
            raise ValueError(f"negative extent {shape[i]} of axis {i}")
    return 0


cdef int _measure_size(Layout layout, const Axes* axes) except -1:
    # NumPy checks the product without the zero extents, and so do we: an empty layout
    # stays one that a C-order copy of it can have.
    cdef int64_t size = 1, nbytes
    cdef int i
    for i in range(axes.ndim):
        if axes.shape[i] > 1 and mul_overflows(size, axes.shape[i], &size):
            raise OverflowError("the number of items does not fit 64 bits")
    if mul_overflows(size, axes.itemsize, &nbytes):
        raise OverflowError("the number of bytes does not fit 64 bits")
    layout.size = 0 if empty(axes) else size
    layout.nbytes = 0 if empty(axes) else nbytes
    return 0


cdef int _measure_extent(Layout layout, const Axes* axes) except -1:
    cdef int64_t low = 0, high = axes.itemsize, reach, length
    cdef bint overflow = False
    cdef int i
    layout.first_byte = layout.last_byte = 0
    if empty(axes):
        return 0                # no item is anywhere, whatever the strides
    for i in range(axes.ndim):
        if axes.shape[i] > 1:
            overflow |= mul_overflows(axes.shape[i] - 1, axes.strides[i], &reach)
            if reach < 0:
                overflow |= add_overflows(low, reach, &low)
            else:
                overflow |= add_overflows(high, reach, &high)
    # The length too: whoever adds absolute strides (uniqueness) then cannot overflow.
    if overflow or low == INT64_MIN or add_overflows(high, -low, &length):
        raise OverflowError("extents times strides do not fit 64 bits")
    layout.first_byte, layout.last_byte = low, high
    return 0


cdef int _fill_words(Layout layout, const Axes* axes) except -1:
    cdef int i, ndim = axes.ndim
    cdef int64_t* items
    # A bytes object holds the words, so that no __dealloc__ is needed: between a count of
    # zero and the end of one, another thread could still reach a layout through its weak
    # reference. Its text is 8-byte aligned (it follows a header of whole words).
    layout._storage = PyBytes_FromStringAndSize(NULL, 8 * (WORDS_BEFORE_SHAPE + 3 * ndim))
    layout.words = <int64_t*>PyBytes_AS_STRING(layout._storage)
    layout.words[0] = layout.words[1] = layout.words[WORD_OF_POINTER] = 0
    layout.words[2] = layout.size
    layout.words[3] = layout.itemsize
    memcpy(&layout.words[WORDS_BEFORE_SHAPE], axes.shape, 8 * ndim)
    memcpy(&layout.words[WORDS_BEFORE_SHAPE + ndim], axes.strides, 8 * ndim)
    items = &layout.words[WORDS_BEFORE_SHAPE + 2 * ndim]
    layout.whole_strides = True
    for i in range(ndim):
        items[i] = axes.strides[i] // axes.itemsize
        if items[i] * axes.itemsize != axes.strides[i]:
            layout.whole_strides = False
    return 0


cdef Layout _make(uint64_t h, int ndim, const int64_t* key, int64_t itemsize):
    cdef Layout layout
    cdef Axes axes
    cdef int i
    axes.ndim, axes.itemsize = ndim, itemsize
    axes.shape, axes.strides = key, key + ndim
    _check_extents(ndim, key, itemsize)
    layout = Layout.__new__(Layout)
    layout.ndim = ndim
    layout.itemsize = itemsize
    layout.hash = h
    layout.unique_known = -1
    _measure_size(layout, &axes)
    _measure_extent(layout, &axes)
    layout.is_c_contiguous = c_contiguous(&axes)
    layout.is_f_contiguous = f_contiguous(&axes)
    _fill_words(layout, &axes)
    layout.shape = tuple([key[i] for i in range(ndim)])
    layout.strides = tuple([key[ndim + i] for i in range(ndim)])
    return layout


cdef Axes axes_of(Layout layout) noexcept:
    # Borrows the layout's words: the caller keeps the layout.
    cdef Axes axes
    axes.ndim, axes.itemsize = layout.ndim, layout.itemsize
    axes.shape = &layout.words[WORDS_BEFORE_SHAPE]
    axes.strides = &layout.words[WORDS_BEFORE_SHAPE + layout.ndim]
    return axes


cdef const int64_t* item_strides(Layout layout) except NULL:
    if not layout.whole_strides:
        raise BufferError(
            f"strides {layout.strides} (bytes) are not whole items of {layout.itemsize} "
            "bytes, which is all that DLPack can say; copy to a contiguous array first")
    return &layout.words[WORDS_BEFORE_SHAPE + 2 * layout.ndim]


cdef bint is_unique(Layout layout) noexcept:
    cdef Axes axes
    if layout.unique_known < 0:
        # Two threads may both work it out; they write the same byte.
        axes = axes_of(layout)
        layout.unique_known = unique(&axes)
    return layout.unique_known


cdef char layout_letter(Layout layout) noexcept:
    return c"C" if layout.is_c_contiguous else c"F" if layout.is_f_contiguous else c"A"


# ---- the algebra, as C ---------------------------------------------------------------


cdef inline Layout _interned(const Geometry* made):
    return intern_layout(made.ndim, made.shape, made.strides, 1, made.itemsize)


cdef Layout slice_layout(Layout source, object key, int64_t* offset):
    cdef Axes axes
    cdef Geometry made
    if source.ndim and type(key) is slice:
        return _slice_first(source, key, offset)
    axes = axes_of(source)
    if source.ndim and PyLong_CheckExact(key):
        return _row(source, &axes, int_index(key), offset)
    slice_axes(&axes, key, &made)
    offset[0] = made.offset
    return _interned(&made)


cdef Layout _slice_first(Layout source, object key, int64_t* offset):
    # Known by what the slice makes of the axis, not by where it starts: a loop that walks
    # an array in parts finds the same layout again.
    cdef int64_t operands[OPERANDS]
    cdef const int64_t* words = &source.words[WORDS_BEFORE_SHAPE]
    operands[2] = operands[3] = 0
    slice_axis(key, words[0], words[source.ndim], &operands[0], &operands[1], offset)
    found = recall(source, MEMO_FIRST_AXIS, operands)
    if found is None:
        found = _with_first(source, operands[0], operands[1])
        remember(source, MEMO_FIRST_AXIS, operands, found)
    return <Layout>found


cdef Layout _with_first(Layout source, int64_t extent, int64_t stride):
    cdef Axes axes = axes_of(source)
    cdef Geometry made
    made.ndim, made.itemsize = 1, source.itemsize
    made.shape[0], made.strides[0] = extent, stride
    take_rest(&axes, &made)
    return _interned(&made)


cdef Layout _row(Layout source, const Axes* axes, int64_t index, int64_t* offset):
    cdef int64_t operands[OPERANDS]
    cdef Geometry made
    _operands_of(0, NULL, operands)
    row_axes(axes, index, &made)
    offset[0] = made.offset
    found = recall(source, MEMO_WITHOUT_FIRST, operands)
    if found is None:
        take_rest(axes, &made)
        found = _interned(&made)
        remember(source, MEMO_WITHOUT_FIRST, operands, found)
    return <Layout>found


cdef bint _operands_of(int count, const int64_t* numbers, int64_t* operands) noexcept:
    # Whether so many numbers fit an entry of the memo; written, the unused ones 0.
    cdef int i
    for i in range(OPERANDS):
        operands[i] = numbers[i] if i < count else 0
    return count <= OPERANDS


cdef Layout reverse_layout(Layout source):
    cdef int64_t operands[OPERANDS]
    cdef Axes axes
    cdef Geometry made
    _operands_of(0, NULL, operands)
    found = recall(source, MEMO_REVERSE, operands)
    if found is None:
        axes = axes_of(source)
        permute_axes(&axes, NULL, &made)
        found = _interned(&made)
        remember(source, MEMO_REVERSE, operands, found)
    return <Layout>found


cdef Layout permute_layout(Layout source, object axes):
    cdef int64_t order[MAX_NDIM]
    if axes is None:
        return reverse_layout(source)
    return permute_to(source, parse_extents(axes, "axes", order), order)


cdef Layout permute_to(Layout source, int count, const int64_t* order):
    cdef int64_t operands[OPERANDS]
    cdef int64_t operation = MEMO_PERMUTE + MEMO_COUNT * count
    cdef bint kept = _operands_of(count, order, operands)
    cdef Axes axes
    cdef Geometry made
    found = recall(source, operation, operands) if kept else None
    if found is None:
        if count != source.ndim:
            axes_given = tuple([order[i] for i in range(count)])
            raise ValueError(
                f"axes {axes_given} do not match a view of {source.ndim} dimensions")
        axes = axes_of(source)
        permute_axes(&axes, order, &made)
        found = _interned(&made)
        if kept:
            remember(source, operation, operands, found)
    return <Layout>found


cdef Layout reshape_layout(Layout source, object shape, str order):
    cdef int64_t wanted[MAX_NDIM]
    return reshape_to(source, parse_extents(shape, "shape", wanted), wanted, order)


cdef Layout reshape_to(Layout source, int ndim, const int64_t* wanted, str order):
    # Known by the shape as it was written, -1 and all.
    cdef int64_t operands[OPERANDS]
    cdef int64_t operation = MEMO_RESHAPE + MEMO_COUNT * ndim
    cdef bint kept = _operands_of(ndim, wanted, operands) and order == "C"
    cdef Axes axes
    cdef Geometry made
    found = recall(source, operation, operands) if kept else None
    if found is None:
        axes = axes_of(source)
        reshape_axes(&axes, ndim, wanted, order, &made)
        found = _interned(&made)
        if kept:
            remember(source, operation, operands, found)
    return <Layout>found


cdef Layout squeeze_layout(Layout source, object axis):
    cdef Axes axes = axes_of(source)
    cdef Geometry made
    squeeze_axes(&axes, axis, &made)
    return _interned(&made)


cdef Layout expand_layout(Layout source, object axis):
    cdef Axes axes = axes_of(source)
    cdef Geometry made
    expand_axes(&axes, axis, &made)
    return _interned(&made)


cdef Layout broadcast_layout(Layout source, object shape):
    cdef Axes axes = axes_of(source)
    cdef Geometry made
    broadcast_axes(&axes, shape, &made)
    return _interned(&made)


cdef Layout reinterpret_layout(Layout source, int64_t itemsize):
    cdef Axes axes = axes_of(source)
    cdef Geometry made
    reinterpret_axes(&axes, itemsize, &made)
    return _interned(&made)


cdef Layout strided_layout(Layout source, object shape, object strides):
    return _from_sequences(shape, strides, source.itemsize)


cdef Layout _from_sequences(object shape, object strides, int64_t itemsize):
    cdef int64_t extents[MAX_NDIM]
    cdef int64_t steps[MAX_NDIM]
    cdef int ndim = parse_extents(shape, "shape", extents)
    if strides is None:
        _check_extents(ndim, extents, itemsize)
        return intern_layout(ndim, extents, NULL, 1, itemsize)
    if parse_extents(strides, "strides", steps) != ndim:
        raise ValueError(f"shape {shape} and strides {strides} differ in length")
    return intern_layout(ndim, extents, steps, 1, itemsize)


# ---- the class -----------------------------------------------------------------------


@cython.final
@cython.no_gc       # holds tuples of ints and a bytes object only: no cycle can form
cdef class Layout(Interned):
    """Shape, strides and itemsize of an array, without its memory.

    Parameters
    ----------
    shape : int or sequence of int
        The extents, each 0 or more; at most 64 of them.
    strides : sequence of int, optional
        In bytes, one per extent, of any sign. Without it, C order.
    itemsize : int
        Bytes of one item, positive.

    Attributes
    ----------
    ndim, size, nbytes : int
    shape, strides : tuple of int
        Strides in bytes.
    is_c_contiguous, is_f_contiguous : bool
        By NumPy's rule: axes of extent 1 do not count, and empty is contiguous.

    Raises
    ------
    ValueError
        For a negative extent, more than 64 of them, strides of another length.
    OverflowError
        If the size, or an extent times its stride, does not fit 64 bits.

    Notes
    -----
    Equal layouts are the same object, so ``is`` and ``==`` mean the same:

    >>> from stridedview import Layout
    >>> row = Layout((2, 3), itemsize=4)
    >>> assert row is Layout((2, 3), (12, 4), itemsize=4)
    >>> assert row.size == 6 and row.nbytes == 24 and row.letter == "C"
    """

    @property
    def letter(self):
        """'C', else 'F', else 'A': how Numba's array types name the order.

        >>> assert Layout((2, 3), (4, 8), itemsize=4).letter == "F"
        >>> assert Layout((2, 3), (24, 8), itemsize=4).letter == "A"
        """
        return chr(layout_letter(self))

    @property
    def strides_in_items(self):
        """The strides in items, as torch and DLPack count.

        >>> assert Layout((2, 3), itemsize=4).strides_in_items == (3, 1)

        Raises
        ------
        BufferError
            If a stride is not a whole number of items.
        """
        cdef const int64_t* items = item_strides(self)
        return tuple([items[i] for i in range(self.ndim)])

    @property
    def byte_extent(self):
        """First byte and one past the last, relative to the first item.

        >>> assert Layout((3,), (-4,), itemsize=4).byte_extent == (-8, 4)
        >>> assert Layout((0,), itemsize=4).byte_extent == (0, 0)
        """
        return self.first_byte, self.last_byte

    @property
    def is_unique(self):
        """Whether no byte belongs to two indices.

        Exact for every layout that slicing, transposing, broadcasting and sliding
        windows make; a contrived one that takes too long to decide gives False.

        >>> assert not Layout((3, 3), (4, 4), itemsize=4).is_unique
        >>> assert Layout((3, 2), (4, 12), itemsize=4).is_unique
        """
        return is_unique(self)

    @property
    def fits_32_bits(self):
        """Whether every byte's offset fits a signed 32-bit integer."""
        return self.first_byte >= INT32_MIN and self.last_byte - 1 <= INT32_MAX

    def slice(self, key):
        """Apply a basic index: ints, slices, Ellipsis, None, or a tuple of them.

        Returns
        -------
        layout : Layout
        offset : int
            How far the first item moved, in bytes.

        Raises
        ------
        IndexError
            Out of bounds, too many indices, or an index array or mask, which selects
            items that no strides describe.

        >>> layout, offset = Layout((4, 6), itemsize=1).slice((1, slice(None, None, -2)))
        >>> assert layout is Layout((3,), (-2,), itemsize=1) and offset == 11
        """
        cdef int64_t offset = 0
        layout = slice_layout(self, key, &offset)
        return layout, offset

    def transpose(self, axes=None):
        """Reorder the axes; without ``axes``, reverse them. Returns (Layout, 0).

        Raises
        ------
        ValueError
            If ``axes`` is not a permutation (AxisError for one out of bounds).

        >>> layout, offset = Layout((2, 3), itemsize=4).transpose()
        >>> assert layout.shape == (3, 2) and layout.strides == (4, 12)
        """
        return permute_layout(self, axes), 0

    def permute(self, *axes):
        """Reorder the axes, given one by one or as a sequence. Returns (Layout, 0).

        Raises
        ------
        ValueError
            If they are not a permutation (AxisError for one out of bounds).
        """
        return permute_layout(self, axes[0] if len(axes) == 1 else axes), 0

    def reshape(self, shape, order="C"):
        """Give the items another shape without moving them. Returns (Layout, 0).

        Parameters
        ----------
        shape : int or sequence of int
            One extent may be -1: what is left.
        order : {'C', 'F', 'A'}
            The order in which items are walked, old and new.

        Raises
        ------
        ValueError
            If the sizes differ, or the items would have to be copied.

        >>> layout, _ = Layout((4, 6), itemsize=1).reshape((2, -1))
        >>> assert layout.shape == (2, 12)
        """
        return reshape_layout(self, shape, order), 0

    def ravel(self, order="C"):
        """Give the items one axis without moving them. Returns (Layout, 0).

        Raises
        ------
        ValueError
            If the items would have to be copied.
        """
        return reshape_layout(self, (-1,), order), 0

    def squeeze(self, axis=None):
        """Drop axes of extent 1, all or those named. Returns (Layout, 0).

        >>> assert Layout((1, 3, 1), itemsize=4).squeeze(0)[0].shape == (3, 1)

        Raises
        ------
        ValueError
            If a named axis has another extent, is repeated or out of bounds.
        """
        return squeeze_layout(self, axis), 0

    def expand_dims(self, axis):
        """Insert axes of extent 1 at these positions of the result. Returns (Layout, 0).

        >>> assert Layout((3,), itemsize=4).expand_dims((0, -1))[0].shape == (1, 3, 1)

        Raises
        ------
        ValueError
            If an axis is repeated or out of bounds, or there would be more than 64.
        """
        return expand_layout(self, axis), 0

    def broadcast_to(self, shape):
        """Repeat axes of extent 1, and new leading ones. Returns (Layout, 0).

        >>> assert Layout((3,), itemsize=4).broadcast_to((2, 3))[0].strides == (0, 4)

        Raises
        ------
        ValueError
            If the shapes do not agree.
        """
        return broadcast_layout(self, shape), 0

    def as_strided(self, shape, strides, offset=0):
        """Return (the layout of this shape and strides in bytes, ``offset`` in bytes).

        Nothing says whether the memory reaches that far: the caller does.

        Raises
        ------
        ValueError
            If the lengths differ or an extent is negative.
        OverflowError
            If the offset, or an extent times its stride, does not fit 64 bits.
        """
        cdef int64_t moved = operator.index(offset)
        return strided_layout(self, shape, strides), moved

    def view(self, itemsize):
        """See the items as items of another size, along the last axis.

        Returns (Layout, 0).

        >>> assert Layout((2, 3), itemsize=4).view(2)[0].shape == (2, 6)

        Raises
        ------
        ValueError
            If the last axis is not contiguous or its bytes do not divide.
        """
        return reinterpret_layout(self, operator.index(itemsize)), 0

    def __hash__(self):
        return <Py_hash_t>(self.hash >> 1)

    def __reduce__(self):
        return _restore, (self.shape, self.strides, self.itemsize)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        return f"Layout({self.shape}, {self.strides}, itemsize={self.itemsize})"


def _restore(shape, strides, itemsize):
    # Unpickle: a function, as pickle passes no keywords to a constructor.
    return _from_sequences(shape, strides, itemsize)


def _construct(shape, strides=None, *, itemsize=None):
    if itemsize is None:
        raise TypeError("Layout() needs itemsize=, the bytes of one item")
    return _from_sequences(shape, strides, operator.index(itemsize))


cdef object _new_layout(PyObject* cls, PyObject* args, PyObject* keywords):
    try:
        if keywords == NULL:
            return _construct(*<tuple>args)
        return _construct(*<tuple>args, **<dict>keywords)
    except TypeError as error:
        raise TypeError(str(error).replace("_construct()", "Layout()")) from None


# ``Layout(...)`` has to be able to answer an existing object, which a __cinit__ cannot.
# The slot is written once, before anybody else sees the type; `Layout.__new__(Layout)`
# in this module goes to Cython's own allocation, not through the slot. Python hands the
# function its class, a tuple and a dict or NULL, all borrowed: the casts are sound.
(<PyTypeObject*>Layout).tp_new = <void*>_new_layout
