"""The step of a trainer's run beyond the schedule of its plan: the constants `training` of a cluster profile.

A plan is compared with plans, so overheads that all of them share do not matter to it. A prediction of a run is
compared with a clock. The profile states what a trainer adds to the schedule, each constant with its source
(docs/fidelity.md); only `price` uses them:

    step = (device^p + host^p)^(1/p) + reduction + optimizer
    device      the schedule's phases, less what of tensor parallelism's traffic runs in pieces beside products
                (`tp_forward`, `tp_backward`), and the loss
    host        with `--eager` eager_us for every kernel of `eager_kernels`, and the device moves their bytes; else
                host_us for every kernel of those phases and for `loss_kernels` a microbatch, host_collective_us for
                every collective
    reduction   of gradients, where a trainer begins it after backward (`reduces_beside: false`), times
                `partial_groups` where a group has several, but not all, devices of each of several machines

The host runs ahead of the device, within a microbatch and from one to the next, so the slower of the two counts; if
both take about as long, each sometimes waits for the other (`p`: `_TOGETHER`). Where ranks meet in collectives within a
microbatch, all wait for the last host, so host and device add up sooner (`tp_exponent`). Stages of a pipeline wait for
their sends if the profile says so (`sends`): each of them meets each of its neighbours once for every microbatch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from shardplan.cluster.keys import LEAST_SHARE
from shardplan.cluster.mesh import cluster_from_resolved
from shardplan.cluster.types import Cluster, Training
from shardplan.errors import ShardplanError, error
from shardplan.graph.precision import Narrow
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.result import PipelineResult
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.tied_weights import waited_ns
from shardplan.plan.step.phases import Phase
from shardplan.plan.step.schedule import StepSchedule
from shardplan.plan.types import Move, Plan, TensorDecision
from shardplan.plan.views.timeline import step_schedule
from shardplan.study.eager_kernels import unfused_of
from shardplan.units import NS_PER_S

_TOGETHER = 3.0
"""How host and device add up: 1 would be one after the other, infinity the slower of the two. Fitted to 720 steps of
one machine of A100, whose mean error is 8.2 % with the slower alone, and 6.4 with 3 (5: 7.0, 8: 7.6)."""
_LOSS_PARALLEL = 4.0
"""Bytes for each logit that torch's cross entropy holds more where the vocabulary is cut: exponentials of a rank's part
beside log-probabilities, gradient and their sum, 16 in fp32 in place of 12 (`distributed/tensor/parallel/loss.py`)."""
_FUSED_LOSS_BYTES = 12.0
"""Memory traffic for each logit of a loss that keeps 16 bits, counted: two passes for maximum and sum, one that reads
and one that writes the gradient, and the copy of what is shifted by a token."""
_EXCHANGE = "all-to-all"
"""What experts' tokens are sent by."""
_NOTHING = Narrow()


def as_trained(cluster: Cluster, *, sharded: bool = False) -> Cluster:
    """The cluster with the efficiencies that trainers reach on it; unchanged if the profile has none. `sharded`: those
    of FSDP, which gathers weights throughout, else of Megatron-LM."""
    training = cluster.training
    if training == Training():
        return cluster
    resolved: dict[str, Any] = dict(cluster.resolved)
    device, gemm = dict(resolved["device"]), dict(resolved["device"]["gemm"])
    kept = training.fsdp_sustained if sharded and training.fsdp_sustained is not None else training.sustained
    kept *= gemm.get("sustained", 1.0)
    gemm |= {"sustained": _share(kept), "e": min(1.0, cluster.device.gemm.e * max(1.0, kept))}
    attention = training.fsdp_attention if sharded and training.fsdp_attention is not None else training.attention
    grouped = training.fsdp_grouped if sharded and training.fsdp_grouped is not None else training.grouped
    given = {"attention": attention, "narrow": training.narrow, "grouped": grouped}
    gemm |= {name: value for name, value in given.items() if value is not None}
    memory = training.fsdp_memory if sharded and training.fsdp_memory is not None else training.memory
    device |= {"gemm": gemm, "mem_efficiency": _share(device["mem_efficiency"] * memory)}
    overlap = dict(resolved["overlap"]) | ({"kappa": training.fsdp_kappa} if sharded and training.fsdp_kappa else {})
    told = cluster_from_resolved({**resolved, "device": device, "overlap": overlap})
    held, cut = training.loss_memory, 0.0
    if sharded and training.fsdp_loss_memory is not None:
        held, cut = training.fsdp_loss_memory, _LOSS_PARALLEL
    return replace(told, training=replace(training, loss_memory=held, loss_parallel=cut))


