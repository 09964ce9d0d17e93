"""Alpa's manual sharding (tests/shard_parallel/test_manual.py there): local shapes on 2 x 2 devices, and beyond it
constraints on a part of the model with all the rest solved."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_constraints, parse_pin
from shardplan.constraints.reuse import adapted
from shardplan.constraints.types import Constraint
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.layout.legal import local_shape
from shardplan.layout.text import to_text
from shardplan.model.read import read_model
from shardplan.model.types import Model
from shardplan.models import described
from shardplan.plan.types import Plan
from shardplan.planning import PlanOptions, plan_model
from shardplan.study.reuse import constraints_of

ADD = "add (float[6,4] a, float[6,4] b) => (float[6,4] y) { y = Add (a, b) }"
FOUR = """
four (float[6,4] a, float[6,4] b) => (float[6,4] y0, float[6,4] y1, float[6,4] y2, float[6,4] y3) {
  y0 = Add (a, b)
  y1 = Sub (a, b)
  y2 = Mul (a, b)
  y3 = Div (a, b)
}"""
MLP = """
mlp (float[64,6] x, float[64,10] y) => (float loss) <float[6,8] w1, float[8] b1, float[8,10] w2, float[10] b2> {
  m = MatMul (x, w1)
  h = Add (m, b1)
  a = Relu (h)
  n = MatMul (a, w2)
  o = Add (n, b2)
  d = Sub (o, y)
  s = Mul (d, d)
  loss = ReduceMean <keepdims = 0> (s)
}"""
WIDE = """
wide (float[batch,1024] x) => (float[batch,1024] y) <float[1024,4096] w1, float[4096,1024] w2> {
  h = MatMul (x, w1)
  a = Relu (h)
  y = MatMul (a, w2)
}"""
NAMES = "mesh_axis_names: [data, model]\n"


@pytest.fixture
def read(tmp_path: Path):
    """Read a model from ONNX text; declared values are weights whose data lies elsewhere."""

    def read_text(text: str) -> Model:
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
        made = {name for node in model.graph.node for name in node.output}
        for info in [info for info in model.graph.value_info if info.name not in made]:
            kind = info.type.tensor_type
            dims = [dim.dim_value for dim in kind.shape.dim]
            tensor = onnx.TensorProto(name=info.name, data_type=kind.elem_type, dims=dims)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="absent.bin")
            model.graph.initializer.append(tensor)
        del model.graph.value_info[:]
        onnx.save(model, tmp_path / "model.onnx")
        return read_model(tmp_path / "model.onnx")

    return read_text


def plan_of(
    model: Model,
    constraints: str | tuple[Constraint, ...] = "",
    pins: tuple[str, ...] = (),
    mesh: str = "2x2",
    **options,
) -> Plan:
    written = parse_constraints(constraints, "fixed.yaml") if isinstance(constraints, str) and constraints else ()
    written = written or tuple(constraints)
    options = {"mode": "inference", **options, "constraints": (*written, *map(parse_pin, pins))}
    return plan_model(model, make_cluster(load_profile("h100-dgx"), mesh), PlanOptions(effort="quick", **options))


def shapes(plan: Plan, *names: str) -> list[tuple[int, ...]]:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    return [local_shape(tensors[name].layout.forward, plan.mesh, tensors[name].shape) for name in names]


def layout(plan: Plan, name: str) -> str:
    (tensor,) = (tensor for tensor in plan.tensors if tensor.name == name)
    return to_text(tensor.layout.forward, plan.mesh)


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ("[[null, model], [null, model]]", [(6, 2), (6, 2)]),
        ("[[data, null], [data, model]]", [(3, 4), (3, 2)]),
        ("[null, [data, null]]", [(6, 4), (3, 4)]),
        ('{"*": [null, model]}', [(6, 2), (6, 2)]),
        ("{b: [data]}\ntensors: {a: replicate}", [(6, 4), (3, 4)]),
    ],
)
def test_set_input(inputs, wanted, read):
    assert shapes(plan_of(read(ADD), f"{NAMES}inputs: {inputs}"), "a", "b") == wanted


def test_set_output(read):
    plan = plan_of(read(FOUR), f"{NAMES}outputs: [[data, null], null, [null, model], [data, model]]")
    assert shapes(plan, "y0", "y1", "y2", "y3") == [(3, 4), (6, 4), (6, 2), (3, 2)]


GRAD_ACC = f"""{NAMES}
inputs: {{x: [data, null], y: [data, null]}}
parameters: {{w1: [null, model], b1: [model], w2: [model, null], b2: [null]}}
"""


def test_grad_acc(read):
    plan = plan_of(read(MLP), GRAD_ACC, mode="training", microbatches=2)
    assert shapes(plan, "w1", "b1", "w2", "b2") == [(6, 4), (4,), (4, 10), (10,)]
    per_microbatch = [(rows // 2, columns) for rows, columns in shapes(plan, "x", "y")]
    assert per_microbatch == [(16, 6), (16, 10)]
    reduced = {move.tensor for move in plan.moves if move.phase == "backward" and "all_reduce" in _kinds(move)}
    assert reduced >= {"w1", "b1", "w2", "b2"}, "the gradients of every weight are summed over data"


def _kinds(move) -> set[str]:
    return {step.collective.kind for step in move.steps}


def test_only_the_output_is_given_and_the_rest_is_solved(read):
    free, fixed = plan_of(read(MLP)), plan_of(read(MLP), pins=("o=[null, gpu]",))
    assert shapes(fixed, "o") == [(64, 5)]
    assert fixed.summary.outcome == "optimal"
    assert fixed.summary.objective_ns >= free.summary.objective_ns


def test_a_dim_may_be_left_to_the_solver(read):
    for dims in ("[machine, free]", "[free, gpu]", "[free, free]"):
        plan = plan_of(read(MLP), pins=(f"a={dims}",))
        (rows, columns), wanted = shapes(plan, "a")[0], dims.strip("[]").split(", ")
        assert rows in ({32} if wanted[0] == "machine" else {64, 32, 16})
        assert columns in ({4} if wanted[1] == "gpu" else {8, 4, 2})


def test_a_constraint_in_the_middle_changes_the_plan_around_it_and_loses_nothing_else(read):
    pinned = plan_of(read(MLP), f"{NAMES}inputs: {{x: [data]}}\ntensors: {{a: [model, data]}}")
    assert (layout(pinned, "x"), layout(pinned, "a")) == ("S(0)@machine", "S(1)@machine, S(0)@gpu")
    assert len(pinned.tensors) == len(plan_of(read(MLP)).tensors)


def test_another_batch_with_the_shardings_of_a_plan(read):
    """Alpa's `stage_input_shardings`: a plan for one batch, reused for another, gives its inputs and weights the same
    layouts; without it they differ."""
    small, large = read(WIDE.replace("batch", "16")), read(WIDE.replace("batch", "8192"))
    first, other = plan_of(small, mode="training"), plan_of(large, mode="training")
    again = plan_of(large, constraints=constraints_of(first, "small.plan.json"), mode="training")
    names = ("x", "w1", "w2")
    assert [layout(again, name) for name in names] == [layout(first, name) for name in names]
    assert [layout(other, name) for name in names] != [layout(first, name) for name in names]
    assert other.summary.step_ns <= again.summary.step_ns
    assert other.summary.step_bound_ns <= again.summary.step_bound_ns


def test_weights_alone_stay_where_another_plan_has_them(read):
    first = plan_of(read(MLP), pins=("w1=[null, gpu]", "w2=[gpu]"))
    again = plan_of(read(MLP), constraints=constraints_of(first, "first.plan.json", ("parameters",)), mode="training")
    assert [layout(again, name) for name in ("w1", "w2")] == ["S(1)@gpu", "S(0)@gpu"]
    assert {text.partition(":")[0] for text in again.model["constraints"]} == {"parameters"}


def test_a_plan_whose_names_begin_otherwise(read):
    """`w1` of one model is `m.w1` of another that wraps it; what only one of them has is left out, and that is said."""
    first = plan_of(read(MLP), pins=("w1=[null, gpu]",))
    fixed = constraints_of(first, "first.plan.json", ("parameters",))
    wrapped = read(MLP.replace("w1", "m_w1").replace("b2", "m_b2"))
    weights = tuple(replace(p, name=p.name.replace("m_", "m.")) for p in wrapped.parameters)
    wrapped = replace(wrapped, parameters=tuple(p for p in weights if p.name != "m.b2"))
    kept, said = adapted(fixed, wrapped)
    assert {constraint.pattern: constraint.text for constraint in kept}["m.w1"] == "[null, gpu]"
    assert [str(warning) for warning in said] == [
        "first.plan.json: warning[no-match]: it fixes 4 tensors; 3 of them in 'model'"
    ]
    with pytest.raises(ShardplanError) as caught:
        adapted(fixed, read(ADD))
    assert str(caught.value) == "first.plan.json: error[no-match]: nothing that it fixes is in 'model'"


def test_several_axes_on_one_dim_keep_their_order(read):
    assert layout(plan_of(read(MLP), pins=("x=[[gpu, machine]]",)), "x") == "S(0)@gpu,machine"
    assert layout(plan_of(read(MLP), pins=("x=S(0)@gpu,machine",)), "x") == "S(0)@gpu,machine"
    assert layout(plan_of(read(MLP), pins=("h=[[gpu, machine]]",)), "h") == "S(0)@gpu,machine"


def test_a_shard_that_no_operator_would_choose_can_be_had(read):
    plan = plan_of(
        read(
            "rev (float[8,8] x) => (float[8,8] y) { y = CumSum (x, x0) }".replace(
                "{ y", "{ x0 = Constant <value = int64 {1}> () y"
            )
        ),
        pins=("y=[null, gpu]",),
    )
    assert layout(plan, "y") == "S(1)@gpu"


def test_operators_are_forced_and_forbidden(read):
    model = read(MLP)
    first = next(operator.name for operator in model.operators if operator.op_type == "MatMul")

    def split(constraint: str) -> tuple[str, ...]:
        plan = plan_of(model, f'operators: {{"{first}": {constraint}}}')
        return next(operator.split for operator in plan.operators if operator.name == first)

    assert split("{machine: k, gpu: n}") == ("k", "n")
    assert split("{machine: none, gpu: none}") == ("-", "-")
    assert "n" not in split("{machine: not n, gpu: not n}")


def test_an_operator_is_split_in_the_form_that_plans_write():
    model = described("transformer:style=gpt,layers=1,hidden=64,heads=4,vocab=64,seq=16,batch=4")
    for form in ("n", "n;3x64"):
        plan = plan_of(model, f'operators: {{"*.c_attn.MatMul": {{gpu: {form}}}}}')
        own = next(operator for operator in plan.operators if operator.name.endswith("c_attn.MatMul"))
        assert form in own.split[1]
        assert own.split[1].startswith("n")


def test_a_factor_that_only_some_of_the_operators_have(read):
    """Of a module's operators the product has an n, the addition of its bias has none."""
    model = read(MLP)
    plan = plan_of(model, 'operators: {"*": {gpu: not n, machine: not n}}')
    assert not any("n" in operator.split for operator in plan.operators if operator.op_type == "MatMul")


