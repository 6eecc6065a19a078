/* What the driver says about a pointer. */
#include "state.h"

#include <string.h>

enum {
    OF_CONTEXT = 1, OF_TYPE, OF_DEVICE_POINTER, OF_HOST_POINTER, OF_P2P, OF_SYNC, OF_BUFFER_ID, OF_MANAGED,
    OF_ORDINAL, OF_IPC, OF_RANGE_START, OF_RANGE_SIZE, OF_MAPPED, OF_HANDLE_TYPES, OF_RDMA, OF_ACCESS, OF_POOL,
};

static int host_side(const Region *region)
{
    return region->kind == REGION_HOST || region->kind == REGION_REGISTERED;
}

static uint64_t attribute_of(const Region *region, int attribute, CUdeviceptr pointer)
{
    switch (attribute) {
    case OF_CONTEXT: return (uintptr_t)(region->context ? region->context : context_primary(region->device));
    case OF_TYPE: return host_side(region) ? MEMORY_HOST : MEMORY_DEVICE;
    case OF_DEVICE_POINTER: return pointer;
    case OF_HOST_POINTER: return region->kind == REGION_DEVICE ? 0 : pointer;
    case OF_BUFFER_ID: return region->id;
    case OF_MANAGED: return region->kind == REGION_MANAGED;
    case OF_ORDINAL: return (uint64_t)region->device;
    case OF_IPC: return region->kind == REGION_DEVICE && !region->pool;
    case OF_RANGE_START: return region->base;
    case OF_RANGE_SIZE: return region->size;
    case OF_MAPPED: return 1;
    case OF_ACCESS: return 3;
    case OF_POOL: return (uintptr_t)region->pool;
    default: return 0;
    }
}

static size_t attribute_size(int attribute)
{
    switch (attribute) {
    case OF_TYPE: case OF_ORDINAL: case OF_SYNC: case OF_ACCESS:
        return 4;
    case OF_MANAGED: case OF_IPC: case OF_MAPPED: case OF_RDMA:
        return 1;
    default:
        return 8;
    }
}

static CUresult get(void *data, int attribute, CUdeviceptr pointer, const Region *region)
{
    REQUIRE(data && attribute >= OF_CONTEXT && attribute <= OF_POOL, INVALID_VALUE);
    uint64_t value = attribute_of(region, attribute, pointer);
    REQUIRE(attribute != OF_HOST_POINTER || value, INVALID_VALUE);
    memcpy(data, &value, attribute_size(attribute)); /* little-endian: the low bytes come first */
    return SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    ENTER(cuPointerGetAttribute);
    LOCKED;
    const Region *region = region_find(pointer);
    REQUIRE(region, INVALID_VALUE);
    return get(data, attribute, pointer, region);
}

/* Unlike the single query, this one succeeds for unknown pointers and answers with zeros. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr pointer)
{
    ENTER(cuPointerGetAttributes);
    REQUIRE(attributes && data, INVALID_VALUE);
    LOCKED;
    const Region *region = region_find(pointer);
    for (unsigned index = 0; index < count; index++) {
        int attribute = attributes[index];
        REQUIRE(data[index] && attribute >= OF_CONTEXT && attribute <= OF_POOL, INVALID_VALUE);
        memset(data[index], 0, attribute_size(attribute));
        if (region)
            get(data[index], attribute, pointer, region);
        else if (attribute == OF_ORDINAL)
            *(int *)data[index] = -2; /* no device */
    }
    return SUCCESS;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
    ENTER(cuPointerSetAttribute);
    REQUIRE(value && attribute == OF_SYNC, INVALID_VALUE);
    LOCKED;
    REQUIRE(region_find(pointer), INVALID_VALUE);
    return SUCCESS;
}
