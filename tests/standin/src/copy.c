/* Copies of bytes between host and device. All are done at once, or kept by a capture. */
#include "state.h"

#include <string.h>

enum Check { ANY = 0, SOURCE_DEVICE = 1, TARGET_DEVICE = 2, PEERS = 4 };

/* Host memory is not known to the driver; what is said to be the device's must be. */
static int within(uint64_t address, uint64_t size, int must_be_known)
{
    Region *region = region_find(address);
    if (!region)
        return !must_be_known && !arena_contains(address);
    return address + size <= region->base + region->size;
}

/* Only a copy between peers reaches the memory of another device's pool, if that device was
   not given access to the pool. */
static int reachable(uint64_t target, uint64_t source)
{
    Region *to = region_find(target), *from = region_find(source);
    return !to || !from || to->device == from->device || (!to->pool && !from->pool);
}

static CUresult check(uint64_t target, uint64_t source, uint64_t size, int checks)
{
    REQUIRE(within(target, size, checks & TARGET_DEVICE), INVALID_VALUE);
    REQUIRE(within(source, size, checks & SOURCE_DEVICE), INVALID_VALUE);
    REQUIRE(checks & PEERS || reachable(target, source), INVALID_VALUE);
    return SUCCESS;
}

static void move(uint64_t target, uint64_t source, uint64_t size)
{
    memmove(arena_host(target), arena_host(source), size);
}

static CUresult copy_now(uint64_t target, uint64_t source, uint64_t size, int checks)
{
    Stream *legacy;
    LOCKED;
    CHECK(stream_resolve(NULL, &legacy));
    CHECK(capture_legacy(legacy));
    if (!size)
        return SUCCESS;
    CHECK(check(target, source, size, checks));
    move(target, source, size);
    return SUCCESS;
}

static CUresult replay_copy(Node *node, Stream *stream)
{
    (void)stream;
    move(node->words[0], node->words[1], node->words[2]);
    return SUCCESS;
}

static CUresult copy_async(uint64_t target, uint64_t source, uint64_t size, int checks, CUstream handle)
{
    Stream *stream;
    Node *node;
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    CHECK(capture_legacy(stream));
    if (!size)
        return SUCCESS;
    CHECK(check(target, source, size, checks));
    CHECK(capture_node(stream, NODE_COPY, &node));
    if (!node) {
        next_sequence();
        move(target, source, size);
        return SUCCESS;
    }
    node->replay = replay_copy;
    node->words[0] = target;
    node->words[1] = source;
    node->words[2] = size;
    return SUCCESS;
}

