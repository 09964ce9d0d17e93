"""Memory and time of one given parallel configuration, as trainers are configured.

The terms of Megatron and FSDP (`shardplan.planning.parallelism`) become restrictions of the choices; the solver decides
what they leave open, with the prices of every other plan. Of a pipeline the first and the last stage are planned, and
one of each kind between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from shardplan.cluster.consistency import consistent
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.perturb import all_constants, perturbed
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.cost.recipes import recipe
from shardplan.errors import Diagnostic, InfeasibleError, ShardplanError, warning
from shardplan.graph.hidden_state import hidden_of
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.precision import PrecisionName, check_peak
from shardplan.graph.recomputed_layers import recomputed_share
from shardplan.graph.remat import nothing_recomputed
from shardplan.model.types import Model
from shardplan.models import PREFIX, is_config, size_in
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.step.buckets import shard_count
from shardplan.plan.types import Memory, Plan
from shardplan.planning import Planner
from shardplan.planning.instance import MOST_AXES
from shardplan.planning.parallelism import (
    Parallelism,
    axes_of,
    bad,
    check_model,
    mesh_text,
    microbatches_of,
    restriction,
    rows_of,
)
from shardplan.planning.standing import OnProgress, Turn
from shardplan.request import Request
from shardplan.rules import model_rules
from shardplan.study.fixed_runs import Fixed, FixedRuns
from shardplan.study.instance import load_model
from shardplan.study.price_stages import priced_stages
from shardplan.study.racks import as_filled
from shardplan.study.recompute import recompute_in
from shardplan.study.run_memory import accumulating_in_fp32, as_held
from shardplan.study.sensitivity import factors_of, spread_of
from shardplan.study.trainer_step import (
    as_run,
    as_trained,
    exchanging_beside,
    running_eagerly,
    with_fused_loss,
)

GRADIENTS: Final = ("fp32", "bf16")
"""What gradients that a device holds whole are accumulated in: fp32, or the type of 16-bit weights."""


_WORTH_TELLING = 0.1
"""Share of the weights' elements below which those that do not divide are not told."""


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

    @property
    def undivided(self) -> Diagnostic | None:
        """A warning about `--zero 3` where weights do not divide into as many shards as there are ranks: trainers pad
        the shards, and only whole ones are priced."""
        if self.parallelism.zero < 3 or self.plan.pipeline is not None:
            return None
        weights = [tensor for tensor in self.plan.tensors if tensor.role == "parameter"]
        shards, whole = self.parallelism.data * self.parallelism.context, sum(math.prod(one.shape) for one in weights)
        pieces = {one.name: shard_count(one.layout.forward, self.plan.mesh) for one in weights}
        fewer = [one for one in weights if pieces[one.name] < shards]
        share = sum(math.prod(one.shape) for one in fewer) / whole if whole else 0.0
        if share < _WORTH_TELLING:
            return None
        most = max(pieces[one.name] for one in fewer)
        summary = (
            f"{100 * share:.0f} % of the weights do not divide into {shards} shards, one for each data-parallel rank"
        )
        detail = f"they are priced in at most {most}; trainers pad: weights take less memory and longer to gather"
        hint = "price another number of ranks beside it, one that divides the sizes of weights"
        return warning("undivided-weights", summary, detail=detail, hint=hint)


def price(
    parallelism: Parallelism,
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: OnProgress | None = None,
    factors: Mapping[str, float] = MappingProxyType({}),
    grad_dtype: str = "fp32",
) -> PricedConfiguration:
    """Price one configuration on `cluster`, whose mesh does not count. `options`: of a whole step; its microbatches are
    those of the configuration. `factors`: of constants of the cluster (`shardplan.cluster.perturb`). `grad_dtype`: of
    `GRADIENTS`, what whole gradients are accumulated in.

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
    limit = options.limit_bytes_on(cluster.device)
    inside = parallelism.within_a_step
    options = replace(
        options, shard_optimizer=inside.zero == 1, effort="quick", in_time=False,
        # torch's context_parallel, Megatron-Core and Transformer Engine deal out a causal sequence from both ends
        dealt_sequence=parallelism.context > 1,
    )  # fmt: skip
    kinds = tuple(axis.kind for axis in axes)
    sharded, in_fp32 = parallelism.shards_parameters, grad_dtype == "fp32"
    fixed = Fixed(kinds, restriction(inside, kinds, hidden_of(model)), inside.zero, sharded, in_fp32)
    if parallelism.pipeline == 1:
        runs = FixedRuns(model, part.cluster, options, fixed, on_progress)
        plan = runs.within(runs.under(UNLIMITED_BYTES), limit).plan
        held: tuple[Memory, ...] = (plan.summary.memory,)
    else:
        whole = perturbed(make_cluster(profile, mesh_text(axes_of(parallelism, profile, whole=True), profile)), factors)
        plan, held = priced_stages(parallelism, model, whole, part, options, limit, fixed, on_progress)
    return PricedConfiguration(parallelism, plan, held, limit, options.microbatches, cluster.device.usable_fraction)


@dataclass(frozen=True, slots=True)
class PriceReport:
    """A priced configuration for display: `best` beside it, if `compared`; the rows of a step and a microbatch;
    `robust`: the step under perturbed profiles, if any were drawn; `warnings`: about the configuration."""

    priced: PricedConfiguration
    best: Plan | None
    global_batch: int
    micro_batch: int
    compared: bool
    precision: PrecisionName = ""
    robust: Steps | None = None
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps under profiles whose constants are multiplied by random factors, ascending; `spread`: the least and the
    most within which they were drawn."""

    step_ns: tuple[int, ...]
    spread: tuple[float, float]


