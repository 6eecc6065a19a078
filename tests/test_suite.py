"""What the comparison of numba-cuda's own tests reads, and what it lets pass."""

from tests import suite

REPORT = """<testsuites><testsuite>
<testcase classname="test_a.A" name="passes"/>
<testcase classname="test_a.A" name="fails"><failure/></testcase>
<testcase classname="test_a.A" name="is skipped"><skipped/></testcase>
<testcase classname="" name="test_b"><error/></testcase>
<testcase classname="test_a.A" name="has subtests"><failure/></testcase>
<testcase classname="test_a.A" name="has subtests"/>
</testsuite></testsuites>"""
MEANT = next(iter(suite.EXPECTED))


def test_outcomes_when_a_report_is_read_then_each_test_has_one(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert suite.outcomes(report) == {
        "test_a.A::passes": "passed",
        "test_a.A::fails": "failed",
        "test_a.A::is skipped": "skipped",
        "::test_b": "error",
        "test_a.A::has subtests": "failed",
    }


def test_unexpected_when_outcomes_differ_then_each_way_is_told():
    before = {"a": "passed", "b": "failed", "c": "passed", "d": "passed", "e": "failed"}
    after = {"a": "failed", "b": "passed", "c": "passed", "e": "failed"}
    found = suite.differences(before, after)
    assert suite.unexpected(found, suite.EXPECTED, before) == [
        "a: passed without, failed with stridedview",
        "b: failed without, passed with stridedview",
        "d: passed without, absent with stridedview",
    ]


def test_unexpected_when_a_difference_is_meant_then_it_passes_until_it_is_gone():
    before = {MEANT: "passed"}
    found = suite.differences(before, {MEANT: "failed"})
    assert found
    assert suite.unexpected(found, suite.EXPECTED, before) == []
    assert suite.unexpected({}, suite.EXPECTED, before) == [
        f"{MEANT}: expected to differ, and does not"
    ]
    assert suite.unexpected({}, suite.EXPECTED, {}) == []


def test_confirmed_when_a_difference_is_not_there_each_time_then_it_is_dropped(monkeypatch):
    asked = []

    def run(source, arguments, environment):
        asked.append((source, arguments))
        is_first = len(asked) <= 2
        return {
            "t.A::real": "failed" if source else "passed",
            "t.A::luck": "failed",
            "t.A::turned": "passed" if source else "failed",
            "t.A::once": "failed" if source and is_first else "passed",
        }

    monkeypatch.setattr(suite, "run", run)
    names = ("t.A::real", "t.A::luck", "t.A::turned", "t.A::once", MEANT)
    found = dict.fromkeys(names, "passed without, failed with stridedview")
    assert set(suite.confirmed(found, suite.EXPECTED, ("", "enable"), {})) == {
        "t.A::real",
        MEANT,
    }
    assert [source for source, _ in asked] == ["", "enable"] * suite.ROUNDS_ALONE
    assert asked[0][1] == ["-k", suite.selection(list(names[:4]))]
    assert asked[-1][1] == ["-k", suite.selection(["t.A::real", "t.A::once"])]
    asked.clear()
    only = {MEANT: "differs"}
    assert suite.confirmed(only, suite.EXPECTED, ("", "enable"), {}) == only
    assert not asked


def test_selection_when_a_test_has_parameters_then_they_are_left_out():
    assert suite.selection(["test_a.A::has[x-1]", "::test_b"]) == (
        "(test_a and A and has) or (test_b)"
    )


def test_expected_when_arrays_are_on_then_the_table_of_the_docs_has_each():
    table = (suite.ROOT / "docs" / "arrays.md").read_text()
    for name in suite.expected(arrays=True):
        module, _, test = name.partition(".")
        short = test.partition("::")[2].removeprefix("test_devicearray_contiguous")
        assert f"`{module}`" in table, name
        assert short in table, name
    assert suite.expected(arrays=False) == suite.EXPECTED
