"""The price of a configuration where the profile is wrong: `price --robust`."""

from itertools import pairwise

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.perturb import all_constants, constants
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.graph.options import PlanOptions
from shardplan.planning.parallelism import Parallelism
from shardplan.request import Request
from shardplan.study.instance import load_model
from shardplan.study.price import Batch, price, price_as_asked

MODEL = "transformer:style=gpt,layers=2,hidden=512,heads=4,vocab=512,seq=256"
CLUSTER = make_cluster(load_profile("generic"))
WAYS = [Parallelism(data=2, zero=3), Parallelism(tensor=2, sequence=True), Parallelism(pipeline=2, data=2)]


def step(parallelism, factors):
    model = load_model(MODEL, {"batch": 64})
    options = PlanOptions(microbatches=64 // (16 * parallelism.data))
    return price(parallelism, model, CLUSTER, options, factors=factors).plan.summary.step_ns


@pytest.mark.parametrize("parallelism", WAYS, ids=["dp 2", "tp 2", "pp 2 x dp 2"])
def test_the_step_follows_the_constants(parallelism):
    """Where all rates are halved and all latencies doubled, a step takes twice as long but for the starts of kernels:
    factors reach compute, memory, and what ranks and stages send."""
    slow = {name: 2.0 if name.endswith("latency") else 0.5 for name in all_constants(CLUSTER)}
    steps = [step(parallelism, factors) for factors in ({}, slow)]
    assert 1.8 < steps[1] / steps[0] < 2.001
    single = [step(parallelism, {name: factor}) for name, factor in slow.items() if name in constants(CLUSTER)]
    assert all(steps[0] <= each <= steps[1] for each in single)


def robust(cluster, draws):
    asked = Request(MODEL, cluster=cluster)
    return price_as_asked(asked, WAYS[0], Batch(64, 16), compare=False, robust=draws)


def test_the_draws_lie_within_the_spread():
    """The narrower the spread, the closer the steps: within a per cent of the profile's own at one per cent."""
    narrow = "name: own\nextends: builtin:generic\nspread: {compute: 0.01, memory: 0.01, up: 0.01, net: 0.01}\n"
    narrow = narrow.replace("up", CLUSTER.levels[0].name).replace("net", CLUSTER.levels[-1].name)
    own = make_cluster(profile_from_text(narrow, "own"))
    found, close = robust(CLUSTER, 4), robust(own, 4)
    wide, near = found.robust, close.robust
    alone = found.priced.plan.summary.step_ns
    assert wide.spread == (0.15, 0.15)
    assert near.spread == (0.01, 0.01)
    assert all(first <= then for first, then in pairwise(wide.step_ns))
    assert alone / 1.15 <= wide.step_ns[0] < alone < wide.step_ns[-1] <= alone * 1.15
    assert alone / 1.01 <= near.step_ns[0] < near.step_ns[-1] <= alone * 1.01
    assert robust(CLUSTER, 4).robust == wide
    assert robust(CLUSTER, 0).robust is None
