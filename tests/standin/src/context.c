/* Contexts: one primary context a device, made ones, and each thread's stack of current ones. */
#include "state.h"

#include <stdatomic.h>
#include <string.h>

enum { STACK_ROOM = 64 };
static _Thread_local Context *stack[STACK_ROOM];
static _Thread_local int depth;

static Context *primaries[MAX_DEVICES];
static uint64_t last_id;
static const size_t default_limits[8] = {1024, 1048576, 8388608, 2, 2048, 64, 0, 0};

static void activate(Context *context, unsigned flags)
{
    context->active = 1;
    context->flags = flags;
    context->id = ++last_id;
    memcpy(context->limits, default_limits, sizeof default_limits);
}

/* What a context owned goes with it; handles that point to it find its id changed. */
static void deactivate(Context *context)
{
    capture_drop_context(context);
    memory_release_context(context);
    context->active = 0;
    context->peers = 0;
    context->legacy = context->per_thread = NULL;
}

Context *context_primary(CUdevice device)
{
    LOCKED;
    if (!primaries[device]) {
        primaries[device] = handle_new(CONTEXT, sizeof(Context));
        primaries[device]->device = device;
        primaries[device]->primary = 1;
    }
    return primaries[device];
}

Context *context_top(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int context_usable(const Context *context, uint64_t id)
{
    return context && context->handle.alive && context->active && context->id == id;
}

CUresult context_current(Context **context)
{
    *context = context_top();
    REQUIRE(*context, INVALID_CONTEXT);
    REQUIRE((*context)->handle.alive && (*context)->active, CONTEXT_IS_DESTROYED);
    return SUCCESS;
}

/* ---- primary contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    Context *context = context_primary(device);
    if (!context->active)
        activate(context, context->flags);
    context->references++;
    *out = context;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease_v2);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    Context *context = context_primary(device);
    REQUIRE(context->references > 0, INVALID_CONTEXT);
    if (--context->references == 0 && context->active)
        deactivate(context);
    return SUCCESS;
}

/* Destroys what the context has, and leaves the references to whoever retained it. */
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxReset_v2);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    if (context_primary(device)->active)
        deactivate(context_primary(device));
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    ENTER(cuDevicePrimaryCtxSetFlags_v2);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    context_primary(device)->flags = flags;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER(cuDevicePrimaryCtxGetState);
    REQUIRE(flags && active, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    LOCKED;
    *flags = context_primary(device)->flags;
    *active = context_primary(device)->active;
    return SUCCESS;
}

/* ---- made contexts ---- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    REQUIRE(depth < STACK_ROOM, OUT_OF_MEMORY);
    LOCKED;
    Context *context = handle_new(CONTEXT, sizeof(Context));
    context->device = device;
    activate(context, flags);
    *out = stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    ENTER(cuCtxCreate_v2);
    return create(out, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    ENTER(cuCtxCreate_v4);
    return create(out, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER(cuCtxDestroy_v2);
    LOCKED;
    REQUIRE(handle_is(context, CONTEXT) && !context->primary, INVALID_CONTEXT);
    deactivate(context);
    context->handle.alive = 0;
    if (context_top() == context)
        depth--;
    return SUCCESS;
}

/* ---- the current context ---- */

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
    ENTER(cuCtxGetCurrent);
    REQUIRE(out, INVALID_VALUE);
    *out = context_top();
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(cuCtxSetCurrent);
    REQUIRE(!context || handle_is(context, CONTEXT), INVALID_CONTEXT);
    if (!context)
        depth -= depth > 0;
    else if (depth)
        stack[depth - 1] = context;
    else
        stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(cuCtxPushCurrent_v2);
    REQUIRE(handle_is(context, CONTEXT), INVALID_CONTEXT);
    REQUIRE(depth < STACK_ROOM, OUT_OF_MEMORY);
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    ENTER(cuCtxPopCurrent_v2);
    REQUIRE(depth, INVALID_CONTEXT);
    depth--;
    if (out)
        *out = stack[depth];
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    Context *context = context_top();
    ENTER(cuCtxGetDevice);
    REQUIRE(device, INVALID_VALUE);
    REQUIRE(context, INVALID_CONTEXT);
    *device = context->device;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    ENTER(cuCtxGetDevice_v2);
    REQUIRE(device, INVALID_VALUE);
    context = context ? context : context_top();
    REQUIRE(handle_is(context, CONTEXT), INVALID_CONTEXT);
    *device = context->device;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    ENTER(cuCtxGetId);
    REQUIRE(id, INVALID_VALUE);
    context = context ? context : context_top();
    REQUIRE(handle_is(context, CONTEXT), INVALID_CONTEXT);
    REQUIRE(context->active, CONTEXT_IS_DESTROYED);
    *id = context->id;
    return SUCCESS;
}

/* ---- synchronization and settings ---- */

static CUresult synchronize(CUcontext context)
{
    REQUIRE(handle_is(context, CONTEXT), INVALID_CONTEXT);
    REQUIRE(context->active, CONTEXT_IS_DESTROYED);
    CHECK(capture_synchronize(context));
    stream_sync_point();
    return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize);
    return synchronize(context_top());
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    ENTER(cuCtxSynchronize_v2);
    return synchronize(context ? context : context_top());
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    Context *context;
    ENTER(cuCtxGetFlags);
    CHECK(context_current(&context));
    REQUIRE(flags, INVALID_VALUE);
    *flags = context->flags;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    Context *context;
    ENTER(cuCtxSetLimit);
    CHECK(context_current(&context));
    REQUIRE(limit >= 0 && limit < 8, INVALID_VALUE);
    context->limits[limit] = value;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
    Context *context;
    ENTER(cuCtxGetLimit);
    CHECK(context_current(&context));
    REQUIRE(value && limit >= 0 && limit < 8, INVALID_VALUE);
    *value = context->limits[limit];
    return SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
    Context *context;
    ENTER(cuCtxGetCacheConfig);
    CHECK(context_current(&context));
    *config = 0;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCacheConfig(int config)
{
    Context *context;
    ENTER(cuCtxSetCacheConfig);
    REQUIRE(config >= 0 && config <= 3, INVALID_VALUE);
    return context_current(&context);
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    ENTER(cuCtxGetApiVersion);
    REQUIRE(version, INVALID_VALUE);
    REQUIRE(!context || handle_is(context, CONTEXT), INVALID_CONTEXT);
    *version = 3020;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    Context *context;
    ENTER(cuCtxGetStreamPriorityRange);
    CHECK(context_current(&context));
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return SUCCESS;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    Context *context;
    ENTER(cuCtxEnablePeerAccess);
    CHECK(context_current(&context));
    REQUIRE(flags == 0, INVALID_VALUE);
    REQUIRE(handle_is(peer, CONTEXT) && peer != context, INVALID_CONTEXT);
    REQUIRE(peer->device != context->device, PEER_ACCESS_UNSUPPORTED);
    LOCKED;
    REQUIRE(!(context->peers & 1u << peer->device), PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= 1u << peer->device;
    return SUCCESS;
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    Context *context;
    ENTER(cuCtxDisablePeerAccess);
    CHECK(context_current(&context));
    REQUIRE(handle_is(peer, CONTEXT), INVALID_CONTEXT);
    LOCKED;
    REQUIRE(context->peers & 1u << peer->device, PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~(1u << peer->device);
    return SUCCESS;
}
