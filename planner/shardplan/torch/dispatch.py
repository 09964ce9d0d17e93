"""Which rule an operation has: by the name that torch gives it as a function, a method or an operator of ATen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from shardplan.torch import rules_elementwise as elementwise
from shardplan.torch import rules_norms as norms
from shardplan.torch import rules_products as products
from shardplan.torch import rules_views as views
from shardplan.torch.engine import Engine, Op, Rule
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
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", "repeat"), views.expand),
    "repeat_interleave": views.repeat_interleave,
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "tensor_split", "unbind"), views.split),
    **dict.fromkeys(("narrow", "select", "slice"), views.narrow),
    "getitem": views.getitem,
    **dict.fromkeys(("cat", "concat", "concatenate"), views.cat),
    "linear": products.linear,
    "addmm": products.addmm,
    **dict.fromkeys(("matmul", "mm", "bmm", "rmatmul"), products.matmul),
    "einsum": products.einsum,
    "embedding": products.embedding,
    "scaled_dot_product_attention": products.attention,
}  # fmt: skip


def name_of(func: Any) -> str:
    """`add` for `torch.add`, `Tensor.__add__`, `Tensor.add_`, `aten.add.Tensor` and `operator.add`."""
    schema = func._schema.name if isinstance(func, OpOverload) else ""  # noqa: SLF001 - there is no public name
    name = str(schema.split("::")[-1] or getattr(func, "__name__", func))
    name = name.removeprefix("__").removesuffix("__") if name.startswith("__") else name
    return name if name == "_" else name.rstrip("_") or name


def in_place(func: Any) -> bool:
    """Whether an operation changes its first operand."""
    if isinstance(func, OpOverload):
        return bool(func._schema.is_mutable)  # noqa: SLF001 - as above
    name = str(getattr(func, "__name__", ""))
    if name.startswith("__"):
        return name in _IN_PLACE
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"


_IN_PLACE = frozenset(("__iadd__", "__isub__", "__imul__", "__itruediv__"))


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
