/* Allocation: device, managed and host memory, and host memory that is registered. */
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t used[MAX_DEVICES];

uint64_t memory_used(int device)
{
    return used[device];
}

CUresult memory_allocate(uint64_t size, int device, Context *context, Region **region)
{
    uint64_t base;
    LOCKED;
    REQUIRE(size, INVALID_VALUE);
    REQUIRE(size <= settings.memory && used[device] <= settings.memory - size, OUT_OF_MEMORY);
    CHECK(arena_allocate(size, &base));
    *region = region_add(base, size, REGION_DEVICE, device);
    (*region)->context = context;
    (*region)->context_id = context ? context->id : 0;
    used[device] += size;
    return SUCCESS;
}

/* Host and managed memory stays readable by the host, guard or none. */
static CUresult map_host(uint64_t size, enum RegionKind kind, unsigned flags, Context *context, uint64_t *base)
{
    REQUIRE(size, INVALID_VALUE);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, OUT_OF_MEMORY);
    Region *region = region_add((uintptr_t)memory, size, kind, context->device);
    region->flags = flags;
    region->context = context;
    region->context_id = context->id;
    *base = region->base;
    return SUCCESS;
}

static void discard(Region *region)
{
    if (region->kind == REGION_DEVICE) {
        arena_free(region->base, region->size);
        used[region->device] -= region->size;
    } else if (region->kind != REGION_REGISTERED) {
        munmap((void *)(uintptr_t)region->base, region->size);
    }
    if (region->pool)
        region->pool->used -= region->size;
    region_remove(region);
}

CUresult memory_free(uint64_t address)
{
    Region *region = region_find(address);
    REQUIRE(region && region->base == address, INVALID_VALUE);
    REQUIRE(region->kind == REGION_DEVICE || region->kind == REGION_MANAGED, INVALID_VALUE);
    discard(region);
    return SUCCESS;
}

void memory_release_context(const Context *context)
{
    for (size_t index = region_count(); index-- > 0;)
        if (region_at(index)->context == context)
            discard(region_at(index));
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    Context *context;
    ENTER(cuMemGetInfo_v2);
    CHECK(context_current(&context));
    LOCKED;
    if (available)
        *available = settings.memory - used[context->device];
    if (total)
        *total = settings.memory;
    return SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    Context *context;
    Region *region;
    ENTER(cuMemAlloc_v2);
    CHECK(context_current(&context));
    REQUIRE(out, INVALID_VALUE);
    CHECK(capture_unsafe());
    CHECK(memory_allocate(size, context->device, context, &region));
    *out = region->base;
    return SUCCESS;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned item)
{
    Context *context;
    Region *region;
    ENTER(cuMemAllocPitch_v2);
    CHECK(context_current(&context));
    REQUIRE(out && pitch && width && height && (item == 4 || item == 8 || item == 16), INVALID_VALUE);
    CHECK(capture_unsafe());
    size_t row = (width + 511) & ~(size_t)511;
    CHECK(memory_allocate(row * height, context->device, context, &region));
    *pitch = row;
    *out = region->base;
    return SUCCESS;
}

/* Works with no current context, as on hardware. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER(cuMemFree_v2);
    CHECK(capture_unsafe());
    if (!address)
        return SUCCESS;
    LOCKED;
    return memory_free(address);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags)
{
    Context *context;
    ENTER(cuMemAllocManaged);
    CHECK(context_current(&context));
    REQUIRE(out && (flags == 1 || flags == 2), INVALID_VALUE);
    CHECK(capture_unsafe());
    LOCKED;
    return map_host(size, REGION_MANAGED, flags, context, out);
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(cuMemGetAddressRange_v2);
    LOCKED;
    Region *region = region_find(address);
    REQUIRE(region, NOT_FOUND);
    if (base)
        *base = region->base;
    if (size)
        *size = region->size;
    return SUCCESS;
}

/* ---- host memory ---- */

