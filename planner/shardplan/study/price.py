"""Memory and time of one given parallel configuration, as trainers are configured.

The terms of Megatron and FSDP (`shardplan.planning.parallelism`) become restrictions of the choices; the solver decides
what they leave open, with the prices of every other plan. The stages of a pipeline are alike except for the first and
the last: three are planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.perturb import all_constants, perturbed
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.precision import Narrow, PrecisionName, check_peak, narrow_tensors
from shardplan.graph.recomputed_layers import recomputed_share
from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.models import is_config
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, chain_at, part_of
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.plan import PipelineRequest, plan_of
from shardplan.pipeline.result import assemble_result
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.types import Memory, Plan
from shardplan.planning import Planner
from shardplan.planning.instance import MOST_AXES, MOST_WHOLE
from shardplan.planning.parallel_layouts import LeftOpen
from shardplan.planning.parallelism import (
    CONTEXT,
    DATA,
    EXPERT,
    Parallelism,
    axes_of,
    bad,
    check_model,
    hidden_of,
    mesh_text,
    microbatches_of,
    restriction,
    rows_of,
)
from shardplan.planning.reduction import Restrict
from shardplan.planning.standing import OnProgress, Turn
from shardplan.request import Request
from shardplan.rules import model_rules
from shardplan.study.instance import DESCRIBED, load_model
from shardplan.study.model_chunks import chunk_starts
from shardplan.study.racks import as_filled
from shardplan.study.recompute import recompute_in
from shardplan.study.run_memory import accumulating_in_fp32, as_held
from shardplan.study.sensitivity import factors_of, spread_of
from shardplan.study.trainer_step import (
    as_run,
    as_trained,
    exchanging_beside,
    loss_memory_bytes,
    running_eagerly,
    with_fused_loss,
    with_sends,
)

FLAT = (CONTEXT, EXPERT, DATA)
"""Kinds of ranks over which Megatron cuts the flat buffers of its distributed optimizer."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a configuration fixes on a mesh with axes of these `kinds`. `zero`: within a step; `sharded`: parameters
    are."""

    kinds: tuple[str, ...]
    restrict: Restrict
    zero: int
    sharded: bool

    @property
    def flat(self) -> tuple[int, ...]:
        """Axes over which the optimizer's state is sharded as flat buffers."""
        return tuple(place for place, kind in enumerate(self.kinds) if kind in FLAT) if self.zero == 1 else ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Parts of a step: `bubble_ns` is the time in which a stage of a pipeline waits for others, including sends between
    them; `host_ns` that in which its device waits for the host to launch kernels."""

    compute_ns: int
    exposed_ns: int
    bubble_ns: int
    host_ns: int = 0


@dataclass(frozen=True, slots=True)
class PricedConfiguration:
    """`plan`: of the configuration, the fastest that fits, or the fastest if none fits; of a pipeline it has only times
    and memory and cannot be written, since one stage stands for several. `memory`: by stage, of its fullest device."""

    parallelism: Parallelism
    plan: Plan
    memory: tuple[Memory, ...]
    limit_bytes: int
    microbatches: int
    usable_fraction: float
    """Share of an allocator's reserved memory that is held at a peak; the rest is fragmentation."""

    @property
    def reserved_bytes(self) -> int:
        """The memory that an allocator reserves for the peak, which is what trainers report."""
        return round(self.peak.total / self.usable_fraction)

    @property
    def peak(self) -> Memory:
        """Of the fullest stage."""
        return max(self.memory, key=lambda memory: memory.total)

    @property
    def spent(self) -> StepTimes:
        """The parts of the step; of a pipeline, those of the slowest stage."""
        summary, pipeline = self.plan.summary, self.plan.pipeline
        if pipeline is None:
            host_ns = summary.step_ns - summary.compute_ns - summary.communication_ns
            return StepTimes(summary.compute_ns, summary.communication_ns, 0, host_ns)
        count = self.parallelism.pipeline
        parts = [stage.plan.summary for stage in pipeline.stages]
        slowest = max(
            (parts[place::count] for place in range(count)), key=lambda own: sum(each.step_ns for each in own)
        )
        compute_ns, sent_ns, own_ns = (
            sum(getattr(each, name) for each in slowest) for name in ("compute_ns", "communication_ns", "step_ns")
        )
        return StepTimes(compute_ns, sent_ns, summary.step_ns - own_ns, own_ns - compute_ns - sent_ns)

    @property
    def fits(self) -> bool:
        return self.peak.total <= self.limit_bytes


