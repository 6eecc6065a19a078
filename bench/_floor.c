/* The floor of every launch figure: cuLaunchKernel and nothing around it.
 *
 * Owns the driver entry points that it calls (found with dlopen and dlsym, so no CUDA
 * header is needed), a loop that times itself, and one object that launches when Python
 * calls it. It packs nothing: the parameter bytes come ready-made. The GIL is held
 * throughout, since a floor has no reason to give it up.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>
#include <structmember.h>
#include <time.h>

#if defined(__has_include)
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define HAVE_CALLGRIND 1
#endif
#endif

/* Markers of cuLaunchKernel's `extra` list: a packed buffer, its size, the end. */
#define PARAM_BUFFER ((void *)(uintptr_t)1)
#define PARAM_SIZE ((void *)(uintptr_t)2)
#define PARAM_END ((void *)(uintptr_t)0)

typedef int (*launch_fn)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, void *stream,
                         void **params, void **extra);

static struct {
    void *library;
    launch_fn launch;
    int (*get_function)(void **function, void *kernel);
    int (*synchronize)(void);
    int (*to_device)(uint64_t to, const void *from, size_t count);
    int (*to_host)(void *to, uint64_t from, size_t count);
    int (*on_device)(uint64_t to, uint64_t from, size_t count);
} driver;

static const struct {
    const char *name;
    void **slot;
} entries[] = {
    {"cuLaunchKernel", (void **)&driver.launch},
    {"cuKernelGetFunction", (void **)&driver.get_function},
    {"cuCtxSynchronize", (void **)&driver.synchronize},
    {"cuMemcpyHtoD_v2", (void **)&driver.to_device},
    {"cuMemcpyDtoH_v2", (void **)&driver.to_host},
    {"cuMemcpyDtoD_v2", (void **)&driver.on_device},
};

static PyObject *load(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    if (driver.library == NULL) {
        driver.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (driver.library == NULL)
            return PyErr_Format(PyExc_OSError, "no CUDA driver: libcuda.so.1 does not load");
        for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
            *entries[i].slot = dlsym(driver.library, entries[i].name);
    }
    Py_RETURN_NONE;
}

/* Raise if an entry point is missing or its call failed; true if all is well. */
static int present(void *entry, const char *name) {
    if (entry != NULL)
        return 1;
    PyErr_Format(PyExc_OSError, "the driver has no %s (call load() first)", name);
    return 0;
}

static int succeeded(int code, const char *name) {
    if (code == 0)
        return 1;
    PyErr_Format(PyExc_RuntimeError, "%s failed with error %d", name, code);
    return 0;
}

static PyObject *function(PyObject *module, PyObject *arg) {
    (void)module;
    void *kernel = PyLong_AsVoidPtr(arg), *found = NULL;
    if (PyErr_Occurred() || !present((void *)driver.get_function, "cuKernelGetFunction") ||
        !succeeded(driver.get_function(&found, kernel), "cuKernelGetFunction"))
        return NULL;
    return PyLong_FromVoidPtr(found);
}

static PyObject *launch_address(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    if (!present((void *)driver.launch, "cuLaunchKernel"))
        return NULL;
    return PyLong_FromVoidPtr((void *)driver.launch);
}

static PyObject *synchronize(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    int code;
    if (!present((void *)driver.synchronize, "cuCtxSynchronize"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    code = driver.synchronize();
    Py_END_ALLOW_THREADS;
    if (!succeeded(code, "cuCtxSynchronize"))
        return NULL;
    Py_RETURN_NONE;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    void *function, *stream;
    unsigned grid, block;
    size_t size;
    void *extra[5];
    PyObject *params; /* keeps the bytes that `extra` points to */
} Launch;

static int launch_once(Launch *self) {
    return driver.launch(self->function, self->grid, 1, 1, self->block, 1, 1, 0, self->stream, NULL,
                         self->extra);
}

/* Take any arguments and ignore them, so that a call site looks like a kernel's. */
static PyObject *launch_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    (void)args, (void)count, (void)names;
    if (!succeeded(launch_once((Launch *)self), "cuLaunchKernel"))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *launch_burst(PyObject *self, PyObject *arg) {
    long count = PyLong_AsLong(arg);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    int code = 0;
    int64_t start = now();
    for (long i = 0; i < count; i++)
        code |= launch_once((Launch *)self);
    int64_t taken = now() - start;
    if (!succeeded(code, "cuLaunchKernel"))
        return NULL;
    return PyLong_FromLongLong(taken);
}

static PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"function", "grid", "block", "stream", "params", NULL};
    unsigned long long function_handle, stream;
    unsigned grid, block;
    PyObject *params;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KIIKS", names, &function_handle, &grid, &block,
                                     &stream, &params) ||
        !present((void *)driver.launch, "cuLaunchKernel"))
        return NULL;
    Launch *self = (Launch *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = launch_call;
    self->function = (void *)(uintptr_t)function_handle;
    self->stream = (void *)(uintptr_t)stream;
    self->grid = grid;
    self->block = block;
    self->params = Py_NewRef(params);
    self->size = (size_t)PyBytes_GET_SIZE(params);
    self->extra[0] = PARAM_BUFFER;
    self->extra[1] = PyBytes_AS_STRING(params);
    self->extra[2] = PARAM_SIZE;
    self->extra[3] = &self->size;
    self->extra[4] = PARAM_END;
    return (PyObject *)self;
}

