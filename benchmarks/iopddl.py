"""The contest's instances against its published results: `python benchmarks/iopddl.py FOLDER [A G M S] [--seeds 0 1]
[--scale 1.0] [--cpu]`.

FOLDER holds the instances of github.com/google/iopddl as `A.json.gz` ...; each is solved within the contest's own
time limit (times `--scale`), reading included, in a process of its own. `ratio` is cost / best of the contest's 20
teams. `--cpu` counts seconds of the process instead of the wall clock, for machines that do something else too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

# time limit in seconds, best of the contest's 20 teams (iopddl_final_results.csv of ti2-group/iopddl_experiments)
CONTEST = {
    "A": (60, 6548641531),
    "G": (120, 217039),
    "M": (180, 49928460991),
    "S": (240, 1534613444),
}
HEADER = "| instance | seed | limit s | outcome | cost | bound | gap % | ratio | first s | best s | total s | RSS MB |"


def one(path: Path, limit: float, seed: int, *, cpu: bool) -> None:
    """Solve in this process; print one line of JSON."""
    if cpu:
        time.monotonic = time.process_time
    started = time.monotonic()
    from shardplan.extras.contest.files import run_solve_problem  # after the clock is chosen

    solved = run_solve_problem(path, time_limit=limit, seed=seed)
    solution = solved.solution
    row = {
        "outcome": solution.outcome,
        "cost": solution.cost if solution.choices else None,
        "bound": solution.bound,
        "first": solved.first_seconds,
        "best": solved.best_seconds,
        "total": time.monotonic() - started,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(row))


def table(folder: Path, names: list[str], seeds: list[int], scale: float, *, cpu: bool) -> None:
    """Print a markdown table, a row per instance and seed."""
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for name in names:
        limit, best = CONTEST[name]
        for seed in seeds:
            command = [
                sys.executable,
                __file__,
                "--one",
                str(folder / f"{name}.json.gz"),
                str(limit * scale),
                str(seed),
                *(["--cpu"] if cpu else []),
            ]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if row["cost"] is None:
                print(f"| {name} | {seed} | {limit * scale:.0f} | {row['outcome']} |" + " |" * 8)
                continue
            gap = 100 * (row["cost"] - row["bound"]) / row["cost"]
            print(
                f"| {name} | {seed} | {limit * scale:.0f} | {row['outcome']} | {row['cost']:.0f} | {row['bound']:.0f} "
                f"| {gap:.3f} | {row['cost'] / best:.6f} | {row['first']:.1f} | {row['best']:.1f} | {row['total']:.1f} "
                f"| {row['rss']:.0f} |",
                flush=True,
            )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), cpu="--cpu" in sys.argv)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=sorted(CONTEST))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    table(given.folder, given.names, given.seeds, given.scale, cpu=given.cpu)


if __name__ == "__main__":
    main()
