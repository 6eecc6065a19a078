"""Other ways to launch an empty kernel, each as ``(device, number) -> burst``.

A peer that is missing or fails raises; the harness makes a row of the reason.
"""

import ctypes
import functools
from pathlib import Path

from bench import _floor, _kernels
from bench._device import peer
from bench._harness import call_with, keep

THREADS = 128


def triton(device, number):
    """Triton with torch tensors; one block of 128 threads is its default."""
    device.require()
    kernel = peer("triton").jit(_kernels.EMPTY[number])
    tensors = [device.torch_tensor() for _ in range(number)]
    return call_with("function[grid]({args})", tensors, function=kernel, grid=(1,))


def cupy_raw_kernel(device, number):
    """CuPy's RawKernel with CuPy arrays."""
    device.require()
    kernel = peer("cupy").RawKernel(_kernels.cuda_source(number), f"empty_{number}")
    arrays = [device.cupy_array() for _ in range(number)]
    line = "function(grid, block, ({args},))"
    return call_with(line, arrays, function=kernel, grid=(1,), block=(THREADS,))


def cuda_core(device, number):
    """cuda.core's launch with the pointers of torch tensors."""
    device.require()
    core = peer("cuda.core")
    current = core.Device(0)
    current.set_current()
    options = core.ProgramOptions(arch=f"sm_{current.arch}")
    program = core.Program(_kernels.cuda_source(number), "c++", options)
    kernel = program.compile("cubin").get_kernel(f"empty_{number}")
    tensors = [device.torch_tensor() for _ in range(number)]
    return call_with(
        "launch(stream, config, kernel, {args})",
        tensors,
        each="{}.data_ptr()",
        launch=core.launch,
        stream=current.default_stream,
        config=core.LaunchConfig(grid=1, block=THREADS),
        kernel=kernel,
    )


# What a C++ extension does for each launch: take the tensors, pack the words that
# Numba's kernel wants, ask for the current stream, call the driver. The driver's
# entry point comes in as an address, so no CUDA header is compiled.
PACK = """
#include <cstdint>
#include <stdexcept>
using launch_fn = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void*, void**, void**);
static launch_fn driver_launch;
static int (*torch_stream)(int, void**);
static void* functions[32];

static inline void pack(int64_t* words, const void* data, int64_t extent, int64_t stride) {
  const int64_t address = reinterpret_cast<int64_t>(data);
  const int64_t packed[] = {0, 0, extent, 4, address, extent, stride * 4};
  for (int i = 0; i < 7; i++) words[i] = packed[i];
}

static inline void launch(int number, int64_t* words, void* stream) {
  size_t size = sizeof(int64_t) * 7 * number;
  void* buffer = reinterpret_cast<void*>(1);
  void* buffer_size = reinterpret_cast<void*>(2);
  void* extra[] = {buffer, words, buffer_size, &size, nullptr};
  void* function = functions[number];
  if (driver_launch(function, 1, 1, 1, 128, 1, 1, 0, stream, nullptr, extra) != 0)
    throw std::runtime_error("launch failed");
}

void setup(int64_t launch_address, int64_t stream_address, int64_t number,
           int64_t function) {
  driver_launch = reinterpret_cast<launch_fn>(launch_address);
  torch_stream = reinterpret_cast<int (*)(int, void**)>(stream_address);
  functions[number] = reinterpret_cast<void*>(function);
}
"""
TORCH_FORM = (
    "const at::Tensor&",
    "$.data_ptr()",
    "if (torch_stream) torch_stream(t0.get_device(), &stream);",
)
TVM_FORM = (
    "tvm::ffi::TensorView",
    "static_cast<char*>($.data_ptr()) + $.byte_offset()",
    "stream = TVMFFIEnvGetStream(t0.device().device_type, t0.device().device_id);",
)


def _entry(number, kind, data, find_stream):
    """Return the C++ function that takes ``number`` tensors of a kind."""
    tensors = [f"t{index}" for index in range(number)]
    lines = [
        f"void launch_{number}({', '.join(f'{kind} {tensor}' for tensor in tensors)}) {{",
        f"  int64_t words[7 * {number}];",
        "  void* stream = nullptr;",
        f"  {find_stream}",
    ]
    for index, tensor in enumerate(tensors):
        pointer = data.replace("$", tensor)
        facts = f"{pointer}, {tensor}.size(0), {tensor}.stride(0)"
        lines.append(f"  pack(words + 7 * {index}, {facts});")
    return "\n".join([*lines, f"  launch({number}, words, stream);", "}", ""])


def _extension_source(form):
    return PACK + "".join(_entry(number, *form) for number in _kernels.NUMBERS)


def _functions():
    return ["setup", *(f"launch_{number}" for number in _kernels.NUMBERS)]


def _folder(name):
    folder = _floor.BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


@functools.cache
def _torch_module():
    extension = peer("torch.utils.cpp_extension")
    return extension.load_inline(
        "launch_torch",
        _extension_source(TORCH_FORM),
        functions=_functions(),
        extra_cflags=["-O2"],
        build_directory=_folder("torch"),
    )


@functools.cache
def _tvm_module():
    peer("tvm_ffi")
    return peer("tvm_ffi.cpp").load_inline(
        "launch_tvm",
        cpp_sources=_extension_source(TVM_FORM),
        functions=_functions(),
        extra_cflags=["-O2"],
        build_directory=_folder("tvm"),
    )


def _torch_stream_address():
    """Return the address of torch's own look-up of the current stream, or 0."""
    library = Path(peer("torch").__file__).parent / "lib" / "libtorch_cuda.so"
    if not library.exists():
        return 0
    found = getattr(ctypes.CDLL(str(library)), "aoti_torch_get_current_cuda_stream", None)
    return ctypes.cast(found, ctypes.c_void_p).value if found else 0


def _extension(module, stream_address, device, number):
    from bench.launch import compiled

    tensors = [device.torch_tensor() for _ in range(number)]
    dispatcher = compiled(device, number, [device.device_array() for _ in range(number)])
    (kernel,) = dispatcher.overloads.values()
    floor = _floor.loaded()
    function = floor.function(int(kernel._codelibrary.get_cufunc().kernel.handle))
    module.setup(floor.launch_address(), stream_address, number, function)
    burst = call_with(
        "function({args})", tensors, function=getattr(module, f"launch_{number}")
    )
    return keep(burst, dispatcher)


def torch_extension(device, number):
    """A C++ extension of torch, bound with pybind11."""
    device.require()
    return _extension(_torch_module(), _torch_stream_address(), device, number)


def tvm_ffi(device, number):
    """A C++ function exported through tvm-ffi."""
    device.require()
    return _extension(_tvm_module(), 0, device, number)


def _mlir(number, arrays):
    cuda = peer("numba_cuda_mlir.cuda")
    return call_with(
        "function({args})", arrays, function=cuda.jit(_kernels.EMPTY[number])[1, THREADS]
    )


def numba_cuda_mlir(device, number):
    """numba-cuda-mlir with its own device arrays."""
    device.require()
    cuda = peer("numba_cuda_mlir.cuda")
    return _mlir(number, [cuda.device_array(128, "float32") for _ in range(number)])


def numba_cuda_mlir_torch(device, number):
    """numba-cuda-mlir with torch tensors, which it may refuse."""
    device.require()
    return _mlir(number, [device.torch_tensor() for _ in range(number)])
