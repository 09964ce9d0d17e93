"""Tables and the graph of a plan say what the plan says, and nothing is lost."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import example_plan

from shardplan.plan.types import Pipeline, Stage

TABLES = ("parameters", "tensors", "operators", "moves")
DOCUMENTED = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def staged_plan():
    plan = example_plan()
    stages = tuple(Stage(f"stage{n}", 16 * n, ("all",), 1, plan) for n in range(2))
    pipeline = Pipeline("1f1b", stages, (), 0.0)
    return replace(plan, tensors=(), operators=(), moves=(), pipeline=pipeline)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("plan", [example_plan(), staged_plan()], ids=["plain", "staged"])
def test_rows_are_plain_data_with_the_documented_keys(plan, table):
    (line,) = re.findall(rf"^\| `{table}` \| (.*) \|$", DOCUMENTED.read_text(), re.MULTILINE)
    rows = plan.records(table)
    assert rows
    assert {tuple(row) for row in rows} == {("stage", *re.findall(r"`(\w+)`", line))}
    assert json.loads(json.dumps(rows)) == rows


def test_sums_of_rows_are_those_of_the_plan():
    plan = example_plan()
    assert sum(row["time_ns"] for row in plan.records("moves")) == sum(move.time_ns for move in plan.moves)
    assert all(0 <= row["exposed_ns"] <= row["time_ns"] for row in plan.records("moves"))
    stored = sum(tensor.bytes_per_device for tensor in plan.tensors if tensor.role == "parameter")
    assert sum(row["bytes_per_device"] for row in plan.records("parameters")) == stored
    assert [row["name"] for row in plan.records("operators")] == [operator.name for operator in plan.operators]


def test_a_parameter_is_as_in_its_checkpoint():
    (row,) = (row for row in example_plan().records("parameters") if row["name"] == "layers.0.attention.out.weight")
    assert row["layout"] == "S(1)@gpu"


@pytest.mark.parametrize("table", TABLES)
def test_a_pipeline_has_the_rows_of_all_stages(table):
    rows = example_plan().records(table)
    assert staged_plan().records(table) == [{**row, "stage": f"stage{n}"} for n in range(2) for row in rows]


def test_the_graph_has_every_operand_and_result():
    plan = example_plan()
    graph, known = plan.to_networkx(), {tensor.name for tensor in plan.tensors}
    assert len(graph) == len(plan.tensors) + len(plan.operators)
    named = [name for one in plan.operators for name in (*one.inputs, *one.outputs) if name in known]
    assert graph.number_of_edges() == len(named) > 0
    staged = staged_plan().to_networkx()
    assert (len(staged), staged.number_of_edges()) == (2 * len(graph), 2 * len(named))


def test_an_unknown_table_is_a_key_error():
    with pytest.raises(KeyError):
        example_plan().records("weights")
