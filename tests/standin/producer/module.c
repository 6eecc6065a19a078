/* Objects that lend invented tensors through DLPack: the Python side. */
#include "producer.h"

#include <string.h>

static PyTypeObject *base_type;

static int read_extents(PyObject *sequence, int64_t *extents, const char *what)
{
    PyObject *items = PySequence_Tuple(sequence);
    if (!items)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (count > MAX_RANK)
        PyErr_Format(PyExc_ValueError, "%s has more than %d axes", what, MAX_RANK);
    for (Py_ssize_t axis = 0; axis < count && !PyErr_Occurred(); axis++)
        extents[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(items, axis));
    Py_DECREF(items);
    return PyErr_Occurred() ? -1 : (int)count;
}

static void fill_compact(Producer *self)
{
    int64_t step = 1;
    for (int32_t axis = self->tensor.rank - 1; axis >= 0; axis--) {
        self->strides[axis] = step;
        step *= self->shape[axis] ? self->shape[axis] : 1;
    }
}

static int set_strides(Producer *self, PyObject *strides, int none)
{
    self->tensor.strides = none ? NULL : self->strides;
    if (strides == Py_None) {
        fill_compact(self);
        return 0;
    }
    int count = read_extents(strides, self->strides, "strides");
    if (count >= 0 && count != self->tensor.rank)
        PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
    return PyErr_Occurred() ? -1 : 0;
}

static int producer_init(Producer *self, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"pointer", "shape", "strides", "code", "bits", "lanes", "device_type", "device_id",
                            "byte_offset", "readonly", "fail", "version", "strides_null", NULL};
    PyObject *shape, *strides = Py_None, *fail = Py_None;
    unsigned long long pointer, offset = 0;
    int code = 2, bits = 32, lanes = 1, device_type = CUDA, device_id = 0, readonly = 0, none = 0;
    unsigned major = 1, minor = 3;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "KO|OiiiiiKpO(II)p", names, &pointer, &shape, &strides, &code,
                                     &bits, &lanes, &device_type, &device_id, &offset, &readonly, &fail, &major, &minor,
                                     &none))
        return -1;
    int rank = read_extents(shape, self->shape, "shape");
    if (rank < 0)
        return -1;
    Type type = {(uint8_t)code, (uint8_t)bits, (uint16_t)lanes};
    Tensor tensor = {(void *)(uintptr_t)pointer, device_type, device_id, rank, type, self->shape, NULL, offset};
    self->tensor = tensor;
    self->version = (Version){major, minor};
    self->flags = readonly ? READ_ONLY : 0;
    Py_XSETREF(self->fail, fail == Py_None ? NULL : Py_NewRef(fail));
    return set_strides(self, strides, none);
}

static void producer_dealloc(Producer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->owned && self->owned->deleter)
        self->owned->deleter(self->owned);
    Py_XDECREF(self->fail);
    Py_XDECREF(self->stream);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static void capsule_end(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        managed_deleter(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    else if (PyCapsule_IsValid(capsule, "dltensor"))
        unversioned_deleter(PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *producer_dlpack(Producer *self, PyObject *arguments, PyObject *options)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *most = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(arguments, options, "|$OOOO", names, &stream, &most, &device, &copy))
        return NULL;
    Py_XSETREF(self->stream, Py_NewRef(stream));
    if (refuse(self)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "asked to fail");
        return NULL;
    }
    Loan *loan = loan_new(&self->tensor, self);
    if (!loan)
        return PyErr_NoMemory();
    if (most == Py_None)
        return PyCapsule_New(&loan->unversioned, "dltensor", capsule_end);
    return PyCapsule_New(&loan->managed, "dltensor_versioned", capsule_end);
}

static PyObject *producer_device(Producer *self, PyObject *nothing)
{
    (void)nothing;
    return Py_BuildValue("ii", self->tensor.device_type, self->tensor.device_id);
}

static PyObject *get_pointer(Producer *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong((uintptr_t)self->tensor.data);
}

static PyObject *get_exports(Producer *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(self->exports);
}

static PyObject *get_stream(Producer *self, void *closure)
{
    (void)closure;
    return Py_NewRef(self->stream ? self->stream : Py_NotImplemented);
}

static PyMethodDef producer_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))producer_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", (PyCFunction)producer_device, METH_NOARGS, NULL},
    {0},
};

static PyGetSetDef producer_getset[] = {
    {"pointer", (getter)get_pointer, NULL, "The address, without byte_offset.", NULL},
    {"exports", (getter)get_exports, NULL, "How many managed tensors are still held by consumers.", NULL},
    {"asked_stream", (getter)get_stream, NULL, "The stream of the last __dlpack__; NotImplemented before.", NULL},
    {0},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_init, producer_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_methods, producer_methods},
    {Py_tp_getset, producer_getset},
    {0},
};

static PyType_Spec producer_spec = {
    "standin_producer.Plain", sizeof(Producer), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, producer_slots,
};

/* ---- the module ---- */

static PyObject *set_work_stream(PyObject *module, PyObject *handle)
{
    (void)module;
    work_stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(handle);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *counts(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    return Py_BuildValue("{s:n,s:n,s:n}", "borrowed", borrowed, "managed", managed_made, "streams", streams_asked);
}

static PyMethodDef functions[] = {
    {"set_work_stream", set_work_stream, METH_O, "Set the handle that current_work_stream gives."},
    {"counts", counts, METH_NOARGS, "Return how often consumers borrowed, took managed tensors and asked for a stream."},
    {0},
};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "standin_producer", .m_size = -1, .m_methods = functions,
};

static PyTypeObject *add_class(PyObject *module, const char *name, Exchange *exchange)
{
    PyObject *type = PyObject_CallFunction((PyObject *)&PyType_Type, "s(O){s:(),s:s}", name, base_type, "__slots__",
                                           "__module__", "standin_producer");
    PyObject *capsule = PyCapsule_New(exchange, "dlpack_exchange_api", NULL);
    if (!type || !capsule || PyObject_SetAttrString(type, "__dlpack_c_exchange_api__", capsule)
        || PyModule_AddObjectRef(module, name, type))
        return NULL;
    Py_DECREF(capsule);
    return (PyTypeObject *)type; /* kept by the module, which lives on */
}

static int add_all(PyObject *module)
{
    base_type = (PyTypeObject *)PyType_FromSpec(&producer_spec);
    if (!base_type || PyModule_AddObjectRef(module, "Plain", (PyObject *)base_type))
        return -1;
    producer_type = add_class(module, "Producer", &well);
    if (!producer_type || !add_class(module, "WithoutBorrow", &without_borrow)
        || !add_class(module, "WithoutStream", &without_stream) || !add_class(module, "NewerChained", &newer_chained)
        || !add_class(module, "NewerAlone", &newer_alone))
        return -1;
    PyTypeObject *only = add_class(module, "OnlyExchange", &well);
    return only ? PyObject_SetAttrString((PyObject *)only, "__dlpack__", Py_None) : -1;
}

PyMODINIT_FUNC PyInit_standin_producer(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && add_all(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
