"""Rematerialisation: which operators are recomputed in backward, chosen together with the layouts in one problem.

Two problems with the same nodes and edges, one as if nothing were recomputed and one as if everything were, are
combined: an operator's choices are its strategies without recomputation, then those with it, for each of its labels; a
value's choices are its layouts for each of its fates. All costs and constraints stay pairwise: a recomputed operator
needs each operand saved or recomputed in time, and a recomputed value needs a recomputed maker. Memory follows the
fates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.memory import MemoryRows
from shardplan.graph.moments import Moments
from shardplan.graph.options import Remat
from shardplan.graph.problem import node_order
from shardplan.graph.remat import Recompute, recompute, recomputed
from shardplan.planning.reduction import Assignment, LayoutProblem, Problems, Reduction
from shardplan.planning.remat_scope import ONCE, Scope, scope
from shardplan.solve.problem import Bytes, Costs, Edge, Problem, Usage

_RECOMPUTE_PICOSECONDS = 1.0
"""Charge for every recomputed operator, so that none is recomputed without need."""
State = int | str | frozenset[int] | None


@dataclass(frozen=True)
class RematNumbering:
    """The numbering of the combined problem: the choices of node v, which is `order[v]`, in its state `states[v][s]`
    begin at `starts[v][s]`. `built`: the cost graph without recomputation."""

    built: CostGraph
    scope: Scope
    order: tuple[Node, ...]
    states: tuple[tuple[State, ...], ...]
    starts: tuple[tuple[int, ...], ...]

    def decoded(self, choices: Sequence[int]) -> tuple[Recompute, tuple[int, ...]]:
        """What an assignment recomputes, and its choices in the cost graph that recomputes exactly that."""
        states: list[State] = []
        local: list[int] = []
        for choice, starts, of_node in zip(choices, self.starts, self.states, strict=True):
            number = bisect_right(starts, choice) - 1
            states.append(of_node[number])
            local.append(choice - starts[number])
        return self._recompute(states), tuple(local)

    def _recompute(self, states: Sequence[State]) -> Recompute:
        built, state = self.built, dict(zip(self.order, states, strict=True))
        names = [operator.name for operator in built.model.operators]
        until = {index: label for index, name in enumerate(names) if (label := state["operator", name]) != ONCE}
        untracked = {name for name in built.fusion.saved if name not in self.scope.fates}
        saved = {name for name in self.scope.fates if state["kept", name] in ("saved", "saved, recomputed")}
        held = built.options.holds_weights
        return recomputed(built.model, built.rules, built.flow, until, frozenset(saved | untracked), holds=held)  # type: ignore[arg-type]


class Rematerialisation(Reduction[RematNumbering | None]):
    """The reduction that makes recomputation part of the choices; if it is given, the problem stays the same."""

    def apply(self, problems: Problems) -> tuple[Problems, RematNumbering | None]:
        if not problems.repeated:
            return problems, None
        combined = [with_remat(once, repeated) for once, repeated in zip(problems.sums, problems.repeated, strict=True)]
        sums = (replace(once, problem=problem) for once, (problem, _) in zip(problems.sums, combined, strict=True))
        return Problems(tuple(sums)), combined[0][1]

    def invert(self, assignment: Assignment, data: RematNumbering | None) -> Assignment:
        if data is None:
            return assignment
        remat, choices = data.decoded(assignment.choices)
        return Assignment(choices, remat)


def with_remat(once: LayoutProblem, repeated: LayoutProblem) -> tuple[Problem, RematNumbering]:
    """The combined problem of layouts and rematerialisation. `once`, `repeated`: the problem as if nothing, and as if
    everything, were recomputed, already restricted and penalised; memory is added here."""
    built = once.built
    choices = scope(built.model, built.rules, built.flow, built.fusion, built.options)
    return _Combined(choices, built, repeated.built, once.problem, repeated.problem).combined()


def everything(built: CostGraph) -> Recompute:
    """Recomputation of every operator; only its prices are used."""
    last = len(built.model.operators) - 1
    until = dict.fromkeys(range(len(built.model.operators)), last)
    return recomputed(built.model, built.rules, built.flow, until, built.fusion.saved, holds=False)


FLAGS: Final[tuple[Remat, ...]] = ("none", "selective", "alternate", "full")
"""Flags that are tried beside the choice of `auto`, which by itself recomputes nothing."""
MOST_RECOMPUTED: Final[Remat] = "full"
"""The flag whose plans hold the least."""


def flags(built: CostGraph) -> Iterator[Recompute]:
    """What `--remat none`, `selective`, `alternate` and `full` recompute, without duplicates."""
    for flag in FLAGS:
        remat = flagged(built, flag)
        if flag == "none" or remat.until:
            yield remat


def flagged(built: CostGraph, flag: Remat) -> Recompute:
    """What `--remat` recomputes at a value other than `auto`."""
    return recompute(built.model, built.rules, built.flow, built.fusion, replace(built.options, remat=flag))


class _Combined:
    def __init__(self, scope: Scope, once: CostGraph, repeated: CostGraph, first: Problem, second: Problem) -> None:
        self.scope, self.once, self.repeated = scope, once, repeated
        self.problems = first, second
        self.order = node_order(once)
        self.index = {operator.name: index for index, operator in enumerate(once.model.operators)}
        self.states = [self._states(node) for node in self.order]
        self._tables: dict[tuple[object, ...], Costs] = {}
        self._costs: dict[tuple[object, ...], Costs] = {}
        self._bytes: dict[tuple[object, ...], Bytes] = {}

    def combined(self) -> tuple[Problem, RematNumbering]:
        once, repeated = self.problems
        edges = []
        for edge, other in zip(once.edges, repeated.edges, strict=True):
            edges.append(Edge(edge.u, edge.v, self._table(edge, other)))
        costs = tuple(self._cost(number) for number in range(len(self.order)))
        starts = tuple(self._starts(number) for number in range(len(self.order)))
        problem = Problem(costs, tuple(edges), tuple(self._usages()), once.limit)
        return problem, RematNumbering(self.once, self.scope, self.order, tuple(self.states), starts)

    def _states(self, node: Node) -> tuple[State, ...]:
        kind, name = node
        if kind == "operator":
            return self.scope.labels[self.index[name]]
        if name not in self.scope.fates or kind == "updated":
            return (None,)
        fates = self.scope.fates[name]
        if kind == "kept":
            return fates
        return tuple(dict.fromkeys(self.scope.serves(name, fate) for fate in fates))

    def _starts(self, number: int) -> tuple[int, ...]:
        sizes = [len(self._own(number, state)) for state in self.states[number]]
        return tuple(np.cumsum([0, *sizes[:-1]]).tolist())

    def _own(self, number: int, state: State) -> Costs:
        """Costs of a node's choices in one state."""
        recomputes = self.order[number][0] == "operator" and state != ONCE
        return self.problems[recomputes].costs[number]

    def _cost(self, number: int) -> Costs:
        states = self.states[number]
        if len(states) == 1:
            return self._own(number, states[0])
        ties = [float(state != ONCE) if self.order[number][0] == "operator" else 0.0 for state in states]
        parts = [self._own(number, state) for state in states]
        key = (*(id(part) for part in parts), *ties)
        if key not in self._costs:
            self._costs[key] = np.concatenate(
                [part + _RECOMPUTE_PICOSECONDS * tie for part, tie in zip(parts, ties, strict=True)]
            )
        return self._costs[key]

    def _table(self, edge: Edge, other: Edge) -> Costs:
        rows, columns = self.states[edge.u], self.states[edge.v]
        if len(rows) == len(columns) == 1:
            return edge.table
        kinds = self.order[edge.u][0], self.order[edge.v][0]
        tensor = self.order[edge.u if kinds[0] != "operator" else edge.v][1]
        allowed = [[self._allowed(kinds, tensor, row, column) for column in columns] for row in rows]
        # which of the two prices: by the operator's label, or by whether a copy is served in backward
        by_row = kinds[0] == "operator"
        prices = [_recomputes(state) for state in (rows if by_row else columns)]
        key = (id(edge.table), id(other.table), by_row, tuple(prices), tuple(map(tuple, allowed)))
        if key not in self._tables:
            tables = edge.table, other.table
            self._tables[key] = np.block(
                [
                    [
                        tables[prices[r if by_row else c]]
                        if allowed[r][c]
                        else np.full(tables[prices[r if by_row else c]].shape, np.inf)
                        for c in range(len(columns))
                    ]
                    for r in range(len(rows))
                ]
            )
        return self._tables[key]

    def _allowed(self, kinds: tuple[str, str], tensor: str, row: State, column: State) -> bool:
        if kinds == ("operator", "kept"):
            return column is None or self._made(row, column, tensor)
        if kinds == ("kept", "served"):
            return row is None or self.scope.serves(tensor, row) == column  # type: ignore[arg-type]
        if kinds[1] == "operator" and row is not None and column != ONCE:
            served = row if isinstance(row, frozenset) else self.scope.serves(tensor, row)  # type: ignore[arg-type]
            return column in served
        return True

    def _made(self, label: State, fate: State, tensor: str) -> bool:
        """Whether a value can have this fate, given whether its maker is recomputed."""
        if label == ONCE:
            return fate in ("passing", "saved")
        if fate == "passing":
            maker = self.once.model.operators[self.once.flow.makers[tensor][0]]
            return sum(map(bool, maker.outputs)) > 1
        return fate in ("saved, recomputed", label)

    def _usages(self) -> list[Usage]:
        time = Moments(len(self.once.model.operators), training=True, segments=self.scope.segments())
        memory = MemoryRows(self.once, time)
        number = {node: index for index, node in enumerate(self.order)}
        usages = []
        for holding in memory.holdings:
            kind, name = holding.node
            chosen = kind == "kept" and name in self.scope.fates and holding.category == "activations"
            if kind != "operator" and not chosen:
                node = number[holding.node]
                amount = self._repeated(holding.amount, len(self.states[node]))
                usages.append(Usage(node, holding.start, holding.end, amount))
        for index, operator in enumerate(self.once.model.operators):
            usages += self._of_operator(index, number["operator", operator.name], time)
        for name in self.scope.fates:
            if name not in self.once.fusion.inner:
                usages += self._of_value(name, number["kept", name], memory, time)
        return usages

    def _repeated(self, amount: Bytes, times: int) -> Bytes:
        key = ("repeated", id(amount), times)
        if key not in self._bytes:
            self._bytes[key] = np.tile(amount, times)
        return self._bytes[key]

    def _of_operator(self, index: int, node: int, time: Moments) -> list[Usage]:
        labels = self.scope.labels[index]
        first, last = self.once.flow.windows.get(index, (index, index))
        spaces = [(self.once if label == ONCE else self.repeated).operators[index] for label in labels]
        key = tuple(id(space) for space in spaces)
        if ("forward", *key) not in self._bytes:
            self._bytes["forward", *key] = np.concatenate([space.forward_bytes for space in spaces])
            self._bytes["backward", *key] = np.concatenate([space.backward_bytes for space in spaces])
        usages = [
            Usage(node, first, last + 1, self._bytes["forward", *key]),
            Usage(node, time.backward(last), time.backward(first) + 1, self._bytes["backward", *key]),
        ]
        for number, label in enumerate(labels[1:], start=1):
            masked = ("recomputed", number, *key)
            if masked not in self._bytes:
                parts = [space.forward_bytes * (n == number) for n, space in enumerate(spaces)]
                self._bytes[masked] = np.concatenate(parts)
            moment = time.recomputation(index, label)
            usages.append(Usage(node, moment, moment + 1, self._bytes[masked]))
        return usages

    def _of_value(self, name: str, node: int, memory: MemoryRows, time: Moments) -> list[Usage]:
        """The memory of a value for each of its fates, in intervals in which nothing changes."""
        fates = self.scope.fates[name]
        spans = [memory.spans(name, fate, time) for fate in fates]
        marks = sorted({mark for of_fate in spans for span in of_fate for mark in span[:2]})
        amount = memory.kept_bytes(name)
        usages = []
        for start, end in pairwise(marks):
            times = tuple(sum(held for begin, stop, held in of_fate if begin <= start < stop) for of_fate in spans)
            if any(times):
                key = ("value", id(amount), times)
                if key not in self._bytes:
                    self._bytes[key] = np.concatenate([amount * held for held in times])
                usages.append(Usage(node, start, end, self._bytes[key]))
        return usages


def _recomputes(state: State) -> bool:
    """Whether an operator in this state is recomputed, or a value in it is read as recomputed."""
    if isinstance(state, frozenset):
        return bool(state)
    return state is not None and state != ONCE
