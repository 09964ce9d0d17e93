"""From the cost graph to a `Problem`: the same nodes and edges as arrays, in graph order, and the memory rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import MemoryRows
from shardplan.interruption import NEVER, Deadline
from shardplan.schedule.objective import (
    Linear,
    Objective,
    PhaseSums,
    Sum,
    at_multipliers,
    levels_of_sets,
    serial_objective,
    step_objective,
)
from shardplan.schedule.terms import Priced, Table, Term
from shardplan.solve.problem import Edge, Problem

_SOME_SIZE = 0.002
"""Share of all parameters above which a weight counts as large."""
_FIRST_READERS = 2
"""Number of readers of weights with a sum for what is gathered before them: often the first weight, an embedding, is
not gathered."""
_AXES_WITH_INNER = 2
"""Number of mesh axes up to which inner link levels have sums beside their traffic: every sum has a table for every
edge, and with more axes these are large."""
Arrays = tuple[tuple[Table, ...], tuple[Table, ...]]
"""Costs of nodes and tables of edges, in picoseconds per step."""


def node_order(built: CostGraph) -> tuple[Node, ...]:
    """The nodes in the order in which `to_problem` numbers them."""
    return tuple(node for node, _ in built.node_data)


def objective_of(built: CostGraph) -> Objective:
    """The time of a step, phase by phase; with another system's prices, the sum of all times."""
    options, cluster = built.options, built.cluster
    if not options.cost_model.is_ours:
        return serial_objective(training=options.training, microbatches=options.microbatches)
    levels = levels_of_sets(built.prices.level_sets, [level.name for level in cluster.levels])
    axes = sum(size > 1 for size in cluster.mesh.shape)
    inner = levels[:-1] if axes <= _AXES_WITH_INNER else ()
    objective = step_objective(
        levels,
        training=options.training,
        microbatches=options.microbatches,
        sharded_optimizer=bool(built.updated),
        kappa=cluster.overlap.kappa,
        links=built.links,
        inner=inner,
    )
    readers = _readers_of_weights(built)
    if not levels or not readers:
        return objective
    cuts = {
        phase.name: _cuts(phase, (*inner, levels[-1]), readers)
        for phase in objective.phases
        if phase.name != "backward"
    }
    return objective.with_cuts(cuts)


def _cuts(phase: PhaseSums, levels: Sequence[str], readers: Sequence[int]) -> tuple[Sum, ...]:
    """Sums around the operators at the ends of a phase: what is gathered before the first readers of weights, or
    reduced after the backward of the first one, is exposed; and all that is gathered comes before the last reader, all
    that is reduced after its backward."""
    if "once" in phase.segments:
        ends = (Sum("reduced last", level, readers[0]) for level in levels)
        return (Sum("reduced last", levels[-1], readers[-1]), *ends)
    first = (Sum("gathered first", levels[-1], reader) for reader in readers[:_FIRST_READERS])
    return (*first, *(Sum("gathered first", level, readers[-1]) for level in levels))


def _readers_of_weights(built: CostGraph) -> list[int]:
    """The operators, ascending, that read a weight above a minimal size, or a value of weights only, beside another
    operand: the gather for the first of them delays the step, and no gradient is reduced before the backward of the
    last."""
    sizes = {one.tensor: built.model.tensor(one.tensor).elements for one in built.model.parameters}
    least = _SOME_SIZE * sum(sizes.values())
    found = []
    for index, operator in enumerate(built.model.operators):
        size = max((sizes.get(name, 0) for name in operator.inputs), default=0)
        if built.flow.is_of_weights(operator):
            sizes |= dict.fromkeys(operator.outputs, size)
        elif size > least:
            found.append(index)
    return found


def to_problem(built: CostGraph, memory: MemoryRows, limit_bytes: int | None, linear: Linear) -> Problem:
    """Arrays for the solver, of one linear function of the terms; equal tables stay the same objects."""
    return to_problems(built, memory, limit_bytes, (linear,))[0]


