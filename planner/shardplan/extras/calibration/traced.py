"""A profile fitted to a trace: the ratio of measured times to its prices, by kind, and its spread.

Every kind (matrix products, attention forward and backward, work bound by memory, each collective on each level of
links) gets one factor: the median of measured over predicted seconds, of kernels long enough that their start does not
matter. A kernel of NCCL runs until the last rank has come; of equal collectives only the fastest quarter counts.
Kernels beside a collective count only where too few ran alone. The spread of a kind is half of what lies between its
quartiles, over the median, at least `_LEAST_SPREAD`.

A trace is of a trainer, so a factor has all that `training` takes off for trainers: those constants become 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardplan.cluster.build import Profile
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import profile_from_text
from shardplan.cluster.types import Level
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ATTENTION, ComputeModel
from shardplan.errors import ShardplanError, error
from shardplan.extras.calibration.events import Ran
from shardplan.extras.calibration.text import Plain, profile_text
from shardplan.extras.calibration.traced_attention import BACKWARD, FORWARD
from shardplan.rules.attention import FLASH_BACKWARD

_LONG_S = 20e-6
_LEAST_SPREAD, _MOST_SPREAD = 0.01, 1.0
_FEWEST = 3
_QUARTER = 4
_ETA_MOST = 1.2
_MOST_ATTENTION = 4.0


_MOST_GROUPS = 10
_COSTS = {"product": "gemm", "memory": "elementwise", FORWARD: "attention", BACKWARD: "attention"}
"""The kinds of work of a device, and what they are called in prices."""
_Ratios = tuple[list[float], bool]
_SHORT = f"kernels under {_LONG_S * 1e6:.0f} us"


@dataclass(frozen=True, slots=True)
class Factor:
    """`factor`: measured over predicted seconds, of `count` kernels; `spread`: relative, around it; `level`: of the
    links, empty for work of a device; `beside`: too few of them ran while no collective did."""

    kind: str
    level: str
    count: int
    factor: float
    spread: float
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the time of all kernels, `seconds`, the share `covered` that ran in kernels whose kind has a factor; `unused`:
    the largest groups of the others, by name, with their shares."""

    seconds: float
    covered: float
    unused: tuple[tuple[str, float], ...]


def coverage(ran: Sequence[Ran], factors: Sequence[Factor], base: Profile) -> Coverage:
    """How much of the time of kernels is of the kinds that have a factor. Kernels too short for one are a group."""
    known = {(each.kind, each.level) for each in factors}
    used, unused = 0.0, dict[str, float]()
    for each in ran:
        level = _crossed(base, each.ranks)[0].name if each.ranks else ""
        is_short = each.kind != "other" and each.seconds < _LONG_S
        if not is_short and (each.kind, level) in known:
            used += each.seconds
        else:
            name = _SHORT if is_short else each.name
            unused[name] = unused.get(name, 0.0) + each.seconds
    whole = used + sum(unused.values())
    largest = sorted(unused.items(), key=lambda item: (-item[1], item[0]))[:_MOST_GROUPS]
    return Coverage(whole, used / whole, tuple((name, seconds / whole) for name, seconds in largest))


def calibrate(ran: Sequence[Ran], base: Profile, name: str) -> tuple[str, list[Factor]]:
    """The text of a profile that extends `base` by what ran, and the factors that it applies.

    Raises `ShardplanError` (`too-few-measurements`) where no kind has three long kernels.
    """
    factors = [
        Factor(kind, level, len(found), statistics.median(found), _spread(found), beside)
        for (kind, level), (found, beside) in sorted({**_of_device(ran, base), **_collectives(ran, base)}.items())
        if len(found) >= _FEWEST
    ]
    if not factors:
        summary = f"no kind of operator or collective has {_FEWEST} kernels of {_LONG_S * 1e6:.0f} us or more"
        hint = (
            "profile whole steps with shapes (torch.profiler: record_shapes=True; nsys: --pytorch=autograd-shapes-nvtx)"
        )
        raise ShardplanError(error("too-few-measurements", summary, hint=hint))
    text = profile_text(name, base.name, _keys(factors, base), [])
    profile_from_text(text, name)  # a profile that cannot be read is a defect, found here
    return text, factors


