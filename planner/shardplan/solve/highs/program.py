"""The integer linear program of a core, solved by HiGHS.

    minimise    sum_v sum_i c_vi x_vi  +  sum_e sum_ij r_eij y_eij  +  sum_g e_g
    subject to  sum_i x_vi = 1                                       for every node v
                sum_j y_eij = x_ui,  sum_i y_eij = x_vj              for every edge e = (u, v), labels i and j
                sum_vi usage_vi(t) x_vi <= limit                     for every moment t (lazy: when it is violated)
                s_gk(x) <= e_g                                       for every sum k of a maximum g
                x binary,  y >= 0,  e >= 0

Integral x makes y integral, and the relaxation is as tight as a pairwise LP can be. Pairs that cost infinity have no y.
c and r are the dual's excess costs above its bound, so that no digits are lost on what the dual proves; c includes
multipliers times memory, which the columns of memory rows refund (`_add_row`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import highspy
import numpy as np
from numpy.typing import NDArray

from shardplan.solve.bound.dual import Dual
from shardplan.solve.budget import Budget
from shardplan.solve.constants import (
    MIP_CALL,
    PROGRAM_ABSOLUTE_GAP,
    PROGRAM_COLUMN,
    PROGRAM_HUNG,
    PROGRAM_LEAST_SECONDS,
    PROGRAM_LP_ROUNDS,
    PROGRAM_ROWS,
    PROGRAM_SPAN,
    PROGRAM_TOLERANCE,
    PROGRAM_VIOLATION,
    SIMPLEX_CALL,
    UNPRESOLVED_COLUMNS,
)
from shardplan.solve.highs.deadline import AbandonedError, within_deadline
from shardplan.solve.problem import Costs
from shardplan.solve.reduce.core import Core, Indices
from shardplan.solve.reduce.graph import Groups
from shardplan.solve.reduce.memory import Profiles, flat, peaks

Verdict = Literal["optimal", "infeasible", "limit"]


_Status: Any = highspy.HighsModelStatus
_VERDICTS: dict[Any, Verdict] = {
    _Status.kOptimal: "optimal",
    _Status.kModelEmpty: "optimal",
    _Status.kInfeasible: "infeasible",
    _Status.kUnboundedOrInfeasible: "infeasible",  # costs and variables are bounded below
    _Status.kTimeLimit: "limit",
    _Status.kIterationLimit: "limit",
    _Status.kSolutionLimit: "limit",
    _Status.kInterrupt: "limit",
    _Status.kHighsInterrupt: "limit",
    _Status.kMemoryLimit: "limit",
}


class HighsError(RuntimeError):
    """HiGHS refused a model or failed: a bug here or there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`bound` holds for all assignments of the core that fit; `choices` (a label per position) fits, or is `None`.
    `above`: what maxima add to what they cost themselves."""

    verdict: Verdict
    choices: Indices | None
    bound: float
    above: float = 0.0


@dataclass(slots=True)
class Program:
    """The integer program of a core above a dual's bound.

    `profiles` and `limit` give the memory rows; `multipliers` are those that the dual's costs include, per moment. A
    moment with a multiplier has a slack column, which refunds the multiplier times the unused memory. The moments
    `hinges` stand for sums: the largest excess of a group costs `over`. `most_work` in units of work and `gap` as a
    share of the range (target less bound) end the search early, and so does a gap of `small_gap` after `enough`.
    """

    dual: Dual
    budget: Budget
    target: float
    profiles: Profiles | None = None
    limit: int = 0
    multipliers: dict[int, float] = field(default_factory=dict)
    most_work: float = np.inf
    gap: float = 0.0
    enough: float = np.inf
    seconds: float = np.inf
    small_gap: float = 0.0
    hinges: Groups = ()
    over: float = 0.0
    highs: Any = None
    scale: float = 1.0
    columns: int = 0
    work: float = 0.0
    allowed: float = np.inf
    best_bound: float = -np.inf
    abandoned: bool = False
    moments: set[int] = field(default_factory=set)
    epigraphs: dict[int, int] = field(default_factory=dict)

    @property
    def offset(self) -> float:
        """What the objective leaves out: `cost(x) = offset + objective / scale`, with `offset = bound of the dual -
        sum_t p_t room_t` for the multipliers p."""
        return self.dual.bound() - sum(
            multiplier * self._row(moment)[2] for moment, multiplier in self.multipliers.items()
        )

    def solve(self) -> Answer:
        """Solves the LP with lazy memory rows, then the integer program with lazy memory rows. If HiGHS fails, only the
        dual's bound is proven."""
        if self.offset > self.target:
            return Answer("optimal", None, self.offset)
        if np.isfinite(self.target) and PROGRAM_COLUMN * self.dual.core.pairs > self.budget.most_left:
            return Answer("limit", None, self.offset)
        try:
            within_deadline(self._create, self.budget)
            return self._solved()
        except AbandonedError:
            self.budget.by_clock = True
            return Answer("limit", None, self.offset)
        except HighsError:
            return Answer("limit", None, self.offset)

    def _solved(self) -> Answer:
        verdict, values = self._relax()
        if verdict == "infeasible":
            return Answer("infeasible", None, np.inf)
        bound = self.offset + (self._objective(values) if verdict == "optimal" else 0.0)
        if verdict != "optimal" or bound > self.target:
            return Answer(verdict, None, bound)
        labels = np.arange(len(self.dual.core.costs), dtype=np.int32)
        self.highs.changeColsIntegrality(len(labels), labels, np.ones(len(labels), dtype=np.uint8))
        return self._integral(bound)

    def _integral(self, bound: float) -> Answer:
        """Solves the integer program, adding the memory rows that its answers violate until none is violated."""
        core = self.dual.core
        while True:
            self.highs.clearSolver()  # it would try to round its relaxation, by a program of its own without an end
            verdict, values = self._run()
            if verdict == "infeasible":
                return Answer("infeasible", None, np.inf)
            if not self.abandoned:
                self._bound_of(float(self.highs.getInfo().mip_dual_bound))
            bound = max(bound, self.best_bound)
            if values is None:
                return Answer("limit", None, bound)
            choices = _largest(core, values)
            if not self._add_rows(choices):
                cost, above = self._cost(choices)
                proven = verdict == "optimal" and cost - bound <= PROGRAM_TOLERANCE * abs(cost)
                return Answer(verdict, choices, cost if proven else bound, above)
            if verdict == "limit":
                return Answer("limit", None, bound)

    def _relax(self) -> tuple[Verdict, Costs | None]:
        for _ in range(PROGRAM_LP_ROUNDS):
            verdict, values = self._run()
            if verdict != "optimal" or values is None or not self._add_moments(values):
                break
        return verdict, values

    def _objective(self, values: Costs | None) -> float:
        return 0.0 if values is None else float(self.highs.getInfo().objective_function_value) / self.scale

    def _cost(self, choices: Indices) -> tuple[float, float]:
        """The cost of labels without multipliers, and the part of it that the maxima are."""
        core = self.dual.core
        if self.profiles is None:
            return core.cost(choices), 0.0
        used = self.profiles.of(choices)
        paid = sum(multiplier * float(used[m] - self.profiles.base[m]) for m, multiplier in self.multipliers.items())
        above = self.over * self.profiles.excess(choices, self.limit, self.hinges)[1]
        return core.cost(choices) - paid + above, above

    def _create(self) -> None:
        """Makes the program without memory rows that have neither a multiplier nor a maximum. A label or pair whose
        excess alone is above `target - offset` has x = 0, or no y."""
        core, dual = self.dual.core, self.dual
        slacks = [dual.slack(edge) for edge in range(len(core.tables))]
        excess = dual.theta - np.repeat(dual.least(), core.sizes)
        room = max(self.target - self.offset, 1.0)
        self.scale = PROGRAM_SPAN / room if np.isfinite(room) else _spread(excess, slacks)
        self.highs = quiet_highs()
        self.highs.setOptionValue("mip_abs_gap", max(self.gap * PROGRAM_SPAN, PROGRAM_ABSOLUTE_GAP))
        self.highs.cbMipInterrupt.subscribe(lambda event: self._watch(event, MIP_CALL, self._may_stop))
        self.highs.cbSimplexInterrupt.subscribe(lambda event: self._watch(event, SIMPLEX_CALL, lambda _: False))
        closed = excess > room  # what costs so much alone is part of nothing that meets the target
        slacks = [np.where(slack > room, np.inf, slack * self.scale) for slack in slacks]
        _pass_labels(self.highs, core, np.where(closed, 0.0, excess * self.scale), closed, slacks)
        self.columns = self.highs.getNumCol()
        if self.columns <= UNPRESOLVED_COLUMNS:
            self.highs.setOptionValue("presolve", "off")
        for moment in sorted({*self.multipliers, *flat(self.hinges)}):
            self._add_row(moment)

    def _run(self) -> tuple[Verdict, Costs | None]:
        highs = self.highs
        left = self.budget.seconds_left
        if np.isfinite(left):  # without a time limit, no clock decides anything
            left = max(min(left, self.seconds), PROGRAM_LEAST_SECONDS)
            highs.setOptionValue("time_limit", highs.getRunTime() + left)
        allowed = self.budget.work_left
        if np.isfinite(self.target):  # an assignment is known: a proof may end without an answer
            allowed = min(allowed, self.budget.most_left)
        before, self.allowed = self.work, self.work + allowed
        try:
            ended = within_deadline(highs.run, self.budget, PROGRAM_HUNG * left + PROGRAM_HUNG)
        except AbandonedError:
            self.abandoned = self.budget.by_clock = True
            return "limit", None
        if ended == highspy.HighsStatus.kError:
            raise HighsError(f"HiGHS failed: {highs.modelStatusToString(highs.getModelStatus())}")
        info = highs.getInfo()
        self.budget.spend(1e6 * (self.work - before))
        status = highs.getModelStatus()
        if status not in _VERDICTS:
            raise HighsError(f"HiGHS stopped with {highs.modelStatusToString(status)}")
        self.budget.by_clock |= status == highspy.HighsModelStatus.kTimeLimit
        found = info.primal_solution_status == highspy.kSolutionStatusFeasible
        return _VERDICTS[status], np.array(highs.getSolution().col_value) if found else None

    def _watch(self, event: Any, weight: float, may_stop: Callable[[Any], bool]) -> None:
        self.work += weight * self.columns
        spent = self.work > min(self.most_work, self.allowed)
        if self.budget.interrupted or spent or may_stop(event.data_out):
            event.interrupt()

    def _may_stop(self, state: Any) -> bool:
        """Whether nothing can reach the target any more, or the rest is not worth the work."""
        bound = self._bound_of(float(state.mip_dual_bound))  # an interrupted run forgets it
        found = self.offset + float(state.mip_primal_bound) / self.scale
        return bound > self.target or (self.work > self.enough and min(found, self.target) - bound <= self.small_gap)

    def _bound_of(self, objective: float) -> float:
        """The bound that HiGHS's dual objective proves; the best so far is kept."""
        bound = self.offset + objective / self.scale
        self.best_bound = max(self.best_bound, bound) if np.isfinite(bound) else self.best_bound
        return bound

    def _add_moments(self, values: Costs) -> bool:
        """Adds the memory rows `usage_t(x) <= limit` that a fractional solution violates; returns whether there
        were any."""
        if self.profiles is None:
            return False
        used = self.profiles.of_weights(values[: len(self.dual.core.costs)])
        excess = used / self.limit - 1 - PROGRAM_VIOLATION if self.limit else used
        fresh = [m for m in peaks(excess, PROGRAM_ROWS, 1) if m not in self.moments]
        for moment in fresh:
            self._add_row(moment)
        return bool(fresh)

    def _add_rows(self, choices: Indices) -> bool:
        """Adds memory rows, or cuts, that an integral solution violates; returns whether there were any."""
        if self.profiles is None:
            return False
        excess, _ = self.profiles.excess(choices, self.limit, self.hinges)
        broken = peaks(excess.astype(np.float64), PROGRAM_ROWS, 1)
        for moment in broken:
            if moment in self.moments:  # broken by less than the program's tolerance
                self._forbid(moment, choices)
            else:
                self._add_row(moment)
        return bool(broken)

    def _add_row(self, moment: int) -> None:
        """The row of a moment t, or of sum k of maximum g, divided by `unit`; a_i: what label i uses or adds.

            sum_i a_i x_i <= room                        no multiplier
            sum_i a_i x_i + unit z_t = room              multiplier p_t: z_t >= 0 costs p_t unit
            sum_i a_i x_i + unit z_k - unit e_g <= room  sum k, where s_k(x) = sum_i a_i x_i - room; `=` with z_k

        The costs of x include p_t sum_i a_i x_i, and `offset` includes -p_t room. So z_t takes back what they
        refund for unused room, and e_g >= 0 costs (over - sum_k p_k) unit: in all, the cost without multipliers.
        """
        self.moments.add(moment)
        labels, amounts, room = self._row(moment)
        group = next((group for group in self.hinges if moment in group), ())
        unit = max(PROGRAM_SPAN / (self.scale * self.over) if group else room, 1.0)
        multiplier = self.multipliers.get(moment, 0.0)
        if multiplier:  # usage + slack = room
            labels, amounts = self._with_column(multiplier * unit, labels, np.append(amounts, unit))
        if group:  # usage + slack - what is above = room
            asked = sum(self.multipliers.get(other, 0.0) for other in group)
            known = self.epigraphs.get(group[0])
            if known is None:
                labels, amounts = self._with_column((self.over - asked) * unit, labels, np.append(amounts, -unit))
                self.epigraphs[group[0]] = int(labels[-1])
            else:
                labels, amounts = np.append(labels, known), np.append(amounts, -unit)
        lower = room / unit if multiplier else -highspy.kHighsInf
        self.highs.addRow(lower, room / unit, len(labels), labels.astype(np.int32), amounts / unit)

    def _with_column(self, cost: float, labels: Indices, amounts: Costs) -> tuple[Indices, Costs]:
        """A row whose last amount is that of a new column `z >= 0` with a cost."""
        column = self.highs.getNumCol()
        self.highs.addCol(cost * self.scale, 0.0, highspy.kHighsInf, 0, np.zeros(0, np.int32), np.zeros(0))
        return np.append(labels, column), amounts

    def _row(self, moment: int) -> tuple[Indices, Costs, float]:
        """Labels that use memory at a moment, how much, and the room for them in whole steps of their common
        divisor."""
        assert self.profiles is not None
        labels, amounts = self.profiles.row(moment)
        if any(moment in group for group in self.hinges):
            return labels, amounts, float(self.limit - int(self.profiles.base[moment]))
        step = max(int(np.gcd.reduce(amounts.astype(np.int64))), 1) if len(amounts) else 1
        return labels, amounts, float((self.limit - int(self.profiles.base[moment])) // step * step)

    def _forbid(self, moment: int, choices: Indices) -> None:
        """A cover cut: `sum_{i in C} x_i <= |C| - 1` for the chosen labels C that use memory at a moment."""
        assert self.profiles is not None
        labels, amounts = self.profiles.row(moment)
        chosen = self.dual.core.offsets[:-1] + choices
        cover = labels[(amounts > 0) & np.isin(labels, chosen)].astype(np.int32)
        self.highs.addRow(-highspy.kHighsInf, len(cover) - 1.0, len(cover), cover, np.ones(len(cover)))


class _Silent(highspy.Highs):  # type: ignore[misc]
    """A solver that never writes to standard output: highspy 1.16 prints a banner already when callbacks are enabled,
    which is in its constructor."""

    def enableCallbacks(self) -> None:
        self.silent()
        super().enableCallbacks()


def quiet_highs() -> Any:
    """A solver with options that make runs reproducible: one thread, a fixed seed, no gap."""
    highs = _Silent()
    options = {
        "output_flag": False,
        "threads": 1,
        "random_seed": 0,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": PROGRAM_ABSOLUTE_GAP,
    }
    for name, value in options.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise HighsError(f"HiGHS does not take {name}={value}")
    return highs


def _spread(excess: Costs, slacks: list[Costs]) -> float:
    largest = max([float(excess.max(initial=0.0)), *(float(s[np.isfinite(s)].max(initial=0.0)) for s in slacks)])
    return PROGRAM_SPAN / max(largest, 1.0)


def _pass_labels(highs: Any, core: Core, costs: Costs, closed: NDArray[np.bool_], tables: list[Costs]) -> None:
    """The program of labels and pairs. Columns: `0 <= x_vi <= 1` (0 if closed) with `costs`, then `y_eij >= 0` with
    the finite entries of `tables`. Rows: `sum_i x_vi = 1` per node, then `sum_j y_eij - x_ui = 0` and
    `sum_i y_eij - x_vj = 0` per label of either end of each edge."""
    nodes, labels = len(core.nodes), len(core.costs)
    ends = core.sizes[core.first] + core.sizes[core.second]
    tops = nodes + np.concatenate([[0], np.cumsum(ends)]).astype(np.int64)
    x_rows: list[Indices] = [np.repeat(np.arange(nodes), core.sizes)]
    x_columns: list[Indices] = [np.arange(labels)]
    y_rows: list[Indices] = []
    y_costs: list[Costs] = []
    for edge, table in enumerate(tables):
        a, b, top = int(core.first[edge]), int(core.second[edge]), int(tops[edge])
        x_columns += [np.arange(core.offsets[a], core.offsets[a + 1]), np.arange(core.offsets[b], core.offsets[b + 1])]
        x_rows.append(np.arange(top, top + sum(table.shape)))
        i, j = np.nonzero(np.isfinite(table))
        y_rows.append(np.stack([top + i, top + len(table) + j], axis=1).ravel())
        y_costs.append(table[i, j])
    rows, columns = np.concatenate(x_rows), np.concatenate(x_columns)
    order = np.lexsort((rows, columns))
    pairs = sum(map(len, y_costs))
    starts = np.concatenate(
        [[0], np.cumsum(np.bincount(columns, minlength=labels)), len(rows) + 2 * np.arange(1, pairs + 1)]
    )
    right = np.concatenate([np.ones(nodes), np.zeros(int(tops[-1]) - nodes)])
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = labels + pairs, len(right)
    lp.col_cost_ = np.concatenate([costs, *y_costs])
    lp.col_lower_ = np.zeros(labels + pairs)
    lp.col_upper_ = np.concatenate([np.where(closed, 0.0, 1.0), np.full(pairs, highspy.kHighsInf)])
    lp.row_lower_ = lp.row_upper_ = right
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = np.concatenate([rows[order], *y_rows]).astype(np.int32)
    lp.a_matrix_.value_ = np.concatenate([np.where(rows[order] < nodes, 1.0, -1.0), np.ones(2 * pairs)])
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise HighsError("HiGHS refused the program")


def _largest(core: Core, values: Costs) -> Indices:
    """The label of largest weight at every position."""
    return np.array(
        [np.argmax(values[a:b]) for a, b in zip(core.offsets, core.offsets[1:], strict=False)], dtype=np.int64
    )
