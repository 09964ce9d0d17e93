"""Errors on runs that had no part in the fit: constants of `training` fitted to some sources, judged on others.

    python benchmarks/held_out.py [--data FOLDER] [--rounds N]

The runs are vTrain's on A100 (`runs.SOURCES`): one machine, and many. Lines on the shipped constants come first, on all
rows and on those that are predicted within 10 %, with how many of the pairs in the wrong order have another row. Then
whole sources are held out in turn, every size of model, and halves of all rows, drawn by a hash of the configuration. A
fit moves the six constants of `FREE` from where the profile has them to the least mean error, every source weighing the
same. What a run takes under other constants is put together from plans of two and four layers of its configuration, as
`shardplan.study.trainer_step` does it; the last line says how far that is from what `shardplan price` says. About two
minutes of CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median

import numpy as np
import runs
from numpy.typing import NDArray
from runs import Compared, TrainingRun

import shardplan
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.types import Cluster, Training
from shardplan.cost.collectives import CollectiveModel
from shardplan.extras.calibration.fit import simplex
from shardplan.plan.types import Plan
from shardplan.plan.views.timeline import step_schedule
from shardplan.planning.parallelism import DATA, Parallelism, axes_of, mesh_text
from shardplan.study.model_chunks import layers_of

Floats = NDArray[np.float64]
FREE = ("sustained", "memory", "host_s", "tp_exponent", "loss_bytes", "partial_groups")
"""Constants that are fitted; all others are the profile's."""
SOURCES = ("vtrain-one-node", "vtrain-many-nodes")
_CLOSE = 0.10
"""A row with a larger error is far off."""
_CHECKED = 6
_TOGETHER = 3.0
_VOCABULARY = 51200
_MACHINE = 8
_MEETS = np.array([1.0, 2.0, 1.0])
"""Neighbours of a first, an inner and a last stage."""
_PARTS = ("products", "other", "forward_sent", "backward_sent", "again_sent", "kernels", "collectives")


@dataclass(frozen=True)
class Ingredients:
    """A run as seconds that constants scale, for its first, an inner, and its last stage (`stages` of each): of one
    microbatch the `_PARTS`, shape (3, 7); of a step `late_s`: reduction, and `update_s`: optimizer, shape (3,);
    `logits`: elements of the loss; `send_s`: one hand-over; `partial`: gradients are reduced in groups of several, but
    not all, devices of each of several machines."""

    run: TrainingRun
    stages: tuple[int, int, int]
    parts: Floats
    late_s: Floats
    update_s: Floats
    logits: float
    send_s: float
    microbatches: int
    partial: bool


def ingredients(run: TrainingRun) -> Ingredients:
    """Of one run of vTrain, whose case says what it is."""
    said = _sizes(run)
    ways = {name: int(run.asked[name]) for name in ("tp", "pp", "dp", "micro_batch", "global_batch")}
    layer, first, last = _of_layers(run.model.split(",", 2)[2], run.profile, ways["tp"], ways["micro_batch"],
                                    str(run.asked["recompute"]))  # fmt: skip
    counts = layers_of(said["layers"], ways["pp"])
    inner = max(counts[1:-1], default=0)
    whole = ways["pp"] == 1
    of_stage = [counts[0] * layer + first + (last if whole else 0), inner * layer, counts[-1] * layer + last]
    weights = 12 * said["hidden"] ** 2 / ways["tp"]
    table = _VOCABULARY * said["hidden"] / ways["tp"]
    held = np.array([counts[0] * weights + table, inner * weights, counts[-1] * weights + table])
    cluster = runs.cluster_of(run.profile)
    return Ingredients(
        run,
        (1, max(0, len(counts) - 2), 0 if whole else 1),
        np.array(of_stage),
        np.array([_reduction(run.profile, ways["tp"], ways["dp"], 2 * each) for each in held]),
        28 * held / (cluster.device.hbm_bytes_per_s * cluster.device.memory_efficiency),
        ways["micro_batch"] * said["seq"] * _VOCABULARY / ways["tp"],
        0.0 if whole else _sent(run.profile, 2 * ways["micro_batch"] * said["seq"] * said["hidden"] / ways["tp"]),
        ways["global_batch"] // (ways["dp"] * ways["micro_batch"]),
        1 < ways["tp"] < _MACHINE < ways["tp"] * ways["dp"],
    )


