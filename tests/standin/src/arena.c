/* Where device memory lives: one sparse file in memory, mapped twice. Callers hold addresses of
 * the first mapping, which the guard makes inaccessible; the driver reads and writes the second. */
#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint64_t LEAST_RANGE = (uint64_t)1 << 30;
static uint64_t range = (uint64_t)64 << 30; /* halved until it can be mapped: under valgrind it cannot */
static const uint64_t WINDOW = (uint64_t)256 << 20;
static const uint64_t ALIGNMENT = 512;
static const uint64_t LARGE = 65536; /* freed blocks from here on give their pages back */
static const uint64_t PAGE = 4096;
static char *seen, *shadow;
static int file = -1;
static uint64_t cursor;

static void *map_file(void)
{
    void *address = mmap(NULL, range, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return address == MAP_FAILED ? NULL : address;
}

static int open_arena(void)
{
    if (seen)
        return 1;
    file = (int)syscall(SYS_memfd_create, "standin", 1u);
    if (file < 0 || ftruncate(file, (off_t)range))
        return 0;
    for (; range >= LEAST_RANGE; range /= 2) {
        void *first = map_file(), *second = map_file();
        if (first && second) {
            shadow = second;
            seen = first;
            return 1;
        }
        if (first)
            munmap(first, range);
    }
    return 0;
}

int arena_guard(int on)
{
    LOCKED;
    return open_arena() && !mprotect(seen, range, on ? PROT_NONE : PROT_READ | PROT_WRITE);
}

int arena_contains(uint64_t address)
{
    return seen && address - (uint64_t)(uintptr_t)seen < range;
}

void *arena_host(uint64_t address)
{
    if (!arena_contains(address))
        return (void *)(uintptr_t)address;
    return shadow + (address - (uint64_t)(uintptr_t)seen);
}

/* The first gap from `from` on (an offset), before `limit`; range where there is none. */
static uint64_t gap(uint64_t from, uint64_t limit, uint64_t size)
{
    uint64_t base = (uint64_t)(uintptr_t)seen;
    size_t index = region_after(base + from);
    for (; index < region_count(); index++) {
        Region *region = region_at(index);
        if (!arena_contains(region->base) || region->base - base >= from + size)
            break;
        from = (region->base + region->size - base + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    }
    return from + size <= limit ? from : range;
}

/* Next fit: an address just freed is not soon used again, so stale pointers show. */
CUresult arena_allocate(uint64_t size, uint64_t *base)
{
    size = (size + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    REQUIRE(open_arena() && size && size <= range, OUT_OF_MEMORY);
    uint64_t offset = gap(cursor > WINDOW ? 0 : cursor, range, size);
    if (offset == range)
        offset = gap(0, range, size);
    REQUIRE(offset != range, OUT_OF_MEMORY);
    cursor = offset + size;
    *base = (uint64_t)(uintptr_t)seen + offset;
    return SUCCESS;
}

void arena_free(uint64_t base, uint64_t size)
{
    uint64_t first = (base + PAGE - 1) & ~(PAGE - 1), last = (base + size) & ~(PAGE - 1);
    if (size >= LARGE)
        madvise(arena_host(first), last - first, MADV_REMOVE);
}
