"""Meshes of several axes over one link: their search starts from the plan of the mesh with one axis for each link."""

import functools
import itertools

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster, merged
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import InfeasibleError, LimitError
from shardplan.graph.neighbourhood import NearbyLayouts
from shardplan.graph.pricing import Pricing
from shardplan.graph.tensors import TensorKind, TensorSpace
from shardplan.layout.layout import Layout
from shardplan.layout.placement import RP, P, R, S
from shardplan.models import described
from shardplan.planning import PlanOptions, candidates, plan_model, planner
from shardplan.planning.finer import work_s
from shardplan.study.derive import derived

MODEL = "transformer:hidden=64,layers=1,heads=2,ffn=128,vocab=128,batch=8,seq=32"
PROFILE = load_profile("generic")
COARSE = "machine=4,gpu=4"
FINER = ("machine=4,gpu0=2,gpu1=2", "machine0=2,machine1=2,gpu0=2,gpu1=2")


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


@functools.cache
def planned(mesh):
    return plan_model(described(MODEL), make_cluster(PROFILE, mesh), PlanOptions())


def test_neighbouring_axes_over_one_link_are_merged():
    cluster, groups = merged(make_cluster(PROFILE, FINER[1]))
    assert cluster.mesh == make_cluster(PROFILE, COARSE).mesh
    assert groups == ((0, 1), (2, 3))
    assert merged(cluster) == (cluster, ((0,), (1,)))


def test_a_layout_of_a_coarser_mesh_has_its_axes_in_the_order_of_their_parts():
    groups = ((0, 1), (2,))
    assert Layout.of(S(0), R).on_finer(groups) == Layout.of(S(0), S(0), R)
    assert Layout.of(P(), RP).on_finer(groups) == Layout.of(P(), P(), RP)
    turned = Layout.of(S(1), S(1), order=(1, 0))
    assert turned.on_finer(groups) == Layout.of(S(1), S(1), S(1), order=(2, 0, 1))


@pytest.mark.parametrize("mesh", FINER)
def test_a_finer_mesh_over_the_same_links_is_never_slower(mesh):
    assert planned(mesh).summary.step_ns <= planned(COARSE).summary.step_ns


WITH_IDLE = {"machine0=4,machine1=1,gpu0=1,gpu1=4": COARSE, "machine=4,gpu0=1,gpu1=2,gpu2=1,gpu3=2": FINER[0]}


@pytest.mark.parametrize("mesh", WITH_IDLE)
def test_axes_of_one_device_change_neither_plan_nor_proof(mesh):
    plan, without = planned(mesh), planned(WITH_IDLE[mesh])
    assert plan.summary.step_ns == without.summary.step_ns
    assert plan.summary.bound_ns == pytest.approx(without.summary.bound_ns, abs=1)
    assert plan.summary.multipliers == without.summary.multipliers
    assert (plan.summary.outcome, plan.summary.reproducible) == (without.summary.outcome, without.summary.reproducible)


def test_of_many_axes_the_bound_is_the_arithmetic_of_the_model(model):
    plan = planned(FINER[1])
    cluster = make_cluster(PROFILE, FINER[1])
    least_ns = 1e9 * work_s(model, cluster, PlanOptions()) / cluster.mesh.size
    assert plan.summary.bound_ns == pytest.approx(least_ns, abs=2.0)
    assert plan.summary.bound_ns <= min(plan.summary.step_ns, planned(COARSE).summary.step_ns)
    assert plan.summary.reproducible


def test_a_plan_of_many_axes_is_derived_from_its_decisions(model):
    plan = planned(FINER[1])
    assert derived(plan, "plan", model) == plan


def test_a_pin_to_an_axis_that_the_coarser_mesh_has_not_is_kept(model):
    pin = parse_pin("model.layers.0.mlp.up_proj.weight=[gpu1, null]")
    options = PlanOptions(constraints=(pin,), effort="quick")
    plan = plan_model(model, make_cluster(PROFILE, "gpu0=2,gpu1=2"), options)
    [weight] = [tensor for tensor in plan.tensors if tensor.checkpoint == "model.layers.0.mlp.up_proj.weight"]
    assert [str(placed.kind) for placed in weight.layout.placements] == ["R", "S"]


def test_that_nothing_fits_on_three_axes_is_proven_without_a_search_over_them(model, monkeypatch):
    """The coarser mesh of two axes may be searched; one plain problem of all three then proves it."""
    searched = []

    def shortest(search, *given):
        searched.append(len(search.instance.cluster.mesh))
        return candidates.shortest(search, *given)

    monkeypatch.setattr(planner, "shortest", shortest)
    with pytest.raises(InfeasibleError, match=r"every device is at least .* short"):
        plan_model(model, make_cluster(PROFILE, FINER[0]), PlanOptions(memory_limit_bytes=1000))
    assert searched == [2]


def test_where_the_coarser_mesh_has_no_plan_a_person_is_told_to_look_there(model):
    with pytest.raises(LimitError) as problem:
        plan_model(model, make_cluster(PROFILE, FINER[1]), PlanOptions(memory_limit_bytes=1000))
    assert str(problem.value) == (
        "error[limit]: no plan was found for 'transformer' on 'generic' "
        "(machine0=2 x machine1=2 x gpu0=2 x gpu1=2)\n"
        "  on machine=4 x gpu=4, over the same links, none fits in memory or was found in time\n"
        "hint: solve with --mesh machine=4,gpu=4 to see why"
    )


LAYOUTS = [Layout.of(*each) for each in itertools.product((S(0), S(1), R), repeat=3)]


def spaces(layouts, free):
    """All choices of a weight, and those near some layouts."""
    cluster = make_cluster(PROFILE, FINER[0])
    prices = Pricing.of(cluster).moves
    kind = TensorKind((64, 64), 1 << 20, 1 << 20, (S(0), S(1)), True, "weight", True, True, 1)
    nearby = NearbyLayouts(frozenset(layouts), frozenset(free), kind.shards, cluster.mesh.shape)
    return TensorSpace(kind, cluster.mesh, prices), TensorSpace(kind, cluster.mesh, prices, nearby)


@pytest.mark.parametrize("free", [(), (1,), (0, 2)])
def test_what_is_near_differs_on_the_free_axes_alone_and_moves_cost_no_less_than_the_cheapest_way(free):
    some = [Layout.of(S(0), R, R), Layout.of(R, S(1), S(1), order=(0, 2, 1))]
    whole, near = spaces(some, free)
    offered = [near.layout(choice) for choice in range(len(near))]
    kept = [axis for axis in range(3) if axis not in free]
    wanted = {tuple(one.placements[axis] for axis in kept) for one in some}
    assert {tuple(one.placements[axis] for axis in kept) for one in offered} <= wanted
    assert set(some) <= set(offered)
    place = [[whole.layout(choice) for choice in range(len(whole))].index(one) for one in offered]
    cheapest = whole.value_move(whole.forward, whole.forward).sum(axis=0)[np.ix_(place, place)]
    here = near.value_move(near.forward, near.forward).sum(axis=0)
    assert (here >= cheapest - 1e-12).all()
    assert np.isfinite(here).all()


def test_near_everything_is_everything():
    whole, near = spaces(LAYOUTS, (0, 1, 2))
    assert np.array_equal(np.unique(near.codes, axis=0), np.unique(whole.codes, axis=0))
