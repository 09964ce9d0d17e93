"""Prefetching: weights are gathered where the plan issues them, and awaited where the program first reads them.

The results of a program's operators show its progress (`shardplan.runtime.issue_order.Marks`). In the first forward
pass of each kind every weight is gathered where it is read, and the prefetcher records which weight and how; from the
second pass on, gathers are issued in the order of the plan. A weight that is read before its turn is issued at once,
with everything that the plan issues before it, so all processes issue the same gathers in the same order. In backward,
tensors that autograd did not save are gathered in the same way, from the first pass on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from shardplan.runtime.issue_order import IssueOrder, IssuePoint, Mark
from shardplan.torch.collectives.executor import Flight, MoveExecutor
from shardplan.torch.collectives.order import Label
from shardplan.torch.collectives.routes import TensorSteps
from shardplan.torch.gradients.regather import Regathered
from shardplan.torch.process_groups import Purpose

Numbers = tuple[int, ...]
"""Of moves of the plan that are sent together."""


class Source(NamedTuple):
    """The origin of a gathered tensor: a weight by the plan's name, or (no name) the result of the flight `numbers`."""

    weight: str
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    numbers: Numbers = ()


class Gather(NamedTuple):
    """The gather that is issued for some moves of the plan."""

    sources: tuple[Source, ...]
    moves: tuple[TensorSteps, ...]
    label: Label
    purpose: Purpose | None

    def is_like(self, other: Gather | None) -> bool:
        """Whether both send the same."""
        return other is not None and (self.sources, self.moves) == (other.sources, other.moves)


class Backward:
    """What the backward pass of one forward pass gathers again, by the plan's order `points`."""

    def __init__(self, points: Sequence[IssuePoint]) -> None:
        self._points, self._next = points, 0
        self._numbers = frozenset(point.numbers for point in points)
        self._regathers: dict[Numbers, Regathered] = {}

    def add(self, number: int, regathered: Regathered) -> None:
        """What the move `number` of the plan brings."""
        if (number,) in self._numbers:
            self._regathers[(number,)] = regathered
            regathered.before = functools.partial(_until, weakref.ref(self), (number,))

    def reached(self, mark: Mark) -> None:
        """The gradient of the result at `mark` is there."""
        while self._next < len(self._points) and self._points[self._next].at >= mark.down_to:
            self._issue()

    def until(self, numbers: Numbers) -> None:
        """Issue everything up to `numbers`."""
        while self._next < len(self._points) and not self._regathers[numbers].is_issued:
            self._issue()

    def _issue(self) -> None:
        found = self._regathers.get(self._points[self._next].numbers)
        self._next += 1
        if found is not None and found.uses:
            found.issue()


def _until(backward: weakref.ref[Backward], numbers: Numbers) -> None:
    """Issues by a weak reference: autograd keeps what it has saved, and that must not keep the whole pass alive."""
    found = backward()
    if found is not None:
        found.until(numbers)


@dataclass
class Prefetcher:
    """Follows one program under the plan whose moves are issued in `order`. For the current forward pass: `backward`,
    of its backward pass; `_points`, its points, and `_next`, the first that is not issued; `_held`, local parts of
    weights; `_made`, origins of tensors, by storage; `_flights`, gathers that are issued and not read."""

    executor: MoveExecutor
    order: IssueOrder
    backward: Backward | None = None
    _points: Sequence[IssuePoint] = ()
    _next: int = 0
    _numbers: frozenset[Numbers] = frozenset()
    _known: dict[Hashable, dict[Numbers, Gather]] = field(default_factory=dict)
    _kind: Hashable = None
    _held: Mapping[str, Tensor] = field(default_factory=dict)
    _made: dict[int, tuple[StorageWeakRef, Source]] = field(default_factory=dict)
    _flights: dict[Numbers, Flight] = field(default_factory=dict)

    def begin(self, kind: Hashable, *, is_first: bool) -> None:
        """A forward pass of `kind` begins; passes of one kind gather the same. `is_first`: of a step's microbatches."""
        self.end()
        self._kind, self._next = kind, 0
        self._points = self.order.first if is_first else self.order.forward
        self._numbers = frozenset(point.numbers for point in self._points)
        self.backward = Backward(self.order.backward)

    def hold(self, weights: Mapping[str, Tensor]) -> None:
        """What this process holds of weights that are gathered, by the plan's names."""
        self._held = {name: local.detach() for name, local in weights.items()}
        for name, local in self._held.items():
            self._note(local, Source(name))
        self.reached(0)

    def reached(self, up_to: int) -> None:
        """The program is about to run the plan's operator `up_to`."""
        while self._next < len(self._points) and self._points[self._next].at <= up_to:
            self._issue()

    def gather(
        self, locals_: Sequence[Tensor], moves: Sequence[TensorSteps], label: Label, purpose: Purpose | None = None
    ) -> list[Tensor]:
        """Local tensors after their moves: those that have been issued, or moved now."""
        numbers = tuple(move.number for move in moves)
        if numbers not in self._numbers:
            return self.executor.run(locals_, moves, label, purpose)
        sources = [source for source in map(self._source, locals_) if source is not None]
        wanted = Gather(tuple(sources), tuple(moves), label, purpose)
        known = self._known.setdefault(self._kind, {})
        if wanted.is_like(known.get(numbers)):
            while numbers not in self._flights and self._next < len(self._points):
                self._issue()
            flight = self._flights.pop(numbers, None)
        else:
            known.pop(numbers, None)
            self._flights.pop(numbers, None)
            flight = None
            if len(sources) == len(locals_):
                known[numbers] = wanted
        made = flight.wait() if flight is not None else self.executor.run(locals_, moves, label, purpose)
        if len(made) == 1:
            self._note(made[0], Source("", *_seen(made[0]), numbers))
        return made

    def end(self) -> None:
        """The forward pass has ended. Gathers that nothing has read are dropped."""
        self._flights.clear()
        self._made.clear()
        self._held, self._numbers, self.backward = {}, frozenset(), None

    def _issue(self) -> None:
        numbers = self._points[self._next].numbers
        self._next += 1
        gather = self._known.get(self._kind, {}).get(numbers)
        if gather is None:
            return
        first = gather.sources[0]
        given: Sequence[Tensor] | Flight | None
        if any(source.weight and source.weight not in self._held for source in gather.sources):
            return  # the program has put another tensor in the place of the weight
        if first.weight:
            given = [
                self._held[source.weight].as_strided(source.size, source.stride, source.offset)
                for source in gather.sources
            ]
        else:
            given = self._flights.get(first.numbers)
        if given is not None:
            sent = self.executor.start(given, gather.moves, gather.label, gather.purpose, way="gather")
            self._flights[numbers] = sent

    def _note(self, tensor: Tensor, source: Source) -> None:
        storage = StorageWeakRef(tensor.untyped_storage())
        self._made[storage.cdata] = storage, source

    def _source(self, local: Tensor) -> Source | None:
        storage, source = self._made.get(local.untyped_storage()._cdata, (None, None))  # noqa: SLF001 - as `pack`
        if storage is None or source is None or storage.expired():
            return None
        seen = _seen(local)
        if not source.weight and seen != source[1:4]:
            return None
        return source._replace(size=seen[0], stride=seen[1], offset=seen[2])


def _seen(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.size()), tensor.stride(), tensor.storage_offset()
