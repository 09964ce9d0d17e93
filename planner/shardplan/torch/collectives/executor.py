"""Execution of moves: the collectives of one tensor, or of a bucket of tensors, on the local tensors of this process.

`MoveExecutor` issues every collective of a plan except inter-stage send/receive. Collectives beside compute run on the
lane of their link level (`shardplan.torch.collectives.lanes`): gathered weights on one, gradients on another, since
gradients may wait and the reader of a weight may not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from shardplan.torch.collectives.coalesced import run_coalesced, run_coalesced_step
from shardplan.torch.collectives.lanes import Pending, lanes_of
from shardplan.torch.collectives.order import Label, OrderCheck
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.collectives.times import Times

if TYPE_CHECKING:
    from shardplan.torch.process_groups import ProcessGroups, Purpose

Way = Literal["gather", "reduce"]


@dataclass(frozen=True)
class Flight:
    """Tensors in flight. `pending`: the local tensors after the moves; `times`: records their arrival; `numbers`: of
    the plan's moves."""

    pending: Pending
    numbers: tuple[int, ...] = ()
    times: Times | None = None

    def wait(self) -> list[Tensor]:
        """The local tensors when everything has been sent."""
        begin = self.times.now() if self.times else None
        made = self.pending.wait()
        if self.times:
            self.times.awaited(self.numbers, begin)
        return made


class MoveExecutor:
    """Runs the collectives of moves over the process groups of a plan. `links`: level of every mesh axis; `order`:
    compares moves with those of other processes; `times`: records when moves run, if given."""

    def __init__(self, groups: ProcessGroups, links: Sequence[str] = ()) -> None:
        self.groups, self.links, self.order = groups, links, OrderCheck(groups)
        self.times: Times | None = None

    def run(
        self,
        locals_: Sequence[Tensor],
        moves: Sequence[TensorSteps],
        label: Label,
        purpose: Purpose | None = None,
        *,
        is_backward: bool = False,
    ) -> list[Tensor]:
        """Local tensors after their moves; several moves have the same collectives and are sent as one bucket.

        `purpose`: of communication outside of the forward and backward pass. Raises `ShardplanError` (`another-order`)
        if, in the first steps, another process is about to make another move.
        """
        self.order.compare(label, moves, is_backward=is_backward)
        with self.groups.sending(purpose):
            begin = self.times.now() if self.times else None
            made = run_coalesced(locals_, moves, self.groups)
        if self.times:
            self.times.sent(_numbers(moves), begin, begin, is_blocking=True)
        return made

    def start(
        self,
        locals_: Sequence[Tensor] | Flight,
        moves: Sequence[TensorSteps],
        label: Label,
        purpose: Purpose | None = None,
        *,
        way: Way,
        is_backward: bool = False,
    ) -> Flight:
        """The same asynchronously, for tensors or for the results of a flight. Raises as `run`."""
        self.order.compare(label, moves, is_backward=is_backward)
        given = locals_.pending if isinstance(locals_, Flight) else _Given(list(locals_))
        uses = () if isinstance(locals_, Flight) else locals_
        sending: Purpose | None = "backward" if is_backward and purpose is None else purpose
        issued = self.times.now() if self.times else None
        for lane, places in self._lanes(moves[0], way):
            given = self._send(given, moves, places, lane, sending, issued, uses)
            uses = ()
        return Flight(given, _numbers(moves), self.times)

    def _send(
        self, given: Pending, moves: Sequence[TensorSteps], places: Sequence[int], lane: str,
        sending: Purpose | None, issued: object, uses: Sequence[Tensor],
    ) -> Pending:  # fmt: skip
        """Gives the steps at `places` to a lane. Groups are created here, in an order that is the same on all
        processes."""
        with self.groups.on_lane(lane), self.groups.sending(sending):
            for place in places:
                axes = moves[0].steps[place].collective.axes
                if self.groups.mesh.ways(axes) > 1:
                    self.groups.along(axes)
            times, held = self.times, [given]

            def work() -> list[Tensor]:
                made = held.pop().wait()
                begin = times.now() if times else None
                for place in places:
                    made = run_coalesced_step(made, moves, place, self.groups)
                if times:
                    times.sent(_numbers(moves), issued, begin, is_blocking=False)
                return made

            return lanes_of(self.groups.device_mesh, self.groups.device).run(lane, work, uses)

    def _lanes(self, move: TensorSteps, way: Way) -> list[tuple[str, list[int]]]:
        """The steps of a move by lane; a step that sends nothing belongs to the lane of the next one that does."""
        names: list[str] = []
        for step in reversed(move.steps):
            axes, last = step.collective.axes, names[-1] if names else ""
            sends = not step.collective.is_free and self.groups.mesh.ways(axes) > 1
            names.append(f"{way} {self.links[min(axes)] if self.links else ''}" if sends or not last else last)
        names.reverse()
        return [(name, list(places)) for name, places in itertools.groupby(range(len(names)), lambda at: names[at])]


@dataclass
class _Given:
    """Tensors that are already available. They are dropped once taken, so that they are freed as soon as they have been
    sent."""

    tensors: list[Tensor]

    def wait(self) -> list[Tensor]:
        found, self.tensors = self.tensors, []
        return found


def _numbers(moves: Sequence[TensorSteps]) -> tuple[int, ...]:
    return tuple(move.number for move in moves)
