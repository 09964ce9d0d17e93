"""The cost models of other planners by name, with their settings: the provider that `shardplan.cost.named` asks.

| name   | a cost is in | settings                                                                                  |
|--------|--------------|-------------------------------------------------------------------------------------------|
| alpa   | its own unit | `alpha`, `beta`: per mesh axis, `1x0.1`; `gather`: what any all-gather costs              |
| slapo  | elements     | `split`: what keeping one's piece costs, 1 in its last version; `element`: bytes of one   |
| hidet  | bytes        |                                                                                           |
| trtllm | seconds      | `cluster_key`: a device of TensorRT-LLM's own table instead of the profile's              |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardplan.cluster.types import Cluster
from shardplan.cost.named import CostModel, CostModelKind
from shardplan.cost.types import CollectivePricer, ComputePricer
from shardplan.errors import ShardplanError, error
from shardplan.extras.peers import restrictions
from shardplan.extras.peers.alpa import AlpaCollectives, NoCompute
from shardplan.extras.peers.hidet import HidetCollectives
from shardplan.extras.peers.slapo import SlapoCollectives
from shardplan.extras.peers.trtllm import TrtllmCollectives, TrtllmCompute, Wire
from shardplan.extras.peers.trtllm_devices import trtllm_device
from shardplan.layout.mesh import Mesh
from shardplan.units import GIGA, TERA, US_PER_S

_LATENCY_US: Final = 10.0
"""Of every link in TensorRT-LLM's own table."""
Prices = tuple[CollectivePricer, ComputePricer]


def _alpa(asked: CostModel, cluster: Cluster, element_bytes: int) -> Prices:  # noqa: ARG001
    mesh, gather = cluster.mesh, asked.numbers("gather")
    alpha, beta = _per_axis(asked, "alpha", mesh, [1.0]), _per_axis(asked, "beta", mesh, [1.0, 0.1])
    return AlpaCollectives(mesh.shape, alpha, beta, gather[0] if gather else None), NoCompute()


def _slapo(asked: CostModel, cluster: Cluster, element_bytes: int) -> Prices:
    mesh, element, split = _one_axis(asked, cluster.mesh), asked.numbers("element"), asked.numbers("split")
    width = int(element[0]) if element else element_bytes
    return SlapoCollectives(mesh.size, width, split[0] if split else 0.0), NoCompute()


def _hidet(asked: CostModel, cluster: Cluster, element_bytes: int) -> Prices:  # noqa: ARG001
    return HidetCollectives(_one_axis(asked, cluster.mesh).size), NoCompute()


def _trtllm(asked: CostModel, cluster: Cluster, element_bytes: int) -> Prices:  # noqa: ARG001
    """With the numbers of the profile, or of a device of TensorRT-LLM's own table."""
    if key := asked.text("cluster_key"):
        device = trtllm_device(key)
        inter = Wire(device.inter_gbps, _LATENCY_US, in_network=True)
        intra = Wire(device.intra_gbps, _LATENCY_US, device.reduces)
        wires = tuple(inter if level else intra for level in cluster.axis_levels)
        return TrtllmCollectives(cluster.mesh.shape, wires), TrtllmCompute(device.tflops(), device.memory_gbps)
    links = [cluster.levels[level] for level in cluster.axis_levels]
    wires = tuple(Wire(link.link_bytes_per_s / GIGA, US_PER_S * link.base_s, link.nvls) for link in links)
    tflops = {name: flops / TERA for name, flops in cluster.device.peak_flops.items()}
    compute = TrtllmCompute(tflops, cluster.device.hbm_bytes_per_s / GIGA)
    return TrtllmCollectives(cluster.mesh.shape, wires), compute


COST_MODELS: Final = {
    "alpa": CostModelKind(_alpa, ("alpha", "beta", "gather"), unit="units", restrict=restrictions.alpa),
    "slapo": CostModelKind(_slapo, ("element", "split"), unit="elements", restrict=restrictions.slapo),
    "hidet": CostModelKind(_hidet, unit="bytes", restrict=restrictions.hidet),
    "trtllm": CostModelKind(_trtllm, ("cluster_key",), texts=frozenset({"cluster_key"})),
}


def _one_axis(asked: CostModel, mesh: Mesh) -> Mesh:
    """`mesh`, which must have one axis. Raises `ShardplanError` (`bad-cost-model`)."""
    if sum(size > 1 for size in mesh.shape) > 1:
        summary = f"the cost model '{asked.name}' knows one mesh axis, and the mesh is {mesh}"
        raise ShardplanError(error("bad-cost-model", summary, hint=f"plan on one axis: --mesh {mesh.size}"))
    return mesh


def _per_axis(asked: CostModel, setting: str, mesh: Mesh, usual: Sequence[float]) -> tuple[float, ...]:
    """A setting with one number for every axis, or one for all; `usual` where it is not given, its last number for all
    further axes."""
    given = asked.numbers(setting)
    if len(given) in (1, len(mesh)):
        return given if len(given) > 1 else given * len(mesh)
    if given:
        summary = f"{setting}={asked.text(setting)} has {len(given)} numbers; the mesh {mesh} has {len(mesh)} axes"
        raise ShardplanError(error("bad-cost-model", summary, hint="give one number, or one for every axis"))
    return tuple(usual[min(axis, len(usual) - 1)] for axis in range(len(mesh)))
