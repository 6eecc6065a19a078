/* Fills of device memory with 1, 2 and 4 byte items, flat and in rows. */
#include "state.h"

#include <string.h>

static void fill(uint64_t address, size_t pitch, unsigned value, unsigned item, size_t width, size_t height)
{
    for (size_t row = 0; row < height; row++) {
        char *at = arena_host(address + row * pitch);
        if (item == 1)
            memset(at, (int)value, width);
        for (size_t index = 0; item > 1 && index < width; index++)
            memcpy(at + index * item, &value, item);
    }
}

static CUresult replay_set(Node *node, Stream *stream)
{
    const uint64_t *words = node->words;
    (void)stream;
    fill(words[0], words[1], (unsigned)words[2], (unsigned)words[3], words[4], words[5]);
    return SUCCESS;
}

static CUresult set(uint64_t address, size_t pitch, unsigned value, unsigned item, size_t width, size_t height,
                    CUstream handle)
{
    Stream *stream;
    Node *node;
    LOCKED;
    CHECK(stream_resolve(handle, &stream));
    CHECK(capture_legacy(stream));
    if (!width || !height)
        return SUCCESS;
    Region *region = region_find(address);
    uint64_t end = address + (height - 1) * pitch + width * item;
    REQUIRE(region && end <= region->base + region->size && address % item == 0, INVALID_VALUE);
    CHECK(capture_node(stream, NODE_SET, &node));
    if (!node) {
        next_sequence();
        fill(address, pitch, value, item, width, height);
        return SUCCESS;
    }
    uint64_t words[6] = {address, pitch, value, item, width, height};
    memcpy(node->words, words, sizeof words);
    node->replay = replay_set;
    return SUCCESS;
}

#define FLAT(symbol, type)                                                       \
    EXPORT CUresult symbol(CUdeviceptr address, type value, size_t count)        \
    {                                                                            \
        ENTER(symbol);                                                           \
        return set(address, 0, value, sizeof(type), count, 1, NULL);          \
    }
#define FLAT_ASYNC(symbol, type)                                                          \
    EXPORT CUresult symbol(CUdeviceptr address, type value, size_t count, CUstream stream) \
    {                                                                                     \
        ENTER(symbol);                                                                    \
        return set(address, 0, value, sizeof(type), count, 1, stream);                 \
    }
#define ROWS(symbol, type)                                                                                 \
    EXPORT CUresult symbol(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height)     \
    {                                                                                                      \
        ENTER(symbol);                                                                                     \
        return set(address, pitch, value, sizeof(type), width, height, NULL);                           \
    }
#define ROWS_ASYNC(symbol, type)                                                                           \
    EXPORT CUresult symbol(CUdeviceptr address, size_t pitch, type value, size_t width, size_t height,     \
                           CUstream stream)                                                                \
    {                                                                                                      \
        ENTER(symbol);                                                                                     \
        return set(address, pitch, value, sizeof(type), width, height, stream);                         \
    }

FLAT(cuMemsetD8_v2, uint8_t)
FLAT(cuMemsetD16_v2, uint16_t)
FLAT(cuMemsetD32_v2, uint32_t)
FLAT_ASYNC(cuMemsetD8Async, uint8_t)
FLAT_ASYNC(cuMemsetD16Async, uint16_t)
FLAT_ASYNC(cuMemsetD32Async, uint32_t)
ROWS(cuMemsetD2D8_v2, uint8_t)
ROWS(cuMemsetD2D16_v2, uint16_t)
ROWS(cuMemsetD2D32_v2, uint32_t)
ROWS_ASYNC(cuMemsetD2D8Async, uint8_t)
ROWS_ASYNC(cuMemsetD2D16Async, uint16_t)
ROWS_ASYNC(cuMemsetD2D32Async, uint32_t)
