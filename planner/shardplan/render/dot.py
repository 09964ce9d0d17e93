"""A plan in Graphviz' DOT: operators with their strategies, edges with the layouts of tensors and what is moved.

Neighbouring copies of a block that are decided alike are one cluster, as in the report; what a copy hands to another is
a dashed edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardplan.escapes import dot
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.plan.views.segments import Segment, label, moves_by_edge, segments
from shardplan.render.groups import REGATHER, described, phase_text
from shardplan.units import size

_MATRIX = frozenset({"MatMul", "Gemm", "Conv", "Attention"})
_NEW_LINE = r"\n"


class _Place(NamedTuple):
    """Where an operator is drawn: the operator of the first copy that stands for it, and which copy of which segment
    it is of."""

    operator: str
    segment: int
    copy: int


def dot_text(plan: Plan, *, unfolded: bool = False) -> str:
    """The DOT file. A tensor that is sent for its reader has a red arrow, which says what is sent in which phase.

    `unfolded`: every copy of a block is drawn. Stages of a pipeline are clusters.
    """
    lines = [
        f"digraph {_quoted(dot(str(plan.model.get('name'))))} {{",
        "  node [shape=box, style=rounded];",
    ]
    if plan.pipeline is None:
        return "\n".join([*lines, *_Drawing(plan, "", unfolded).lines(), "}"]) + "\n"
    for stage in plan.pipeline.stages:
        name = dot(stage.name)
        lines += [f"  subgraph {_quoted(f'cluster {name}')} {{", f"    label={_quoted(name)};"]
        lines += [f"  {line}" for line in _Drawing(stage.plan, f"{stage.name}/", unfolded).lines()]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


class _Drawing:
    def __init__(self, plan: Plan, prefix: str, unfolded: bool) -> None:
        self._plan, self._prefix = plan, prefix
        folded = segments(plan)
        self._segments = [Segment((copy,)) for one in folded for copy in one.copies] if unfolded else folded
        self._moves = moves_by_edge(plan)
        self._tensors = {tensor.name: tensor for tensor in plan.tensors}
        names = [operator.name for operator in plan.operators]
        self._places = {
            names[index]: _Place(names[first], number, copy)
            for number, segment in enumerate(self._segments)
            for copy, (_, indices) in enumerate(segment.copies)
            for index, first in zip(indices, segment.copies[0][1], strict=True)
        }

    def lines(self) -> list[str]:
        return [*self._nodes(), *dict.fromkeys(self._edges())]

    def _nodes(self) -> Iterator[str]:
        for tensor in self._plan.tensors:
            if tensor.role in ("input", "output"):
                text = f"{dot(tensor.name)}\\n{dot(_text(tensor.layout, self._plan.mesh))}"
                yield f"  {self._tensor(tensor.name)} [label={_quoted(text)}, shape=ellipse];"
        for number, segment in enumerate(self._segments):
            boxes = [self._box(self._plan.operators[index]) for index in segment.copies[0][1]]
            if not segment.is_block:
                yield from boxes
                continue
            count = len(segment.copies)
            text = dot(f"{count} × {label(segment, self._plan)}" if count > 1 else label(segment, self._plan))
            yield f"  subgraph {_quoted(dot(f'cluster {self._prefix}{number}'))} {{"
            yield f"    label={_quoted(text)};"
            yield from (f"  {box}" for box in boxes)
            yield "  }"

    def _box(self, operator: OperatorDecision) -> str:
        splits = zip(operator.split, self._plan.mesh.axes, strict=True)
        split = [f"{how}@{axis.name}" for how, axis in splits if axis.size > 1 and how != "-"]
        text = f"{dot(operator.module or operator.name)}\\n{dot(' '.join([operator.op_type, *split]))}"
        filled = ', style="rounded,filled", fillcolor=lightblue' if operator.op_type in _MATRIX else ""
        return f"  {self._operator(operator.name)} [label={_quoted(text)}{filled}];"

    def _edges(self) -> Iterator[str]:
        makers = {name: operator for operator in self._plan.operators for name in operator.outputs}
        for operator in self._plan.operators:
            for name, layout in zip(operator.inputs, operator.reads, strict=True):
                tensor = self._tensors.get(name)
                if tensor is None or tensor.role in ("parameter", "constant"):
                    continue
                about = self._edge_label(tensor.layout, layout and layout.forward, (name, operator.name))
                if name in makers:
                    yield self._edge(makers[name].name, operator.name, about)
                else:
                    yield f"  {self._tensor(name)} -> {self._operator(operator.name)} [{about}];"
            for name, made in zip(operator.outputs, operator.makes, strict=True):
                if name in self._tensors and self._tensors[name].role == "output":
                    about = self._edge_label(made and made.forward, self._tensors[name].layout, (name, ""))
                    yield f"  {self._operator(operator.name)} -> {self._tensor(name)} [{about}];"

    def _edge(self, source: str, target: str, about: str) -> str:
        """An edge; of two copies of one segment a dashed one, which says how many copies farther it ends."""
        before, after = self._places[source], self._places[target]
        if before.segment == after.segment and before.copy != after.copy:
            far = after.copy - before.copy
            about += (
                f", style=dashed, constraint=false, taillabel={_quoted('next copy' if far == 1 else f'copy {far:+}')}"
            )
        return f"  {self._operator(source)} -> {self._operator(target)} [{about}];"

    def _edge_label(self, kept: Layout | None, used: Layout | None, edge: tuple[str, str]) -> str:
        """What an edge says: the layouts, and as in the report what is sent in each phase."""
        before, after = _text(kept, self._plan.mesh), _text(used, self._plan.mesh)
        lines = [dot(before if before == after else f"{before} → {after}")]
        for move in self._moves.get(edge, ()):
            payload = sum(step.payload_bytes for step in move.steps if not step.collective.is_free)
            if payload:
                phase = REGATHER if move.regather else move.phase
                lines.append(dot(f"{phase_text(phase)}: {described(move, self._plan.mesh)}, {size(payload)}"))
        return f"label={_quoted(_NEW_LINE.join(lines))}{', color=red' if len(lines) > 1 else ''}"

    def _tensor(self, name: str) -> str:
        return _quoted(dot(f"tensor {self._prefix}{name}"))

    def _operator(self, name: str) -> str:
        return _quoted(dot(f"operator {self._prefix}{self._places[name].operator}"))


def _text(layout: Layout | None, mesh: Mesh) -> str:
    return "-" if layout is None else to_text(layout, mesh)


def _quoted(text: str) -> str:
    """`text` has been escaped."""
    return f'"{text}"'
