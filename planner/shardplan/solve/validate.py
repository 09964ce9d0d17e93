"""Validation of a problem before any arithmetic on it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.solve.constants import REPORTED_FAULTS
from shardplan.solve.problem import Costs, LinearSum, Problem


def validate(problem: Problem) -> None:
    """Raises `ShardplanError` with what is wrong with a problem: shapes, unknown nodes, invalid costs."""
    found = [item for _, item in zip(range(REPORTED_FAULTS), _faults(problem), strict=False)]
    if found:
        raise ShardplanError(*found)


def _faults(problem: Problem) -> Iterator[Diagnostic]:
    checked: dict[int, str] = {}

    def costs(where: str, table: Costs) -> Iterator[Diagnostic]:
        if id(table) not in checked:
            checked[id(table)] = _bad_numbers(table)
        if checked[id(table)]:
            yield error(
                "bad-problem", f"{where}: {checked[id(table)]}", hint="costs are integers, or inf where not allowed"
            )

    sizes = [len(vector) for vector in problem.costs]
    for node, vector in enumerate(problem.costs):
        if vector.ndim != 1 or not len(vector):
            yield error("bad-problem", f"node {node}: costs have shape {vector.shape}, not one per choice")
        else:
            yield from costs(f"node {node}", vector)
    for number, edge in enumerate(problem.edges):
        where = f"edge {number} ({edge.u}, {edge.v})"
        if edge.u == edge.v or not (0 <= edge.u < len(sizes) and 0 <= edge.v < len(sizes)):
            yield error("bad-problem", f"{where}: joins two different nodes of 0 to {len(sizes) - 1}")
        elif edge.table.shape != (sizes[edge.u], sizes[edge.v]):
            want = (sizes[edge.u], sizes[edge.v])
            yield error("bad-problem", f"{where}: table has shape {edge.table.shape}, its nodes have {want} choices")
        else:
            yield from costs(where, edge.table)
    yield from _bad_usages(problem, sizes)
    yield from _bad_maxima(problem)


def _bad_maxima(problem: Problem) -> Iterator[Diagnostic]:
    for group, maximum in enumerate(problem.maxima):
        if not maximum.sums:
            yield error("bad-problem", f"maximum {group}: has no sums")
        for number, one in enumerate(maximum.sums):
            yield from _bad_sum(problem, one, f"maximum {group}, sum {number}")


def _bad_sum(problem: Problem, one: LinearSum, where: str) -> Iterator[Diagnostic]:
    wanted = [*(costs.shape for costs in problem.costs), *(edge.table.shape for edge in problem.edges)]
    tables = list({id(table): table for table in (*one.costs, *one.tables)}.values())
    if [table.shape for table in (*one.costs, *one.tables)] != wanted:
        yield error("bad-problem", f"{where}: has not one number for every choice and pair of choices")
    elif any((table != np.rint(table)).any() or np.isinf(table).any() for table in tables):
        yield error("bad-problem", f"{where}: a number is not a finite integer")


def _bad_numbers(table: Costs) -> str:
    finite = table[np.isfinite(table)]
    if np.isnan(table).any():
        return "a cost is not a number"
    if np.isneginf(table).any():
        return "a cost is minus infinity"
    if (finite != np.floor(finite)).any():
        return "a cost is not an integer"
    return ""


def _bad_usages(problem: Problem, sizes: list[int]) -> Iterator[Diagnostic]:
    for number, usage in enumerate(problem.usages):
        where = f"usage {number} (node {usage.node})"
        if not 0 <= usage.node < len(sizes):
            yield error("bad-problem", f"{where}: nodes are 0 to {len(sizes) - 1}")
        elif usage.amount.shape != (sizes[usage.node],):
            yield error("bad-problem", f"{where}: {usage.amount.shape} amounts for {sizes[usage.node]} choices")
        elif usage.start < 0 or usage.end < usage.start:
            yield error("bad-problem", f"{where}: interval [{usage.start}, {usage.end}) is not one")
        elif (usage.amount < 0).any():
            yield error("bad-problem", f"{where}: an amount is negative")
