"""Cost graph + assignment -> plan: decisions, moves, times and memory.

Everything is priced again from the lowered moves, with arithmetic of its own. Where that is not the solver's price, it
is the plan's price that counts, and with `SHARDPLAN_CHECK_PRICES` in the environment, as in tests, an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardplan.cluster.mesh import cluster_digest
from shardplan.errors import ShardplanError, error
from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import Category, Holding
from shardplan.graph.memory import Memory as MemoryRows
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import node_order
from shardplan.graph.remat import Recompute, recomputed
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model, Parameter
from shardplan.plan.emit import Emitter
from shardplan.plan.timeline import schedule_of
from shardplan.plan.types import Memory, Move, OperatorDecision, Plan, Summary, TensorDecision
from shardplan.solve.problem import Costs, Solution
from shardplan.units import NS_PER_S, PS_PER_S

_TOLERANCE = 1e-7
"""Relative; beside the roundings of single prices to nanoseconds."""


STRICT = "SHARDPLAN_CHECK_PRICES"


class PriceMismatchError(RuntimeError):
    """The plan's own price differs from the solver's: a defect of shardplan, never of its input."""


@dataclass(frozen=True)
class Priced:
    """An assignment with its moves and times. Seconds per step: `compute_s`; `exposed_s`, communication that cannot
    hide; `hideable_s`, that can, of which `at_best_s` does if there is compute enough. `penalty_s`: charged for
    broken soft constraints. `weight`: of f1 against f2, where the bound was found, if not that of the graph.
    `mismatch`: the two prices, where the solver's was another."""

    built: CostGraph
    solution: Solution
    choice: Mapping[Node, int]
    moves: tuple[Move, ...]
    compute_s: float
    exposed_s: float
    hideable_s: float
    at_best_s: float
    penalty_s: float = 0.0
    weight: float | None = None
    mismatch: str = ""

    @property
    def f1_s(self) -> float:
        """The step if all communication hides that can (see `shardplan.planning.objective`)."""
        return self.compute_s + self.exposed_s + self.hideable_s - self.at_best_s

    @property
    def f2_s(self) -> float:
        """The step if all compute hides behind communication."""
        return self.exposed_s + self.hideable_s

    @property
    def step_s(self) -> float:
        return max(self.f1_s, self.f2_s)


def price(built: CostGraph, solution: Solution, penalties: Mapping[Node, Costs] | None = None) -> Priced:
    """Lower and price an assignment; `penalties`: picoseconds for choices that break soft constraints.

    Where that gives another objective, the solution gets it; with `SHARDPLAN_CHECK_PRICES` in the environment
    `PriceMismatchError` is raised.
    """
    assert solution.choices is not None
    choice = dict(zip(node_order(built), solution.choices, strict=True))
    moves = Emitter(built, choice).moves()
    compute_s, exposed_s = _work_seconds(built, choice)
    exposed_s += sum(move.time_ns for move in moves if not move.hidden) / NS_PER_S
    hideable_s = sum(move.time_ns for move in moves if move.hidden) / NS_PER_S
    at_best_s = sum(move.time_ns * move.hidden for move in moves) / NS_PER_S
    penalty_s = sum(float(cost[choice[node]]) for node, cost in (penalties or {}).items()) / PS_PER_S
    priced = Priced(built, solution, choice, moves, compute_s, exposed_s, hideable_s, at_best_s, penalty_s)
    return _checked(priced)


def _checked(priced: Priced) -> Priced:
    weight = priced.built.prices.weight
    ties_s = priced.built.tie_picoseconds(priced.choice) / PS_PER_S
    ours_s = weight * priced.f1_s + (1.0 - weight) * priced.f2_s + ties_s + priced.penalty_s
    theirs_s = priced.solution.cost / PS_PER_S
    roundings_s = 2e-9 * sum(move.count * len(move.steps) for move in priced.moves) + 1e-6
    if abs(ours_s - theirs_s) <= _TOLERANCE * theirs_s + roundings_s:
        return priced
    message = f"the lowered plan costs {ours_s:.9f} s but the solver's assignment {theirs_s:.9f} s"
    if os.environ.get(STRICT):
        raise PriceMismatchError(message)
    cost = ours_s * PS_PER_S
    solution = replace(priced.solution, cost=cost, bound=min(priced.solution.bound, cost))
    return replace(priced, solution=solution, mismatch=message)


def assemble(priced: Priced, memory: MemoryRows, limit_bytes: int, step_bound_s: float) -> Plan:
    """The plan of a priced assignment; `step_bound_s`: proven lower bound on the step of any plan."""
    built, choice = priced.built, priced.choice
    emitter = Emitter(built, choice)
    operators = tuple(_operator(built, choice, index) for index in range(len(built.operators)))
    summary = _summary(priced, memory, limit_bytes, step_bound_s)
    if built.options.cost_model.is_ours:
        laid_out = schedule_of(operators, priced.moves, summary, built.options.mode, built.cluster.overlap.kappa)
        summary = replace(summary, scheduled_ns=round(laid_out.seconds * NS_PER_S))
    return Plan(
        model=model_section(built.model, built.options),
        cluster={
            "name": built.cluster.name,
            "digest": cluster_digest(built.cluster),
            "profile": built.cluster.resolved,
        },
        mesh=built.cluster.mesh,
        axis_links=tuple(built.cluster.levels[level].name for level in built.cluster.axis_levels),
        summary=summary,
        tensors=_tensors(built, choice, emitter),
        operators=operators,
        moves=priced.moves,
        warnings=tuple(str(diagnostic) for diagnostic in (*built.model.warnings, *built.pricer.compute.warnings)),
        blocks=tuple((block.names, block.copies) for block in built.model.blocks),
    )


