"""Repeated blocks: identical consecutive pieces of a graph, such as decoder layers and residual blocks.

Every operator gets a number that stands for what it does and to what shapes; names do not count. In the sequence of
numbers, pieces that repeat `period` places later are runs of `numbers[i] == numbers[i + period]`, found by one array
comparison per candidate period. The wiring of a run is then compared operator by operator. Cost: linear in operators,
times the number of distinct distances at which an operator recurs (a few dozen).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from shardplan.model.digest import array_digest, operator_digest
from shardplan.model.types import Block, Operator, Tensor

_SMALLEST_PERIOD = 3
_MOST_KINDS = 8
"""Layers that may follow one another before their kinds repeat, where an operator is in each of them once."""
_MOST_FAR = 64
"""Distances beyond the next equal operator that are candidates."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Operators `start .. stop` repeat every `period` places."""

    start: int
    stop: int
    period: int

    @property
    def copies(self) -> int:
        return (self.stop - self.start) // self.period

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order of runs: the one with more operators in repeated copies is better, then the one with the shorter
        period."""
        return ((self.copies - 1) * self.period, -self.period, -self.start)


def find_blocks(
    operators: Sequence[Operator], tensors: Mapping[str, Tensor], constants: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[Block, ...]:
    """Repeated blocks of `operators` (in execution order), in graph order; no operator is in two of them.

    Copies are isomorphic: the same operators on the same shapes, wired alike to each other, to their own weights, to
    the copy before, and to the same values from outside. Every copy is fed by its predecessor, the first one from
    outside instead. Every block reads weights.
    """
    graph = _Graph(operators, tensors, constants)
    blocks = []
    open_pieces = [(0, len(operators))]
    while open_pieces:
        low, high = open_pieces.pop()
        for run in graph.runs(low, high):
            copies = graph.isomorphic(run)
            if len(copies) > 1:
                blocks.append(Block(graph.names(copies), tuple(copies)))
                open_pieces += [(low, copies[0][0]), (copies[-1][-1] + 1, high)]
                break
    return tuple(sorted(blocks, key=lambda block: block.copies[0][0]))


class _Graph:
    """Operators as numbers, with what the comparison of copies needs."""

    def __init__(
        self,
        operators: Sequence[Operator],
        tensors: Mapping[str, Tensor],
        constants: Mapping[str, np.ndarray[Any, Any]],
    ) -> None:
        self.operators = operators
        self.tensors = tensors
        self.contents = {name: array_digest(value) for name, value in constants.items()}
        self.numbers = _numbers(operators, tensors, self.contents)
        self.readers: dict[str, list[int]] = {}
        for index, operator in enumerate(operators):
            for name in operator.inputs:
                self.readers.setdefault(name, []).append(index)
        self.makers = {
            name: (index, place)
            for index, operator in enumerate(operators)
            for place, name in enumerate(operator.outputs)
            if name
        }
        self.given = _free_of_weights(operators, tensors)
        self.crossing = self._crossing()
        self.modules = [tuple(operator.module.split(".")) if operator.module else () for operator in operators]

    def _crossing(self) -> np.ndarray[Any, Any]:
        """Place -> how many values made before it are read at or after it."""
        steps = np.zeros(len(self.operators) + 2, np.int64)
        for name, (made, _) in self.makers.items():
            if name in self.readers:
                steps[made + 1] += 1
                steps[self.readers[name][-1] + 1] -= 1
        return np.cumsum(steps)

    def runs(self, low: int, high: int) -> list[_Run]:
        """Runs of at least two copies inside `low .. high`, best first."""
        numbers = self.numbers[low:high]
        found = []
        for period in _distances(numbers):
            same = np.concatenate(([0], numbers[:-period] == numbers[period:], [0])).astype(np.int8)
            edges = np.flatnonzero(np.diff(same))
            for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                if stop - start >= period:
                    found.append(_Run(low + start, low + stop + period, period))
        return sorted(found, key=lambda run: run.rank, reverse=True)

    def isomorphic(self, run: _Run) -> list[tuple[int, ...]]:
        """The longest sequence of copies in `run` with equal wiring; empty if there are not two copies that form a
        chain and read weights."""
        start = self._aligned(run)
        pieces = [
            tuple(range(first, first + run.period)) for first in range(start, run.stop - run.period + 1, run.period)
        ]
        wiring = [self._wiring(piece, before) for before, piece in pairwise([(), *pieces])]
        best: list[tuple[int, ...]] = []
        first = 0
        while first < len(pieces) - 1:
            after = first + 1
            if _starts(self._wiring(pieces[first], ()), wiring[after]):
                while after < len(pieces) and wiring[after] == wiring[first + 1]:
                    after += 1
                best = max(best, pieces[first:after], key=len)
            first = max(after - 1, first + 1)
        if not best or not _is_chain(self._wiring(best[1], best[0])) or not self._reads_weights(best[0]):
            return []
        return self._extended(best)

    def _extended(self, copies: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """`copies` with one more at the front, if there is one among other operators.

        Exporters compute what all layers share in the middle of the first layer that needs it.
        """
        first, second = copies[0], copies[1]
        wanted = self.numbers[list(first)].tolist()
        spare = max(_SMALLEST_PERIOD, len(first) // 4)
        found: list[int] = []
        at = first[0] - 1
        while wanted and at >= 0 and spare >= 0:
            if self.numbers[at] == wanted[-1]:
                found.append(at)
                wanted.pop()
            else:
                spare -= 1
            at -= 1
        zeroth = tuple(reversed(found))
        wiring = self._wiring(second, first)
        if wanted or self._wiring(first, zeroth) != wiring or not _starts(self._wiring(zeroth, ()), wiring):
            return copies
        return [zeroth, *copies]

    def _reads_weights(self, copy: Sequence[int]) -> bool:
        inputs = (name for index in copy for name in self.operators[index].inputs if name)
        return any(self.tensors[name].role == "parameter" for name in inputs)

    def _aligned(self, run: _Run) -> int:
        """Where the first copy starts: at the border of a module if there is one, else where fewest values cross."""
        keys = self._keys(run)
        spare = (run.stop - run.start) % run.period
        best, best_rank = run.start, (-1, 0)
        for offset in range(spare + 1):
            counts = Counter(keys[offset : offset + run.period])
            counts.pop("", None)
            inside = max(counts.values(), default=0)
            rank = (inside, -int(self.crossing[run.start + offset + run.period]))
            if rank > best_rank:
                best, best_rank = run.start + offset, rank
        return best

    def _keys(self, run: _Run) -> list[str]:
        """For each operator of the run the module that tells its copy from the next: `model.layers.0`."""
        keys = []
        for index in range(run.start, run.stop):
            other = index + run.period if index + run.period < run.stop else index - run.period
            keys.append(_first_difference(self.modules[index], self.modules[other]))
        return keys

    def _wiring(self, copy: Sequence[int], before: Sequence[int]) -> list[tuple[Hashable, ...]]:
        """For each operator of a copy, where its inputs come from, relative to the copy and the one before it.

        A value from outside that only this copy reads (its weights, its key and value caches), or that no weight
        influences (a mask, of which there may be several for layers of several kinds), is known by the order in which
        the copy reads it, one that others read too by its name.
        """
        own = {index: place for place, index in enumerate(copy)}
        previous = {index: place for place, index in enumerate(before)}
        private: dict[str, int] = {}
        rows = []
        for index in copy:
            row: list[Hashable] = []
            for name in self.operators[index].inputs:
                made, place = self.makers.get(name, (-1, 0))
                if made in own:
                    row.append(("own", own[made], place))
                elif made in previous:
                    row.append(("previous", previous[made], place))
                elif not name or name in self.contents:
                    row.append("constant")
                elif name in private or name in self.given or all(reader in own for reader in self.readers[name]):
                    row.append(("private", private.setdefault(name, len(private))))
                else:
                    row.append(("outside", name))
            rows.append(tuple(row))
        return rows

    def names(self, copies: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """Module paths of the copies where these tell them apart, else `block 0`, `block 1` ..."""
        names = []
        for place, copy in enumerate(copies):
            other = copies[place + 1] if place + 1 < len(copies) else copies[place - 1]
            keys = (_first_difference(self.modules[a], self.modules[b]) for a, b in zip(copy, other, strict=True))
            counts = Counter(key for key in keys if key)
            names.append("+".join(key for key, count in counts.items() if count * 5 >= len(copy)))
        distinct = all(names) and len(set(names)) == len(names)
        return tuple(names) if distinct else tuple(f"block {place}" for place in range(len(copies)))


def _numbers(
    operators: Sequence[Operator], tensors: Mapping[str, Tensor], contents: Mapping[str, str]
) -> np.ndarray[Any, Any]:
    """One number per operator; equal numbers do the same to the same shapes with equal constants. Numbers in floating
    point (the angles of a rotation) may differ: no shape and no cost depends on them."""
    looks: dict[str, Hashable] = {"": ()}
    for name, tensor in tensors.items():
        large = name if tensor.role == "constant" and name not in contents else ""
        role = "value" if tensor.role in ("input", "activation") else tensor.role
        looks[name] = (tensor.shape, tensor.dtype, role, "" if tensor.is_float else contents.get(name, large))
    seen: dict[Hashable, int] = {}
    numbers = []
    for operator in operators:
        inputs = tuple([looks[name] for name in operator.inputs])
        outputs = tuple([looks[name] for name in operator.outputs])
        numbers.append(seen.setdefault((operator_digest(operator), operator.loops, inputs, outputs), len(seen)))
    return np.array(numbers, np.int64)


def _free_of_weights(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Constants, and what operators make of them and of inputs alone."""
    bound = {name for name, tensor in tensors.items() if tensor.role == "parameter"}
    found = {name for name, tensor in tensors.items() if tensor.role == "constant"}
    for operator in operators:
        (found if bound.isdisjoint(operator.inputs) else bound).update(operator.outputs)
    return frozenset(found - {""})


