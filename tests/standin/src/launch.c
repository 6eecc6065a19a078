/* Launches: checked as the driver checks them, then recorded; a kernel's code does not run. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS_A_BLOCK = 1024 };

static CUresult check_shape(const LaunchConfig *config, const Function *function)
{
    static unsigned most_grid[3], most_block[3]; /* looked up once: a launch asks every time */
    uint64_t threads = 1;
    for (int axis = 0; axis < 3 && !most_block[2]; axis++) {
        most_grid[axis] = (unsigned)device_attribute(5 + axis);
        most_block[axis] = (unsigned)device_attribute(2 + axis);
    }
    for (int axis = 0; axis < 3; axis++) {
        REQUIRE(config->grid[axis] && config->block[axis], INVALID_VALUE);
        REQUIRE(config->grid[axis] <= most_grid[axis], INVALID_VALUE);
        REQUIRE(config->block[axis] <= most_block[axis], INVALID_VALUE);
        threads *= config->block[axis];
    }
    REQUIRE(threads <= MAX_THREADS_A_BLOCK && threads <= (uint64_t)function->kernel->max_threads, INVALID_VALUE);
    REQUIRE(config->shared <= (unsigned)function->max_dynamic, INVALID_VALUE);
    return SUCCESS;
}

static CUresult check_cooperative(const LaunchConfig *config, const Function *function)
{
    int cooperative = 0;
    for (unsigned index = 0; index < config->attribute_count; index++)
        if (config->attributes[index].id == LAUNCH_COOPERATIVE)
            memcpy(&cooperative, config->attributes[index].value, sizeof cooperative);
    if (!cooperative)
        return SUCCESS;
    uint64_t blocks = (uint64_t)config->grid[0] * config->grid[1] * config->grid[2];
    int threads = (int)(config->block[0] * config->block[1] * config->block[2]);
    int fit = occupancy_blocks(function->kernel, threads, config->shared) * device_attribute(16);
    REQUIRE(blocks <= (uint64_t)fit, COOPERATIVE_LAUNCH_TOO_LARGE);
    return SUCCESS;
}

/* ---- parameters: by pointers, or packed in one buffer ---- */

static CUresult packed_terms(void **extra, const unsigned char **buffer, size_t *size)
{
    *buffer = NULL;
    *size = 0;
    for (; extra && *extra != EXTRA_END; extra += 2) {
        if (*extra == EXTRA_BUFFER)
            *buffer = extra[1];
        else if (*extra == EXTRA_SIZE)
            *size = *(const size_t *)extra[1];
        else
            return INVALID_VALUE;
    }
    return SUCCESS;
}

/* A buffer that is too long is refused, one that is too short passes: so does hardware. */
static CUresult check_packed(const Kernel *kernel, void **extra)
{
    const unsigned char *buffer;
    size_t size;
    CHECK(packed_terms(extra, &buffer, &size));
    REQUIRE(buffer && (size || !kernel->parameter_bytes), INVALID_VALUE);
    REQUIRE(size <= kernel->parameter_bytes, LAUNCH_OUT_OF_RESOURCES);
    return SUCCESS;
}

static CUresult take_packed(Launch *launch, const Kernel *kernel, void **extra)
{
    const unsigned char *buffer;
    size_t size;
    CHECK(check_packed(kernel, extra));
    CHECK(packed_terms(extra, &buffer, &size));
    launch->packed_size = (int)size;
    launch->is_short = size < kernel->parameter_bytes;
    launch->packed = malloc(size + 1);
    if (size)
        memcpy(launch->packed, buffer, size);
    unsigned char *at = launch->bytes;
    for (unsigned index = 0; index < kernel->parameter_count; index++) {
        size_t offset = kernel->parameters[index].offset, want = kernel->parameters[index].size;
        size_t have = offset >= size ? 0 : size - offset < want ? size - offset : want;
        if (have)
            memcpy(at, buffer + offset, have);
        at += want;
    }
    return SUCCESS;
}

static CUresult take_pointers(Launch *launch, const Kernel *kernel, void **pointers)
{
    unsigned char *at = launch->bytes;
    REQUIRE(pointers || !kernel->parameter_count, INVALID_VALUE);
    for (unsigned index = 0; index < kernel->parameter_count; index++) {
        REQUIRE(pointers[index], INVALID_VALUE);
        memcpy(at, pointers[index], kernel->parameters[index].size);
        at += kernel->parameters[index].size;
    }
    return SUCCESS;
}

static CUresult take_parameters(Launch *launch, const Kernel *kernel, void **pointers, void **extra)
{
    REQUIRE(!(pointers && extra), INVALID_VALUE);
    launch->parameter_count = kernel->parameter_count;
    launch->sizes = malloc(kernel->parameter_count * sizeof(uint16_t) + 1);
    for (unsigned index = 0; index < kernel->parameter_count; index++) {
        launch->sizes[index] = kernel->parameters[index].size;
        launch->parameter_bytes += kernel->parameters[index].size;
    }
    launch->bytes = calloc(1, launch->parameter_bytes + 1);
    return extra ? take_packed(launch, kernel, extra) : take_pointers(launch, kernel, pointers);
}

