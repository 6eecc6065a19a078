"""Launch plans: what is known of a launch once its signature has been seen.

Owns the plan's data and how it is made from a kernel's parameter layout. ``_launch`` looks
plans up and launches with them.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t, uint8_t, uintptr_t
from libc.string cimport memset

from stridedview._driver cimport CUDA_SUCCESS, driver
from stridedview._pack cimport WORD_FAMILY, Slot, kind_of, prepare_slot
from stridedview._scalars cimport SET_F_ARRAY, SET_TUPLE
from stridedview._view cimport FAMILY_NONE, FAMILY_NUMBA, FAMILY_OWN

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(PyObject*)


@cython.final
cdef class Plan:
    """A cached launch: one signature, one kernel, one context."""

    def __dealloc__(self):
        PyMem_Free(self.slots)

    def __init__(self):
        raise TypeError("plans are made by the launch path")

    @property
    def function_handle(self):
        """The CUfunction (int)."""
        return <uintptr_t>self.function

    @property
    def offsets(self):
        """Offset of each flattened slot in the parameter buffer, bytes."""
        return [self.slots[index].offset for index in range(self.slot_count)]


def make_plan(bytes words, slots, *, kernel, list extensions, function, context,
              context_id, device, size, cooperative, args):
    """Return a Plan.

    Parameters
    ----------
    words : bytes
        The signature words, 8 bytes each, flattened.
    slots : list of tuple
        (setter, offset in bytes, following slots) in the order of the words.
    kernel : object
        Numba's compiled kernel.
    extensions : list
        The kernel's own list; the plan holds while it is empty.
    function, context : int
        CUfunction and CUcontext handles.
    context_id : int
        The driver's id of that context.
    device : int
        Of the arrays, or -1 if there are none.
    size : int
        Bytes of the packed parameters.
    cooperative : bool
    args : tuple
        Arguments of this signature, read for their types.

    Returns
    -------
    Plan
    """
    cdef Plan plan = Plan.__new__(Plan)
    cdef int index
    cdef const unsigned char* raw = words
    if 8 * len(slots) != len(words):
        raise ValueError(f"{len(slots)} slots for {len(words)} bytes of signature words")
    plan.slot_count = len(slots)
    plan.slots = <Slot*>PyMem_Malloc((len(slots) + 1) * sizeof(Slot))
    if plan.slots is NULL:
        raise MemoryError()
    memset(plan.slots, 0, (len(slots) + 1) * sizeof(Slot))
    for index in range(plan.slot_count):
        setter, offset, following = slots[index]
        plan.slots[index].word = (<const uint64_t*>raw)[index]
        plan.slots[index].setter = setter
        plan.slots[index].offset = offset
        plan.slots[index].following = following
        if setter <= SET_F_ARRAY:
            _note_family(plan, plan.slots[index].word >> WORD_FAMILY & 0xff)
    plan.types = []
    plan.argument_count = len(args)
    _fill_types(plan, plan.slots, args)
    plan.words = words
    plan.kernel = kernel
    plan.extensions = extensions
    plan.function = <void*><uintptr_t>function
    plan.context = <void*><uintptr_t>context
    plan.context_id = context_id
    plan.device = device
    plan.stream_device = device
    if device < 0 and driver.cuCtxGetDevice(&plan.stream_device) != CUDA_SUCCESS:
        plan.stream_device = 0
    plan.size = size
    plan.cooperative = cooperative
    plan.is_valid = True
    return plan


cdef int _note_family(Plan plan, int family) except -1:
    cdef int index
    if family == FAMILY_NONE or family == FAMILY_OWN:
        return 0        # no current stream; a view's own stream is noted as it is packed
    if plan.lead == FAMILY_NONE or plan.lead == FAMILY_NUMBA:
        # Numba's default stream gives way to a producer that has a current one.
        plan.lead = family
    for index in range(plan.family_count):
        if plan.families[index] == family:
            return 0
    plan.families[plan.family_count] = <uint8_t>family
    plan.family_count += 1
    return 0


cdef Slot* _fill_types(Plan plan, Slot* slot, object args) except NULL:
    cdef Py_ssize_t index
    # By the tuple's own items: a subclass may iterate over others.
    for index in range(PyTuple_GET_SIZE(args)):
        argument = <object>PyTuple_GET_ITEM(args, index)
        slot.type = Py_TYPE(<PyObject*>argument)
        plan.types.append(type(argument))
        slot.kind = kind_of(slot.type, <PyObject*>argument)
        prepare_slot(slot)
        if slot.setter == SET_TUPLE:
            slot = _fill_types(plan, slot + 1, argument)
        else:
            slot += 1
    return slot
