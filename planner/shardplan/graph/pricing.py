"""The cost model a graph is priced with: collectives, local work and the moves made of them.

Other systems' models stand in for ours here: same graph, same solver, other prices.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.cluster.types import Cluster, Overlap
from shardplan.cost.alpa import AlpaCollectives, NoCompute
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.cost.hidet import HidetCollectives
from shardplan.cost.slapo import SlapoCollectives
from shardplan.cost.trtllm import TrtllmCollectives, TrtllmCompute, Wire
from shardplan.cost.types import CollectivePricer, ComputePricer, Floats
from shardplan.graph.tensors import MovePrices
from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.mesh import Mesh

NOTHING_HIDES = Overlap(weight_gather=0.0, grad_reduce=0.0, tp=0.0, a2a=0.0, p2p=0.0)


@dataclass(frozen=True)
class _Microseconds:
    """Prices without a unit, read as microseconds."""

    collectives: CollectivePricer

    def seconds(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: float) -> float:
        return 1e-6 * self.collectives.seconds(kind, axes, payload_bytes)

    def seconds_array(self, kind: CollectiveKind, axes: tuple[int, ...], payload_bytes: Floats) -> Floats:
        return 1e-6 * self.collectives.seconds_array(kind, axes, payload_bytes)


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
    def alpa(
        cls, mesh: Mesh, alpha: tuple[float, ...], beta: tuple[float, ...], gather_cost: float | None = None
    ) -> Pricing:
        """Alpa's cost model (see `shardplan.cost.alpa`), a cost of one being one microsecond of ours; nothing hides.

        Computation is free in it, so it goes with `recipes.alpa_products`: Alpa knows no replicated product.
        """
        collectives = AlpaCollectives(mesh.shape, alpha, beta, gather_cost)
        return cls.made(mesh, _Microseconds(collectives), NoCompute(), NOTHING_HIDES)

    @classmethod
    def slapo(cls, mesh: Mesh, *, element_bytes: int = 4, split_penalty: float = 0.0) -> Pricing:
        """Slapo's cost model (see `shardplan.cost.slapo`), an element being one microsecond of ours; nothing hides.

        Like Alpa's it goes with `recipes.alpa_products`.
        """
        collectives = SlapoCollectives(mesh.size, element_bytes, split_penalty)
        return cls.made(mesh, _Microseconds(collectives), NoCompute(), NOTHING_HIDES)

    @classmethod
    def hidet(cls, mesh: Mesh) -> Pricing:
        """Hidet's cost model (see `shardplan.cost.hidet`), a byte being one microsecond of ours; nothing hides."""
        return cls.made(mesh, _Microseconds(HidetCollectives(mesh.size)), NoCompute(), NOTHING_HIDES)

    @classmethod
    def trtllm(cls, mesh: Mesh, wires: tuple[Wire, ...], *, tflops: float, memory_gbps: float) -> Pricing:
        """TensorRT-LLM's cost model (see `shardplan.cost.trtllm`); nothing hides."""
        collectives = TrtllmCollectives(mesh.shape, wires)
        return cls.made(mesh, collectives, TrtllmCompute(tflops, memory_gbps), NOTHING_HIDES)

    @classmethod
    def made(cls, mesh: Mesh, collectives: CollectivePricer, compute: ComputePricer, overlap: Overlap) -> Pricing:
        """A cost model from its parts."""

        def seconds(collective: Collective, size_bytes: float) -> float:
            return collectives.seconds(collective.kind, collective.axes, float(collective.share) * size_bytes)

        return cls(collectives, compute, MovePrices(mesh, seconds, overlap))