def _share(product: float) -> float:
    """A product of shares as one that a profile may have."""
    return min(1.0, max(LEAST_SHARE, product))


def with_fused_loss(cluster: Cluster) -> Cluster:
    """The cluster with a loss that holds logits in the model's type alone: a fused or compiled cross entropy."""
    training = cluster.training
    by_logit = min(training.loss_bytes, _FUSED_LOSS_BYTES)
    fused = replace(training, loss_bytes=by_logit, fsdp_loss_bytes=None, loss_memory=0.0, fsdp_loss_memory=None)
    return replace(cluster, training=fused)


def running_eagerly(cluster: Cluster) -> Cluster:
    """The cluster for a program that runs as it is written, kernel by kernel. Raises `ShardplanError` (`no-eager`)
    where the profile does not say how long the host takes for one."""
    training = cluster.training
    if not training.eager_s:
        summary = f"profile '{cluster.name}' does not say how long the host takes to start a kernel"
        hint = "leave out --eager, or add training.eager_us to a profile"
        raise ShardplanError(error("no-eager", summary, hint=hint))
    return replace(cluster, training=replace(training, eager=True))


def exchanging_beside(cluster: Cluster) -> Cluster:
    """The cluster with exchanges of experts' tokens beside the compute of another microbatch (Megatron-Core's
    `overlap_moe_expert_parallel_comm`), which they slow down as gathers of weights do."""
    return replace(cluster, training=replace(cluster.training, exchanges_beside=True))


def as_run(
    plan: Plan,
    cluster: Cluster,
    *,
    recomputed: float = 0.0,
    loss: bool = True,
    sharded: bool = False,
    narrow: Narrow = _NOTHING,
) -> Plan:
    """`plan` with the step of a trainer on `cluster`: `communication_ns` is the waiting for links, and the rest of
    `step_ns` beside that and `compute_ns` is the waiting for the host. Memory is the plan's.

    `recomputed`: share of forward that is recomputed in backward; `loss`: the model ends in this plan, which is that of
    all or of a stage of a pipeline; `sharded`: parameters are sharded (FSDP), whose gradients every trainer
    reduce-scatters beside backward; `narrow`: what is gathered in 8 bits instead of 16.
    """
    training = cluster.training
    if training == Training() or "cost_model" in plan.model:
        return plan
    plan = replace(plan, moves=tuple(_in_8_bits(move, narrow) for move in plan.moves))
    waits = [not (training.reduces_beside or sharded) and _is_reduction(move) for move in plan.moves]
    late_ns, summary = _reduced_late(itertools.compress(plan.moves, waits), cluster), plan.summary
    beside = tuple(move for move, late in zip(plan.moves, waits, strict=True) if not late)
    scheduled = step_schedule(replace(plan, moves=beside))
    alone_ns = round(scheduled.seconds * NS_PER_S)
    hidden_ns = round(hidden_s(scheduled, cluster, recomputed=recomputed, sharded=sharded) * NS_PER_S)
    hidden_ns = max(0, min(hidden_ns, alone_ns - summary.compute_ns))
    moved = _by_logit(plan, training, sharded=sharded) * _logits(plan) if loss else 0.0
    if training.eager:
        kernels, unfused = (_microbatches(plan) * each for each in unfused_of(plan, recomputed))
        moved += unfused
    own_ns = round(moved / (cluster.device.hbm_bytes_per_s * cluster.device.memory_efficiency) * NS_PER_S)
    device_s = sum(phase.count * ran.seconds for phase, ran in scheduled.phases_ran() if phase.name != "update")
    device_ns = round(device_s * NS_PER_S) - hidden_ns + own_ns
    host_s = sum(phase.count * _started(phase, training) for phase in scheduled.phases)
    if training.eager:
        host_s += kernels * training.eager_s
    if loss and not sharded:
        host_s += _microbatches(plan) * training.loss_kernels * training.host_s
    host_ns = round(host_s * NS_PER_S)
    power = _TOGETHER if sharded or not _meets(scheduled) else training.tp_exponent or _TOGETHER
    longer_ns = max(device_ns, host_ns, 1)  # powers of what is at most 1 do not overflow
    sum_of_powers = (device_ns / longer_ns) ** power + (host_ns / longer_ns) ** power
    waited_ns = round(longer_ns * sum_of_powers ** (1 / power)) - device_ns
    step_ns = alone_ns - hidden_ns + own_ns + late_ns + waited_ns
    bound_ns = min(summary.bound_ns, step_ns)
    changed = replace(
        summary,
        step_ns=step_ns,
        bound_ns=bound_ns,
        gap=1.0 - bound_ns / step_ns if step_ns else 0.0,
        objective_ns=step_ns,
        compute_ns=summary.compute_ns + own_ns,
        communication_ns=alone_ns - summary.compute_ns - hidden_ns + late_ns,
        step_bound_ns=min(summary.step_bound_ns, step_ns),
    )
    return replace(plan, summary=changed)


