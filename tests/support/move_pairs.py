"""Moves between any two layouts: priced as in plans, carried out on all devices, values and bytes compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from forced_plans import cluster_of
from mesh_values import shard

from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.moves import move_space
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.lower import Step, lower, wire_share
from shardplan.layout.placement import P, S
from shardplan.layout.table import transition_table
from shardplan.program.collectives import run, unshard

MESHES = ("2x2", "2x3", "2x2x2")
SMALL, LARGE = 1 << 10, 1 << 28
"""Bytes of a tensor: latency decides, bandwidth decides; so other sequences of collectives are cheapest."""


class Moves:
    """All moves of tensors of one rank on one mesh, at the prices of the cluster that plans of tests are made for.

    `collectives`, `moved_bytes`: how many were carried out so far, and what all devices received in them."""

    def __init__(self, mesh: str, rank: int, size_bytes: int, reduction: str = "sum") -> None:
        cluster = cluster_of(mesh)
        self.mesh, self.size_bytes, self.reduction = cluster.mesh, size_bytes, reduction
        self.shards = (*(S(dim) for dim in range(rank)), P(reduction))
        self.seconds = CollectiveModel(cluster).seconds
        self.array = np.random.default_rng(rank).integers(-50, 50, (self.mesh.size,) * rank).astype(np.float64)
        self.held = cache(lambda layout: shard(self.array, layout, self.mesh))
        self.told = self._told(rank) if reduction == "sum" else None
        self.collectives = self.moved_bytes = 0

    def price(self, collective: Collective) -> float:
        return self.seconds(collective.kind, collective.axes, float(collective.share) * self.size_bytes)

    @property
    def layouts(self) -> Sequence[Layout]:
        return transition_table(self.mesh, self.shards).states

    def _told(self, rank: int) -> dict[tuple[Layout, Layout], float]:
        """What the solver is told that every move costs."""
        space = move_space(self.mesh, rank)
        legal = space.legal(self.array.shape, self.shards[:-1])
        seconds = space.prices(legal, self.size_bytes, lambda collective, _: self.price(collective))
        return {(u, v): seconds[i, j] for i, u in enumerate(space.states) for j, v in enumerate(space.states)}

    def exists(self, source: Layout, target: Layout) -> bool:
        """Whether there is such a move: nobody can make partial maxima of a value that is whole on an axis."""
        arises = [axis for axis, p in enumerate(target.placements) if p.kind == "P" != source.placements[axis].kind]
        return self.reduction == "sum" or not arises

    def fault(self, source: Layout, target: Layout) -> str:
        """What is wrong with the move from `source` to `target`; empty if nothing is."""
        try:
            steps = lower(self.mesh, source, target, self.price, shards=self.shards)
        except ValueError as refusal:
            return str(refusal) if self.exists(source, target) else ""
        taken = sum(self.price(step.collective) for step in steps)
        if self.told and not np.isclose(taken, self.told[source, target], rtol=1e-9, atol=1e-14):
            return f"its collectives take {taken} s, the solver was told {self.told[source, target]} s"
        try:
            return self._carried_out(source, target, steps)
        except ValueError as problem:
            return str(problem)

    def _carried_out(self, source: Layout, target: Layout, steps: Sequence[Step]) -> str:
        value, layout = self.held(source), source
        for step in steps:
            received = [0] * self.mesh.size
            value = run(value, layout, step.collective, step.target, self.mesh, received=received)
            priced, kind = int(wire_share(step.collective, self.mesh) * self.array.nbytes), step.collective.kind
            if max(received) != priced or (kind != "permute" and min(received) != priced):
                return f"{kind} over {step.collective.axes} moved {received} bytes, priced are {priced} per device"
            self.collectives += 1
            self.moved_bytes += sum(received)
            layout = step.target
        if layout != target:
            return f"it ends in {layout}"
        return "" if self._holds(value, target) else "its elements differ"

    def _holds(self, value: Sequence[np.ndarray], target: Layout) -> bool:
        if any(p.kind == "P" for p in target.placements):
            return np.array_equal(unshard(value, target, self.mesh), self.array)
        return all(map(np.array_equal, value, self.held(target)))
