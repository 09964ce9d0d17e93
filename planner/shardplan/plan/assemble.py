"""From a cost graph and an assignment to a plan: decisions, moves, times and memory.

All prices are computed again from the lowered moves, by independent arithmetic. If the sum differs from the solver's
price, the plan's price counts; with `SHARDPLAN_CHECK_PRICES` in the environment, as in tests, it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

from shardplan.cluster.mesh import cluster_digest
from shardplan.errors import ShardplanError, checks_itself, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import MemoryRows
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import node_order
from shardplan.graph.remat import Recompute, recomputed
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model, Parameter
from shardplan.plan.step.emit import Emitter
from shardplan.plan.step.fitting import Fitted, Lowered
from shardplan.plan.step.moves import StepParts
from shardplan.plan.step.schedule import StepSchedule
from shardplan.plan.types import Memory, Move, OperatorDecision, Plan, Summary, TensorDecision
from shardplan.solve.problem import Costs
from shardplan.units import NS_PER_S, PS_PER_S

Outcome = Literal["optimal", "feasible", "interrupted"]
OPTIMAL = 1e-6
"""Relative distance from the bound up to which a plan's schedule counts as optimal."""
MOST_ROUNDED = 1e-4
"""Relative distance between bound and step up to which it may be explained by rounding times to nanoseconds."""
_TOLERANCE = 1e-7
"""Relative; beside the roundings of single prices to nanoseconds."""


class PriceMismatchError(RuntimeError):
    """The plan's own price differs from the cost graph's: a defect of shardplan, not of its input."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a search proved: `bound_s`, a lower bound on the step of any plan; `multipliers`: of the sums of every phase
    at that bound."""

    bound_s: float
    outcome: Outcome = "feasible"
    reproducible: bool = True
    multipliers: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class PricedAssignment:
    """An assignment with its moves and its schedule. `penalty_s`: soft-constraint penalties in seconds."""

    lowered: Lowered
    fitted: Fitted
    penalty_s: float = 0.0

    @cached_property
    def mismatch(self) -> str:
        """The plan's price and the cost graph's, if they differ."""
        return _mismatch(self.built, self.choice, self.lowered.parts())

    @property
    def built(self) -> CostGraph:
        return self.lowered.built

    @property
    def choice(self) -> Mapping[Node, int]:
        return self.lowered.choice

    @property
    def operators(self) -> tuple[OperatorDecision, ...]:
        """The decisions on operators."""
        return self.lowered.operators

    @property
    def optimizer_ns(self) -> int:
        return self.lowered.optimizer_ns

    @property
    def scheduled(self) -> StepSchedule:
        return self.fitted.scheduled

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(self.scheduled.parts.moves)

    @property
    def memory(self) -> Memory:
        """Bytes at the peak, including what is in flight."""
        return self.fitted.memory

    @property
    def step_s(self) -> float:
        """The scheduled step; with another system's prices, the sum of all times."""
        return self.scheduled.seconds


def price(
    built: CostGraph,
    memory: MemoryRows,
    choices: Sequence[int],
    limit_bytes: int,
    penalties: Mapping[Node, Costs] | None = None,
    below_s: float = math.inf,
    *,
    first_fit: bool = False,
) -> PricedAssignment:
    """Lowers, prices and schedules an assignment. `penalties`: picoseconds for choices that break soft constraints;
    `below_s`: if the plan cannot take less, penalties included, its schedule is not optimised. With `first_fit`, it
    is not either.

    Weights stay gathered and are gathered as early, and gradients reduced as late, as the memory limit allows; a plan
    that exceeds the limit under every schedule gets the schedule that needs the least memory.

    Raises `PriceMismatchError` if the plan's price is not the cost graph's and `SHARDPLAN_CHECK_PRICES` is set.
    """
    choice = dict(zip(node_order(built), choices, strict=True))
    operators = tuple(_decision(built, choice, index) for index in range(len(built.operators)))
    optimizer_ns = round(_optimizer_seconds(built, choice) * NS_PER_S)
    lowered = Lowered(built, choice, operators, optimizer_ns, memory)
    penalty_s = sum(float(cost[choice[node]]) for node, cost in (penalties or {}).items()) / PS_PER_S
    fitted = lowered.first_fit(limit_bytes) if first_fit else lowered.fitted(limit_bytes, below_s - penalty_s)
    priced = PricedAssignment(lowered, fitted, penalty_s)
    if checks_itself() and priced.mismatch:
        raise PriceMismatchError(priced.mismatch)
    return priced


def finished(priced: PricedAssignment, limit_bytes: int) -> PricedAssignment:
    """The same assignment with the schedule that its plan has, which follows from its choices alone: the shortest in
    place of a rough one, and with full buckets if that shortens it."""
    if priced.fitted.is_rough:
        priced = replace(priced, fitted=priced.lowered.fitted(limit_bytes))
    if any(move.bucket is not None for move in priced.moves):
        priced = replace(priced, fitted=priced.lowered.in_full_buckets(priced.fitted, limit_bytes))
    return priced