def with_sends(found: PipelineResult, transfers: Transfers, schedule: Schedule, microbatches: int) -> PipelineResult:
    """`found` with the step of a trainer whose stages wait for the share `sends` of their sends and receives.

    After a forward, a stage sends its value and receives a gradient, both at once; after a backward it does the same
    with the stage before. So it waits at each of its borders once for every microbatch: an inner stage twice, the first
    and the last once, and stages wait at the same moments.
    """
    share = transfers.cluster.training.sends
    if share is None or not found.borders:
        return found
    handed = []
    ends = zip(itertools.pairwise(found.parts), found.borders, found.sizes, strict=True)
    for (mine, theirs), (source, target), (value, gradient) in ends:
        there, back = transfers.send_receive(mine, theirs, target, value), 0
        if gradient:
            back = transfers.send_receive(theirs, mine, source, gradient).time_ns
        handed.append(max(there.time_ns, back))
    waits = [before + after for before, after in itertools.pairwise([0, *handed, 0])]
    costs = [plan.summary.step_ns + share * microbatches * wait for plan, wait in zip(found.plans, waits, strict=True)]
    stages = len(costs) // schedule.chunks
    step_ns = schedule.step([math.fsum(costs[place::stages]) for place in range(stages)], microbatches)
    step_ns += waited_ns(found.tied)
    return replace(found, step_ns=step_ns, bound_ns=min(found.bound_ns, step_ns))


def _reduced_late(moves: Iterable[Move], cluster: Cluster) -> int:
    """Nanoseconds per step of reductions that wait for the end of backward. A trainer sums a gradient over all of its
    ranks at once, also where the plan does so in several moves."""
    late, summed = list(moves), dict[str, frozenset[int]]()
    for move in late:
        summed[move.tensor] = summed.get(move.tensor, frozenset()) | _summed_over(move)
    times = cluster.training.partial_groups
    return sum(round(move.time_ns * (times if _is_partial(summed[move.tensor], cluster) else 1)) for move in late)


def _summed_over(move: Move) -> frozenset[int]:
    """Axes over which a move sums a gradient."""
    ends = zip(move.source.placements, move.target.placements, strict=True)
    return frozenset(axis for axis, (source, target) in enumerate(ends) if source.kind == "P" != target.kind)


def _is_partial(axes: Collection[int], cluster: Cluster) -> bool:
    """Whether ranks along `axes` are several, but not all, devices of each of several machines.

    Rings of such a group enter a machine by the card beside one of its devices and leave it from another device, which
    is not beside that card: through the host, as long as NCCL keeps to one card and has no PXN (before 2.12).
    """
    ways = [cluster.mesh.shape[axis] for axis in sorted(axes) if cluster.axis_levels[axis] == 0]
    outside = any(cluster.axis_levels[axis] > 0 and cluster.mesh.shape[axis] > 1 for axis in axes)
    own = zip(cluster.mesh.shape, cluster.axis_levels, strict=True)
    machine = cluster.levels[0].devices or math.prod(size for size, level in own if level == 0)
    return outside and 1 < math.prod(ways) < machine


