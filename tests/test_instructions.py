"""Instructions a launch on the stand-in driver: exact, so they may be asserted."""

import shutil

import pytest

from bench import instructions

# The project's goals for a whole launch with arrays of float32[128]; a count repeats
# within 0.2%, and another compiler or Python moves it by more than that.
GOALS = {
    ("stridedview torch", 1): 1_900,
    ("stridedview torch", 3): 2_600,
    ("stridedview torch", 26): 10_500,
    # Read through Python attributes, whose cache depends on where types lie in memory.
    ("stridedview DeviceNDArray", 3): 16_000,
}


def counted(case, arguments, **options):
    if shutil.which("valgrind") is None:
        pytest.skip("counts with valgrind")
    try:
        return instructions.count(case, arguments, **options)
    except instructions.UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.standin
@pytest.mark.parametrize(("case", "arguments"), GOALS)
def test_launch_when_the_signature_is_known_then_it_costs_no_more_than_the_goal(
    driver, case, arguments
):
    assert counted(case, arguments) <= GOALS[case, arguments]


@pytest.mark.standin
def test_launch_when_slow_routes_are_watched_then_a_hit_costs_no_more(driver):
    plain = counted("stridedview torch", 1)
    assert counted("stridedview torch", 1, slow="warn") <= 1.003 * plain
