"""Plans on a network and devices of known, slow speed: the step that four processes execute, beside the plan's.

    python benchmarks/slow_network.py [--layers 4] [PLAN ...]

Needs no accelerators: four gloo processes execute a step and record what they compute, send, issue and wait for
(`tests/support/step_recorder.py`); in virtual time every collective takes the seconds that the cluster's prices say for
the bytes that gloo really sent, every operator those of the plan (`tests/support/virtual_time.py`). So the load of the
machine does not count. Columns: the plan's scheduled step; what it would be if nothing ran beside anything else; the
step executed, and its ratio to the plan's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from slow_plans import scheduled_seconds, serial_seconds, slow_cluster, slow_plan  # noqa: E402
from tiny_models import Sizes, tiny_gpt  # noqa: E402
from torch_ranks import Ranks  # noqa: E402
from virtual_time import seconds_of  # noqa: E402

from shardplan.cost.occupancy import links_of  # noqa: E402

PLANS = {
    "data parallel": ("data parallel", {}),
    "ZeRO-1": ("ZeRO-1", {"shard_optimizer": True}),
    "ZeRO-3": ("ZeRO-3", {}),
    "mixed": ("Megatron", {}),
}
_MICROSECONDS = 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="*", default=list(PLANS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--mesh", default="2x2", help="of four devices")
    asked = parser.parse_args()
    tiny = tiny_gpt(Sizes(batch=16, layers=asked.layers))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, cluster = tiny.model(folder), slow_cluster(folder, asked.mesh)
        ranks = Ranks(4, folder, ("torch_cases", "slow_ranks"))
        print(f"{'plan':15} {'program':9} {'scheduled':>12} {'serial':>10} {'executed':>10} {'ratio':>6}")
        for which in asked.plans:
            recipe, options = PLANS[which]
            plan = slow_plan(model, cluster, recipe, **options)
            for mode in ("eager", "exported"):
                found = ranks.run("slow_ranks", "recorded_step", tiny, plan, cluster, mode)
                scheduled, serial = scheduled_seconds(plan) * _MICROSECONDS, serial_seconds(plan) * _MICROSECONDS
                executed = seconds_of(found, links_of(cluster)) * _MICROSECONDS
                row = f"{which:15} {mode:9} {scheduled:9.1f} us {serial:7.1f} us {executed:7.1f} us"
                print(f"{row} {executed / scheduled:6.3f}", flush=True)
        ranks.close()


if __name__ == "__main__":
    main()
