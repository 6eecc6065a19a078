/* Stream capture: who captures, what that forbids to whom, and how streams are drawn in. */
#include "state.h"

#include <stdlib.h>

static Capture *captures;
static uint64_t last_id;
static int strict;
static _Thread_local int thread_mode = CAPTURE_GLOBAL;

static Capture *find(uint64_t id)
{
    Capture *capture = captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

CUresult capture_break(Capture *capture, CUresult error)
{
    capture->status = CAPTURE_BROKEN;
    return error;
}

static void add_member(Capture *capture, Stream *stream)
{
    stream->capture = capture;
    stream->next_member = capture->members;
    capture->members = stream;
}

/* A thread in global mode heeds its own captures that are not relaxed and everybody's global ones;
 * in thread-local mode only the former; in relaxed mode none. */
static int forbids(const Capture *capture)
{
    if (thread_mode == CAPTURE_RELAXED)
        return 0;
    if (capture->thread == thread_number())
        return capture->mode != CAPTURE_RELAXED;
    return thread_mode == CAPTURE_GLOBAL && capture->mode == CAPTURE_GLOBAL;
}

CUresult capture_unsafe(void)
{
    CUresult result = SUCCESS;
    LOCKED;
    for (Capture *capture = captures; capture; capture = capture->next)
        if (forbids(capture))
            result = capture_break(capture, CAPTURE_UNSUPPORTED);
    return result;
}

static Capture *blocking_capture(const Stream *legacy)
{
    for (Capture *capture = captures; capture; capture = capture->next)
        for (Stream *member = capture->members; member; member = member->next_member)
            if (!(member->flags & STREAM_NON_BLOCKING) && member->context == legacy->context)
                return capture;
    return NULL;
}

/* What hardware allows within a capture but a test may want forbidden: see standin_strict_capture. */
CUresult capture_strictly_unsafe(void)
{
    return strict ? capture_unsafe() : SUCCESS;
}

/* Synchronizing a context spoils all its captures, whatever their mode and thread. */
CUresult capture_synchronize(const Context *context)
{
    CUresult result = SUCCESS;
    LOCKED;
    for (Capture *capture = captures; capture; capture = capture->next)
        if (capture->origin->context == context)
            result = capture_break(capture, CAPTURE_UNSUPPORTED);
    return result;
}

/* Asking for an event that a capture recorded spoils that capture; an ended one cannot be asked for. */
CUresult capture_of_event(const Event *event)
{
    LOCKED;
    if (!event->capture_id)
        return SUCCESS;
    Capture *capture = find(event->capture_id);
    return capture ? capture_break(capture, CAPTURED_EVENT) : INVALID_VALUE;
}

/* The legacy stream waits for every blocking stream, so work on it would depend on the capture. */
CUresult capture_legacy(const Stream *stream)
{
    if (stream->value != 1 || !captures)
        return SUCCESS;
    LOCKED;
    Capture *capture = blocking_capture(stream);
    return capture ? capture_break(capture, CAPTURE_IMPLICIT) : SUCCESS;
}

CUresult capture_node(Stream *stream, int type, Node **node)
{
    *node = NULL;
    if (!stream->capture)
        return SUCCESS;
    REQUIRE(stream->capture->status == CAPTURE_ACTIVE, CAPTURE_INVALIDATED);
    *node = graph_add(stream->capture->graph, type, &stream->tail);
    (*node)->stream = stream;
    list_clear(&stream->tail);
    list_add(&stream->tail, *node);
    return SUCCESS;
}

static CUresult wait_while_capturing(Stream *stream, const Event *event, int external)
{
    Capture *capture = stream->capture;
    REQUIRE(capture->status == CAPTURE_ACTIVE, CAPTURE_INVALIDATED);
    if (event->capture_id == capture->id) {
        for (size_t index = 0; index < event->tail.count; index++)
            list_add(&stream->tail, event->tail.items[index]);
        return SUCCESS;
    }
    if (!event->recorded || external)
        return SUCCESS;
    Capture *other = find(event->capture_id);
    if (!other)
        return capture_break(capture, CAPTURE_ISOLATION);
    capture_break(other, CAPTURE_MERGE);
    return capture_break(capture, CAPTURE_MERGE);
}

CUresult capture_join(Stream *stream, const Event *event, int external)
{
    if (stream->capture)
        return wait_while_capturing(stream, event, external);
    if (!event->capture_id)
        return SUCCESS;
    Capture *capture = find(event->capture_id);
    REQUIRE(capture, INVALID_VALUE);
    REQUIRE(capture->status == CAPTURE_ACTIVE, CAPTURE_INVALIDATED);
    if (stream->value == 1)
        return capture_break(capture, CAPTURE_IMPLICIT);
    add_member(capture, stream);
    list_copy(&stream->tail, &event->tail);
    return SUCCESS;
}

static void finish(Capture *capture)
{
    for (Stream *member = capture->members, *next; member; member = next) {
        next = member->next_member;
        member->capture = NULL;
        member->next_member = NULL;
        list_clear(&member->tail);
    }
    for (Capture **link = &captures; *link; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    free(capture);
}

/* With its first stream a capture ends; without another it can only fail. */
void capture_drop_stream(Stream *stream)
{
    Capture *capture = stream->capture;
    if (!capture)
        return;
    if (capture->origin == stream) {
        finish(capture);
        return;
    }
    capture_break(capture, CAPTURE_INVALIDATED);
    for (Stream **link = &capture->members; *link; link = &(*link)->next_member)
        if (*link == stream) {
            *link = stream->next_member;
            break;
        }
    stream->capture = NULL;
}

void capture_drop_context(const Context *context)
{
    Capture *capture = captures;
    while (capture) {
        Capture *next = capture->next;
        if (capture->origin->context == context)
            finish(capture);
        capture = next;
    }
}

/* ---- begin and end ---- */

static CUresult begin(CUstream handle, Graph *graph, const NodeList *before, int mode)
{
    Stream *stream;
    REQUIRE(mode >= CAPTURE_GLOBAL && mode <= CAPTURE_RELAXED, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    REQUIRE(stream->value != 1, CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capture, ILLEGAL_STATE);
    Capture *capture = calloc(1, sizeof *capture);
    capture->graph = graph ? graph : graph_new();
    capture->origin = stream;
    capture->mode = mode;
    capture->status = CAPTURE_ACTIVE;
    capture->id = ++last_id;
    capture->thread = thread_number();
    capture->next = captures;
    captures = capture;
    add_member(capture, stream);
    list_clear(&stream->tail);
    if (before)
        list_copy(&stream->tail, before);
    return SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER(cuStreamBeginCapture_v2);
    LOCKED;
    return begin(stream, NULL, NULL, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *before,
                                            const void *edges, size_t count, int mode)
{
    (void)edges;
    ENTER(cuStreamBeginCaptureToGraph);
    LOCKED;
    REQUIRE(handle_is(graph, GRAPH), INVALID_VALUE);
    NodeList list = {(CUgraphNode *)before, count, count};
    return begin(stream, graph, &list, mode);
}

static int reached(const Node *node, const Node *goal)
{
    if (node == goal)
        return 1;
    for (size_t index = 0; index < node->before.count; index++)
        if (reached(node->before.items[index], goal))
            return 1;
    return 0;
}

/* Every member's last work must come before the origin's end. */
static int all_joined(const Capture *capture)
{
    const NodeList *end = &capture->origin->tail;
    for (const Stream *member = capture->members; member; member = member->next_member)
        for (size_t index = 0; index < member->tail.count; index++) {
            int joined = 0;
            for (size_t last = 0; last < end->count && !joined; last++)
                joined = reached(end->items[last], member->tail.items[index]);
            if (!joined)
                return 0;
        }
    return 1;
}

static CUresult verdict(const Capture *capture)
{
    REQUIRE(capture->mode == CAPTURE_RELAXED || capture->thread == thread_number(), CAPTURE_WRONG_THREAD);
    REQUIRE(capture->status == CAPTURE_ACTIVE, CAPTURE_INVALIDATED);
    REQUIRE(all_joined(capture), CAPTURE_UNJOINED);
    return SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    Stream *stream;
    ENTER(cuStreamEndCapture);
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    Capture *capture = stream->capture;
    REQUIRE(graph, INVALID_VALUE);
    *graph = NULL;
    REQUIRE(capture, ILLEGAL_STATE);
    if (capture->origin != stream)
        return capture_break(capture, CAPTURE_UNMATCHED);
    CUresult result = verdict(capture);
    if (result == SUCCESS)
        *graph = capture->graph;
    finish(capture);
    return result;
}

/* ---- questions ---- */

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    Stream *stream;
    ENTER(cuStreamIsCapturing);
    REQUIRE(status, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    LOCKED;
    REQUIRE(stream->value != 1 || !blocking_capture(stream), CAPTURE_IMPLICIT);
    *status = stream->capture ? stream->capture->status : CAPTURE_NONE;
    return SUCCESS;
}

static CUresult information(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **before,
                            size_t *count)
{
    Stream *stream;
    REQUIRE(status, INVALID_VALUE);
    CHECK(stream_resolve(handle, &stream));
    LOCKED;
    REQUIRE(stream->value != 1 || !blocking_capture(stream), CAPTURE_IMPLICIT);
    *status = stream->capture ? stream->capture->status : CAPTURE_NONE;
    if (!stream->capture)
        return SUCCESS;
    if (id)
        *id = stream->capture->id;
    if (graph)
        *graph = stream->capture->graph;
    if (before)
        *before = stream->tail.items;
    if (count)
        *count = stream->tail.count;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **before, size_t *count)
{
    ENTER(cuStreamGetCaptureInfo_v2);
    return information(stream, status, id, graph, before, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                          const CUgraphNode **before, const void **edges, size_t *count)
{
    ENTER(cuStreamGetCaptureInfo_v3);
    if (edges)
        *edges = NULL;
    return information(stream, status, id, graph, before, count);
}

/* Also forbid making and destroying events, and loading and unloading libraries: what drivers
 * before hardware.json's may forbid, and what is safest to keep out of a capture. */
EXPORT void standin_strict_capture(int on)
{
    strict = on;
}

/* Drops the captures that a failed test left, and this thread's mode. */
EXPORT void standin_end_captures(void)
{
    LOCKED;
    while (captures)
        finish(captures);
    thread_mode = CAPTURE_GLOBAL;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode);
    REQUIRE(mode && *mode >= CAPTURE_GLOBAL && *mode <= CAPTURE_RELAXED, INVALID_VALUE);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return SUCCESS;
}
