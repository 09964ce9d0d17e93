"""The plans in `plans/` are what the tool makes of the example models today: to the byte."""

from pathlib import Path

import pytest

from shardplan.cli import main

ROOT = Path(__file__).parents[1]
PLANS = sorted((ROOT / "plans").glob("*.plan.json"))


def test_there_are_committed_plans():
    assert PLANS


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_solving_again_gives_the_committed_plan(plan, tmp_path, monkeypatch):
    """If this fails on purpose, make the plan again with the command below and look at the diff."""
    monkeypatch.chdir(ROOT)
    model, mesh, *_ = plan.name.split(".")
    again = tmp_path / plan.name
    code = main(["solve", f"tests/models/{model}.onnx", "--mesh", mesh, "-o", str(again)])
    assert code == 0
    assert again.read_text() == plan.read_text()
