/* The table from the names that callers ask for to the functions here. */
#include "state.h"

#include <string.h>

#define NAME(base, version, symbol) extern CUresult symbol();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "names.def"
#pragma GCC diagnostic pop
#undef NAME

static const struct {
    const char *base, *symbol;
    int version;
    void *function;
} table[CALL_COUNT] = {
#define NAME(base, version, symbol) {#base, #symbol, version, (void *)symbol},
#include "names.def"
#undef NAME
};

const char *call_symbol(enum Call call)
{
    return table[call].symbol;
}

void *call_function(enum Call call)
{
    return table[call].function;
}

EXPORT int standin_call_number(const char *name)
{
    int newest = -1;
    for (int call = 0; call < CALL_COUNT; call++) {
        if (!strcmp(table[call].symbol, name))
            return call;
        if (!strcmp(table[call].base, name) && (newest < 0 || table[call].version > table[newest].version))
            newest = call;
    }
    return newest;
}

EXPORT const char *standin_call_name(int call)
{
    return call >= 0 && call < CALL_COUNT ? table[call].symbol : NULL;
}

/* The newest row that the caller knows and that the reported driver version has. */
static int find(const char *name, int version)
{
    int best = -1;
    if (version > settings.version)
        return -1;
    for (int call = 0; call < CALL_COUNT; call++)
        if (!strcmp(table[call].base, name) && table[call].version <= version
            && (best < 0 || table[call].version > table[best].version))
            best = call;
    return best;
}

/* The flavour of flag 2 takes NULL as the per-thread stream. */
static void *flavoured(int call, uint64_t flags)
{
    enum { PER_THREAD = 2 };
    if (call < 0)
        return NULL;
    return flags & PER_THREAD ? per_thread_flavour((enum Call)call) : table[call].function;
}

enum { FOUND = 0, NO_SUCH_NAME = 1, NEEDS_NEWER = 2 };

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    ENTER(cuGetProcAddress_v2);
    REQUIRE(name && function, INVALID_VALUE);
    int call = find(name, version);
    *function = flavoured(call, flags);
    if (status)
        *status = call < 0 ? NO_SUCH_NAME : FOUND;
    return call < 0 ? NOT_FOUND : SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    ENTER(cuGetProcAddress);
    REQUIRE(name && function, INVALID_VALUE);
    int call = find(name, version);
    *function = flavoured(call, flags);
    return call < 0 ? NOT_FOUND : SUCCESS;
}

/* nvJitLink asks for private tables and copes without. */
EXPORT CUresult cuGetExportTable(const void **out, const Uuid *id)
{
    (void)id;
    ENTER(cuGetExportTable);
    if (out)
        *out = NULL;
    return NOT_FOUND;
}