def _sizes(run: TrainingRun) -> dict[str, int]:
    said = dict(part.split("=") for part in run.model.partition(":")[2].split(","))
    return {name: int(said[name]) for name in ("layers", "hidden", "seq")}


@cache
def _of_layers(sizes: str, profile: str, tp: int, rows: int, remat: str) -> tuple[Floats, Floats, Floats]:
    """`_PARTS` of one layer, of what comes before all layers, and of what comes after them."""
    cluster = replace(runs.cluster_of(profile), training=Training())
    found = []
    for layers in (2, 4):
        priced = shardplan.price(
            f"transformer:style=gpt,layers={layers},{sizes}", cluster=cluster, tp=tp, recompute=remat,
            micro_batch=rows, global_batch=2 * rows,
        )  # fmt: skip
        found.append(priced.plan)
    two, four = (_tally(plan, "") for plan in found)
    layer = (four - two) / 2
    last = _tally(found[0], "lm_head")
    return layer, two - 2 * layer - last, last


def _tally(plan: Plan, module: str) -> Floats:
    """`_PARTS` of one microbatch, of the operators of a module, or of all."""
    found = dict.fromkeys(_PARTS, 0.0)
    for phase in step_schedule(plan).phases:
        if phase.name not in ("forward", "backward"):
            continue
        again = False
        for item, number in zip(phase.program, phase.operators, strict=True):
            operator = plan.operators[number] if number >= 0 else None
            if operator is None or not operator.module.startswith(module):
                continue
            if item.action == "compute" and item.seconds > 0:
                again = item.name.startswith("recompute")
                found["products" if operator.op_type == "MatMul" else "other"] += item.seconds
                found["kernels"] += 1
            elif item.action == "blocking":
                where = "forward" if phase.name == "forward" else "again" if again else "backward"
                found[f"{where}_sent"] += item.seconds
                found["collectives"] += 1
    return np.array([found[name] for name in _PARTS])


@cache
def _links(profile: str, tp: int, dp: int) -> tuple[CollectiveModel, tuple[int, ...]]:
    told = profile_from_resolved(runs.cluster_of(profile).resolved)
    axes = axes_of(Parallelism(tensor=tp, data=dp), told)
    model = CollectiveModel(make_cluster(told, mesh_text(axes, told)))
    return model, tuple(place for place, axis in enumerate(axes) if axis.kind == DATA)


def _reduction(profile: str, tp: int, dp: int, size: float) -> float:
    """Seconds in which data-parallel ranks add up `size` bytes of gradients in buckets."""
    if dp == 1 or not size:
        return 0.0
    model, axes = _links(profile, tp, dp)
    buckets = max(1, round(size / runs.cluster_of(profile).coalesce.bucket_bytes))
    return buckets * model.seconds("all_reduce", axes, size / buckets)


@cache
def _sent(profile: str, size: float) -> float:
    told = profile_from_resolved(runs.cluster_of(profile).resolved)
    whole = make_cluster(told, "8" if profile == "a100-dgx" else "2x8")
    return CollectiveModel(whole).seconds("permute", (0,), size)


