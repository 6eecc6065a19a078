/* Streams. Work is done when it is issued; what streams keep is identity, capture, and whether a
 * test holds their work as not done. */
#include "state.h"

#include <stdatomic.h>

static atomic_uint_fast64_t last_id, completed;
static atomic_int holding;

static Stream *stream_new(Context *context, unsigned flags, int priority)
{
    Stream *stream = handle_new(STREAM, sizeof *stream);
    stream->context = context;
    stream->context_id = context->id;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&last_id, 1) + 1;
    stream->value = (uintptr_t)stream;
    return stream;
}

static Stream *legacy_of(Context *context)
{
    if (!context->legacy) {
        context->legacy = stream_new(context, 0, 0);
        context->legacy->value = 1;
    }
    return context->legacy;
}

/* One a thread and context. */
static Stream *per_thread_of(Context *context)
{
    Stream *stream = context->per_thread;
    while (stream && stream->thread != thread_number())
        stream = stream->next;
    if (!stream) {
        stream = stream_new(context, 0, 0);
        stream->thread = thread_number();
        stream->value = 2;
        stream->next = context->per_thread;
        context->per_thread = stream;
    }
    return stream;
}

CUresult stream_resolve(CUstream handle, Stream **stream)
{
    Context *context;
    CHECK(context_current(&context));
    if ((uintptr_t)handle <= 2) {
        LOCKED;
        int per_thread = (uintptr_t)handle == 2 || (!handle && null_is_per_thread());
        *stream = per_thread ? per_thread_of(context) : legacy_of(context);
        return SUCCESS;
    }
    *stream = handle;
    REQUIRE(handle_is(handle, STREAM) && context_usable(handle->context, handle->context_id), INVALID_HANDLE);
    return SUCCESS;
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    Context *context;
    CHECK(context_current(&context));
    REQUIRE(out && flags <= 1, INVALID_VALUE);
    LOCKED;
    *out = stream_new(context, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
    return SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    ENTER(cuStreamCreate);
    return create(out, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    ENTER(cuStreamCreateWithPriority);
    return create(out, flags, priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER(cuStreamDestroy_v2);
    LOCKED;
    REQUIRE(handle_is(stream, STREAM) && stream->value > 2, INVALID_HANDLE);
    capture_drop_stream(stream);
    stream->handle.alive = 0;
    return SUCCESS;
}

/* ---- questions ---- */

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    Stream *stream;
    ENTER(cuStreamGetId);
    REQUIRE(id, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *id = stream->id;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    Stream *stream;
    ENTER(cuStreamGetCtx);
    REQUIRE(context, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *context = stream->context;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, void **green)
{
    Stream *stream;
    ENTER(cuStreamGetCtx_v2);
    REQUIRE(context, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *context = stream->context;
    if (green)
        *green = NULL;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    Stream *stream;
    ENTER(cuStreamGetDevice);
    REQUIRE(device, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *device = stream->context->device;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    Stream *stream;
    ENTER(cuStreamGetFlags);
    REQUIRE(flags, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *flags = stream->flags;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    Stream *stream;
    ENTER(cuStreamGetPriority);
    REQUIRE(priority, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    *priority = stream->priority;
    return SUCCESS;
}

/* ---- done or not ---- */

int sequence_done(uint64_t sequence)
{
    return !atomic_load(&holding) || sequence <= atomic_load(&completed);
}

void stream_sync_point(void)
{
    atomic_store(&completed, now_sequence());
}

/* While held, nothing issued after this is done until somebody waits for it. */
EXPORT void standin_hold_events(int on)
{
    atomic_store(&completed, now_sequence());
    atomic_store(&holding, on);
}

static CUresult forbid_while_capturing(Stream *stream)
{
    LOCKED;
    CHECK(capture_legacy(stream));
    if (stream->capture)
        return capture_break(stream->capture, CAPTURE_UNSUPPORTED);
    return capture_unsafe();
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    Stream *stream;
    ENTER(cuStreamQuery);
    CHECK(stream_resolve(handle, &stream));
    CHECK(forbid_while_capturing(stream));
    return sequence_done(now_sequence()) ? SUCCESS : NOT_READY;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    Stream *stream;
    ENTER(cuStreamSynchronize);
    CHECK(stream_resolve(handle, &stream));
    CHECK(forbid_while_capturing(stream));
    stream_sync_point();
    return SUCCESS;
}

EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t size, unsigned flags)
{
    Stream *stream;
    (void)size, (void)flags;
    ENTER(cuStreamAttachMemAsync);
    CHECK(stream_resolve(handle, &stream));
    LOCKED;
    Region *region = region_find(address);
    REQUIRE(region && region->kind == REGION_MANAGED, INVALID_VALUE);
    return SUCCESS;
}

/* ---- host functions: run at once, or at the replay of a capture ---- */

static CUresult replay_host(Node *node, Stream *stream)
{
    (void)stream;
    ((CUhostFn)(uintptr_t)node->words[0])((void *)(uintptr_t)node->words[1]);
    return SUCCESS;
}

static CUresult host_node(Stream *stream, CUhostFn function, void *data, Node **node)
{
    LOCKED;
    CHECK(capture_legacy(stream));
    CHECK(capture_node(stream, NODE_HOST, node));
    if (!*node)
        return SUCCESS;
    (*node)->replay = replay_host;
    (*node)->words[0] = (uintptr_t)function;
    (*node)->words[1] = (uintptr_t)data;
    return SUCCESS;
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *data)
{
    Stream *stream;
    Node *node;
    REQUIRE(function, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    CHECK(host_node(stream, function, data, &node));
    if (!node)
        function(data);
    return SUCCESS;
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    ENTER(cuLaunchHostFunc);
    return launch_host(stream, function, data);
}

EXPORT CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned mode)
{
    (void)mode;
    ENTER(cuLaunchHostFunc_v2);
    return launch_host(stream, function, data);
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned flags)
{
    Stream *stream;
    ENTER(cuStreamAddCallback);
    REQUIRE(callback && flags == 0, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    CHECK(forbid_while_capturing(stream));
    callback(handle, SUCCESS, data);
    return SUCCESS;
}
