"""The cost model a graph is priced with: collectives, local work and the moves made of them.

Other systems' models stand in for ours here: same graph, same solver, other prices.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.cluster.types import Cluster, Overlap
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.cost.types import CollectivePricer, ComputePricer
from shardplan.graph.tensors import MovePrices
from shardplan.layout.collective import Collective
from shardplan.layout.mesh import Mesh


@dataclass(frozen=True)
class Pricing:
    """`moves` are made of `collectives`; `compute` prices what one device does itself."""

    collectives: CollectivePricer
    compute: ComputePricer
    moves: MovePrices

    @classmethod
    def of(cls, cluster: Cluster) -> Pricing:
        """Our own cost model of `cluster`."""
        return cls.made(cluster.mesh, CollectiveModel(cluster), ComputeModel(cluster), cluster.overlap)

    @classmethod
    def made(cls, mesh: Mesh, collectives: CollectivePricer, compute: ComputePricer, overlap: Overlap) -> Pricing:
        """A cost model from its parts."""

        def seconds(collective: Collective, size_bytes: float) -> float:
            return collectives.seconds(collective.kind, collective.axes, float(collective.share) * size_bytes)

        return cls(collectives, compute, MovePrices(mesh, seconds, overlap))
