/* What tests ask about: counts of calls, injected faults, records of launches and orderings, and
 * the hook that runs within a launch. */
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t big = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static atomic_uint_fast64_t counts[CALL_COUNT];
static struct {
    int armed, error, after, times;
} faults[CALL_COUNT];
static atomic_int any_fault, initialized, forked, tracing;
static atomic_uint_fast64_t sequence;

void state_lock(void)
{
    pthread_mutex_lock(&big);
}

void state_unlock(void)
{
    pthread_mutex_unlock(&big);
}

uint64_t next_sequence(void)
{
    return atomic_fetch_add(&sequence, 1) + 1;
}

uint64_t now_sequence(void)
{
    return atomic_load(&sequence);
}

uint64_t now_nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t thread_number(void)
{
    static atomic_uint_fast64_t last;
    static _Thread_local uint64_t mine;
    if (!mine)
        mine = atomic_fetch_add(&last, 1) + 1;
    return mine;
}

/* ---- start of every call ---- */

static void child_after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    big = fresh; /* another thread of the parent may have held it */
    if (atomic_load(&initialized))
        atomic_store(&forked, 1);
}

void record_initialized(void)
{
    static int registered;
    if (!registered)
        pthread_atfork(NULL, NULL, child_after_fork);
    registered = 1;
    atomic_store(&initialized, 1);
}

static CUresult take_fault(enum Call call)
{
    LOCKED;
    if (!faults[call].armed)
        return SUCCESS;
    if (faults[call].after > 0) {
        faults[call].after--;
        return SUCCESS;
    }
    if (faults[call].times > 0 && --faults[call].times == 0) {
        faults[call].armed = 0;
        atomic_fetch_sub(&any_fault, 1);
    }
    return faults[call].error;
}

static int works_before_init(enum Call call)
{
    switch (call) {
    case CALL_cuInit: case CALL_cuDriverGetVersion: case CALL_cuGetProcAddress: case CALL_cuGetProcAddress_v2:
    case CALL_cuGetExportTable: case CALL_cuGetErrorName: case CALL_cuGetErrorString:
        return 1;
    default:
        return 0;
    }
}

enum { TRACE_ROOM = 4096 };
static uint16_t trace[TRACE_ROOM];
static atomic_uint trace_count;

static CUresult enter_slowly(enum Call call)
{
    if (atomic_load(&tracing) && atomic_load(&trace_count) < TRACE_ROOM) {
        unsigned at = atomic_fetch_add(&trace_count, 1);
        if (at < TRACE_ROOM)
            trace[at] = (uint16_t)call;
    }
    return atomic_load(&any_fault) ? take_fault(call) : SUCCESS;
}

static atomic_uint_fast64_t change;

uint64_t changes(void)
{
    return atomic_load_explicit(&change, memory_order_relaxed);
}

/* Whether a call leaves contexts, streams, functions and captures as they are. */
static int is_passive(enum Call call)
{
    return call == CALL_cuLaunchKernel || call == CALL_cuLaunchKernelEx || call == CALL_cuCtxGetId
        || call == CALL_cuCtxGetCurrent || call == CALL_cuCtxGetDevice;
}

CUresult call_enter(enum Call call)
{
    atomic_fetch_add_explicit(&counts[call], 1, memory_order_relaxed);
    if (!is_passive(call))
        atomic_fetch_add_explicit(&change, 1, memory_order_relaxed);
    if (atomic_load_explicit(&forked, memory_order_relaxed) && !(call != CALL_cuInit && works_before_init(call)))
        return NOT_INITIALIZED;
    if (!atomic_load_explicit(&initialized, memory_order_relaxed) && !works_before_init(call))
        return NOT_INITIALIZED;
    if (atomic_load_explicit(&any_fault, memory_order_relaxed) || atomic_load_explicit(&tracing, memory_order_relaxed))
        return enter_slowly(call);
    return SUCCESS;
}

/* ---- the control of counts and faults ---- */

EXPORT int standin_call_total(void)
{
    return CALL_COUNT;
}

EXPORT uint64_t standin_calls_of(int call)
{
    return atomic_load(&counts[call]);
}

EXPORT void standin_reset_calls(void)
{
    for (int call = 0; call < CALL_COUNT; call++)
        atomic_store(&counts[call], 0);
}

EXPORT void standin_fail(int call, int error, int after, int times)
{
    LOCKED;
    if (!faults[call].armed)
        atomic_fetch_add(&any_fault, 1);
    faults[call].armed = 1;
    faults[call].error = error;
    faults[call].after = after;
    faults[call].times = times;
}

EXPORT void standin_fail_none(void)
{
    LOCKED;
    memset(faults, 0, sizeof faults);
    atomic_store(&any_fault, 0);
}

EXPORT void standin_trace(int on)
{
    if (on)
        atomic_store(&trace_count, 0);
    atomic_store(&tracing, on);
}

EXPORT int standin_traced(int index)
{
    unsigned count = atomic_load(&trace_count);
    return index >= 0 && (unsigned)index < count && index < TRACE_ROOM ? trace[index] : -1;
}