def _distances(numbers: np.ndarray[Any, Any]) -> list[int]:
    """Distances between one operator and its next equals: the candidates for a period. The next one alone tells nothing
    of layers of several kinds that take turns; those farther away count if many operators have that distance."""
    if len(numbers) < 2 * _SMALLEST_PERIOD:
        return []
    order = np.argsort(numbers, kind="stable")
    near, far = set[int](), Counter[int]()
    for lag in range(1, min(_MOST_KINDS, len(order) - 1) + 1):
        same = numbers[order][lag:] == numbers[order][:-lag]
        distances, counts = np.unique((order[lag:] - order[:-lag])[same], return_counts=True)
        near |= set(distances.tolist()) if lag == 1 else set()
        far.update(dict(zip(distances.tolist(), counts.tolist(), strict=True)))
    most = sorted(far, key=lambda distance: (-far[distance], distance))[:_MOST_FAR]
    return sorted(d for d in near.union(most) if _SMALLEST_PERIOD <= d <= len(numbers) // 2)


def _starts(first: Sequence[tuple[Hashable, ...]], second: Sequence[tuple[Hashable, ...]]) -> bool:
    """Whether a copy wired as `first` can precede one wired as `second`: values from its predecessor may come from
    outside instead."""
    fed: dict[Hashable, Hashable] = {}
    for mine, theirs in zip(first, second, strict=True):
        for left, right in zip(mine, theirs, strict=True):
            if _is_source(right, "previous") and not _is_source(left, "own"):
                pass
            elif not (_is_source(left, "private") and _is_source(right, "private")) and left != right:
                return False
            if fed.setdefault(right, left) != left:
                return False
    return True


def _is_chain(wiring: Sequence[tuple[Hashable, ...]]) -> bool:
    """Whether a copy reads a value of the previous one, as layers do."""
    return any(_is_source(source, "previous") for row in wiring for source in row)


def _is_source(source: Hashable, kind: str) -> bool:
    return isinstance(source, tuple) and source[0] == kind


def _first_difference(mine: tuple[str, ...], other: tuple[str, ...]) -> str:
    for place, (left, right) in enumerate(zip(mine, other, strict=False)):
        if left != right:
            return ".".join(mine[: place + 1])
    return ""
