"""Validation of a problem before any arithmetic on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.solve.constants import CHECKED_TOGETHER, REPORTED_FAULTS
from shardplan.solve.problem import Costs, LinearSum, Problem

_EXACT = 1 << 53
"""Integers in float64 are exact up to here."""
_SUMS = 1 << 62
"""Sums in 64 bits stay below, so that a limit can be added to them."""


def validate(problem: Problem) -> None:
    """Raises `ShardplanError` with what is wrong with a problem: shapes, unknown nodes, invalid costs."""
    found = [item for _, item in zip(range(REPORTED_FAULTS), _faults(problem), strict=False)]
    if found:
        raise ShardplanError(*found)


def _faults(problem: Problem) -> Iterator[Diagnostic]:
    bad = _bad_tables([*problem.costs, *(edge.table for edge in problem.edges)], _bad_numbers)

    def costs(where: str, table: Costs) -> Iterator[Diagnostic]:
        if id(table) in bad:
            yield error(
                "bad-problem", f"{where}: {bad[id(table)]}", hint="costs are integers, or inf where not allowed"
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
    usages = list(_bad_usages(problem, sizes))
    yield from usages
    if not usages and (fault := memory_fault(problem)):
        yield error("bad-problem", fault)
    yield from _bad_maxima(problem)


def memory_fault(problem: Problem) -> str:
    """What is wrong with the size of well-formed usages and of the limit; empty where all that the search adds up is
    exact: tables in float64, their sums in 64 bits."""
    limit = problem.limit
    if limit is None:
        return ""
    if abs(limit) > _SUMS:
        return f"the limit of memory is {limit:,}; 2**62 is the largest"
    # What is above the limit is cut off there, so that single amounts are exact below a limit that is. A larger limit
    # is one that is never reached, by more than sums of rounded amounts are off.
    most = _SUMS - 1 if limit < _EXACT else max(_EXACT, min(_SUMS - 1, limit - (limit >> 32)))
    if len(problem.usages) * (max(limit, 0) + 1) <= most or (peak := _most_memory(problem, limit)) <= most:
        return ""
    return (
        f"usages may add up to {peak:,} at one moment, under a limit of {limit:,}: more than can be added up exactly; "
        "give memory in a larger unit"
    )


def _most_memory(problem: Problem, limit: int) -> int:
    """The largest sum over any moment of what every usage is at most, each cut off above the limit."""
    amounts = {id(usage.amount): usage.amount for usage in problem.usages}
    most = {key: min(int(amount.max(initial=0)), max(limit, 0) + 1) for key, amount in amounts.items()}
    steps: dict[int, int] = {}
    for usage in problem.usages:
        steps[usage.start] = steps.get(usage.start, 0) + most[id(usage.amount)]
        steps[usage.end] = steps.get(usage.end, 0) - most[id(usage.amount)]
    return max(itertools.accumulate(steps[at] for at in sorted(steps)), default=0)


def _bad_maxima(problem: Problem) -> Iterator[Diagnostic]:
    for group, maximum in enumerate(problem.maxima):
        if not maximum.sums:
            yield error("bad-problem", f"maximum {group}: has no sums")
        for number, one in enumerate(maximum.sums):
            yield from _bad_sum(problem, one, f"maximum {group}, sum {number}")


def _bad_sum(problem: Problem, one: LinearSum, where: str) -> Iterator[Diagnostic]:
    wanted = [*(costs.shape for costs in problem.costs), *(edge.table.shape for edge in problem.edges)]
    tables = (*one.costs, *one.tables)
    if [table.shape for table in tables] != wanted:
        yield error("bad-problem", f"{where}: has not one number for every choice and pair of choices")
    elif bad := _bad_tables(tables, _bad_number_of_sum):
        yield error("bad-problem", f"{where}: {next(iter(bad.values()))}")


def _bad_tables(tables: Sequence[Costs], fault: Callable[[Costs], str]) -> dict[int, str]:
    """By the identity of a table what is wrong with its numbers. Equal tables are looked at once, and small problems'
    tables together: one by one, calls of numpy would take most of the time."""
    distinct = {id(table): table for table in tables}
    is_small = sum(table.size for table in distinct.values()) <= CHECKED_TOGETHER
    if is_small and not fault(np.concatenate([np.zeros(0), *(table.ravel() for table in distinct.values())])):
        return {}
    return {key: found for key, table in distinct.items() if (found := fault(table))}


def _bad_number_of_sum(table: Costs) -> str:
    return "a number is not a finite integer" if ((table != np.rint(table)) | np.isinf(table)).any() else ""


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
    amounts = {id(usage.amount): usage.amount for usage in problem.usages}
    least = {key: int(amount.min(initial=0)) for key, amount in amounts.items()}
    for number, usage in enumerate(problem.usages):
        where = f"usage {number} (node {usage.node})"
        if not 0 <= usage.node < len(sizes):
            yield error("bad-problem", f"{where}: nodes are 0 to {len(sizes) - 1}")
        elif usage.amount.shape != (sizes[usage.node],):
            yield error("bad-problem", f"{where}: {usage.amount.shape} amounts for {sizes[usage.node]} choices")
        elif usage.start < 0 or usage.end < usage.start:
            yield error("bad-problem", f"{where}: interval [{usage.start}, {usage.end}) is not one")
        elif least[id(usage.amount)] < 0:
            yield error("bad-problem", f"{where}: an amount is negative")
