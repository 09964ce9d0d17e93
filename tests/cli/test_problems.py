"""`solve-problem` and `evaluate-problem` from the command line."""

import gzip
import json
import shutil
import signal
import threading
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
EXAMPLE = Path(__file__).parents[1] / "solve" / "example.json"


@pytest.fixture
def example(folder: Path) -> Path:
    """`example.json` of the contest in the working directory."""
    shutil.copy(EXAMPLE, folder / "example.json")
    return folder


def valid(text: str) -> dict:
    document = json.loads(text)
    Draft202012Validator(SCHEMA).validate(document)
    return document


def small(**changes: object) -> str:
    problem = {
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3]], "usages": [[4, 5], [6]]},
        "edges": {"nodes": [[0, 1]], "costs": [[7, 8]]},
        "usage_limit": 10,
        **changes,
    }
    return json.dumps({"problem": problem})


def test_text(shardplan, example):
    run = shardplan("solve-problem", "example.json", "-o", "solution.json")
    assert (run.code, run.err) == (0, "")
    lines = run.out.splitlines()
    assert lines[0] == "problem   example.json: 5 nodes with 1.80 choices each, 5 edges"
    assert lines[1].startswith("answer    cost ")
    assert lines[1].endswith(", proven optimal")
    assert lines[-2:] == [
        "          reproducible: no clock decided when to stop",
        "wrote     solution.json",
    ]
    written = json.loads(Path("solution.json").read_text())
    assert list(written) == ["solution", "cost", "bound", "outcome", "reproducible"]
    assert written["cost"] == written["bound"]
    assert shardplan("evaluate-problem", "example.json", "solution.json").code == 0


def test_document_and_solution_agree(shardplan, example):
    run = shardplan("solve-problem", "example.json", "--work-limit", "100", "--seed", "3", "-o", "x.json", "--json")
    result = valid(run.out)["result"]
    assert json.loads(Path("x.json").read_text()).items() <= result.items()
    assert result["reproducible"]
    assert result["peak_bytes"] <= result["limit_bytes"]
    assert result["first_seconds"] <= result["best_seconds"] <= result["seconds"]
    priced = shardplan("evaluate-problem", "example.json", "x.json", "--json")
    assert valid(priced.out)["result"]["cost"] == result["cost"]


def test_the_solution_can_go_to_standard_output(shardplan, example):
    run = shardplan("solve-problem", "example.json", "-o", "-")
    assert json.loads(run.out)["outcome"] == "optimal"
    clash = shardplan("solve-problem", "example.json", "-o", "-", "--json")
    assert (clash.code, valid(clash.out)["result"]) == (2, None)


def test_infeasible(shardplan, folder):
    Path("p.json").write_text(small(usage_limit=7))
    run = shardplan("solve-problem", "p.json", "-o", "s.json")
    assert (run.code, run.err) == (3, "")
    assert "answer    proven infeasible: memory is 3 B (3 bytes) too small\n" in run.out
    assert json.loads(Path("s.json").read_text())["solution"] is None
    assert valid(shardplan("solve-problem", "p.json", "--json").out)["result"]["shortfall_bytes"] == 3
    Path("q.json").write_text(small(edges={"nodes": [[0, 1]], "costs": [[10**18, 2 * 10**18]]}))
    assert "forbidden choices exclude everything" in shardplan("solve-problem", "q.json").out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"problem": 3}', "error[bad-problem]: byte 12: '{' expected, found '3'"),
        (small(usage_limit="9").encode(), "error[bad-problem]: byte 168: an integer expected, found '\"'"),
        (small()[:90].encode(), "error[bad-problem]: byte 90: 'problem.nodes.usages' ends before its last ']'"),
    ],
)
def test_malformed_instances(shardplan, folder, content, said):
    Path("p.json").write_bytes(content)
    for verb in (("solve-problem", "p.json"), ("evaluate-problem", "p.json", "s.json")):
        Path("s.json").write_text("[0, 0]")
        run = shardplan(*verb)
        assert (run.code, run.out, run.err) == (2, "", f"p.json: {said}\n")
    assert valid(shardplan("solve-problem", "p.json", "--json").out)["result"] is None


def test_cut_gzip_and_missing_files(shardplan, folder):
    Path("p.json.gz").write_bytes(gzip.compress(small().encode() * 50)[:60])
    run = shardplan("solve-problem", "p.json.gz")
    assert (run.code, run.err) == (
        2,
        "p.json.gz: error[bad-problem]: the gzip data ends early or is damaged\nhint: fetch the file again\n",
    )
    run = shardplan("solve-problem", "none.json")
    assert (run.code, run.err) == (2, "none.json: error[unreadable]: No such file or directory\n")


