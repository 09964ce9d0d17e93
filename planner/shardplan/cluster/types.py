"""The cluster for the planner, in bytes, floating-point operations and seconds; bandwidths per device, one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardplan.errors import Diagnostic
from shardplan.layout.mesh import Mesh

Topology = Literal["switch", "full_mesh", "torus", "pcie", "custom"]


@dataclass(frozen=True, slots=True)
class GemmEfficiency:
    """The share of the peak that a matrix product of local sizes m, n, k reaches: e * m/(m+m0) * n/(n+n0) * k/(k+k0).
    `sustained`: the share of that which a whole step keeps, as a device holds its highest clocks for a second and not
    for hours. `attention`: the efficiency of attention relative to plain products (None: 0.6), whose two products are
    narrow and wait for the softmax; on a device with `Device.attention` a factor of that (None: 1). `narrow`: share
    of their peak that products of 8 bits reach, None for the measured value of most devices; `grouped`: the
    efficiency of grouped products of many experts relative to plain products."""

    e: float = 0.75
    m0: float = 64.0
    n0: float = 64.0
    k0: float = 128.0
    sustained: float = 1.0
    attention: float | None = None
    narrow: float | None = None
    grouped: float = 1.0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. `peak_flops`: dtype name of the profile (`bf16`, `fp32`, `tf32` ...) -> dense FLOP/s.

    `attention`: size of a head -> share of the peak that fused attention reaches, forward and backward together, where
    every query sees many keys, empty where nobody measured it; with `attention_keys` keys it reaches half of that.
    """

    kind: str
    memory_bytes: int
    usable_fraction: float
    reserved_bytes: int
    hbm_bytes_per_s: float
    peak_flops: Mapping[str, float]
    allow_tf32: bool
    gemm: GemmEfficiency
    memory_efficiency: float
    launch_s: float
    attention: Mapping[int, float] = field(default_factory=dict)
    attention_keys: float = 0.0

    @property
    def usable_bytes(self) -> int:
        """The memory that a plan may use: memory * usable_fraction - reserved."""
        return int(self.memory_bytes * self.usable_fraction) - self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Level:
    """One kind of link (`up` inside a machine, `net` between machines), innermost first in `Cluster.levels`.

    `devices`: how many devices one unit of this level joins (8 for `up` of a DGX; 0 for "as many as the mesh has").
    `link_bytes_per_s`: per device; for `net` what one device can reach. `node_bytes_per_s`: of one whole unit below
    (NICs of a machine), 0 where every device has a link of its own. `eta`: collective kind, `default`, `partial` (some
    devices of a machine only) or `nvls` -> efficiency; `eta_by_ranks`: the same as kind -> {ranks: efficiency};
    `busbw`: collective kind -> {ranks: bytes per s}, an override. `share`: of the NICs; `None` for ranks / devices.
    """

    name: str
    devices: int
    topology: Topology
    link_bytes_per_s: float
    node_bytes_per_s: float = 0.0
    eta: Mapping[str, float] = field(default_factory=dict)
    eta_by_ranks: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    base_s: float = 0.0
    step_s: float = 0.0
    ramp_bytes: float = 0.0
    nvls: bool = False
    wrap: bool = False
    wrap_multiple: int = 0
    pair_bytes_per_s: float = 0.0
    share: float | None = None
    busbw: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    scale_loss: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overlap:
    """`p2p`: share of inter-stage sends that overlaps compute; `kappa`: slowdown of compute beside communication."""

    p2p: float = 0.9
    kappa: float = 1.1


