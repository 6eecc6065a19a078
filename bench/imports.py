"""Topic ``import``: from a torch tensor to a view of it, and back.

One tensor, and 400 at once (the time is for all 400, making and freeing the list
included). Without a GPU the tensors are on the host and the rows say so.
"""

from bench._device import Device, peer
from bench._harness import Contender, call_with, measure, public, timed

FLOOR = ""
MANY = 400
CALLS_MANY = 10
ONE = "function({args})"


def memory_view(tensor):
    """cuda.core's importer, by its public name; -1 asks for no ordering."""
    return peer("cuda.core.utils").StridedMemoryView.from_any_interface(
        tensor, stream_ptr=-1
    )


def importers():
    """Return, by name, what looks a one-argument import function up."""
    return {
        "stridedview": lambda: public("from_any"),
        "torch.from_dlpack": lambda: peer("torch").from_dlpack,
        "cuda.as_cuda_array": lambda: peer("numba.cuda").as_cuda_array,
        "cupy.from_dlpack": lambda: peer("cupy").from_dlpack,
        "tvm-ffi": lambda: peer("tvm_ffi").from_dlpack,
    }


def exporters():
    """Return, by name, what looks up the import and the way back to torch."""
    ways = importers()
    torch_way = lambda: peer("torch").from_dlpack  # noqa: E731
    return {
        "stridedview": (ways["stridedview"], lambda: lambda view: view.to_torch()),
        "StridedMemoryView": (lambda: memory_view, torch_way),
        "cuda.as_cuda_array": (
            ways["cuda.as_cuda_array"],
            lambda: lambda array: peer("torch").as_tensor(array, device="cuda"),
        ),
        "cupy.from_dlpack": (ways["cupy.from_dlpack"], torch_way),
        "tvm-ffi": (ways["tvm-ffi"], torch_way),
    }


def one(device, find):
    return call_with(ONE, [device.any_torch_tensor()], function=find())


def one_memory_view(device):
    function = peer("cuda.core.utils").StridedMemoryView.from_any_interface
    return call_with(
        "function({args}, stream_ptr=-1)", [device.any_torch_tensor()], function=function
    )


def many(device, find):
    function = find()
    tensors = [device.any_torch_tensor() for _ in range(MANY)]
    return timed(lambda: [function(tensor) for tensor in tensors])


def many_at_once(device):
    function = public("from_many")
    tensors = [device.any_torch_tensor() for _ in range(MANY)]
    return timed(lambda: function(tensors))


def back(device, find, find_back):
    return call_with(ONE, [find()(device.any_torch_tensor())], function=find_back())


def back_many(device, find, find_back):
    function, back_function = find(), find_back()
    views = [function(device.any_torch_tensor()) for _ in range(MANY)]
    return timed(lambda: [back_function(view) for view in views])


def contenders(device):
    """Return the contenders of this topic."""
    where = "" if device.present else "host tensors"

    def row(op, name, make, calls=150):
        return Contender(f"import.{op}", name, make, calls=calls, note=where)

    rows = [
        row("one", name, lambda find=find: one(device, find))
        for name, find in importers().items()
    ]
    rows.append(row("one", "StridedMemoryView", lambda: one_memory_view(device)))
    rows.append(row("400", "stridedview", lambda: many_at_once(device), CALLS_MANY))
    for name, find in {**importers(), "StridedMemoryView": lambda: memory_view}.items():
        label = "stridedview, one at a time" if name == "stridedview" else name
        rows.append(row("400", label, lambda find=find: many(device, find), CALLS_MANY))
    for name, ways in exporters().items():
        rows.append(row("back", name, lambda ways=ways: back(device, *ways)))
        rows.append(
            row("back_400", name, lambda ways=ways: back_many(device, *ways), CALLS_MANY)
        )
    return rows


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(contenders(device), options, device.sync)
