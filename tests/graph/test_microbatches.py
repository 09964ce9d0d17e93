"""A microbatch has fewer rows than a step: nothing is split finer than it has rows."""

from dataclasses import replace

import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.graph.flow import microbatch_obstacles
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.placement import S
from shardplan.model.read import read_model_bytes
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.models.named import described
from shardplan.pipeline.cut_points import chain_at, part_of
from shardplan.planning import Planner, plan_model
from shardplan.rules import model_rules
from shardplan.rules.batch import batch_dims_of, in_microbatch

MODEL = described("transformer:layers=2,hidden=64,heads=4,vocab=128,seq=32,batch=8")
CLUSTER = make_cluster(load_profile("h100-dgx"), "2x4")
BATCHES = batch_dims_of(MODEL, model_rules(MODEL))


def layouts(built):
    for name, space in built.kept.items():
        for choice in range(len(space)):
            yield name, space.layout(choice).forward
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        for strategy in range(len(space.strategies)):
            for side, names in (("operands", operator.inputs), ("results", operator.outputs)):
                for position, name in enumerate(names):
                    if name and (layout := space.strategies.layout(side, position, strategy)) is not None:
                        yield name, layout.forward


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_no_choice_has_more_parts_than_a_microbatch_has_rows(micro):
    built = Planner(MODEL, CLUSTER, PlanOptions(effort="quick", microbatches=micro)).built_at()[0]
    by_rows = 0
    for name, layout in layouts(built):
        shape = in_microbatch(MODEL.tensor(name).shape, BATCHES.get(name), micro)
        assert is_legal(layout, CLUSTER.mesh, shape)
        by_rows += name in BATCHES and S(BATCHES[name]) in layout.placements
    assert (by_rows > 0) == (micro < 8)


def test_a_plan_may_use_all_rows_that_there_are():
    data_parallel = Layout.of(S(0), S(0))
    for micro, possible in ((1, True), (2, False)):
        kept = Planner(MODEL, CLUSTER, PlanOptions(effort="quick", microbatches=micro)).built_at()[0].kept["input_ids"]
        assert (data_parallel in [kept.layout(choice) for choice in range(len(kept))]) == possible


def test_asking_for_more_parts_is_refused():
    options = PlanOptions(effort="quick", microbatches=2, constraints=(parse_pin("input_ids=[[machine,gpu],null]"),))
    with pytest.raises(ShardplanError) as caught:
        plan_model(MODEL, CLUSTER, options)
    assert str(caught.value) == (
        "--pin 'input_ids=[[machine,gpu],null]': error[impossible]: 'input_ids' cannot be kept as "
        "'input_ids: [[machine,gpu],null]' asks\n"
        "  it is [4, 32] in each of 2 microbatches, and no operator or store could hold that so"
    )


def sequence_first() -> Model:
    """Two products over [sequence, batch, features], after the input was turned."""
    shapes = {"x": (8, 6, 4), "t": (6, 8, 4), "v": (4, 4), "w": (4, 4), "y": (6, 8, 4), "z": (6, 8, 4)}
    roles = {"x": "input", "v": "parameter", "w": "parameter"}
    return Model(
        name="turned",
        operators=(
            Operator("turn", "Transpose", ("x",), ("t",), {"perm": [1, 0, 2]}, "", 21),
            Operator("first", "MatMul", ("t", "v"), ("y",), {}, "", 21),
            Operator("second", "MatMul", ("y", "w"), ("z",), {}, "", 21),
        ),
        tensors={name: Tensor(name, shape, "float", roles.get(name, "activation")) for name, shape in shapes.items()},
        parameters=(Parameter("v", "v", "v"), Parameter("w", "w", "w")),
        inputs=("x",),
        outputs=("z",),
        constants={},
    )


def test_what_a_stage_is_fed_keeps_its_batch_where_it_is():
    model = sequence_first()
    assert batch_dims_of(model, model_rules(model)) == {"x": 0, "t": 1, "y": 1, "z": 1}
    part = part_of(chain_at(model, [2]), 1, 2, "part")
    assert part.fed == {"y": 1}
    assert batch_dims_of(part, model_rules(part)) == {"y": 1, "z": 1}
    plan_model(
        part, CLUSTER, PlanOptions(effort="quick", microbatches=4)
    )  # 4 does not divide the 6 of dim 0, and need not


def test_what_a_stage_is_fed_and_does_not_read_is_one_of_its_inputs():
    """As in a plan that was edited: the stages hand on what the next one has no use for."""
    chain = replace(chain_at(sequence_first(), [2]), borders=("t",))
    part = part_of(chain, 1, 2, "part")
    assert part.inputs == ("t",)
    assert part.tensor("t").role == "input"


MASKED = """
net (float[8,6,4] x, float[1,6,4] mask) => (float[8,6,4] y) <float[4,4] w> {
  masked = Mul (x, mask)
  y = MatMul (masked, w)
}"""


def test_an_input_of_one_row_for_all_is_not_cut():
    model = read_model_bytes(proto_of(MASKED).SerializeToString(), "net")
    assert batch_dims_of(model, model_rules(model)) == {"x": 0, "masked": 0, "y": 0}
    plan = plan_model(model, CLUSTER, PlanOptions(effort="quick", microbatches=4))
    assert plan.summary.step_ns > 0
    with pytest.raises(ShardplanError) as caught:
        plan_model(model, CLUSTER, PlanOptions(effort="quick", microbatches=3))
    assert str(caught.value) == (
        "error[microbatches]: dim 0 of input 'x' is 8 and cannot be cut into 3 microbatches\n"
        "hint: --microbatches takes a divisor of the batch: 1, 2, 4, 8"
    )


def test_a_stage_that_reads_such_an_input_is_not_cut_by_it():
    """The mask is the only input of its own."""
    text = MASKED.replace("masked = Mul (x, mask)", "h = MatMul (x, w) masked = Mul (h, mask)")
    model = read_model_bytes(proto_of(text).SerializeToString(), "net")
    part = part_of(chain_at(model, [1]), 1, 2, "part")
    assert part.inputs == ("mask", "h")
    assert microbatch_obstacles(part, 4) == []


def test_a_batch_of_one_row_cannot_be_cut():
    model = read_model_bytes(proto_of(MASKED.replace("[8,6,4]", "[1,6,4]")).SerializeToString(), "net")
    (found,) = microbatch_obstacles(model, 2)
    assert found.summary == "dim 0 of input 'x' is 1 and cannot be cut into 2 microbatches"
