"""Plan every model of a folder on several meshes, each in a fresh process, and print what it took and what came out.

    python benchmarks/zoo.py [FOLDER] [--mesh 4x4 --mesh 8x8] [--only PATTERN] [--recipes]

Columns: outcome and gap of the plan, predicted step, memory of one device, CPU seconds of the whole command (user and
system, imports included), wall seconds, peak resident memory. `--recipes` adds the time of the plans people write by
hand (data parallel, ZeRO-3, Megatron, Megatron + sequence) over ours; `-` where such a plan does not fit.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXTRA = {
    "llama3_8b_dyn": ["--dim", "batch=8", "--dim", "seq=2048"],
    "gpt2_small_dyn": ["--dim", "batch=8", "--dim", "seq=1024"],
    "llama3_8b_decode": ["--mode", "inference"],
}
ROOMIER = {
    ("mixtral_8x7b_dense", "4x4"): ["--remat", "full"],
    ("llama3_70b", "4x4"): ["--remat", "full", "--cluster", "h200-dgx"],
    ("llama3_70b", "4x2x4"): ["--remat", "full", "--cluster", "h200-dgx"],
}
"""What it takes for a model to fit at all: 16 bytes a parameter, and activations, on so few devices."""
ROOT = Path(__file__).resolve().parents[1]


def solve(model: Path, mesh: str, output: Path) -> dict:
    """One cold run of the command; resources of that process alone."""
    command = [sys.executable, "-m", "shardplan", "solve", str(model), "--mesh", mesh, "-o", str(output), "--json"]
    command += EXTRA.get(model.stem, []) + ROOMIER.get((model.stem, mesh), [])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "planner")}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    document = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    report = json.loads(document)
    return {
        "exit": process.returncode,
        "summary": {k: v for k, v in ((report.get("result") or {}).get("summary") or {}).items() if v is not None},
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.perf_counter() - start,
        "rss_mib": usage.ru_maxrss / 1024,
    }


def recipe_ratios(model_path: Path, mesh: str) -> dict[str, str]:
    """Step time of each hand-written plan over ours, both under the same memory limit."""
    sys.path.insert(0, str(ROOT / "planner"))
    from shardplan.cluster.mesh import make_cluster
    from shardplan.cluster.profile import load_profile
    from shardplan.graph.build import build_cost_graph
    from shardplan.graph.memory import MemoryRows
    from shardplan.graph.options import PlanOptions
    from shardplan.graph.problem import to_problem
    from shardplan.model.read import read_model
    from shardplan.planning.recipes import RECIPES
    from shardplan.planning.reduction import restrict
    from shardplan.rules import model_rules
    from shardplan.solve import solve as solve_problem

    extra = EXTRA.get(model_path.stem, [])
    dims = dict(item.split("=") for item in extra if "=" in item)
    model = read_model(model_path, {name: int(value) for name, value in dims.items()})
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    options = PlanOptions(mode="inference" if "inference" in extra else "training")
    built = build_cost_graph(model, model_rules(model), cluster, options)
    problem = to_problem(built, MemoryRows(built), cluster.device.usable_bytes)
    ours = solve_problem(problem)
    ratios = {}
    for name, recipe in RECIPES.items():
        forced = solve_problem(restrict(problem, built, recipe(built)))
        ratios[name] = "-" if forced.choices is None else f"{forced.cost / ours.cost:.3f}"
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "tests" / "models")
    parser.add_argument("--mesh", action="append", default=[])
    parser.add_argument("--only", default="*")
    parser.add_argument("--recipes", action="store_true")
    arguments = parser.parse_args()
    meshes = arguments.mesh or ["4x4", "8x8", "4x2x4"]
    print(
        f"{'model':20} {'mesh':7} {'outcome':10} {'gap %':>6} {'step ms':>10} {'compute':>10} {'exposed':>10}"
        f" {'GiB':>6} {'cpu s':>6} {'wall s':>6} {'MiB':>5}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(arguments.folder.glob("*.onnx")):
            if not fnmatch.fnmatch(model.stem, arguments.only):
                continue
            for mesh in meshes:
                row = solve(model, mesh, Path(folder) / f"{model.stem}.{mesh}.plan.json")
                s = row["summary"]
                print(
                    f"{model.stem:20} {mesh:7} {s.get('outcome', row['exit'])!s:10} {100 * s.get('gap', 0):6.2f}"
                    f" {s.get('step_us', 0) / 1e3:10.3f} {s.get('compute_us', 0) / 1e3:10.3f}"
                    f" {s.get('communication_us', 0) / 1e3:10.3f} {s.get('memory_bytes', 0) / 2**30:6.1f}"
                    f" {row['cpu_s']:6.2f} {row['wall_s']:6.2f} {row['rss_mib']:5.0f}",
                    flush=True,
                )
                if arguments.recipes:
                    print("    over ours: " + ", ".join(f"{k} {v}" for k, v in recipe_ratios(model, mesh).items()))


if __name__ == "__main__":
    main()
