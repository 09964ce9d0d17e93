"""Nodes for operators that torch's ONNX exporter does not know, operators of other libraries among them.

An elementwise operator is written as another elementwise function of its operands, which costs and splits alike. Any
other becomes a node of a domain of its own (`aten`, or the library's), which the planner has no rule for: every process
computes it whole, as programs do.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from shardplan.torch.rules.function_names import is_pointwise

_UNKNOWN = re.compile(r"No ONNX function found for <OpOverload\(op='(\w+)\.(\w+)', overload='(\w+)'")


def unknown_operator(said: Iterator[str]) -> OpOverload | None:
    """The operator for want of whose ONNX form an export has failed, by what torch says of it; None where no node can
    stand for it: the shape of its result depends on data, or it is of a backward pass."""
    found = next((match for each in said if (match := _UNKNOWN.search(each))), None)
    if found is None or "backward" in found[2]:
        return None
    operator: OpOverload = getattr(getattr(getattr(torch.ops, found[1]), found[2]), found[3])
    return None if torch.Tag.dynamic_output_shape in operator.tags else operator


def stand_in(operator: OpOverload) -> Callable[..., Any]:
    """What `torch.onnx.export` is to write for an operator."""
    return functools.partial(_elementwise if is_pointwise(operator) else _opaque, operator)


def _elementwise(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    from onnxscript import opset18 as op  # noqa: PLC0415 - of the extra, and only for planning

    (made,) = _results(operator, args, kwargs)
    first, *others = (op.Cast(each, to=_FLOAT) for each in _values((args, kwargs)))
    total = functools.reduce(op.Add, others, first)
    return op.Cast(op.Erf(total), to=_number(made.dtype))


def _opaque(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    import onnx_ir  # noqa: PLC0415 - as above
    from torch.onnx._internal.exporter import _core  # noqa: PLC0415 - there is no public way to write such a node

    made = _results(operator, args, kwargs)
    domain, _, name = operator._schema.name.partition("::")  # noqa: SLF001 - there is no public name
    node = onnx_ir.Node(domain, name, list(_values((args, kwargs))), num_outputs=len(made), version=1)
    for output, result in zip(node.outputs, made, strict=True):
        output.dtype = onnx_ir.DataType(_number(result.dtype))
    _core.current_tracer.nodes.append(node)
    return node.outputs[0] if len(made) == 1 else node.outputs


def _results(operator: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """Tensors with the types of an operator's results, without entries."""

    def made(each: Any) -> Any:
        return torch.empty([int(size) for size in each.shape], dtype=_DTYPES[each.dtype], device="meta")

    given, named = tree_map(lambda each: made(each) if _is_value(each) else each, (args, kwargs))
    return [each for each in tree_leaves(operator(*given, **named)) if isinstance(each, Tensor)]


def _values(given: Any) -> Iterator[Any]:
    return (each for each in tree_leaves(given) if _is_value(each))


def _is_value(given: Any) -> bool:
    return hasattr(given, "is_graph_output")


def _number(dtype: torch.dtype) -> int:
    """ONNX's number of a type."""
    return next(number for number, each in _DTYPES.items() if each == dtype)


_FLOAT = 1
_DTYPES: dict[int, torch.dtype] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
"""Types by ONNX's numbers of them."""