def to_problems(
    built: CostGraph,
    memory: MemoryRows,
    limit_bytes: int | None,
    linears: Sequence[Linear],
    deadline: Deadline = NEVER,
) -> tuple[Problem, ...]:
    """The problem of each of several linear functions; what is equal in several is the same object in each. Raises
    `GivenUpError` at the deadline."""
    us, vs = zip(*built.ends, strict=True) if built.ends else ((), ())
    return tuple(
        Problem(costs, tuple(map(Edge, us, vs, tables)), memory.usages, limit_bytes)
        for costs, tables in arrays(built, linears, deadline)
    )


def at(built: CostGraph, linear: Linear) -> CostGraph:
    """The same cost graph, whose nodes carry `cost` (picoseconds per step and choice) and whose edges carry `table`
    (per pair of choices), of one linear function of the terms."""
    graph = built.graph.copy()
    [(costs, tables)] = arrays(built, (linear,))
    for (_, data), cost in zip(graph.nodes(data=True), costs, strict=True):
        data["cost"] = cost
    for (_, _, data), table in zip(graph.edges(data=True), tables, strict=True):
        data["table"] = table
    return replace(built, graph=graph)


def as_serial(built: CostGraph) -> CostGraph:
    """The same cost graph with costs and tables of the sum of all compute and all communication, as if nothing were
    overlapped."""
    options = built.options
    objective = serial_objective(training=options.training, microbatches=options.microbatches)
    return at(built, at_multipliers(objective, ()))


def arrays(built: CostGraph, linears: Sequence[Linear], deadline: Deadline = NEVER) -> Iterator[Arrays]:
    """Costs and tables of linear functions of the terms, in graph order; equal ones are the same object, also in
    different functions. Raises `GivenUpError` at the deadline."""
    kinds = _Kinds(linears)
    nodes = [kinds.number(data["priced"], data.get("position", 0)) for _, data in built.node_data]
    edges = [kinds.number(data["priced"], data["position"]) for data in built.edge_data]
    made: dict[tuple[int, tuple[float, ...]], Table] = {}
    for linear in linears:
        tables = []
        for priced, coefficients in kinds.of(linear):
            key = id(priced), coefficients
            if key not in made:
                deadline.check()
                made[key] = priced.at(coefficients)
            tables.append(made[key])
        yield tuple([tables[kind] for kind in nodes]), tuple([tables[kind] for kind in edges])


class _Kinds:
    """What costs the same by every one of some linear functions: the same terms, on the same side of every cut."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        self._cuts = sorted(frozenset[int]().union(*(linear.cuts for linear in linears)))
        self._numbers: dict[tuple[int, int], int] = {}
        self._members: list[tuple[Priced, int]] = []

    def number(self, priced: Priced, position: int) -> int:
        """The number of the kind of a node or an edge at operator `position`."""
        key = id(priced), _interval(self._cuts, position)
        if key not in self._numbers:
            self._numbers[key] = len(self._members)
            self._members.append((priced, position))
        return self._numbers[key]

    def of(self, linear: Linear) -> Iterator[tuple[Priced, tuple[float, ...]]]:
        """The terms of every kind, with their coefficients in a linear function."""
        cuts = sorted(linear.cuts)
        factors: dict[tuple[Term, int], float] = {}
        for priced, position in self._members:
            interval, coefficients = _interval(cuts, position), []
            for term in priced.terms:
                if (term, interval) not in factors:
                    factors[term, interval] = linear.coefficient(term, position)
                coefficients.append(factors[term, interval])
            yield priced, tuple(coefficients)


def _interval(cuts: Sequence[int], position: int) -> int:
    """A number for the place of a position among ascending cuts: odd at one of them, even between two."""
    return bisect_left(cuts, position) + bisect_right(cuts, position)
