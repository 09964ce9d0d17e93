"""Megatron's forward pass of a tiny GPT on processes: bytes that each sends, as predicted and as counted.

    python benchmarks/megatron_bytes.py [--mesh 4x4]

`tests/torch/test_megatron_bytes.py` does the same on four processes. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from forced_plans import cluster_of  # noqa: E402
from tiny_models import megatron, tiny_gpt  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

from shardplan.constraints.parse import parse_constraints  # noqa: E402
from shardplan.planning import PlanOptions, plan_model  # noqa: E402
from shardplan.runtime.predicted import predicted_collectives  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mesh", default="4x4")
    given = parser.parse_args()
    tiny = tiny_gpt()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.model(Path(folder))
        options = PlanOptions(constraints=parse_constraints(megatron(tiny), "megatron.yaml"))
        plan = plan_model(model, cluster_of(given.mesh), options)
        told = sum(row.wire_bytes * row.count for row in predicted_collectives(plan) if row.phase == "forward")
        ranks = Ranks(plan.mesh.size, Path(folder))
        found = ranks.run("torch_cases", "forward", tiny, plan)
        ranks.close()
    errors, sent, differences = zip(*found, strict=True)
    print(
        f"{plan.mesh}: {told:,} bytes predicted, {min(sent):,} to {max(sent):,} sent by each of {len(sent)} processes"
    )
    print(f"logits differ from those of one process by at most {max(errors):.1e}")
    return 0 if set(sent) == {told} and max(errors) < 1e-5 and not any(differences) else 1


if __name__ == "__main__":
    sys.exit(main())