def test_outputs_that_would_destroy_something_are_refused_before_the_work(shardplan, example):
    run = shardplan("solve-problem", "example.json", "-o", "example.json")
    summary = "cannot write the solution: this file exists and is no solution; it is left as it is"
    said = f"example.json: error[unwritable-output]: {summary}\nhint: write elsewhere with --output\n"
    assert (run.code, run.err) == (2, said)
    assert shardplan("solve-problem", "example.json", "-o", "none/s.json").code == 2
    for _ in range(2):  # a solution may be written over
        assert shardplan("solve-problem", "example.json", "-o", "s.json").code == 0


def test_solutions_that_lie_or_do_not_fit_are_told(shardplan, folder):
    Path("p.json").write_text(small())
    Path("s.json").write_text('{"solution": [0, 0], "cost": 10}')
    run = shardplan("evaluate-problem", "p.json", "s.json")
    assert run.code == 1
    assert run.err == "s.json: error[wrong-cost]: the file says that the solution costs 10; it costs 11\n"
    assert run.out == ("solution  s.json\ncost      11\nmemory    peak 10 B of 10 B, at moment 1\nfeasible  yes\n")
    Path("s.json").write_text("[1, 0]")
    result = valid(shardplan("evaluate-problem", "p.json", "s.json", "--json").out)["result"]
    assert result == {
        "feasible": False,
        "cost": 13,
        "claimed": None,
        "peak_bytes": 11,
        "peak_moment": 1,
        "limit_bytes": 10,
    }
    Path("s.json").write_text("[0]")
    run = shardplan("evaluate-problem", "p.json", "s.json")
    assert (run.code, run.err) == (2, "s.json: error[bad-solution]: 1 choices for 2 nodes\n")
    Path("p.json").write_text(small(edges={"nodes": [[0, 1]], "costs": [[10**18, 0]]}))
    Path("s.json").write_text("[0, 0]")
    assert "forbidden" in shardplan("evaluate-problem", "p.json", "s.json").out


def hard(nodes: int = 400) -> str:
    """A problem that no second suffices for."""
    state, costs, usages, intervals, pairs, tables = 1, [], [], [], [], []

    def draw(upper: int) -> int:
        nonlocal state
        state = state * 6364136223846793005 % 2**64
        return (state >> 33) % upper

    for node in range(nodes):
        costs.append([draw(1000) for _ in range(8)])
        usages.append([draw(1000) for _ in range(8)])
        start = draw(40)
        intervals.append([start, start + 1 + draw(8)])
        for _ in range(2 if node else 0):
            pairs.append([draw(node), node])
            tables.append([draw(1000) for _ in range(64)])
    nodes_part = {"intervals": intervals, "costs": costs, "usages": usages}
    edges = {"nodes": pairs, "costs": tables}
    return json.dumps({"problem": {"nodes": nodes_part, "edges": edges, "usage_limit": 30_000}})


def test_ctrl_c_writes_the_best(shardplan, folder):
    Path("p.json").write_text(hard())
    timer = threading.Timer(2.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    run = shardplan("solve-problem", "p.json", "-o", "s.json", "--time-limit", "60")
    timer.cancel()
    assert run.code == 130
    assert "warning[interrupted]: interrupted: the solution is the best found so far; its optimality gap is " in run.err
    assert json.loads(Path("s.json").read_text())["outcome"] == "interrupted"
    assert shardplan("evaluate-problem", "p.json", "s.json").code == 0


@pytest.mark.parametrize("limit", [1 << 62, 1 << 63, 1 << 70])
def test_a_limit_beyond_64_bits_is_none(shardplan, folder, limit):
    Path("p.json").write_text(small(usage_limit=limit))
    run = shardplan("solve-problem", "p.json", "-o", "s.json", "--json")
    assert (run.code, valid(run.out)["result"]["cost"]) == (0, 11)


def test_limits(shardplan, folder):
    Path("p.json").write_text(hard(300))
    runs = [shardplan("solve-problem", "p.json", "--work-limit", "40", "--json") for _ in range(2)]
    first, second = (valid(run.out)["result"] for run in runs)
    assert [run.code for run in runs] == [0, 0]
    assert first["solution"] == second["solution"]
    assert first["reproducible"]
    assert first["bound"] <= first["cost"]
    timed = shardplan("solve-problem", "p.json", "--time-limit", "1.5", "--json")
    result = valid(timed.out)["result"]
    assert result["seconds"] < 3.5
    assert not result["reproducible"]
    assert [d["code"] for d in valid(timed.out)["diagnostics"]] == ["not-optimal"]