def price(
    parallelism: Parallelism,
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: OnProgress | None = None,
    factors: Mapping[str, float] = MappingProxyType({}),
) -> PricedConfiguration:
    """Price one configuration on `cluster`, whose mesh does not count. `options`: of a whole step; its microbatches are
    those of the configuration. `factors`: of constants of the cluster (`shardplan.cluster.perturb`).

    Raises `ShardplanError`: `bad-parallelism` for sizes that do not divide, `no-cut` for a model that cannot be cut.
    """
    check_model(parallelism, model, options.microbatches)
    cluster = as_trained(cluster, sharded=parallelism.shards_parameters)
    if parallelism.tensor == parallelism.context == 1 < parallelism.expert:
        cluster = replace(cluster, training=replace(cluster.training, exchanges_only=True))
    profile = as_filled(cluster, parallelism)
    axes = axes_of(parallelism, profile)
    if len(axes) > MOST_AXES:
        hint = "let each kind fill a level of links or stay inside one"
        raise ShardplanError(bad(f"{len(axes)} mesh axes; at most {MOST_AXES} can be priced", hint))
    part = Submesh(perturbed(make_cluster(profile, mesh_text(axes, profile)), factors))
    limit = cluster.device.usable_bytes if options.memory_limit_bytes is None else options.memory_limit_bytes
    inside = parallelism.within_a_step
    options = replace(
        options, shard_optimizer=inside.zero == 1, effort="quick", in_time=False,
        # torch's context_parallel, Megatron-Core and Transformer Engine deal out a causal sequence from both ends
        dealt_sequence=parallelism.context > 1,
    )  # fmt: skip
    kinds = tuple(axis.kind for axis in axes)
    fixed = Fixed(kinds, restriction(inside, kinds, hidden_of(model)), inside.zero, parallelism.shards_parameters)
    if parallelism.pipeline == 1:
        plan = _fastest(model, part.cluster, options, limit, fixed, on_progress)
        held = (plan.summary.memory,)
        return PricedConfiguration(parallelism, plan, held, limit, options.microbatches, cluster.device.usable_fraction)
    whole = perturbed(make_cluster(profile, mesh_text(axes_of(parallelism, profile, whole=True), profile)), factors)
    return _pipeline(parallelism, model, whole, part, options, limit, fixed, on_progress)


def _fastest(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    limit: int,
    fixed: Fixed,
    on_progress: OnProgress | None,
    *,
    loss: bool = True,
) -> Plan:
    """The fastest plan that fits, or the fastest of all if none does, as a trainer runs it. `loss`: the model ends in
    it."""
    sharded, offer = fixed.sharded, None
    if len(fixed.kinds) > MOST_WHOLE:
        offer = LeftOpen.of(fixed.kinds, model, model_rules(model))

    def under(bytes_: int) -> Plan:
        asked = replace(options, memory_limit_bytes=bytes_)
        planner = Planner(model, cluster, asked, on_progress, reasons=False, offer=offer)
        found = as_held(planner.chosen(fixed.restrict), cluster, loss=loss, flat=fixed.flat, precision=saved)
        return as_run(found, cluster, recomputed=again, loss=loss, sharded=sharded, narrow=narrow)

    again = recomputed_share(model, options)
    saved = "" if sharded else options.precision  # torchao's products keep their operands as they are
    in_8_bits = sharded and options.precision == "fp8"
    narrow = narrow_tensors(model, model_rules(model), "fp8") if in_8_bits else Narrow()
    plan = under(UNLIMITED_BYTES)
    if plan.summary.memory.total <= limit:
        return plan
    room = limit - (loss_memory_bytes(plan, cluster.training) if loss else 0)
    try:
        return under(room) if room > 0 else plan
    except InfeasibleError:
        return plan


