"""Calls that cannot be stopped are waited for while there is time, and no longer."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from random_problems import random_problem

from shardplan.solve import solve
from shardplan.solve.budget import Budget
from shardplan.solve.patience import AbandonedError, patiently


def test_results_and_failures_come_back() -> None:
    assert patiently(lambda: 7, Budget()) == 7
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, Budget())


def test_calls_that_outlast_the_budget_are_left_to_themselves() -> None:
    budget = Budget(time_limit=0.1)
    started = time.monotonic()
    with pytest.raises(AbandonedError):
        patiently(lambda: time.sleep(5), budget)
    assert time.monotonic() - started < 2.5


def test_calls_that_end_soon_after_are_heard() -> None:
    budget = Budget(time_limit=0.1)
    assert patiently(lambda: time.sleep(0.3) or "done", budget) == "done"


def test_ctrl_c_is_heard_while_the_whole_program_is_presolved() -> None:
    problem = random_problem(1, 500, choices=24)
    timer = threading.Timer(0.8, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    solution = solve(problem, presolve=False)
    assert time.monotonic() - started < 6  # alone it takes minutes
    assert solution.outcome == "interrupted"
    assert not solution.reproducible
