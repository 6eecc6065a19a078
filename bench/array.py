"""Topic ``array``: views, allocation and copies on the device, beside the peers.

The floor of a copy is one ``cuMemcpyDtoD`` of as many bytes; a rate counts what is
read and what is written. Each timed copy waits for the device. Everything else is
host cost alone. Without a GPU torch and ours run on host memory and say so.
"""

from functools import cache, partial

from bench import _floor
from bench._device import Device, peer
from bench._harness import Contender, call_with, measure, public, timed

FLOOR = "raw"
SMALL = (64, 32)
COPY_ROUNDS = 30

# One line an operation; {args} is the array. Who writes it differently stands below.
VIEWS = {
    "slice": "{args}[0:32]",
    "transpose": "{args}.T",
    "reshape": "{args}.reshape(32, 64)",
    "flatten": "{args}.reshape(-1)",
    "as_strided": "{args}.as_strided((8, 8), (64, 4))",
    "as_strided_offset": "{args}.as_strided((8, 8), (64, 4), offset=64)",
    "pointer": "{args}.ptr",
    "device": "{args}.device",
    "dtype": "{args}.dtype",
    "copy_to_host": "{args}.copy_to_host()",
}
OTHERWISE = {
    # A view has its offset in its pointer, and never changes: a reshape is its resize.
    "stridedview": {
        "storage_offset": "{args}.ptr",
        "resize": "{args}.reshape(32, 64)",
    },
    "torch": {
        "as_strided": "{args}.as_strided((8, 8), (16, 1))",
        "as_strided_offset": "{args}.as_strided((8, 8), (16, 1), 16)",
        "pointer": "{args}.data_ptr()",
        "storage_offset": "{args}.storage_offset()",
        "resize": "{args}.resize_(32, 64)",
        "copy_to_host": "{args}.cpu()",
    },
    "cupy": {
        "as_strided": "as_strided({args}, (8, 8), (64, 4))",
        "as_strided_offset": "as_strided({args}.ravel()[16:], (8, 8), (64, 4))",
        "pointer": "{args}.data.ptr",
        "copy_to_host": "{args}.get()",
    },
    "DeviceNDArray": {"pointer": "{args}.device_ctypes_pointer"},
}
EMPTY = {
    "torch": ("function({size}, device=where)", lambda: peer("torch").empty),
    "cupy": ("function({size})", lambda: peer("cupy").empty),
    "DeviceNDArray": ("function({size})", lambda: peer("numba.cuda").device_array),
    "stridedview": ("function({size})", lambda: public("empty")),
}
COPY = {
    "torch": lambda target, source: target.copy_(source),
    "cupy": lambda target, source: target.__setitem__(..., source),
    "DeviceNDArray": lambda target, source: target.copy_to_device(source),
    "stridedview": lambda target, source: target.copy_to_device(source),
    # cuda.core's own copy, reached through the view.
    "cuda.core": lambda target, source: target.smv.copy_from(source.smv, core_stream()),
}
CUTS = {
    "copy_contiguous": (lambda array: array, lambda array: array),
    "copy_strided": (lambda array: array[:, ::2], lambda array: array[:, ::2]),
    "copy_transposed": (lambda array: array, lambda array: array.T),
}


@cache
def core_stream():
    """Return cuda.core's name for the legacy default stream."""
    return peer("cuda.core").LEGACY_DEFAULT_STREAM


def makers(device):
    """Return, by contender, what makes an array of a shape."""
    return {
        "stridedview": lambda shape: public("from_any")(device.any_torch_tensor(shape)),
        "torch": device.any_torch_tensor,
        "cupy": device.cupy_array,
        "DeviceNDArray": device.device_array,
    }


def view(make, name, line):
    names = {}
    if "as_strided(" in line and name == "cupy":
        names["as_strided"] = peer("cupy").lib.stride_tricks.as_strided
    return call_with(line, [make(SMALL)], **names)


def empty(device, name, size):
    line, find = EMPTY[name]
    if name != "torch":
        device.require()
    names = {"where": "cuda:0" if device.present else "cpu"} if name == "torch" else {}
    return call_with(line.replace("{size}", str(size)), [], function=find(), **names)


def copy_pair(device, pair, op, name):
    """Return a burst that copies one big array, cut as the operation says, to another."""
    device.require()
    target, source = pair(name)
    cut_target, cut_source = CUTS[op]
    into, out_of, copy = cut_target(target), cut_source(source), COPY[name]
    return timed(lambda: copy(into, out_of), sync=device.sync)


def copy_raw(device, pair, moved):
    device.require()
    target, source = (array.data_ptr() for array in pair("torch"))
    copy = _floor.loaded().copy_on_device
    return timed(lambda: copy(target, source, moved), sync=device.sync)


def views(device):
    """Return the contenders that only look at memory, or allocate it."""
    where = "" if device.present else "host memory"
    rows = []
    for name, make in makers(device).items():
        lines = {**VIEWS, **OTHERWISE.get(name, {})}
        if name == "DeviceNDArray":
            unknown = ("as_strided", "as_strided_offset", "device")
            lines = {op: line for op, line in lines.items() if op not in unknown}
        for op, line in lines.items():
            calls = 20 if op == "copy_to_host" else 150
            build = partial(view, make, name, line)
            rows.append(Contender(f"array.{op}", name, build, calls=calls, note=where))
        for op, size in (("empty", 128), ("empty_0", 0)):
            build = partial(empty, device, name, size)
            rows.append(
                Contender(f"array.{op}", name, build, note=where if name == "torch" else "")
            )
    return rows


def imports(device):
    """Return the contenders that make such an array from a torch tensor."""
    ways = {
        "stridedview": lambda: public("from_any"),
        "torch": lambda: peer("torch").from_dlpack,
        "cupy": lambda: peer("cupy").from_dlpack,
        "DeviceNDArray": lambda: peer("numba.cuda").as_cuda_array,
    }

    def build(find):
        return call_with("function({args})", [device.any_torch_tensor()], function=find())

    return [
        Contender("array.from_any", name, partial(build, find))
        for name, find in ways.items()
    ]


def copies(device, options):
    """Return the contenders that copy on the device."""
    side = 1024 if options.quick else 11584  # 512 MB of float32
    make = makers(device)

    @cache
    def pair(name):
        maker = make.get(name, make["stridedview"])
        return maker((side, side)), maker((side, side))

    rows = []
    for op in CUTS:
        moved = side * side * 4 // (2 if op == "copy_strided" else 1)
        kind = {"calls": 1, "rounds": COPY_ROUNDS, "moved": 2 * moved}
        rows.append(
            Contender(f"array.{op}", FLOOR, partial(copy_raw, device, pair, moved), **kind)
        )
        rows += [
            Contender(
                f"array.{op}", name, partial(copy_pair, device, pair, op, name), **kind
            )
            for name in COPY
            # its .T is a copy already, made by a kernel: see array.transpose
            if (op, name) != ("copy_transposed", "DeviceNDArray")
        ]
    return rows


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(
        imports(device) + views(device) + copies(device, options), options, device.sync
    )