def _of_device(ran: Sequence[Ran], base: Profile) -> Mapping[tuple[str, str], _Ratios]:
    """By kind of work on a device: measured over predicted seconds of the kernels that ran alone, if they are enough,
    else of all, and whether those are beside collectives."""
    compute, found = ComputeModel(make_cluster(base)), dict[tuple[str, str], _Ratios]()
    for kind in _COSTS:
        long = [each for each in ran if each.kind == kind and each.seconds >= _LONG_S]
        alone = [each for each in long if not each.beside]
        beside = len(alone) < _FEWEST <= len(long)
        used = long if beside else alone
        found[kind, ""] = [each.seconds / _computed(compute, each) for each in used], beside
    return found


def _computed(model: ComputeModel, each: Ran) -> float:
    flops, moved, *sizes = np.array([[each.flops], [each.moved_bytes], *([size] for size in each.sizes)])
    work = (flops, moved) if each.kind == "memory" else (flops, moved, *sizes)
    return float(model.seconds(_COSTS[each.kind], each.dtype, *work)[0])


def _collectives(ran: Sequence[Ran], base: Profile) -> Mapping[tuple[str, str], _Ratios]:
    """By collective and level: measured over predicted seconds, of the fastest quarter of equal ones."""
    equal: dict[tuple[str, tuple[int, ...], float], list[float]] = {}
    for each in ran:
        if each.ranks and each.seconds >= _LONG_S:
            equal.setdefault((each.kind, each.ranks, each.moved_bytes), []).append(each.seconds)
    found: dict[tuple[str, str], list[float]] = {}
    for (kind, ranks, payload), seconds in sorted(equal.items()):
        level, predicted = _moved(base, kind, ranks, payload)
        fastest = sorted(seconds)[: max(1, len(seconds) // _QUARTER)]
        found.setdefault((kind, level), []).extend(each / predicted for each in fastest)
    return {kind: (ratios, False) for kind, ratios in found.items()}


def _moved(base: Profile, kind: str, ranks: Sequence[int], payload: float) -> tuple[str, float]:
    """The outermost level that a group of ranks crosses, and the seconds that the profile has for it."""
    level, mesh, axes = _crossed(base, ranks)
    model = CollectiveModel(make_cluster(base, mesh))
    return level.name, model.seconds(kind, axes, payload)  # type: ignore[arg-type]


def _crossed(base: Profile, ranks: Sequence[int]) -> tuple[Level, str, tuple[int, ...]]:
    """The outermost level that a group of ranks crosses, and a mesh with the axes over which the group extends."""
    joined = base.levels[0].devices or len(ranks)
    machines = len({rank // joined for rank in ranks})
    inside = max(1, len(ranks) // machines)
    names = [axis.name for axis in base.axes]
    if machines == 1 or len(base.levels) == 1:
        return base.levels[0], f"{names[-1]}={len(ranks)}", (0,)
    siblings = max(1, joined // inside)
    return base.levels[-1], f"{names[0]}={machines},{names[-1]}0={siblings},{names[-1]}1={inside}", (0, 2)


def _spread(ratios: Sequence[float]) -> float:
    """Half of what lies between the quartiles, over the median."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return min(_MOST_SPREAD, max(_LEAST_SPREAD, (high - low) / 2 / middle))


def _keys(factors: Sequence[Factor], base: Profile) -> Plain:
    """Efficiencies over their factors, what of a trainer's losses they have already, and the widest spread of every
    constant that `--robust` moves."""
    by_kind = {(each.kind, each.level): each for each in factors}
    product, memory = by_kind.get(("product", "")), by_kind.get(("memory", ""))
    gemm = _gemm(product.factor if product else None, _of_attention(by_kind), base)
    device: Plain = {"gemm": gemm} if gemm else {}
    if memory:
        device["mem_efficiency"] = round(min(1.0, base.device.memory_efficiency / memory.factor), 4)
    beside = any(each.beside for each in factors)
    measured = {
        ("sustained", "fsdp_sustained"): product is not None, ("memory", "fsdp_memory"): memory is not None,
        ("fsdp_kappa",): beside,
    }  # fmt: skip
    lost = [name for names, is_measured in measured.items() if is_measured for name in names]
    training = {name: 1.0 for name in lost if getattr(base.training, name) not in (None, 1.0)}
    if "attention" in gemm:
        names = ("attention", "fsdp_attention")
        training |= {name: gemm["attention"] for name in names if getattr(base.training, name) is not None}
    levels = {
        level.name: found
        for level, plain in zip(base.levels, base.resolved["levels"], strict=True)  # type: ignore[call-overload]
        if (found := _rates(level, plain, [each for each in factors if each.level == level.name]))
    }
    spread: dict[str, float] = {}
    for each in (each for each in factors if each.kind not in (FORWARD, BACKWARD)):  # of compute, products have one
        constant = each.level or {"product": "compute"}.get(each.kind, each.kind)
        spread[constant] = max(spread.get(constant, 0.0), round(each.spread, 4))
    overlap = {"kappa": 1.0} if beside else {}
    sections = {"device": device, "levels": levels, "overlap": overlap, "training": training, "spread": spread}
    return {key: value for key, value in sections.items() if value}


def _gemm(product: float | None, attention: float | None, base: Profile) -> Plain:
    """The efficiency of matrix products and of attention under their factors. Attention that was not measured, and
    products in narrow types, go with `sustained`."""
    gemm, known = base.device.gemm, base.device.attention
    keys: Plain = {}
    if product is not None:
        kept = gemm.sustained / product
        keys = {"e": round(min(1.0, gemm.e * max(1.0, kept)), 4), "sustained": round(min(1.0, kept), 4)}
    if attention is not None:
        share = gemm.attention if gemm.attention is not None else 1.0 if known else ATTENTION
        after = keys.get("sustained", gemm.sustained) * (1.0 if known else keys.get("e", gemm.e) / gemm.e)
        keys["attention"] = round(min(_MOST_ATTENTION, share * gemm.sustained / (after * attention)), 4)
    return keys


def _of_attention(by_kind: Mapping[tuple[str, str], Factor]) -> float | None:
    """One factor for forward and backward: a profile has one rate for both together, whose work is as 1 to 2.5."""
    weights = {FORWARD: 1.0, BACKWARD: FLASH_BACKWARD}
    found = {kind: by_kind[kind, ""].factor for kind in weights if (kind, "") in by_kind}
    weight = sum(weights[kind] for kind in found)
    return sum(weights[kind] * factor for kind, factor in found.items()) / weight if found else None


def _rates(level: Level, plain: Mapping[str, Any], factors: Sequence[Factor]) -> Plain:
    """Efficiency and bus bandwidth of every collective: of those that were not measured, off as far as the median of
    those that were, since a collective may be put together from others."""
    if not factors:
        return {}
    others = statistics.median(each.factor for each in factors)
    known = {each.kind: each.factor for each in factors}
    known.setdefault("nvls", known.get("all_reduce", others))
    eta = {kind: plain["eta"].get(kind, plain["eta"].get("default", 1.0)) for kind in known if kind != "nvls"}
    keys: Plain = {
        "eta": {
            kind: _over(value, known.get(kind, others), _ETA_MOST) for kind, value in ({**plain["eta"], **eta}).items()
        }
    }
    if level.busbw:
        rates = plain["busbw_gbps"].items()
        keys["busbw_gbps"] = {kind: _over(value, known.get(kind, others)) for kind, value in rates}
    return keys


def _over(value: Any, factor: float, most: float = float("inf")) -> Any:
    """A number, or all in a table by ranks, over a factor."""
    if isinstance(value, Mapping):
        return {int(ranks): _over(entry, factor, most) for ranks, entry in value.items()}
    return round(min(most, float(value) / factor), 4)
