"""Types of values that cross the border of a loop, and of the results of two branches."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from shardplan.model.draft import Node
from shardplan.model.node_types import UNKNOWN, Outcome, Typed, show
from shardplan.model.types import Border

_NUMBER = Typed(onnx.TensorProto.INT64, ())


def border_types(node: Node, typed: Mapping[str, Typed], entered: dict[str, Typed]) -> Outcome:
    """The result types of an operator of the domain `CONTROL`; `entered`: types of carried values, by loop and number.

    A carried value must have the same type at both ends of an iteration, and both branches of a choice must have the
    same types.
    """
    attributes = {entry.name: int(entry.i) for entry in node.proto.attribute}
    read = [typed[name] for name in node.inputs]
    kind = node.op_type
    if kind == Border.COUNT:
        return Outcome((_NUMBER,))
    if kind == Border.CHOOSE:
        return _same(read[1], read[2], node, "the branches make a value")
    if kind in {Border.ENTER, Border.LEAVE}:
        key = f"{attributes['carry']}@{node.loops[-1]}"
        if kind == Border.ENTER:
            entered[key] = read[0]
            return Outcome((read[0],))
        return _same(entered[key], read[0], node, "an iteration hands a value on that it got")
    if read[0].shape is None:
        return Outcome((UNKNOWN,), "the rank of what it reads is unknown")
    shape, axis = list(read[0].shape), attributes["axis"]
    if kind == Border.EACH:
        del shape[axis]
    else:
        shape.insert(axis % (len(shape) + 1), attributes["turns"])
    return Outcome((Typed(read[0].elem_type, tuple(shape)),))


def _same(one: Typed, other: Typed, node: Node, what: str) -> Outcome:
    if one == other or not (one.is_static and other.is_static):
        return Outcome((one if one.is_static else other,))
    name = node.inputs[-1] if node.op_type == Border.CHOOSE else node.inputs[0]
    loop = f" in node '{node.loops[-1]}'" if node.op_type == Border.LEAVE else ""
    reason = f"{what} with shape {show(one.shape)}{loop}, and with shape {show(other.shape)}: '{name}'"
    if one.shape == other.shape:
        reason = f"{what}{loop} with two element types: '{name}'"
    return Outcome((UNKNOWN,), reason, "incompatible-dims")
