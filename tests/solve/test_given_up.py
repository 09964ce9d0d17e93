"""Reductions end some time after the budget, with what is known; what time has ended is not reproducible."""

import signal
import time
from dataclasses import replace

import pytest
from random_problems import random_problem

from shardplan.interruption import GivenUpError, Interruption
from shardplan.solve import budget as budgets
from shardplan.solve import solve
from shardplan.solve.budget import Budget
from shardplan.solve.highs import program
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.graph import build
from shardplan.solve.reduce.presolve import presolve
from shardplan.solve.reduce.tables import Tables


@pytest.fixture
def at_once(monkeypatch):
    """Reductions end with the budget."""
    monkeypatch.setattr(budgets, "REDUCING_SECONDS", 0.0)


@pytest.mark.parametrize("reduce", [eliminate, lambda graph: presolve(graph, 1 << 40)])
def test_reductions_are_given_up_after_the_time_limit_and_not_before(reduce):
    problem = random_problem(3, 40)
    for late in (False, True):
        graph = build(problem, budget := Tables(Budget(time_limit=1e4)))
        budget._budget.started -= 2e4 if late else 0.0
        if late:
            with pytest.raises(GivenUpError):
                reduce(graph)
        else:
            reduce(graph)
            assert len(graph.alive) < 40


@pytest.mark.parametrize("presolved", [True, False])
def test_without_time_for_reductions_there_is_no_answer_and_no_bound_above_the_best(at_once, presolved):
    problem = random_problem(5, 30)
    best, late = solve(problem), solve(problem, time_limit=0.0, presolve=presolved)
    assert late.outcome in ("limit", "feasible")
    assert late.bound <= best.cost
    assert not late.reproducible


def test_a_patient_search_without_time_has_its_first_assignment(at_once):
    problem = replace(random_problem(5, 30), limit=None)
    assert solve(problem, time_limit=0.0).choices is None
    best, late = solve(problem), solve(problem, time_limit=0.0, is_patient=True)
    assert late.choices is not None
    assert late.bound <= best.cost <= late.cost


def test_ctrl_c_ends_a_patient_search_too(at_once):
    with Budget(time_limit=0.0, is_patient=True) as budget:
        budget.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(GivenUpError):
            budget.check()


def test_ctrl_c_gives_reductions_up_and_a_solve_that_begins_after_it_has_its_time(monkeypatch):
    problem = replace(random_problem(5, 30), limit=None)
    with Interruption(armed=True):
        signal.raise_signal(signal.SIGINT)
        with Budget() as budget:
            budget.check()  # it has just begun
            later = time.monotonic() + 10.0
            monkeypatch.setattr(time, "monotonic", lambda: later)
            with pytest.raises(GivenUpError):
                budget.check()
        monkeypatch.undo()
        found = solve(problem)
    assert found.choices is not None
    assert (found.outcome, found.reproducible) == ("interrupted", False)


def test_a_part_of_a_search_that_time_ends_is_not_reproducible():
    timed, worked = Budget(time_limit=1e4), Budget(work_limit=1.0)
    assert not timed.past((1e3, 1.0))
    assert timed.reproducible
    worked.spend(2e6)
    assert worked.past(worked.part(0.5, 1.0))
    assert worked.reproducible
    timed.started -= 2e3
    assert timed.past((1e3, 1.0))
    assert not timed.expired()
    assert not timed.reproducible


def test_a_program_that_highs_ends_by_time_is_not_reproducible(monkeypatch):
    """Its share of the time is over before the budget is."""
    monkeypatch.setattr(program, "PROGRAM_LEAST_SECONDS", 0.0)
    problem = random_problem(1, 300, choices=16)
    ran, run = [], program.Program._run

    def short(self):
        self.seconds = 0.0
        ran.append(self.budget)
        return run(self)

    monkeypatch.setattr(program.Program, "_run", short)
    found = solve(problem, time_limit=1e4, presolve=False)
    assert ran
    assert ran[0].seconds_left > 0
    assert not found.reproducible
