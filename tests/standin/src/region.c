/* The regions of memory that the driver knows, in address order. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

static Region **regions;
static size_t count, room;
static uint64_t last_id;

size_t region_count(void)
{
    return count;
}

Region *region_at(size_t index)
{
    return regions[index];
}

size_t region_after(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (regions[middle]->base + regions[middle]->size > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

Region *region_find(uint64_t address)
{
    size_t index = region_after(address);
    return index < count && regions[index]->base <= address ? regions[index] : NULL;
}

Region *region_add(uint64_t base, uint64_t size, enum RegionKind kind, int device)
{
    size_t index = region_after(base);
    Region *region = calloc(1, sizeof *region);
    if (count == room) {
        room = room ? 2 * room : 64;
        regions = realloc(regions, room * sizeof *regions);
    }
    memmove(regions + index + 1, regions + index, (count - index) * sizeof *regions);
    regions[index] = region;
    count++;
    region->base = base;
    region->size = size;
    region->kind = kind;
    region->device = device;
    region->id = ++last_id;
    return region;
}

void region_remove(Region *region)
{
    size_t index = region_after(region->base);
    memmove(regions + index, regions + index + 1, (count - index - 1) * sizeof *regions);
    count--;
    free(region);
}
