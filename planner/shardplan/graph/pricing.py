"""The prices of a cost graph: of collectives, of local work, and of the moves made of collectives.

Other planners' cost models (`shardplan.cost.named`) can replace ours: same graph, same solver, other prices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.cost.named import CostModel
from shardplan.cost.occupancy import levels_of
from shardplan.cost.types import CollectivePricer, ComputePricer
from shardplan.graph.tensors import MovePrices
from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.mesh import Mesh
from shardplan.schedule.links import Levels


def _one_link(axes: Sequence[int]) -> Levels:
    """Level function for a cluster whose mesh axes all run over one link."""
    return frozenset({"link"}) if axes else frozenset()


@dataclass(frozen=True)
class _Microseconds:
    """Prices without a unit, read as microseconds."""

    collectives: CollectivePricer

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        return 1e-6 * self.collectives.seconds(kind, axes, payload_bytes)


@dataclass(frozen=True)
class Pricing:
    """`moves` are made of `collectives`; `compute` prices local work. `optimizer`: whether the optimizer's step has a
    price."""

    collectives: CollectivePricer
    compute: ComputePricer
    moves: MovePrices
    optimizer: bool = True

    @classmethod
    def of(cls, cluster: Cluster) -> Pricing:
        """Our own cost model of `cluster`."""
        collectives, compute = CollectiveModel(cluster), ComputeModel(cluster)

        def levels(axes: Sequence[int]) -> Levels:
            return frozenset(levels_of(cluster, axes))

        return cls.made(cluster.mesh, collectives, compute, levels, cluster.coalesce.bucket_bytes)

    @classmethod
    def named(cls, cost_model: CostModel, cluster: Cluster, element_bytes: int) -> Pricing:
        """The cost model of that name on `cluster`; `element_bytes`: of the model's floats, where elements are counted.

        Another planner's model hides no communication, and has no price for the optimizer step. Raises `ShardplanError`
        (`bad-cost-model`) for settings that do not suit the mesh.
        """
        if cost_model.is_ours:
            return cls.of(cluster)
        collectives, compute = cost_model.pricers(cluster, element_bytes)
        priced = _Microseconds(collectives) if cost_model.unit else collectives
        return replace(cls.made(cluster.mesh, priced, compute), optimizer=False)

    @classmethod
    def made(
        cls,
        mesh: Mesh,
        collectives: CollectivePricer,
        compute: ComputePricer,
        levels_of: Callable[[Sequence[int]], Levels] = _one_link,
        bucket_bytes: float = 0.0,
    ) -> Pricing:
        """A cost model from its parts. `levels_of(axes)`: the link levels that a collective over these axes occupies;
        `bucket_bytes`: see `shardplan.cost.coalesce`."""

        def seconds(collective: Collective, size_bytes: float) -> float:
            return collectives.seconds(collective.kind, collective.axes, float(collective.share) * size_bytes)

        return cls(collectives, compute, MovePrices(mesh, seconds, levels_of, bucket_bytes))
