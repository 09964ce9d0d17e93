"""Memory and time of published training runs, from the graph: the quick part of `benchmarks/fidelity.py`."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
fidelity = pytest.importorskip("fidelity", reason="the benchmarks are not in the source distribution")


@pytest.mark.parametrize(
    "table",
    ["zero", "korthikanti-memory", "titan-memory", "korthikanti-time", "llama-405b", "torchtitan", "collectives"],
)
def test_every_row_is_within_the_demand(table):
    rows = list(fidelity.TABLES[table]())
    assert not [str(row) for row in rows if not row.passes]


def test_activations_of_a_layer_are_exact():
    for row in fidelity.korthikanti_memory():
        assert row.ours == pytest.approx(row.published, abs=0.51), row.case


def test_training_utilisation_rises_with_size_as_published():
    rows = list(fidelity.korthikanti_time())
    assert fidelity.spearman(rows) == 1.0


def test_runs_of_megatron_with_tensor_data_and_pipeline_parallelism():
    old = fidelity.megatron_a100(only=("gpt-7.5b", "gpt-39b", "gpt-1t"))
    new = fidelity.megatron_h100(only=("16B", "32B", "314B"))
    assert not [str(row) for row in (*old, *new) if not row.passes]


def test_fully_sharded_training_on_a100_is_faster_the_larger_the_model():
    rows = [row for row in fidelity.llm_foundry() if "A100" in row.case]
    assert all(row.passes for row in rows)
    assert [row.ours for row in rows] == sorted((row.ours for row in rows), reverse=True)


def test_one_machine_of_eight_is_no_faster_per_gpu_than_eight_of_them():
    spread = next(row for row in fidelity.llm_foundry() if "most less least" in row.case)
    assert spread.passes


def test_tensor_parallelism_over_slow_links_collapses_as_alpa_measured():
    *inside, joint = fidelity.alpa_intra()
    assert joint.ours <= 0.2
    assert all(row.passes for row in inside[:2])
