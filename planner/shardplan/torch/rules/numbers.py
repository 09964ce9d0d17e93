"""Python numbers from values: `item`, `bool(x)`, `float(x)`, `number in x`."""

from __future__ import annotations

import math
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.norms import over_parts, unknown
from shardplan.torch.rules.reductions import reduction


def item(engine: Engine, op: Op) -> Any:
    """The one element of a value; where that is a partial sum, one number is sent."""
    value = as_value(engine, op.args[0])
    whole = engine.constant(value.local, value.shape).layout
    return op.func(engine.convert(over_parts(engine, unknown(value)), whole).local, *op.args[1:], **op.kwargs)


def are_equal(engine: Engine, op: Op) -> bool:
    """Whether two tensors have the same shape and elements (`torch.equal`): one number is sent."""
    one, other = (as_value(engine, each) for each in op.args)
    if one.shape != other.shape:
        return False
    same = unknown(elementwise(engine, Op("eq", torch.eq, [one, other])))
    return bool(over_parts(engine, unknown(reduction(engine, Op("all", torch.all, [same])))).local)


def contains(engine: Engine, op: Op) -> bool:
    """Whether a number is among the elements: one number is sent."""
    same = unknown(elementwise(engine, Op("eq", torch.eq, list(op.args[:2]))))
    count = over_parts(engine, reduction(engine, Op("sum", torch.sum, [same])))
    return bool(count.local > 0)


def alike(engine: Engine, op: Op) -> bool:
    """Whether two tensors have the same shape, or as many elements: of values that is known (`torch.func.jvp` asks)."""
    one, other = (as_value(engine, each) for each in op.args)
    if op.name == "is_same_size":
        return one.shape == other.shape
    return math.prod(one.shape) == math.prod(other.shape)
