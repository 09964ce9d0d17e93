"""Plans of a configuration, as a trainer runs them: under what it fixes, with that trainer's memory and time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions
from shardplan.graph.precision import Narrow, PrecisionName, narrow_tensors
from shardplan.graph.recomputed_layers import recomputed_share
from shardplan.model.types import Model
from shardplan.pipeline.chunk_memory import ChunkMemory
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.instance import MOST_WHOLE
from shardplan.planning.parallel_layouts import LeftOpen
from shardplan.planning.parallelism import CONTEXT, DATA, EXPERT
from shardplan.planning.reduction import Restrict
from shardplan.planning.standing import OnProgress
from shardplan.rules import model_rules
from shardplan.study.run_memory import accumulating_in_fp32, as_held, waiting_bytes
from shardplan.study.trainer_step import as_run, loss_memory_bytes

FLAT = (CONTEXT, EXPERT, DATA)
"""Kinds of ranks over which Megatron cuts the flat buffers of its distributed optimizer."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a configuration fixes on a mesh with axes of these `kinds`. `zero`: within a step; `sharded`: parameters
    are; `in_fp32`: gradients that are held whole are accumulated in fp32."""

    kinds: tuple[str, ...]
    restrict: Restrict
    zero: int
    sharded: bool
    in_fp32: bool = True

    @property
    def flat(self) -> tuple[int, ...]:
        """Axes over which the optimizer's state is sharded as flat buffers, or in padded shards (FSDP)."""
        return tuple(place for place, kind in enumerate(self.kinds) if kind in FLAT) if self.zero else ()


@dataclass(frozen=True, slots=True)
class FixedRun:
    """A plan as a trainer runs it. `waiting_bytes`: of one microbatch's activations while they wait for backward;
    `wider_bytes`: what gradients take more than a search counts."""

    plan: Plan
    waiting_bytes: int
    wider_bytes: int = 0

    def chunk(self, planned: int, in_flight: int) -> ChunkMemory:
        """Its memory as one of several model chunks, with `in_flight` microbatches in flight; it was planned for
        `planned`."""
        peak, waiting = self.plan.summary.memory, self.waiting_bytes
        activations = max(0, peak.activations + (in_flight - planned) * waiting)
        return ChunkMemory(replace(peak, activations=activations), min(activations, in_flight * waiting))


@dataclass(frozen=True, slots=True)
class FixedRuns:
    """Runs of one model, or of a stage of one. `loss`: the model ends in it; `is_stage`: of a pipeline, where gradients
    are whole until its end although parameters are sharded, and accumulated in fp32 then."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    fixed: Fixed
    on_progress: OnProgress | None
    loss: bool = True
    is_stage: bool = False

    def under(self, limit_bytes: int) -> FixedRun:
        """The fastest under a memory limit. Raises `InfeasibleError`."""
        model, options, sharded = self.model, self.options, self.fixed.sharded
        offer = LeftOpen.of(self.fixed.kinds, model, model_rules(model)) if len(self.fixed.kinds) > MOST_WHOLE else None
        # torchao's products keep their operands as they are
        saved: PrecisionName = "" if sharded else options.precision
        in_8_bits = sharded and options.precision == "fp8"
        narrow = narrow_tensors(model, model_rules(model), "fp8") if in_8_bits else Narrow()
        asked = replace(options, memory_limit_bytes=limit_bytes)
        planner = Planner(model, self.cluster, asked, self.on_progress, reasons=False, offer=offer)
        chosen = planner.chosen(self.fixed.restrict)
        held = as_held(chosen, self.cluster, loss=self.loss, flat=self.fixed.flat, precision=saved)
        again = recomputed_share(model, options)
        plan = ran = as_run(held, self.cluster, recomputed=again, loss=self.loss, sharded=sharded, narrow=narrow)
        if self.is_stage if sharded else self.fixed.in_fp32:
            plan = accumulating_in_fp32(ran, options.optimizer)
        wider = plan.summary.memory.total - ran.summary.memory.total
        return FixedRun(plan, waiting_bytes(chosen, saved), wider)

    def within(self, unlimited: FixedRun, limit_bytes: int) -> FixedRun:
        """The fastest that fits, or the fastest of all, which is `unlimited`, if none does."""
        if unlimited.plan.summary.memory.total <= limit_bytes:
            return unlimited
        room = limit_bytes - (loss_memory_bytes(unlimited.plan, self.cluster.training) if self.loss else 0)
        room -= unlimited.wider_bytes
        try:
            return self.under(room) if room > 0 else unlimited
        except InfeasibleError:
            return unlimited
