"""The contest's files: what is read, and what is said about files that are malformed."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from shardplan.errors import ShardplanError
from shardplan.extras.contest import iopddl
from shardplan.extras.contest.files import run_evaluate_problem, run_solve_problem
from shardplan.extras.contest.iopddl import read_problem
from shardplan.extras.contest.solution_file import solution_document
from shardplan.solve import evaluate

EXAMPLE = Path(__file__).parent / "example.json"


def document(**changes: object) -> dict:
    problem = {
        "name": "small",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3]], "usages": [[4, 5], [6]]},
        "edges": {"nodes": [[0, 1]], "costs": [[7, 8]]},
        "usage_limit": 9,
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = problem
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return {"problem": problem}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_example_is_solved_to_the_optimum_of_enumeration() -> None:
    problem = read_problem(EXAMPLE)
    everything = itertools.product(*(range(len(costs)) for costs in problem.costs))
    best = min(each.cost for x in everything if (each := evaluate(problem, x)).feasible)
    solution = run_solve_problem(EXAMPLE).solution
    assert (solution.outcome, solution.cost, solution.bound) == ("optimal", best, best)


def test_everything_of_a_file_is_read(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, document(edges__costs=[[7, 10**18]])))
    assert [costs.tolist() for costs in problem.costs] == [[1, 2], [3]]
    assert [(edge.u, edge.v, edge.table.tolist()) for edge in problem.edges] == [(0, 1, [[7.0], [math.inf]])]
    assert [(u.node, u.start, u.end, u.amount.tolist()) for u in problem.usages] == [(0, 0, 2, [4, 5]), (1, 1, 3, [6])]
    assert problem.limit == 9


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
def test_pieces_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    path = written(tmp_path, json.dumps(document(), indent=1))
    whole = read_problem(path)
    monkeypatch.setattr(iopddl, "PIECE", piece)
    again = read_problem(path)
    assert [c.tolist() for c in again.costs] == [c.tolist() for c in whole.costs]
    assert [e.table.tolist() for e in again.edges] == [e.table.tolist() for e in whole.edges]
    assert (again.limit, again.moments) == (whole.limit, whole.moments)


def test_numbers_with_exponents_are_integers_too(tmp_path: Path) -> None:
    text = json.dumps(document()).replace("[[7, 8]]", "[[7.0, 1e18]]")
    assert read_problem(written(tmp_path, text)).edges[0].table.tolist() == [[7.0], [math.inf]]


MIXED = """{"problem": {"name": "a\\\\", "nodes": {
    "intervals": [[0, 1], [0, 1], [0, 1e0]],
    "costs": [[1], [-0.0], [1e999, 12345678901234567890123, -3, 5E+1]],
    "usages": [[9007199254740993], [9007199254740993.0], [0.9007199254740993e16, 1, 2, 3]]},
    "edges": {"nodes": [], "costs": []}, "usage_limit": 5}}"""


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_every_integer_is_exact_however_it_and_its_neighbours_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Wherever pieces end: a point or an exponent says nothing of other numbers."""
    monkeypatch.setattr(iopddl, "PIECE", piece)
    problem = read_problem(written(tmp_path, MIXED))
    assert [costs.tolist() for costs in problem.costs] == [[1], [0], [math.inf, math.inf, -3, 50]]
    large = 9007199254740993
    assert [usage.amount.tolist() for usage in problem.usages] == [[large], [large], [large, 1, 2, 3]]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "problem.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document()).encode()))
    assert read_problem(path).limit == 9
    path.write_bytes(path.read_bytes()[:-20])
    assert said(path) == "the gzip data ends early or is damaged"


TEXT = json.dumps(document())
CUT = json.dumps(document()).partition("2], [3]")[0] + "2"


