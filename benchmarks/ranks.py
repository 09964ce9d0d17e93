"""Does the order of the plans that people write depend on how exact the profile is?

    python benchmarks/ranks.py [MODEL ...] [--mesh 4x8] [--cluster h100-dgx] [--draws 10]

For every model (an ONNX file or a description) the predicted steps of data parallel, ZeRO-3, Megatron, Megatron with
sequence parallelism and the best plan, fastest first, and in how many of the draws of all constants within 15 % each
one stays ahead of the next. Below 90 % a pair is too close to call.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import PlanOptions
from shardplan.study.robust import order_of_recipes
from shardplan.verbs.inputs import load_model

MODELS = ("transformer:gpt-1.7b,batch=32", "transformer:bert-large,batch=64", "transformer:llama3-8b,batch=32")
SURE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--mesh", default="4x8")
    parser.add_argument("--cluster", default="h100-dgx")
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args()
    cluster = make_cluster(load_profile(given.cluster), given.mesh)
    pairs = sure = 0
    for name in given.models:
        start = time.perf_counter()
        order = order_of_recipes(load_model(name, {}), cluster, PlanOptions(), given.draws)
        print(f"{name} on {cluster.mesh}, {given.draws} draws, {time.perf_counter() - start:.0f} s")
        for place, (contender, step_ns) in enumerate(zip(order.names, order.step_ns, strict=True)):
            kept = order.stable[place] if place < len(order.stable) else 1.0
            ahead = f"ahead of the next in {100 * kept:.0f} %" if place < len(order.stable) else ""
            verdict = "" if kept >= SURE else "  too close to call"
            print(f"  {contender:<22} {step_ns / 1e6:10.3f} ms  {ahead}{verdict}")
        pairs, sure = pairs + len(order.stable), sure + sum(kept >= SURE for kept in order.stable)
        print(flush=True)
    print(f"{sure} of {pairs} neighbouring pairs keep their order in at least {100 * SURE:.0f} % of the draws")


if __name__ == "__main__":
    main()