@dataclass(frozen=True, slots=True)
class Coalesce:
    """`bucket_bytes`: size of a bucket of weights' gradients; 0: no buckets."""

    bucket_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Training:
    """What runs of trainers take other than the schedule of a plan, for predictions of given configurations alone.
    `host_s`, `host_collective_s`, `eager_s`: in which the host starts one operator, one collective, one kernel of a
    program that runs as it is written; `tp_exponent`: how host and
    device add up where ranks wait for each other within a microbatch, None for as on a single device; `loss_bytes`:
    memory traffic of the loss for every logit, `cut_loss_bytes` where ranks cut the vocabulary, None for the same;
    `loss_kernels`: operators that the host starts for the loss of a microbatch; `attention`: instead of that of
    `GemmEfficiency`, None for the same; `fsdp_kappa`, `fsdp_attention`, `fsdp_sustained`, `fsdp_memory`,
    `fsdp_grouped`, `fsdp_loss_bytes`, `fsdp_loss_memory`: where parameters are sharded, instead of `Overlap.kappa`,
    `attention`, `sustained`, `memory`, `grouped`, `loss_bytes` and `loss_memory`; `sustained`, `memory`: times
    `GemmEfficiency.sustained` and `Device.memory_efficiency`; `tp_forward`, `tp_backward`: share of the
    tensor-parallel traffic of forward and of backward that is hidden; `exchange`: the same of what experts' tokens
    take between devices; `narrow`, `grouped`: instead of those of `GemmEfficiency`; `reduces_beside`: gradients of
    whole weights are reduced beside backward, else after it; `partial_groups`: times what a reduction after
    backward takes in groups of several, but not all, devices of each of several machines; `sends`: share of what
    pipeline stages hand on that each of them waits for, None for what `Overlap.p2p` leaves of every border;
    `loss_memory`: bytes that the loss holds for every logit besides it and its gradient, and `loss_parallel` where
    the vocabulary is cut. A configuration says, and no profile: `exchanges_beside`, those exchanges run beside the
    compute of another microbatch; `exchanges_only`, nothing else is waited for, as neither the hidden state nor the
    sequence is cut; `eager`, operators are the kernels that `eager_kernels` counts."""

    host_s: float = 0.0
    host_collective_s: float = 0.0
    eager_s: float = 0.0
    tp_exponent: float | None = None
    loss_bytes: float = 0.0
    cut_loss_bytes: float | None = None
    loss_kernels: float = 0.0
    fsdp_kappa: float | None = None
    sustained: float = 1.0
    attention: float | None = None
    fsdp_attention: float | None = None
    fsdp_sustained: float | None = None
    fsdp_memory: float | None = None
    fsdp_loss_bytes: float | None = None
    memory: float = 1.0
    tp_forward: float = 0.0
    tp_backward: float = 0.0
    exchange: float = 0.0
    narrow: float | None = None
    grouped: float | None = None
    fsdp_grouped: float | None = None
    reduces_beside: bool = True
    partial_groups: float = 1.0
    sends: float | None = None
    loss_memory: float = 0.0
    loss_parallel: float = 0.0
    fsdp_loss_memory: float | None = None
    exchanges_beside: bool = False
    exchanges_only: bool = False
    eager: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured times of one collective on groups of `per_node` devices in each of `nodes` machines: (payload bytes as
    in `layout.Collective.share`, seconds), by rising payload."""

    collective: str
    nodes: int
    per_node: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A resolved profile with the mesh laid over it. `axis_levels[i]`: index into `levels` of mesh axis i's link.

    `resolved`: the profile as plain data with every default written out, in fixed key order; it goes into the plan and
    its digest identifies the cluster. `curves`: measured tables that beat the formula. `warnings`: what looks wrong
    about the profile or the mesh, to be shown to the user. `training`: what runs of trainers take besides; it is not
    `resolved`, as no plan depends on it. `spread`: how far measured times of a constant lie apart, by `compute`,
    `memory` or name of a level; it is not `resolved` either.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    mesh: Mesh
    axis_levels: tuple[int, ...]
    overlap: Overlap
    provenance: Mapping[str, object]
    resolved: Mapping[str, object]
    curves: tuple[Curve, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    coalesce: Coalesce = field(default_factory=Coalesce)
    training: Training = field(default_factory=Training, compare=False)
    spread: Mapping[str, float] = field(default_factory=dict, compare=False)