/* ---- one launch ---- */

static Launch *describe(const LaunchConfig *config, const Function *function, const Stream *stream, enum Call call)
{
    Launch *launch = calloc(1, sizeof *launch);
    launch->thread = thread_number();
    launch->stream = config->stream || !null_is_per_thread() ? (uintptr_t)config->stream : stream->value;
    launch->stream_id = stream->id;
    launch->context_id = function->context_id;
    launch->function = (uintptr_t)function;
    launch->name = function->kernel->name;
    launch->entry = call_symbol(call);
    memcpy(launch->grid, config->grid, sizeof launch->grid);
    memcpy(launch->block, config->block, sizeof launch->block);
    launch->shared = config->shared;
    launch->device = function->context->device;
    launch->captured = stream->capture != NULL;
    launch->packed_size = -1;
    launch->attribute_count = config->attribute_count;
    if (config->attribute_count) {
        launch->attributes = malloc(config->attribute_count * sizeof(LaunchAttribute));
        memcpy(launch->attributes, config->attributes, config->attribute_count * sizeof(LaunchAttribute));
    }
    return launch;
}

static CUresult replay_kernel(Node *node, Stream *stream)
{
    Launch *launch = launch_copy(node->launch);
    launch->captured = 0;
    launch->replayed = 1;
    launch->sequence = next_sequence();
    launch->stream = stream->value;
    launch->stream_id = stream->id;
    CUresult result = hook_run(launch);
    if (result == SUCCESS)
        record_launch(launch);
    else
        launch_free(launch);
    return result;
}

static CUresult issue(Launch *launch, Stream *stream)
{
    Node *node;
    {
        LOCKED;
        CHECK(capture_node(stream, NODE_KERNEL, &node));
        launch->sequence = next_sequence();
        if (node) {
            node->launch = launch_copy(launch);
            node->replay = replay_kernel;
        }
    }
    if (!node)
        CHECK(hook_run(launch));
    record_launch(launch);
    return SUCCESS;
}

/* With nothing to tell or to wait for, a launch is checked and counted, no more: for benchmarks. */
static int unobserved(const Stream *stream)
{
    return !recording_on() && !stream->capture && !hook_waits();
}

/* The last launch of this thread that passed every check with nobody looking. Its like passes
 * again for as long as nothing changed, at the cost of a comparison. */
static _Thread_local struct {
    LaunchConfig config;
    CUfunction function;
    const Kernel *kernel;
    uint64_t changes;
} passed;

static int passed_before(const LaunchConfig *config, CUfunction function)
{
    return passed.function == function && passed.changes == changes() && !recording_on() && !hook_waits()
        && !memcmp(&passed.config, config, sizeof *config);
}

static void remember_passed(const LaunchConfig *config, CUfunction handle, const Kernel *kernel)
{
    passed.config = *config;
    passed.function = handle;
    passed.kernel = kernel;
    passed.changes = changes();
}

static CUresult launch(enum Call call, const LaunchConfig *config, CUfunction handle, void **pointers, void **extra)
{
    Context *context;
    Function *function;
    Stream *stream;
    if (passed_before(config, handle))
        return extra ? check_packed(passed.kernel, extra) : SUCCESS;
    CHECK(context_current(&context));
    CHECK(stream_resolve(config->stream, &stream));
    CHECK(function_resolve(handle, stream->context, &function)); /* the stream says the context */
    CUresult refused = check_shape(config, function);
    refused = refused ? refused : check_cooperative(config, function);
    if (refused && stream->capture)
        capture_strictly_unsafe(); /* a capture need not outlive a refused launch */
    CHECK(refused);
    CHECK(capture_legacy(stream));
    if (unobserved(stream)) {
        next_sequence();
        if (!config->attribute_count)
            remember_passed(config, handle, function->kernel);
        return extra ? check_packed(function->kernel, extra) : SUCCESS;
    }
    Launch *record = describe(config, function, stream, call);
    CUresult result = take_parameters(record, function->kernel, pointers, extra);
    result = result ? result : issue(record, stream);
    if (result)
        launch_free(record);
    return result;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
                               void **pointers, void **extra)
{
    ENTER(cuLaunchKernel);
    LaunchConfig config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
    return launch(CALL_cuLaunchKernel, &config, function, pointers, extra);
}

EXPORT CUresult cuLaunchKernelEx(const LaunchConfig *config, CUfunction function, void **pointers, void **extra)
{
    ENTER(cuLaunchKernelEx);
    REQUIRE(config && (config->attributes || !config->attribute_count), INVALID_VALUE);
    return launch(CALL_cuLaunchKernelEx, config, function, pointers, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                          CUstream stream, void **pointers)
{
    ENTER(cuLaunchCooperativeKernel);
    LaunchAttribute cooperative = {LAUNCH_COOPERATIVE, 0, {1}};
    LaunchConfig config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, &cooperative, 1};
    return launch(CALL_cuLaunchCooperativeKernel, &config, function, pointers, NULL);
}
