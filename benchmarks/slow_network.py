"""Plans on a network and devices of known, slow speed: the step that four processes take, beside the plan's.

    python benchmarks/slow_network.py [--scale 8000] [PLAN ...]

Needs no accelerators: every collective takes the seconds that the cluster's prices say for the bytes that gloo really
sends, every operator those of the plan, `--scale` times as long (`tests/support/slow_network.py`). Columns: the plan's
scheduled step; what it would be if nothing ran beside anything else; the step measured, and its ratio to the plan's.
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

PLANS = {
    "data parallel": ("data parallel", {}),
    "ZeRO-1": ("ZeRO-1", {"shard_optimizer": True}),
    "ZeRO-3": ("ZeRO-3", {}),
    "mixed": ("Megatron", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="*", default=list(PLANS))
    parser.add_argument("--scale", type=float, default=8000)
    asked = parser.parse_args()
    tiny = tiny_gpt(Sizes(batch=16, layers=4))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, cluster = tiny.model(folder), slow_cluster(folder)
        ranks = Ranks(4, folder, ("torch_cases", "slow_ranks"))
        print(f"{'plan':15} {'program':9} {'scheduled':>10} {'serial':>8} {'measured':>9} {'ratio':>6}")
        for which in asked.plans:
            recipe, options = PLANS[which]
            plan = slow_plan(model, cluster, recipe, **options)
            for mode in ("eager", "exported"):
                found = ranks.run("slow_ranks", "step_seconds", tiny, plan, cluster, asked.scale, mode)
                scheduled, serial = scheduled_seconds(plan) * asked.scale, serial_seconds(plan) * asked.scale
                measured = max(seconds for own in found for seconds in own)
                row = f"{which:15} {mode:9} {scheduled:8.2f} s {serial:6.2f} s {measured:7.2f} s"
                print(f"{row} {measured / scheduled:6.2f}", flush=True)
        ranks.close()


if __name__ == "__main__":
    main()
