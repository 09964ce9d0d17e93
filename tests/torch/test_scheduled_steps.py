"""The step that torch executes is the one that was scheduled: recorded on four processes, in the virtual time of a slow
network, it is about as long as the plan says, and shorter than the sum of its parts."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from slow_plans import scheduled_seconds, serial_seconds, slow_cluster, slow_plan
from tiny_models import Sizes, tiny_gpt, tiny_llama
from virtual_time import computed, seconds_of

from shardplan.cost.occupancy import links_of
from shardplan.plan.views.timeline import step_schedule

TINY = tiny_gpt(Sizes(batch=16))
DEEP, OTHER = tiny_gpt(Sizes(batch=8, layers=8)), tiny_llama(Sizes(batch=16))
RECIPES = {
    "data parallel": ("data parallel", {}),
    "ZeRO-1": ("ZeRO-1", {"shard_optimizer": True}),
    "ZeRO-3": ("ZeRO-3", {}),
    "mixed": ("Megatron", {}),
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The cluster and the plan of a recipe, for a model and a mesh, made once."""
    known = {}

    def planned(which, tiny=TINY, mesh="2x2"):
        key = which, tiny.name, tiny.sizes, mesh
        if key not in known:
            folder, (recipe, options) = tmp_path_factory.mktemp("slow"), RECIPES[which]
            cluster = slow_cluster(folder, mesh)
            known[key] = cluster, slow_plan(tiny.model(folder), cluster, recipe, **options)
        return known[key]

    return planned


def measured(four, cluster, plan, mode="eager", tiny=TINY, timeout=60):
    found = four.run("slow_ranks", "recorded_step", tiny, plan, cluster, mode, timeout=timeout)
    return seconds_of(found, links_of(cluster))


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("which", RECIPES)
def test_a_step_takes_as_long_as_scheduled(four, planned, which, mode):
    cluster, plan = planned(which)
    scheduled, serial = scheduled_seconds(plan), serial_seconds(plan)
    assert serial > 1.3 * scheduled
    assert measured(four, cluster, plan, mode) == pytest.approx(scheduled, rel=0.02)


def test_weights_that_are_gathered_again(four, planned, tmp_path):
    """As they are where memory is short: ahead of the backward passes that read them."""
    cluster, eager = planned("ZeRO-3")
    limit = int(0.96 * eager.summary.memory.total)
    plan = slow_plan(TINY.model(tmp_path), cluster, "ZeRO-3", memory_limit_bytes=limit)
    assert sum(move.regather for move in plan.moves) > 3
    assert plan.summary.prefetch_distance >= 0
    assert measured(four, cluster, plan) == pytest.approx(scheduled_seconds(plan), rel=0.02)


@pytest.mark.parametrize(
    ("which", "tiny", "mesh"),
    [("ZeRO-3", OTHER, "2x2"), ("ZeRO-3", DEEP, "4x1"), ("mixed", DEEP, "1x4"), ("ZeRO-1", DEEP, "2x2")],
    ids=["llama", "four machines", "one machine", "eight layers"],
)
def test_other_models_and_meshes(four, planned, which, tiny, mesh):
    cluster, plan = planned(which, tiny, mesh)
    assert measured(four, cluster, plan, tiny=tiny) == pytest.approx(scheduled_seconds(plan), rel=0.1)


@pytest.mark.parametrize("change", [{"prefetch_distance": -1, "prefetches_in_time": False}, {"reduces_beside": False}])
def test_what_does_not_run_beside_compute_is_seen(four, planned, change):
    """A program that gathers weights where they are read, or waits for gradients where they are made, is as much slower
    as the schedule of such a step."""
    cluster, plan = planned("ZeRO-3")
    other = replace(plan, summary=replace(plan.summary, **change))
    found = measured(four, cluster, other)
    assert found > 1.1 * scheduled_seconds(plan)
    assert found == pytest.approx(scheduled_seconds(other), rel=0.05)


def test_compute_and_collectives_are_those_of_the_plan(four, planned):
    cluster, plan = planned("mixed")
    expected = {}
    for phase, _ in step_schedule(plan).phases_ran():
        for item in phase.program:
            if item.action == "compute":
                expected[item.name] = expected.get(item.name, 0.0) + item.seconds
    for step in four.run("slow_ranks", "recorded_step", TINY, plan, cluster):
        assert {name: seconds for name, seconds in computed(step).items() if seconds} == pytest.approx(expected)


@pytest.mark.parametrize("which", ["ZeRO-1", "ZeRO-3"])
def test_a_hook_is_given_a_gradient_and_no_placeholder(four, planned, which):
    """Gradients that a program looks at while they come back are not in flight."""
    _, plan = planned(which)
    assert max(four.run("torch_cases", "hooked", TINY, plan)) < 1e-5


@pytest.mark.parametrize("which", ["ZeRO-1", "ZeRO-3"])
def test_gradients_are_those_of_moves_that_are_waited_for_at_once(four, planned, which):
    _, plan = planned(which)
    at_once = replace(plan, summary=replace(plan.summary, reduces_beside=False))
    assert max(four.run("torch_cases", "gradients_apart", TINY, plan, at_once)) == 0.0
