/* The driver's binary interface, as far as the stand-in speaks it: handle types, the structs that
 * callers fill, and the numbers that callers compare. Declared here, from facts, so that a build
 * needs no CUDA toolkit. */
#ifndef STANDIN_ABI_H
#define STANDIN_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct Context *CUcontext;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Library *CUlibrary;
typedef struct Library *CUmodule; /* a module is a library seen from one context */
typedef struct Handle *CUkernel;  /* a kernel or a function: launches take either */
typedef struct Handle *CUfunction;
typedef struct Graph *CUgraph;
typedef struct Node *CUgraphNode;
typedef struct Exec *CUgraphExec;
typedef struct Pool *CUmemoryPool;
typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef size_t (*CUblockToShared)(int block);

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    PEER_ACCESS_UNSUPPORTED = 217,
    FILE_NOT_FOUND = 301,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_BROKEN = 2 };
enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_DISABLE_TIMING = 2 };
enum { NODE_KERNEL = 0, NODE_COPY = 1, NODE_SET = 2, NODE_HOST = 3, NODE_EMPTY = 5 };
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum { HOST_PORTABLE = 1, HOST_MAPPED = 2, HOST_WRITE_COMBINED = 4 };
enum { LAUNCH_COOPERATIVE = 2 };

/* The terms of the `extra` list that hands a launch one packed buffer. */
#define EXTRA_END ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define EXTRA_SIZE ((void *)2)

typedef struct {
    int id;
    int pad;
    unsigned char value[64];
} LaunchAttribute;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    CUstream stream;
    LaunchAttribute *attributes;
    unsigned attribute_count;
} LaunchConfig;

typedef struct {
    int type; /* 1 a device, 2 the host */
    int id;
} MemoryLocation;

typedef struct {
    int allocation_type;
    int handle_types;
    MemoryLocation location;
    void *security;
    size_t max_size;
    unsigned char rest[56];
} PoolProperties;

typedef struct {
    MemoryLocation location;
    int flags;
} AccessDescription;

/* One side of a strided copy. */
typedef struct {
    size_t x, y;
    int type;
    void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
} Side2D;

typedef struct {
    Side2D source, target;
    size_t width, height;
} Copy2D;

typedef struct {
    size_t x, y, z, level;
    int type;
    void *host;
    CUdeviceptr device;
    void *array;
    void *context; /* reserved in the plain form, the context in the peer form */
    size_t pitch, height;
} Side3D;

typedef struct {
    Side3D source, target;
    size_t width, height, depth;
} Copy3D;

typedef struct {
    char bytes[64];
} IpcHandle;

typedef struct {
    char bytes[16];
} Uuid;

typedef struct {
    uint64_t flags;
    CUstream upload_stream;
    CUgraphNode error_node;
    int result;
} InstantiateParams;

#endif
