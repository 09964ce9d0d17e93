"""From roles of the mesh axes to the restriction of the choices to what a runtime can express with these roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from shardplan.graph.build import CostGraph, Join, Node
from shardplan.layout.placement import Placement
from shardplan.planning.reduction import Allowed, Mask
from shardplan.planning.runtimes import data_axis
from shardplan.planning.runtimes.axis_states import AxisMasks, moved_positions
from shardplan.planning.runtimes.boundaries import Boundaries
from shardplan.planning.runtimes.facts import facts_of
from shardplan.planning.runtimes.table import Roles, Runtime
from shardplan.planning.runtimes.tensor_axis import TensorAxis
from shardplan.planning.runtimes.trainer import trainer_limits

Pairing = Callable[[Join, int], Mask | None]


@dataclass
class Arrangement:
    """The restriction to what `runtime` can express if the mesh axes have these `roles`; computed once per
    cost graph."""

    runtime: Runtime
    roles: Roles
    _known: dict[int, tuple[CostGraph, Allowed]] = field(default_factory=dict)

    def __call__(self, built: CostGraph) -> Allowed:
        if id(built) not in self._known:
            self._known[id(built)] = built, self._allowed(built)
        return self._known[id(built)][1]

    def _allowed(self, built: CostGraph) -> Allowed:
        if self.runtime.is_trainer:
            return trainer_limits(self.roles, built)
        real = built.cluster.mesh.real_axes
        found: dict[Node | Join, Mask] = {}
        pairings: list[Pairing] = []
        together = _Together()
        for nodes, pairing in self._parts(built, real):
            for node, mask in nodes:
                found[node] = together(found.get(node), mask)
            pairings += [pairing] if pairing else []
        for join, position in moved_positions(built) if pairings else ():
            for pairing in pairings:
                limits = pairing(join, position)
                if limits is not None:
                    found[join] = together(found.get(join), limits)
        return found

    def _parts(
        self, built: CostGraph, real: Sequence[int]
    ) -> Iterator[tuple[Iterator[tuple[Node, Mask]], Pairing | None]]:
        """What each axis allows on its own, or what all of them allow together."""
        facts = facts_of(built)
        axes = {axis: AxisMasks(built, facts, axis) for axis in real}
        if "any" in self.roles:
            yield _unsegmented(built), None
            for on in axes.values():
                yield iter(()), partial(_cut_as_sums, on)
            return
        if set(self.roles) & {"dp", "cp", "tp"}:
            bounds = Boundaries(built, self.roles, axes)
            yield bounds.nodes(), bounds.pair
            return
        for axis, on in axes.items():
            role = self.roles[axis]
            if role in ("data", "shards"):
                yield data_axis.nodes(on, shards=role == "shards"), partial(data_axis.pair, on)
            else:
                assert self.runtime.modules is not None
                tensor = TensorAxis(on, self.runtime.modules)
                yield tensor.nodes(), tensor.pair


class _Together:
    """The intersection of two masks; one object for the same two masks, so that equal tables stay one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Mask, Mask, Mask]] = {}

    def __call__(self, one: Mask | None, other: Mask) -> Mask:
        if one is None:
            return other
        key = id(one), id(other)
        if key not in self._known:
            self._known[key] = one, other, np.asarray(one & other)
        return self._known[key][2]


def _unsegmented(built: CostGraph) -> Iterator[tuple[Node, Mask]]:
    """Nothing that the program stores has segmented shards: weights, inputs and outputs."""
    names = {p.tensor for p in built.model.parameters} | {*built.model.inputs, *built.model.outputs}
    for kind in ("kept", "updated"):
        for name, space in built.places[kind].items():
            if name in names:
                segmented = np.array([*(bool(s.segments) for s in space.kind.shards), False, False, False])
                yield (kind, name), np.asarray(~segmented[space.codes].any(axis=1))


def _cut_as_sums(on: AxisMasks, join: Join, position: int) -> Mask | None:
    """What is split is not read as partial sums, though that sends nothing: no sharding expresses this, and a compiler
    would gather one of the values that are added."""
    (kind, _), (other, _), _ = join
    if kind == "operator" or other == "updated":
        return None
    return on.pairs(join, position, _whole_or_cut, "whole or cut")


def _whole_or_cut(source: Placement, target: Placement) -> bool:
    return not (source.is_shard and target.kind == "P")
