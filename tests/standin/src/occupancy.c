/* How many blocks fit on a processor, and descriptions of tensors for the copy engine. */
#include "state.h"

#include <string.h>

enum { THREADS_A_PROCESSOR = 2048, BLOCKS_A_PROCESSOR = 32, REGISTERS_A_PROCESSOR = 65536 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int occupancy_blocks(const Kernel *kernel, int block, size_t dynamic)
{
    int warps = (block + 31) / 32, blocks = smaller(BLOCKS_A_PROCESSOR, THREADS_A_PROCESSOR / (warps * 32));
    int registers = (kernel->registers + 7) / 8 * 8 * 32 * warps;
    size_t shared = (size_t)kernel->shared + dynamic;
    if (registers)
        blocks = smaller(blocks, REGISTERS_A_PROCESSOR / registers);
    if (shared)
        blocks = smaller(blocks, (int)((size_t)device_attribute(81) / (shared + 1024)));
    return blocks;
}

static CUresult resolve(CUfunction handle, const Kernel **kernel)
{
    Context *context;
    Function *function;
    CHECK(context_current(&context));
    CHECK(function_resolve(handle, context, &function));
    *kernel = function->kernel;
    return SUCCESS;
}

static CUresult active_blocks(int *blocks, CUfunction handle, int block, size_t dynamic)
{
    const Kernel *kernel;
    CHECK(resolve(handle, &kernel));
    REQUIRE(blocks && block > 0, INVALID_VALUE);
    *blocks = block > kernel->max_threads ? 0 : occupancy_blocks(kernel, block, dynamic);
    return SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t dynamic)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    return active_blocks(blocks, function, block, dynamic);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block,
                                                                     size_t dynamic, unsigned flags)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    REQUIRE(flags <= 1, INVALID_VALUE);
    return active_blocks(blocks, function, block, dynamic);
}

/* The block with the most threads on a processor; of equal ones the largest. */
static CUresult best_block(int *grid, int *block, CUfunction handle, CUblockToShared shared_of, size_t dynamic,
                           int limit)
{
    const Kernel *kernel;
    int best = 0, best_threads = 0;
    CHECK(resolve(handle, &kernel));
    REQUIRE(grid && block, INVALID_VALUE);
    for (int size = smaller(limit ? limit : kernel->max_threads, kernel->max_threads); size > 0;
         size = (size - 1) / 32 * 32) {
        int threads = size * occupancy_blocks(kernel, size, shared_of ? shared_of(size) : dynamic);
        if (threads > best_threads) {
            best = size;
            best_threads = threads;
        }
    }
    *block = best;
    *grid = best ? best_threads / best * device_attribute(16) : 0;
    return SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUblockToShared shared_of,
                                                 size_t dynamic, int limit)
{
    ENTER(cuOccupancyMaxPotentialBlockSize);
    return best_block(grid, block, function, shared_of, dynamic, limit);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                          CUblockToShared shared_of, size_t dynamic, int limit,
                                                          unsigned flags)
{
    ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
    REQUIRE(flags <= 1, INVALID_VALUE);
    return best_block(grid, block, function, shared_of, dynamic, limit);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int block)
{
    const Kernel *kernel;
    ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
    CHECK(resolve(handle, &kernel));
    REQUIRE(bytes && blocks > 0 && block > 0, INVALID_VALUE);
    int each = device_attribute(81) / blocks - 1024 - kernel->shared;
    *bytes = each > 0 ? (size_t)each : 0;
    return SUCCESS;
}

/* ---- tensor maps: 128 opaque bytes; ours say address and rank in the open ---- */

enum { MAP_BYTES = 128, MAP_ALIGNMENT = 64, MAX_RANK = 5 };

EXPORT CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                       const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                       int interleave, int swizzle, int promotion, int fill)
{
    (void)type, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    ENTER(cuTensorMapEncodeTiled);
    REQUIRE(map && (uintptr_t)map % MAP_ALIGNMENT == 0 && rank >= 1 && rank <= MAX_RANK, INVALID_VALUE);
    REQUIRE(extents && box && steps && (strides || rank == 1) && (uintptr_t)address % 16 == 0, INVALID_VALUE);
    memset(map, 0, MAP_BYTES);
    memcpy(map, &address, sizeof address);
    memcpy((char *)map + 8, &rank, sizeof rank);
    return SUCCESS;
}

EXPORT CUresult cuTensorMapReplaceAddress(void *map, void *address)
{
    ENTER(cuTensorMapReplaceAddress);
    REQUIRE(map && (uintptr_t)address % 16 == 0, INVALID_VALUE);
    memcpy(map, &address, sizeof address);
    return SUCCESS;
}
