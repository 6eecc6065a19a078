/* What the parts of the stand-in share: handles, objects, the lock, and each part's functions. */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 8

/* ---- entry points: numbers, counts, faults (record.c, names.c) ---- */

enum Call {
#define NAME(base, version, symbol) CALL_##symbol,
#include "names.def"
#undef NAME
    CALL_COUNT
};

CUresult call_enter(enum Call call);
const char *call_symbol(enum Call call);
void *call_function(enum Call call);
void *per_thread_flavour(enum Call call); /* per_thread.c */
int null_is_per_thread(void);             /* within a call of that flavour */

/* Counts the call and answers with an injected fault, or NOT_INITIALIZED where that is due. */
#define ENTER(symbol)                                       \
    do {                                                    \
        CUresult enter_result = call_enter(CALL_##symbol);  \
        if (enter_result)                                   \
            return enter_result;                            \
    } while (0)

#define CHECK(expression)                   \
    do {                                    \
        CUresult check_result = expression; \
        if (check_result)                   \
            return check_result;            \
    } while (0)

#define REQUIRE(condition, error) \
    do {                          \
        if (!(condition))         \
            return error;         \
    } while (0)

/* One recursive lock for all state. Never held over a callback or a wait. */
void state_lock(void);
void state_unlock(void);
static inline void scope_unlock(int *held) { (void)held; state_unlock(); }
static inline int scope_lock(void) { state_lock(); return 1; }
#define LOCKED __attribute__((cleanup(scope_unlock), unused)) int locked_scope = scope_lock()

uint64_t next_sequence(void);
uint64_t now_sequence(void);
uint64_t now_nanoseconds(void);
uint64_t thread_number(void);

/* ---- handles (handle.c): slots that are never used again, so that a stale one is told ---- */

enum Kind { FREE, CONTEXT, STREAM, EVENT, LIBRARY, KERNEL, FUNCTION, GRAPH, NODE, EXEC, POOL };

typedef struct Handle {
    uint32_t kind;
    uint32_t alive;
} Handle;

void *handle_new(enum Kind kind, size_t size);
int handle_is(const void *handle, enum Kind kind); /* of that kind and alive */
int handle_was(const void *handle, enum Kind kind);

/* ---- settings (device.c) ---- */

typedef struct {
    int devices, major, minor, version;
    uint64_t memory;
} Settings;

extern Settings settings;
int device_valid(CUdevice device);
int device_attribute(int attribute);

/* ---- contexts (context.c) ---- */

typedef struct Context {
    Handle handle; /* a primary context stays alive, see active */
    int device, primary, active, references;
    unsigned flags;
    uint64_t id;
    size_t limits[8];
    struct Stream *legacy, *per_thread;
    uint32_t peers; /* a bit for each device whose memory this context may use */
} Context;

Context *context_top(void);
CUresult context_current(Context **context); /* the usable current context, or the error */
Context *context_primary(CUdevice device);
int context_usable(const Context *context, uint64_t id);
void memory_release_context(const Context *context);

/* ---- memory (arena.c, region.c, memory.c) ---- */

enum RegionKind { REGION_DEVICE, REGION_MANAGED, REGION_HOST, REGION_REGISTERED };

typedef struct Region {
    uint64_t base, size;
    enum RegionKind kind;
    int device;
    unsigned flags;
    uint64_t id;
    Context *context; /* NULL: outlives every context */
    uint64_t context_id;
    struct Pool *pool;
} Region;

typedef struct Pool {
    Handle handle;
    int device, location;
    uint64_t attributes[16];
    uint64_t used, high;
} Pool;

CUresult arena_allocate(uint64_t size, uint64_t *base);
void arena_free(uint64_t base, uint64_t size);
int arena_contains(uint64_t address);
void *arena_host(uint64_t address); /* where the driver itself reads and writes that address */
int arena_guard(int on);

Region *region_find(uint64_t address);
Region *region_add(uint64_t base, uint64_t size, enum RegionKind kind, int device);
void region_remove(Region *region);
Region *region_at(size_t index);
size_t region_count(void);
size_t region_after(uint64_t address); /* index of the first region that ends beyond it */

CUresult memory_allocate(uint64_t size, int device, Context *context, Region **region);
CUresult memory_free(uint64_t address);
uint64_t memory_used(int device);
Pool *pool_default(CUdevice device);

/* ---- streams, events, capture, graphs ---- */

typedef struct NodeList {
    struct Node **items;
    size_t count, room;
} NodeList;

typedef struct Capture {
    struct Graph *graph;
    struct Stream *origin;
    int mode, status;
    uint64_t id, thread;
    struct Stream *members; /* every stream that the capture has reached */
    struct Capture *next;   /* the list of captures that go on */
} Capture;

typedef struct Stream {
    Handle handle;
    Context *context;
    uint64_t context_id, id, thread;
    unsigned flags;
    int priority;
    uintptr_t value; /* what a log shows: 1, 2 or the handle */
    Capture *capture;
    NodeList tail; /* what the next captured node depends on */
    struct Stream *next, *next_member;
} Stream;

typedef struct Event {
    Handle handle;
    Context *context;
    uint64_t context_id;
    unsigned flags;
    int recorded;
    uintptr_t stream;
    uint64_t stream_id, sequence, nanoseconds;
    uint64_t capture_id; /* 0: recorded outside any capture */
    NodeList tail;
} Event;

CUresult stream_resolve(CUstream handle, Stream **stream);
void stream_sync_point(void);      /* everything issued so far is done */
int sequence_done(uint64_t sequence);

typedef CUresult (*Replay)(struct Node *node, Stream *stream);

typedef struct Node {
    Handle handle;
    int type;
    struct Graph *graph;
    struct Stream *stream;
    NodeList before;
    Replay replay;
    struct Launch *launch;
    uint64_t words[6]; /* what a copy, set or host node replays */
} Node;

typedef struct Graph {
    Handle handle;
    NodeList nodes;
} Graph;

typedef struct Exec {
    Handle handle;
    NodeList nodes;
    uint64_t flags;
} Exec;

void list_add(NodeList *list, Node *node);
void list_copy(NodeList *target, const NodeList *source);
void list_clear(NodeList *list);
Node *graph_add(Graph *graph, int type, const NodeList *before);
Graph *graph_new(void);

CUresult capture_unsafe(void);  /* error where some capture forbids an unsafe call here */
CUresult capture_strictly_unsafe(void);
CUresult capture_synchronize(const Context *context);
CUresult capture_of_event(const Event *event);
CUresult capture_legacy(const Stream *stream); /* work on the legacy stream during a capture */
CUresult capture_break(Capture *capture, CUresult error);
CUresult capture_node(Stream *stream, int type, Node **node); /* NULL node: not capturing */
CUresult capture_join(Stream *stream, const Event *event, int external);
void capture_drop_stream(Stream *stream);
void capture_drop_context(const Context *context);

/* ---- kernels ---- */

typedef struct {
    uint16_t offset, size;
} Parameter;

typedef struct Kernel {
    Handle handle;
    struct Library *library;
    char *name;
    Parameter *parameters;
    unsigned parameter_count, parameter_bytes;
    int max_threads, registers, shared, local, constant;
    int max_dynamic[MAX_DEVICES], carveout[MAX_DEVICES];
    struct Function *functions;
} Kernel;

typedef struct Function {
    Handle handle;
    Kernel *kernel;
    Context *context;
    uint64_t context_id;
    int max_dynamic, carveout, own_dynamic, own_carveout; /* own: set on the function itself */
    struct Function *next;
} Function;

typedef struct Variable {
    char *name;
    uint64_t size;
    void *initial; /* NULL: zeros */
    uint64_t address[MAX_DEVICES], context_id[MAX_DEVICES];
    struct Variable *next;
} Variable;

typedef struct Library {
    Handle handle;
    Kernel **kernels;
    size_t kernel_count;
    Variable *variables;
    int module; /* loaded by cuModuleLoadData */
} Library;

CUresult cubin_read(Library *library, const void *image);
CUresult kernel_function(Kernel *kernel, Context *context, Function **function);
CUresult function_resolve(CUfunction handle, Context *context, Function **function);
int function_attribute(const Kernel *kernel, int attribute, int max_dynamic, int carveout, int *value);
int occupancy_blocks(const Kernel *kernel, int block, size_t dynamic);

/* ---- records (record.c) ---- */

typedef struct Launch {
    uint64_t sequence, thread, stream, stream_id, context_id, function;
    const char *name, *entry;
    unsigned grid[3], block[3];
    unsigned shared, attribute_count, parameter_count, parameter_bytes;
    int device, captured, replayed, is_short, packed_size; /* packed_size -1: not packed */
    LaunchAttribute *attributes;
    uint16_t *sizes;
    unsigned char *bytes, *packed;
} Launch;

void record_launch(Launch *launch); /* takes ownership; drops it where recording is off */
Launch *launch_copy(const Launch *launch);
void launch_free(Launch *launch);
int recording_on(void);
uint64_t changes(void); /* grows with every call that may change what a launch is checked against */
int hook_waits(void); /* whether hook_run would do anything */
CUresult hook_run(const Launch *launch); /* outside the lock: callback, held queue */
void record_ordering(const Event *event, const Stream *waiting);

#endif