@dataclass(frozen=True)
class Table:
    """Rows side by side, for fast fits: `parts` of shape (7, rows, 3), per stage (rows, 3), per row (rows,)."""

    parts: Floats
    stages: Floats
    late_s: Floats
    update_s: Floats
    logits: Floats
    send_s: Floats
    microbatches: Floats
    partial: NDArray[np.bool_]
    rate: float

    @classmethod
    def of(cls, rows: Sequence[Ingredients]) -> Table:
        device = runs.cluster_of(rows[0].run.profile).device
        return cls(
            np.moveaxis(np.array([row.parts for row in rows]), 2, 0),
            np.array([row.stages for row in rows], dtype=np.float64),
            np.array([row.late_s for row in rows]),
            np.array([row.update_s for row in rows]),
            np.array([[row.logits * (row.stages[2] == 0), 0.0, row.logits * row.stages[2]] for row in rows]),
            np.array([row.send_s for row in rows]),
            np.array([row.microbatches for row in rows], dtype=np.float64),
            np.array([row.partial for row in rows]),
            device.hbm_bytes_per_s * device.memory_efficiency,
        )

    def seconds(self, training: Training) -> Floats:
        """Steps of all rows under these constants, shape (rows,)."""
        products, other, forward, backward, again, kernels, collectives = self.parts
        sent = (1 - training.tp_forward) * (forward + again) + (1 - training.tp_backward) * backward
        cut = training.loss_bytes if training.cut_loss_bytes is None else training.cut_loss_bytes
        by_logit = np.where(collectives > 0, cut, training.loss_bytes)  # ranks that send cut the vocabulary too
        loss = by_logit * self.logits / (self.rate * training.memory)
        on_device = products / training.sustained + other / training.memory + sent + loss
        of_loss = training.loss_kernels * (self.logits > 0)
        on_host = training.host_s * (kernels + of_loss) + training.host_collective_s * collectives
        power = np.where(collectives > 0, training.tp_exponent or _TOGETHER, _TOGETHER)
        both = (on_device**power + on_host**power) ** (1 / power)
        once = both + (training.sends or 0.0) * self.send_s[:, None] * _MEETS
        late = self.late_s * np.where(self.partial, training.partial_groups, 1.0)[:, None]
        stages = self.microbatches[:, None] * once + late + self.update_s / training.memory
        there = np.where(self.stages > 0, stages, 0.0)
        slowest = there.max(axis=1)
        return np.asarray(slowest + ((stages * self.stages).sum(axis=1) - slowest) / self.microbatches)


def seconds(rows: Sequence[Ingredients], training: Training) -> Floats:
    """Steps of all rows under these constants, shape (rows,)."""
    return Table.of(rows).seconds(training)


def fitted(rows: Sequence[Ingredients], start: Training, rounds: int) -> Training:
    """The constants with the least mean error, each source weighing the same, from `start`. Rows without partial
    groups know nothing of them: 1."""
    known = any(row.partial for row in rows)
    start, free = (start, FREE) if known else (replace(start, partial_groups=1.0), FREE[:-1])
    sources, table = [row.run.source for row in rows], Table.of(rows)
    weights = np.array([1 / sources.count(source) for source in sources])
    measured = np.array([row.run.measured_s for row in rows])

    def off(point: Floats) -> float:
        return float(weights @ np.abs(table.seconds(_moved(start, free, point)) / measured - 1)) / float(weights.sum())

    return _moved(start, free, simplex(off, np.zeros(len(free)), step=0.2, rounds=rounds))


def _moved(start: Training, free: Sequence[str], point: Floats) -> Training:
    """Constants moved by a factor each, none beyond a third and three times."""
    factors = np.exp(np.clip(point, -1.1, 1.1)).tolist()
    return replace(start, **{name: getattr(start, name) * by for name, by in zip(free, factors, strict=True)})


def compared(rows: Sequence[Ingredients], training: Training) -> list[Compared]:
    """Rows with their steps under these constants."""
    return [Compared(row.run, float(step)) for row, step in zip(rows, seconds(rows, training), strict=True)]


def judged(compared: Sequence[Compared]) -> str:
    """One line on rows: errors, order and regret."""
    off = [abs(row.off()) for row in compared]
    same, pairs = runs.in_order(compared, "ours_s")
    regret = runs.regrets(compared, "ours_s")
    order = f"{same / pairs:5.1%} of {pairs:5}" if pairs else "none"
    return (
        f"{len(off):4} {mean(off):6.1%} {median(off):6.1%} {sum(share <= _CLOSE for share in off) / len(off):5.0%}  "
        f"{order:15} {mean(regret) if regret else 0:6.1%}"
    )


