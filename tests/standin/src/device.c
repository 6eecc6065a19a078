/* Start-up, settings from the environment, errors by name, and devices with their attributes. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void record_initialized(void);

Settings settings = {1, 9, 0, 13050, (uint64_t)16 << 30};

static long from_environment(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* Before any call: callers ask for the version before they initialize. */
__attribute__((constructor)) static void read_environment(void)
{
    const char *capability = getenv("STANDIN_CC");
    long devices = from_environment("STANDIN_DEVICES", settings.devices);
    settings.devices = devices < 0 ? 0 : devices > MAX_DEVICES ? MAX_DEVICES : (int)devices;
    settings.version = (int)from_environment("STANDIN_DRIVER_VERSION", settings.version);
    settings.memory = (uint64_t)from_environment("STANDIN_MEMORY", (long)settings.memory);
    if (capability)
        sscanf(capability, "%d.%d", &settings.major, &settings.minor);
}

EXPORT void standin_memory(uint64_t bytes)
{
    settings.memory = bytes;
}

EXPORT CUresult cuInit(unsigned flags)
{
    ENTER(cuInit);
    REQUIRE(flags == 0, INVALID_VALUE);
    REQUIRE(settings.devices > 0, NO_DEVICE);
    record_initialized();
    if (from_environment("STANDIN_GUARD", 0))
        arena_guard(1);
    return SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(cuDriverGetVersion);
    REQUIRE(version, INVALID_VALUE);
    *version = settings.version;
    return SUCCESS;
}

static CUresult error_text(CUresult error, const char **name, const char **text)
{
    switch (error) {
    case SUCCESS:
        *name = "CUDA_SUCCESS";
        *text = "no error";
        return SUCCESS;
#define ERROR(number, symbol, words)   \
    case number:                       \
        *name = "CUDA_ERROR_" #symbol; \
        *text = words;                 \
        return SUCCESS;
#include "errors.def"
#undef ERROR
    default:
        *name = *text = NULL;
        return INVALID_VALUE;
    }
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    const char *text;
    ENTER(cuGetErrorName);
    REQUIRE(name, INVALID_VALUE);
    return error_text(error, name, &text);
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    const char *name;
    ENTER(cuGetErrorString);
    REQUIRE(text, INVALID_VALUE);
    return error_text(error, &name, text);
}

EXPORT CUresult cuProfilerStart(void)
{
    ENTER(cuProfilerStart);
    return SUCCESS;
}

EXPORT CUresult cuProfilerStop(void)
{
    ENTER(cuProfilerStop);
    return SUCCESS;
}

/* ---- devices ---- */

int device_valid(CUdevice device)
{
    return device >= 0 && device < settings.devices;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet);
    REQUIRE(device, INVALID_VALUE);
    REQUIRE(device_valid(ordinal), INVALID_DEVICE);
    *device = ordinal;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount);
    REQUIRE(count, INVALID_VALUE);
    *count = settings.devices;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    ENTER(cuDeviceGetName);
    REQUIRE(name && room > 0, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    snprintf(name, (size_t)room, "Stand-in device %d", device);
    return SUCCESS;
}

static CUresult uuid(Uuid *out, CUdevice device)
{
    REQUIRE(out, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    memset(out->bytes, 0x5d, sizeof out->bytes);
    out->bytes[15] = (char)device;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(Uuid *out, CUdevice device)
{
    ENTER(cuDeviceGetUuid);
    return uuid(out, device);
}

EXPORT CUresult cuDeviceGetUuid_v2(Uuid *out, CUdevice device)
{
    ENTER(cuDeviceGetUuid_v2);
    return uuid(out, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem_v2);
    REQUIRE(bytes, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    *bytes = settings.memory;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device)
{
    ENTER(cuDeviceGetPCIBusId);
    REQUIRE(text && room > 0, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    snprintf(text, (size_t)room, "0000:%02X:00.0", 0x20 + device);
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned domain, bus = 0;
    ENTER(cuDeviceGetByPCIBusId);
    REQUIRE(device && text && sscanf(text, "%x:%x", &domain, &bus) == 2, INVALID_VALUE);
    REQUIRE(device_valid((int)bus - 0x20), INVALID_DEVICE);
    *device = (int)bus - 0x20;
    return SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceCanAccessPeer);
    REQUIRE(can, INVALID_VALUE);
    REQUIRE(device_valid(device) && device_valid(peer), INVALID_DEVICE);
    *can = device != peer;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice source, CUdevice target)
{
    ENTER(cuDeviceGetP2PAttribute);
    REQUIRE(value && attribute >= 1 && attribute <= 5, INVALID_VALUE);
    REQUIRE(device_valid(source) && device_valid(target) && source != target, INVALID_DEVICE);
    *value = attribute == 2; /* access is supported; the rest is 0 */
    return SUCCESS;
}

/* ---- attributes ---- */

static int shared_opt_in(void)
{
    switch (10 * settings.major + settings.minor) {
    case 75: return 65536;
    case 80: case 87: return 166912;
    case 86: case 89: case 120: case 121: return 101376;
    default: return 232448;
    }
}

enum { ATTRIBUTES = 200 };

/* Every number not listed is 0: the feature is absent. */
static const int values[ATTRIBUTES] = {
    [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64,                   /* threads a block, and by axis */
    [5] = 2147483647, [6] = 65535, [7] = 65535,                    /* blocks a grid, by axis */
    [8] = 49152, [9] = 65536, [10] = 32, [11] = 2147483647, [12] = 65536, /* shared, constant, warp, pitch, registers */
    [13] = 1500000, [14] = 512, [15] = 1, [16] = 132,               /* clock, alignment, overlap, processors */
    [19] = 1, [21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384,
    [30] = 512, [31] = 1, [36] = 2600000, [37] = 5120,              /* surfaces, concurrency, memory */
    [38] = 52428800, [39] = 2048, [40] = 3, [41] = 1, [51] = 32,     /* cache, threads, engines, unified */
    [69] = 268435456, [78] = 1, [79] = 1, [80] = 1, [82] = 65536,    /* priorities, caches, registers */
    [83] = 1, [87] = 2, [89] = 1, [90] = 1, [91] = 1,                /* managed, ratio, preemption, registered */
    [92] = 1, [93] = 1, [94] = 1, [95] = 1, [96] = 1, [98] = 1, [99] = 1, /* stream memory, cooperation, registering */
    [106] = 32, [111] = 1024, [115] = 1, [119] = 1, [120] = 1,       /* blocks, reserved shared, pools, clusters */
    [122] = 1, [123] = 1, [125] = 1, [126] = 4, [127] = 1, [129] = 1, [130] = 2, [131] = -1, [134] = 0,
};

int device_attribute(int attribute)
{
    switch (attribute) {
    case 75: return settings.major;
    case 76: return settings.minor;
    case 81: return shared_opt_in() + 1024;
    case 97: return shared_opt_in();
    }
    return attribute > 0 && attribute < ATTRIBUTES ? values[attribute] : 0;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute);
    REQUIRE(value && attribute > 0 && attribute < ATTRIBUTES, INVALID_VALUE);
    REQUIRE(device_valid(device), INVALID_DEVICE);
    *value = attribute == 33 ? 0x20 + device : device_attribute(attribute); /* 33 is the PCI bus */
    return SUCCESS;
}
