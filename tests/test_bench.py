"""The benchmark harness: statistics, tables, results, the command line.

No test asserts a time; what needs a GPU is tried here without one, and must give
rows with a reason.
"""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench import _floor, _harness, _report, cache, instructions, suite

ROOT = Path(__file__).parent.parent
QUICK = _harness.Options(quick=True)


def bench(*arguments):
    """Run the command line in a child process, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def contender(name="a", *, make=None, **rest):
    return _harness.Contender(
        "topic.op", name, make or (lambda: lambda n: 1000 * n), **rest
    )


def row(name, median, row_id="launch.3", **rest):
    figures = {"median": median, "iqr": 0.5, "min": median, "n": 4, "unit": "us"}
    return {"id": row_id, "contender": name, **figures, "note": "", **rest}


def content(rows, topic="launch"):
    return _report.result(topic, rows, floor="raw", settings={"quick": False})


@pytest.fixture
def floor():
    """Return the compiled floor; skip where no compiler or no headers are."""
    try:
        return _floor.module()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "samples",
    [
        [3.0],
        [1.0, 2.0],
        [5.0, 1.0, 3.0],
        [float(number * 7 % 101) for number in range(100)],
    ],
    ids=["one", "two", "three", "hundred"],
)
def test_summarize_agrees_with_the_standard_library(samples):
    found = _harness.summarize(samples)
    assert found["median"] == statistics.median(samples)
    assert found["min"] == min(samples)
    assert found["n"] == len(samples)
    if len(samples) > 1:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        assert found["iqr"] == pytest.approx(high - low)
    else:
        assert found["iqr"] == 0


def test_measure_gives_microseconds_a_call():
    (found,) = _harness.measure([contender()], QUICK)
    assert found["median"] == found["min"] == 1.0
    assert found["n"] == _harness.QUICK_ROUNDS
    assert found["calls"] == _harness.QUICK_BURST


def test_measure_when_bytes_move_gives_the_rate():
    (found,) = _harness.measure([contender(calls=1, moved=2000)], QUICK)
    assert found["gb_per_s"] == pytest.approx(2.0)


def test_measure_takes_turns_and_rotates_who_is_first():
    order = []

    def make(name):
        def burst(n):
            if n > 1:
                order.append(name)
            return n

        return lambda: burst

    everyone = [contender(name, make=make(name)) for name in "abc"]
    _harness.measure(everyone, _harness.Options(rounds=3))
    assert "".join(order) == "abcbcacab"


def test_measure_when_a_contender_cannot_be_built_gives_the_reason():
    def missing():
        raise _harness.UnavailableError("not installed")

    def broken():
        raise TypeError("in /some/where/file.py: no such thing\nand more")

    rows = _harness.measure(
        [contender("x", make=missing), contender("y", make=broken), contender()], QUICK
    )
    assert [each.get("unavailable") for each in rows] == [
        "not installed",
        "TypeError: in file.py: no such thing",
        None,
    ]


def test_measure_when_a_contender_breaks_on_the_way_keeps_the_others():
    calls = []

    def burst(n):
        calls.append(n)
        if len(calls) > 5:
            raise RuntimeError("gone")
        return n

    rows = _harness.measure([contender("x", make=lambda: burst), contender()], QUICK)
    assert rows[0]["unavailable"] == "RuntimeError: gone"
    assert rows[1]["n"] == _harness.QUICK_ROUNDS


def test_measure_limits_the_rounds_of_a_slow_contender():
    rows = _harness.measure([contender(rounds=2), contender("b")], QUICK)
    assert [each["n"] for each in rows] == [2, _harness.QUICK_ROUNDS]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1e-6, (150, 100)),
        (1e-3, (150, 100)),
        (0.2, (1, 75)),
        (30.0, (1, 5)),
        (0.0, (150, 100)),
    ],
)
def test_plan_keeps_a_slow_row_short(seconds, expected):
    assert _harness.plan(contender(), _harness.Options(), seconds) == expected


def test_measure_keeps_to_the_rows_asked_for():
    options = _harness.Options(quick=True, only=re.compile("op b$"))
    rows = _harness.measure([contender("a"), contender("b")], options)
    assert [each["contender"] for each in rows] == ["b"]


def test_ratios_are_over_the_floor_of_the_same_id():
    rows = [row("raw", 4.0), row("x", 6.0), row("y", 6.0, "launch.1")]
    _harness.add_ratios(rows, "raw")
    assert [each.get("ratio") for each in rows] == [1.0, 1.5, None]


@pytest.mark.parametrize(
    ("line", "each", "expected"),
    [
        ("function({args})", "{}", [1, 2]),
        ("function(({args},))", "{}", [(1, 2)]),
        ("function({args}, last)", "{}.real", [1, 2, "end"]),
    ],
    ids=["plain", "tuple", "attribute"],
)
def test_call_with_writes_the_call_out(line, each, expected):
    seen = []
    function = lambda *args: seen.append(list(args))  # noqa: E731
    burst = _harness.call_with(line, [1, 2], each=each, function=function, last="end")
    assert burst(3) > 0
    assert seen == [expected] * 3


@pytest.fixture
def package(monkeypatch):
    """Put a package that only counts its switches in stridedview's place."""

    class Package:
        def __init__(self):
            self.on = False
            self.log = []

        def is_enabled(self):
            return self.on

        def enable(self):
            self.on = True
            self.log.append("enable")

        def disable(self):
            self.on = False
            self.log.append("disable")

    made = Package()
    monkeypatch.setitem(sys.modules, "stridedview", made)
    return made


