/* Records of launches and of orderings, and the hook that runs within a launch. */
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static Launch **launches;
static size_t launch_count, launch_room;
static atomic_int recording = 1;

typedef struct {
    uint64_t event, recorded_on, recorded_id, recorded_at, waiting, waiting_id, waited_at;
} Ordering;

static Ordering *orderings;
static size_t ordering_count, ordering_room;

static void *duplicate(const void *source, size_t size)
{
    void *copy = size ? malloc(size) : NULL;
    if (copy && source)
        memcpy(copy, source, size);
    return copy;
}

Launch *launch_copy(const Launch *launch)
{
    Launch *copy = duplicate(launch, sizeof *launch);
    copy->attributes = duplicate(launch->attributes, launch->attribute_count * sizeof(LaunchAttribute));
    copy->sizes = duplicate(launch->sizes, launch->parameter_count * sizeof(uint16_t));
    copy->bytes = duplicate(launch->bytes, launch->parameter_bytes);
    copy->packed = launch->packed_size > 0 ? duplicate(launch->packed, (size_t)launch->packed_size) : NULL;
    return copy;
}

void launch_free(Launch *launch)
{
    if (!launch)
        return;
    free(launch->attributes);
    free(launch->sizes);
    free(launch->bytes);
    free(launch->packed);
    free(launch);
}

int recording_on(void)
{
    return atomic_load_explicit(&recording, memory_order_relaxed);
}

void record_launch(Launch *launch)
{
    LOCKED;
    if (!recording_on()) {
        launch_free(launch);
        return;
    }
    if (launch_count == launch_room) {
        launch_room = launch_room ? 2 * launch_room : 64;
        launches = realloc(launches, launch_room * sizeof *launches);
    }
    launches[launch_count++] = launch;
}

void record_ordering(const Event *event, const Stream *waiting)
{
    LOCKED;
    if (ordering_count == ordering_room) {
        ordering_room = ordering_room ? 2 * ordering_room : 64;
        orderings = realloc(orderings, ordering_room * sizeof *orderings);
    }
    Ordering ordering = {(uintptr_t)event, event->stream, event->stream_id, event->sequence,
                         waiting->value, waiting->id, next_sequence()};
    orderings[ordering_count++] = ordering;
}

/* ---- control ---- */

EXPORT void standin_recording(int on)
{
    atomic_store(&recording, on);
}

EXPORT size_t standin_launch_count(void)
{
    LOCKED;
    return launch_count;
}

/* Stays good until the records are cleared. */
EXPORT const Launch *standin_launch(size_t index)
{
    LOCKED;
    return index < launch_count ? launches[index] : NULL;
}

EXPORT size_t standin_ordering_count(void)
{
    LOCKED;
    return ordering_count;
}

EXPORT const Ordering *standin_ordering(size_t index)
{
    LOCKED;
    return index < ordering_count ? &orderings[index] : NULL;
}

EXPORT void standin_clear(void)
{
    LOCKED;
    for (size_t index = 0; index < launch_count; index++)
        launch_free(launches[index]);
    launch_count = ordering_count = 0;
}

EXPORT uint64_t standin_sequence(void)
{
    return now_sequence();
}

/* ---- what runs within a launch ---- */

typedef void (*Hook)(const Launch *launch);
typedef struct {
    Hook hook;
    Launch *launch;
    int done, left; /* left: the launch stopped waiting, so the thread frees this */
    pthread_mutex_t lock;
    pthread_cond_t ended;
} Errand;

static Hook hook;
static int hook_elsewhere;
static atomic_int hooked, held;
static double patience = 10.0;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int waiting;

static struct timespec deadline(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += (time_t)patience;
    time.tv_nsec += (long)((patience - (double)(time_t)patience) * 1e9);
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

static void errand_free(Errand *errand)
{
    launch_free(errand->launch);
    free(errand);
}

static void *errand_run(void *data)
{
    Errand *errand = data;
    errand->hook(errand->launch);
    pthread_mutex_lock(&errand->lock);
    errand->done = 1;
    int left = errand->left;
    pthread_cond_signal(&errand->ended);
    pthread_mutex_unlock(&errand->lock);
    if (left)
        errand_free(errand);
    return NULL;
}

/* The callback runs in a fresh thread: a caller that keeps the interpreter's lock over the launch
 * keeps the callback from running, and gets LAUNCH_TIMEOUT. */
static CUresult hook_in_thread(const Launch *launch)
{
    Errand *errand = calloc(1, sizeof *errand);
    pthread_t thread;
    struct timespec until = deadline();
    errand->hook = hook;
    errand->launch = launch_copy(launch);
    pthread_mutex_init(&errand->lock, NULL);
    pthread_cond_init(&errand->ended, NULL);
    REQUIRE(!pthread_create(&thread, NULL, errand_run, errand), OPERATING_SYSTEM);
    pthread_detach(thread);
    pthread_mutex_lock(&errand->lock);
    while (!errand->done && !errand->left)
        errand->left = pthread_cond_timedwait(&errand->ended, &errand->lock, &until) == ETIMEDOUT && !errand->done;
    int left = errand->left;
    pthread_mutex_unlock(&errand->lock);
    if (left)
        return LAUNCH_TIMEOUT;
    errand_free(errand);
    return SUCCESS;
}

static CUresult wait_for_gate(void)
{
    struct timespec until = deadline();
    CUresult result = SUCCESS;
    pthread_mutex_lock(&gate);
    waiting++;
    while (atomic_load(&held) && result == SUCCESS)
        if (pthread_cond_timedwait(&opened, &gate, &until) == ETIMEDOUT)
            result = LAUNCH_TIMEOUT;
    waiting--;
    pthread_mutex_unlock(&gate);
    return result;
}

int hook_waits(void)
{
    return atomic_load_explicit(&held, memory_order_relaxed) || atomic_load_explicit(&hooked, memory_order_relaxed);
}

CUresult hook_run(const Launch *launch)
{
    if (atomic_load_explicit(&held, memory_order_relaxed))
        CHECK(wait_for_gate());
    if (!atomic_load_explicit(&hooked, memory_order_relaxed))
        return SUCCESS;
    if (hook_elsewhere)
        return hook_in_thread(launch);
    hook(launch);
    return SUCCESS;
}

EXPORT void standin_hook(Hook callback, int elsewhere)
{
    hook = callback;
    hook_elsewhere = elsewhere;
    atomic_store(&hooked, callback != NULL);
}

EXPORT void standin_patience(double seconds)
{
    patience = seconds;
}

EXPORT void standin_hold(int on)
{
    pthread_mutex_lock(&gate);
    atomic_store(&held, on);
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
}

EXPORT int standin_waiting(void)
{
    pthread_mutex_lock(&gate);
    int count = waiting;
    pthread_mutex_unlock(&gate);
    return count;
}
