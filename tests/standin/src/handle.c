/* Handles: fixed slots in one reserved range. A slot is never used twice, so that a handle of a
 * destroyed object, or a number that never was a handle, is told without touching its memory. */
#include "state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOT = 512 };
static const size_t RANGE = (size_t)1 << 32;
static char *slots;
static size_t used;

void *handle_new(enum Kind kind, size_t size)
{
    LOCKED;
    if (!slots) {
        slots = mmap(NULL, RANGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (slots == MAP_FAILED)
            abort();
        used = SLOT;
    }
    if (size > SLOT || used + SLOT > RANGE)
        abort();
    Handle *handle = (Handle *)(slots + used);
    used += SLOT;
    handle->kind = kind;
    handle->alive = 1;
    return handle;
}

int handle_was(const void *handle, enum Kind kind)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)slots;
    return slots && offset < used && offset % SLOT == 0 && ((const Handle *)handle)->kind == kind;
}

int handle_is(const void *handle, enum Kind kind)
{
    return handle_was(handle, kind) && ((const Handle *)handle)->alive;
}
