"""A plan's operators in order; neighbouring copies of a block with equal decisions are folded into one segment."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from shardplan.folding import folded, pattern
from shardplan.plan.types import Move, Plan

_NUMBERS = re.compile(r"\d+")
_NUMBERED = re.compile(r".*?\.\d+(?=\.|$)|[^.]+")
_MANY = 60
"""Operators outside of blocks above which one row says little."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`copies`: (module path, indices of its operators), each with the decisions of the first; outside of blocks one
    copy, without a path."""

    copies: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def is_block(self) -> bool:
        return bool(self.copies[0][0])


def label(segment: Segment, plan: Plan) -> str:
    """`transformer.h.{0-10}`: the module paths of a block's copies; `embed … Cast`: the first and last operator between
    blocks."""
    paths = [path for path, _ in segment.copies]
    if segment.is_block and len({pattern(path) for path in paths}) > 1:  # layer0, layer1: numbers do not stand alone
        return f"{paths[0]} … {paths[-1]}"
    if segment.is_block:
        return folded(paths, [path for copies, _ in plan.blocks for path in copies])
    (_, indices), operators = segment.copies[0], plan.operators
    ends = dict.fromkeys(operators[index].module or operators[index].op_type for index in (indices[0], indices[-1]))
    parts = {_part(end) for end in ends}
    return parts.pop() if len(parts) == 1 < len(ends) and _NUMBERS.search(min(parts)) else " … ".join(ends)


def moves_by_edge(plan: Plan) -> dict[tuple[str, str], list[Move]]:
    """The moves that take time, by tensor and reader."""
    found: dict[tuple[str, str], list[Move]] = {}
    for move in plan.moves:
        if move.time_ns:
            found.setdefault((move.tensor, move.reader), []).append(move)
    return found


def segments(plan: Plan) -> list[Segment]:
    """All segments in program order; every operator is in one copy of one segment. The paths of a segment's copies
    differ only in numbers, so that names in one copy follow from those in another."""
    decisions = _Decisions(plan)
    found: list[Segment] = []
    last: Hashable = None
    for path, indices in _pieces(plan):
        now = (_NUMBERS.sub("*", path), *map(decisions.of, indices)) if path else None
        if path and found and found[-1].is_block and now == last:
            found[-1] = Segment((*found[-1].copies, (path, indices)))
        else:
            found.append(Segment(((path, indices),)))
        last = now
    return found


def _pieces(plan: Plan) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Copies of blocks, and the operators between two of them; long stretches are divided by module."""
    for path, indices in _copies_and_rest(plan):
        if path or len(indices) <= _MANY:
            yield path, indices
        else:
            yield from (("", group) for group in _by_module(plan, indices))


def _by_module(plan: Plan, indices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Neighbours of one part of the model; an operator without a module belongs to the one before it."""
    groups: list[list[int]] = []
    last = None
    for index in indices:
        part = _part(plan.operators[index].module) or last
        if not groups or part != last:
            groups.append([])
        groups[-1].append(index)
        last = part
    return [tuple(group) for group in groups]


def _part(module: str) -> str:
    """A module's path up to the first number in it, `down_blocks.0`; its first name if it has none."""
    found = _NUMBERED.match(module)
    return found[0] if found else ""


def _copies_and_rest(plan: Plan) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Copies of blocks, and the operators between two of them."""
    copies = {
        indices[0]: (path, indices)
        for paths, many in plan.blocks
        for path, indices in zip(paths, many, strict=True)
        if indices
    }
    inside = {index for _, indices in copies.values() for index in indices}
    loose: list[int] = []
    for index in range(len(plan.operators)):
        if index in copies:
            if loose:
                yield "", tuple(loose)
                loose = []
            yield copies[index]
        elif index not in inside:
            loose.append(index)
    if loose:
        yield "", tuple(loose)


class _Decisions:
    """The decisions about an operator and its moves, without names."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tensors = {tensor.name: tensor for tensor in plan.tensors}
        self._moves = moves_by_edge(plan)

    def of(self, index: int) -> Hashable:
        operator = self._plan.operators[index]
        reads = [self._operand(name, operator.name) for name in operator.inputs]
        makes = [self._operand(name, "") for name in operator.outputs]
        return (operator.op_type, operator.equation, operator.split, operator.reads, operator.makes, *reads, *makes)

    def _operand(self, name: str, reader: str) -> Hashable:
        tensor = self._tensors.get(name)
        moved = tuple((move.phase, move.source, move.target, move.kind) for move in self._moves.get((name, reader), ()))
        return (tensor.layout, tensor.served, tensor.saved, tensor.recomputed, moved) if tensor else moved
