"""The model in a report: operators in program order, copies of a block that are decided alike as one segment."""

from __future__ import annotations

from shardplan.escapes import one_line
from shardplan.layout.layout import Layout
from shardplan.layout.text import to_text
from shardplan.plan.types import Move, OperatorDecision, Plan
from shardplan.plan.views.breakdown import Exposure
from shardplan.plan.views.segments import Segment, label, moves_by_edge, segments
from shardplan.render.groups import REGATHER, described, phase_text
from shardplan.reports.names import InternedNames


def model_record(plan: Plan, names: InternedNames) -> dict[str, object]:
    """`segments`: label, count, shares of the step, operators of the first copy, names in the other copies.

    An operator is [name, type, module, equation, labels by axis, forward ns, backward ns, inner ns, operands, results];
    an operand or result is [tensor, role (of a result that is, `rematerialised`), layout kept, layout read or made,
    bytes per device, moves]; a move is [phase, collectives, bytes, ns, exposed ns, kind].
    """
    view = _View(plan, names)
    return {"segments": [view.segment(segment) for segment in segments(plan)]}


class _View:
    """What is looked up often, by name."""

    def __init__(self, plan: Plan, names: InternedNames) -> None:
        self.plan, self.names = plan, names
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.exposure = Exposure(plan)
        self.moves = moves_by_edge(plan)
        self.layouts: dict[Layout, int] = {}

    def layout(self, layout: Layout | None) -> int:
        """The number of a layout's text, -1 for none."""
        if layout is None:
            return -1
        if layout not in self.layouts:
            self.layouts[layout] = self.names(to_text(layout, self.plan.mesh))
        return self.layouts[layout]

    def segment(self, segment: Segment) -> dict[str, object]:
        operators = self.plan.operators
        first = segment.copies[0][1]
        paths = [path for path, _ in segment.copies]
        members = [index for _, indices in segment.copies for index in indices]
        return {
            "label": one_line(label(segment, self.plan)),
            "count": len(segment.copies),
            "block": segment.is_block,
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
        role = "" if tensor is None else "rematerialised" if tensor.recomputed and not reader else tensor.role
        return [
            self.names((tensor.checkpoint or name) if tensor else name), self.names(role),
            self.layout(tensor.layout if tensor else None), self.layout(layout),
            tensor.bytes_per_device if tensor else 0, [self._move(move) for move in moves],
        ]  # fmt: skip

    def _move(self, move: Move) -> list[object]:
        sent = described(move, self.plan.mesh)
        payload = sum(step.payload_bytes for step in move.steps if not step.collective.is_free)
        phase = REGATHER if move.regather else move.phase
        exposed = round(self.exposure.exposed_ns(move))
        return [self.names(phase_text(phase)), self.names(sent), payload, move.time_ns, exposed, self.names(move.kind)]
