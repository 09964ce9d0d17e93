"""Memory and time of published training runs, from the graph: the quick part of `benchmarks/fidelity.py`."""

import itertools
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))
fidelity = pytest.importorskip("fidelity", reason="the benchmarks are not in the source distribution")


@pytest.mark.parametrize(
    "table",
    [
        "zero", "korthikanti-memory", "titan-memory", "korthikanti-time", "llama-405b", "torchtitan", "collectives",
        "sweeps", "latencies", "sweep-fits", "products", "largest-products",
    ],
)  # fmt: skip
def test_every_row_is_within_the_demand(table):
    rows = list(fidelity.TABLES[table]())
    assert not [str(row) for row in rows if row.demanded and not row.passes and not row.note]


def test_what_a_note_points_at_is_there():
    heading = re.search(r"'(.*)' in docs/(.*)", fidelity._NOT_FIT)
    page = (ROOT / "docs" / heading[2]).read_text(encoding="utf-8")
    assert f"\n## {heading[1]}\n" in page


@pytest.mark.parametrize("line", fidelity.SUMMARY, ids=lambda line: f"{line.table} {line.pattern}".strip())
def test_the_page_says_what_the_tables_do(line):
    if line.table in ("megatron-a100", "megatron-h100", "llm-foundry", "maxtext", "alpa-intra"):
        pytest.skip("takes seconds: benchmarks/docs.py --tables")
    assert f"\n{line}\n" in (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")


def test_a_source_without_its_file_is_told_of(tmp_path, capsys):
    fidelity.runs.show(tmp_path, ["vtrain-one-node", "bridge-fp8"])
    assert capsys.readouterr().out.splitlines() == [
        f"{source:18} left out: no {name} in {tmp_path} (--data FOLDER says where it is)"
        for source, name in (("vtrain-one-node", "vtrain_one_node_a100.csv"), ("bridge-fp8", "megatron_bridge.csv"))
    ]


def test_activations_of_a_layer_are_exact():
    for row in fidelity.korthikanti_memory():
        assert row.ours == pytest.approx(row.published, abs=0.51), row.case


def test_training_utilisation_rises_with_size_as_published():
    rows = list(fidelity.korthikanti_time())
    assert fidelity.spearman(rows) == 1.0


def test_runs_of_megatron_with_tensor_data_and_pipeline_parallelism():
    old = fidelity.megatron_a100(only=("gpt-18b", "gpt-39b", "gpt-1t"))
    new = fidelity.megatron_h100(only=("1.7B", "32B", "314B"))
    assert not [str(row) for row in (*old, *new) if not row.passes and not row.note]


def test_fully_sharded_training_on_a100_is_faster_the_larger_the_model():
    rows = [row for row in fidelity.llm_foundry() if "A100" in row.case]
    assert all(row.passes for row in rows)
    assert [row.ours for row in rows] == sorted((row.ours for row in rows), reverse=True)


def test_one_machine_of_eight_is_no_faster_per_gpu_than_eight_of_them():
    spread = next(row for row in fidelity.llm_foundry() if "most less least" in row.case)
    assert spread.passes


def test_pairs_of_published_numbers_that_are_apart_have_an_order():
    def row(ours, published):
        return fidelity.Row("", ours, published, -1, 1)

    assert fidelity.ordered([row(1, 10), row(2, 11), row(3, 10.1)]) == (1, 2)
    assert fidelity.spearman([row(1, 10), row(2, 11), row(3, 12)]) == 1.0


def test_the_plan_chosen_with_the_formula_is_hardly_slower_at_measured_prices():
    rows = list(fidelity.measured.regrets(("b200-dgx",)))
    assert len(rows) == 3
    assert all(row.passes for row in rows)


def test_alpas_runs_without_a_pipeline():
    rows = list(itertools.islice(fidelity.alpa_intra(), 3))
    assert [row.case for row in rows] == ["alpa-2.6b, 8 GPUs", "alpa-6.7b, 16 GPUs", "alpa-15b, 32 GPUs"]
    assert all(row.passes for row in rows)


def test_tensor_parallelism_over_slow_links_collapses_as_alpa_measured():
    spec = fidelity.spec_of("alpa-39b", dtype="float16", attention="decomposed")
    joint = fidelity.Run(spec, "v100-p3-16xl", 64, 1024, 8, 64, remat="full", overlapped=False)
    assert fidelity._alpa_pflops(spec, joint) <= 0.2
