/* Objects that lend invented tensors through DLPack: the protocol's methods and its C exchange
 * interface, well-behaved and not. The binary layout is DLPack 1.3's, declared here from its facts. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CPU = 1, CUDA = 2, MAX_RANK = 64, READ_ONLY = 1 };

typedef struct { uint32_t major, minor; } Version;
typedef struct { uint8_t code, bits; uint16_t lanes; } Type;

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    Type type;
    int64_t *shape, *strides;
    uint64_t offset;
} Tensor;

typedef struct Unversioned {
    Tensor tensor;
    void *context;
    void (*deleter)(struct Unversioned *);
} Unversioned;

typedef struct Managed {
    Version version;
    void *context;
    void (*deleter)(struct Managed *);
    uint64_t flags;
    Tensor tensor;
} Managed;

typedef struct Header {
    Version version;
    struct Header *previous;
} Header;

typedef void (*SetError)(void *context, const char *kind, const char *message);

typedef struct {
    Header header;
    int (*allocate)(Tensor *prototype, Managed **out, void *context, SetError set_error);
    int (*managed_from_object)(void *object, Managed **out);
    int (*managed_to_object)(Managed *managed, void **out);
    int (*tensor_from_object)(void *object, Tensor *out);
    int (*work_stream)(int32_t device_type, int32_t device_id, void **out);
} Exchange;

typedef struct {
    PyObject_HEAD
    Tensor tensor; /* shape and strides point to the arrays below, strides perhaps nowhere */
    int64_t shape[MAX_RANK], strides[MAX_RANK];
    Version version;
    uint64_t flags;
    PyObject *fail;   /* NULL, an exception to raise, or an int: fail without an exception */
    PyObject *stream; /* what __dlpack__ was last asked with */
    Managed *owned;   /* released with the object */
    Py_ssize_t exports;
} Producer;

static PyTypeObject *base_type, *producer_type;
static void *work_stream;
static Py_ssize_t borrowed, managed_made, streams_asked;

/* Borrowed extents stand here and are spoilt by the next call: a consumer that keeps the pointers
 * past its own return to the interpreter reads nonsense. */
static int64_t lent_shape[MAX_RANK], lent_strides[MAX_RANK];

static void spoil_lent(void)
{
    memset(lent_shape, 0x5a, sizeof lent_shape);
    memset(lent_strides, 0x5a, sizeof lent_strides);
}

/* 0, or -1 with the exception that the test asked for (or none). */
static int refuse(Producer *self)
{
    if (!self->fail)
        return 0;
    if (PyLong_Check(self->fail))
        return -1;
    if (PyExceptionClass_Check(self->fail))
        PyErr_SetString(self->fail, "asked to fail");
    else
        PyErr_SetObject((PyObject *)Py_TYPE(self->fail), self->fail);
    return -1;
}

/* ---- managed tensors ---- */

typedef struct {
    Managed managed;
    Unversioned unversioned;
    int64_t shape[MAX_RANK], strides[MAX_RANK];
    Producer *owner;  /* keeps the pointer's memory as long as its Python object does */
    void *memory;     /* of the allocator, on the host */
} Loan;

static void loan_end(Loan *loan)
{
    PyGILState_STATE state = PyGILState_Ensure();
    if (loan->owner) {
        loan->owner->exports--;
        Py_DECREF(loan->owner);
    }
    PyGILState_Release(state);
    free(loan->memory);
    free(loan);
}

static void managed_deleter(Managed *managed)
{
    loan_end(managed->context);
}

static void unversioned_deleter(Unversioned *unversioned)
{
    loan_end(unversioned->context);
}

static Loan *loan_new(const Tensor *tensor, Producer *owner)
{
    Loan *loan = calloc(1, sizeof *loan);
    if (!loan)
        return NULL;
    size_t bytes = (size_t)tensor->rank * sizeof(int64_t);
    Tensor copy = *tensor;
    memcpy(loan->shape, tensor->shape, bytes);
    copy.shape = loan->shape;
    if (tensor->strides) {
        memcpy(loan->strides, tensor->strides, bytes);
        copy.strides = loan->strides;
    }
    loan->managed.tensor = loan->unversioned.tensor = copy;
    loan->managed.context = loan->unversioned.context = loan;
    loan->managed.deleter = managed_deleter;
    loan->unversioned.deleter = unversioned_deleter;
    loan->owner = owner;
    if (owner) {
        Py_INCREF(owner);
        owner->exports++;
        loan->managed.version = owner->version;
        loan->managed.flags = owner->flags;
    }
    return loan;
}

