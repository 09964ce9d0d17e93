"""The time of a step as an objective: a sum over phases of the largest of several linear sums of terms.

With C what a phase computes, X its blocking moves, X_l and H_l what blocks and what runs asynchronously on link level
l, every schedule of `shardplan.schedule.streams` takes, for the outermost level o and for every l,

    T >= C + X + (1 - 1/kappa) (H_o - X'_o)        X'_o: blocking moves that do not occupy o
    T >= X_l + H_l

where X_l and H_l count of what outer levels bound the share of l that it takes (`shardplan.schedule.links`). The first,
because H_o runs beside compute, which takes kappa times as long then, beside other waiting, or beside blocking moves on
other levels, which may last longer then, but by no more than what is counted too little. What is read at operator p has
to be gathered before, and what is made there cannot be reduced before, so that with l the outermost for every p also

    T >= X_l before p + H_l of what is read up to p + (C + X) from p on
    T >= (C + X) up to p + H_l of what is made from p on + X_l after p

where before and after are meant in the order in which the phase runs: in backward, in reverse graph order. What reads
weights alone may run later than there, so that its compute counts on neither side; a view of weights waits for nothing,
and what it reads is read where its result is read first.

A step is the sum of its phases, each as often as it runs. All right hand sides are linear in the choices. So for
multipliers w_k >= 0 that add up to one in every phase, the least of sum_k w_k f_k is a lower bound on every schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from shardplan.schedule.links import WHOLE, Levels, LinkLevels
from shardplan.schedule.terms import Segment, Term

Side = Literal["busy", "link", "gathered first", "reduced last"]
Weights = tuple[tuple[float, ...], ...]
"""By phase, a number for each of its sums."""
_USUAL: Final[Mapping[Side, float]] = {"busy": 0.0, "link": 0.03, "gathered first": 0.1, "reduced last": 0.5}
ALWAYS = 1.0
"""Coefficient of what every objective charges: the update."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One right hand side. `busy`: compute and blocking moves, and what `level` slows down; `link`: all traffic of
    `level`; the others: of `level` and compute, with operator `cut` as p above."""

    side: Side
    level: str
    cut: int = -1


@dataclass(frozen=True, slots=True)
class PhaseSums:
    """A phase that a step has `count` times and that consists of the terms of some segments. `sums[0]` is its base."""

    name: str
    count: int
    segments: frozenset[Segment]
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """`kappa`: how much slower compute runs beside communication; `links`: what collectives take of those."""

    phases: tuple[PhaseSums, ...]
    kappa: float
    links: LinkLevels = WHOLE

    @property
    def sizes(self) -> tuple[int, ...]:
        """By phase, how many sums it has beside its base."""
        return tuple(len(phase.sums) - 1 for phase in self.phases)

    @property
    def usual_multipliers(self) -> Weights:
        """Multipliers to start a search from: forward mostly computes, the last backward mostly sends as well."""
        return tuple(tuple(_USUAL[one.side] for one in phase.sums[1:]) for phase in self.phases)

    @property
    def base(self) -> Objective:
        """The objective of the bases alone: a lower bound of this one."""
        phases = (replace(phase, sums=phase.sums[:1]) for phase in self.phases)
        return replace(self, phases=tuple(phases))

    def with_cuts(self, cuts: Mapping[str, Sequence[Sum]]) -> Objective:
        """The objective with further sums for phases by name."""
        phases = (replace(phase, sums=(*phase.sums, *cuts.get(phase.name, ()))) for phase in self.phases)
        return replace(self, phases=tuple(phases))


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear function of terms: sum k of phase p of `objective` counts `weights[p][k]`."""

    objective: Objective
    weights: Weights

    def coefficient(self, term: Term, position: int) -> float:
        """What a second of a term counts that belongs to operator `position`; compute of a negative one is on no side
        of any cut."""
        if term.segment == "update":
            return ALWAYS
        return sum(
            phase.count * weight * _share(chosen, term, position, self.objective)
            for phase, weights in zip(self.objective.phases, self.weights, strict=True)
            if term.segment in phase.segments
            for chosen, weight in zip(phase.sums, weights, strict=True)
            if weight
        )

    def interval(self, position: int) -> tuple[bool, ...]:
        """Positions that are equal in this have equal coefficients: on which side of every cut they are, and at it."""
        cuts = (
            chosen.cut
            for phase, weights in zip(self.objective.phases, self.weights, strict=True)
            for chosen, weight in zip(phase.sums, weights, strict=True)
            if weight and chosen.cut >= 0
        )
        return tuple(flag for cut in cuts for flag in (position < cut, position == cut))


