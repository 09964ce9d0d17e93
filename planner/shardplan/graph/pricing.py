"""The cost model a graph is priced with: collectives, local work and the moves made of them.

Other systems' models stand in for ours here: same graph, same solver, other prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster, Overlap
from shardplan.cost.alpa import AlpaCollectives, NoCompute
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.cost.hidet import HidetCollectives
from shardplan.cost.named import CostModel
from shardplan.cost.slapo import SlapoCollectives
from shardplan.cost.trtllm import TrtllmCollectives, TrtllmCompute, Wire
from shardplan.cost.trtllm_devices import trtllm_device
from shardplan.cost.types import CollectivePricer, ComputePricer, Floats
from shardplan.errors import ShardplanError, error
from shardplan.graph.tensors import MovePrices
from shardplan.layout.collective import Collective, CollectiveKind
from shardplan.layout.mesh import Mesh

NOTHING_HIDES = Overlap(weight_gather=0.0, grad_reduce=0.0, tp=0.0, a2a=0.0, p2p=0.0)


_ONE_AXIS = frozenset({"slapo", "hidet"})


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
    """`moves` are made of `collectives`; `compute` prices what one device does itself. `optimizer`: the step of the
    optimizer is charged."""

    collectives: CollectivePricer
    compute: ComputePricer
    moves: MovePrices
    optimizer: bool = True

    @classmethod
    def of(cls, cluster: Cluster) -> Pricing:
        """Our own cost model of `cluster`."""
        collectives, compute = CollectiveModel(cluster), ComputeModel(cluster)
        return cls.made(cluster.mesh, collectives, compute, cluster.overlap, cluster.coalesce.bucket_bytes)

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
    def trtllm(cls, mesh: Mesh, wires: tuple[Wire, ...], *, tflops: Mapping[str, float], memory_gbps: float) -> Pricing:
        """TensorRT-LLM's cost model (see `shardplan.cost.trtllm`); nothing hides."""
        collectives = TrtllmCollectives(mesh.shape, wires)
        return cls.made(mesh, collectives, TrtllmCompute(tflops, memory_gbps), NOTHING_HIDES)

    @classmethod
    def named(cls, cost_model: CostModel, cluster: Cluster, element_bytes: int) -> Pricing:
        """The cost model of that name on `cluster`; `element_bytes`: of the model's floats, where elements are counted.

        Raises `ShardplanError` (`bad-cost-model`) for settings that do not suit the mesh. No optimizer step is charged
        by the models of others: they know none.
        """
        mesh = cluster.mesh
        if cost_model.is_ours:
            return cls.of(cluster)
        if cost_model.name in _ONE_AXIS and sum(size > 1 for size in mesh.shape) > 1:
            summary = f"the cost model '{cost_model.name}' knows one mesh axis, and the mesh is {mesh}"
            raise ShardplanError(error("bad-cost-model", summary, hint=f"plan on one axis: --mesh {mesh.size}"))
        if cost_model.name == "alpa":
            alpha, beta = _per_axis(cost_model, "alpha", mesh, [1.0]), _per_axis(cost_model, "beta", mesh, [1.0, 0.1])
            gather = cost_model.numbers("gather")
            made = cls.alpa(mesh, alpha, beta, gather[0] if gather else None)
        elif cost_model.name == "slapo":
            element, split = cost_model.numbers("element"), cost_model.numbers("split")
            width = int(element[0]) if element else element_bytes
            made = cls.slapo(mesh, element_bytes=width, split_penalty=split[0] if split else 0.0)
        elif cost_model.name == "hidet":
            made = cls.hidet(mesh)
        else:
            made = _of_trtllm(cost_model, cluster)
        return replace(made, optimizer=False)

    @classmethod
    def made(
        cls,
        mesh: Mesh,
        collectives: CollectivePricer,
        compute: ComputePricer,
        overlap: Overlap,
        bucket_bytes: float = 0.0,
    ) -> Pricing:
        """A cost model from its parts; `bucket_bytes`: see `shardplan.cost.coalesce`."""

        def seconds(collective: Collective, size_bytes: float) -> float:
            return collectives.seconds(collective.kind, collective.axes, float(collective.share) * size_bytes)

        return cls(collectives, compute, MovePrices(mesh, seconds, overlap, bucket_bytes=bucket_bytes))


def _per_axis(cost_model: CostModel, setting: str, mesh: Mesh, usual: Sequence[float]) -> tuple[float, ...]:
    """A setting with one number for every axis, or one for all; `usual` where it is not given, its last number for all
    further axes."""
    given = cost_model.numbers(setting)
    if len(given) in (1, len(mesh)):
        return given if len(given) > 1 else given * len(mesh)
    if given:
        summary = f"{setting}={cost_model.text(setting)} has {len(given)} numbers; the mesh {mesh} has {len(mesh)} axes"
        raise ShardplanError(error("bad-cost-model", summary, hint="give one number, or one for every axis"))
    return tuple(usual[min(axis, len(usual) - 1)] for axis in range(len(mesh)))


def _of_trtllm(cost_model: CostModel, cluster: Cluster) -> Pricing:
    """With the numbers of the profile, or of a device of TensorRT-LLM's own table."""
    if key := cost_model.text("cluster_key"):
        device = trtllm_device(key)
        inter, intra = Wire(device.inter_gbps, 10.0, in_network=True), Wire(device.intra_gbps, 10.0, device.reduces)
        wires = tuple(inter if level else intra for level in cluster.axis_levels)
        return Pricing.trtllm(cluster.mesh, wires, tflops=device.tflops(), memory_gbps=device.memory_gbps)
    links = [cluster.levels[level] for level in cluster.axis_levels]
    wires = tuple(Wire(link.link_bytes_per_s / 1e9, 1e6 * link.base_s, link.nvls) for link in links)
    tflops = {name: flops / 1e12 for name, flops in cluster.device.peak_flops.items()}
    return Pricing.trtllm(cluster.mesh, wires, tflops=tflops, memory_gbps=cluster.device.hbm_bytes_per_s / 1e9)
