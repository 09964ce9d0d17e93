"""The chain of reductions goes there and back, and the generators of candidates ask no more than they have to."""

from dataclasses import replace

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import objective_of
from shardplan.model.read import read_model
from shardplan.planning.candidates import shortest
from shardplan.planning.chain import Question, answer, chain
from shardplan.planning.constants import ANSWER_JUDGED
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.judge import judged
from shardplan.planning.questions import of_phases
from shardplan.planning.reduction import Assignment, Problems
from shardplan.planning.rematerialisation import Rematerialisation
from shardplan.planning.search import NoPlanError, Search
from shardplan.schedule.objective import at_multipliers
from shardplan.solve import Solution, evaluate

MODEL = """
two (float[2048,256] x) => (float[2048,8] y)
<float[256,256] w1, float[256,8] w2> {
  a = MatMul (x, w1)
  b = Gelu (a)
  y = MatMul (b, w2)
}"""

TIES_S = 1e-9
"""What the solver is charged to break ties, at most."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("chain") / "two.onnx"
    onnx.save(proto_of(MODEL), path)
    return read_model(path)


def graphs_of(model, **options):
    cluster = make_cluster(load_profile("generic"), "2")
    return CostGraphs(instance_of(model, cluster, PlanOptions(**options), lambda _: None))


def asked(questions, graphs):
    """All that a generator asks when it is answered, and what it returns."""
    asking, question = [], next(questions)
    try:
        while True:
            asking.append(question)
            question = questions.send(answer(graphs, question))
    except StopIteration as end:
        return asking, end.value


def test_the_reductions_stand_in_their_order(model):
    graphs = graphs_of(model)
    restricting, transforming = chain(graphs.instance, Question(None), objective_of(graphs.asked()[0]))
    assert [type(one).__name__ for one in restricting] == ["ConstraintMasks", "Restriction", "KnownToPlanner"]
    names = ["Rematerialisation", "StayingWeights", "Maxima", "EqualLayers"]
    assert [type(one).__name__ for one in transforming] == names


def without_recompute(data, choices):
    """Of the problem combined with rematerialisation, the assignment that recomputes nothing and makes `choices`."""
    found = []
    for (kind, name), choice, starts, states in zip(data.order, choices, data.starts, data.states, strict=True):
        state = states[0]
        if kind != "operator" and state is not None:
            fate = "saved" if name in data.scope.required else "passing"
            state = fate if kind == "kept" else data.scope.serves(name, fate)
        found.append(starts[states.index(state)] + choice)
    return tuple(found)


def test_an_assignment_without_recomputing_costs_the_same_beside_those_with_it_and_is_inverted(model):
    graphs = graphs_of(model, remat="auto")
    base = at_multipliers(objective_of(graphs.asked()[0]), ())
    found = answer(graphs, Question(None, linear=base))
    layouts = found.layouts
    repeated = answer(graphs, Question(None, linear=base, remat=replace(layouts.built.recompute))).layouts
    reduction = Rematerialisation()
    problems, data = reduction.apply(Problems((layouts,), (repeated,)))
    assignment = Assignment(found.solution.choices)
    combined = Assignment(without_recompute(data, assignment.choices))
    assert evaluate(problems.sums[0].problem, combined.choices).cost == found.solution.cost
    back = reduction.invert(combined, data)
    assert (back.choices, dict(back.remat.until)) == (assignment.choices, {})


def test_the_schedule_takes_at_least_what_the_objective_says(model):
    graphs = graphs_of(model)
    found = answer(graphs, Question(None))
    for candidate in judged(found.candidates, graphs.instance.limit_bytes):
        assert candidate.step_s >= found.solution.bound / 1e12 - TIES_S


def test_other_assignments_of_the_solver_are_judged_too(model):
    graphs = graphs_of(model, remat="auto")
    found = answer(graphs, Question(10_000_000, chooses_remat=True))
    assert 1 <= len(found.candidates) <= ANSWER_JUDGED
    plans = judged(found.candidates, 10_000_000)
    assert [plan.step_s for plan in plans if plan.keeps(10_000_000)] == sorted(
        plan.step_s for plan in plans if plan.keeps(10_000_000)
    )
    assert all(plan.step_s >= found.solution.bound / 1e12 - TIES_S for plan in plans)


def test_what_was_judged_is_known(model):
    graphs, known = graphs_of(model), {}
    found = answer(graphs, Question(None))
    first = judged(found.candidates, graphs.instance.limit_bytes, known)
    again = judged(found.candidates, graphs.instance.limit_bytes, known)
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_what_is_penalised_costs_its_penalty(model):
    graphs = graphs_of(model, constraints=(replace(parse_pin("w1=S(0)@gpu"), cost_us=5.0),))
    layouts = answer(graphs, Question(None)).layouts
    penalty = layouts.penalties["kept", "w1"]
    assert set(penalty.tolist()) == {0.0, 5e6}


def test_where_the_best_of_all_plans_fits_nothing_else_is_asked(model):
    graphs = graphs_of(model, remat="auto")
    search = Search.of(graphs.instance)
    questions, found = asked(shortest(search), graphs)
    assert all(not question.chooses_remat for question in questions)
    limits = {question.limit_bytes for question in questions} - {None}
    assert all(limit < found.candidate.peak_bytes for limit in limits)  # to find others, not because they have to
    assert found.candidate.keeps(graphs.instance.limit_bytes)
    assert found.candidate.step_s >= found.bound_s - TIES_S


def test_where_memory_is_short_what_to_recompute_is_asked(model):
    graphs = graphs_of(model, remat="auto", memory_limit_bytes=1)
    search = Search.of(graphs.instance)
    with pytest.raises(NoPlanError) as none:
        asked(shortest(search), graphs)
    assert none.value.answer.question.chooses_remat
    assert none.value.answer.solution.outcome == "infeasible"


def test_an_interrupted_search_asks_no_further_question(model):
    graphs = graphs_of(model)
    questions = of_phases(Search.of(graphs.instance), None)
    found = answer(graphs, next(questions))
    with pytest.raises(NoPlanError):
        questions.send(replace(found, solution=Solution("interrupted", None, float("inf"), 0.0)))
    questions = shortest(Search.of(graphs.instance))
    next(questions)
    with pytest.raises(StopIteration) as end:
        questions.send(replace(found, solution=replace(found.solution, outcome="interrupted", bound=0.0)))
    assert end.value.value.candidate.priced.choice == found.layouts.chosen(found.solution.choices)
    assert end.value.value.outcome == "interrupted"
