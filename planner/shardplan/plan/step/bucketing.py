"""Bucketing: which gradients of weights, and which new weights, are sent in one bucket.

Moves of one phase with the same collectives over the same axes on the same dtype can be sent together. In the order in
which they become available they fill buckets that hold at most what the profile says (`coalesce: bucket_mb`), or a
single tensor. Few large buckets pay latency less often; small early ones let communication start early, and small late
ones leave little to send after the last compute. Groups that share their outermost link are sent in rounds, each with
one bucket of every group, and the ends of the rounds minimise the time of the last arrival:

    F(j) = min over i < j of  max(F(i), r_j) + L_ij + c_i+1 + ... + c_j

with r_j the moment at which gradient j is available, c_j the time of its bytes, and L_ij the latencies of the groups
that gradients i+1 to j belong to. A group with little to send skips rounds: its neighbouring buckets are merged if that
saves time on the link and the last one arrives no later. New weights are the same problem backwards in time: their
readers are deadlines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.coalesce import in_bucket
from shardplan.cost.moves import CollectiveSeconds
from shardplan.layout.mesh import Mesh
from shardplan.plan.step.backward_phase import backward
from shardplan.plan.step.buckets import device_bytes, least_shard_count, whole_bytes
from shardplan.plan.step.forward_phase import forward
from shardplan.plan.step.moves import StepMoves, StepParts
from shardplan.plan.step.phases import EAGER
from shardplan.plan.types import CollectiveStep, Move
from shardplan.schedule.links import Levels
from shardplan.units import NS_PER_S

UNNUMBERED: Final = -1
"""Bucket number of a move that is still to be assigned to a bucket."""
UNNUMBERED_ONWARD: Final = -2
"""The same for a gradient that moves on from where its weight is kept to its optimizer's shard: such gradients are
complete when the former moves have ended, so no bucket has both kinds."""
_TO_BUCKET: Final = (UNNUMBERED, UNNUMBERED_ONWARD)
_SMALLER = 0.25
"""The latency of a bucket is the intercept of the line through the times of a full bucket and of one this full."""
_FULLER = 1.0 + 1e-12
"""Tolerance for a full bucket: sums of bytes are rounded."""
_ROUNDING = 1e-12
"""Seconds that arrivals may differ by rounding."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BucketPrices:
    """`seconds`: of a collective on so many bytes; `most_bytes`: a device's bytes of a full bucket; `levels`: names of
    the link levels, innermost first. `full`: fill every bucket as far as possible."""

    mesh: Mesh
    seconds: CollectiveSeconds
    most_bytes: float
    levels: Sequence[str]
    full: bool = False


@dataclass(frozen=True)
class Queue:
    """What is sent over a link in rounds, in the order in which it becomes available. `ready`: when; `seconds`: sending
    time of each; `groups`: the group of each, whose members can share a bucket; `sizes`: of which a bucket holds at
    most `most`, unless it has a single member; `latencies`: of a bucket of each group."""

    ready: Seconds
    seconds: Seconds
    groups: NDArray[np.int64]
    sizes: Seconds
    latencies: Sequence[float]
    most: float

    @cached_property
    def _sent(self) -> Seconds:
        return _sums(self.seconds)

    @cached_property
    def _last(self) -> list[list[int]]:
        """By end and group, the position behind the last member of the group before the end."""
        last, found = [0] * len(self.latencies), [[0] * len(self.latencies)]
        for place, group in enumerate(self.groups.tolist()):
            last[group] = place + 1
            found.append([*last])
        return found

    @cached_property
    def _first(self) -> list[int]:
        """By end of a round, the earliest start for which no bucket is too full."""
        filled = [_sums(np.where(self.groups == group, self.sizes, 0.0)) for group in range(len(self.latencies))]
        starts = np.max([np.searchsorted(sums, sums - self.most * _FULLER) for sums in filled], axis=0)
        return [min(int(start), max(end - 1, 0)) for end, start in enumerate(starts)]

    def starts(self, end: int) -> slice:
        """The possible starts of a round that ends there."""
        return slice(self._first[end], end)

    def lasting(self, end: int) -> Seconds:
        """The duration of a round that ends there, by its start."""
        first = self._first[end]
        seconds: Seconds = self._sent[end] - self._sent[first:end]
        for last, latency in zip(self._last[end], self.latencies, strict=True):
            seconds[: max(0, last - first)] += latency
        return seconds