def steps_under(pricing: Callable[[Mapping[str, float]], PricedConfiguration], cluster: Cluster, draws: int) -> Steps:
    """The steps that `pricing` finds for factors of the constants of `cluster`, drawn as for plans."""
    rng, names = np.random.default_rng(0), all_constants(cluster)
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
    grad_dtype: str = "fp32",
    robust: int = 0,
    on_progress: OnProgress | None = None,
) -> PriceReport:
    """Memory and time of `request`'s model on its cluster under a configuration, beside the best plan if `compare`.
    Only `model`, `cluster`, `dims`, `optimizer` and `memory_limit` of the request count. `recompute`: a scheme as
    `recompute_in` reads it. `fused_loss`: the loss holds no logits in fp32. `overlap_exchange`: experts' tokens are
    exchanged beside the compute of another microbatch. `eager`: the program runs as it is written, kernel by kernel.
    `grad_dtype`: of `GRADIENTS`, what whole gradients are accumulated in. `robust`: number of perturbed profiles to
    price it on too.

    Raises `ShardplanError` as `price` and as reading the inputs does.
    """
    assert isinstance(request.dims, Mapping)
    assert not isinstance(request.memory_limit, str)
    _check_gradients(grad_dtype, request.optimizer)
    model = read_model_for(request.model, request.dims, batch, parallelism)
    if overlap_exchange and parallelism.expert == 1:
        raise ShardplanError(bad("no tokens are exchanged: --ep is 1", "leave out --overlap-exchange"))
    given = request.cluster
    cluster = consistent(given) if isinstance(given, Cluster) else make_cluster(load_profile(str(given)))
    check_peak(precision, cluster)
    cluster = _run_so(cluster, fused_loss=fused_loss, eager=eager, overlap_exchange=overlap_exchange)
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
    priced = price(parallelism, model, cluster, options, turn.tell, grad_dtype=grad_dtype)
    best = None
    if compare:
        turn.next("the best plan")
        best = best_beside(priced, model, cluster, options, turn.tell, grad_dtype)

    def on_other(factors: Mapping[str, float]) -> PricedConfiguration:
        turn.next("perturbed profiles")
        return price(parallelism, model, cluster, options, turn.tell, factors, grad_dtype)

    steps = steps_under(on_other, cluster, robust) if robust else None
    warnings = (*filter(None, [priced.undivided]), *nothing_recomputed(model, model_rules(model), options))
    return PriceReport(priced, best, rows_of(model), batch.micro_batch, compare, precision, steps, warnings)


def _check_gradients(grad_dtype: str, optimizer: str) -> None:
    """Refuses a type of gradients that does not exist, or that the optimizer does not have."""
    if grad_dtype not in GRADIENTS:
        raise ShardplanError(bad(f"gradients are not accumulated in '{grad_dtype}'", f"{' or '.join(GRADIENTS)}"))
    if grad_dtype == "bf16" and recipe(optimizer).gradient == "float":
        summary = f"--grad-dtype bf16: optimizer '{optimizer}' keeps gradients in fp32"
        raise ShardplanError(bad(summary, "leave out --grad-dtype, or take --optimizer adam-mixed"))


def _run_so(cluster: Cluster, *, fused_loss: bool, eager: bool, overlap_exchange: bool) -> Cluster:
    """The cluster with a trainer's options, as of `price_as_asked`."""
    if fused_loss:
        cluster = with_fused_loss(cluster)
    if eager:
        cluster = running_eagerly(cluster)
    return exchanging_beside(cluster) if overlap_exchange else cluster


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step, and of a microbatch of one rank. `global_batch`: None for the model's own; if the batch is free,
    as few microbatches per rank as the pipeline takes."""

    global_batch: int | None = None
    micro_batch: int = 1


def read_model_for(given: str | Path | Model, dims: Mapping[str, int], batch: Batch, parallelism: Parallelism) -> Model:
    """The model with the requested batch: a description takes any, an ONNX file has its own.

    Raises `ShardplanError`: `bad-parallelism` if a file has another batch, and as `load_model`.
    """
    rows = batch.global_batch
    if isinstance(given, str) and (given.startswith(PREFIX) or is_config(given)):
        said = dims.get(BATCH) or size_in(given, BATCH)
        assert isinstance(said, int | None)
        if rows is None:
            microbatches = parallelism.pipeline if parallelism.virtual > 1 else 1  # interleaved stages take a multiple
            rows = said or batch.micro_batch * parallelism.data * microbatches
        if said not in (None, rows):
            where = "--dim" if BATCH in dims else f"'{given}':"
            raise ShardplanError(bad(f"{where} batch={said} and --global-batch {rows} are two batches", "give one"))
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
    grad_dtype: str = "fp32",
) -> Plan | None:
    """The best plan without a pipeline on as many devices for the same trainer, with an axis for each link and in as
    few microbatches as fit, or the configuration itself if that is faster; None if none fits. `grad_dtype`: as of
    `price`."""
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
        if not sharded and grad_dtype == "fp32":
            found = accumulating_in_fp32(found, options.optimizer)
            if found.summary.memory.total > priced.limit_bytes:
                continue
        free = as_run(found, whole, recomputed=recomputed_share(model, options), sharded=sharded)
        return min((each for each in (given, free) if each), key=lambda plan: plan.summary.step_ns)
    return given