def test_a_factor_that_none_of_the_operators_has_is_said_once(read):
    assert refused(read, 'operators: {"*": {gpu: q}}') == (
        "fixed.yaml:1:18: error[unknown-factor]: 'MatMul_0' has no factor 'q' that can be split, nor has any of the "
        "7 others that match\n"
        "  'MatMul_0' is m k, k n -> m n; it may split k, m, n"
    )


def test_axes(read):
    plan = plan_of(read(MLP), "axes: {machine: {inputs: 0, parameters: replicate}}", mode="training")
    assert all(layout(plan, name).startswith("S(0)@machine") for name in ("x", "y"))
    assert all("machine" not in layout(plan, name) for name in ("w1", "b1", "w2", "b2"))


def test_a_forbidden_collective_is_not_used(read):
    model = read("turn (float[4096,4096] x) => (float[4096,4096] y) { y = Relu (x) }")
    pins = ("x=[machine, gpu]", "y=[[machine, gpu]]")
    free = plan_of(model, pins=pins)
    assert any("all_to_all" in _kinds(move) for move in free.moves)
    limited = plan_of(model, "axes: {machine: {forbid: [all_to_all]}, gpu: {forbid: [all_to_all]}}", pins)
    assert not any("all_to_all" in _kinds(move) for move in limited.moves)
    assert limited.summary.objective_ns > free.summary.objective_ns


