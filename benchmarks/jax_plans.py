"""Every kind of plan of every tiny model carried out by JAX on simulated devices: values, gradients, and bytes sent.

    python benchmarks/jax_plans.py 2x2
    python benchmarks/jax_plans.py 4x4 llama moe

`tests/jax/test_simulated.py` runs some of these. Minutes. Exits with 1 where a value or a gradient is not that of one
device.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

PLANS = ("solved 1.0", "solved 0.3", "Megatron", "Megatron sequence", "data parallel", "ZeRO-3", "2-D")


def main(mesh: str, names: list[str]) -> int:
    from jax_cases import MODELS, outcome

    print(
        f"{'model':10} {'plan':18} {'forward':>8} {'agrees':>7} {'backward':>8} {'value':>8} {'gradient':>8} {'s':>4}"
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or MODELS:
            for kind in PLANS:
                started = time.perf_counter()
                found = outcome({"model": name, "mesh": mesh, "plan": kind, "gradients": True}, Path(folder))
                values = found["value_error"], found["gradient_error"]
                wrong += max(values) > 2e-5
                ratio = found["emitted_bytes"] / found["planned_bytes"] if found["planned_bytes"] else 1.0
                print(
                    f"{name:10} {kind:18} {ratio:8.3f} {'yes' if found['agrees'] else 'no':>7} "
                    f"{found['backward_ratio']:8.3f} {values[0]:8.0e} {values[1]:8.0e} "
                    f"{time.perf_counter() - started:4.0f}",
                    flush=True,
                )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
