/* Memory pools, allocation in stream order (which here is at once), IPC handles, advice. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

static Pool *defaults[MAX_DEVICES], *chosen[MAX_DEVICES], *host_default;

enum { USED_CURRENT = 7, USED_HIGH = 8, RESERVED_CURRENT = 5, RESERVED_HIGH = 6, RELEASE_THRESHOLD = 4 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2 };

static Pool *pool_new(int device, int location)
{
    Pool *pool = handle_new(POOL, sizeof *pool);
    pool->device = device;
    pool->location = location;
    for (int attribute = 1; attribute <= 3; attribute++)
        pool->attributes[attribute] = 1; /* the reuse switches start on */
    return pool;
}

Pool *pool_default(CUdevice device)
{
    LOCKED;
    if (!defaults[device])
        defaults[device] = chosen[device] = pool_new(device, LOCATION_DEVICE);
    return defaults[device];
}

static Pool *pool_chosen(CUdevice device)
{
    pool_default(device);
    return chosen[device];
}

static CUresult device_pool(CUmemoryPool *out, CUdevice device, Pool *(*which)(CUdevice))
{
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    *out = which(device);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    ENTER(cuDeviceGetMemPool);
    return device_pool(out, device, pool_chosen);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    ENTER(cuDeviceGetDefaultMemPool);
    return device_pool(out, device, pool_default);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER(cuDeviceSetMemPool);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    REQUIRE(handle_is(pool, POOL), INVALID_VALUE);
    pool_default(device);
    chosen[device] = pool;
    return SUCCESS;
}

static CUresult located_pool(CUmemoryPool *out, const MemoryLocation *location, Pool *(*which)(CUdevice))
{
    REQUIRE(out && location, INVALID_VALUE);
    if (location->type == LOCATION_DEVICE)
        return device_pool(out, location->id, which);
    LOCKED;
    if (!host_default)
        host_default = pool_new(0, LOCATION_HOST);
    *out = host_default;
    return SUCCESS;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const MemoryLocation *location, int type)
{
    (void)type;
    ENTER(cuMemGetDefaultMemPool);
    return located_pool(out, location, pool_default);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, const MemoryLocation *location, int type)
{
    (void)type;
    ENTER(cuMemGetMemPool);
    return located_pool(out, location, pool_chosen);
}

EXPORT CUresult cuMemSetMemPool(const MemoryLocation *location, int type, CUmemoryPool pool)
{
    (void)type;
    ENTER(cuMemSetMemPool);
    REQUIRE(location && location->type == LOCATION_DEVICE && device_valid(location->id), INVALID_VALUE);
    REQUIRE(handle_is(pool, POOL), INVALID_VALUE);
    pool_default(location->id);
    chosen[location->id] = pool;
    return SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const PoolProperties *properties)
{
    ENTER(cuMemPoolCreate);
    REQUIRE(out && properties, INVALID_VALUE);
    int on_device = properties->location.type == LOCATION_DEVICE;
    REQUIRE(!on_device || device_valid(properties->location.id), INVALID_DEVICE);
    *out = pool_new(on_device ? properties->location.id : 0, properties->location.type);
    return SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER(cuMemPoolDestroy);
    REQUIRE(handle_is(pool, POOL), INVALID_VALUE);
    LOCKED;
    pool->handle.alive = 0; /* the slot stays, so regions may point to it still */
    for (int device = 0; device < MAX_DEVICES; device++)
        if (chosen[device] == pool)
            chosen[device] = defaults[device];
    return SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER(cuMemPoolGetAttribute);
    REQUIRE(handle_is(pool, POOL) && value && attribute >= 1 && attribute < 16, INVALID_VALUE);
    LOCKED;
    CHECK(capture_unsafe());
    if (attribute <= 3)
        *(int *)value = (int)pool->attributes[attribute];
    else if (attribute == USED_CURRENT || attribute == RESERVED_CURRENT)
        *(uint64_t *)value = pool->used;
    else if (attribute == USED_HIGH || attribute == RESERVED_HIGH)
        *(uint64_t *)value = pool->high;
    else
        *(uint64_t *)value = pool->attributes[attribute];
    return SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, const void *value)
{
    ENTER(cuMemPoolSetAttribute);
    REQUIRE(handle_is(pool, POOL) && value && attribute >= 1 && attribute < 16, INVALID_VALUE);
    LOCKED;
    CHECK(capture_unsafe());
    if (attribute == USED_HIGH || attribute == RESERVED_HIGH)
        pool->high = pool->used;
    else
        pool->attributes[attribute] = attribute <= 3 ? (uint64_t)*(const int *)value : *(const uint64_t *)value;
    return SUCCESS;
}

EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, const MemoryLocation *location)
{
    ENTER(cuMemPoolGetAccess);
    REQUIRE(flags && handle_is(pool, POOL) && location, INVALID_VALUE);
    *flags = 3;
    return SUCCESS;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const AccessDescription *access, size_t count)
{
    (void)count;
    ENTER(cuMemPoolSetAccess);
    REQUIRE(handle_is(pool, POOL) && access, INVALID_VALUE);
    return SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    ENTER(cuMemPoolTrimTo);
    REQUIRE(handle_is(pool, POOL), INVALID_VALUE);
    return SUCCESS;
}

/* ---- in stream order: legal within a capture ---- */

static CUresult allocate_async(CUdeviceptr *out, size_t size, Pool *pool, CUstream handle)
{
    Stream *stream;
    Region *region;
    REQUIRE(out, INVALID_VALUE);
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    CHECK(capture_legacy(stream));
    pool = pool ? pool : pool_chosen(stream->context->device);
    CHECK(memory_allocate(size ? size : 1, pool->device, stream->context, &region));
    region->pool = pool;
    pool->used += region->size;
    pool->high = pool->used > pool->high ? pool->used : pool->high;
    *out = region->base;
    return SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    ENTER(cuMemAllocAsync);
    return allocate_async(out, size, NULL, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
    ENTER(cuMemAllocFromPoolAsync);
    REQUIRE(handle_is(pool, POOL), INVALID_VALUE);
    return allocate_async(out, size, pool, stream);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    Stream *stream;
    ENTER(cuMemFreeAsync);
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    CHECK(capture_legacy(stream));
    if (!stream->capture)
        CHECK(capture_unsafe()); /* an H200 says 900, and the capture is spoilt */
    return memory_free(address);
}

/* ---- between processes: the handle says where the memory is, and opens in this process only ---- */

EXPORT CUresult cuIpcGetMemHandle(IpcHandle *out, CUdeviceptr address)
{
    ENTER(cuIpcGetMemHandle);
    LOCKED;
    Region *region = region_find(address);
    REQUIRE(out && region && region->kind == REGION_DEVICE && !region->pool, INVALID_VALUE);
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &region->base, sizeof region->base);
    return SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, IpcHandle handle, unsigned flags)
{
    (void)flags;
    ENTER(cuIpcOpenMemHandle_v2);
    uint64_t base;
    memcpy(&base, handle.bytes, sizeof base);
    LOCKED;
    REQUIRE(out && region_find(base), INVALID_VALUE);
    *out = base;
    return SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(cuIpcCloseMemHandle);
    LOCKED;
    REQUIRE(region_find(address), INVALID_VALUE);
    return SUCCESS;
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, MemoryLocation location)
{
    (void)size, (void)advice, (void)location;
    ENTER(cuMemAdvise_v2);
    LOCKED;
    Region *region = region_find(address);
    REQUIRE(region && region->kind == REGION_MANAGED, INVALID_VALUE);
    return SUCCESS;
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, MemoryLocation location, unsigned flags,
                                      CUstream handle)
{
    Stream *stream;
    (void)size, (void)location, (void)flags;
    ENTER(cuMemPrefetchAsync_v2);
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    Region *region = region_find(address);
    REQUIRE(region && region->kind == REGION_MANAGED, INVALID_VALUE);
    return SUCCESS;
}