@pytest.mark.parametrize("before", [False, True], ids=["off", "on"])
@pytest.mark.parametrize("wanted", [False, True], ids=["unpatched", "patched"])
def test_patch_holds_the_wanted_state_and_puts_the_old_one_back(package, before, wanted):
    package.on = before
    with _harness.patch(wanted):
        assert package.on is wanted
    assert package.on is before
    assert len(package.log) == (0 if before is wanted else 2)


def test_measure_switches_the_patch_for_whom_it_is_wanted(package):
    states = []

    def make(name):
        return lambda: lambda n: states.append((name, package.on)) or n

    everyone = [
        contender("stock", make=make("stock")),
        contender("ours", make=make("ours"), patched=True),
    ]
    _harness.measure(everyone, QUICK)
    assert set(states) == {("stock", False), ("ours", True)}


def test_result_survives_json(tmp_path):
    before = content(_harness.add_ratios([row("raw", 4.0), row("x", 6.0)], "raw"))
    _report.write(tmp_path / "out.json", before)
    assert _report.read(tmp_path / "out.json") == before


def test_result_names_no_folder():
    text = json.dumps(content([row("raw", 4.0)]))
    assert str(ROOT) not in text
    assert sys.prefix not in text


@pytest.mark.parametrize("wrong", ["[]", "{}", '{"schema": 0}'])
def test_read_when_the_file_is_not_a_result_raises(tmp_path, wrong):
    (tmp_path / "x.json").write_text(wrong)
    with pytest.raises(ValueError, match=r"x\.json is not a result"):
        _report.read(tmp_path / "x.json")


def test_table_has_a_line_a_contender_and_says_who_is_missing():
    rows = [
        row("raw", 4.0),
        row("x", 6.0),
        row("x", 123.4, "launch.26"),
        _harness.unavailable("launch.3", "y", "not installed"),
        _harness.unavailable("launch.26", "y", "not installed"),
    ]
    lines = _report.table(content(_harness.add_ratios(rows, "raw"))).splitlines()
    assert lines[:4] == [
        "|  | 3 | 26 |",
        "| --- | ---: | ---: |",
        "| raw | 4.00 (1.00x) |  |",
        "| x | 6.00 (1.50x) | 123 |",
    ]
    assert lines[-1] == "- y (launch.3, launch.26): not installed"


def test_table_with_many_operations_has_a_line_an_operation():
    rows = [row("x", 1.0, f"launch.{number}") for number in range(9)]
    lines = _report.table(content(rows)).splitlines()
    assert lines[0] == "|  | x |"
    assert lines[2] == "| 0 | 1.00 |"


def test_table_in_full_has_every_figure():
    rows = _harness.add_ratios([row("raw", 4.0), row("x", 6.0, gb_per_s=30.0)], "raw")
    lines = _report.table(content(rows), full=True).splitlines()
    assert lines[3] == "| launch.3 x | 6.00 | 0.500 | 6.00 | 4 | 1.50 | 30.0 |"


def test_table_of_nothing_says_so():
    assert _report.table(content([])).startswith("Nothing was measured.")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.1234, "0.123"), (4.056, "4.06"), (46.31, "46.3"), (5261.4, "5,261")],
)
def test_number_keeps_three_digits(value, text):
    assert _report.number(value) == text


