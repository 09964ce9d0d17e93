"""Stages as plans: equal ones are planned once, and what is guessed of others is no proof."""

from dataclasses import replace

import numpy as np
import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions
from shardplan.models.named import described
from shardplan.pipeline.constants import EASINGS
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.schedule import parse_schedule
from shardplan.pipeline.solver import PipelineSolver, _is_converging
from shardplan.pipeline.stage_costs import _Seen, _strained
from shardplan.pipeline.stage_planner import StagePlanner
from shardplan.planning import Planner
from shardplan.planning.search import NoBetterError

MODEL, LARGER = (
    described(f"transformer:layers={layers},hidden=128,heads=4,vocab=256,seq=64,batch=16") for layers in (8, 14)
)
CLUSTER = make_cluster(load_profile("h100-dgx"), "2x2")


def stager(remat="none", model=MODEL, **options):
    return PipelineSolver(
        model, CLUSTER, PlanOptions(effort="quick", microbatches=4, remat=remat, **options), parse_schedule("1f1b")
    )


def cuts_of_two_layers(stager):
    """Units 1 .. 8 are the layers; in four stages, each on the part with two devices."""
    part = next(number for number, part in enumerate(stager.parts) if part.size == 2)
    return stager.stage_costs.with_best_layouts([Cut(low, low + 2, part, 0, 0) for low in (1, 3, 5, 7)])


def parts_of(plan):
    """What a plan decides, without the names."""
    return (
        [(tensor.layout, tensor.served, tensor.shape) for tensor in plan.tensors],
        [(operator.split, operator.reads, operator.makes, operator.compute_ns) for operator in plan.operators],
        [(move.source, move.target, move.steps) for move in plan.moves],
        replace(plan.summary, reproducible=True),
    )


@pytest.mark.parametrize("remat", ["none", "full", "auto"])
def test_equal_stages_are_planned_once_and_alike(remat, monkeypatch):
    found = stager(remat)
    solved, plan_alone = [], StagePlanner._plan

    def counted(self, *args, like=None, **named):
        solved.extend([args] if like is None else [])
        return plan_alone(self, *args, like=like, **named)

    monkeypatch.setattr(StagePlanner, "_plan", counted)
    cuts = cuts_of_two_layers(found)[1:]
    assert len({found.stage_costs.kind_of(cut) for cut in cuts[:2]}) == 1
    plans = [found.planner.plan(cut, 2, place) for place, cut in enumerate(cuts[:2])]
    assert len(solved) == 1
    for place, (cut, plan) in enumerate(zip(cuts, plans, strict=False)):
        alone = stager(remat).planner.plan(cut, 2, place)
        assert parts_of(plan) == parts_of(alone)
        assert plan.model == alone.model
        assert plan.blocks == alone.blocks


def test_a_stage_that_holds_less_is_no_slower(monkeypatch):
    found, plan_alone = stager(), StagePlanner._plan

    def badly(self, cut, in_flight, name, *, like=None, **named):
        """As if the search for a plan with one microbatch in flight went astray."""
        plan = plan_alone(self, cut, in_flight, name, like=like, **named)
        slower = 2 if in_flight == 1 and like is None else 1
        summary = replace(plan.summary, step_ns=slower * plan.summary.step_ns)
        return replace(plan, summary=summary)

    monkeypatch.setattr(StagePlanner, "_plan", badly)
    cut = cuts_of_two_layers(found)[1]
    more = found.planner.plan(cut, 2, 1).summary
    less = found.planner.plan(cut, 1, 1).summary
    assert less.step_ns == less.objective_ns == more.step_ns
    assert less.gap == pytest.approx(1 - less.bound_ns / less.step_ns)


def test_stages_are_planned_each_for_itself_where_layers_are_named():
    from shardplan.constraints.parse import parse_pin

    found = stager(constraints=(parse_pin("model.layers.3.*=replicate"),))
    for place, cut in enumerate(cuts_of_two_layers(found)):
        found.planner.plan(cut, 1, place)
    assert not found.planner._alike


