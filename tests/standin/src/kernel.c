/* Kernels and functions: the kernel belongs to a library, the function to a kernel in one context. */
#include "state.h"

#include <stdlib.h>

CUresult kernel_function(Kernel *kernel, Context *context, Function **out)
{
    LOCKED;
    for (Function *function = kernel->functions; function; function = function->next)
        if (function->context == context && function->context_id == context->id) {
            *out = function;
            return SUCCESS;
        }
    Function *function = handle_new(FUNCTION, sizeof *function);
    function->kernel = kernel;
    function->context = context;
    function->context_id = context->id;
    function->max_dynamic = kernel->max_dynamic[context->device];
    function->carveout = kernel->carveout[context->device];
    function->next = kernel->functions;
    kernel->functions = function;
    *out = function;
    return SUCCESS;
}

static CUresult function_check(CUfunction handle, Function **function)
{
    *function = (Function *)handle;
    REQUIRE(handle_is(handle, FUNCTION), INVALID_HANDLE);
    REQUIRE(context_usable((*function)->context, (*function)->context_id), INVALID_HANDLE);
    return SUCCESS;
}

CUresult function_resolve(CUfunction handle, Context *context, Function **function)
{
    if (handle_is(handle, KERNEL))
        return kernel_function((Kernel *)handle, context, function);
    CHECK(function_check(handle, function));
    REQUIRE((*function)->context == context, INVALID_HANDLE);
    return SUCCESS;
}

static CUresult kernel_check(CUkernel handle, Kernel **kernel)
{
    *kernel = (Kernel *)handle;
    REQUIRE(handle_is(handle, KERNEL), INVALID_HANDLE);
    return SUCCESS;
}

/* ---- attributes ---- */

enum {
    MAX_THREADS, SHARED_SIZE, CONSTANT_SIZE, LOCAL_SIZE, REGISTERS, PTX_VERSION, BINARY_VERSION, CACHE_MODE,
    MAX_DYNAMIC, CARVEOUT, CLUSTER_REQUIRED, LAST_ATTRIBUTE = 17,
};

int function_attribute(const Kernel *kernel, int attribute, int max_dynamic, int carveout, int *value)
{
    switch (attribute) {
    case MAX_THREADS: *value = kernel->max_threads; break;
    case SHARED_SIZE: *value = kernel->shared; break;
    case CONSTANT_SIZE: *value = kernel->constant; break;
    case LOCAL_SIZE: *value = kernel->local; break;
    case REGISTERS: *value = kernel->registers; break;
    case PTX_VERSION: case BINARY_VERSION: *value = 10 * settings.major + settings.minor; break;
    case MAX_DYNAMIC: *value = max_dynamic; break;
    case CARVEOUT: *value = carveout; break;
    default:
        REQUIRE(attribute > 0 && attribute <= LAST_ATTRIBUTE, INVALID_VALUE);
        *value = 0;
    }
    return SUCCESS;
}

static CUresult set_attribute(const Kernel *kernel, int attribute, int value, int *max_dynamic, int *carveout)
{
    REQUIRE(attribute >= MAX_DYNAMIC && attribute <= LAST_ATTRIBUTE, INVALID_VALUE);
    if (attribute == MAX_DYNAMIC) {
        REQUIRE(value >= 0 && value + kernel->shared <= device_attribute(97), INVALID_VALUE);
        *max_dynamic = value;
    }
    if (attribute == CARVEOUT) {
        REQUIRE(value >= -1 && value <= 100, INVALID_VALUE);
        *carveout = value;
    }
    return SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel handle, CUdevice device)
{
    Kernel *kernel;
    ENTER(cuKernelGetAttribute);
    REQUIRE(value, INVALID_VALUE);
    CHECK(kernel_check(handle, &kernel));
    REQUIRE(device_valid(device), INVALID_DEVICE);
    return function_attribute(kernel, attribute, kernel->max_dynamic[device], kernel->carveout[device], value);
}

