"""A plan as Slapo prints one: the table whose rows add up, the schedule, and the graph."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from peer_bert import bert
from peer_mlp import mlp

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.cost.named import parse_cost_model
from shardplan.extras.peers.slapo_table import schedule_lines, show_slapo, table_rows
from shardplan.model.read import read_model
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.planning import PlanOptions, plan_model
from shardplan.render.console import make_console
from shardplan.render.dot import dot_text


def with_biases() -> Model:
    """The MLP as torch exports it: weights transposed against the checkpoint, biases added by the same module."""
    model = mlp()
    biases = {"b1": 4096, "b2": 1024}
    tensors = {
        **model.tensors,
        **{name: Tensor(name, (size,), "float", "parameter") for name, size in biases.items()},
        "a0": replace(model.tensors["a"], name="a0"),
        "y0": replace(model.tensors["y"], name="y0"),
    }
    first, gelu, second = model.operators
    operators = (
        replace(first, outputs=("a0",), module="fc1"),
        Operator("add1", "Add", ("a0", "b1"), ("a",), version=21, module="fc1"),
        replace(gelu, module="act"),
        replace(second, outputs=("y0",), module="fc2"),
        Operator("add2", "Add", ("y0", "b2"), ("y",), version=21, module="fc2"),
    )
    weights = tuple(Parameter(f"fc{i}.weight", f"w{i}", f"fc{i}.weight", perm=(1, 0)) for i in (1, 2))
    added = tuple(Parameter(f"fc{i}.bias", f"b{i}", f"fc{i}.bias") for i in (1, 2))
    return replace(model, operators=operators, tensors=tensors, parameters=(*weights, *added))


def plan_of(model: Model, *pins: str, cost_model: str = "slapo", mesh: str = "8", mode: str = "inference"):
    options = PlanOptions(
        effort="quick", mode=mode, cost_model=parse_cost_model(cost_model), constraints=tuple(map(parse_pin, pins))
    )
    return plan_model(model, make_cluster(load_profile("h100-dgx"), mesh), options)


def printed(plan) -> str:
    stream = io.StringIO()
    show_slapo(make_console(file=stream), plan)
    return stream.getvalue()


def test_the_optimum():
    assert printed(plan_of(mlp())) == (
        "Name          InSpec  OutSpec  Cost [elements]\n"
        "x             RR      RR                     0\n"
        "fc1           SRxRR   SR                     0\n"
        "  |-x         RR      SR                     0\n"
        "gelu          SR      SR                     0\n"
        "fc2           SRxRR   SR                     0\n"
        "  |-output y  SR      RR               131,072\n"
        "Total                                  131,072\n"
        "\n"
        'sch["fc1"].sync(mode="fwd_pre", sync_op_or_fn="RR->SR")\n'
        'sch["fc2"].sync(mode="fwd_post", sync_op_or_fn="SR->RR")\n'
    )


def test_megatron_as_a_schedule():
    """Weights are sharded as the checkpoint stores them: the first by rows with its bias, the second by columns."""
    plan = plan_of(with_biases(), "fc1={gpu: n}", "fc2={gpu: k}", "fc2.bias=replicate", "y0=replicate")
    assert list(schedule_lines(plan)) == [
        'sch["fc1"].shard("weight", axis=0)',
        'sch["fc1"].shard("bias", axis=0)',
        'sch["fc2"].shard("weight", axis=1)',
        'sch["fc2"].sync(mode="fwd_post", sync_op_or_fn="all_reduce")',
    ]
    assert sum(row.cost_ns for row in table_rows(plan)) == plan.summary.step_ns == 1000 * 1048576


def test_partial_sums_that_are_scattered():
    plan = plan_of(mlp(), "fc1={gpu: n}", "fc2={gpu: k}", "x=replicate", "y=[gpu, null]", cost_model="alpa")
    assert 'sch["fc2"].sync(mode="fwd_post", sync_op_or_fn="reduce_scatter", axis=0)' in schedule_lines(plan)


def spent_ns(plan):
    """All that a step computes and sends."""
    return plan.summary.compute_ns + plan.summary.communication_ns + plan.summary.hidden_ns


@pytest.mark.parametrize("pins", [(), ("fc1={gpu: k}",), ("fc2={gpu: n}",), ("a=[null, gpu]", "g=[gpu]")])
@pytest.mark.parametrize("cost_model", ["shardplan", "alpa", "slapo", "hidet", "trtllm"])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_rows_add_up_to_all_times_of_the_step(pins, cost_model, mode):
    plan = plan_of(mlp(), *pins, cost_model=cost_model, mode=mode)
    total = sum(row.cost_ns for row in table_rows(plan))
    assert total == pytest.approx(spent_ns(plan), abs=len(plan.operators) + 2 * len(plan.moves))


def test_the_rows_of_a_network_with_shared_values_add_up(tmp_path: Path):
    for cost_model, mesh in (("slapo:split=1", "8"), ("shardplan", "2x4"), ("alpa", "2x4")):
        plan = plan_of(read_model(bert(tmp_path / "bert.onnx", 2)), cost_model=cost_model, mesh=mesh)
        total = sum(row.cost_ns for row in table_rows(plan))
        assert total == pytest.approx(spent_ns(plan), abs=len(plan.operators) + 2 * len(plan.moves))


def test_several_axes_are_numbered_and_have_no_schedule():
    plan = plan_of(mlp(), "x=[machine, gpu]", "y=[[machine, gpu]]", cost_model="shardplan", mesh="2x4")
    specs = {row.name: (row.before, row.after) for row in table_rows(plan) if not row.child}
    assert specs["x"] == ("S0S1", "S0S1")
    assert list(schedule_lines(plan)) == ["# no schedule: Slapo's schedules know one mesh axis"]


def test_the_graph():
    assert dot_text(plan_of(mlp())) == (
        'digraph "mlp" {\n'
        "  node [shape=box, style=rounded];\n"
        '  "tensor x" [label="x\\nR", shape=ellipse];\n'
        '  "tensor y" [label="y\\nR", shape=ellipse];\n'
        '  "operator fc1" [label="fc1\\nMatMul m@gpu", style="rounded,filled", fillcolor=lightblue];\n'
        '  "operator gelu" [label="gelu\\nGelu x0@gpu"];\n'
        '  "operator fc2" [label="fc2\\nMatMul m@gpu", style="rounded,filled", fillcolor=lightblue];\n'
        '  "tensor x" -> "operator fc1" [label="R → S(0)@gpu"];\n'
        '  "operator fc1" -> "operator gelu" [label="S(0)@gpu"];\n'
        '  "operator gelu" -> "operator fc2" [label="S(0)@gpu"];\n'
        '  "operator fc2" -> "tensor y" [label="S(0)@gpu → R\\nforward: all-gather@gpu, 4 MiB", color=red];\n'
        "}\n"
    )
