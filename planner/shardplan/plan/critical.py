"""Critical paths of a simulated step, as further sums of the objective.

Where a device waits for a collective, the link has been busy from the operator at which the first collective of that
busy period was issued. What was computed until then and sent since is a path through the schedule, and linear in the
choices (`shardplan.schedule.objective`): added to the objective, it tells the solver what it had not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardplan.plan.phases import Phase
from shardplan.plan.step import StepSchedule
from shardplan.schedule.objective import Sum
from shardplan.schedule.streams import Simulation, Span

LEAST_SHARE = 0.005
"""Of the phase, below which waiting is not worth a sum."""
_SAME = 1e-12


def critical_sums(scheduled: StepSchedule) -> Iterator[tuple[str, Sum]]:
    """Sums that would have told of the longest waits, by name of their phases."""
    for phase, ran in zip(scheduled.phases, scheduled.simulations, strict=True):
        if ran.waited > LEAST_SHARE * ran.seconds:
            for chosen in _of_phase(phase, ran):
                yield phase.name, chosen


def _of_phase(phase: Phase, ran: Simulation) -> Iterator[Sum]:
    backward = phase.name in ("backward", "last backward")
    sent = [span for span in ran.spans if phase.program[span.item].action == "issue" and span.end > span.start]
    tail = max(sent, key=lambda span: (span.end, span.item), default=None)
    if backward and tail is not None and tail.exposed > 0 and tail.end >= ran.seconds - _SAME:
        for level in sorted(phase.program[tail.item].levels):
            first = _busy_since(phase, sent, tail, level)
            operator = phase.operators[first.item]
            if operator >= 0 and not _is_awaited(phase, tail):
                yield Sum("reduced last", level, operator)
    exposed = [span for span in sent if span.exposed > LEAST_SHARE * ran.seconds and _is_awaited(phase, span)]
    if exposed:
        worst = max(exposed, key=lambda span: (span.exposed, -span.item))
        operator = _awaited_by(phase, worst)
        for level in sorted(phase.program[worst.item].levels):
            yield Sum("regathered first" if backward else "gathered first", level, operator)


def _busy_since(phase: Phase, sent: Sequence[Span], last: Span, level: str) -> Span:
    """The first span of the period in which `level` is busy without a pause until `last` ends."""
    first = last
    for span in sorted(sent, key=lambda span: (-span.end, -span.item)):
        if level in phase.program[span.item].levels and span.end >= first.start - _SAME and span.start < first.start:
            first = span
    return first


def _awaited_by(phase: Phase, span: Span) -> int:
    number = phase.program[span.item].number
    waits = (at for at, item in enumerate(phase.program) if item.action == "wait" and item.number == number)
    at = next(waits, None)
    return -1 if at is None else phase.operators[at]


def _is_awaited(phase: Phase, span: Span) -> bool:
    """Whether some operator waits for it, not just the end of the phase."""
    return _awaited_by(phase, span) >= 0
