"""The laws of anytime planning on random models: what is freer, roomier or finer is never slower.

    python benchmarks/laws.py [--models 30] [--seed 0] [--equal-layers]

Each model is a description of random sizes (dense, mixtures of experts, grouped or latent attention, windows), planned
on a random profile and mesh, for training or inference; `--equal-layers`: as that option of `solve` asks. Printed: how
often each law was asked, how often it was broken, by how much at most, and every break with what makes it again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.models import described
from shardplan.planning import Planner, PlanOptions
from shardplan.planning.recipes import RECIPES

PROFILES = ("h100-dgx", "a100-dgx", "v100-p3-16xl", "generic")
MESHES = ("2x4", "4x2", "4x4", "1x8", "2x8")
ROUNDING = 1.000001


@dataclass
class Laws:
    """How often each was asked, and by how much it was broken."""

    asked: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    breaks: list[str] = field(default_factory=list)

    def hold(self, law: str, case: str, faster_ns: int, slower_ns: int) -> None:
        """`faster_ns` must be no more than `slower_ns`."""
        self.asked[law] += 1
        excess = faster_ns / slower_ns - 1
        if faster_ns > slower_ns * ROUNDING:
            self.worst[law] = max(self.worst[law], excess)
            self.breaks.append(f"{law}: {100 * excess:.2f} %   {case}")


def random_model(draw: random.Random) -> str:
    """A description of random sizes."""
    heads = draw.choice((2, 3, 4, 6, 8, 12))
    size = draw.choice((16, 32, 64, 128))
    sizes = {
        "layers": draw.choice((1, 2, 3)),
        "heads": heads,
        "head_size": size,
        "hidden": heads * size,
        "vocab": draw.choice((509, 1000, 4096, 32000, 50257)),
        "seq": draw.choice((64, 128, 384, 1024, 4096)),
        "batch": draw.choice((1, 2, 3, 8, 12, 16, 32)),
        "style": draw.choice(("gpt", "llama")),
    }
    if sizes["style"] == "llama" and draw.random() < 0.5:
        sizes["kv_heads"] = draw.choice([count for count in (1, 2, 3, 4) if heads % count == 0])
    if sizes["style"] == "llama" and draw.random() < 0.4:
        sizes |= {"experts": draw.choice((4, 8)), "top_k": 2, "routing": draw.choice(("capacity", "dropless"))}
    return "transformer:" + ",".join(f"{name}={value}" for name, value in sizes.items())


def check(laws: Laws, draw: random.Random, *, equal_layers: bool = False) -> None:
    """Ask every law about one random case."""
    text, profile_name, mesh = random_model(draw), draw.choice(PROFILES), draw.choice(MESHES)
    mode = draw.choice(("training", "training", "inference"))
    shown = f"{text} --mesh {mesh} --cluster {profile_name} --mode {mode}{' --equal-layers' * equal_layers}"
    model, profile = described(text), load_profile(profile_name)
    cluster = make_cluster(profile, mesh)

    options = PlanOptions(mode=mode, equal_layers=equal_layers)

    def step_ns(on: str = mesh, **asked: object) -> int:
        there = cluster if on == mesh else make_cluster(profile, on)
        return Planner(model, there, replace(options, **asked), reasons=False).plan().summary.step_ns

    planner = Planner(model, cluster, options, reasons=False)
    best = planner.plan()
    best_ns, held = best.summary.step_ns, best.summary.memory.total
    for name, recipe in RECIPES.items():
        for one in attempts(lambda recipe=recipe: planner.plan(recipe).summary.step_ns):
            laws.hold("never slower than a recipe", f"{shown}, {name}", best_ns, one)
    before = best_ns
    for share in (1.0, 0.8, 0.6):
        limit = int(share * held)
        for one in attempts(lambda limit=limit: step_ns(memory_limit_bytes=limit)):
            laws.hold("a looser limit is never slower", f"{shown} --memory-limit {limit}B", before, one)
            before = one
    for one in attempts(lambda: step_ns(effort="quick")):
        laws.hold("more effort is never slower", f"{shown} --effort quick", best_ns, one)
    for one in attempts(lambda: step_ns(time_limit=0.2)):
        laws.hold("more time is never slower", f"{shown} --time-limit 0.2", best_ns, one)
    weights = [parameter.name for parameter in model.parameters]
    pins = tuple(parse_pin(f"{draw.choice(weights)}=replicate") for _ in range(2))
    first = next(attempts(lambda: step_ns(constraints=pins[:1])), best_ns)
    laws.hold("a constraint is never faster", f"{shown} --pin '{pins[0]}'", best_ns, first)
    for one in attempts(lambda: step_ns(constraints=pins)):
        laws.hold("a constraint is never faster", f"{shown} --pin both", first, one)
    for finer in split(mesh):
        for one in attempts(lambda finer=finer: step_ns(finer)):
            laws.hold("a finer mesh is never slower", f"{shown} as {finer}", one, best_ns)


def split(mesh: str) -> Iterator[str]:
    """The same devices with the last axis as two, where that is so."""
    outer, inner = map(int, mesh.split("x"))
    if inner > 2:
        yield f"{outer}x2x{inner // 2}"


def attempts(plan) -> Iterator[int]:
    """The step, where there is a plan."""
    try:
        yield plan()
    except ShardplanError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equal-layers", action="store_true")
    given = parser.parse_args()
    laws, started_s = Laws(), time.process_time()
    for number in range(given.models):
        check(laws, random.Random(f"{given.seed}:{number}"), equal_layers=given.equal_layers)
    print(f"{'law':34} {'asked':>6} {'broken':>7} {'worst':>8}")
    for law, count in laws.asked.items():
        broken = sum(text.startswith(f"{law}:") for text in laws.breaks)
        print(f"{law:34} {count:6} {broken:7} {100 * laws.worst[law]:7.2f}%")
    print(f"{given.models} models, {time.process_time() - started_s:.0f} s of CPU")
    for text in laws.breaks:
        print(text)


if __name__ == "__main__":
    main()
