"""What gradients that are sent together are charged, and what their buckets take: docs/cost-model.md."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Coalesce
from shardplan.cost.coalesce import in_bucket
from shardplan.graph.pricing import Pricing
from shardplan.graph.tensors import TensorKind, TensorSpace
from shardplan.layout.layout import Layout
from shardplan.layout.placement import P, R, S
from shardplan.plan.step.bucketing import UNNUMBERED, BucketPrices, in_buckets
from shardplan.plan.step.buckets import buckets_of, device_bytes
from shardplan.plan.step.moves import StepMoves, StepParts
from shardplan.plan.types import CollectiveStep, Move, OperatorDecision

BUCKET = 25e6
PRICINGS = {
    (name, mesh): Pricing.of(make_cluster(load_profile(name), mesh))
    for name, mesh in [("h100-dgx", "4x8"), ("a100-p4d", "3x8"), ("generic", "2x4"), ("v100-p3-16xl", "4x8")]
}
SIZES = st.integers(1, 200_000_000)


def kind_of(size_bytes, shape=(24, 24)):
    return TensorKind(
        shape=shape, size_bytes=size_bytes, gradient_bytes=size_bytes, shards=(S(0), S(1)), has_gradient=True,
        traffic="weight", stored=True, ordered=True, microbatches=1, accumulates=True, coalesces=True,
    )  # fmt: skip


def shares_of(prices, size_bytes):
    """Seconds of moves of a gradient between all layouts, on all links: by itself, and as a share of a bucket."""
    kind = kind_of(size_bytes)
    space = TensorSpace(kind, prices.mesh, prices)
    both = prices.of(kind, space.legal, "backward"), prices.shares(kind, space.legal, "backward")
    return tuple(by_levels.sum(axis=0) for by_levels in both)


@pytest.mark.parametrize("where", PRICINGS)
@given(size_bytes=SIZES, more=st.floats(1.0, 50.0))
def test_a_share_is_no_dearer_rises_and_is_concave(where, size_bytes, more):
    prices = PRICINGS[where].moves
    (alone, shared), (_, larger) = (shares_of(prices, size) for size in (size_bytes, int(size_bytes * more)))
    there = np.isfinite(alone)
    assert (np.isfinite(shared) == there).all()
    slack = 1e-9 * alone[there] + 1e-15
    assert (shared[there] <= alone[there] + slack).all()
    assert (larger[there] >= shared[there] - slack).all()
    ratio = int(size_bytes * more) / size_bytes
    assert (larger[there] <= ratio * (shared[there] + slack)).all()


def test_without_a_bucket_every_gradient_is_sent_by_itself():
    cluster = replace(make_cluster(load_profile("h100-dgx"), "4x8"), coalesce=Coalesce(0.0))
    alone, shared = shares_of(Pricing.of(cluster).moves, 1000)
    assert np.array_equal(alone, shared)


def test_collectives_that_cannot_be_joined_are_charged_in_full():
    prices = PRICINGS["h100-dgx", "4x8"].moves
    in_one = in_bucket(prices.seconds, BUCKET)
    kinds = {
        collective.kind: collective for collective in TensorSpace(kind_of(1), prices.mesh, prices).space.collectives
    }
    for kind, collective in kinds.items():
        alone, shared = prices.seconds(collective, 1e4), in_one(collective, 1e4)
        assert shared < alone / 2 if kind in {"all_reduce", "reduce_scatter", "all_gather"} else shared == alone


def gradient(prices, number, size_bytes, target):
    """A move of a partial gradient home, as emitted: its only collective, and what that is charged."""
    source = Layout.of(P(), P())
    space = TensorSpace(kind_of(size_bytes), prices.mesh, prices).space
    wanted = ("all_reduce" if target.placements == (R, R) else "reduce_scatter", (0, 1))
    collective = next(c for c in space.collectives if (c.kind, c.axes) == wanted)
    seconds = in_bucket(prices.seconds, BUCKET)(collective, float(size_bytes))
    step = CollectiveStep(collective, size_bytes, round(seconds * 1e9))
    return Move(f"w{number}", source, target, "", "backward", (step,), count=1, kind="deferred", bucket=UNNUMBERED)


def parts_of(moves, compute_ns):
    """A step of one operator for each weight, the last of which is the first in backward."""
    operators = [
        OperatorDecision(
            f"n{number}", "Op", "", "", (), (), (), 3 * compute_ns, (move.tensor,), backward_ns=2 * compute_ns
        )
        for number, move in enumerate(moves)
    ]
    return StepParts(operators, moves, ("net", "up"), True, 1, 0, (0,))


@pytest.mark.parametrize("where", PRICINGS)
@pytest.mark.parametrize("full", [False, True])
@given(
    sizes=st.lists(st.tuples(st.integers(1, 60_000_000), st.booleans()), min_size=1, max_size=40),
    compute_ns=st.integers(0, 2_000_000),
)
def test_buckets_take_what_their_collectives_take_and_never_less_than_is_charged(where, full, sizes, compute_ns):
    prices = PRICINGS[where].moves
    targets = Layout.of(R, R), Layout.of(S(0), S(0))
    moves = [gradient(prices, number, size, targets[scattered]) for number, (size, scattered) in enumerate(sizes)]
    buckets_are = BucketPrices(prices.mesh, prices.seconds, BUCKET, ["up", "net"], full)
    found = in_buckets(StepMoves(parts_of(moves, compute_ns)), buckets_are, lambda _: "float").parts.moves
    assert [(move.tensor, move.target) for move in found] == [(move.tensor, move.target) for move in moves]
    buckets = buckets_of(found)
    assert list(buckets) == list(range(len(buckets)))
    charged = {move.tensor: move.time_ns for move in moves}
    for bucket in buckets.values():
        assert len({move.target for move in bucket}) == 1
        held = float(sum(device_bytes(move, prices.mesh) for move in bucket))
        assert held <= BUCKET * (1 + 1e-9) or len(bucket) == 1
        real_ns = prices.seconds(bucket[0].steps[0].collective, held) * 1e9
        assert sum(move.time_ns for move in bucket) == pytest.approx(real_ns, rel=1e-6, abs=len(bucket))
        assert real_ns >= sum(charged[move.tensor] for move in bucket) * (1 - 1e-6) - len(bucket)