def test_a_soft_constraint_is_kept_when_it_is_cheap_and_broken_when_it_is_dear(read):
    free = layout(plan_of(read(MLP)), "o")
    other = "[null, gpu]" if free != "S(1)@gpu" else "replicate"
    dear = plan_of(read(MLP), f"tensors: {{o: {{dims: {other}, cost: 1 s}}}}")
    cheap = plan_of(read(MLP), f"tensors: {{o: {{dims: {other}, cost: 0.001 ns}}}}")
    assert layout(dear, "o") == ("S(1)@gpu" if other != "replicate" else "R")
    assert layout(cheap, "o") == free


def test_what_is_fixed_is_written_in_the_plan(read):
    plan = plan_of(read(MLP), f"{NAMES}inputs: {{x: [data]}}", ("w1=[null, gpu]",))
    assert plan.model["constraints"] == ["inputs: x: [data]", "w1: [null, gpu]"]
    assert "constraints" not in plan_of(read(MLP)).model


def refused(read, constraints: str = "", pins: tuple[str, ...] = (), **options) -> str:
    with pytest.raises(ShardplanError) as caught:
        plan_of(read(MLP), constraints, pins, **options)
    return str(caught.value)


def test_a_pattern_that_matches_nothing(read):
    assert refused(read, "parameters:\n  ww1: replicate\n") == (
        "fixed.yaml:2:8: error[no-match]: no parameter matches 'ww1'\n"
        "  there are b1, b2, w1, w2\n"
        "hint: did you mean 'w1'?"
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("*.up.weigth", "*.up.weight"),
        ("layers.*.upp.weight", "layers.*.up.weight"),
        ("layers.{0-1}.up.wieght", "layers.{0-1}.up.weight"),
        ("layers.0.up.wieght", "layers.0.up.weight"),
    ],
)
def test_a_misspelt_pattern_keeps_what_is_right_of_it(read, written, meant):
    names = [f"layers.{number}.{part}.weight" for number in (0, 1) for part in ("up", "down")]
    model = read(MLP)
    weights = [replace(weight, name=name, onnx=name) for weight, name in zip(model.parameters, names, strict=True)]
    model = replace(model, parameters=tuple(weights))
    with pytest.raises(ShardplanError) as caught:
        plan_of(model, f'parameters: {{"{written}": replicate}}')
    (said,) = caught.value.diagnostics
    assert (said.summary, said.detail, said.hint) == (
        f"no parameter matches '{written}'",
        "there are layers.*.down.weight, layers.*.up.weight",
        f"did you mean '{meant}'?",
    )


