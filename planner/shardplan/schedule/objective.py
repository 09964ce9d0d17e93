"""The time of a step as an objective: a sum over phases of the maximum of several linear sums of terms.

Let C be the compute of a phase, X its blocking moves, and X_l and H_l its blocking and its asynchronous communication
on link level l. For every l, every schedule of `shardplan.schedule.streams` takes

    T >= C + X + (1 - 1/kappa) (H_l - X'_l)        X'_l: what blocking moves leave free of l
    T >= X_l + H_l

X_l and H_l count a collective that an outer level bounds with its share of l (`shardplan.schedule.links`), and X'_l
counts a blocking move with the rest of l. The first bound holds because H_l overlaps compute, which then takes kappa
times as long, or other waiting, or blocking moves that leave l free, which may then take longer, but by no more than
the sum undercounts. A value that operator p reads is gathered before p, and a gradient made at p is reduced after p. So
for every p also

    T >= X_l before p + H_l of what is read up to p + (C + X) from p on
    T >= (C + X) up to p + H_l of what is made from p on + X_l after p

Before and after mean the order in which the phase runs: in backward, reverse graph order. An operator that reads only
weights may run later than its position, so its compute counts on neither side; a view of a weight waits for nothing,
and its weight is read where the view is first read.

A step is the sum of its phases, each as often as it runs. All right hand sides are linear in the choices. So for
multipliers w_k >= 0 that add up to one in every phase, the minimum of sum_k w_k f_k is a lower bound on every schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from shardplan.schedule.links import WHOLE, Levels, LinkLevels
from shardplan.schedule.terms import Segment, Term

Side = Literal["busy", "link", "gathered first", "reduced last"]
Weights = tuple[tuple[float, ...], ...]
"""By phase, a number for each of its sums."""
_USUAL: Final[Mapping[Side, float]] = {"busy": 0.0, "link": 0.03, "gathered first": 0.1, "reduced last": 0.5}
ALWAYS = 1.0
"""Coefficient of the update, which every objective charges."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One right hand side. `busy`: compute and blocking moves, plus what traffic of `level` slows down; `link`: all
    traffic of `level`; the other kinds: both, around the operator `cut`, which is p above."""

    side: Side
    level: str
    cut: int = -1


@dataclass(frozen=True, slots=True)
class PhaseSums:
    """A phase that a step runs `count` times, with the terms of some segments. `sums[0]` is its base sum."""

    name: str
    count: int
    segments: frozenset[Segment]
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """`kappa`: slowdown of compute beside communication; `links`: the shares of links that collectives take."""

    phases: tuple[PhaseSums, ...]
    kappa: float
    links: LinkLevels = WHOLE

    @property
    def sizes(self) -> tuple[int, ...]:
        """By phase, the number of sums beside its base sum."""
        return tuple(len(phase.sums) - 1 for phase in self.phases)

    @property
    def usual_multipliers(self) -> Weights:
        """Multipliers to start a search from: forward is mostly bound by compute, the last backward mostly by
        communication as well."""
        return tuple(tuple(_USUAL[one.side] for one in phase.sums[1:]) for phase in self.phases)

    @property
    def base(self) -> Objective:
        """The objective of the base sums alone: a lower bound on this one."""
        phases = (replace(phase, sums=phase.sums[:1]) for phase in self.phases)
        return replace(self, phases=tuple(phases))

    def with_cuts(self, cuts: Mapping[str, Sequence[Sum]]) -> Objective:
        """The objective with further sums for phases by name."""
        phases = (replace(phase, sums=(*phase.sums, *cuts.get(phase.name, ()))) for phase in self.phases)
        return replace(self, phases=tuple(phases))


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear function of terms: sum k of phase p of `objective` has the weight `weights[p][k]`."""

    objective: Objective
    weights: Weights

    def coefficient(self, term: Term, position: int) -> float:
        """The coefficient of a term's seconds at operator `position`; compute at a negative position is on no side of
        any cut."""
        if term.segment == "update":
            return ALWAYS
        return sum(
            phase.count * weight * share_of(chosen, term, position, self.objective)
            for phase, weights in zip(self.objective.phases, self.weights, strict=True)
            if term.segment in phase.segments
            for chosen, weight in zip(phase.sums, weights, strict=True)
            if weight
        )

    @property
    def cuts(self) -> frozenset[int]:
        """The operators around which its sums are: between two neighbouring ones, all positions have equal
        coefficients."""
        return frozenset(
            chosen.cut
            for phase, weights in zip(self.objective.phases, self.weights, strict=True)
            for chosen, weight in zip(phase.sums, weights, strict=True)
            if weight and chosen.cut >= 0
        )


