/* The C exchange interface of the producers, in its well-behaved form and the others. */
#include "producer.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *producer_type;
void *work_stream;
Py_ssize_t borrowed, managed_made, streams_asked;

/* Borrowed extents stand here and are spoilt by the next call: a consumer that keeps the pointers
 * past its own return to the interpreter reads nonsense. */
static int64_t lent_shape[MAX_RANK], lent_strides[MAX_RANK];

static void spoil_lent(void)
{
    memset(lent_shape, 0x5a, sizeof lent_shape);
    memset(lent_strides, 0x5a, sizeof lent_strides);
}

int refuse(Producer *self)
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

void managed_deleter(Managed *managed)
{
    loan_end(managed->context);
}

void unversioned_deleter(Unversioned *unversioned)
{
    loan_end(unversioned->context);
}

Loan *loan_new(const Tensor *tensor, Producer *owner)
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
Exchange well = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, tensor_from_object, tell_work_stream};
Exchange without_borrow = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, NULL, tell_work_stream};
Exchange without_stream = {{WELL, NULL}, allocate, managed_from_object, managed_to_object, tensor_from_object, refuse_work_stream};
Exchange newer_chained = {{{2, 0}, &well.header}, allocate, foreign_managed, managed_to_object, foreign_tensor, tell_work_stream};
Exchange newer_alone = {{{2, 0}, NULL}, allocate, foreign_managed, managed_to_object, foreign_tensor, tell_work_stream};
