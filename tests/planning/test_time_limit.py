"""A time limit or Ctrl-C at any moment: the plan that is known is the answer, and it says that a clock decided."""

import functools
import math
import signal
import time
from dataclasses import replace

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.interruption import Deadline, GivenUpError
from shardplan.models import described
from shardplan.pipeline.plan import plan_stages
from shardplan.pipeline.schedule import parse_schedule
from shardplan.planning import PlanOptions, answers, plan_model
from shardplan.planning import instance as instances
from shardplan.planning.chain import given_up
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.search import Search
from shardplan.solve import solver
from shardplan.study.derive import derived
from shardplan.study.meshes import MeshTrial
from shardplan.study.solve import _is_by_clock

MODEL = "transformer:hidden=256,layers=2,heads=8,ffn=1024,vocab=1024,batch=8,seq=128"
LONG_S, LATER_S = 1e5, 1e6
"""A limit that no test takes, and a time after it."""
SHARE_S = 0.6 * LONG_S
"""A time after the share of a question, which leaves some for those that follow."""
MOMENTS = 7
"""Moments of a search at which the time is over."""


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


def on(mesh):
    return make_cluster(load_profile("h100-dgx"), mesh)


class Clock:
    """`time.monotonic`, on which `then` happens when it is read for the `number`th time."""

    def __init__(self, monkeypatch, number=math.inf, then=lambda: None):
        self.real, self.reads, self.number, self.then, self.ahead_s = time.monotonic, 0, number, then, 0.0
        monkeypatch.setattr(time, "monotonic", self)

    def __call__(self):
        self.reads += 1
        if self.reads == self.number:
            self.then()
        return self.real() + self.ahead_s

    def jump(self, ahead_s=LATER_S):
        self.ahead_s = ahead_s


def flat(model, mesh, **options):
    return lambda: plan_model(model, on(mesh), PlanOptions(effort="quick", **options), lambda _: None)


def staged(model, mesh, **options):
    asked = PlanOptions(effort="quick", microbatches=4, **options)
    return lambda: plan_stages(model, on(mesh), asked, parse_schedule("1f1b"), stages=2, on_progress=lambda _: None)


SEARCHES = [(flat, "2x4"), (flat, "2x2x2x2"), (staged, "2x4"), (staged, "2x2x2x2")]


