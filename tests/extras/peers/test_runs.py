"""Published training runs, one of each kind of device, as `shardplan price` predicts them: a constant of a profile that
changes is seen here."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
runs = pytest.importorskip("runs", reason="the benchmarks are not in the source distribution")

ERRORS = {
    "760m 8 a100-80 mb24 x2 seq2048 none": 0.011,
    "gpt-530b a100 x2240 zero1 tp8 pp35 mb1 gb1920 bf16 2022": -0.264,
    "7b 8 h100-80 mb6 x1 seq2048 none": -0.053,
    "llama2-13b h100 x16 zero1 pp4 vp10 mb1 gb128 fp8 24.07": -0.039,
    "llama3-8b h100-500w x8 zero3  mb2 gb16 bf16 2024-12": 0.002,
    "llama3-8b h200 x32 zero3  mb2 gb64 fp8 2025-06": 0.084,
    "llama3-8b b200 x8 zero1  mb2 gb128 fp8 25.11": -0.012,
    "llama3-8b gb200 x8 zero1  mb2 gb128 fp8 25.11": -0.063,
    "llama3-8b gb300 x8 zero1  mb2 gb128 fp8 25.11": -0.026,
    "llama3-8b mi325x x8 zero1  mb2 gb128 fp8 2025-09": 0.018,
    "gpt-oss-20b mi355x x8 zero1  mb2 gb16 fp8 2026-07": -0.006,
}
"""How far predicted steps are from measured ones, as `benchmarks/runs.py --each` prints; docs/fidelity.md sums up, and
changes with them."""


@pytest.fixture(scope="module")
def published():
    found = [run for source in runs.SOURCES for run in runs.runs_of(source, Path("nowhere"))]
    return {run.case: run for run in found}


@pytest.mark.parametrize(("case", "error"), ERRORS.items(), ids=list(ERRORS))
def test_a_published_run_is_as_far_off_as_the_docs_say(published, case, error):
    assert runs.compared(published[case]).off() == pytest.approx(error, abs=0.003)
