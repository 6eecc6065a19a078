/* Events, and the log of which stream was put behind which. */
#include "state.h"

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    Context *context;
    ENTER(cuEventCreate);
    CHECK(context_current(&context));
    REQUIRE(out && flags < 8, INVALID_VALUE);
    CHECK(capture_strictly_unsafe());
    LOCKED;
    Event *event = handle_new(EVENT, sizeof *event);
    event->context = context;
    event->context_id = context->id;
    event->flags = flags;
    *out = event;
    return SUCCESS;
}

static CUresult resolve(const Event *event)
{
    REQUIRE(handle_is(event, EVENT), INVALID_HANDLE);
    REQUIRE(context_usable(event->context, event->context_id), INVALID_CONTEXT);
    return SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER(cuEventDestroy_v2);
    REQUIRE(handle_is(event, EVENT), INVALID_HANDLE);
    CHECK(capture_strictly_unsafe());
    LOCKED;
    list_clear(&event->tail);
    event->handle.alive = 0;
    return SUCCESS;
}

static CUresult record(CUevent event, CUstream handle)
{
    Stream *stream;
    LOCKED;
    CHECK(resolve(event));
    CHECK(stream_resolve(handle, &stream));
    REQUIRE(stream->context == event->context, INVALID_HANDLE);
    CHECK(capture_legacy(stream));
    if (stream->capture && stream->capture->status != CAPTURE_ACTIVE)
        return CAPTURE_INVALIDATED;
    event->capture_id = stream->capture ? stream->capture->id : 0;
    list_copy(&event->tail, &stream->tail);
    event->recorded = 1;
    event->stream = stream->value;
    event->stream_id = stream->id;
    event->sequence = next_sequence();
    event->nanoseconds = now_nanoseconds();
    return SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER(cuEventRecord);
    return record(event, stream);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    ENTER(cuEventRecordWithFlags);
    REQUIRE(flags <= 1, INVALID_VALUE);
    return record(event, stream);
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    ENTER(cuEventQuery);
    CHECK(resolve(event));
    CHECK(capture_of_event(event));
    CHECK(capture_unsafe());
    return !event->recorded || sequence_done(event->sequence) ? SUCCESS : NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    ENTER(cuEventSynchronize);
    CHECK(resolve(event));
    CHECK(capture_of_event(event));
    CHECK(capture_unsafe());
    stream_sync_point();
    return SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    REQUIRE(milliseconds, INVALID_VALUE);
    CHECK(resolve(start));
    CHECK(resolve(end));
    REQUIRE(!(start->flags & EVENT_DISABLE_TIMING) && !(end->flags & EVENT_DISABLE_TIMING), INVALID_HANDLE);
    REQUIRE(start->recorded && end->recorded, INVALID_HANDLE);
    REQUIRE(!start->capture_id && !end->capture_id, INVALID_HANDLE);
    REQUIRE(sequence_done(start->sequence) && sequence_done(end->sequence), NOT_READY);
    *milliseconds = (float)((double)(int64_t)(end->nanoseconds - start->nanoseconds) / 1e6);
    return SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER(cuEventElapsedTime);
    return elapsed(milliseconds, start, end);
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    ENTER(cuEventElapsedTime_v2);
    return elapsed(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    Stream *stream;
    ENTER(cuStreamWaitEvent);
    REQUIRE(flags <= 1, INVALID_VALUE);
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    CHECK(resolve(event));
    CHECK(capture_legacy(stream));
    CHECK(capture_join(stream, event, flags == 1));
    if (event->recorded)
        record_ordering(event, stream);
    return SUCCESS;
}

EXPORT CUresult cuIpcGetEventHandle(IpcHandle *out, CUevent event)
{
    (void)out, (void)event;
    ENTER(cuIpcGetEventHandle);
    return NOT_SUPPORTED;
}

EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, IpcHandle handle)
{
    (void)out, (void)handle;
    ENTER(cuIpcOpenEventHandle);
    return NOT_SUPPORTED;
}
