/* DLPack 1.3's binary layout, declared from its facts, and what the two halves of the extension share. */
#ifndef STANDIN_PRODUCER_H
#define STANDIN_PRODUCER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

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

typedef struct {
    Managed managed;
    Unversioned unversioned;
    int64_t shape[MAX_RANK], strides[MAX_RANK];
    Producer *owner;  /* keeps the pointer's memory as long as its Python object does */
    void *memory;     /* of the allocator, on the host */
} Loan;

extern PyTypeObject *producer_type;
extern void *work_stream; /* what current_work_stream gives */
extern Py_ssize_t borrowed, managed_made, streams_asked;
extern Exchange well, without_borrow, without_stream, newer_chained, newer_alone;

int refuse(Producer *self); /* 0, or -1 with the exception that the test asked for (or none) */
Loan *loan_new(const Tensor *tensor, Producer *owner);
void managed_deleter(Managed *managed);
void unversioned_deleter(Unversioned *unversioned);

#endif