def test_names_for_some_of_the_axes_only(read):
    said = "error[unknown-axis]: mesh_axis_names has 1 name; the mesh is machine=2 x gpu=2"
    assert refused(read, "mesh_axis_names: [data]\nparameters:\n  w1: replicate\n  w2: [data]\n") == (
        f"fixed.yaml:3:7: {said}"
    )


def test_an_axis_that_does_not_exist(read):
    assert refused(read, "inputs:\n  x: [machin]\n") == (
        "fixed.yaml:2:6: error[unknown-axis]: the mesh machine=2 x gpu=2 has no axis 'machin'\n"
        "hint: did you mean 'machine'?"
    )


def test_a_dim_that_does_not_divide(read):
    assert refused(read, "parameters:\n  w1: [[machine, gpu]]\n") == (
        "fixed.yaml:2:7: error[indivisible]: dim 0 of 'w1' has size 6, which machine x gpu = 4 does not divide"
    )


def test_many_tensors_with_one_fault_are_one_complaint(read):
    assert refused(read, 'parameters:\n  "*": S(2)@gpu\n') == (
        "fixed.yaml:2:8: error[bad-constraint]: S(2)@gpu names 3 dims; 'w1' has 2\n  and 3 more like this"
    )


def test_an_axis_for_a_dim_that_no_input_has(read):
    assert refused(read, "axes:\n  gpu: {inputs: 2}\n") == (
        "fixed.yaml:2:8: error[bad-constraint]: no input has a dim 2\n  dims, counted from 0: 'x' 2, 'y' 2"
    )


