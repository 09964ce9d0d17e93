"""The model in a report: operators in program order, copies of a block that are decided alike as one segment."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from shardplan.escapes import one_line
from shardplan.folding import folded
from shardplan.layout.layout import Layout
from shardplan.layout.text import to_text
from shardplan.plan.overlap import Exposure
from shardplan.plan.types import Move, OperatorDecision, Plan
from shardplan.render.groups import REGATHER, described
from shardplan.report.names import Names


@dataclass(frozen=True, slots=True)
class _Segment:
    """`copies`: (module path, indices of its operators), each decided as the first; no path outside of blocks."""

    copies: tuple[tuple[str, tuple[int, ...]], ...]


def model_record(plan: Plan, names: Names) -> dict[str, object]:
    """`segments`: label, count, shares of the step, operators of the first copy, names in the other copies.

    An operator is [name, type, module, equation, labels by axis, forward ns, backward ns, inner ns, operands, results];
    an operand or result is [tensor, role, layout kept, layout read or made, bytes per device, moves]; a move is
    [phase, collectives, bytes, ns, exposed ns, kind].
    """
    view = _View(plan, names)
    return {"segments": [view.segment(segment) for segment in _segments(plan, view)]}


class _View:
    """What is looked up often, by name."""

    def __init__(self, plan: Plan, names: Names) -> None:
        self.plan, self.names = plan, names
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.exposure = Exposure(plan)
        self.moves: dict[tuple[str, str], list[Move]] = {}
        for move in plan.moves:
            if move.time_ns:
                self.moves.setdefault((move.tensor, move.reader), []).append(move)
        self.layouts: dict[Layout, int] = {}

    def layout(self, layout: Layout | None) -> int:
        """The number of a layout's text, -1 for none."""
        if layout is None:
            return -1
        if layout not in self.layouts:
            self.layouts[layout] = self.names(to_text(layout, self.plan.mesh))
        return self.layouts[layout]

    def decided(self, index: int) -> Hashable:
        """What is decided for an operator, and what is moved for it, without names."""
        operator = self.plan.operators[index]
        reads = [self._operand(name, operator.name) for name in operator.inputs]
        makes = [self._operand(name, "") for name in operator.outputs]
        return (operator.op_type, operator.equation, operator.split, operator.reads, operator.makes, *reads, *makes)

    def _operand(self, name: str, reader: str) -> Hashable:
        tensor = self.tensors.get(name)
        moved = tuple((move.phase, move.source, move.target, move.kind) for move in self.moves.get((name, reader), ()))
        return (tensor.layout, tensor.served, tensor.saved, tensor.recomputed, moved) if tensor else moved

    def segment(self, segment: _Segment) -> dict[str, object]:
        operators = self.plan.operators
        first = segment.copies[0][1]
        paths = [path for path, _ in segment.copies]
        every = [path for copies, _ in self.plan.blocks for path in copies]
        members = [index for _, indices in segment.copies for index in indices]
        return {
            "label": one_line(folded(paths, every) if paths[0] else _span(operators, first)),
            "count": len(segment.copies),
            "block": bool(paths[0]),
            "compute": sum(operators[index].compute_ns for index in members),
            "exposed": round(sum(map(self._exposed, members))),
            "paths": [one_line(path) for path in paths],
            "names": [[self.names(operators[index].name) for index in indices] for _, indices in segment.copies[1:]],
            "operators": [self._operator(operators[index]) for index in first],
        }

    def _exposed(self, index: int) -> float:
        operator = self.plan.operators[index]
        of = [(name, operator.name) for name in operator.inputs] + [(name, "") for name in operator.outputs]
        moved = sum(self.exposure.exposed_ns(move) for key in dict.fromkeys(of) for move in self.moves.get(key, ()))
        return moved + operator.inner_ns

    def _operator(self, operator: OperatorDecision) -> list[object]:
        names = self.names
        reads = zip(operator.inputs, operator.reads, strict=True)
        makes = zip(operator.outputs, operator.makes, strict=True)
        return [
            names(operator.name), names(operator.op_type), names(operator.module), names(operator.equation),
            [names(label) for label in operator.split], operator.compute_ns - operator.backward_ns,
            operator.backward_ns, operator.inner_ns,
            [self._edge(name, layout, operator.name) for name, layout in reads if name],
            [self._edge(name, layout, "") for name, layout in makes if name],
        ]  # fmt: skip

    def _edge(self, name: str, layout: Layout | None, reader: str) -> list[object]:
        tensor, moves = self.tensors.get(name), self.moves.get((name, reader), ())
        return [
            self.names((tensor.checkpoint or name) if tensor else name), self.names(tensor.role if tensor else ""),
            self.layout(tensor.layout if tensor else None), self.layout(layout),
            tensor.bytes_per_device if tensor else 0, [self._move(move) for move in moves],
        ]  # fmt: skip

    def _move(self, move: Move) -> list[object]:
        sent = described(move, self.plan.mesh)
        payload = sum(step.payload_bytes for step in move.steps if not step.collective.is_free)
        phase = REGATHER if move.regather else move.phase
        exposed = round(self.exposure.exposed_ns(move))
        return [self.names(phase), self.names(sent), payload, move.time_ns, exposed, self.names(move.kind)]


def _span(operators: Sequence[OperatorDecision], indices: Sequence[int]) -> str:
    """What stands outside of blocks, by its first and last operator."""
    ends = dict.fromkeys(operators[index].module or operators[index].op_type for index in (indices[0], indices[-1]))
    return " … ".join(ends)


def _segments(plan: Plan, view: _View) -> Iterator[_Segment]:
    """Operators in order; neighbouring copies of a block that are decided alike are one segment."""
    starts = {
        indices[0]: (path, indices)
        for paths, copies in plan.blocks
        for path, indices in zip(paths, copies, strict=True)
        if indices
    }
    inside = {index for _, indices in starts.values() for index in indices}
    loose: list[int] = []
    alike: list[tuple[str, tuple[int, ...]]] = []
    decided: Hashable = None
    for index in range(len(plan.operators)):
        if index in starts:
            path, indices = starts[index]
            if loose:
                yield _Segment((("", tuple(loose)),))
                loose = []
            now = tuple(view.decided(one) for one in indices)
            if alike and now != decided:
                yield _Segment(tuple(alike))
                alike = []
            alike.append((path, indices))
            decided = now
        elif index not in inside:
            if alike:
                yield _Segment(tuple(alike))
                alike = []
            loose.append(index)
    for copies in (alike, [("", tuple(loose))] if loose else []):
        if copies:
            yield _Segment(tuple(copies))
