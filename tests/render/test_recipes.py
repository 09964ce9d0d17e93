"""Names of parallelism, recognised from layouts alone."""

import pytest
from example_plans import example_plan

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R, S
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.render.recipes import Recognizer, axis_shares, recipe_text


def recipe(
    kept: Placement,
    read: Placement,
    other: Placement,
    made: Placement,
    *,
    op_type: str = "MatMul",
    shape: tuple[int, ...] = (64, 64),
    mode: str = "training",
    position: int = 1,
) -> str:
    """The name on a 1-D mesh for a parameter that one operator reads beside another operand."""
    layouts = [Layout.of(other), Layout.of(other)]
    layouts[position] = Layout.of(read)
    names = ["x", "x"]
    names[position] = "w"
    weight = TensorDecision("w", "parameter", shape, "float", Layout.of(kept), Layout.of(kept), 0)
    operator = OperatorDecision(
        "op", op_type, "", "", ("?",), tuple(layouts), (Layout.of(made),), 0, tuple(names), ("y",)
    )
    plan = example_plan(
        model={"mode": mode},
        mesh=Mesh.of(gpu=4),
        axis_links=("up",),
        tensors=(weight,),
        operators=(operator,),
        moves=(),
    )
    return Recognizer(plan).recipe(weight)[0]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("data parallel", recipe(R, RP, S(0), S(0))),
        ("sequence parallel", recipe(R, RP, S(1), S(1))),
        ("spatial parallel", recipe(R, RP, S(2), S(2), op_type="Conv")),
        ("data parallel", recipe(R, RP, S(1), S(2), op_type="LSTM")),
        ("ZeRO-3", recipe(S(0), RP, S(0), S(0))),
        ("ZeRO-3", recipe(S(0), R, R, R)),
        ("gathered to use", recipe(S(0), R, R, R, mode="inference")),
        ("Megatron column", recipe(S(1), S(1), RP, S(2))),
        ("Megatron column", recipe(S(1, (32, 32)), S(1, (32, 32)), RP, S(2, (32, 32)))),
        ("Megatron row", recipe(S(0), S(0), S(2), P())),
        ("vocabulary parallel", recipe(S(0), S(0), RP, P(), op_type="Gather", position=0)),
        ("expert parallel", recipe(S(0), S(0), S(0), S(0), shape=(8, 64, 64))),
        ("Megatron column", recipe(S(2), S(2), RP, S(2), shape=(8, 64, 64))),
        ("Megatron column", recipe(S(0), S(0), S(2), S(2), op_type="Add", shape=(64,))),
        ("replicated", recipe(R, R, R, R)),
        ("replicated", recipe(R, RP, RP, RP)),
    ],
)
def test_names(name: str, found: str):
    assert found == name


def recipes(plan: Plan) -> dict[str, tuple[str, ...]]:
    recognizer = Recognizer(plan)
    return {t.checkpoint: recognizer.recipe(t) for t in plan.tensors if t.role == "parameter"}


def test_a_transformer():
    found = recipes(example_plan())
    assert found["embed.weight"] == ("ZeRO-3", "vocabulary parallel + Megatron column")
    assert found["layers.1.norm.weight"] == ("data parallel", "sequence parallel")
    assert found["layers.1.attention.qkv.weight"] == ("data parallel", "Megatron column")
    assert found["layers.1.attention.out.weight"] == ("data parallel", "Megatron row")
    assert found["layers.1.mlp.up.weight"] == ("ZeRO-3", "Megatron column")
    assert found["layers.1.mlp.down.weight"] == ("data parallel", "Megatron row")


def test_views_between_a_parameter_and_its_product_are_seen_through():
    weight = TensorDecision("w", "parameter", (64, 64), "float", Layout.of(S(0)), Layout.of(S(0)), 0)
    view = OperatorDecision(
        "view", "Transpose", "", "", ("n",), (Layout.of(S(0)),), (Layout.of(S(1)),), 0, ("w",), ("turned",)
    )
    reads = (Layout.of(RP), Layout.of(S(1)))
    product = OperatorDecision("op", "MatMul", "", "", ("n",), reads, (Layout.of(S(2)),), 0, ("x", "turned"), ("y",))
    plan = example_plan(mesh=Mesh.of(gpu=4), axis_links=("up",), tensors=(weight,), operators=(view, product), moves=())
    assert Recognizer(plan).recipe(weight) == ("Megatron column",)


def test_a_parameter_nobody_reads():
    weight = TensorDecision("w", "parameter", (64,), "float", Layout.of(R), Layout.of(R), 0)
    plan = example_plan(mesh=Mesh.of(gpu=4), axis_links=("up",), tensors=(weight,), operators=(), moves=())
    assert Recognizer(plan).recipe(weight) == ("unused",)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (("data parallel", "Megatron row"), "data parallel on machine, Megatron row on gpu"),
        (("data parallel", "data parallel"), "data parallel on machine and gpu"),
        (("replicated", "Megatron row"), "Megatron row on gpu"),
        (("replicated", "replicated"), "replicated"),
    ],
)
def test_text(recipe, text):
    assert recipe_text(recipe, ("machine", "gpu")) == text


def test_shares_of_an_axis_add_up_to_one():
    plan = example_plan()
    recognizer = Recognizer(plan)
    shares = axis_shares(plan, {t.name: recognizer.recipe(t) for t in plan.tensors if t.role == "parameter"})
    assert [round(sum(of_axis.values()), 9) for of_axis in shares] == [1.0, 1.0]
    assert list(shares[0]) == ["ZeRO-3", "data parallel"]
