"""Which rule an operation has: by the name that torch gives it as a function, a method or an operator of ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shardplan.torch import rules_attention as attentions
from shardplan.torch import rules_convolution as convolutions
from shardplan.torch import rules_elementwise as elementwise
from shardplan.torch import rules_norms as norms
from shardplan.torch import rules_products as products
from shardplan.torch import rules_views as views
from shardplan.torch.engine import Engine, Op, Rule
from shardplan.torch.functions import name_of
from shardplan.torch.values import Value

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(elementwise.ELEMENTWISE, elementwise.elementwise),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), norms.normalised),
    **dict.fromkeys(("layer_norm", "rms_norm"), norms.layer_norm),
    **dict.fromkeys(("dropout", "feature_dropout"), elementwise.dropout),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "var", "std", "any", "all",
         "logsumexp"),
        elementwise.reduction,
    ),
    **dict.fromkeys(("cumsum", "cumprod", "topk", "sort", "argsort", "flip"), elementwise.along),
    "one_hot": elementwise.one_hot,
    **dict.fromkeys(views.RESHAPES, views.reshape),
    **dict.fromkeys(views.PERMUTATIONS, views.permute),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), views.expand),
    "repeat": views.repeat,
    "repeat_interleave": views.repeat_interleave,
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "tensor_split", "unbind"), views.split),
    **dict.fromkeys(("narrow", "select", "slice"), views.narrow),
    "getitem": views.getitem,
    **dict.fromkeys(("cat", "concat", "concatenate"), views.cat),
    "linear": products.linear,
    **dict.fromkeys(("addmm", "baddbmm"), products.addmm),
    **dict.fromkeys((*convolutions.CONVOLUTIONS, "convolution"), convolutions.convolution),
    **dict.fromkeys(("matmul", "mm", "bmm", "rmatmul"), products.matmul),
    "einsum": products.einsum,
    "embedding": products.embedding,
    "scaled_dot_product_attention": attentions.attention,
}  # fmt: skip


_NAMED = ("condition", "input", "self", "mask", "other", "exponent", "value", "min", "max")
"""Operands that elementwise functions also take by name, in the order in which they take them by place."""


def apply(engine: Engine, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one operation; `args` hold values where tensors would be."""
    name = name_of(func)
    named = [key for key in _NAMED if isinstance(kwargs.get(key), (Value, torch.Tensor))]
    if named and name in elementwise.ELEMENTWISE:
        args = [*args, *(kwargs[key] for key in named)]
        kwargs = {key: given for key, given in kwargs.items() if key not in named}
    return RULES.get(name, elementwise.whole)(engine, Op(name, func, args, kwargs))