/* Holds for functions made before, too, unless they have a value of their own. */
EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUkernel handle, CUdevice device)
{
    Kernel *kernel;
    int ignored;
    ENTER(cuKernelSetAttribute);
    CHECK(kernel_check(handle, &kernel));
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    CHECK(set_attribute(kernel, attribute, value, &kernel->max_dynamic[device], &kernel->carveout[device]));
    for (Function *function = kernel->functions; function; function = function->next)
        if (function->context->device == device)
            set_attribute(kernel, attribute, value, function->own_dynamic ? &ignored : &function->max_dynamic,
                          function->own_carveout ? &ignored : &function->carveout);
    return SUCCESS;
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel handle, int config, CUdevice device)
{
    Kernel *kernel;
    ENTER(cuKernelSetCacheConfig);
    REQUIRE(config >= 0 && config <= 3, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    return kernel_check(handle, &kernel);
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle)
{
    Function *function;
    ENTER(cuFuncGetAttribute);
    REQUIRE(value, INVALID_VALUE);
    CHECK(function_check(handle, &function));
    return function_attribute(function->kernel, attribute, function->max_dynamic, function->carveout, value);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value)
{
    Function *function;
    ENTER(cuFuncSetAttribute);
    CHECK(capture_strictly_unsafe());
    CHECK(function_check(handle, &function));
    LOCKED;
    CHECK(set_attribute(function->kernel, attribute, value, &function->max_dynamic, &function->carveout));
    function->own_dynamic |= attribute == MAX_DYNAMIC;
    function->own_carveout |= attribute == CARVEOUT;
    return SUCCESS;
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int config)
{
    Function *function;
    ENTER(cuFuncSetCacheConfig);
    REQUIRE(config >= 0 && config <= 3, INVALID_VALUE);
    return function_check(handle, &function);
}

/* ---- names, parameters, kinship ---- */

static CUresult parameter_info(const Kernel *kernel, size_t index, size_t *offset, size_t *size)
{
    REQUIRE(offset && index < kernel->parameter_count, INVALID_VALUE);
    *offset = kernel->parameters[index].offset;
    if (size)
        *size = kernel->parameters[index].size;
    return SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
    Kernel *kernel;
    ENTER(cuKernelGetParamInfo);
    CHECK(kernel_check(handle, &kernel));
    return parameter_info(kernel, index, offset, size);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    Function *function;
    ENTER(cuFuncGetParamInfo);
    CHECK(function_check(handle, &function));
    return parameter_info(function->kernel, index, offset, size);
}

EXPORT CUresult cuKernelGetParamCount(CUkernel handle, size_t *count)
{
    Kernel *kernel;
    ENTER(cuKernelGetParamCount);
    REQUIRE(count, INVALID_VALUE);
    CHECK(kernel_check(handle, &kernel));
    *count = kernel->parameter_count;
    return SUCCESS;
}

EXPORT CUresult cuFuncGetParamCount(CUfunction handle, size_t *count)
{
    Function *function;
    ENTER(cuFuncGetParamCount);
    REQUIRE(count, INVALID_VALUE);
    CHECK(function_check(handle, &function));
    *count = function->kernel->parameter_count;
    return SUCCESS;
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    Kernel *kernel;
    ENTER(cuKernelGetName);
    REQUIRE(name, INVALID_VALUE);
    CHECK(kernel_check(handle, &kernel));
    *name = kernel->name;
    return SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    Function *function;
    ENTER(cuFuncGetName);
    REQUIRE(name, INVALID_VALUE);
    CHECK(function_check(handle, &function));
    *name = function->kernel->name;
    return SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
    Context *context;
    Kernel *kernel;
    Function *function;
    ENTER(cuKernelGetFunction);
    REQUIRE(out, INVALID_VALUE);
    CHECK(context_current(&context));
    CHECK(kernel_check(handle, &kernel));
    CHECK(kernel_function(kernel, context, &function));
    *out = &function->handle;
    return SUCCESS;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle)
{
    Kernel *kernel;
    ENTER(cuKernelGetLibrary);
    REQUIRE(out, INVALID_VALUE);
    CHECK(kernel_check(handle, &kernel));
    *out = kernel->library;
    return SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction handle)
{
    Function *function;
    ENTER(cuFuncGetModule);
    REQUIRE(out, INVALID_VALUE);
    CHECK(function_check(handle, &function));
    *out = function->kernel->library;
    return SUCCESS;
}

EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction handle)
{
    Function *function;
    ENTER(cuFuncIsLoaded);
    REQUIRE(state, INVALID_VALUE);
    CHECK(function_check(handle, &function));
    *state = 1;
    return SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction handle)
{
    Function *function;
    ENTER(cuFuncLoad);
    return function_check(handle, &function);
}