def test_what_cannot_be_worth_it_is_not_planned():
    found = stager()
    cuts = cuts_of_two_layers(found)
    least_ns = found.stage_costs.step_ns([found.stage_costs.bound_ns(cut, 1) for cut in cuts])
    assert found.planner.plans(cuts, worth_ns=0.9 * least_ns) is None
    assert not found.planner._planned
    assert found.planner.plans(cuts) is not None


def test_a_stage_that_is_proven_too_slow_ends_the_plan_of_a_cut(monkeypatch):
    """It is told within what time it has to be, beside the least that the others take, and what was proven is seen."""
    found, told = stager(), []
    cuts = cuts_of_two_layers(found)
    least_ns = [found.stage_costs.bound_ns(cut, found.planner.in_flight(place, 4)) for place, cut in enumerate(cuts)]

    def too_slow(self, restriction, *, enough_s):
        told.append(enough_s)
        raise NoBetterError(3e-9 * least_ns[0])

    monkeypatch.setattr(Planner, "chosen", too_slow)
    worth_ns = 1.5 * found.stage_costs.step_ns(least_ns)
    assert found.planner.plans(cuts, worth_ns) is None
    assert found.stage_costs.step_ns([1e9 * told[0], *least_ns[1:]]) == pytest.approx(worth_ns)
    assert [seen.strain for seen in found.stage_costs._seen] == [
        pytest.approx(3 * least_ns[0] / found.stage_costs.least_ns(cuts[0]))
    ]


def test_guesses_from_what_was_seen_raise_no_bound():
    """Runs that are no shorter and hold no less are taken to be strained as much; others, and the bound, are not."""
    found = stager(model=LARGER)
    before = found.stage_costs.search(None)
    for cut in before.cuts:
        found.stage_costs.see(cut, 1, 3.0 * found.stage_costs.least_ns(cut))
    guessed, after = found.stage_costs.search(None, easing=EASINGS[0]), found.stage_costs.search(None)
    assert guessed.cost > before.cost
    assert (after.cost, after.bound) == (before.cost, before.bound)


def test_fewer_layers_are_guessed_to_be_strained_less():
    seen = _Seen(submesh=0, least_ps=100.0, waiting=1, strain=2.0)
    assert _strained(np.array([120.0, 100.0, 95.0, 90.0, 50.0]), [seen], 0.1).tolist() == pytest.approx(
        [240.0, 200.0, 142.5, 90.0, 50.0]
    )
    assert np.isinf(_strained(np.array([np.inf]), [seen], 0.1)).all()


def test_a_search_whose_costs_rise_too_slowly_is_not_gone_on_with():
    slow, fast = [10.0 + 0.1 * n for n in range(9)], [10.0 + n for n in range(9)]
    assert not _is_converging(slow, 20.0, rounds=30)
    assert _is_converging(fast, 20.0, rounds=30)
    assert _is_converging(slow[:8], 20.0, rounds=30)  # too few to tell


def test_what_can_never_fit_is_refused_at_once(monkeypatch):
    """Bounds that know of memory are then many times what they are without."""
    found = stager(model=LARGER)
    first = found.stage_costs.search(None)
    searches = iter([first, replace(first, bound=3 * first.bound), replace(first, bound=40 * first.bound)])
    monkeypatch.setattr(found.stage_costs, "search", lambda *_, **__: next(searches))
    monkeypatch.setattr(found.stage_costs, "raise_bound", lambda *_: True)
    with pytest.raises(InfeasibleError) as problem:
        found.solve()
    assert str(problem.value).splitlines() == [
        f"error[infeasible]: no way to cut '{LARGER.name}' into stages on 'h100-dgx' fits in memory",
        "hint: more --microbatches, --remat auto, or a larger --mesh",
    ]
    found.schedule = parse_schedule("gpipe")
    assert found._does_not_fit().hint == "--schedule 1f1b, --remat auto, or a larger --mesh"
