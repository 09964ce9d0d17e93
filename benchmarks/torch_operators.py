"""Every operator of torch's own test database on planned tensors: `python benchmarks/torch_operators.py [NAME ...]`.

Torch tests its operators with samples of their arguments (`torch.testing._internal`, which needs `expecttest`). Here
four gloo processes run each sample beside plain torch, operands sharded at random on 2x2, and compare results and
gradients in double precision. A line for each operator that is not exact everywhere, and the counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

from forced_plans import forced_plan  # noqa: E402
from operator_ranks import OPERATORS  # noqa: E402
from tiny_models import tiny_gpt  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

SECONDS = 40.0
_KINDS = ("WRONG", "crashed", "hung", "refused", "fell back")


def main() -> None:
    """A line for each operator that differs, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    tiny, counts, ranks = tiny_gpt(), Counter[str](), None
    plan = forced_plan(tiny.model(folder), "2x2", recipe="Megatron")
    for name in given.names or OPERATORS:
        ranks = ranks or Ranks(4, Path(tempfile.mkdtemp()), ("operator_ranks",))
        try:
            answers = ranks.run("operator_ranks", "compare", tiny, plan, name, given.seed, timeout=SECONDS)
        except (TimeoutError, AssertionError) as problem:
            answers = [{"exact": 0, "hung": str(problem).strip().splitlines()[-1]}]
            for nursery in ranks.nurseries:
                nursery.kill()
            ranks = None
        worst = next((kind for kind in _KINDS if any(kind in answer for answer in answers)), "")
        if worst:
            print(f"{name:34} {worst:8} {next(answer[worst] for answer in answers if worst in answer)}", flush=True)
        counts[worst or ("exact" if answers[0]["exact"] else "no samples")] += 1
    if ranks is not None:
        ranks.close()
    print(", ".join(f"{number} {kind}" for kind, number in counts.most_common()))


if __name__ == "__main__":
    main()
