"""Models under tight memory: `python benchmarks/tight.py FOLDER [--mesh 4x4 8x8 4x2x4] [--only PATTERN]`.

Every .onnx model of FOLDER on every mesh, first without a memory limit, then with one at 100 % and 60 % of what that
plan uses, 5 % above the least memory that any plan needs, at that least memory, and one byte below it. Each limit is
one solve of the model's cost graph, to the gap that `shardplan solve` asks for by default. `CPU s` is the solver's own
processor time (prices are made once per model and not counted), `gap` what is proven of the cost.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "planner"))

from shardplan.cluster.mesh import make_cluster  # noqa: E402
from shardplan.cluster.profile import load_profile  # noqa: E402
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions  # noqa: E402
from shardplan.planning import Planner  # noqa: E402
from shardplan.solve import Problem, Solution, evaluate, solve  # noqa: E402
from shardplan.solve.budget import Budget  # noqa: E402
from shardplan.solve.shortfall import least_limit  # noqa: E402
from shardplan.verbs.inputs import load_model  # noqa: E402

DIMS = {"llama3_8b_dyn": {"batch": 8, "seq": 2048}, "gpt2_small_dyn": {"batch": 8, "seq": 1024}}
INFERENCE = {"llama3_8b_decode"}
GAP = 0.005
HEADER = "| model | mesh | limit | GiB | outcome | gap % | CPU s |"


def problem_of(path: Path, mesh: str) -> Problem:
    """The model's cost graph as a problem, as `shardplan solve` hands it over first."""
    options = PlanOptions(mode="inference" if path.stem in INFERENCE else "training")
    model = load_model(str(path), DIMS.get(path.stem, {}))
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    planner = Planner(model, cluster, replace(options, memory_limit_bytes=UNLIMITED_BYTES), reasons=False)
    return planner.solve_at(()).layouts.problem


def row(model: str, mesh: str, name: str, limit: int | None, solution: Solution, seconds: float) -> None:
    """Print one line of the table."""
    gib = "-" if limit is None else f"{limit / 2**30:.3f}"
    outcome = solution.outcome + (f" by {solution.shortfall_bytes} B" if solution.outcome == "infeasible" else "")
    print(f"| {model} | {mesh} | {name} | {gib} | {outcome} | {100 * solution.gap:.3f} | {seconds:.2f} |", flush=True)


def tighten(path: Path, mesh: str) -> None:
    """All limits of one model on one mesh."""
    problem = problem_of(path, mesh)

    def at(name: str, limit: int | None) -> Solution:
        started = time.process_time()
        solution = solve(replace(problem, limit=limit), gap=GAP)
        row(path.stem, mesh, name, limit, solution, time.process_time() - started)
        return solution

    free = at("none", None)
    assert free.choices is not None
    most = evaluate(problem, free.choices).peak_bytes
    started = time.process_time()
    least = least_limit(problem, Budget())
    print(f"| {path.stem} | {mesh} | (least) | {(least or 0) / 2**30:.3f} | | | {time.process_time() - started:.2f} |")
    assert least is not None
    at("100 %", most)
    at("60 %", int(0.6 * most))
    at("least + 5 %", int(1.05 * least))
    at("least", least)
    at("least - 1", least - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mesh", nargs="+", default=["4x4", "8x8", "4x2x4"])
    parser.add_argument("--only", default="*")
    given = parser.parse_args()
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for path in sorted(given.folder.glob("*.onnx")):
        if fnmatch.fnmatch(path.stem, given.only):
            for mesh in given.mesh:
                tighten(path, mesh)


if __name__ == "__main__":
    main()
