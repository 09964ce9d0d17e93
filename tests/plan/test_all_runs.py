"""What a plan lists runs in its schedule, as often as it says: every move, all compute, all collectives inside."""

from collections import defaultdict
from fractions import Fraction

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.graph.options import PlanOptions
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.model.read import read_model
from shardplan.models.named import described
from shardplan.plan.step.moves import StepParts
from shardplan.plan.step.schedule import schedule_step
from shardplan.plan.types import CollectiveStep, Move, OperatorDecision
from shardplan.plan.views.timeline import step_schedule
from shardplan.planning import plan_model

CHAIN = """
chain (float[16,256] x) => (float[16,256] y) <float[256,1024] up, float[1024,256] down> {
  a = MatMul (x, up)
  b = Relu (a)
  y = MatMul (b, down)
}"""
GPT = described("transformer:layers=2,hidden=512,heads=4,vocab=256,seq=64,batch=16,dtype=float")
OPTIONS = (
    PlanOptions(effort="quick"),
    PlanOptions(effort="quick", microbatches=4),
    PlanOptions(effort="quick", microbatches=2, shard_optimizer=True),
    PlanOptions(effort="quick", microbatches=2, remat="full"),
    PlanOptions(effort="quick", mode="inference"),
)


def same_as_listed(plan):
    """Compares seconds of the simulated phases with the plan's own times, move by move."""
    scheduled, sent, computed, inside = step_schedule(plan), defaultdict(float), 0.0, 0.0
    for phase, _ in scheduled.phases_ran():
        for item, moves in zip(phase.program, phase.moves, strict=True):
            for number in moves:
                sent[number] += phase.count * item.seconds / len(moves)
            computed += phase.count * item.seconds * (item.action == "compute")
            inside += phase.count * item.seconds * (item.action == "blocking" and not moves)
    by_bucket = defaultdict(float)
    listed = defaultdict(float)
    for number, move in enumerate(plan.moves):
        key = number if move.bucket is None else f"bucket {move.bucket}"
        by_bucket[key] += sent[number]
        listed[key] += move.time_ns * 1e-9
    assert by_bucket == pytest.approx(listed, rel=1e-6, abs=1e-8)
    rounded_s = 1e-9 * len(plan.operators) * plan.model["microbatches"]
    assert computed == pytest.approx(plan.summary.compute_ns * 1e-9, abs=rounded_s)
    assert inside == pytest.approx(sum(operator.inner_ns for operator in plan.operators) * 1e-9, rel=1e-6)


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: f"{options.mode}-{options.remat}-{options.microbatches}"
)
@pytest.mark.parametrize("profile", ["generic", "v100-p3-16xl"])
def test_all_of_a_transformer_runs(options, profile):
    same_as_listed(plan_model(GPT, make_cluster(load_profile(profile), "2x2"), options))


@pytest.mark.parametrize("pin", ["y=[gpu]", "y=[null, gpu]", "a=[gpu]", "up=[machine]"])
def test_all_runs_where_layouts_are_pinned(pin, tmp_path):
    """A result that nobody reads has a gradient too, which moves where it is kept otherwise than it is made."""
    onnx.save(proto_of(CHAIN), tmp_path / "chain.onnx")
    model = read_model(tmp_path / "chain.onnx")
    options = PlanOptions(effort="quick", microbatches=2, constraints=(parse_pin(pin),))
    same_as_listed(plan_model(model, make_cluster(load_profile("generic"), "2x2"), options))


def test_a_weight_is_awaited_by_the_first_that_reads_it():
    """It is brought nearer for all readers, and from there to the second one, which waits for both."""
    sharded, half, whole = (Layout.of(*pair) for pair in ((S(0), S(1)), (R, S(1)), (R, R)))

    def operator(name, result):
        return OperatorDecision(name, "MatMul", "", "", (), (), (), 1000, inputs=("w",), outputs=(result,))

    def move(source, target, reader, axis):
        gather = CollectiveStep(Collective("all_gather", (axis,), Fraction(1)), 8, 500)
        return Move("w", source, target, reader, "forward", (gather,), kind="prefetched")

    moves = (move(sharded, half, "", 0), move(half, whole, "second", 1))
    operators = (operator("first", "a"), operator("second", "b"))
    parts = StepParts(operators, moves, ("net", "up"), False, 1, 0, (0,))
    assert [one.wait_before for one in schedule_step(parts).marked(moves)] == ["first", "second"]