def _pipeline(
    parallelism: Parallelism,
    model: Model,
    cluster: Cluster,
    part: Submesh,
    options: PlanOptions,
    limit: int,
    fixed: Fixed,
    on_progress: OnProgress | None,
) -> PricedConfiguration:
    chunks, stages = parallelism.pieces, parallelism.pipeline
    schedule = Schedule("interleaved", parallelism.virtual) if parallelism.virtual > 1 else Schedule("1f1b")
    chain = chain_at(model, chunk_starts(model, chunks))
    waiting = [schedule.in_flight(stages - 1 - place % stages, stages, options.microbatches) for place in range(chunks)]
    inner = 1 if chunks > 2 else 0  # the one that holds most
    most = max(waiting[1:-1], default=1)
    plans: dict[int, Plan] = {}
    planned = sorted({0, inner, chunks - 1})
    turn = Turn(on_progress, len(planned))
    for place in planned:
        turn.next(f"stage {place}")
        held = most if 0 < place < chunks - 1 else waiting[place]
        own = part_of(chain, place, place + 1, f"{model.name}.stage{place}")
        asked = replace(options, in_flight=held)
        room, loss = limit // parallelism.virtual, place == chunks - 1
        plan = _fastest(own, part.cluster, asked, room, fixed, turn.tell, loss=loss)
        plans[place] = accumulating_in_fp32(plan) if fixed.sharded else plan
    stands_for, transfers = [0, *[inner] * (chunks - 2), chunks - 1], Transfers(cluster)
    found = assemble_result(
        chain,
        [Cut(place, place + 1, 0, 0, 0) for place in range(chunks)],
        [part] * chunks,
        [plans[place] for place in stands_for],
        waiting,
        *_borders(chain, plans, stands_for, options),
        transfers,
        options,
        schedule,
    )
    found = with_sends(found, transfers, schedule, options.microbatches)
    plan = plan_of(PipelineRequest(model, cluster, options, schedule, stages), found)
    memory = tuple(_sum([plans[place].summary.memory for place in stands_for[at::stages]]) for at in range(stages))
    fraction = cluster.device.usable_fraction
    return PricedConfiguration(parallelism, plan, memory, limit, options.microbatches, fraction)