def out_of_order(rows: Sequence[Compared]) -> str:
    """How many of the pairs in the wrong order have a row whose error is large, and of which sizes those are."""
    wrong = [(fast, slow) for fast, slow in runs.apart(rows) if slow.ours_s <= fast.ours_s]
    far = Counter(row.run.choice.split()[0] for row in rows if abs(row.off()) > _CLOSE)
    touched = sum(any(abs(row.off()) > _CLOSE for row in pair) for pair in wrong)
    sizes = ", ".join(f"{count} of hidden {hidden}" for hidden, count in sorted(far.items()))
    return f"{touched} of {len(wrong)} pairs in the wrong order have a row more than {_CLOSE:.0%} off: {sizes}"


def splits(rows: Sequence[Ingredients]) -> Mapping[str, tuple[list[Ingredients], list[Ingredients]]]:
    """Name -> (rows to fit, rows held out)."""
    groups: dict[str, list[bool]] = {}
    for source in SOURCES:
        groups[f"source {source}"] = [row.run.source == source for row in rows]
    for hidden in sorted({_sizes(row.run)["hidden"] for row in rows}):
        groups[f"hidden {hidden}"] = [_sizes(row.run)["hidden"] == hidden for row in rows]
    drawn = [bool(hashlib.sha256(f"{row.run.source} {row.run.case}".encode()).digest()[0] % 2) for row in rows]
    groups |= {"half A": drawn, "half B": [not each for each in drawn]}
    return {
        name: (list(itertools.compress(rows, [not each for each in held])), list(itertools.compress(rows, held)))
        for name, held in groups.items()
        if any(held) and not all(held)
    }


def show(folder: Path, rounds: int) -> None:
    rows = [ingredients(run) for source in SOURCES for run in runs.runs_of(source, folder)]
    if not rows:
        print(f"held out: none of {', '.join(SOURCES)} is in {folder}")
        return
    shipped: Cluster = runs.cluster_of("a100-800")
    start = shipped.training
    print(f"{'':34} {'rows':>4} {'mean':>6} {'median':>6} {'10 %':>5}  {'pairs in order':15} {'regret':>6}")
    for source in SOURCES:
        found = compared([row for row in rows if row.run.source == source], start)
        print(f"{'shipped':14} {source:19} {judged(found)}")
        close = [row for row in found if abs(row.off()) <= _CLOSE]
        print(f"{'within 10 %':14} {source:19} {judged(close)}\n{'':14} {out_of_order(found)}", flush=True)
    for name, (fit, held) in splits(rows).items():
        constants = fitted(fit, start, rounds)
        for source in SOURCES:
            own = [row for row in held if row.run.source == source]
            if own:
                told = name.removeprefix("source ") if name.endswith(source) else name
                print(
                    f"{'held out' if told == source else told:14} {source:19} {judged(compared(own, constants))}",
                    flush=True,
                )
        print(f"{'':14} {_told(constants)}", flush=True)
    chosen = [*rows[:: max(1, len(rows) // _CHECKED)], rows[-80]]
    prices = [runs.compared(row.run).ours_s for row in chosen]
    worst = float(np.abs(seconds(chosen, start) / np.array(prices) - 1).max())
    print(f"put together as here, {len(chosen)} runs are at most {worst:.1%} from what `price` says")


def _told(constants: Training) -> str:
    return (
        f"sustained {constants.sustained:.2f}, memory {constants.memory:.2f}, host {1e6 * constants.host_s:.0f} us, "
        f"exponent {constants.tp_exponent:.1f}, loss {constants.loss_bytes:.0f} B, "
        f"partial groups x {constants.partial_groups:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=runs.DATA, help="folder of the sources' files")
    parser.add_argument("--rounds", type=int, default=160, help="steps of each fit")
    given = parser.parse_args()
    begun = time.process_time()
    show(given.data, given.rounds)
    print(f"{time.process_time() - begun:.0f} s of CPU", file=sys.stderr)


if __name__ == "__main__":
    main()