def said(path: Path) -> str:
    with pytest.raises(ShardplanError) as caught:
        read_problem(path)
    assert caught.value.exit_code == 2
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.file == str(path)
    return diagnostic.summary


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        (document(nodes__costs=[[1], [3]]), "node 0: 1 cost and 2 usages: one each per choice"),
        (document(nodes__costs=[[], [3]], nodes__usages=[[], [6]]), "node 0: it has no choices"),
        (document(nodes__costs=[[1, 2]]), "2 intervals, 1 cost and 2 usages: one each per node"),
        (document(nodes__intervals=[[0, 2], [3, 1]]), "node 1: [3, 1) is no interval of time"),
        (
            document(nodes__intervals=[[0, 2], [1, 10**18]]),
            "node 1: [1, 1000000000000000000) ends after 67,108,864, the last moment there is",
        ),
        (document(nodes__intervals=[[-1, 2], [1, 3]]), "node 0: [-1, 2) is no interval of time"),
        (document(nodes__intervals=[[0, 2, 3], [1, 3]]), "node 0: its interval has 3 ends, not 2"),
        (document(nodes__usages=[[4, 5], [-6]]), "node 1: a usage is negative"),
        (document(edges__nodes=[[0, 2]]), "edge 0: it joins nodes 0 and 2; there are nodes 0 to 1"),
        (document(edges__nodes=[[1, 1]]), "edge 0: it joins node 1 to itself"),
        (document(edges__costs=[[7, 8, 9]]), "edge 0: it has 3 costs and must have 2: its nodes have 2 and 1 choices"),
        (document(edges__costs=[]), "1 edge and 0 cost tables: one table per edge"),
        (document(nodes__costs=[[1, 2.5], [3]]), "'problem.nodes.costs' holds '2.5', which is no integer"),
        (document(nodes__costs=None), "missing: 'problem.nodes.costs'"),
        (
            document(edges__costs=[[7, "8"]]),
            "byte 164: 'problem.edges.costs' is a list of lists of integers, found '\"'",
        ),
        (document(usage_limit=9.5), "byte 186: ',' or '}' expected, found '.'"),
        (document(usage_limits=9), "byte 202: unknown key 'usage_limits' in 'problem'; did you mean 'usage_limit'?"),
        ("", "byte 0: '{' expected, found the end of the file"),
        ("[]", "byte 0: '{' expected, found '['"),
        (CUT, "byte 85: 'problem.nodes.costs' ends before its last ']'"),
        (json.dumps(document()).replace("[7, 8]", "[7 8]"), "'problem.edges.costs' has a comma too many or too few"),
        (
            TEXT.replace("[7, 8]", "[7, -1e300]"),
            "'problem.edges.costs' holds a number below -1,000,000,000,000,000,000, the least that is read",
        ),
        (
            document(edges__costs=[[7, -(10**22)]]),
            "'problem.edges.costs' holds a number below -1,000,000,000,000,000,000, the least that is read",
        ),
        (TEXT.replace("[7, 8]", "[7, 1e]"), "'problem.edges.costs' holds '1e', which is no integer"),
        (TEXT.replace("[7, 8]", "[7, 1e-999]"), "'problem.edges.costs' holds '1e-999', which is no integer"),
        (TEXT.replace("[7, 8]", "[7, 8-8]"), "'problem.edges.costs' holds something that is no integer"),
        (TEXT.replace("small", "\\q"), "byte 22: '\\q' holds an escape or a character that no string of JSON may"),
        (TEXT.replace("small", "a\nb"), "byte 22: 'a\nb' holds an escape or a character that no string of JSON may"),
        (TEXT.replace("small", "\\"), "byte 27: ',' or '}' expected, found 'n'"),
        (
            document(nodes__usages=[[4 * 10**18, 5], [4 * 10**18]], usage_limit=45 * 10**17),
            (
                "usages may add up to 8,000,000,000,000,000,000 at one moment, under a limit of "
                "4,500,000,000,000,000,000: more than can be added up exactly; give memory in a larger unit"
            ),
        ),
        (document(usage_limit=-(1 << 70)), f"the limit of memory is -{1 << 70:,}; 2**62 is the largest"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, content: object, summary: str) -> None:
    assert said(written(tmp_path, content)) == summary


@pytest.mark.parametrize("limit", [9, 45 * 10**17])
def test_usages_of_different_times_do_not_add_up(tmp_path: Path, limit: int) -> None:
    usages, intervals = [[4 * 10**18, 5], [4 * 10**18]], [[0, 2], [2, 3]]
    path = written(tmp_path, document(nodes__usages=usages, nodes__intervals=intervals, usage_limit=limit))
    assert run_solve_problem(path).solution.outcome == ("optimal" if limit > 9 else "infeasible")


def test_faults_that_repeat_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, document(nodes__usages=[[-4, 5], [-6]]))
    assert said(path) == "node 0: a usage is negative (2 nodes are like that)"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert said(tmp_path / "none.json") == "No such file or directory"


def test_solutions_are_priced(tmp_path: Path) -> None:
    problem = written(tmp_path, document(usage_limit=10))
    solution = tmp_path / "solution.json"
    solution.write_text(json.dumps(solution_document(run_solve_problem(problem).solution)))
    priced = run_evaluate_problem(problem, solution).evaluation
    assert (priced.cost, priced.peak_bytes, priced.peak_moment, priced.feasible) == (11, 10, 1, True)
    solution.write_text("[1, 0]")
    priced = run_evaluate_problem(problem, solution).evaluation
    assert (priced.cost, priced.peak_bytes, priced.feasible) == (13, 11, False)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("[0]", "1 choices for 2 nodes"),
        ("[0, 1]", "node 1 has choices 0 to 0, not 1"),
        ('{"solution": null}', "a solution is a list of integers, one choice per node"),
        ("[0, true]", "a solution is a list of integers, one choice per node"),
    ],
)
def test_solutions_that_do_not_fit_are_named(tmp_path: Path, text: str, summary: str) -> None:
    path = tmp_path / "solution.json"
    path.write_text(text)
    with pytest.raises(ShardplanError) as caught:
        run_evaluate_problem(written(tmp_path, document()), path)
    assert caught.value.diagnostics[0].summary == summary


def test_infeasible_problems_say_by_how_much(tmp_path: Path) -> None:
    solution = run_solve_problem(written(tmp_path, document(usage_limit=7))).solution
    assert (solution.outcome, solution.shortfall_bytes) == ("infeasible", 3)
    assert solution_document(solution) == {
        "solution": None,
        "cost": None,
        "bound": None,
        "outcome": "infeasible",
        "reproducible": True,
    }


def test_flat_arrays_are_not_copied(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, document()))
    assert problem.edges[0].table.base is not None
    assert all(isinstance(costs.base, np.ndarray) for costs in problem.costs)