def _borders(
    chain: Chain, plans: Mapping[int, Plan], stands_for: Sequence[int], options: PlanOptions
) -> tuple[list[tuple[Layout, Layout]], list[tuple[int, int]]]:
    """The layouts of the values at both ends of every stage, and the bytes of the value and its gradient in a
    microbatch."""
    kept = {place: {tensor.name: tensor.layout for tensor in plan.tensors} for place, plan in plans.items()}
    borders, sizes = list[tuple[Layout, Layout]](), list[tuple[int, int]]()
    for place, border in enumerate(chain.borders):
        mine, theirs = stands_for[place], stands_for[place + 1]
        borders.append((kept[mine][chain.borders[mine]], kept[theirs][chain.borders[theirs - 1]]))
        size = -(-chain.model.tensor(border).size_bytes // options.microbatches)
        sizes.append((size, size if options.training else 0))
    return borders, sizes


def _sum(parts: Sequence[Memory]) -> Memory:
    names = ("parameters", "gradients", "optimizer", "activations", "temporaries")
    return Memory(*(sum(getattr(part, name) for part in parts) for name in names))


@dataclass(frozen=True, slots=True)
class PriceReport:
    """A priced configuration for display: `best` beside it, if `compared`; the rows of a step and a microbatch;
    `robust`: the step under perturbed profiles, if any were drawn."""

    priced: PricedConfiguration
    best: Plan | None
    global_batch: int
    micro_batch: int
    compared: bool
    precision: PrecisionName = ""
    robust: Steps | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps under profiles whose constants are multiplied by random factors, ascending; `spread`: the least and the
    most within which they were drawn."""

    step_ns: tuple[int, ...]
    spread: tuple[float, float]


def steps_under(
    pricing: Callable[[Mapping[str, float]], PricedConfiguration], cluster: Cluster, draws: int, seed: int = 0
) -> Steps:
    """The steps that `pricing` finds for factors of the constants of `cluster`, drawn as for plans."""
    rng, names = np.random.default_rng(seed), all_constants(cluster)
    found = sorted(pricing(factors_of(cluster, names, rng)).plan.summary.step_ns for _ in range(draws))
    spreads = [spread_of(cluster, name) for name in names]
    return Steps(tuple(found), (min(spreads), max(spreads)))


def price_as_asked(
    request: Request,
    parallelism: Parallelism,
    batch: Batch,
    recompute: str = "none",
    precision: PrecisionName = "",
    *,
    compare: bool = True,
    fused_loss: bool = False,
    overlap_exchange: bool = False,
    eager: bool = False,
    robust: int = 0,
    on_progress: OnProgress | None = None,
) -> PriceReport:
    """Memory and time of `request`'s model on its cluster under a configuration, beside the best plan if `compare`.
    Only `model`, `cluster`, `dims`, `optimizer` and `memory_limit` of the request count. `recompute`: a scheme as
    `recompute_in` reads it. `fused_loss`: the loss holds no logits in fp32. `overlap_exchange`: experts' tokens are
    exchanged beside the compute of another microbatch. `eager`: the program runs as it is written, kernel by kernel.
    `robust`: number of perturbed profiles to price it on too.

    Raises `ShardplanError` as `price` and as reading the inputs does.
    """
    assert isinstance(request.dims, Mapping)
    assert not isinstance(request.memory_limit, str)
    model = read_model_for(request.model, request.dims, batch, parallelism)
    given = request.cluster
    cluster = given if isinstance(given, Cluster) else make_cluster(load_profile(str(given)))
    check_peak(precision, cluster)
    if fused_loss:
        cluster = with_fused_loss(cluster)
    if eager:
        cluster = running_eagerly(cluster)
    if overlap_exchange:
        if parallelism.expert == 1:
            raise ShardplanError(bad("no tokens are exchanged: --ep is 1", "leave out --overlap-exchange"))
        cluster = exchanging_beside(cluster)
    again = recompute_in(model, recompute)
    options = PlanOptions(
        optimizer=request.optimizer,
        microbatches=microbatches_of(parallelism, rows_of(model), batch.micro_batch),
        remat=again.remat,
        full_layers=again.layers,
        modules=again.modules,
        memory_limit_bytes=request.memory_limit,
        precision=precision,
    )
    turn = Turn(on_progress, 1 + compare + robust)
    turn.next("this configuration")
    priced = price(parallelism, model, cluster, options, turn.tell)
    best = None
    if compare:
        turn.next("the best plan")
        best = best_beside(priced, model, cluster, options, turn.tell)

    def on_other(factors: Mapping[str, float]) -> PricedConfiguration:
        turn.next("perturbed profiles")
        return price(parallelism, model, cluster, options, turn.tell, factors)

    steps = steps_under(on_other, cluster, robust) if robust else None
    return PriceReport(priced, best, rows_of(model), batch.micro_batch, compare, precision, steps)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step, and of a microbatch of one rank. `global_batch`: None for the model's own; if the batch is free,
    one microbatch per rank."""

    global_batch: int | None = None
    micro_batch: int = 1


def read_model_for(given: str | Path | Model, dims: Mapping[str, int], batch: Batch, parallelism: Parallelism) -> Model:
    """The model with the requested batch: a description takes any, an ONNX file has its own.

    Raises `ShardplanError`: `bad-parallelism` if a file has another batch, and as `load_model`.
    """
    rows = batch.global_batch
    if isinstance(given, str) and (given.startswith(DESCRIBED) or is_config(given)):
        said = dims.get(BATCH)
        if rows is None:
            rows = said or batch.micro_batch * parallelism.data
        if said not in (None, rows):
            raise ShardplanError(bad(f"--dim batch={said} and --global-batch {rows} are two batches", "give one"))
        return load_model(given, {**dims, BATCH: rows})
    model = given if isinstance(given, Model) else load_model(given, dims)
    own = rows_of(model)
    if rows not in (None, own):
        hint = "leave out --global-batch, bind a symbolic dim (--dim), or export the model with that batch"
        raise ShardplanError(bad(f"'{model.name}' has a batch of {own}, and --global-batch says {rows}", hint))
    return model


BATCH = "batch"


def best_beside(
    priced: PricedConfiguration,
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: OnProgress | None = None,
) -> Plan | None:
    """The best plan without a pipeline on as many devices for the same trainer, with an axis for each link and in as
    few microbatches as fit, or the configuration itself if that is faster; None if none fits."""
    sharded = priced.parallelism.shards_parameters
    simple = Parallelism(data=priced.parallelism.devices)
    profile = as_filled(as_trained(cluster, sharded=sharded), simple)
    given = priced.plan if priced.fits and priced.parallelism.pipeline == 1 else None
    whole = make_cluster(profile, mesh_text(axes_of(simple, profile), profile))
    halves = (options.microbatches >> place for place in range(options.microbatches.bit_length()))
    for microbatches in sorted({each for each in halves if options.microbatches % each == 0} | {1}):
        asked = replace(options, microbatches=microbatches, shard_optimizer=True, effort="quick", in_time=False)
        try:
            planner = Planner(model, whole, asked, on_progress, reasons=False)
            found = as_held(planner.chosen(), whole)
        except InfeasibleError:
            continue
        free = as_run(found, whole, recomputed=recomputed_share(model, options), sharded=sharded)
        return min((each for each in (given, free) if each), key=lambda plan: plan.summary.step_ns)
    return given
