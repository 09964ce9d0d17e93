"""Large made-up problems of the shapes that the contest has: `python benchmarks/stress.py [SHAPE ...] [--seconds 60]`.

Each shape is written as a file of the contest's format, read and solved in a process of its own. `read`, `presolve` and
`first` are CPU seconds: reading the file, the exact reductions, and from the start to the first assignment; `RSS x` is
the peak memory after reading over the bytes of the problem's arrays.

    deep      60,000 nodes with finite tables; most end with one choice by dominance
    chained   60,000 nodes, half of which follow a neighbour
    wide      800 nodes of 8 to 128 choices
    widest    28,000 nodes, a few of them with 1,037 choices
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "planner"))

FORBIDDEN = 10**18
SHAPES = ("deep", "chained", "wide", "widest")
HEADER = (
    "| shape | nodes | edges | MB | read s | RSS x | presolve s | core pairs | first s | outcome | gap % | total s |"
)


def sizes_of(shape: str, rng: np.random.Generator) -> np.ndarray:
    """Choices per node."""
    if shape == "wide":
        return rng.integers(8, 129, 800)
    if shape == "widest":
        sizes = rng.integers(2, 14, 28_000)
        sizes[rng.choice(len(sizes), 6, replace=False)] = 1037
        return sizes
    return np.minimum(1 + rng.geometric(0.12, 60_000), 33)


def edges_of(shape: str, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """A long graph: every edge joins nodes that are near each other, some to a hub."""
    number = {"deep": 40_000, "chained": 90_000, "wide": 1_000, "widest": 40_000}[shape]
    v = rng.integers(1, count, number)
    u = np.maximum(v - 1 - rng.geometric(0.3, number), 0)
    return sorted({(int(a), int(b)) for a, b in zip(u, v, strict=True) if a != b})


def table(rows: int, columns: int, follows: bool, rng: np.random.Generator) -> list[int]:
    """What it costs to come from one layout to another: nothing, some of few amounts, or forbidden."""
    if follows:
        cells = np.full((rows, columns), FORBIDDEN)
        cells[np.arange(rows), rng.integers(0, columns, rows)] = 0
        cells[0] = np.where(np.arange(columns) == 0, 0, FORBIDDEN)  # first choices go together
    else:
        cells = rng.choice([0, 0, 1, 3, 10, 40], (rows, columns)) * 1000 * int(rng.integers(1, 50))
    return cells.ravel().tolist()


def write(shape: str, path: Path, seed: int = 0) -> None:
    """A problem of a shape, its tables from a store of a few per pair of sizes."""
    rng = np.random.default_rng(seed)
    sizes = sizes_of(shape, rng)
    pairs = edges_of(shape, len(sizes), rng)
    store: dict[tuple[int, int, int, bool], list[int]] = {}
    tables = []
    for u, v in pairs:
        follows = shape == "chained" and rng.random() < 0.5
        key = (int(sizes[u]), int(sizes[v]), int(rng.integers(3)), follows)
        if key not in store:
            store[key] = table(key[0], key[1], follows, rng)
        tables.append(store[key])
    start = np.arange(len(sizes))
    end = start + 1 + rng.geometric(0.02, len(sizes))
    usages = [(2 ** rng.integers(0, 8, size) * 1000).tolist() for size in sizes]
    level = np.zeros(int(end.max()) + 1, dtype=np.int64)
    for node, usage in enumerate(usages):
        least = usage[0] if shape == "chained" else min(usage)
        level[start[node]] += least
        level[end[node]] -= least
    document = {
        "nodes": {
            "intervals": np.stack([start, end], axis=1).tolist(),
            "costs": [(rng.integers(0, 100, size) * 1000).tolist() for size in sizes],
            "usages": usages,
        },
        "edges": {"nodes": [list(pair) for pair in pairs], "costs": tables},
        "usage_limit": int((1.05 if shape == "chained" else 1.3) * np.cumsum(level).max()),
    }
    path.write_text(json.dumps({"problem": document}))


def peak_bytes() -> int:
    """Most memory that this process has had (Linux); what `getrusage` says includes the process it came from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(path: Path, seconds: float) -> None:
    """Read and solve in this process; print one line of JSON."""
    clock = time.process_time
    time.monotonic = clock
    from shardplan.extras.contest.files import run_solve_problem
    from shardplan.extras.contest.iopddl import read_problem
    from shardplan.solve.reduce.graph import build
    from shardplan.solve.reduce.presolve import presolve
    from shardplan.solve.reduce.tables import Tables

    before, started = peak_bytes(), clock()
    problem = read_problem(path)
    read = clock() - started
    used = peak_bytes() - before
    arrays = sum(edge.table.nbytes for edge in problem.edges)
    arrays += sum(c.nbytes for c in problem.costs) + sum(u.amount.nbytes for u in problem.usages)
    graph = build(problem, Tables())
    started = clock()
    presolve(graph, problem.limit or 0)
    row = {"nodes": len(problem.costs), "edges": len(problem.edges), "read": read, "rss": used / arrays}
    row |= {"presolve": clock() - started, "pairs": graph.pairs}
    solved = run_solve_problem(path, time_limit=seconds)
    row |= {"first": solved.first_seconds, "outcome": solved.solution.outcome, "total": solved.seconds}
    row |= {"gap": solved.solution.gap if solved.solution.choices else None}
    print(json.dumps(row))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure(Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for shape in given.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{shape}.json"
            write(shape, path)
            command = [sys.executable, __file__, "--one", str(path), str(given.seconds)]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            megabytes = path.stat().st_size / 1e6
        first = "-" if row["first"] is None else f"{row['first']:.1f}"
        gap = "-" if row["gap"] is None else f"{100 * row['gap']:.2f}"
        print(
            f"| {shape} | {row['nodes']} | {row['edges']} | {megabytes:.0f} | {row['read']:.1f} | {row['rss']:.1f} "
            f"| {row['presolve']:.1f} | {row['pairs']} | {first} | {row['outcome']} | {gap} | {row['total']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
