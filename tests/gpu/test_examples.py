"""The examples on a GPU: they agree with torch, and their kernels are counted."""

import json

import pytest

from tests.example_runs import run, table_of

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

EACH_WAY = [
    f"{dtype} {way}" for dtype in ("float32", "float16") for way in ("forward", "backward")
]
CASES = {
    "instance_norm3d": EACH_WAY,
    "fused_layer": EACH_WAY,
    "lstm_cell": [
        f"{case}; {other}"
        for case in ("forward", "forward, prepared", "forward and backward")
        for other in ("pointwise", "nn.LSTMCell")
    ],
    "stencil_graph": [
        f"{case}; {other}"
        for case in ("launch by launch", "one graph")
        for other in ("slices", "conv2d")
    ],
    "stream_pipeline": ["1 stream", "4 streams"],
}


@pytest.mark.parametrize("name", CASES)
def test_example_when_run_on_the_gpu_then_agrees_with_torch_in_every_case(name, tmp_path):
    out = tmp_path / "out.json"
    done = run(name, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    said, title, rows = table_of(done.stdout, name)
    assert said == ""
    assert title == f"{name} on {torch.cuda.get_device_name()}"
    assert list(rows) == CASES[name]
    found = json.loads(out.read_text())
    assert [row["case"] for row in found["rows"]] == CASES[name]
    assert found["machine"]["device"] == torch.cuda.get_device_name()


def test_examples_when_fused_then_they_run_fewer_kernels_than_torch(tmp_path):
    out = tmp_path / "out.json"
    done = run("fused_layer", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [
        (row["ours_kernels"], row["torch_kernels"])
        for row in json.loads(out.read_text())["rows"]
    ]
    if None in counts[0]:
        pytest.skip("the profiler may not look at this GPU")
    assert counts[0][0] == 1
    assert all(ours < torchs for ours, torchs in counts)
