"""The scheduled step of a plan: its phases, simulated, and where every move is issued and awaited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.plan.step.backward_phase import backward
from shardplan.plan.step.forward_phase import forward
from shardplan.plan.step.just_in_time import just_in_time
from shardplan.plan.step.moves import StepMoves, StepParts
from shardplan.plan.step.phases import EAGER, Numbers, Phase, PhaseWriter, Policy
from shardplan.plan.types import Move
from shardplan.schedule.streams import Item, Simulation, Span, simulate


@dataclass(frozen=True)
class StepSchedule:
    """`phases[i]` has the schedule `simulations[i]` and runs as often as its count says. `seconds`: of the step."""

    parts: StepParts
    policy: Policy
    phases: tuple[Phase, ...]
    simulations: tuple[Simulation, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.count * ran.seconds for phase, ran in self.phases_ran())

    @property
    def waited_s(self) -> float:
        """Seconds of the step in which only prefetched and deferred collectives run, in phases that prefetch."""
        return sum(
            phase.count * ran.waited
            for phase, ran in self.phases_ran()
            if any(item.action == "issue" and not item.deferred for item in phase.program)
        )

    def phases_ran(self) -> Iterator[tuple[Phase, Simulation]]:
        """The phases with their simulations."""
        yield from zip(self.phases, self.simulations, strict=True)

    def spans(self) -> Iterator[tuple[Phase, Item, int, tuple[int, ...], Span]]:
        """Every span, phase by phase: phase, item, operator (-1 for none), moves, span."""
        for phase, ran in self.phases_ran():
            for span in ran.spans:
                number = span.item
                yield phase, phase.program[number], phase.operators[number], phase.moves[number], span

    def marked(self, moves: Sequence[Move]) -> tuple[Move, ...]:
        """`moves` with the operators at which they are issued and awaited, and the overlapped share of their time."""
        places = self._places()
        exposed, whole = [0.0] * len(moves), [0.0] * len(moves)
        for phase, item, _, numbers, span in self.spans():
            for number in numbers:
                exposed[number] += phase.count * span.exposed / len(numbers)
                whole[number] += phase.count * item.seconds / len(numbers)
        return tuple(
            replace(
                move,
                issue_after=places.get(number, ("", ""))[0],
                wait_before=places.get(number, ("", ""))[1],
                hidden=_share(move, exposed[number], whole[number]),
            )
            for number, move in enumerate(moves)
        )

    def _places(self) -> Mapping[int, tuple[str, str]]:
        """By number of a move: the operator after which it is issued, and the first one that waits for it."""
        found: dict[int, tuple[str, str]] = {}
        for phase in self.phases:
            last, issued = "", dict[int, tuple[str, Numbers, Numbers]]()
            for item, operator, numbers in zip(phase.program, phase.operators, phase.moves, strict=True):
                name = self.parts.operators[operator].name if operator >= 0 else ""
                if item.action == "compute":
                    last = name
                elif item.action == "issue":
                    issued[item.number] = (last, numbers, item.after)
                    for number in numbers:
                        found[number] = (found.get(number, (last, ""))[0], "")
                elif item.action == "wait":
                    for number in self._chain(issued, item.number):
                        found[number] = (found[number][0], found[number][1] or name)
        return found

    @staticmethod
    def _chain(issued: Mapping[int, tuple[str, Numbers, Numbers]], number: int) -> Iterator[int]:
        """The moves that have ended when the collective `number` has: its own, and those that it depended on."""
        ended = [number]
        while ended:
            _, moves, after = issued[ended.pop()]
            ended += after
            yield from moves


def _share(move: Move, exposed: float, whole: float) -> float:
    """The overlapped share of a move's time, to a thousandth."""
    if move.kind == "blocking" or not whole:
        return 0.0
    return round(max(0.0, 1.0 - exposed / whole), 3)


def phases_of(moves: StepMoves, policy: Policy) -> tuple[Phase, ...]:
    """The phases of a step in the order in which they first run."""
    parts = moves.parts
    micro = parts.microbatches
    phases: list[Phase] = []
    if moves.updates:
        phases.append(forward(moves, policy, "first forward", 1))
        micro -= 1
    if micro:
        phases.append(forward(moves, policy, "forward", micro))
    if parts.training:
        if parts.microbatches > 1:
            phases.append(backward(moves, policy, "backward", parts.microbatches - 1))
        phases.append(backward(moves, policy, "last backward", 1))
        phases.append(_update(parts))
    return tuple(phases)


def _update(parts: StepParts) -> Phase:
    """The optimizer."""
    writer = PhaseWriter()
    writer.compute("optimizer step", parts.optimizer_ns, -1)
    return writer.phase("update", 1)


def schedule_step(parts: StepParts, policy: Policy = EAGER, kappa: float = 1.0) -> StepSchedule:
    """The schedule of a step; equal phases are simulated once."""
    return schedule_moves(StepMoves(parts), policy, kappa)


def schedule_moves(moves: StepMoves, policy: Policy, kappa: float) -> StepSchedule:
    """The schedule of a step whose moves have been indexed already."""
    plain, parts = replace(policy, just_in_time=False), moves.parts
    phases = phases_of(moves, plain)
    simulations = tuple(simulate(phase.program, kappa, parts.levels) for phase in phases)
    scheduled = StepSchedule(parts, plain, phases, simulations)
    return in_time(moves, scheduled, kappa) if policy.just_in_time else scheduled


def in_time(moves: StepMoves, scheduled: StepSchedule, kappa: float) -> StepSchedule:
    """The same schedule with weights gathered just in time; phases in which nothing moves are not simulated again."""
    parts, phases = moves.parts, tuple(just_in_time(phase, ran, moves) for phase, ran in scheduled.phases_ran())
    simulations = tuple(
        ran if phase is before else simulate(phase.program, kappa, parts.levels)
        for phase, (before, ran) in zip(phases, scheduled.phases_ran(), strict=True)
    )
    return StepSchedule(parts, replace(scheduled.policy, just_in_time=True), phases, simulations)


def serial_schedule(parts: StepParts) -> StepSchedule:
    """The schedule without any overlap, for prices that know none: every collective is waited for."""
    blocking = tuple(replace(move, kind="blocking", bucket=None) for move in parts.moves)
    phases = phases_of(StepMoves(replace(parts, moves=blocking)), EAGER)
    return StepSchedule(parts, EAGER, phases, tuple(simulate(phase.program) for phase in phases))
