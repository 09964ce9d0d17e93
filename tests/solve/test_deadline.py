"""Calls that cannot be stopped are waited for while there is time, and no longer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from random_problems import random_problem

from shardplan.solve import solve
from shardplan.solve.budget import Budget
from shardplan.solve.highs.deadline import AbandonedError, within_deadline
from shardplan.solve.highs.program import quiet_highs


def test_results_and_failures_come_back() -> None:
    assert within_deadline(lambda: 7, Budget()) == 7
    with pytest.raises(ZeroDivisionError):
        within_deadline(lambda: 1 // 0, Budget())


def test_calls_that_outlast_the_budget_are_left_to_themselves() -> None:
    budget = Budget(time_limit=0.1)
    started = time.monotonic()
    with pytest.raises(AbandonedError):
        within_deadline(lambda: time.sleep(3), budget)
    assert time.monotonic() - started < 2.5


def test_calls_that_end_soon_after_are_heard() -> None:
    budget = Budget(time_limit=0.1)
    assert within_deadline(lambda: time.sleep(0.3) or "done", budget) == "done"


def test_ctrl_c_is_heard_while_the_whole_program_is_presolved() -> None:
    problem = random_problem(1, 500, choices=24)
    timer = threading.Timer(1.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    solution = solve(problem, presolve=False)
    assert time.monotonic() - started < 12  # alone it takes minutes
    assert solution.outcome == "interrupted"
    assert not solution.reproducible


LEFT_IN_HIGHS = """
import threading, time
import numpy as np
import highspy
from shardplan.solve.highs import deadline
from shardplan.solve.budget import Budget
from shardplan.solve.highs.program import quiet_highs

def work():
    highs, rng = quiet_highs(), np.random.default_rng(0)
    for _ in range(200):
        highs.addCol(-float(rng.integers(1, 50)), 0.0, 1.0, 0, np.zeros(0, np.int32), np.zeros(0))
    for _ in range(30):
        weights = rng.integers(1, 60, 200).astype(float)
        highs.addRow(-highspy.kHighsInf, 2000.0, 200, np.arange(200, dtype=np.int32), weights)
    highs.changeColsIntegrality(200, np.arange(200, dtype=np.int32), np.ones(200, dtype=np.uint8))
    highs.setOptionValue("time_limit", 1.5)
    highs.cbMipInterrupt.subscribe(lambda _: None)
    highs.run()

deadline.GRACE_SECONDS = 0.0
try:
    deadline.within_deadline(work, Budget(time_limit=0.2))
except deadline.AbandonedError:
    %s
"""


def test_python_waits_at_its_end_for_what_was_left_in_highs() -> None:
    started = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", LEFT_IN_HIGHS % "raise SystemExit(5)"], timeout=60, check=False)
    assert ended.returncode == 5  # and not the abort of a thread that comes back to nothing
    assert time.monotonic() - started > 1.5


def test_the_command_line_leaves_without_waiting() -> None:
    end = "import sys; from shardplan import cli; sys.argv = ['shardplan', 'show']; sys.exit(cli.main())"
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_IN_HIGHS.replace("1.5", "30.0") % end], timeout=60, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"Missing argument" in ended.stderr
    assert time.monotonic() - started < 15


def test_calls_may_have_a_limit_of_their_own() -> None:
    started = time.monotonic()
    with pytest.raises(AbandonedError):
        within_deadline(lambda: time.sleep(3), Budget(), seconds=0.1)
    assert time.monotonic() - started < 2.5


def test_the_solver_of_integer_programs_prints_nothing(capfd):
    """Standard output is for the answer, which may be a document."""
    highs = quiet_highs()
    column = highs.addIntegral(lb=0, ub=3)
    highs.addConstr(2 * column <= 5)
    highs.maximize(column)
    assert highs.val(column) == 2
    assert capfd.readouterr() == ("", "")