def in_buckets(step: StepMoves, prices: BucketPrices, dtype: Callable[[str], str]) -> StepMoves:
    """The moves of a step, with `UNNUMBERED` ones assigned to buckets and given their shares of the buckets' times.

    `dtype(tensor)`: the element type of a tensor.
    """
    parts = step.parts
    groups: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for number, move in enumerate(parts.moves):
        if move.bucket in _TO_BUCKET:
            groups[_group(move, dtype)].append(number)
    moves, count, timed = list(parts.moves), 0, _Timed(prices)
    held = {number: timed.held_bytes(parts.moves[number]) for rows in groups.values() for number in rows}
    for phase in sorted({parts.moves[rows[0]].phase for rows in groups.values()}):
        clock = _Availability(step, update=phase == "update")
        own = [_Group.of(parts, rows, prices, held) for rows in groups.values() if parts.moves[rows[0]].phase == phase]
        for bucket in _buckets(own, prices, clock):
            sent_bytes = float(sum(held[number] for number in bucket))
            for number in bucket:
                moves[number] = replace(moves[number], steps=timed.steps(moves[number], sent_bytes), bucket=count)
            count += 1
    return step.having(tuple(moves))


def _group(move: Move, dtype: Callable[[str], str]) -> tuple[Hashable, ...]:
    return (
        move.phase,
        move.bucket,
        dtype(move.tensor),
        *((step.collective.kind, step.collective.axes) for step in move.steps),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Moves `rows` that can be sent together: a bucket takes `latency_s`, plus `seconds` for each. `held`: a device's
    bytes of each; `price`: seconds of a bucket of so many bytes."""

    rows: Sequence[int]
    levels: Levels
    latency_s: float
    seconds: Sequence[float]
    held: Sequence[float]
    price: Callable[[float], float]

    @classmethod
    def of(
        cls, parts: StepParts, rows: Sequence[int], prices: BucketPrices, held_bytes: Mapping[int, Fraction]
    ) -> _Group:
        first = parts.moves[rows[0]]
        levels = frozenset(parts.links[axis] for step in first.steps for axis in step.collective.axes)
        held = [float(held_bytes[number]) for number in rows]
        full, less = (_bucket_seconds(first, prices, share * prices.most_bytes) for share in (1.0, _SMALLER))
        latency = max(0.0, (less - _SMALLER * full) / (1.0 - _SMALLER))
        rate = max(0.0, full - latency) / prices.most_bytes
        price = partial(_bucket_seconds, first, prices)
        return cls(rows, levels, latency, [rate * size for size in held], held, price)

    def is_small(self, most_bytes: float) -> bool:
        """Whether sending all of it takes less than its latency, and it fits into one bucket: then it is sent
        at once."""
        return sum(self.seconds) <= self.latency_s and sum(self.held) <= most_bytes


def _bucket_seconds(move: Move, prices: BucketPrices, held: float) -> float:
    size_bytes = held * least_shard_count(move, prices.mesh)
    return sum(prices.seconds(step.collective, size_bytes) for step in move.steps)


def _buckets(groups: Sequence[_Group], prices: BucketPrices, clock: _Availability) -> Iterator[Sequence[int]]:
    """Moves in buckets, in the order in which they are sent, link by link."""
    left = list(groups)
    for level in reversed(prices.levels):
        own, left = [one for one in left if level in one.levels], [one for one in left if level not in one.levels]
        small = [one for one in own if one.is_small(prices.most_bytes)]
        large = [one for one in own if one not in small]
        together = [[one] for one in large] if prices.full else [large] if large else []
        found = [bucket for many in together for bucket in _rounds(many, prices, clock, level)]
        found += [one.rows for one in small]
        yield from [bucket[::-1] for bucket in reversed(found)] if clock.is_reversed else found


def _rounds(
    groups: Sequence[_Group], prices: BucketPrices, clock: _Availability, level: str
) -> Iterator[Sequence[int]]:
    """The buckets of the rounds in which groups are sent over one link."""
    moments = clock.moments(frozenset({level}))
    items = [
        (moments[clock.place(number)], group, number, seconds, held)
        for group, one in enumerate(groups)
        for number, seconds, held in zip(one.rows, one.seconds, one.held, strict=True)
    ]
    items.sort(key=lambda item: item[0])
    ready, members, _, seconds, sizes = map(np.array, zip(*items, strict=True))
    queue = Queue(ready, seconds, members, sizes, [one.latency_s for one in groups], prices.most_bytes)
    buckets = []
    for start, end in pairwise((0, *(fullest(queue) if prices.full else earliest(queue)))):
        for group in range(len(groups)):
            own = [item for item in items[start:end] if item[1] == group]
            if own:
                held = sum(item[4] for item in own)
                buckets.append(Bucket(tuple(item[2] for item in own), group, own[-1][0], held))
    return (one.rows for one in merged(buckets, [one.price for one in groups], prices.most_bytes))


def earliest(queue: Queue) -> list[int]:
    """The ends of the rounds that minimise the time of the last arrival; ascending, the last end is n. Ties give long
    rounds, the last ones first: every round costs latency."""
    count = len(queue.ready)
    arrives = np.full(count + 1, -np.inf)
    for end in range(1, count + 1):
        arrives[end] = (np.maximum(arrives[queue.starts(end)], queue.ready[end - 1]) + queue.lasting(end)).min()
    ends, due = [count], arrives[count]
    while True:
        end, starts = ends[-1], queue.starts(ends[-1])
        begins, lasting = np.maximum(arrives[starts], queue.ready[end - 1]), queue.lasting(end)
        chosen = int(np.argmax(begins + lasting <= due + _ROUNDING))
        if starts.start + chosen == 0:
            return ends[::-1]
        ends.append(starts.start + chosen)
        due -= lasting[chosen]


def fullest(queue: Queue) -> list[int]:
    """The ends of the rounds if each continues until a bucket is full."""
    ends = [0]
    for end in range(1, len(queue.ready) + 1):
        if queue.starts(end).start > ends[-1]:
            ends.append(end - 1)
    return [*ends[1:], len(queue.ready)]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Moves `rows` of one group, sent together once the last is available, at `ready`; `held`: their bytes."""

    rows: tuple[int, ...]
    group: int
    ready: float
    held: float


def merged(buckets: Sequence[Bucket], prices: Sequence[Callable[[float], float]], most: float) -> list[Bucket]:
    """Merges neighbouring buckets of one group while that saves time on the link and the last bucket arrives no later.

    `buckets`: by `ready`, sent in this order; `prices[group]`: seconds of so many bytes; a bucket holds at most `most`.
    Rounds have a bucket of every group, and this lets groups with little to send skip some. The largest saving goes
    first.
    """
    found = list(buckets)
    lasting = [prices[one.group](one.held) for one in found]
    while True:
        best = _best_merger(found, lasting, prices, most)
        if best is None:
            return found
        first, second, seconds = best
        one, other = found[first], found[second]
        found[second] = Bucket((*one.rows, *other.rows), one.group, other.ready, one.held + other.held)
        lasting[second] = seconds
        del found[first], lasting[first]


def _best_merger(
    buckets: Sequence[Bucket], lasting: Sequence[float], prices: Sequence[Callable[[float], float]], most: float
) -> tuple[int, int, float] | None:
    """The two buckets whose merger saves most, and the time of the merged one. With s_k the time of bucket k and all
    behind it, the last one arrives at the maximum of ready_k + s_k."""
    left = np.cumsum(lasting[::-1])[::-1]
    arrivals = left + np.array([one.ready for one in buckets])
    before, behind = np.maximum.accumulate(arrivals), np.maximum.accumulate(arrivals[::-1])[::-1]
    due, saved, best = before[-1] + _ROUNDING, _ROUNDING, None
    latest: dict[int, int] = {}
    for second, one in enumerate(buckets):
        first = latest.get(one.group, -1)
        latest[one.group] = second
        if first < 0 or buckets[first].held + one.held > most * _FULLER:
            continue
        seconds = prices[one.group](buckets[first].held + one.held)
        saves = lasting[first] + lasting[second] - seconds
        if saves <= saved or (first and before[first - 1] - saves > due):
            continue
        later = max(arrivals[first + 1 : second + 1]) + seconds - lasting[second]
        if later <= due and (second + 1 == len(buckets) or behind[second + 1] <= due):
            saved, best = saves, (first, second, seconds)
    return best


def _sums(amounts: Seconds) -> Seconds:
    return np.concatenate([[0.0], np.cumsum(amounts)])


class _Timed:
    """The times of moves in buckets. Equal moves of equal tensors share their steps, and are worked out once."""

    def __init__(self, prices: BucketPrices) -> None:
        self._prices = prices
        self._held: dict[int, Fraction] = {}
        self._steps: dict[tuple[int, float], tuple[CollectiveStep, ...]] = {}

    def held_bytes(self, move: Move) -> Fraction:
        """A device's bytes of what a move sends."""
        if id(move.steps) not in self._held:
            self._held[id(move.steps)] = device_bytes(move, self._prices.mesh)
        return self._held[id(move.steps)]

    def steps(self, move: Move, sent_bytes: float) -> tuple[CollectiveStep, ...]:
        """The steps of a move with its share of the time of a bucket of which a device has so many bytes."""
        key = id(move.steps), sent_bytes
        if key not in self._steps:
            seconds = in_bucket(self._prices.seconds, sent_bytes * least_shard_count(move, self._prices.mesh))
            size_bytes = float(whole_bytes(move))
            self._steps[key] = tuple(
                replace(step, time_ns=round(seconds(step.collective, size_bytes) * NS_PER_S)) for step in move.steps
            )
        return self._steps[key]


class _Availability:
    """When gradients of weights are available in the last backward; or, if `is_reversed`, for new weights: how long
    before the end of the first forward they are read."""

    def __init__(self, step: StepMoves, *, update: bool) -> None:
        parts, alone = step.parts, step.without(_TO_BUCKET)
        self.is_reversed = update
        self._moves = parts.moves
        if update:
            self._phase = forward(alone, EAGER, "first forward", 1)
        else:
            self._phase = backward(alone, EAGER, "last backward", 1)
        self._count = len(parts.operators)
        self._number = {operator.name: index for index, operator in enumerate(parts.operators)}
        self._first: Mapping[str, int] = {
            tensor: index for index in range(self._count - 1, -1, -1) for tensor in parts.operators[index].inputs
        }

    def place(self, number: int) -> int:
        """The operator that makes the last part of a gradient, or that is the first to read a weight."""
        move = self._moves[number]
        return self._number[move.reader] if move.reader else self._first.get(move.tensor, 0)

    def moments(self, levels: Levels) -> Seconds:
        """By operator, when its gradients are made, counted in seconds in which nothing else is sent on `levels`; or
        how long before the end it begins."""
        begins, ends = np.full(self._count, np.nan), np.full(self._count, np.nan)
        passed, queued = 0.0, 0.0
        for item, operator in zip(self._phase.program, self._phase.operators, strict=True):
            if operator >= 0 and np.isnan(begins[operator]):
                begins[operator] = passed
            if item.action == "issue" and item.levels & levels:
                queued += item.seconds
            elif item.action == "compute" or (item.action == "blocking" and not item.levels & levels):
                sent = min(queued, item.seconds)
                queued -= sent
                passed += item.seconds - sent
            if operator >= 0:
                ends[operator] = passed
        return passed - _filled_forward(begins) if self.is_reversed else _filled_forward(ends[::-1])[::-1]


def _filled_forward(values: Seconds) -> Seconds:
    """The values, with missing ones replaced by the value before; 0 if there is none."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, 0.0, values[last])