def _mismatch(built: CostGraph, choice: Mapping[Node, int], parts: StepParts) -> str:
    """The totals of compute and communication by the plan and by the cost graph, if they differ."""
    done_ns = parts.optimizer_ns + sum(one.compute_ns + one.inner_ns for one in parts.operators)
    ours_s = (done_ns + sum(move.time_ns for move in parts.moves)) / NS_PER_S
    theirs_s = priced_seconds(built, choice) - built.tie_picoseconds(choice) / PS_PER_S
    roundings_s = 2e-9 * sum(move.count * len(move.steps) for move in parts.moves) + 1e-6
    if abs(ours_s - theirs_s) <= _TOLERANCE * theirs_s + roundings_s or (built.is_near and ours_s <= theirs_s):
        return ""
    return f"the lowered plan takes {ours_s:.9f} s in all but the cost graph says {theirs_s:.9f} s"


def priced_seconds(built: CostGraph, choice: Mapping[Node, int]) -> float:
    """The cost graph's price, in seconds, of all compute and communication of a step of an assignment, tie breaking
    included."""
    costs, tables = built.all_work
    picoseconds = sum(float(cost[choice[node]]) for (node, _), cost in zip(built.node_data, costs, strict=True))
    picoseconds += sum(
        float(table[choice[data["source"]], choice[data["target"]]])
        for data, table in zip(built.edge_data, tables, strict=True)
    )
    return picoseconds / PS_PER_S


def assemble(priced: PricedAssignment, limit_bytes: int, proof: Proof) -> Plan:
    """The plan of a priced assignment and its proof."""
    built, choice = priced.built, priced.choice
    emitter = Emitter(built, choice)
    return Plan(
        model=model_section(built.model, built.options),
        cluster={
            "name": built.cluster.name,
            "digest": cluster_digest(built.cluster),
            "profile": built.cluster.resolved,
        },
        mesh=built.cluster.mesh,
        axis_links=tuple(built.cluster.levels[level].name for level in built.cluster.axis_levels),
        summary=_summary(priced, limit_bytes, proof),
        tensors=_tensors(built, choice, emitter),
        operators=priced.operators,
        moves=priced.scheduled.marked(priced.moves),
        warnings=tuple(str(diagnostic) for diagnostic in (*built.model.warnings, *built.pricer.compute.warnings)),
        blocks=tuple((block.names, block.copies) for block in built.model.blocks),
    )


def model_section(model: Model, options: PlanOptions) -> Mapping[str, object]:
    """The plan's section on its model and the request."""
    constraints = [str(constraint) for constraint in options.constraints]
    aliases = next((constraint.aliases for constraint in options.constraints if constraint.aliases), ())
    return {
        "name": model.name,
        "digest": structure_digest(model),
        "mode": options.mode,
        "dims": dict(sorted(model.dims.items())),
        "optimizer": options.optimizer if options.training else "none",
        "remat": "auto" if options.full_layers or options.modules else options.remat,  # operators say it
        "microbatches": options.microbatches,
        "operators": len(model.operators),
        "parameters": len(model.parameters),
        "parameter_elements": sum(model.tensor(parameter.tensor).elements for parameter in model.parameters),
        **({} if options.cost_model.is_ours else {"cost_model": str(options.cost_model)}),
        **({"loops": dict(model.trips)} if model.trips else {}),
        **({"target": options.target} if options.target else {}),
        **({"shard_optimizer": True} if options.shard_optimizer else {}),
        **({"equal_layers": True} if options.equal_layers else {}),
        **({"kv_cache_tokens": options.kv_cache_tokens} if options.kv_cache_tokens else {}),
        **({"constraints": constraints} if constraints else {}),
        **({"mesh_axis_names": list(aliases)} if aliases else {}),
    }


def _tensors(built: CostGraph, choice: Mapping[Node, int], emitter: Emitter) -> tuple[TensorDecision, ...]:
    parameters = {parameter.tensor: parameter for parameter in built.model.parameters}
    outputs = frozenset(built.model.outputs)
    return tuple(_tensor(built, choice, emitter, name, parameters, outputs) for name in built.flow.planned)


def _tensor(
    built: CostGraph,
    choice: Mapping[Node, int],
    emitter: Emitter,
    name: str,
    parameters: Mapping[str, Parameter],
    outputs: frozenset[str],
) -> TensorDecision:
    tensor, kept = built.model.tensor(name), built.kept[name]
    parameter = parameters.get(name)
    return TensorDecision(
        name=name,
        role="output" if name in outputs and tensor.role == "activation" else tensor.role,
        shape=tensor.shape,
        dtype=tensor.dtype,
        layout=emitter.kept_layout(name),
        served=emitter.served_layout(name),
        bytes_per_device=int(kept.state_bytes[kept.forward[choice["kept", name]]]),
        saved=name in built.recompute.saved,
        checkpoint=parameter.name if parameter else "",
        onnx=parameter.onnx if parameter else "",
        perm=parameter.perm if parameter else (),
        aliases=parameter.aliases if parameter else (),
        trainable=parameter is not None and name in built.flow.needs_grad,
        optimizer=emitter.updated_layout(name),
        recomputed=_is_recomputed(built, name),
    )


