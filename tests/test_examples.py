"""The examples: run in the simulator, and every kernel of theirs compiled for a GPU."""

import importlib
import json
import re
import sys

import pytest
from numba import cuda

import stridedview
from tests import standin
from tests.example_runs import EXAMPLES, run, table_of

torch = pytest.importorskip("torch")

# The rows in the simulator, and what a script says that it leaves out there.
SCRIPTS = {
    "instance_norm3d": (2, ""),
    "fused_layer": (2, ""),
    "lstm_cell": (4, "no prepared launches"),
    "stencil_graph": (2, "no graphs"),
    "stream_pipeline": (2, "no streams"),
}


def test_scripts_are_all_listed():
    found = {path.stem for path in EXAMPLES.glob("*.py")} - {"common"}
    assert found == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_when_simulated_then_agrees_with_torch_and_prints_a_table(name, tmp_path):
    count, left_out = SCRIPTS[name]
    out = tmp_path / "out.json"
    done = run(name, "--json", str(out), NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stdout + done.stderr
    said, title, rows = table_of(done.stdout, name)
    assert left_out in said
    assert title == f"{name} on the simulator (no measure of a GPU)"
    assert len(rows) == count
    assert all(cells[-2:] == ["-", "-"] for cells in rows.values())
    found = json.loads(out.read_text())
    assert [row["case"] for row in found["rows"]] == list(rows)
    assert found["example"] == name
    assert found["versions"]["torch"] == torch.__version__


def test_example_when_there_is_no_gpu_then_it_picks_the_simulator():
    done = run("stencil_graph", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("No GPU: running in Numba's CUDA simulator instead.\n")
    assert len(table_of(done.stdout, "stencil_graph")[2]) == 2


def test_example_when_a_result_is_wrong_then_the_exit_code_tells(tmp_path):
    source = (EXAMPLES / "stencil_graph.py").read_text()
    right = "heat[row + 1, column]"
    assert right in source
    (tmp_path / "broken.py").write_text(source.replace(right, "heat[row, column]"))
    (tmp_path / "common.py").write_text((EXAMPLES / "common.py").read_text())
    # Through the child that it starts in the simulator, too.
    done = run("broken", folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "Tensor-likes are not close" in done.stderr


# ---- every kernel, compiled for the stand-in's GPU from real tensors ---------------------


def tensors(dtype, *shapes):
    return [standin.torch_tensor(shape, dtype) for shape in shapes]


def normalize_arguments(dtype):
    real = torch.promote_types(dtype, torch.float32)
    x, out = tensors(dtype, (2, 3, 40), (2, 3, 40))
    weight, bias, mean, rstd = tensors(real, (3,), (3,), (2, 3), (2, 3))
    return x, weight, bias, 1e-5, out, mean, rstd


def differentiate_arguments(dtype):
    real = torch.promote_types(dtype, torch.float32)
    grad, x, grad_x = tensors(dtype, *[(2, 3, 40)] * 3)
    weight, *by_sample = tensors(real, (3,), *[(2, 3)] * 4)
    return grad, x, weight, *by_sample[:2], grad_x, *by_sample[2:]


def fused_forward_arguments(dtype):
    return tensors(dtype, (8, 6), (6,), (6,), (8, 6), (8, 6))


def fused_backward_arguments(dtype):
    sums = tensors(torch.float32, (128, 6), (128, 6))
    return *tensors(dtype, (8, 6), (8, 6), (6,), (6,), (8, 6)), *sums


def cell_forward_arguments(dtype):
    gates, states = [(2, 16)] * 3, [(2, 4)] * 3
    return tensors(dtype, *gates[:2], *states, gates[2])


def cell_backward_arguments(dtype):
    states, gates = [(2, 4)] * 2, (2, 16)
    return tensors(dtype, *states, gates, *states, gates, (2, 4))


def diffuse_arguments(dtype):
    return *tensors(dtype, (9, 9), (9, 9)), 0.2


def solve_arguments(dtype):
    return *tensors(dtype, (6,), (6,)), 0.6


FLOAT, HALF, DOUBLE = torch.float32, torch.float16, torch.float64
KERNELS = {
    "instance_norm3d": {
        "normalize": (normalize_arguments, (FLOAT, HALF, DOUBLE)),
        "differentiate": (differentiate_arguments, (FLOAT, HALF, DOUBLE)),
    },
    "fused_layer": {
        "fused_forward": (fused_forward_arguments, (FLOAT, HALF)),
        "fused_backward": (fused_backward_arguments, (FLOAT, HALF)),
    },
    "lstm_cell": {
        "cell_forward": (cell_forward_arguments, (FLOAT,)),
        "cell_backward": (cell_backward_arguments, (FLOAT,)),
    },
    "stencil_graph": {"diffuse": (diffuse_arguments, (FLOAT,))},
    "stream_pipeline": {"solve": (solve_arguments, (FLOAT,))},
}
CASES = [
    pytest.param(module, name, arguments, dtype, id=f"{name}-{dtype}")
    for module, kernels in KERNELS.items()
    for name, (arguments, dtypes) in kernels.items()
    for dtype in dtypes
]

# Declarations, and a Python float that comes in as an argument and is rounded.
HARMLESS = re.compile(
    r"\.param \.f64|\.reg \.f64|ld\.param\.f64|cvt\.rn(?:\.ftz)?\.f32\.f64"
)


@pytest.fixture
def load(monkeypatch):
    """Give a function that imports an example as its own folder's script would be."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


@pytest.mark.standin
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_all_listed(load, name):
    found = {
        key
        for key, value in vars(load(name)).items()
        if isinstance(value, type(cuda.jit(lambda: None)))
        and not value.targetoptions.get("device")
    }
    assert found == set(KERNELS[name])


@pytest.mark.standin
@pytest.mark.parametrize(("module", "name", "arguments", "dtype"), CASES)
def test_kernel_when_given_tensors_on_a_gpu_then_it_compiles_and_launches(
    driver, load, module, name, arguments, dtype
):
    kernel = getattr(load(module), name)
    with stridedview.enabled():
        kernel[(3, 2), 4](*arguments(dtype))
    (launch,) = driver.launches()
    assert name in launch.function
    (asm,) = kernel.inspect_asm().values()
    assert ".target sm_90" in asm
    doubles = [line for line in asm.splitlines() if ".f64" in HARMLESS.sub("", line)]
    assert bool(doubles) is (dtype is DOUBLE)
