"""What shardplan predicts for published training runs, whose parallel layout is given: graph, recipe, prices.

Tensor and data parallelism go through the cost graph with the choices restricted to the published layout; pipeline
stages, which shardplan does not plan, are layers divided by stages, with the bubble (p - 1) / (m v) of p stages, m
microbatches and v chunks per stage. The slowest stage, which has the output matrix, sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Cluster
from shardplan.graph.build import CostGraph, Node, build_cost_graph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.graph.problem import node_order, objective_of, to_problem
from shardplan.layout.placement import S
from shardplan.models import NAMED, TransformerSpec, build
from shardplan.plan.assemble import price
from shardplan.plan.step.memory_timeline import bytes_by_moment, peak_of
from shardplan.plan.step.schedule import StepSchedule, serial_schedule
from shardplan.planning.recipes import data_parallel, megatron, megatron_sequence, zero_1, zero_3
from shardplan.planning.reduction import Allowed, restrict
from shardplan.rules import model_rules
from shardplan.schedule.objective import plain_sum
from shardplan.solve import solve
from shardplan.study.trainer_step import hidden_s

_EXPOSED = 0.1
"""Share of what runs beside compute that counts when the rest of a layout is chosen."""
GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One published run. `microbatch`: sequences per device group and microbatch; `batch`: sequences per step;
    `distributed_optimizer`: gradients are scattered once a step to where the optimizer's state is, and new weights
    gathered in the next forward; `fused_loss`: the loss keeps no logits in fp32; `overlapped`: whether gradients are
    reduced, and tensor-parallel traffic runs, while the device computes; `mesh`: where the usual one of machines and
    GPUs does not do."""

    spec: TransformerSpec
    profile: str
    gpus: int
    batch: int
    microbatch: int = 1
    tensor: int = 1
    pipeline: int = 1
    interleave: int = 1
    context: int = 1
    remat: str = "none"
    sequence: bool = False
    sharded: bool = False
    distributed_optimizer: bool = False
    overlapped: bool = True
    fused_loss: bool = False
    mesh: str = ""

    @property
    def data(self) -> int:
        return self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def gpus_per_machine(self) -> int:
        return load_profile(self.profile).levels[0].devices or 8

    @property
    def microbatches(self) -> int:
        return max(1, self.batch // (self.data * self.microbatch))


@dataclass(frozen=True)
class Prediction:
    """Seconds per step: all of it, and what a layer's compute and communication take of the slowest stage."""

    step_s: float
    compute_s: float
    hidden_s: float
    exposed_s: float

    def tflops(self, run: Run, flops: float) -> float:
        """TFLOP/s per GPU when a step counts as `flops`."""
        return flops / self.step_s / run.gpus / 1e12


def spec_of(name: str, **sizes: object) -> TransformerSpec:
    return replace(NAMED[name], **sizes)


def cluster_of(run: Run) -> Cluster:
    """Tensor parallelism innermost, then as many data-parallel ranks as fill a machine, then machines."""
    ranks, per_machine = run.data, run.gpus_per_machine
    inside = 1 if run.pipeline > 1 else min(ranks, per_machine // run.tensor)
    text = f"machine={ranks // max(1, inside)},gpu0={inside},gpu1={run.tensor}"
    if run.tensor > per_machine:  # the outermost part of the machines holds copies of the model
        text = f"machine0={ranks},machine1={run.tensor // per_machine},gpu={per_machine}"
    elif inside == 1 or run.tensor == 1:
        text = f"machine={ranks // inside},gpu={inside * run.tensor}"
    return make_cluster(load_profile(run.profile), run.mesh or text)


def solved(built: CostGraph, memory: MemoryRows, allowed: Allowed, limit: int = UNLIMITED_BYTES):
    """The best assignment among those that `allowed` leaves, where little of the traffic is exposed."""
    linear = plain_sum(objective_of(built), _EXPOSED, _EXPOSED, outermost=False)
    return solve(restrict(to_problem(built, memory, limit, linear), built, allowed))


def published_layout(built: CostGraph, run: Run) -> Allowed:
    """The choices of the run's layout."""
    states = {node: mask for node, mask in zero_1(built).items() if node[0] == "updated"}
    return {**_published_weights(built, run), **states}


def _published_weights(built: CostGraph, run: Run) -> Allowed:
    if run.sharded and run.tensor == 1:
        return zero_3(built)
    if run.tensor == 1:
        return data_parallel(built)
    if run.tensor > run.gpus_per_machine:
        return _weights_read_sharded(built, axes=range(len(built.cluster.mesh))[-2:])
    return pure(built, megatron_sequence(built) if run.sequence else megatron(built), sequence=run.sequence)


def pure(built: CostGraph, allowed: Allowed, *, sequence: bool) -> Allowed:
    """A Megatron layout in which everything outside the tensor-parallel regions is saved sharded by sequence, or
    nothing is: what the solver may otherwise mix where it gains."""
    pure_layout: dict[Node, np.ndarray] = dict(allowed)
    last = len(built.cluster.mesh) - 1
    for operator in built.model.operators:
        width = built.model.tensor(operator.outputs[0]).shape[-1]
        if (
            operator.op_type not in _OUTSIDE
            or width != built.model.tensor(built.model.operators[0].outputs[0]).shape[-1]
        ):
            continue
        for name in operator.outputs:
            space = built.kept[name]
            shards = len(space.kind.shards)
            codes = space.codes[:, last]
            mask = (codes == space.code(S(1))) | (codes == shards + 1) if sequence else codes >= shards
            pure_layout["kept", name] = mask & np.asarray(pure_layout.get(("kept", name), True))
    return {**pure_layout, **_weights_read_sharded(built, axes=[last])}


def _weights_read_sharded(built: CostGraph, axes: Iterable[int]) -> Allowed:
    """Matrix products read weights sharded over `axes`; gathering weights would be another layout."""
    weights = {p.tensor for p in built.model.parameters if len(built.model.tensor(p.tensor).shape) > 1}
    allowed: dict[Node, np.ndarray] = {}
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        for position, name in enumerate(operator.inputs):
            if name in weights:
                codes = space.strategies.layout_codes("operands", position)[:, list(axes)]
                mask = (codes < len(built.kept[name].kind.shards)).all(axis=1)
                if mask.any():
                    allowed["operator", operator.name] = mask
    return allowed


_OUTSIDE = frozenset({"Add", "Dropout", "LayerNormalization", "RMSNormalization"})
"""What happens to the hidden state outside attention and MLP."""


@cache
def stage(run: Run, layers: int) -> Prediction:
    """One step of a stage of so many layers that also has the embedding and the output matrix."""
    batch = run.data * run.microbatch * run.microbatches
    spec = replace(run.spec, layers=layers, batch=batch)
    model = build(spec)
    options = PlanOptions(remat=run.remat, microbatches=run.microbatches, shard_optimizer=run.distributed_optimizer)
    built = build_cost_graph(model, model_rules(model), cluster_of(run), options)
    memory = MemoryRows(built)
    choices = solved(built, memory, published_layout(built, run)).choices
    scheduled = price(built, memory, choices, UNLIMITED_BYTES).scheduled
    hidden = 0.0
    if run.overlapped:  # the share of tensor-parallel traffic that the profile says trainers hide
        hidden = hidden_s(scheduled, built.cluster, recomputed=run.remat == "full", sharded=run.sharded)
    else:
        scheduled = serial_schedule(scheduled.parts)
    seconds = {action: _seconds(scheduled, action) for action in ("compute", "blocking", "issue")}
    step_s = scheduled.seconds - hidden
    exposed_s = step_s - seconds["compute"]
    sent_s = seconds["blocking"] + seconds["issue"]
    return Prediction(step_s, seconds["compute"], max(0.0, sent_s - exposed_s), exposed_s)


def _seconds(scheduled: StepSchedule, action: str) -> float:
    """Seconds per step of everything of one kind."""
    return sum(phase.count * item.seconds for phase, item, *_ in scheduled.spans() if item.action == action)


def predict(run: Run) -> Prediction:
    """One step of the whole run. Layers are alike, so the time of many follows from that of two and four."""
    two, four = stage(run, 2), stage(run, 4)
    layers = run.spec.layers / run.pipeline
    wait = (run.pipeline - 1) / (run.microbatches * run.interleave)

    def of(part: str) -> tuple[float, float]:
        layer = (getattr(four, part) - getattr(two, part)) / 2
        return layer, max(0.0, getattr(two, part) - 2 * layer)

    layer, ends = of("step_s")
    step = layers * layer + ends + wait * (layers * layer + ends / run.pipeline)
    parts = [layers * of(part)[0] + of(part)[1] for part in ("compute_s", "hidden_s", "exposed_s")]
    return Prediction(step, *parts)


def layer_activations(name: str, batch: int, *, sequence: bool, remat: str) -> int:
    """Bytes that one GPU of eight saves for the backward of one inner layer, GPT of that name, no flash attention."""
    run = Run(
        spec_of(name, layers=3, dropout=True, attention="decomposed", logits=False, batch=batch),
        "a100-dgx", gpus=8, batch=batch, microbatch=batch, tensor=8, sequence=sequence, remat=remat,
    )  # fmt: skip
    model = build(run.spec)
    built = build_cost_graph(model, model_rules(model), cluster_of(run), PlanOptions(remat=remat))
    memory = MemoryRows(built)
    choices = solved(built, memory, published_layout(built, run)).choices
    choice = dict(zip(node_order(built), choices, strict=True))
    made = {name for index in model.blocks[0].copies[1] for name in model.operators[index].outputs}
    turn = len(model.operators)
    return sum(
        int(holding.amount[choice[holding.node]])
        for holding in memory.holdings
        if holding.category == "activations" and holding.start <= turn < holding.end and holding.node[1] in made
    )


def peak_bytes(spec: TransformerSpec, profile: str, mesh: str, remat: str) -> tuple[int | None, int]:
    """Most bytes of one device in the fastest ZeRO-3 plan that fits, `None` where none does, and what it may use."""
    model, cluster = build(spec), make_cluster(load_profile(profile), mesh)
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions(remat=remat))
    memory = MemoryRows(built)
    choices = solved(built, memory, zero_3(built), cluster.device.usable_bytes).choices
    if choices is None:
        return None, cluster.device.usable_bytes
    choice = dict(zip(node_order(built), choices, strict=True))
    return peak_of(bytes_by_moment(memory, choice)).total, cluster.device.usable_bytes


def state_memory(name: str, profile: str, mesh: str, recipe: str) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state of one device, of the whole model under a recipe."""
    model = build(spec_of(name, batch=1024, seq=128))
    built = build_cost_graph(model, model_rules(model), make_cluster(load_profile(profile), mesh), PlanOptions())
    memory = MemoryRows(built)
    allowed = {"data parallel": data_parallel, "ZeRO-3": zero_3}[recipe](built)
    choice = dict(zip(node_order(built), solved(built, memory, allowed).choices, strict=True))
    peak = peak_of(bytes_by_moment(memory, choice))
    return peak.parameters, peak.gradients, peak.optimizer
