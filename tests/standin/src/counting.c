/* Requests to callgrind, so that it counts only what stands between the two. */
#include "state.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define BUILT 1
#define BEGIN CALLGRIND_START_INSTRUMENTATION
#define END CALLGRIND_STOP_INSTRUMENTATION
#define UNDER_VALGRIND RUNNING_ON_VALGRIND
#else
#define BUILT 0
#define BEGIN (void)0
#define END (void)0
#define UNDER_VALGRIND 0
#endif

/* 0: nothing happens here; 1: counting would work under valgrind; 2: it works. */
EXPORT int standin_callgrind_state(void)
{
    return BUILT ? 1 + (UNDER_VALGRIND != 0) : 0;
}

EXPORT void standin_callgrind_start(void)
{
    BEGIN;
}

EXPORT void standin_callgrind_stop(void)
{
    END;
}