def model_section(model: Model, options: PlanOptions) -> Mapping[str, object]:
    """What a plan says of its model and of what was asked."""
    constraints = [str(constraint) for constraint in options.constraints]
    aliases = next((constraint.aliases for constraint in options.constraints if constraint.aliases), ())
    return {
        "name": model.name,
        "digest": structure_digest(model),
        "mode": options.mode,
        "dims": dict(sorted(model.dims.items())),
        "optimizer": options.optimizer if options.training else "none",
        "remat": options.remat,
        "microbatches": options.microbatches,
        "operators": len(model.operators),
        "parameters": len(model.parameters),
        "parameter_elements": sum(model.tensor(parameter.tensor).elements for parameter in model.parameters),
        **({} if options.cost_model.is_ours else {"cost_model": str(options.cost_model)}),
        **({"loops": dict(model.trips)} if model.trips else {}),
        **({"shard_optimizer": True} if options.shard_optimizer else {}),
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
        recomputed=_chosen(built) and _comes_again(built, name),
    )


def _chosen(built: CostGraph) -> bool:
    """Whether what is recomputed was chosen, and no flag says it."""
    return built.options.remat == "auto"


def _comes_again(built: CostGraph, name: str) -> bool:
    maker, again = built.flow.makers.get(name, (None, 0))[0], built.recompute
    return maker in again.until and name in built.fusion.saved and name not in again.saved


def recompute_of(plan: Plan, built: CostGraph) -> Recompute:
    """What a plan says of what is recomputed, for a graph of the same model.

    Raises `ShardplanError` (`damaged-plan`) when it names an operator that the model does not have.
    """
    number = {operator.name: index for index, operator in enumerate(built.model.operators)}
    wanted = {operator.name: operator.again for operator in plan.operators if operator.again}
    unknown = sorted({name for pair in wanted.items() for name in pair} - number.keys())
    if unknown:
        summary = f"'{unknown[0]}' is to be computed again or before that, and is no operator of '{built.model.name}'"
        raise ShardplanError(error("damaged-plan", summary, hint="solve again"))
    until = {number[name]: number[before] for name, before in wanted.items()}
    saved = frozenset(tensor.name for tensor in plan.tensors if tensor.saved)
    return recomputed(built.model, built.rules, built.flow, until, saved)


def _operator(built: CostGraph, choice: Mapping[Node, int], index: int) -> OperatorDecision:
    operator, space = built.model.operators[index], built.operators[index]
    strategy, again = choice["operator", operator.name], built.recompute.until.get(index)
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
        inner_ns=round(float(space.inner_s[strategy]) * NS_PER_S),
        inputs=operator.inputs,
        outputs=operator.outputs,
        again=built.model.operators[again].name if _chosen(built) and again is not None else "",
    )


def _summary(priced: Priced, memory: MemoryRows, limit_bytes: int, step_bound_s: float) -> Summary:
    solution = priced.solution
    compute_ns, step_ns = round(priced.compute_s * NS_PER_S), round(priced.step_s * NS_PER_S)
    communication_s = priced.exposed_s + priced.hideable_s
    assert solution.outcome in ("optimal", "feasible", "interrupted")
    return Summary(
        outcome=solution.outcome,
        objective_ns=round(solution.cost / PS_PER_S * NS_PER_S),
        bound_ns=round(min(solution.bound, solution.cost) / PS_PER_S * NS_PER_S),
        gap=solution.gap,
        step_ns=step_ns,
        compute_ns=compute_ns,
        communication_ns=step_ns - compute_ns,
        hidden_ns=max(0, round(communication_s * NS_PER_S) - (step_ns - compute_ns)),
        memory=peak_memory(memory.holdings, memory.moments, priced.choice),
        memory_limit_bytes=limit_bytes,
        reproducible=solution.reproducible,
        overlap_weight=priced.built.prices.weight if priced.weight is None else priced.weight,
        step_bound_ns=min(step_ns, round(step_bound_s * NS_PER_S)),
    )


def _work_seconds(built: CostGraph, choice: Mapping[Node, int]) -> tuple[float, float]:
    """Compute (operators and optimizer step) and collectives inside operators, seconds per step."""
    compute_s = inner_s = 0.0
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        strategy = choice["operator", operator.name]
        compute_s += float(space.compute_s[strategy])
        inner_s += float(space.inner_s[strategy])
    for name in sorted(built.trainable):
        node, state = built.optimizer_node(name)
        compute_s += float(built.pricer.optimizer_seconds(state, built.model.tensor(name).dtype)[choice[node]])
    return compute_s, inner_s


def peak_memory(holdings: Sequence[Holding], moments: int, choice: Mapping[Node, int]) -> Memory:
    """Bytes by category at the moment when their sum is largest (the first such moment)."""
    held = held_bytes(holdings, moments, choice)
    return Memory(*(int(value) for value in held[:, peak_moment(held)]))


def held_bytes(holdings: Sequence[Holding], moments: int, choice: Mapping[Node, int]) -> NDArray[np.int64]:
    """Bytes of every category (in the order of `Memory`) at every moment, shape (5, moments)."""
    categories: tuple[Category, ...] = ("parameters", "gradients", "optimizer", "activations", "temporaries")
    change = np.zeros((len(categories), moments + 1), dtype=np.int64)
    for holding in holdings:
        amount = int(holding.amount[choice[holding.node]])
        row = categories.index(holding.category)
        change[row, holding.start] += amount
        change[row, holding.end] -= amount
    return change.cumsum(axis=1)[:, :-1]


def peak_moment(held: NDArray[np.int64]) -> int:
    """The first moment at which most is held."""
    return int(held.sum(axis=0).argmax()) if held.shape[1] else 0