def test_array_words_are_those_of_numba():
    words = memoryview(_floor.array_words(0x7000, (3, 5), 4)).cast("q").tolist()
    assert words == [0, 0, 15, 4, 0x7000, 3, 5, 20, 4]


def test_floor_when_callgrind_is_asked_for_nonsense_raises(floor):
    with pytest.raises((ValueError, RuntimeError), match=r"unknown request|built without"):
        floor.callgrind("nothing")


def test_floor_when_an_address_is_no_kernel_raises(floor):
    with pytest.raises((OSError, OverflowError)):
        floor.function(-(1 << 70))


def test_callgrind_totals_are_read():
    assert instructions.total("events: Ir\nfn=(1)\n3 4\n\ntotals: 279770\n") == 279770
    with pytest.raises(ValueError, match="no totals"):
        instructions.total("events: Ir\n")


def test_child_problem_prefers_the_childs_own_reason():
    stderr = "==12== valgrind\nnot counted: no CUDA device\n==12== end\n"
    assert instructions.child_problem(stderr) == "no CUDA device"
    assert instructions.child_problem("==1== x\nKeyError: 'y'\n") == "KeyError: 'y'"
    assert instructions.child_problem("") == "the child said nothing"


def test_suite_rows_are_microseconds():
    stats = {"median": 2e-6, "iqr": 1e-7, "min": 1.5e-6, "rounds": 9, "iterations": 3}
    (found,) = suite.rows_of(
        [{"name": "test_one_arg[dispatch-torch]", "stats": stats}], "numba-cuda"
    )
    assert found["id"] == "numba-suite.one_arg[dispatch-torch]"
    assert found["median"] == pytest.approx(2.0)
    assert found["n"] == 9


