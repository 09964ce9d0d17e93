"""What to recompute, chosen and by flag: `python benchmarks/remat.py FOLDER [--mesh 4x4] [--only PATTERN]`.

Every .onnx model of FOLDER is planned under `--remat none`, `selective`, `alternate`, `full` and `auto`, with as much
memory as its plan without a limit uses, with 60 % of that, and with 5 % more than `full` needs at least. One line for
each: step in milliseconds, bound, memory, operators that run again, and the processor time of the whole plan. Exit code
1 where a flag is faster than `auto`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "planner"))

from shardplan.cluster.mesh import make_cluster  # noqa: E402
from shardplan.cluster.profile import load_profile  # noqa: E402
from shardplan.errors import InfeasibleError  # noqa: E402
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions  # noqa: E402
from shardplan.planning import Planner  # noqa: E402
from shardplan.solve.budget import Budget  # noqa: E402
from shardplan.solve.shortfall import least_limit  # noqa: E402
from shardplan.verbs.inputs import load_model  # noqa: E402

FLAGS = ("none", "selective", "alternate", "full", "auto")
GIB = 2**30
HEADER = """| model | mesh | limit GiB | remat | step ms | bound ms | GiB | recomputed operators | CPU s |
|---|---|--:|---|--:|--:|--:|--:|--:|"""


def limits(model, cluster) -> list[int]:
    """All that is used without a limit, 60 % of it, and hardly more than recomputing every block needs."""
    free = Planner(model, cluster, PlanOptions(memory_limit_bytes=UNLIMITED_BYTES), reasons=False).plan()
    full = Planner(model, cluster, PlanOptions(memory_limit_bytes=UNLIMITED_BYTES, remat="full"), reasons=False)
    least = least_limit(full.solve_at(()).layouts.problem, Budget(time_limit=20.0))
    assert least is not None
    most = free.summary.memory.total
    return sorted({most, int(0.6 * most), int(1.05 * least)}, reverse=True)


def line(name: str, mesh: str, model, cluster, limit: int, remat: str) -> float:
    """Print one line; the step in milliseconds, infinite where nothing fits."""
    started = time.process_time()
    planner = Planner(model, cluster, PlanOptions(remat=remat, memory_limit_bytes=limit), reasons=False)
    head = f"| {name} | {mesh} | {limit / GIB:.3f} | {remat} "
    try:
        plan = planner.plan()
    except InfeasibleError:
        print(f"{head}| does not fit | | | | {time.process_time() - started:.1f} |", flush=True)
        return float("inf")
    summary, again = plan.summary, sum(bool(operator.recomputed_before) for operator in plan.operators)
    step, bound = summary.step_ns / 1e6, summary.step_bound_ns / 1e6
    held, seconds = summary.memory.total / GIB, time.process_time() - started
    print(f"{head}| {step:.3f} | {bound:.3f} | {held:.3f} | {again or ''} | {seconds:.1f} |", flush=True)
    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mesh", default="4x4")
    parser.add_argument("--only", default="*")
    given = parser.parse_args()
    cluster, slower = make_cluster(load_profile("h100-dgx"), given.mesh), 0
    print(HEADER)
    for path in sorted(given.folder.glob(f"{given.only}.onnx")):
        model = load_model(str(path), {})
        for limit in limits(model, cluster):
            *flags, auto = (line(path.stem, given.mesh, model, cluster, limit, remat) for remat in FLAGS)
            slower += auto > min(flags) * (1 + 1e-9)
    print(f"{slower} times a flag was faster")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
