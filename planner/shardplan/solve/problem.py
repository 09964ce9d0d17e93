"""The solver's input and output: one choice per node, costs of choices and of pairs of choices, and memory over time.

    minimise    sum_v cost_v(x_v) + sum_e table_e(x_u, x_v) + sum_g max(0, s_g1(x), ..., s_gk(x))
    subject to  for every moment t:  sum of usage_v(x_v) over the usages that cover t  <=  limit

where every s is a sum over nodes and edges too, of any sign.

Costs are integers held in float64 (exact below 2**53), `inf` if a choice or pair is not allowed. Equal tables should be
the same array object: work on shared tables is shared. The form is that of the public IOPDDL benchmark, generalised: a
node may have several usages, each over its own half-open interval [start, end).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]
Bytes = NDArray[np.int64]
SumMultipliers = tuple[tuple[float, ...], ...]
"""A Lagrange multiplier per sum, by maximum: at least 0, with a sum of at most 1 for each maximum."""
Outcome = Literal["optimal", "feasible", "infeasible", "interrupted", "limit"]


class Edge(NamedTuple):
    """`table[i, j]`: the cost if node `u` takes choice i and node `v` choice j. `u != v`; several edges may join the
    same nodes."""

    u: int
    v: int
    table: Costs


class Usage(NamedTuple):
    """While start <= t < end, node `node` with choice i uses `amount[i]` bytes."""

    node: int
    start: int
    end: int
    amount: Bytes


@dataclass(frozen=True, slots=True)
class LinearSum:
    """A linear function of the choices, of any sign: `costs[v][i]` per node and `tables[e][i, j]` per edge, with the
    shapes of the problem's costs and tables. Integers in float64, finite everywhere."""

    costs: tuple[Costs, ...]
    tables: tuple[Costs, ...]


@dataclass(frozen=True, slots=True)
class Maximum:
    """The term max(0, s_1(x), ..., s_k(x)) of an objective. The maximum of f_0, ..., f_k is f_0, among the costs, plus
    the `Maximum` of f_1 - f_0, ..., f_k - f_0."""

    sums: tuple[LinearSum, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    costs: tuple[Costs, ...]
    edges: tuple[Edge, ...]
    usages: tuple[Usage, ...] = ()
    limit: int | None = None
    maxima: tuple[Maximum, ...] = ()

    @property
    def moments(self) -> int:
        """Number of moments: usages cover 0 <= t < moments."""
        return max((usage.end for usage in self.usages), default=0)


@dataclass(frozen=True, slots=True)
class Plane:
    """A cutting plane: the cost of an assignment without maxima, and the values of all sums. At multipliers w, the
    optimum of a problem that allows the assignment is at most `cost + w . sums`."""

    cost: float
    sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A starting point: `sum_multipliers`, those of the sums of maxima; `planes` of assignments of more restricted
    problems, from which the averaging starts; `memory_multipliers`, those of memory at moments; `assignments`, of which
    those that fit are answers, and from whose planes the averaging starts too, unless it `starts_there`, at
    `sum_multipliers`."""

    sum_multipliers: SumMultipliers = ()
    planes: Sequence[Plane] = ()
    memory_multipliers: Mapping[int, float] = field(default_factory=dict)
    assignments: Sequence[tuple[int, ...]] = ()
    starts_there: bool = False


ANYWHERE: Final = Start()


@dataclass(frozen=True, slots=True)
class Solution:
    """`choices[v]` for every node, or `None` if no assignment was found.

    `cost`: re-computed from the problem, independently of the search. `bound`: proven lower bound on the optimum (`inf`
    if infeasibility is proven). `outcome` `optimal`: bound equals cost. `shortfall_bytes`: if infeasible for memory,
    the least excess over the limit of any assignment. `reproducible`: no wall-clock limit took effect.
    `sum_multipliers`: those of the sums of `Problem.maxima` at the best Lagrangian bound. `candidates`: with maxima,
    different feasible assignments met at various multipliers, the cheapest first, `choices` among them; `planes`:
    theirs, if maxima were only averaged. `mixture`: the same assignments' shares, which make 1, as far as they have
    any: the mean of their planes is no higher at any multipliers than the least plane is at the best ones.
    `memory_multipliers`: those of memory at moments (cost per byte) at the best bound under the memory limit. `work`:
    the work spent, in the units of a work limit. `failure`: the error of a step that failed, if any; all other results
    stand.
    """

    outcome: Outcome
    choices: tuple[int, ...] | None
    cost: float
    bound: float
    shortfall_bytes: int = 0
    reproducible: bool = True
    seconds: float = 0.0
    work: float = 0.0
    failure: str = ""
    sum_multipliers: SumMultipliers = ()
    candidates: tuple[tuple[int, ...], ...] = ()
    planes: tuple[Plane, ...] = ()
    mixture: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    memory_multipliers: Mapping[int, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 when proven optimal."""
        if self.choices is None or self.cost == self.bound:
            return 0.0
        return (self.cost - self.bound) / abs(self.cost) if self.cost else float("inf")


def rises(first: Problem, others: Sequence[Problem]) -> tuple[LinearSum, ...]:
    """The linear sums of the differences in cost between a problem and others that differ from it only in their finite
    costs; zero where a choice is not allowed. Equal tables stay the same objects."""
    made: dict[tuple[int, int], Costs] = {}
    closed: dict[int, NDArray[np.bool_] | None] = {}
    none: dict[tuple[int, ...], Costs] = {}

    def above(low: Costs, high: Costs) -> Costs:
        if low is high:
            if low.shape not in none:
                none[low.shape] = np.zeros(low.shape)
            return none[low.shape]
        key = id(low), id(high)
        if key not in made:
            if id(low) not in closed:
                mask = np.isinf(low)
                closed[id(low)] = mask if np.count_nonzero(mask) else None
            shut = closed[id(low)]
            made[key] = high - low if shut is None else np.where(shut, 0.0, high) - np.where(shut, 0.0, low)
        return made[key]

    tables = [edge.table for edge in first.edges]
    return tuple(
        LinearSum(
            tuple(map(above, first.costs, other.costs)),
            tuple(map(above, tables, [edge.table for edge in other.edges])),
        )
        for other in others
    )