EXPORT CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t size)
{
    ENTER(cuMemcpy);
    return copy_now(target, source, size, ANY);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
    ENTER(cuMemcpyAsync);
    return copy_async(target, source, size, ANY, stream);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t size)
{
    ENTER(cuMemcpyHtoD_v2);
    return copy_now(target, (uintptr_t)source, size, TARGET_DEVICE);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t size)
{
    ENTER(cuMemcpyDtoH_v2);
    return copy_now((uintptr_t)target, source, size, SOURCE_DEVICE);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t size)
{
    ENTER(cuMemcpyDtoD_v2);
    return copy_now(target, source, size, TARGET_DEVICE | SOURCE_DEVICE);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t size, CUstream stream)
{
    ENTER(cuMemcpyHtoDAsync_v2);
    return copy_async(target, (uintptr_t)source, size, TARGET_DEVICE, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoHAsync_v2);
    return copy_async((uintptr_t)target, source, size, SOURCE_DEVICE, stream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream)
{
    ENTER(cuMemcpyDtoDAsync_v2);
    return copy_async(target, source, size, TARGET_DEVICE | SOURCE_DEVICE, stream);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t size)
{
    ENTER(cuMemcpyPeer);
    REQUIRE(handle_is(to, CONTEXT) && handle_is(from, CONTEXT), INVALID_CONTEXT);
    return copy_now(target, source, size, TARGET_DEVICE | SOURCE_DEVICE | PEERS);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t size,
                                  CUstream stream)
{
    ENTER(cuMemcpyPeerAsync);
    REQUIRE(handle_is(to, CONTEXT) && handle_is(from, CONTEXT), INVALID_CONTEXT);
    return copy_async(target, source, size, TARGET_DEVICE | SOURCE_DEVICE | PEERS, stream);
}

/* ---- strided ---- */

static CUresult side_base(int type, const void *host, CUdeviceptr device, uint64_t *base)
{
    REQUIRE(type == MEMORY_HOST || type == MEMORY_DEVICE || type == MEMORY_UNIFIED, INVALID_VALUE);
    *base = type == MEMORY_HOST ? (uintptr_t)host : device;
    return SUCCESS;
}

static CUresult rows_3d(const Copy3D *copy, CUstream handle, int async)
{
    const Side3D *from = &copy->source, *to = &copy->target;
    uint64_t source, target;
    REQUIRE(copy->width <= from->pitch || !from->pitch, INVALID_VALUE);
    REQUIRE(copy->width <= to->pitch || !to->pitch, INVALID_VALUE);
    CHECK(side_base(from->type, from->host, from->device, &source));
    CHECK(side_base(to->type, to->host, to->device, &target));
    int checks = (from->type == MEMORY_DEVICE ? SOURCE_DEVICE : 0) | (to->type == MEMORY_DEVICE ? TARGET_DEVICE : 0);
    size_t from_pitch = from->pitch ? from->pitch : copy->width, to_pitch = to->pitch ? to->pitch : copy->width;
    size_t from_height = from->height ? from->height : copy->height, to_height = to->height ? to->height : copy->height;
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++) {
            uint64_t a = target + ((to->z + z) * to_height + to->y + y) * to_pitch + to->x;
            uint64_t b = source + ((from->z + z) * from_height + from->y + y) * from_pitch + from->x;
            CHECK(async ? copy_async(a, b, copy->width, checks, handle) : copy_now(a, b, copy->width, checks));
        }
    return SUCCESS;
}

static void widen(const Side2D *flat, Side3D *side)
{
    side->x = flat->x;
    side->y = flat->y;
    side->type = flat->type;
    side->host = flat->host;
    side->device = flat->device;
    side->pitch = flat->pitch;
}

static CUresult rows_2d(const Copy2D *flat, CUstream handle, int async)
{
    Copy3D copy = {0};
    REQUIRE(flat, INVALID_VALUE);
    widen(&flat->source, &copy.source);
    widen(&flat->target, &copy.target);
    copy.width = flat->width;
    copy.height = flat->height;
    copy.depth = 1;
    return rows_3d(&copy, handle, async);
}

EXPORT CUresult cuMemcpy2D_v2(const Copy2D *copy)
{
    ENTER(cuMemcpy2D_v2);
    return rows_2d(copy, NULL, 0);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const Copy2D *copy)
{
    ENTER(cuMemcpy2DUnaligned_v2);
    return rows_2d(copy, NULL, 0);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const Copy2D *copy, CUstream stream)
{
    ENTER(cuMemcpy2DAsync_v2);
    return rows_2d(copy, stream, 1);
}

EXPORT CUresult cuMemcpy3D_v2(const Copy3D *copy)
{
    ENTER(cuMemcpy3D_v2);
    REQUIRE(copy, INVALID_VALUE);
    return rows_3d(copy, NULL, 0);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const Copy3D *copy, CUstream stream)
{
    ENTER(cuMemcpy3DAsync_v2);
    REQUIRE(copy, INVALID_VALUE);
    return rows_3d(copy, stream, 1);
}

EXPORT CUresult cuMemcpy3DPeer(const Copy3D *copy)
{
    ENTER(cuMemcpy3DPeer);
    REQUIRE(copy, INVALID_VALUE);
    return rows_3d(copy, NULL, 0);
}

EXPORT CUresult cuMemcpy3DPeerAsync(const Copy3D *copy, CUstream stream)
{
    ENTER(cuMemcpy3DPeerAsync);
    REQUIRE(copy, INVALID_VALUE);
    return rows_3d(copy, stream, 1);
}
