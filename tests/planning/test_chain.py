"""The chain of reductions goes there and back, and the generators of candidates ask no more than they have to."""

from dataclasses import replace

import onnx
import pytest
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.planning.candidates import NoPlanError, Search, at_weight, by_weights, shortest
from shardplan.planning.chain import Question, answer, chain, taking
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.judge import judged
from shardplan.planning.objective import BOTH, LargerSum
from shardplan.planning.reduction import Assignment, Posed
from shardplan.planning.rematerialisation import Rematerialisation
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
    restricting, transforming = chain(graphs.instance, Question(None))
    assert [type(one).__name__ for one in restricting] == ["ConstraintMasks", "Restriction", "KnownToPlanner"]
    assert [type(one).__name__ for one in transforming] == ["Rematerialisation", "LargerSum"]


def test_an_assignment_without_recomputing_is_lifted_and_inverted(model):
    graphs = graphs_of(model, remat="auto")
    found = answer(graphs, Question(None))
    layouts = found.layouts
    repeated = answer(graphs, Question(None, remat=replace(layouts.built.recompute))).layouts
    reduction = Rematerialisation()
    posed, data = reduction.apply(Posed((layouts,), (repeated,)))
    assignment = Assignment(found.solution.choices)
    lifted = reduction.lift(assignment, data)
    assert evaluate(posed.sums[0].problem, lifted.choices).cost == found.solution.cost
    back = reduction.invert(lifted, data)
    assert (back.choices, dict(back.remat.until)) == (assignment.choices, {})


def test_one_sum_stays_as_it_is_and_of_two_the_larger_counts(model):
    graphs = graphs_of(model)
    one, both = answer(graphs, Question(None)), answer(graphs, Question(None, BOTH))
    posed = Posed((one.layouts,))
    assert LargerSum().apply(posed) == (posed, None)
    candidate = judged(both)
    assert both.solution.cost / 1e12 == pytest.approx(candidate.step_s, abs=TIES_S)
    assert candidate.step_s <= judged(one).step_s + TIES_S


def test_other_assignments_of_the_solver_are_plans_too(model):
    graphs = graphs_of(model, remat="auto")
    limit = 5_000_000
    found = answer(graphs, Question(limit, BOTH, chooses_remat=True))
    for assignment in found.pool():
        other = judged(taking(graphs, found, assignment))
        assert other.step_s >= found.solution.bound / 1e12 - TIES_S


def test_what_is_penalised_costs_its_penalty(model):
    graphs = graphs_of(model, constraints=(replace(parse_pin("w1=S(0)@gpu"), cost_us=5.0),))
    layouts = answer(graphs, Question(None)).layouts
    penalty = layouts.penalties["kept", "w1"]
    assert set(penalty.tolist()) == {0.0, 5e6}


def test_where_the_best_of_all_plans_fits_nothing_else_is_asked(model):
    graphs = graphs_of(model, remat="auto")
    search = Search.of(graphs.instance)
    assert [question.limit_bytes for question in asked(at_weight(search, 1.0), graphs)[0]] == [None]
    questions, found = asked(shortest(search), graphs)
    assert all(not question.chooses_remat for question in questions)
    assert found.candidate.step_s >= found.bound_s - TIES_S


def test_where_memory_is_short_what_to_recompute_is_asked(model):
    graphs = graphs_of(model, remat="auto", memory_limit_bytes=1)
    search = Search.of(graphs.instance)
    with pytest.raises(NoPlanError) as none:
        asked(shortest(search), graphs)
    assert none.value.answer.question.chooses_remat
    assert none.value.answer.solution.outcome == "infeasible"


def test_an_interrupted_search_asks_no_further_weight(model):
    graphs = graphs_of(model)
    questions = by_weights(Search.of(graphs.instance))
    found = answer(graphs, next(questions))
    with pytest.raises(NoPlanError):
        questions.send(replace(found, solution=Solution("interrupted", None, float("inf"), 0.0)))
    questions = by_weights(Search.of(graphs.instance))
    next(questions)
    with pytest.raises(StopIteration) as end:
        questions.send(replace(found, solution=replace(found.solution, outcome="interrupted")))
    assert end.value.value.candidate.priced.choice == found.layouts.chosen(found.solution.choices)
