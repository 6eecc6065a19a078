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
    assert suite.unexpected(found, before) == [
        "a: passed without, failed with stridedview",
        "b: failed without, passed with stridedview",
        "d: passed without, absent with stridedview",
    ]


def test_unexpected_when_a_difference_is_meant_then_it_passes_until_it_is_gone():
    before = {MEANT: "passed"}
    found = suite.differences(before, {MEANT: "failed"})
    assert found
    assert suite.unexpected(found, before) == []
    assert suite.unexpected({}, before) == [f"{MEANT}: expected to differ, and does not"]
    assert suite.unexpected({}, {}) == []
