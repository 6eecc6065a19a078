"""Topic ``launch``: the host cost of one launch of an empty kernel.

The floor is a C loop of ``cuLaunchKernel`` on the function that Numba compiled,
with the same parameter bytes. Arguments are float32 arrays of 128 items, the grid
is one block of 128 threads, the stream is the default one.
"""

from functools import partial

from bench import _floor, _peers
from bench._device import Device, peer
from bench._harness import Contender, call_with, keep, measure, public, timed
from bench._kernels import EMPTY, NUMBERS

GRID, BLOCK = 1, 128
FLOOR = "raw"
WRITTEN = "function[grid, block]({args})"


def compiled(device, number, arrays):
    """Return Numba's dispatcher of the empty kernel, launched once on the arrays."""
    device.require()
    dispatcher = peer("numba.cuda").jit(EMPTY[number])
    dispatcher[GRID, BLOCK](*arrays)
    return dispatcher


def raw_launch(device, number):
    """Return the floor's launch object, and what has to stay alive with it."""
    device.require()
    floor = _floor.loaded()
    arrays = [device.device_array() for _ in range(number)]
    dispatcher = compiled(device, number, arrays)
    (kernel,) = dispatcher.overloads.values()
    handle = int(kernel._codelibrary.get_cufunc().kernel.handle)
    pointers = [each.__cuda_array_interface__["data"][0] for each in arrays]
    params = b"".join(_floor.array_words(pointer, (128,), 4) for pointer in pointers)
    return floor.Launch(floor.function(handle), GRID, BLOCK, 0, params), (
        arrays,
        dispatcher,
    )


def raw(device, number):
    launch, alive = raw_launch(device, number)
    return keep(launch.burst, alive)


def raw_call(device, number):
    launch, (arrays, dispatcher) = raw_launch(device, number)
    burst = call_with("function({args})", arrays, function=launch)
    return keep(burst, dispatcher)


def numba(make_array, device, number):
    """Launch a configured kernel: ``k = kernel[grid, block]`` once, ``k(...)`` again."""
    arrays = [make_array() for _ in range(number)]
    return call_with(
        "function({args})", arrays, function=compiled(device, number, arrays)[GRID, BLOCK]
    )


def numba_written(make_array, device, number):
    """Launch with ``kernel[grid, block](...)`` in full at each call."""
    arrays = [make_array() for _ in range(number)]
    dispatcher = compiled(device, number, arrays)
    return call_with(WRITTEN, arrays, function=dispatcher, grid=GRID, block=BLOCK)


def prepared(device, number):
    prepare = public("prepare")
    arrays = [device.torch_tensor() for _ in range(number)]
    dispatcher = compiled(device, number, arrays)
    return timed(prepare(dispatcher[GRID, BLOCK], *arrays))


def strided_view(device):
    return public("from_any")(device.torch_tensor())


def rows_of(device):
    """Return every contender of a launch as (name, make, patched, note)."""
    view = partial(strided_view, device)
    stock = "numba-cuda without stridedview"
    written = "kernel[grid, block] evaluated at each call"
    return [
        (FLOOR, raw, False, "C loop, the GIL held"),
        ("raw call", raw_call, False, "the same call made once a Python call"),
        ("stridedview torch", partial(numba, device.torch_tensor), True, ""),
        (
            "stridedview StridedView",
            partial(numba, view),
            True,
            "imported before the timed part",
        ),
        ("stridedview DeviceNDArray", partial(numba, device.device_array), True, ""),
        ("stridedview cupy", partial(numba, device.cupy_array), True, ""),
        (
            "stridedview torch, written out",
            partial(numba_written, device.torch_tensor),
            True,
            written,
        ),
        ("stridedview prepared", prepared, True, "parameters packed before the timed part"),
        ("numba-cuda torch", partial(numba, device.torch_tensor), False, stock),
        ("numba-cuda DeviceNDArray", partial(numba, device.device_array), False, stock),
        ("numba-cuda cupy", partial(numba, device.cupy_array), False, stock),
        (
            "numba-cuda torch, written out",
            partial(numba_written, device.torch_tensor),
            False,
            f"{stock}; {written}",
        ),
        ("triton torch", _peers.triton, False, "kernel[grid](...), its only form"),
        ("cupy RawKernel", _peers.cupy_raw_kernel, False, "pointer parameters"),
        (
            "cuda.core data_ptr",
            _peers.cuda_core,
            False,
            "pointer parameters; data_ptr() included",
        ),
    ]


def slow_to_build():
    """Return the contenders that compile for half a minute, or change other modules."""
    return [
        (
            "torch extension",
            _peers.torch_extension,
            False,
            "C++ function, packs Numba's parameters",
        ),
        ("tvm-ffi torch", _peers.tvm_ffi, False, "C++ function, packs Numba's parameters"),
        ("numba-cuda-mlir", _peers.numba_cuda_mlir, False, "its own device arrays"),
        ("numba-cuda-mlir torch", _peers.numba_cuda_mlir_torch, False, ""),
    ]


def references(device):
    """Return torch's own small costs, to read the others by."""

    def empty():
        torch = peer("torch")
        device.require()
        return call_with(
            "function(128, device=where)", [], function=torch.empty, where="cuda:0"
        )

    def data_ptr():
        return call_with("{args}", [device.torch_tensor()], each="{}.data_ptr()")

    return [
        Contender("launch.empty", "torch", empty, note="torch.empty(128, device='cuda:0')"),
        Contender("launch.data_ptr", "torch", data_ptr, note="tensor.data_ptr()"),
    ]


def contenders(options, device):
    """Return the contenders of this topic, floor first."""
    found = rows_of(device) + (slow_to_build() if options.peers else [])
    launches = [
        Contender(
            f"launch.{number}", name, partial(make, device, number), patched, note=note
        )
        for name, make, patched, note in found
        for number in NUMBERS
    ]
    return launches + references(device)


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(contenders(options, device), options, device.sync)