def _in_8_bits(move: Move, narrow: Narrow) -> Move:
    """A move whose gathers take half the time because the tensor is cast before: weights and activations that narrow
    products read, in forward and again in backward, and gradients of their results. Sums keep their type."""
    is_gradient = move.phase == "backward" and not move.regather
    if move.kind == "deferred" or move.tensor not in (narrow.made if is_gradient else narrow.read):
        return move
    steps = [
        replace(step, time_ns=step.time_ns // 2) if step.collective.kind == "all_gather" else step
        for step in move.steps
    ]
    return replace(move, steps=tuple(steps))


def _is_reduction(move: Move) -> bool:
    """Whether it reduces a gradient for the optimizer."""
    return move.kind == "deferred" and move.phase == "backward"


def _meets(scheduled: StepSchedule) -> bool:
    """Whether ranks wait for each other within a microbatch: activations or their gradients are sent."""
    return any(item.action == "blocking" for phase in scheduled.phases for item in phase.program)


def _by_logit(plan: Plan, training: Training, *, sharded: bool) -> float:
    """Memory traffic of the loss for every logit, bytes."""
    if sharded and training.fsdp_loss_bytes is not None:
        return training.fsdp_loss_bytes
    cut = training.cut_loss_bytes
    return cut if cut is not None and not sharded and _cuts_vocabulary(plan) else training.loss_bytes


def _logits(plan: Plan) -> float:
    """Elements of all outputs of a step on one device: what the loss reads."""
    outputs = _outputs(plan)
    cut = [[axis for axis, each in enumerate(tensor.layout.placements) if each.is_shard] for tensor in outputs]
    return sum(math.prod(tensor.shape) / plan.mesh.ways(axes) for tensor, axes in zip(outputs, cut, strict=True))


def loss_memory_bytes(plan: Plan, training: Training) -> int:
    """The memory of one microbatch's loss beside the logits: their gradient, and the logits in fp32."""
    gradient = sum(tensor.bytes_per_device for tensor in _outputs(plan))
    by_logit = training.loss_memory + (training.loss_parallel if _cuts_vocabulary(plan) else 0.0)
    return gradient + round(by_logit * _logits(plan) / _microbatches(plan))


def _cuts_vocabulary(plan: Plan) -> bool:
    """Whether the last dim of an output is sharded."""
    return any(
        each.is_shard and each.dim == len(tensor.shape) - 1
        for tensor in _outputs(plan)
        for each in tensor.layout.placements
    )


def _outputs(plan: Plan) -> list[TensorDecision]:
    return [tensor for tensor in plan.tensors if tensor.role == "output"]


def _microbatches(plan: Plan) -> int:
    return int(str(plan.model.get("microbatches", 1)))


def _started(phase: Phase, training: Training) -> float:
    """Seconds in which the host launches the kernels and collectives of a phase; those of the optimizer are few and
    fused."""
    if phase.name == "update":
        return 0.0
    kernels = sum(item.action == "compute" and item.seconds > 0 for item in phase.program)
    collectives = sum(item.action in ("blocking", "issue") for item in phase.program)
    kernels = 0 if training.eager else kernels
    return kernels * training.host_s + collectives * training.host_collective_s


def hidden_s(scheduled: StepSchedule, cluster: Cluster, *, recomputed: float, sharded: bool) -> float:
    """Seconds per step that blocking traffic spends beside compute. The traffic of a recomputed forward overlaps in
    backward as in forward. FSDP's tensor parallelism (DTensor, without `async_tp`) waits for all that it sends. Of a
    second of exchanges beside the compute of another microbatch, forward or backward, 1 / kappa is hidden."""
    training = cluster.training
    only = training.exchanges_only
    again = max((_in_pieces(phase, only) for phase in scheduled.phases if "forward" in phase.name), default=0.0)
    found = waiting = computed = 0.0
    for phase in scheduled.phases:
        sent, exchanged = _in_pieces(phase, only), _exchanged(phase, only)
        forward = sent if "forward" in phase.name else min(sent, recomputed * again)
        pieces = 0.0 if sharded else training.tp_forward * forward + training.tp_backward * (sent - forward)
        sent_once = training.exchange * exchanged
        found += phase.count * (pieces + sent_once)
        waiting += phase.count * (exchanged - sent_once)
        computed += phase.count * sum(item.seconds for item in phase.program if item.action == "compute")
    return found + min(waiting / cluster.overlap.kappa, computed) if training.exchanges_beside else found


def _in_pieces(phase: Phase, only: bool) -> float:
    """Seconds of communication that can run in pieces beside a product: all except exchanges of experts' tokens."""
    blocking = (item for item in phase.program if item.action == "blocking")
    return 0.0 if only else sum(item.seconds for item in blocking if _EXCHANGE not in item.name)


def _exchanged(phase: Phase, only: bool) -> float:
    """Seconds of exchanges. If nothing else is sent (`only`), a gather inside of a machine followed by an exchange
    between machines, as hierarchical dispatchers do it, counts too."""
    blocking = (item for item in phase.program if item.action == "blocking")
    return sum(item.seconds for item in blocking if only or _EXCHANGE in item.name)
