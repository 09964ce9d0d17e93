"""A plan in Graphviz' DOT: operators with their strategies, edges with the layouts of tensors."""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.escapes import dot
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.text import to_text
from shardplan.plan.types import OperatorDecision, Plan

_MATRIX = frozenset({"MatMul", "Gemm", "Conv", "Attention"})


def dot_text(plan: Plan) -> str:
    """The DOT file. A tensor that is moved for its reader has a red arrow, `P@gpu → R`."""
    lines = [
        f"digraph {_quoted(dot(str(plan.model.get('name'))))} {{",
        "  node [shape=box, style=rounded];",
        *_nodes(plan),
    ]
    return "\n".join([*lines, *_edges(plan), "}"]) + "\n"


def _nodes(plan: Plan) -> Iterator[str]:
    for tensor in plan.tensors:
        if tensor.role in ("input", "output"):
            label = f"{dot(tensor.name)}\\n{dot(_text(tensor.layout, plan.mesh))}"
            yield f"  {_tensor(tensor.name)} [label={_quoted(label)}, shape=ellipse];"
    for operator in plan.operators:
        label = f"{dot(operator.module or operator.name)}\\n{dot(f'{operator.op_type} {_split(operator, plan)}')}"
        filled = ', style="rounded,filled", fillcolor=lightblue' if operator.op_type in _MATRIX else ""
        yield f"  {_operator(operator.name)} [label={_quoted(label)}{filled}];"


def _edges(plan: Plan) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    makers = {name: operator.name for operator in plan.operators for name in operator.outputs}
    for operator in plan.operators:
        for name, layout in zip(operator.inputs, operator.reads, strict=True):
            tensor = tensors.get(name)
            if tensor is None or tensor.role in ("parameter", "constant"):
                continue
            source = _operator(makers[name]) if name in makers else _tensor(name)
            before, after = _text(tensor.layout, plan.mesh), _text(layout and layout.forward, plan.mesh)
            yield f"  {source} -> {_operator(operator.name)} [{_label(before, after)}];"
        for name, made in zip(operator.outputs, operator.makes, strict=True):
            if name in tensors and tensors[name].role == "output":
                before, after = (_text(layout and layout.forward, plan.mesh) for layout in (made, tensors[name].layout))
                yield f"  {_operator(operator.name)} -> {_tensor(name)} [{_label(before, after)}];"


def _text(layout: Layout | None, mesh: Mesh) -> str:
    return "-" if layout is None else to_text(layout, mesh)


def _label(before: str, after: str) -> str:
    if before == after:
        return f"label={_quoted(dot(before))}"
    return f"label={_quoted(dot(f'{before} → {after}'))}, color=red"


def _split(operator: OperatorDecision, plan: Plan) -> str:
    names = zip(operator.split, plan.mesh.axes, strict=True)
    return " ".join(f"{label}@{axis.name}" for label, axis in names if axis.size > 1 and label != "-")


def _tensor(name: str) -> str:
    return _quoted(dot(f"tensor {name}"))


def _operator(name: str) -> str:
    return _quoted(dot(f"operator {name}"))


def _quoted(text: str) -> str:
    """`text` has been escaped."""
    return f'"{text}"'