/* ---- the exchange interface ---- */

static int tensor_from_object(void *object, Tensor *out)
{
    Producer *self = object;
    borrowed++;
    spoil_lent();
    if (refuse(self))
        return -1;
    *out = self->tensor;
    memcpy(lent_shape, self->shape, (size_t)out->rank * sizeof(int64_t));
    out->shape = lent_shape;
    if (out->strides) {
        memcpy(lent_strides, self->strides, (size_t)out->rank * sizeof(int64_t));
        out->strides = lent_strides;
    }
    return 0;
}

static int managed_from_object(void *object, Managed **out)
{
    Producer *self = object;
    managed_made++;
    spoil_lent();
    if (refuse(self))
        return -1;
    Loan *loan = loan_new(&self->tensor, self);
    if (!loan) {
        PyErr_NoMemory();
        return -1;
    }
    *out = &loan->managed;
    return 0;
}

static void take_tensor(Producer *self, const Tensor *tensor)
{
    size_t bytes = (size_t)tensor->rank * sizeof(int64_t);
    self->tensor = *tensor;
    memcpy(self->shape, tensor->shape, bytes);
    self->tensor.shape = self->shape;
    if (tensor->strides)
        memcpy(self->strides, tensor->strides, bytes);
    self->tensor.strides = tensor->strides ? self->strides : NULL;
}

static int managed_to_object(Managed *managed, void **out)
{
    Producer *self = (Producer *)producer_type->tp_alloc(producer_type, 0);
    spoil_lent();
    if (!self)
        return -1;
    take_tensor(self, &managed->tensor);
    self->version = managed->version;
    self->flags = managed->flags;
    self->owned = managed;
    *out = self;
    return 0;
}

static size_t tensor_bytes(const Tensor *tensor)
{
    size_t items = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        items *= (size_t)tensor->shape[axis];
    return items * tensor->type.lanes * ((tensor->type.bits + 7u) / 8u);
}

static int allocate(Tensor *prototype, Managed **out, void *context, SetError set_error)
{
    uint64_t (*on_device)(uint64_t, int) = NULL;
    Loan *loan = loan_new(prototype, NULL);
    size_t bytes = tensor_bytes(prototype);
    spoil_lent();
    *(void **)&on_device = dlsym(RTLD_DEFAULT, "standin_allocate");
    if (prototype->device_type == CUDA && on_device)
        loan->managed.tensor.data = (void *)(uintptr_t)on_device(bytes ? bytes : 1, prototype->device_id);
    else if (prototype->device_type == CPU)
        loan->managed.tensor.data = loan->memory = calloc(1, bytes ? bytes : 1);
    if (!loan->managed.tensor.data) {
        free(loan);
        set_error(context, "MemoryError", "the stand-in producer cannot allocate there");
        return -1;
    }
    loan->managed.version = (Version){1, 3};
    loan->managed.tensor.strides = NULL; /* compact */
    loan->managed.tensor.offset = 0;
    *out = &loan->managed;
    return 0;
}

static int tell_work_stream(int32_t device_type, int32_t device_id, void **out)
{
    (void)device_type, (void)device_id;
    streams_asked++;
    spoil_lent();
    *out = work_stream;
    return 0;
}

static int refuse_work_stream(int32_t device_type, int32_t device_id, void **out)
{
    (void)device_type, (void)device_id, (void)out;
    streams_asked++;
    PyErr_SetString(PyExc_RuntimeError, "asked to have no work stream");
    return -1;
}

/* What a consumer of major version 1 must not call. */
static int foreign_tensor(void *object, Tensor *out)
{
    (void)object, (void)out;
    PyErr_SetString(PyExc_SystemError, "called through an exchange interface of major version 2");
    return -1;
}

static int foreign_managed(void *object, Managed **out)
{
    (void)out;
    return foreign_tensor(object, NULL);
}

#define WELL {1, 3}
static Exchange well = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, tensor_from_object, tell_work_stream};
static Exchange without_borrow = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, NULL, tell_work_stream};
static Exchange without_stream = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, tensor_from_object, refuse_work_stream};
static Exchange newer_chained = {{{2, 0}, &well.header}, allocate, foreign_managed, managed_to_object, foreign_tensor, tell_work_stream};
static Exchange newer_alone = {{{2, 0}, NULL}, allocate, foreign_managed, managed_to_object, foreign_tensor, tell_work_stream};

/* ---- the Python object ---- */

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
