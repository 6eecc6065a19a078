/* The flavour of entry points whose NULL stream is the per-thread one. Callers get it by asking
 * cuGetProcAddress with flag 2. */
#include "state.h"

static _Thread_local int wanted;

int null_is_per_thread(void)
{
    return wanted;
}

typedef CUresult (*AnyCall)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                            uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* Every argument of these calls travels as an integer, so twelve words pass any of them on; what a
 * caller did not give is read from its stack and never looked at. */
#define FLAVOUR(symbol)                                                                              \
    extern CUresult symbol();                                                                        \
    static CUresult symbol##_per_thread(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,          \
                                        uintptr_t e, uintptr_t f, uintptr_t g, uintptr_t h,          \
                                        uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l)          \
    {                                                                                                \
        wanted = 1;                                                                                  \
        CUresult result = ((AnyCall)symbol)(a, b, c, d, e, f, g, h, i, j, k, l);                     \
        wanted = 0;                                                                                  \
        return result;                                                                               \
    }

#define FLAVOURS(DO)                                                                                        \
    DO(cuLaunchKernel) DO(cuLaunchKernelEx) DO(cuLaunchCooperativeKernel) DO(cuLaunchHostFunc)              \
    DO(cuLaunchHostFunc_v2) DO(cuGraphLaunch) DO(cuGraphUpload) DO(cuMemAllocAsync) DO(cuMemFreeAsync)      \
    DO(cuMemAllocFromPoolAsync) DO(cuMemPrefetchAsync_v2) DO(cuMemcpy) DO(cuMemcpyAsync) DO(cuMemcpyPeer)   \
    DO(cuMemcpyHtoD_v2) DO(cuMemcpyDtoH_v2) DO(cuMemcpyDtoD_v2) DO(cuMemcpyHtoDAsync_v2)                    \
    DO(cuMemcpyDtoHAsync_v2) DO(cuMemcpyDtoDAsync_v2) DO(cuMemcpyPeerAsync) DO(cuMemcpy2D_v2)               \
    DO(cuMemcpy2DUnaligned_v2) DO(cuMemcpy2DAsync_v2) DO(cuMemcpy3D_v2) DO(cuMemcpy3DAsync_v2)              \
    DO(cuMemcpy3DPeer) DO(cuMemcpy3DPeerAsync) DO(cuMemsetD8_v2) DO(cuMemsetD16_v2) DO(cuMemsetD32_v2)      \
    DO(cuMemsetD2D8_v2) DO(cuMemsetD2D16_v2) DO(cuMemsetD2D32_v2) DO(cuMemsetD8Async) DO(cuMemsetD16Async)  \
    DO(cuMemsetD32Async) DO(cuMemsetD2D8Async) DO(cuMemsetD2D16Async) DO(cuMemsetD2D32Async)                \
    DO(cuStreamGetId) DO(cuStreamGetCtx) DO(cuStreamGetCtx_v2) DO(cuStreamGetDevice) DO(cuStreamGetFlags)   \
    DO(cuStreamGetPriority) DO(cuStreamQuery) DO(cuStreamSynchronize) DO(cuStreamWaitEvent)                 \
    DO(cuStreamAddCallback) DO(cuStreamAttachMemAsync) DO(cuStreamBeginCapture_v2)                          \
    DO(cuStreamBeginCaptureToGraph) DO(cuStreamEndCapture) DO(cuStreamIsCapturing)                          \
    DO(cuStreamGetCaptureInfo_v2) DO(cuStreamGetCaptureInfo_v3) DO(cuEventRecord) DO(cuEventRecordWithFlags)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wcast-function-type"
FLAVOURS(FLAVOUR)
#pragma GCC diagnostic pop

void *per_thread_flavour(enum Call call)
{
#define ROW(symbol)           \
    case CALL_##symbol:       \
        return symbol##_per_thread;
    switch (call) {
        FLAVOURS(ROW)
    default:
        return call_function(call);
    }
}
