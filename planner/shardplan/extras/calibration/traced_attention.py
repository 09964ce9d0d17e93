"""Fused attention in a trace: its sizes, from the operator of torch that started the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardplan.rules.attention import FLASH_BACKWARD

FORWARD, BACKWARD = "attention", "attention_backward"


@dataclass(frozen=True, slots=True)
class _Operator:
    """`causal`: position of the argument that says whether a query sees later keys; `heads_first`: whether operands are
    [batch, heads, tokens, size], else [batch, tokens, heads, size]. Backward has the gradient before the query."""

    causal: int
    heads_first: bool = False
    is_backward: bool = False


OPERATORS: Mapping[str, _Operator] = {
    "aten::_flash_attention_forward": _Operator(8),
    "aten::_flash_attention_backward": _Operator(11, is_backward=True),
    "aten::_efficient_attention_forward": _Operator(9),
    "aten::_efficient_attention_backward": _Operator(14, is_backward=True),
    "aten::_scaled_dot_product_cudnn_attention": _Operator(6, heads_first=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Operator(14, heads_first=True, is_backward=True),
    "aten::_cudnn_attention_forward": _Operator(10, heads_first=True),
    "aten::_cudnn_attention_backward": _Operator(14, heads_first=True, is_backward=True),
}
"""The operators of torch that start kernels of fused attention (`aten/src/ATen/native/native_functions.yaml`)."""
_CAUSAL: Mapping[str, bool] = {"True": True, "False": False, "1": True, "2": True, "0": False}
"""What the argument says: the kernel of `_efficient_attention` has a type of mask, of which 1 and 2 are causal."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of an attention: `flops`; queries, the keys that each sees on average, and the size of a head."""

    kind: str
    flops: float
    sizes: tuple[int, int, int]


def sizes_of(name: str, shapes: Sequence[tuple[int, ...]], arguments: object) -> Sizes | None:
    """The sizes of operator `name`; None if it is no attention of equally long sequences, or does not say its mask.
    `shapes`: of its tensors; `arguments`: the texts of all its arguments."""
    operator = OPERATORS.get(name)
    if operator is None or not isinstance(arguments, list) or len(arguments) <= operator.causal:
        return None
    causal = _CAUSAL.get(str(arguments[operator.causal]))
    operands = shapes[1:3] if operator.is_backward else shapes[:2]
    if causal is None or len(operands) < 2 or any(len(shape) != 4 or min(shape) < 1 for shape in operands):
        return None
    (batch, *inner, size), (_, *others, _) = operands
    (heads, queries), (_, keys) = (inner, others) if operator.heads_first else (inner[::-1], others[::-1])
    seen = max(1, keys // 2) if causal and queries == keys else keys
    forward = 4.0 * batch * heads * queries * seen * size
    if operator.is_backward:
        return Sizes(BACKWARD, FLASH_BACKWARD * forward, (queries, seen, size))
    return Sizes(FORWARD, forward, (queries, seen, size))