def test_help_names_every_topic():
    done = bench("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in command_line.TOPICS)


@pytest.mark.parametrize("topic", command_line.TOPICS)
def test_every_topic_has_its_module_and_help(topic, capsys):
    assert callable(command_line.topic(topic).run)
    with pytest.raises(SystemExit) as stop:
        command_line.main([topic, "--help"])
    assert stop.value.code == 0
    assert "--quick" in capsys.readouterr().out


def test_only_when_it_is_no_expression_is_an_error_of_the_command_line(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["launch", "--only", "("])
    assert stop.value.code == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_quick_import_runs_without_a_gpu(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    done = bench("import", "--quick", "--only", r"torch\.from_dlpack", "--json", str(out))
    assert done.returncode == 0, done.stderr
    found = _report.read(out)
    assert found["topic"] == "import"
    assert {each["id"] for each in found["rows"]} == {"import.one", "import.400"}
    assert all("median" in each for each in found["rows"])
    assert bench("table", str(out)).stdout.startswith("|")


def assert_status_tells(done, rows):
    """Check that a run which measured nothing fails, and only such a run."""
    measured = any("median" in each for each in rows)
    assert done.returncode == (0 if measured else 1), done.stderr
    assert ("nothing was measured" in done.stderr) is not measured


@pytest.mark.parametrize("options", [[], ["--standin"]], ids=["as it is", "standin"])
def test_quick_op_gives_a_figure_or_a_reason_for_every_row(tmp_path, options):
    pytest.importorskip("torch")
    out = tmp_path / "out.json"
    done = bench("op", "--quick", "--json", str(out), *options)
    rows = _report.read(out)["rows"]
    assert_status_tells(done, rows)
    assert {each["id"] for each in rows} == {"op.1", "op.3", "op.new"}
    assert all(("median" in each) != ("unavailable" in each) for each in rows)
    ours = [each for each in rows if each["contender"] == "stridedview.torch_op"]
    if options and any("median" in each for each in rows):
        # Only op.new needs torch's own allocation on the device.
        assert all("median" in each for each in ours if each["id"] != "op.new")


def test_quick_launch_gives_a_figure_or_a_reason_for_every_row(tmp_path):
    out = tmp_path / "out.json"
    done = bench("launch", "--quick", "--only", r"^launch\.1 ", "--json", str(out))
    rows = _report.read(out)["rows"]
    assert_status_tells(done, rows)
    assert {"raw", "numba-cuda torch", "stridedview torch"} <= {
        each["contender"] for each in rows
    }
    assert all(("median" in each) != ("unavailable" in each) for each in rows)


def test_look_ups_when_a_hit_was_measured_then_they_are_its_cost_an_argument():
    figures = {"iqr": 0.2, "n": 5, "unit": "us"}
    rows = [
        {"id": "cache.hit.4", "contender": "raw", "median": 4.0, "min": 3.0, **figures},
        {"id": "cache.hit.4", "contender": "stridedview torch", "median": 4.4, "min": 4.2,
         **figures},
        {"id": "cache.hit.4", "contender": "numba-cuda torch", "median": 9.0, "min": 9.0,
         **figures},
        {"id": "cache.miss.4", "contender": "stridedview torch", "median": 90.0, "min": 9.0,
         **figures},
        {"id": "cache.hit.1", "contender": "stridedview torch", "unavailable": "no torch"},
    ]  # fmt: skip
    (found,) = cache.look_ups(_harness.add_ratios(rows, "raw"))
    assert (found["id"], found["contender"]) == ("cache.look_up.4", "stridedview torch")
    assert found["median"] == pytest.approx(0.1)
    assert found["min"] == pytest.approx(0.05)
    assert "look_up.4" in _report.long(content([found]))


REFUSED_TABLES = {
    "missing": (None, "No such file"),
    "no JSON": ("{", "it is no JSON"),
    "another form": ("{}", "not a result of schema 1"),
}


@pytest.mark.parametrize("case", REFUSED_TABLES.values(), ids=REFUSED_TABLES)
def test_table_when_the_file_is_none_then_one_line_says_so(tmp_path, capsys, case):
    text, reason = case
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert command_line.main(["table", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "x.json" in line
    assert reason in line


def test_results_when_read_then_the_readme_says_of_each_whether_it_is_a_table():
    text = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    taken, others = text.partition("It takes what")[2].split("The others have forms")
    for path in (ROOT / "bench" / "results").glob("*.json"):
        has_schema = "schema" in json.loads(path.read_text(encoding="utf-8"))
        assert f"`{path.stem}`" in (taken if has_schema else others)


NOTHING = {
    "no device": ([_harness.unavailable("launch.1", "raw", "no")], [], "--standin"),
    "standin": ([_harness.unavailable("launch.1", "raw", "no")], ["--standin"], "why"),
    "no row": ([], ["--only", "x"], "--only"),
}


@pytest.mark.parametrize("case", NOTHING.values(), ids=NOTHING)
def test_run_when_nothing_was_measured_then_it_fails_and_says_what_to_do(
    monkeypatch, capsys, case
):
    rows, options, hint = case
    monkeypatch.setattr(command_line.topic("launch"), "run", lambda _: rows)
    assert command_line.main(["launch", *options]) == 1
    assert hint in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["instructions", "numba-suite"])
def test_topic_when_it_takes_minutes_then_progress_is_told(monkeypatch, capsys, name):
    def run(options):
        options.progress("counting")
        return [row("raw", 1.0)]

    monkeypatch.setattr(command_line.topic(name), "run", run)
    assert command_line.main([name]) == 0
    assert "counting" in capsys.readouterr().err


def test_suite_when_pytest_benchmark_is_absent_then_the_extra_is_named(monkeypatch):
    find = suite.importlib.util.find_spec
    monkeypatch.setattr(
        suite.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "pytest_benchmark" else find(name, *rest),
    )
    for found in suite.run(QUICK):
        assert "pip install -e '.[bench]'" in found["unavailable"]


SAID = {
    "a failure": (
        "F\nFAILED test_x.py::test_a[b - c] - ValueError: no GPU\nwarner(text)\n",
        "ValueError: no GPU",
    ),
    "no failure": ("usage: pytest\nno such option\n\n", "no such option"),
    "nothing": ("", "it printed nothing"),
}


@pytest.mark.parametrize("case", SAID.values(), ids=SAID)
def test_suite_when_it_measured_nothing_then_the_failure_is_the_reason(case):
    said, reason = case
    assert reason in suite.problem(said)


@pytest.mark.skipif(
    suite.importlib.util.find_spec("pytest_benchmark") is None,
    reason="needs pytest-benchmark",
)
def test_suite_when_on_the_standin_then_both_runs_have_figures():
    rows = suite.run(_harness.Options(quick=True, standin=True))
    measured = {each["contender"] for each in rows if "median" in each}
    assert measured == {suite.BEFORE, suite.AFTER}, rows
