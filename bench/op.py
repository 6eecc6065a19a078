"""Topic ``op``: what it costs to have a launch as an operator of torch's.

An empty kernel on float32 tensors of 128 items, one block of 128 threads, on torch's
current stream; the first tensor counts as mutated. In ``op.new`` the kernel's second
tensor is made by the operator. The floor is that of topic ``launch``.
"""

from functools import partial

from bench import launch
from bench._device import Device, peer
from bench._harness import Contender, call_with, keep, measure, public
from bench._kernels import EMPTY, empty_2

FLOOR = launch.FLOOR
NUMBERS = (1, 3)
NAMESPACE = "stridedview_bench"
CALL = "function({args})"


def schema(number):
    """Return the schema of an operator that mutates the first of so many tensors."""
    rest = "".join(f", Tensor {name}" for name in "bc"[: number - 1])
    return f"(Tensor(a!) a{rest}) -> ()"


def configured(number):
    """Return the empty kernel with its grid and block."""
    return peer("numba.cuda").jit(EMPTY[number])[launch.GRID, launch.BLOCK]


def tensors(device, number):
    return [device.torch_tensor() for _ in range(number)]


def launching(kernel):
    """Return a function around a launch, as somebody would write it by hand."""

    def launch_kernel(*args):
        kernel(*args)

    return launch_kernel


def ours(device, number):
    torch_op = public("torch_op")
    arrays = tensors(device, number)
    name = f"{NAMESPACE}::ours_{number}"
    op = torch_op(configured(number), name=name, schema=schema(number))
    return call_with(CALL, arrays, function=op)


def by_hand(device, number):
    library = peer("torch").library.Library(NAMESPACE, "FRAGMENT")
    arrays = tensors(device, number)
    name = f"by_hand_{number}"
    library.define(name + schema(number))
    library.impl(name, launching(configured(number)), "CompositeExplicitAutograd")
    op = getattr(getattr(peer("torch").ops, NAMESPACE), name).default
    return keep(call_with(CALL, arrays, function=op), library)


def custom_op(device, number):
    custom = peer("torch").library.custom_op
    arrays = tensors(device, number)
    op = custom(
        f"{NAMESPACE}::custom_{number}",
        launching(configured(number)),
        mutates_args=("a",),
        schema=schema(number),
    )
    return call_with(CALL, arrays, function=op)


def torchs_own(device, number):
    """Torch's operators with as many tensors: ``a.add_(1.0)``, ``add(a, b, out=c)``."""
    arrays = tensors(device, number)
    if number == 1:
        return call_with("{args}", arrays, each="{}.add_(1.0)")
    a, b, c = arrays
    line = "function(a, b, out=c)"
    return call_with(line, [], function=peer("torch").add, a=a, b=b, c=c)


def new_ours(device):
    kernel = peer("numba.cuda").jit(empty_2)[launch.GRID, launch.BLOCK]
    op = public("torch_op")(
        kernel,
        name=f"{NAMESPACE}::new_ours",
        schema="(Tensor a) -> Tensor",
        outputs={"b": "a"},
    )
    return call_with(CALL, [device.torch_tensor()], function=op)


def new_plain(device):
    kernel = peer("numba.cuda").jit(empty_2)[launch.GRID, launch.BLOCK]
    make = peer("torch").empty_like
    line = "b = make(a)\n        function(a, b)"
    return call_with(line, [], function=kernel, make=make, a=device.torch_tensor())


def new_custom(device):
    torch = peer("torch")
    kernel = peer("numba.cuda").jit(empty_2)[launch.GRID, launch.BLOCK]

    def work(a):
        b = torch.empty_like(a)
        kernel(a, b)
        return b

    op = torch.library.custom_op(
        f"{NAMESPACE}::new_custom", work, mutates_args=(), schema="(Tensor a) -> Tensor"
    )
    return call_with(CALL, [device.torch_tensor()], function=op)


def new_torchs_own(device):
    return call_with("{args}", [device.torch_tensor()], each="({} * 2.0)")


def contenders(device):
    """Return the contenders of this topic, floor first."""
    plain = partial(launch.numba, device.torch_tensor)
    unsafe = "no version is bumped, nothing is told to autograd"
    rows = [
        (FLOOR, launch.raw, False, "C loop, the GIL held"),
        ("plain launch", plain, True, "a configured kernel called with the tensors"),
        ("stridedview.torch_op", ours, True, "version bumped"),
        ("Library.define + impl", by_hand, True, f"around a plain launch; {unsafe}"),
        ("torch.library.custom_op", custom_op, True, "around a plain launch"),
        ("torch's own", torchs_own, False, "1: a.add_(1.0), 3: add(a, b, out=c)"),
    ]
    found = [
        Contender(f"op.{number}", name, partial(make, device, number), patched, note=note)
        for name, make, patched, note in rows
        for number in NUMBERS
    ]
    new = [
        ("plain launch", new_plain, True, "torch.empty_like, then a configured kernel"),
        ("stridedview.torch_op", new_ours, True, "outputs={'b': 'a'}"),
        ("torch.library.custom_op", new_custom, True, "torch.empty_like within"),
        ("torch's own", new_torchs_own, False, "a * 2.0"),
    ]
    return found + [
        Contender("op.new", name, partial(make, device), patched, note=note)
        for name, make, patched, note in new
    ]


def run(options):
    """Measure the topic and return its rows."""
    device = Device(options)
    return measure(contenders(device), options, device.sync)
