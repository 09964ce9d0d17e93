"""Values that cannot be planned: with an unknown shape, or with a type that no device computes with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from shardplan.errors import Diagnostic, error
from shardplan.model.dims import flag, names_of
from shardplan.model.draft import Draft, Node
from shardplan.model.evaluate import SIZED_BY_VALUES
from shardplan.model.infer import Inferred
from shardplan.model.limits import Budget, beyond
from shardplan.model.node_types import Typed, show
from shardplan.model.types import DTYPE_BITS
from shardplan.units import with_article

_DTYPES: dict[int, str] = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}
_MOST_ELEMENTS = 1 << 50
_SHAPE_TYPES = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def dtype_of(elem_type: int) -> str:
    """The lower-case ONNX name of a TensorProto element type."""
    return _DTYPES.get(elem_type, "")


def unresolved_values(
    draft: Draft, inferred: Inferred, nodes: Sequence[Node], values: Sequence[str]
) -> list[Diagnostic]:
    """One error for each of `values` that cannot be planned, with the first cause and not its consequences."""
    budget = Budget.of_environment()
    bad = {value for value in values if not _is_usable(inferred.typed[value], budget)}
    makers = {name: node for node in nodes for name in node.outputs}
    starts = [value for value in values if value in bad and bad.isdisjoint(_reads(makers.get(value)))]
    return [_diagnostic(draft, inferred, value, makers.get(value), budget) for value in starts]


def _is_usable(typed: Typed, budget: Budget) -> bool:
    return (
        typed.kind == "tensor"
        and typed.is_static
        and dtype_of(typed.elem_type) in DTYPE_BITS
        and not beyond(typed.shape or (), budget)
    )


def _elements(typed: Typed) -> int:
    return math.prod(dim for dim in typed.shape or () if isinstance(dim, int))


def _reads(node: Node | None) -> list[str]:
    return [] if node is None else node.reads


def _diagnostic(draft: Draft, inferred: Inferred, value: str, node: Node | None, budget: Budget) -> Diagnostic:
    typed = inferred.typed[value]
    what = f"'{value}' of {node.label}" if node else f"graph input '{value}'"
    if typed.kind != "tensor":
        return error("not-a-tensor", f"{what} is {with_article(typed.kind)}; only tensors can be planned")
    if typed.is_static and _elements(typed) > _MOST_ELEMENTS:
        return error("too-large", f"{what} has the shape {show(typed.shape)}, which is more than any cluster holds")
    if typed.is_static and (found := beyond(typed.shape or (), budget)):
        return error("too-large", f"{what} cannot be planned: {found}")
    if typed.is_static or (typed.shape is not None and None not in typed.shape):
        return error("unknown-type", f"{what} has element type {typed.elem_type}, which cannot be planned")
    detail = inferred.reasons.get(node.name, "") if node else ""
    unread = [name for name in _reads(node) if name not in inferred.known and _is_shape_data(draft, name)]
    if unread:
        detail = f"it depends on the data of '{unread[0]}', which is not in the file"
    if node and node.reads and node.op_type in SIZED_BY_VALUES:
        detail = f"the size depends on the values of '{node.reads[0]}'"
    text = f"the shape of {what} is {show(typed.shape)}"
    return error("unresolved-shape", text, detail=detail, hint=_hint(draft, value, node))


def _is_shape_data(draft: Draft, name: str) -> bool:
    return name in draft.initializers and draft.initializers[name].data_type in _SHAPE_TYPES


def _hint(draft: Draft, value: str, node: Node | None) -> str:
    if node is None:
        return "export the model with the rank of its inputs"
    stored = draft.stored.get(value)
    dims = stored.shape or () if stored else ()
    names = dict.fromkeys(name for dim in dims if isinstance(dim, str) for name in names_of(dim))
    if names:
        return "give " + " ".join(flag(name, "N") for name in names)
    if node.op_type in SIZED_BY_VALUES:
        return "write it with sizes that do not: torch.where or masks in place of indices (x[mask], nonzero, unique)"
    return "store the shape in the file (value_info), or export the model with static shapes"
