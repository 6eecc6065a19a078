"""The stand-in answers as the GPU did whose answers ``standin/hardware.json`` keeps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from numba import cuda

from tests import standin
from tests.standin import conformance

FACTS = json.loads((Path(__file__).parent / "standin" / "hardware.json").read_text())[
    "scenarios"
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Run the scenarios in a process where nobody else retains the context."""

    @cuda.jit("void(int32, float64)")
    def nothing(i, x):
        pass

    library = next(iter(nothing.overloads.values()))._codelibrary
    cubin = library.get_cubin(cc=(9, 0))
    path = tmp_path_factory.mktemp("conformance") / "kernel.cubin"
    path.write_bytes(getattr(cubin, "code", cubin))
    command = [sys.executable, conformance.__file__, str(path), library._entry_name]
    return json.loads(
        subprocess.run(
            command, env=standin.environment(), stdout=subprocess.PIPE, check=True
        ).stdout
    )


@pytest.mark.standin
@pytest.mark.parametrize("name", FACTS)
def test_answers_when_a_scenario_was_measured_then_they_are_the_hardwares(answers, name):
    assert answers[name] == FACTS[name]


@pytest.mark.standin
def test_facts_when_listed_then_every_scenario_has_some(answers):
    assert answers.keys() == FACTS.keys()
