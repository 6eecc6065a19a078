/* Libraries, modules and variables. A library belongs to no context; its variables get memory in
 * each device's context when somebody asks for them. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult load(CUlibrary *out, const void *image, int module)
{
    Context *context;
    REQUIRE(out && image, INVALID_VALUE);
    if (module)
        CHECK(context_current(&context));
    CHECK(capture_strictly_unsafe());
    LOCKED;
    Library *library = handle_new(LIBRARY, sizeof *library);
    library->module = module;
    CUresult result = cubin_read(library, image);
    library->handle.alive = result == SUCCESS;
    *out = result == SUCCESS ? library : NULL;
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *image, const int *jit, void **jit_values, unsigned jits,
                                  const int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    ENTER(cuLibraryLoadData);
    return load(out, image, 0);
}

static void *read_file(const char *path)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *bytes = calloc(1, (size_t)size + 64);
    size_t got = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    if (got == (size_t)size)
        return bytes;
    free(bytes);
    return NULL;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, const int *jit, void **jit_values,
                                      unsigned jits, const int *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    ENTER(cuLibraryLoadFromFile);
    void *image = read_file(path);
    REQUIRE(image, FILE_NOT_FOUND);
    CUresult result = load(out, image, 0);
    free(image);
    return result;
}

static CUresult unload(CUlibrary library)
{
    CHECK(capture_strictly_unsafe());
    LOCKED;
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    library->handle.alive = 0;
    for (size_t index = 0; index < library->kernel_count; index++) {
        library->kernels[index]->handle.alive = 0;
        for (Function *function = library->kernels[index]->functions; function; function = function->next)
            function->handle.alive = 0;
    }
    for (Variable *variable = library->variables; variable; variable = variable->next)
        for (int device = 0; device < MAX_DEVICES; device++)
            if (variable->address[device] && context_usable(context_primary(device), variable->context_id[device]))
                memory_free(variable->address[device]);
    return SUCCESS;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER(cuLibraryUnload);
    return unload(library);
}

static CUresult find_kernel(const Library *library, const char *name, Kernel **kernel)
{
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    REQUIRE(name, INVALID_VALUE);
    for (size_t index = 0; index < library->kernel_count; index++)
        if (!strcmp(library->kernels[index]->name, name)) {
            *kernel = library->kernels[index];
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
    Kernel *kernel;
    ENTER(cuLibraryGetKernel);
    REQUIRE(out, INVALID_VALUE);
    CHECK(find_kernel(library, name, &kernel));
    *out = &kernel->handle;
    return SUCCESS;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    ENTER(cuLibraryGetKernelCount);
    REQUIRE(count, INVALID_VALUE);
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    *count = (unsigned)library->kernel_count;
    return SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary library)
{
    ENTER(cuLibraryEnumerateKernels);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    for (unsigned index = 0; index < room && index < library->kernel_count; index++)
        out[index] = &library->kernels[index]->handle;
    return SUCCESS;
}

/* ---- variables ---- */

static CUresult place(Variable *variable, Context *context)
{
    Region *region;
    int device = context->device;
    if (variable->address[device] && variable->context_id[device] == context->id)
        return SUCCESS;
    CHECK(memory_allocate(variable->size, device, context, &region));
    variable->address[device] = region->base;
    variable->context_id[device] = context->id;
    if (variable->initial)
        memcpy(arena_host(region->base), variable->initial, variable->size);
    else
        memset(arena_host(region->base), 0, variable->size);
    return SUCCESS;
}

static CUresult find_variable(CUdeviceptr *address, size_t *size, const Library *library, const char *name)
{
    Context *context;
    CHECK(context_current(&context));
    LOCKED;
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    REQUIRE(name, INVALID_VALUE);
    for (Variable *variable = library->variables; variable; variable = variable->next)
        if (!strcmp(variable->name, name)) {
            CHECK(place(variable, context));
            if (address)
                *address = variable->address[context->device];
            if (size)
                *size = variable->size;
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    ENTER(cuLibraryGetGlobal);
    return find_variable(address, size, library, name);
}


/* ---- modules: a library under another name ---- */

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER(cuLibraryGetModule);
    REQUIRE(module, INVALID_VALUE);
    REQUIRE(handle_is(library, LIBRARY), INVALID_HANDLE);
    *module = library;
    return SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(cuModuleLoadData);
    return load(module, image, 1);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    ENTER(cuModuleLoadDataEx);
    return load(module, image, 1);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER(cuModuleUnload);
    return unload(module);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    Context *context;
    Kernel *kernel;
    Function *function;
    ENTER(cuModuleGetFunction);
    REQUIRE(out, INVALID_VALUE);
    CHECK(context_current(&context));
    CHECK(find_kernel(module, name, &kernel));
    CHECK(kernel_function(kernel, context, &function));
    *out = &function->handle;
    return SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    ENTER(cuModuleGetGlobal_v2);
    return find_variable(address, size, module, name);
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    ENTER(cuModuleGetLoadingMode);
    REQUIRE(mode, INVALID_VALUE);
    *mode = 2; /* lazy */
    return SUCCESS;
}
