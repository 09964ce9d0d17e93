"""The sums of an objective for one assignment, and further sums, found from an assignment: the operators around which
its schedule waits.

The sums around an operator p (`shardplan.schedule.objective`) are lower bounds on the time of a phase for every p. A
problem with all of them would be far too large, and few of them bind: so an assignment is searched without most of
them, and then the operator is found at which they are most above all sums that the problem has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import ANYWHERE, CostGraph
from shardplan.schedule.objective import Objective, PhaseSums, Side, Sum, share_of
from shardplan.schedule.terms import Term
from shardplan.solve import Plane

Amounts = NDArray[np.float64]
Work = Mapping[Term, Amounts]
"""By term, the picoseconds that operators cause: entry 0 is of those that run anywhere, entry i + 1 of operator i."""


def binding_cuts(
    built: CostGraph, choices: Sequence[int], objective: Objective, least: float
) -> dict[str, tuple[Sum, ...]]:
    """By name of a phase, the sum around one operator that is most above all sums of that phase, if that is more than
    the share `least` of the step. `choices`: of all nodes, in graph order."""
    work = work_of(built, choices)
    around = [_around(phase, objective, work) for phase in objective.phases]
    known = [
        max(_value(one, phase, objective, work, sums) for one in phase.sums)
        for phase, sums in zip(objective.phases, around, strict=True)
    ]
    least_ps = least * sum(phase.count * value for phase, value in zip(objective.phases, known, strict=True))
    found: dict[str, tuple[Sum, ...]] = {}
    for phase, value, sums in zip(objective.phases, known, around, strict=True):
        side_and_level = max(sums, key=lambda each: float(sums[each].max()), default=None)
        if side_and_level is not None:
            cut = int(np.argmax(sums[side_and_level]))
            if phase.count * (sums[side_and_level][cut] - value) > least_ps:
                found[phase.name] = (Sum(*side_and_level, cut),)
    return found


def plane_of(built: CostGraph, choices: Sequence[int], objective: Objective) -> Plane:
    """The cutting plane of an assignment: the picoseconds of its base sums in a step, and by how much each other sum of
    a phase is above the base sum. `choices`: of all nodes, in graph order."""
    work = work_of(built, choices)
    cost = sum(float(each.sum()) for term, each in work.items() if term.segment == "update")
    above: list[float] = []
    for phase in objective.phases:
        around = _around(phase, objective, work)
        base, *others = (phase.count * _value(one, phase, objective, work, around) for one in phase.sums)
        cost += base
        above += (other - base for other in others)
    return Plane(cost, tuple(above))


def _around(phase: PhaseSums, objective: Objective, work: Work) -> Mapping[tuple[Side, str], Amounts]:
    """The sums around all operators, of the kinds that a phase has already."""
    kinds = dict.fromkeys((one.side, one.level) for one in phase.sums if one.cut >= 0)
    return {(side, level): sums_around(side, level, phase, objective, work) for side, level in kinds}


def work_of(built: CostGraph, choices: Sequence[int]) -> Work:
    """What an assignment computes and sends."""
    found: dict[Term, Amounts] = defaultdict(lambda: np.zeros(len(built.model.operators) + 1))

    def add(data: Mapping[str, Any], at: tuple[int, ...]) -> None:
        place = max(ANYWHERE, data.get("position", 0)) + 1
        for term, table in data["priced"].terms.items():
            found[term][place] += table[at]

    for (_, data), choice in zip(built.node_data, choices, strict=True):
        add(data, (choice,))
    for data, (u, v) in zip(built.edge_data, built.ends, strict=True):
        add(data, (choices[u], choices[v]))
    return found


def _value(
    one: Sum, phase: PhaseSums, objective: Objective, work: Work, around: Mapping[tuple[Side, str], Amounts]
) -> float:
    """The picoseconds of a sum."""
    if one.cut >= 0:
        return float(around[one.side, one.level][one.cut])
    own = ((term, each) for term, each in work.items() if term.segment in phase.segments)
    return sum(share_of(one, term, 0, objective) * float(each.sum()) for term, each in own)


def sums_around(side: Side, level: str, phase: PhaseSums, objective: Objective, work: Work) -> Amounts:
    """The picoseconds of the sums around all operators p, by p: what is computed from p on and blocks behind it, and of
    the link's traffic what blocks before p and what is gathered, or reduced, up to p."""
    wanted = "gather" if side == "gathered first" else "reduce"
    amounts = next(iter(work.values()))
    computed, blocking, before, sent = (np.zeros_like(amounts) for _ in range(4))
    for term, each in work.items():
        if term.segment in phase.segments:
            on_link = objective.links.share(level, term.levels)
            computed += each if term.resource == "compute" else 0.0
            blocking += each if term.resource == "blocking" else 0.0
            before += on_link * each if term.resource == "blocking" else 0.0
            sent += on_link * each if term.resource == wanted else 0.0
    from_it, behind = _from(computed), _from(blocking) - blocking
    return (from_it + behind + np.cumsum(before) - before + np.cumsum(sent))[1:]


def _from(amounts: Amounts) -> Amounts:
    """Sums of each amount and of all that follow."""
    return np.cumsum(amounts[::-1])[::-1]