static CUresult host_allocate(void **out, size_t size, unsigned flags)
{
    Context *context;
    uint64_t base;
    CHECK(context_current(&context));
    REQUIRE(out && flags < 8, INVALID_VALUE);
    CHECK(capture_unsafe());
    LOCKED;
    CHECK(map_host(size, REGION_HOST, flags, context, &base));
    *out = (void *)(uintptr_t)base;
    return SUCCESS;
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    ENTER(cuMemAllocHost_v2);
    return host_allocate(out, size, 0);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    ENTER(cuMemHostAlloc);
    return host_allocate(out, size, flags);
}

static CUresult host_region(const void *address, enum RegionKind kind, Region **region)
{
    *region = region_find((uintptr_t)address);
    REQUIRE(*region && (*region)->base == (uintptr_t)address && (*region)->kind == kind, INVALID_VALUE);
    return SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    Region *region;
    ENTER(cuMemFreeHost);
    CHECK(capture_unsafe());
    LOCKED;
    CHECK(host_region(address, REGION_HOST, &region));
    discard(region);
    return SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned flags)
{
    ENTER(cuMemHostGetDevicePointer_v2);
    REQUIRE(out && flags == 0, INVALID_VALUE);
    LOCKED;
    Region *region = region_find((uintptr_t)address);
    REQUIRE(region && (region->kind == REGION_HOST || region->kind == REGION_REGISTERED), INVALID_VALUE);
    *out = (uintptr_t)address; /* unified addressing: both sides use one address */
    return SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
    Region *region;
    ENTER(cuMemHostGetFlags);
    REQUIRE(flags, INVALID_VALUE);
    LOCKED;
    CHECK(host_region(address, REGION_HOST, &region));
    *flags = region->flags | HOST_MAPPED;
    return SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags)
{
    Context *context;
    ENTER(cuMemHostRegister_v2);
    CHECK(context_current(&context));
    REQUIRE(address && size && flags < 16, INVALID_VALUE);
    CHECK(capture_unsafe());
    LOCKED;
    size_t next = region_after((uintptr_t)address);
    REQUIRE(next == region_count() || region_at(next)->base >= (uintptr_t)address + size,
            HOST_MEMORY_ALREADY_REGISTERED);
    Region *region = region_add((uintptr_t)address, size, REGION_REGISTERED, context->device);
    region->flags = flags;
    region->context = context;
    region->context_id = context->id;
    return SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *address)
{
    Region *region;
    ENTER(cuMemHostUnregister);
    CHECK(capture_unsafe());
    LOCKED;
    REQUIRE(!host_region(address, REGION_REGISTERED, &region), HOST_MEMORY_NOT_REGISTERED);
    discard(region);
    return SUCCESS;
}

/* ---- for tests: memory that no context owns ---- */

EXPORT uint64_t standin_allocate(uint64_t size, int device)
{
    Region *region;
    LOCKED;
    return device_valid(device) && !memory_allocate(size, device, NULL, &region) ? region->base : 0;
}

EXPORT int standin_free(uint64_t address)
{
    LOCKED;
    return memory_free(address);
}

// DLPack's managed tensor, as far as a deleter reads it. `context` is the address of memory
// that goes with it, or 0; the tensor and its arrays are one block of malloc's.
typedef struct Managed {
    uint32_t major, minor;
    uint64_t context;
} Managed;

// In C, as torch lets go of tensors while an error is on its way, and after Python's end.
EXPORT void standin_delete(Managed *managed)
{
    if (managed->context)
        standin_free(managed->context);
    free(managed);
}

EXPORT void *standin_block(uint64_t size)
{
    return malloc(size);
}

EXPORT int standin_read(void *target, uint64_t address, uint64_t size)
{
    LOCKED;
    Region *region = region_find(address);
    if (!region || address + size > region->base + region->size)
        return INVALID_VALUE;
    memcpy(target, arena_host(address), size);
    return SUCCESS;
}

EXPORT int standin_write(uint64_t address, const void *source, uint64_t size)
{
    LOCKED;
    Region *region = region_find(address);
    if (!region || address + size > region->base + region->size)
        return INVALID_VALUE;
    memcpy(arena_host(address), source, size);
    return SUCCESS;
}

EXPORT int standin_guard(int on)
{
    return arena_guard(on);
}

EXPORT size_t standin_regions(void)
{
    LOCKED;
    return region_count();
}