def test_an_axis_used_twice(read):
    assert refused(read, pins=("w1=[gpu, gpu]",)) == (
        "--pin 'w1=[gpu, gpu]': error[bad-constraint]: [gpu, gpu] uses a mesh axis twice"
    )


def test_two_axes_of_one_name(read):
    with pytest.raises(ShardplanError) as caught:
        parse_constraints("mesh_axis_names: [x, x]\n", "fixed.yaml")
    assert str(caught.value) == "fixed.yaml:1:18: error[bad-constraint]: mesh_axis_names: a name is given twice"


def test_constraints_that_contradict_each_other(read):
    assert refused(read, 'parameters:\n  "w*": replicate\n  "w1*": [null, gpu]\n') == (
        "fixed.yaml:3:10: error[contradiction]: 'parameters: w1*: [null, gpu]' contradicts what else is asked of 'w1'\n"
        "  'parameters: w*: replicate' (fixed.yaml:2)\n"
        "hint: remove one of them, or give one a cost"
    )


def test_a_weight_that_the_graph_names_otherwise_is_called_by_both_names(read):
    model = read("""g (float[8, 6] x) => (float[8, 4] y) <float[4, 6] up> {
      val_3 = Transpose <perm = [1, 0]> (up)  y = MatMul (x, val_3) }""")
    with pytest.raises(ShardplanError) as caught:
        plan_of(model, 'parameters:\n  "u*": replicate\n  "up*": [gpu, null]\n')
    assert str(caught.value) == (
        "fixed.yaml:3:10: error[contradiction]: 'parameters: up*: [gpu, null]' contradicts what else is asked of 'up' "
        "('val_3' in the graph)\n"
        "  'parameters: u*: replicate' (fixed.yaml:2)\n"
        "hint: remove one of them, or give one a cost"
    )


def test_names_of_axes_without_a_constraint():
    with pytest.raises(ShardplanError) as caught:
        parse_constraints("mesh_axis_names: [data]\n", "fixed.yaml")
    assert str(caught.value) == (
        "fixed.yaml:1:1: error[bad-constraint]: mesh_axis_names: there is no constraint that these names are for"
    )


def test_a_name_comes_before_a_pattern(read):
    plan = plan_of(read(MLP), 'parameters: {"*": replicate, w1: [null, gpu]}')
    assert (layout(plan, "w1"), layout(plan, "w2")) == ("S(1)@gpu", "R")


MEMORY = 380
"""Enough for one of the inputs of `FOUR` on every device, and for everything else in pieces."""


def test_a_minimal_set_of_constraints_that_cannot_be_had_together_is_named(read):
    model, constraints = read(FOUR), "inputs: {a: replicate, b: replicate}\noutputs: {y1: [machine]}\n"
    for kept in ("a=replicate", "b=replicate"):
        assert plan_of(model, pins=(kept,), memory_limit_bytes=MEMORY).summary.memory.total <= MEMORY
    with pytest.raises(InfeasibleError) as caught:
        plan_of(model, constraints, memory_limit_bytes=MEMORY)
    assert str(caught.value) == (
        "fixed.yaml:1:13: error[infeasible]: no plan for 'model' on 'h100-dgx' (machine=2 x gpu=2) fits in memory and "
        "satisfies the constraints\n"
        "  these constraints leave none:\n"
        "    inputs: a: replicate (fixed.yaml:1)\n"
        "    inputs: b: replicate (fixed.yaml:1)\n"
        "hint: there is a plan if any one of them is removed or given a cost"
    )


def test_constraints_are_not_blamed_for_what_they_do_not_cause(read):
    with pytest.raises(InfeasibleError) as caught:
        plan_of(read(FOUR), pins=("a=replicate",), memory_limit_bytes=64)
    assert "no plan fits in memory: every device is at least 272 B short" in str(caught.value)
    assert "without the constraints it would still be 200 B short" in str(caught.value)