@pytest.mark.parametrize(
    ("search", "mesh", "ahead_s"), [*((*each, LATER_S) for each in SEARCHES), (flat, "2x4", SHARE_S)]
)
def test_a_plan_that_is_said_to_be_reproducible_is_that_of_a_search_with_time(
    model, monkeypatch, search, mesh, ahead_s
):
    search = search(model, mesh, time_limit=LONG_S)
    clock = Clock(monkeypatch)
    best, reads = search(), clock.reads
    assert best.summary.reproducible
    cut = 0
    for moment in range(MOMENTS):
        with monkeypatch.context() as patch:
            clock = Clock(patch, 1 + moment * reads // MOMENTS)
            clock.then = functools.partial(clock.jump, ahead_s)
            found = search()
        assert found.summary.bound_ns <= min(found.summary.step_ns, best.summary.step_ns)
        assert not found.summary.reproducible or found == best
        cut += found != best
    assert cut > (MOMENTS / 2 if ahead_s == LATER_S else 0)


def test_the_rules_of_operators_are_part_of_the_time(model, monkeypatch):
    best, clock = flat(model, "2x4", time_limit=LONG_S)(), Clock(monkeypatch)

    def ruled(*given, _rules=instances.model_rules):
        clock.jump()
        return _rules(*given)

    monkeypatch.setattr(instances, "model_rules", ruled)
    plan = flat(model, "2x4", time_limit=LONG_S)()
    assert best.summary.reproducible
    assert not plan.summary.reproducible
    assert plan.summary.bound_ns < best.summary.bound_ns


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_first_plan_is_found_however_late_and_nothing_is_solved_after_it(model, monkeypatch, share):
    """As on a slow machine: time is over in the reductions of every question. With half of its memory, the first
    assignment does not fit, and the next question is under the limit."""
    limit_bytes = int(share * flat(model, "2x4", time_limit=1e-6)().summary.memory.total)
    clock, solved = Clock(monkeypatch), []

    def built(*given, _build=solver.build):
        clock.jump(clock.ahead_s + LATER_S)
        return _build(*given)

    def answered(graphs, question, *given, _answering=answers.answering):
        found = yield from _answering(graphs, question, *given)
        solved.extend([question.limit_bytes] * (found.solution.choices is not None))
        return found

    monkeypatch.setattr(solver, "build", built)
    monkeypatch.setattr(answers, "answering", answered)
    plan = flat(model, "2x4", time_limit=LONG_S, memory_limit_bytes=limit_bytes)()
    assert plan.summary.memory.total <= limit_bytes
    assert not plan.summary.reproducible
    assert solved == ([None] if share == 1.0 else [None, limit_bytes])


@pytest.mark.parametrize("options", [{}, {"remat": "full"}])
def test_a_plan_whose_time_left_a_rough_schedule_follows_from_its_decisions(options):
    """Weights that are gathered just in time, or full buckets, shorten the step of each of these plans."""
    model = described("transformer:bert-base,layers=2,batch=16,seq=128")
    plan = plan_model(model, on("2x4"), PlanOptions(time_limit=1e-6, **options))
    assert not plan.summary.reproducible
    assert derived(plan, "rough.plan.json", model) == plan


@pytest.mark.parametrize(("search", "mesh"), SEARCHES)
def test_a_plan_that_is_known_survives_ctrl_c_at_any_moment(model, monkeypatch, search, mesh):
    search = search(model, mesh)
    clock = Clock(monkeypatch)
    best, reads = search(), clock.reads
    assert best.summary.reproducible
    plans = 0
    for moment in range(1, MOMENTS):
        with monkeypatch.context() as patch:
            Clock(patch, 1 + moment * reads // MOMENTS, lambda: signal.raise_signal(signal.SIGINT))
            try:
                found = search()
            except KeyboardInterrupt:
                assert not plans, "there was a plan at an earlier moment"
                continue
        plans += 1
        assert found.summary.outcome == "interrupted"
        assert not found.summary.reproducible
        assert found.summary.bound_ns <= min(found.summary.step_ns, best.summary.step_ns)
    assert plans


@pytest.mark.parametrize(("layers", "mesh"), [(4, "2x4"), (4, "4x2"), (2, "2x4")])
def test_once_there_is_a_plan_and_no_time_nothing_is_built_and_nothing_solved(monkeypatch, layers, mesh):
    """With many layers the first plan comes in the middle of the first question, else after it."""
    clock, after = Clock(monkeypatch), []

    def heard(self, candidate, _heard=Search._heard):
        _heard(self, candidate)
        if self.spent.best is not None:
            clock.jump()

    def counted(name, function):
        def counting(*given, **named):
            if clock.ahead_s:
                after.append(name)
            return function(*given, **named)

        return counting

    monkeypatch.setattr(Search, "_heard", heard)
    for name in ("chain.solve", "chain.to_problems", "instance.build_cost_graph", "judge.price"):
        module, function = name.split(".")
        place = __import__(f"shardplan.planning.{module}", fromlist=[function])
        monkeypatch.setattr(place, function, counted(name, getattr(place, function)))
    plan = flat(described(MODEL.replace("layers=2", f"layers={layers}")), mesh, time_limit=LONG_S)()
    assert clock.ahead_s
    assert not after
    assert not plan.summary.reproducible


def test_the_plan_of_a_coarser_mesh_is_taken_over_though_time_is_over_meanwhile(model, monkeypatch):
    clock, near = Clock(monkeypatch), []

    def answered(graphs, question, *given, _answering=answers.answering):
        near[:] = [question] * (question.near is not None and not question.is_late)
        return _answering(graphs, question, *given)

    def built(*given, _build=solver.build):
        if near:
            clock.jump()
        return _build(*given)

    monkeypatch.setattr(answers, "answering", answered)
    monkeypatch.setattr(solver, "build", built)
    plan = flat(model, "2x2x2x2", time_limit=LONG_S)()
    assert clock.ahead_s
    assert not plan.summary.reproducible


def test_a_graph_that_was_given_up_is_built_when_there_is_time(model):
    graphs = CostGraphs(instance_of(model, on("2x2"), PlanOptions(), pytest.fail))
    late = Deadline(0.0, armed=True)
    with pytest.raises(GivenUpError):
        graphs.asked(late)
    assert late.by_clock
    built, _ = graphs.asked(Deadline(0.0))  # nothing is known without it
    whole, _ = CostGraphs(graphs.instance).asked()
    assert built.joins == whole.joins


def test_the_items_of_a_long_loop_end_with_its_deadline():
    deadline, met = Deadline(armed=True), []

    def loop():
        for item in deadline.over(range(5)):
            met.append(item)
            deadline.ends_s = 0.0 if item == 2 else math.inf

    with pytest.raises(GivenUpError):
        loop()
    assert met == [0, 1, 2]


def test_stages_by_hand_share_the_time_limit(model, monkeypatch):
    from shardplan import make_plan

    heard = []

    def asked(model, cluster, options, _make=Search.of, **given):
        heard.append(options.time_limit)
        return Planner(model, cluster, options, **given)

    from shardplan.pipeline.manual import planning
    from shardplan.planning import Planner

    monkeypatch.setattr(planning, "Planner", asked)
    stages = [{"runs": ["model.embed_tokens", "model.layers.0"], "mesh": "1x2"}, {"runs": ["*"], "mesh": "1x2"}]
    make_plan(MODEL, "1x4", cluster="generic", microbatches=4, time_limit=LONG_S, constraints=[{"stages": stages}])
    assert len(heard) == 2
    assert heard[0] <= LONG_S / 2
    assert sum(heard) <= 1.6 * LONG_S


def test_the_best_of_several_meshes_is_by_the_clock_if_one_of_them_is(model):
    best = flat(model, "2x2")()
    mesh = best.mesh
    cut = replace(best, summary=replace(best.summary, reproducible=False))
    timed, untimed = PlanOptions(time_limit=1.0), PlanOptions()
    assert not _is_by_clock(MeshTrial("2x2", mesh, best, 0), timed)
    assert _is_by_clock(MeshTrial("2x2", mesh, cut, 0), timed)
    assert _is_by_clock(MeshTrial("2x2", mesh, None, 0, "interrupted"), untimed)
    assert _is_by_clock(MeshTrial("2x2", mesh, None, 0, "out of time"), timed)
    assert not _is_by_clock(MeshTrial("2x2", mesh, None, 0, "out of time"), untimed)
    assert not _is_by_clock(MeshTrial("2x2", mesh, None, 0, "does not fit in memory"), timed)


@pytest.mark.parametrize("limit_s", [None, LONG_S])
def test_with_a_time_limit_the_cheapest_question_comes_first(model, monkeypatch, limit_s):
    asked = []

    def recorded(graphs, question, *rest):
        asked.append(question.is_late)
        return answers_of(graphs, question, *rest)

    answers_of = answers.answering
    monkeypatch.setattr(answers, "answering", recorded)
    assert flat(model, "2x4", time_limit=limit_s)().summary.reproducible
    assert asked[0] is (limit_s is not None)
    assert not any(asked[1:])


def test_what_is_asked_at_once_changes_no_plan_that_has_time(model):
    first, with_limit = (flat(model, "2x4", time_limit=limit_s)() for limit_s in (None, LONG_S))
    assert [each.layout for each in first.tensors] == [each.layout for each in with_limit.tensors]
    assert first.summary == with_limit.summary


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_where_the_search_chooses_what_is_recomputed_there_is_a_plan_before_that_question(model, monkeypatch, share):
    """With a fifth of the memory of a plan that recomputes nothing, the first plan recomputes all that it can."""
    limit_bytes = int(share * flat(model, "2x4", remat="none")().summary.memory.total)
    clock, asked = Clock(monkeypatch), []

    def heard(self, candidate, _heard=Search._heard):
        _heard(self, candidate)
        if self.spent.best is not None:
            clock.jump()

    def answered(graphs, question, *given, _answering=answers.answering):
        asked.append(question)
        return _answering(graphs, question, *given)

    monkeypatch.setattr(Search, "_heard", heard)
    monkeypatch.setattr(answers, "answering", answered)
    plan = flat(model, "2x4", remat="auto", memory_limit_bytes=limit_bytes, time_limit=LONG_S)()
    assert [question.remat for question in asked[: 2 - int(share)]] == [None, "full"][: 2 - int(share)]
    assert all(question.is_late for question in asked[: 2 - int(share)])
    assert plan.summary.memory.total <= limit_bytes
    assert not plan.summary.reproducible


def test_without_any_plan_a_recipe_that_recomputes_all_is_the_last_resort(model, monkeypatch):
    limit_bytes = int(0.2 * flat(model, "2x4", remat="none")().summary.memory.total)

    def answered(graphs, question, *given, _answering=answers.answering):
        if question.restriction is None:
            return given_up(replace(question, deadline=Deadline()))
        return (yield from _answering(graphs, question, *given))

    monkeypatch.setattr(answers, "answering", answered)
    plan = flat(model, "2x4", remat="auto", memory_limit_bytes=limit_bytes)()
    assert plan.summary.memory.total <= limit_bytes
