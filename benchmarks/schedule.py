"""The scheduled step of every model of a folder: against its timeline, experts' layouts and tighter memory.

    python benchmarks/schedule.py [FOLDER] [--mesh 4x4 ...] [--cluster h100-dgx ...] [--only PATTERN] [--experts]

Columns: scheduled step, its optimality gap, what the timeline rebuilt from the plan file differs by, CPU seconds of
planning; with `--experts` the best scheduled step of the layouts that experts write, and of a plan under 70 % of the
memory that the plan takes, each over the plan's step: below 1 would be a better plan.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from dataclasses import replace
from pathlib import Path

from zoo import EXTRA

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.plan.file import dumps, loads
from shardplan.plan.views.timeline import timeline
from shardplan.planning import Planner
from shardplan.planning.recipes import RECIPES


def step_ns(model, cluster, options, restriction=None) -> int | None:
    """The scheduled step of the best plan, or None where there is none."""
    try:
        return Planner(model, cluster, options, reasons=False).plan(restriction).summary.step_ns
    except ShardplanError:
        return None


def ratio(other: int | None, ours: int) -> str:
    return "-" if other is None else f"{other / ours:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="tests/models", type=Path)
    parser.add_argument("--mesh", action="append")
    parser.add_argument("--cluster", action="append")
    parser.add_argument("--only", default="*")
    parser.add_argument("--experts", action="store_true")
    asked = parser.parse_args()
    head = f"{'model':22} {'cluster':16} {'mesh':6} {'step ms':>9} {'gap %':>6} {'timeline':>9} {'cpu s':>6}"
    print(head, "experts, less memory" if asked.experts else "")
    for path in sorted(asked.folder.glob("*.onnx")):
        if not fnmatch.fnmatch(path.stem, asked.only):
            continue
        extra = EXTRA.get(path.stem, [])
        dims = {name: int(value) for name, value in (item.split("=") for item in extra if "=" in item)}
        model = read_model(path, dims)
        options = PlanOptions(mode="inference" if "inference" in extra else "training")
        for name in asked.cluster or ["h100-dgx"]:
            for mesh in asked.mesh or ["4x4"]:
                row(path.stem, model, name, mesh, options, experts=asked.experts)


def row(title, model, name, mesh, options, *, experts: bool) -> None:
    cluster, begin = make_cluster(load_profile(name), mesh), time.process_time()
    try:
        plan = Planner(model, cluster, options, reasons=False).plan()
    except ShardplanError as problem:
        print(f"{title:22} {name:16} {mesh:6} {problem.diagnostics[0].code}", flush=True)
        return
    seconds, summary = time.process_time() - begin, plan.summary
    apart = abs(timeline(loads(dumps(plan))).seconds * 1e9 / summary.step_ns - 1.0)
    others = ""
    if experts:
        best = min(filter(None, (step_ns(model, cluster, options, one) for one in RECIPES.values())), default=None)
        less = step_ns(model, cluster, replace(options, memory_limit_bytes=int(0.7 * summary.memory.total)))
        others = f"{ratio(best, summary.step_ns)} {ratio(less, summary.step_ns)}"
    figures = f"{summary.step_ns / 1e6:9.3f} {100 * summary.gap:6.2f} {apart:9.1e} {seconds:6.1f}"
    print(f"{title:22} {name:16} {mesh:6} {figures} {others}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
