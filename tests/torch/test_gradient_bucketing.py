"""Gradients that a plan sends together are sent together: as many collectives as it says, and the same gradients."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from forced_plans import forced_plan
from tiny_models import Sizes, tiny_gpt

from shardplan.graph.options import PlanOptions
from shardplan.plan.step.buckets import buckets_of

TINY, DEEPER = tiny_gpt(Sizes(batch=8, layers=1)), tiny_gpt(Sizes(batch=8))
BUCKET = 10_000


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    models = {id(tiny): tiny.model(tmp_path_factory.mktemp("model")) for tiny in (TINY, DEEPER)}

    def plan_of(recipe, bucket_bytes=BUCKET, tiny=TINY, **options):
        how = {"seed": recipe} if isinstance(recipe, int) else {"recipe": recipe}
        return forced_plan(
            models[id(tiny)], "2x2", PlanOptions(**options), bucket_bytes=bucket_bytes, exposed=0.02, **how
        )

    return plan_of


def sent(seen, phase):
    return sum(total.count for (when, *_), total in seen.actual.items() if when == phase)


@pytest.mark.parametrize(
    ("recipe", "options", "mode"),
    [
        ("data parallel", {}, "eager"),
        ("data parallel", {}, "exported"),
        ("Megatron + sequence", {"bucket_bytes": 1_000}, "eager"),
        ("ZeRO-1", {"shard_optimizer": True}, "eager"),
        ("ZeRO-1", {"shard_optimizer": True}, "exported"),
    ],
)
def test_it_trains_as_one_process_and_sends_whole_buckets(four, plan_of, recipe, options, mode):
    plan = plan_of(recipe, **options)
    buckets = buckets_of(plan.moves)
    assert 1 < len(buckets) < sum(map(len, buckets.values())) / 2
    for seen in four.run("torch_cases", "train", TINY, plan, mode):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {}


@pytest.mark.parametrize(
    ("recipe", "options", "mode"),
    [
        ("data parallel", {}, "eager"),
        ("data parallel", {}, "exported"),
        ("ZeRO-1", {"shard_optimizer": True}, "eager"),
    ],
)
def test_buckets_are_on_their_way_while_backward_computes(four, plan_of, recipe, options, mode):
    """They are sent between products, and nobody waits for one before the last product is computed."""
    plan = plan_of(recipe, **options)
    assert plan.summary.reduces_beside
    for events in four.run("torch_cases", "events_of_buckets", TINY, plan, mode):
        products = [place for place, event in enumerate(events) if event == "product"]
        sent = [place for place, event in enumerate(events) if event == "sent"]
        assert len(sent) == events.count("awaited") > 2
        assert sum(products[0] < place < products[-1] for place in sent) >= len(sent) / 2
        assert events.index("awaited") > max(*products, *sent)


def test_a_plan_that_reduces_beside_nothing_waits_at_once(four, plan_of):
    plan = plan_of("data parallel")
    plan = replace(plan, summary=replace(plan.summary, reduces_beside=False))
    for events in four.run("torch_cases", "events_of_buckets", TINY, plan):
        assert set(events) == {"product"}


@pytest.mark.parametrize("recipe", ["data parallel", "ZeRO-1"])
def test_once_for_all_microbatches(four, plan_of, recipe):
    plan = plan_of(recipe, microbatches=2, shard_optimizer=recipe == "ZeRO-1")
    for seen in four.run("torch_cases", "accumulate", TINY, plan):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {}


def test_gradients_are_those_of_weights_sent_one_by_one(four, plan_of):
    together = plan_of("data parallel")
    alone = replace(together, moves=tuple(replace(move, bucket=None) for move in together.moves))
    counts = [len(TINY.weights), len(buckets_of(together.moves))]
    for plan, count in zip((alone, together), counts, strict=True):
        results = four.run("torch_cases", "train", TINY, plan, "eager", False, 1)
        assert {sent(seen, "backward") for seen in results} == {count}
    assert max(four.run("torch_cases", "gradients_apart", TINY, alone, together)) < 1e-6


def test_what_a_program_does_beside_the_plan_stays_right(four, plan_of):
    for error in four.run("torch_cases", "penalised", TINY, plan_of("data parallel")):
        assert error < 1e-5


def parts_read(plan):
    """Kinds of steps by which what a reader takes of a weight differs from what a device keeps, of weights in
    buckets."""
    forward = {(move.tensor, move.reader): move for move in plan.moves if move.phase == "forward"}
    back = [move for bucket in buckets_of(plan.moves).values() for move in bucket if move.phase == "backward"]
    read = [forward[move.tensor, move.reader] for move in back if (move.tensor, move.reader) in forward]
    return [step.collective.kind for move in read for step in move.steps]


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize(
    ("tiny", "recipe", "kinds"), [(DEEPER, "2-D", {"mask"}), (TINY, 2, {"mask", "slice"})], ids=["2-D", "drawn"]
)
def test_what_a_reader_takes_as_a_part_is_in_buckets_too(four, plan_of, tiny, recipe, kinds, mode):
    """A mask of a bias that is added to a partial sum, or a slice: nothing is sent for it, so nothing waits."""
    plan = plan_of(recipe, tiny=tiny)
    assert set(parts_read(plan)) == kinds
    for seen in four.run("torch_cases", "train", tiny, plan, mode):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert recipe == 2 or seen.differences == {}  # of a plan drawn at random, moves of other tensors differ


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_a_part_of_a_weight_that_the_optimizer_keeps_otherwise(four, plan_of, mode):
    plan = plan_of(3, shard_optimizer=True)
    assert set(parts_read(plan)) == {"mask", "slice"}
    kept = {tensor.name: tensor.layout.gradient for tensor in plan.tensors if tensor.optimizer is not None}
    for bucket in buckets_of(plan.moves).values():
        assert len({move.phase == "backward" and kept.get(move.tensor) == move.source for move in bucket}) == 1
    for seen in four.run("torch_cases", "train", TINY, plan, mode):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5


def test_a_part_of_a_weight_in_microbatches(four, plan_of):
    plan = plan_of("2-D", microbatches=2, tiny=DEEPER)
    assert parts_read(plan)
    for seen in four.run("torch_cases", "accumulate", DEEPER, plan):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {}


def test_a_part_of_a_weight_is_read_where_nothing_takes_a_gradient(four, plan_of):
    """In evaluation, and of a frozen weight."""
    plan = plan_of("2-D", tiny=DEEPER)
    assert parts_read(plan)
    for error in four.run("torch_cases", "without_gradients", DEEPER, plan):
        assert error < 1e-5