def _is_recomputed(built: CostGraph, name: str) -> bool:
    maker, remat = built.flow.makers.get(name, (None, 0))[0], built.recompute
    return maker in remat.until and name in built.fusion.saved and name not in remat.saved


def recompute_of(plan: Plan, built: CostGraph) -> Recompute:
    """The rematerialisation of a plan, for a graph of the same model.

    Raises `ShardplanError` (`damaged-plan`) if it names an operator that the model does not have.
    """
    number = {operator.name: index for index, operator in enumerate(built.model.operators)}
    wanted = {operator.name: operator.recomputed_before for operator in plan.operators if operator.recomputed_before}
    unknown = sorted({name for pair in wanted.items() for name in pair} - number.keys())
    if unknown:
        what = f"'{unknown[0]}' is to be recomputed, or another one before its backward"
        summary = f"{what}, and is no operator of '{built.model.name}'"
        raise ShardplanError(error("damaged-plan", summary, hint="solve again"))
    until = {number[name]: number[before] for name, before in wanted.items()}
    saved = frozenset(tensor.name for tensor in plan.tensors if tensor.saved)
    return recomputed(built.model, built.rules, built.flow, until, saved, holds=built.options.holds_weights)


def _decision(built: CostGraph, choice: Mapping[Node, int], index: int) -> OperatorDecision:
    strategy = choice["operator", built.model.operators[index].name]
    decided = cast("dict[tuple[int, int], OperatorDecision]", built.decided)
    if (index, strategy) not in decided:
        decided[index, strategy] = _operator(built, index, strategy)
    return decided[index, strategy]


def _operator(built: CostGraph, index: int, strategy: int) -> OperatorDecision:
    operator, space = built.model.operators[index], built.operators[index]
    before = built.recompute.until.get(index)
    forward_ns, backward_ns = (
        tuple(round(float(seconds) * NS_PER_S) for seconds in part) for part in space.inner_s[:, :, strategy]
    )
    return OperatorDecision(
        name=operator.name,
        op_type=operator.kind,
        module=operator.module,
        equation=built.rules[index].equation,
        split=space.strategies.labels(strategy),
        reads=tuple(space.strategies.layout("operands", i, strategy) for i in range(len(operator.inputs))),
        makes=tuple(space.strategies.layout("results", i, strategy) for i in range(len(operator.outputs))),
        compute_ns=round(float(space.compute_s[strategy]) * NS_PER_S),
        backward_ns=round(float(space.backward_s[strategy]) * NS_PER_S),
        inner_ns=sum(forward_ns) + sum(backward_ns),
        inner_forward_ns=forward_ns if any(forward_ns) else (),
        inner_backward_ns=backward_ns if any(backward_ns) else (),
        inputs=operator.inputs,
        outputs=operator.outputs,
        recomputed_before=built.model.operators[before].name if before is not None else "",
    )


def _summary(priced: PricedAssignment, limit_bytes: int, proof: Proof) -> Summary:
    step_ns = round(priced.step_s * NS_PER_S)
    bound_ns = min(step_ns, round(proof.bound_s * NS_PER_S))
    operators_ns = sum(operator.compute_ns for operator in priced.operators)
    compute_ns = min(step_ns, operators_ns + priced.optimizer_ns)  # each is rounded by itself
    sent_ns = sum(move.time_ns for move in priced.moves) + sum(operator.inner_ns for operator in priced.operators)
    exposed_ns = step_ns - compute_ns
    gap = (step_ns - bound_ns) / step_ns if step_ns else 0.0
    roundings_ns = 0.5 * (len(priced.operators) + sum(len(move.steps) for move in priced.moves) + 1)
    rounded = step_ns - bound_ns <= roundings_ns and gap <= MOST_ROUNDED
    proven: Outcome = "optimal" if rounded or gap <= OPTIMAL else "feasible"
    return Summary(
        outcome=proof.outcome if proof.outcome == "interrupted" else proven,
        objective_ns=step_ns,
        bound_ns=bound_ns,
        gap=gap,
        step_ns=step_ns,
        compute_ns=compute_ns,
        communication_ns=exposed_ns,
        hidden_ns=max(0, sent_ns - exposed_ns),
        memory=priced.memory,
        memory_limit_bytes=limit_bytes,
        reproducible=proof.reproducible,
        multipliers=proof.multipliers,
        step_bound_ns=bound_ns,
        prefetch_distance=-1 if priced.scheduled.policy.distance is None else priced.scheduled.policy.distance,
        prefetches_in_time=priced.scheduled.policy.just_in_time,
        reduces_beside=priced.scheduled.policy.deferred,
    )


def _optimizer_seconds(built: CostGraph, choice: Mapping[Node, int]) -> float:
    """The optimizer's step."""
    seconds = 0.0
    for name in sorted(built.trainable):
        node, state = built.optimizer_node(name)
        seconds += float(built.pricer.optimizer_seconds(state, built.model.tensor(name).dtype)[choice[node]])
    return seconds