def single_sums(objective: Objective) -> tuple[Linear, ...]:
    """The base of all phases, then for each further sum of each phase that in place of its base."""
    base = [(1.0, *(0.0 for _ in phase.sums[1:])) for phase in objective.phases]
    found = [Linear(objective, tuple(base))]
    for number, phase in enumerate(objective.phases):
        for k in range(1, len(phase.sums)):
            chosen = tuple(1.0 if k == other else 0.0 for other in range(len(phase.sums)))
            found.append(Linear(objective, (*base[:number], chosen, *base[number + 1 :])))
    return tuple(found)


def plain_sum(objective: Objective, forward: float, backward: float, *, outermost: bool) -> Linear:
    """What computes and blocks, and a share of the traffic of forward's and of backward's phases, on all links or on
    the outermost one alone: no bound, but a rule of thumb that leads to good plans. What occupies several levels counts
    on each: it is in the way of more."""

    def weight(one: Sum, phase: PhaseSums) -> float:
        if one.side != "link" or (outermost and one.level != phase.sums[-1].level):
            return float(one.side == "busy")
        return backward if "backward" in phase.segments else forward

    weights = tuple(tuple(weight(one, phase) for one in phase.sums) for phase in objective.phases)
    return Linear(replace(objective, links=WHOLE), weights)


def at_multipliers(objective: Objective, multipliers: Weights) -> Linear:
    """The sums weighted by Lagrange multipliers: `multipliers[p]` of all but the base of phase p, which has the rest.

    Phases that are missing, and sums that came later, have none.
    """
    weights = []
    for number, phase in enumerate(objective.phases):
        given = list(multipliers[number]) if number < len(multipliers) else []
        others = (given + [0.0] * len(phase.sums))[: len(phase.sums) - 1]
        weights.append((max(0.0, 1.0 - sum(others)), *others))
    return Linear(objective, tuple(weights))


def step_objective(
    levels: Sequence[str],
    *,
    training: bool,
    microbatches: int,
    sharded_optimizer: bool,
    kappa: float,
    links: LinkLevels = WHOLE,
) -> Objective:
    """The objective of a step; `levels`: names of the link levels that some collective may occupy, innermost first."""
    base = Sum("busy", levels[-1] if levels else "")
    sums = (base, *(Sum("link", level) for level in levels))
    phases: list[PhaseSums] = []

    def phase(name: str, count: int, *segments: Segment) -> None:
        if count > 0:
            phases.append(PhaseSums(name, count, frozenset(segments), sums))

    first = training and sharded_optimizer
    if first:
        phase("first forward", 1, "forward", "first")
    phase("forward", microbatches - first, "forward")
    if training:
        phase("backward", microbatches - 1, "backward")
        phase("last backward", 1, "backward", "once")
    return Objective(tuple(phases), kappa, links)


def serial_objective(*, training: bool, microbatches: int) -> Objective:
    """As if nothing ran beside anything else: what the cost models of other systems add up."""
    plain = (Sum("busy", ""),)
    forward = PhaseSums("forward", microbatches, frozenset({"forward"}), plain)
    backward = PhaseSums("backward", microbatches, frozenset({"backward"}), plain)
    once = PhaseSums("once", 1, frozenset({"once", "first"}), plain)
    return Objective((forward, backward, once) if training else (forward,), 0.0)


def _share(chosen: Sum, term: Term, position: int, objective: Objective) -> float:
    """Coefficient of a term in one sum."""
    on_level = chosen.level in term.levels
    if chosen.side == "busy":
        return _busy(term, objective.kappa, on_level=on_level)
    if chosen.side == "link":
        return objective.links.share(chosen.level, term.levels) if term.resource != "compute" else 0.0
    return _at_cut(chosen, term, position, on_level=on_level)


def _busy(term: Term, kappa: float, *, on_level: bool) -> float:
    if kappa == 0.0 or term.resource == "compute":
        return 1.0
    slower = 1.0 - 1.0 / max(1.0, kappa)
    if term.resource == "blocking":
        return 1.0 if on_level else 1.0 - slower
    return slower if on_level else 0.0


def _at_cut(chosen: Sum, term: Term, position: int, *, on_level: bool) -> float:
    """What is gathered up to the cut and computed from it on, or computed up to it and reduced from it on; forward runs
    to higher positions, backward to lower ones."""
    at, on_link = position == chosen.cut, 1.0 if on_level else 0.0
    behind = position > chosen.cut if chosen.side == "gathered first" else position < chosen.cut
    first = chosen.side != "reduced last"
    computed = at or behind is first
    if term.resource == "compute":
        return 1.0 if computed else 0.0
    if term.resource == "blocking":
        return 0.0 if at else 1.0 if computed else on_link
    wanted = "gather" if first else "reduce"
    sent = at or behind is not first
    return on_link if term.resource == wanted and sent else 0.0


def levels_of_sets(level_sets: Sequence[Levels], order: Sequence[str]) -> tuple[str, ...]:
    """The levels that occur in some set, in the order given."""
    return tuple(level for level in order if any(level in levels for levels in level_sets))