static void launch_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Launch *)self)->params);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef launch_methods[] = {
    {"burst", launch_burst, METH_O, "Launch n times from C; return the nanoseconds it took."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot launch_slots[] = {
    {Py_tp_new, launch_new},         {Py_tp_dealloc, launch_dealloc},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_methods, launch_methods},
    {Py_tp_members, launch_members}, {Py_tp_doc, "Launch one function with ready-made parameters."},
    {0, NULL},
};
static PyType_Spec launch_spec = {
    .name = "_floor.Launch",
    .basicsize = sizeof(Launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = launch_slots,
};

/* One function per direction, so that the floor of a copy is one driver call. */
static PyObject *copy(PyObject *args, int direction) {
    unsigned long long to, from;
    Py_ssize_t count;
    int code;
    if (!PyArg_ParseTuple(args, "KKn", &to, &from, &count))
        return NULL;
    void *entry = direction == 0   ? (void *)driver.to_device
                  : direction == 1 ? (void *)driver.to_host
                                   : (void *)driver.on_device;
    if (!present(entry, "cuMemcpy"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    if (direction == 0)
        code = driver.to_device(to, (const void *)(uintptr_t)from, (size_t)count);
    else if (direction == 1)
        code = driver.to_host((void *)(uintptr_t)to, from, (size_t)count);
    else
        code = driver.on_device(to, from, (size_t)count);
    Py_END_ALLOW_THREADS;
    if (!succeeded(code, "cuMemcpy"))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *copy_to_device(PyObject *module, PyObject *args) {
    (void)module;
    return copy(args, 0);
}
static PyObject *copy_to_host(PyObject *module, PyObject *args) {
    (void)module;
    return copy(args, 1);
}
static PyObject *copy_on_device(PyObject *module, PyObject *args) {
    (void)module;
    return copy(args, 2);
}

/* callgrind: count from here, close one part of the count, stop counting. */
static PyObject *callgrind(PyObject *module, PyObject *arg) {
    (void)module;
    const char *request = PyUnicode_AsUTF8(arg);
    if (request == NULL)
        return NULL;
#ifdef HAVE_CALLGRIND
    if (strcmp(request, "start") == 0)
        CALLGRIND_START_INSTRUMENTATION;
    else if (strcmp(request, "part") == 0)
        CALLGRIND_DUMP_STATS;
    else if (strcmp(request, "stop") == 0)
        CALLGRIND_STOP_INSTRUMENTATION;
    else
        return PyErr_Format(PyExc_ValueError, "unknown request '%s': start, part or stop", request);
    Py_RETURN_NONE;
#else
    return PyErr_Format(PyExc_RuntimeError, "built without <valgrind/callgrind.h>");
#endif
}

static PyMethodDef methods[] = {
    {"load", load, METH_NOARGS, "Open the driver and look its entry points up."},
    {"function", function, METH_O, "Return the CUfunction of a CUkernel in this context."},
    {"launch_address", launch_address, METH_NOARGS, "Return the address of cuLaunchKernel."},
    {"synchronize", synchronize, METH_NOARGS, "Wait for the current context."},
    {"copy_to_device", copy_to_device, METH_VARARGS, "Copy n bytes from host to device."},
    {"copy_to_host", copy_to_host, METH_VARARGS, "Copy n bytes from device to host."},
    {"copy_on_device", copy_on_device, METH_VARARGS, "Copy n bytes from device to device."},
    {"callgrind", callgrind, METH_O, "Send 'start', 'part' or 'stop' to callgrind."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_floor", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__floor(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module ? PyType_FromSpec(&launch_spec) : NULL;
    if (type == NULL || PyModule_AddObject(module, "Launch", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
