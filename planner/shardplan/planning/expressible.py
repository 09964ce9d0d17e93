"""The best plan that a runtime can express: the best over all roles of the mesh axes, with equal layers alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from shardplan.cost.recipes import state_bytes
from shardplan.graph.build import CostGraph, Node
from shardplan.planning.instance import Instance
from shardplan.planning.reduction import Restrict, both
from shardplan.planning.runtimes.alike import Alike, Way, differing
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import MODULE_ROLES, Roles, Runtime
from shardplan.planning.search import Found, NoBetterError, NoPlanError

T = TypeVar("T")
Chosen = tuple[CostGraph, Mapping[Node, int]]
_TRAINED: Final = frozenset({"float", "float16", "bfloat16", "double"})


def weights_fit(instance: Instance, roles: Roles) -> bool:
    """Whether weights, gradients and optimizer state fit in memory if each is in as many pieces as axes of these roles
    allow. It is checked first, since a search that finds no plan takes as long as one that does."""
    options, mesh = instance.options, instance.cluster.mesh
    whole = frozenset(() if "shards" in roles else ("data", "context"))
    pieces = math.prod(size for role, size in zip(roles, mesh.shape, strict=True) if role not in whole)
    apart = mesh.size if options.shard_optimizer else pieces
    least = 0.0
    for parameter in instance.model.parameters:
        tensor = instance.model.tensor(parameter.tensor)
        if options.training and parameter.trainable and tensor.dtype in _TRAINED:
            each = state_bytes(options.optimizer, tensor.dtype)
            least += tensor.elements * ((each.parameter + each.gradient) / pieces + each.state / apart)
        else:
            least += tensor.size_bytes / pieces
    return least <= instance.limit_bytes


def best_expressible(
    arrangements: Iterable[Roles],
    ask: Callable[[Roles, float], Found | None],
    limit_bytes: int,
    enough_s: float = math.inf,
) -> Found | None:
    """The plan with the shortest step among those that keep `limit_bytes`, over all `arrangements`, with a bound that
    holds for all of them; `None` if there is no plan. `ask`: searches the best plan with given roles; it may raise
    `NoPlanError`, and `NoBetterError` if every plan takes too long. Raises `NoBetterError` if every plan takes
    `enough_s` or more."""
    best: Found | None = None
    bounds: list[float] = []
    for roles in arrangements:
        if best and best.candidate.keeps(limit_bytes):
            enough_s = min(enough_s, best.candidate.step_s)
        try:
            found = ask(roles, enough_s)
        except NoPlanError:
            continue
        except NoBetterError as none:
            bounds.append(none.bound_s)
            continue
        if found is None:
            continue
        bounds.append(found.bound_s)
        if best is None or _rank(found, limit_bytes) < _rank(best, limit_bytes):
            best = found
    if best is None and bounds:
        raise NoBetterError(min(bounds))
    return best and replace(best, bound_s=min(bounds))


def _rank(found: Found, limit_bytes: int) -> tuple[bool, float]:
    return not found.candidate.keeps(limit_bytes), found.candidate.step_s


def expressible_with(runtime: Runtime, roles: Roles, ask: Callable[[Restrict], Found]) -> Found:
    """The best plan with these roles; `ask` searches under a restriction. Raises `NoPlanError` and `NoBetterError`."""
    bounds: list[float] = []

    def asked(limits: Restrict) -> Found:
        found = ask(limits)
        bounds.append(found.bound_s)
        return found

    try:
        _, found = alike(runtime, roles, asked, lambda one: (one.candidate.layouts.built, one.candidate.priced.choice))
    except NoBetterError as none:
        raise NoBetterError(min([none.bound_s, *bounds[:1]])) from None
    return replace(found, bound_s=min(bounds[0], found.bound_s))


def alike(runtime: Runtime, roles: Roles, ask: Callable[[Restrict], T], chosen: Callable[[T], Chosen]) -> tuple[T, T]:
    """The best plan that `ask` finds with these roles and with layers alike, if the runtime has one rule for a module
    of all layers. Modules whose copies differ are all split as most of the copies are; if that is impossible, they stay
    whole. `chosen`: the choices of an answer, with their cost graph. Raises what `ask` raises, and `NoPlanError`."""
    limits = Arrangement(runtime, roles)
    found = first = ask(limits)
    if runtime.modules is None:
        return first, found
    axes = tuple(axis for axis, role in enumerate(roles) if role in MODULE_ROLES)
    ways: dict[str, Way | None] = {}
    while differ := differing(*chosen(found), axes):
        for pattern, copies in differ.items():
            ways[pattern] = None if pattern in ways else copies.most_common(1)[0][0]
        try:
            found = ask(both(limits, Alike(dict(ways), axes)) or limits)
        except NoPlanError:
            if not any(ways.values()):
                raise
            ways = dict.fromkeys(ways)
            found = ask(both(limits, Alike(dict(ways), axes)) or limits)
    return first, found