def single_sums(objective: Objective) -> tuple[Linear, ...]:
    """The base sums of all phases, then, for each further sum of each phase, the same with that sum in place of the
    phase's base."""
    base = [(1.0, *(0.0 for _ in phase.sums[1:])) for phase in objective.phases]
    found = [Linear(objective, tuple(base))]
    for number, phase in enumerate(objective.phases):
        for k in range(1, len(phase.sums)):
            chosen = tuple(1.0 if k == other else 0.0 for other in range(len(phase.sums)))
            found.append(Linear(objective, (*base[:number], chosen, *base[number + 1 :])))
    return tuple(found)


def plain_sum(objective: Objective, forward: float, backward: float, *, outermost: bool) -> Linear:
    """Compute and blocking communication, plus a share of the traffic of forward and of backward phases, on all links
    or on the outermost one alone. It is no bound but a heuristic that leads to good plans. A collective that occupies
    several levels counts on each."""

    def weight(one: Sum, phase: PhaseSums) -> float:
        base = phase.sums[0]
        if one.side != "link" or (outermost and one.level != base.level):
            return float(one is base)
        return backward if "backward" in phase.segments else forward

    weights = tuple(tuple(weight(one, phase) for one in phase.sums) for phase in objective.phases)
    return Linear(replace(objective, links=WHOLE), weights)


def at_multipliers(objective: Objective, multipliers: Weights) -> Linear:
    """The sums weighted by Lagrange multipliers: `multipliers[p]` are those of all sums of phase p except its base,
    which has the rest up to one. Multipliers that add up to more are scaled, as otherwise the minimum is no bound."""
    return Linear(objective, tuple(map(_on_simplex, fitting(multipliers, objective))))


def _on_simplex(others: tuple[float, ...]) -> tuple[float, ...]:
    """The weights of all sums of a phase, from those of all but its base: together they are one."""
    total = sum(others)
    return (0.0, *(weight / total for weight in others)) if total > 1.0 else (1.0 - total, *others)


def towards_each_sum(multipliers: Weights, share: float) -> Iterator[Weights]:
    """For each phase the multipliers at that share of the way from the given ones to those of one of its sums, or of
    none. Phases without multipliers are left out, as in a problem with maxima."""
    best = tuple(weights for weights in multipliers if weights)
    for phase, weights in enumerate(best):
        for towards in range(-1, len(weights)):
            moved = tuple([(1 - share) * weight + share * (k == towards) for k, weight in enumerate(weights)])
            yield (*best[:phase], moved, *best[phase + 1 :])


def fitting(multipliers: Weights, objective: Objective) -> Weights:
    """Multipliers of a similar objective as those of this one: phases without multipliers, and sums added later, have
    zero; sums that this one lacks are left out."""
    found = []
    for number, size in enumerate(objective.sizes):
        given = multipliers[number] if number < len(multipliers) else ()
        found.append((*given, *(0.0 for _ in range(size)))[:size])
    return tuple(found)


def step_objective(
    levels: Sequence[str],
    *,
    training: bool,
    microbatches: int,
    sharded_optimizer: bool,
    kappa: float,
    links: LinkLevels = WHOLE,
    inner: Sequence[str] = (),
) -> Objective:
    """The objective of a step; `levels`: names of the link levels that some collective may occupy, innermost first;
    `inner`: those inside of the outermost that have a sum of what they slow down."""
    base = Sum("busy", levels[-1] if levels else "")
    sums = (base, *(Sum("busy", level) for level in inner), *(Sum("link", level) for level in levels))
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
    """The sum of all compute and communication, as if nothing overlapped: what the cost models of other systems
    minimise."""
    plain = (Sum("busy", ""),)
    forward = PhaseSums("forward", microbatches, frozenset({"forward"}), plain)
    backward = PhaseSums("backward", microbatches, frozenset({"backward"}), plain)
    once = PhaseSums("once", 1, frozenset({"once", "first"}), plain)
    return Objective((forward, backward, once) if training else (forward,), 0.0)


def share_of(chosen: Sum, term: Term, position: int, objective: Objective) -> float:
    """The coefficient of a term at an operator in one sum."""
    on_link = objective.links.share(chosen.level, term.levels)
    if chosen.side == "busy":
        return _busy(term, objective.kappa, on_link)
    if chosen.side == "link":
        return on_link if term.resource != "compute" else 0.0
    return _at_cut(chosen, term, position, on_link)


def _busy(term: Term, kappa: float, on_link: float) -> float:
    if kappa == 0.0 or term.resource == "compute":
        return 1.0
    slower = 1.0 - 1.0 / max(1.0, kappa)
    if term.resource == "blocking":
        return 1.0 - slower * (1.0 - on_link)
    return slower * on_link


def _at_cut(chosen: Sum, term: Term, position: int, on_link: float) -> float:
    """What is gathered up to the cut and computed from it on, or computed up to it and reduced from it on; forward runs
    to higher positions, backward to lower ones."""
    at = position == chosen.cut
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
