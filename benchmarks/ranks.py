"""Does the order of the plans that people write depend on how exact the profile is?

    python benchmarks/ranks.py [MODEL ...] [--mesh 4x8] [--cluster h100-dgx] [--draws 10]

For every model (an ONNX file or a description; by default the transformers of the zoo, as descriptions) the predicted
steps of data parallel, ZeRO-3, Megatron, Megatron with sequence parallelism and the best plan, fastest first, and in
how many of the draws of all constants within 15 % each one stays ahead of the next. Below 90 % a pair is too close to
call; those are told at the end.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.study.compare import Contender, compare_recipes
from shardplan.study.sensitivity import drawn
from shardplan.verbs.inputs import load_model

MODELS = (
    "transformer:layers=12,hidden=768,heads=12,vocab=50257,seq=1024,batch=64,style=gpt",
    "transformer:bert-large,batch=64",
    "transformer:gpt-1.7b,batch=32",
    "transformer:llama3-8b,batch=32",
    "transformer:llama3-70b,batch=32",
    "transformer:mixtral-8x7b,batch=32,routing=capacity",
    "transformer:layers=4,hidden=1024,heads=16,experts=16,vocab=32000,seq=1024,batch=64,style=gpt",
)
SURE = 0.9


@dataclass(frozen=True, slots=True)
class Order:
    """`names`: contenders by step under the profile as it is, fastest first, with their steps. `stable[i]`: share of
    the draws in which contender i is still no slower than contender i + 1."""

    names: tuple[str, ...]
    step_ns: tuple[int, ...]
    stable: tuple[float, ...]


def order_of_recipes(model: Model, cluster: Cluster, options: PlanOptions, draws: int) -> Order:
    """How the hand-written plans and ours rank by predicted step, and how often each neighbouring pair keeps its order
    when the constants of the profile are drawn within the spread."""
    first = _steps(compare_recipes(model, cluster, options))
    names = tuple(sorted(first, key=lambda name: (first[name], name)))
    kept = np.zeros(max(0, len(names) - 1))
    rng = np.random.default_rng(options.seed)
    for _ in range(draws):
        steps = _steps(compare_recipes(model, drawn(cluster, rng), options))
        for place, (faster, slower) in enumerate(itertools.pairwise(names)):
            kept[place] += steps.get(faster, math.inf) <= steps.get(slower, math.inf)
    return Order(names, tuple(first[name] for name in names), tuple((kept / max(1, draws)).tolist()))


def _steps(contenders: tuple[Contender, ...]) -> dict[str, int]:
    return {found.name: found.plan.summary.step_ns for found in contenders if found.plan is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--mesh", default="4x8")
    parser.add_argument("--cluster", default="h100-dgx")
    parser.add_argument("--draws", type=int, default=10)
    given = parser.parse_args()
    cluster = make_cluster(load_profile(given.cluster), given.mesh)
    pairs, close = 0, list[str]()
    for name in given.models:
        start = time.perf_counter()
        order = order_of_recipes(load_model(name, {}), cluster, PlanOptions(), given.draws)
        print(f"{name} on {cluster.mesh}, {given.draws} draws, {time.perf_counter() - start:.0f} s")
        for place, (contender, step_ns) in enumerate(zip(order.names, order.step_ns, strict=True)):
            kept = order.stable[place] if place < len(order.stable) else 1.0
            ahead = f"ahead of the next in {100 * kept:.0f} %" if place < len(order.stable) else ""
            if kept < SURE:
                close.append(f"{contender} and {order.names[place + 1]} on {name}: {100 * kept:.0f} %")
            print(f"  {contender:<22} {step_ns / 1e6:10.3f} ms  {ahead}{'' if kept >= SURE else '  too close to call'}")
        pairs += len(order.stable)
        print(flush=True)
    kept = pairs - len(close)
    print(f"{kept} of {pairs} neighbouring pairs keep their order in at least {100 * SURE:.0f} % of the draws")
    print("\n".join(["too close to call:", *close] if close else []))


if __name__ == "__main__":
    main()
