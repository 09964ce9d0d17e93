"""Inputs of all classes, mutated: every answer has a known exit code, comes soon, and is printed harmlessly.

Fresh ones for as long as one likes: `--hypothesis-profile=fresh`, or benchmarks/fuzz.py.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from pathlib import Path

import pytest
from fuzz_classes import CLASSES, Workplace, made
from fuzz_run import answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = {"onnx-structure": 60, "onnx-operators": 60, "plans": 50}
randoms = st.randoms(use_true_random=False)
laws = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with (
        contextlib.chdir(folder),
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        pytest.MonkeyPatch.context() as patch,
    ):
        found = Workplace(folder)
        patch.delenv("SHARDPLAN_ADVICE")
        yield found


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_answer_is_one(name, place):
    @settings(laws, max_examples=EXAMPLES.get(name, 40))
    @given(randoms)
    def law(random):
        for command in made(name, place, random):
            found = answer(command)
            assert not found.fault, f"{' '.join(command)}\n{found.said}"

    law()


def test_a_fault_is_seen(place):
    """Of each kind that `answer` looks for."""
    assert answer(("show", place.path("training.plan.json"))).fault == ""
    slow = ("solve", "transformer:layers=2", "--mesh", "4x4", "-o", place.path("slow.plan.json"))
    assert answer(slow, seconds=1e-3).fault == "it takes too long"


def test_a_stage_that_runs_nothing(place):
    document = copy.deepcopy(place.plans["stages"])
    stage = document["pipeline"]["stages"][0]
    stage["units"] = []
    path = place.write("p.plan.json", json.dumps(document))
    found = answer(("diff", place.path("training.plan.json"), path))
    assert (found.code, found.fault) == (2, "")
    assert "'units' is [], expected a list of at least 1" in found.said
