"""Convolutions: batch, input and output channels, and groups may be split; space is whole."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key, product
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value
from shardplan.torch.rules.products import with_bias
from shardplan.torch.rules.views import reshape

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_OF_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ATEN = ("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups")


def convolution(engine: Engine, op: Op) -> Value:
    """`conv1d`, `conv2d`, `conv3d`, their transposes, and ATen's `convolution`, which is all of them; then the bias."""
    names = _ATEN if op.name == "convolution" else _OF_TRANSPOSED if op.name in TRANSPOSED else _NAMES
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    is_transposed = bool(given.pop("transposed", op.name in TRANSPOSED))
    if not is_transposed:
        given.pop("output_padding", None)
    value, weight = as_value(engine, given.pop("input")), as_value(engine, given.pop("weight"))
    bias = given.pop("bias", None)
    alone = value.rank < weight.rank
    if alone:
        value = reshape(engine, Op("unsqueeze", torch.unsqueeze, [value, 0]))
    made = _product(engine, value, weight, int(given.pop("groups", 1)), given, is_transposed=is_transposed)
    made = made if bias is None else _plus(engine, made, as_value(engine, bias))
    return reshape(engine, Op("squeeze", torch.squeeze, [made, 0])) if alone else made


def _product(
    engine: Engine, value: Value, weight: Value, groups: int, settings: dict[str, Any], *, is_transposed: bool
) -> Value:
    """Without the bias. The weight of a transposed one has the channels of the value in dim 0, those of the result in
    dim 1."""
    space = value.rank - 2
    run_local = getattr(functional, f"conv{'_transpose' * is_transposed}{space}d")
    shape = run_local(*(torch.empty(v.shape, device="meta") for v in (value, weight)), groups=groups, **settings).shape
    old, kernel, new = ([f"{letter}{dim}" for dim in range(space)] for letter in "xwy")
    inner, outer = value.shape[1] // groups, shape[1] // groups
    sizes = {"b": shape[0], "g": groups, "c": inner, "o": outer}
    sizes |= dict(zip((*old, *kernel, *new), (*value.shape[2:], *weight.shape[2:], *shape[2:]), strict=True))

    def run(locals_: list[Any], site: Site) -> Any:
        local, own = locals_
        if not is_transposed and local.shape[1] == own.shape[0] == 1 and _reaches_beyond(local, own):
            rows = local.shape[0]  # torch's kernel for the CPU writes beyond its memory there: rows as channels
            made = run_local(local.transpose(0, 1), own.expand(rows, *own.shape[1:]), groups=rows, **settings)
            return made.transpose(0, 1)
        return run_local(local, own, groups=groups // site.ways("g"), **settings)

    dims: list[Dims] = [
        (("b",), ("g", "c"), *((name,) for name in old)),
        (*((("g", "c"), ("o",)) if is_transposed else (("g", "o"), ("c",))), *((name,) for name in kernel)),
    ]
    result: Dims = (("b",), ("g", "o"), *((name,) for name in new))
    key = Key(product(engine.graph.signatures, [value.key.signature, weight.key.signature]), tuple(shape))
    call = Call(
        [value, weight], dims, [result], [tuple(shape)], [key], sizes, run,
        whole=frozenset((*old, *kernel, *new)), linear=(frozenset({0}), frozenset({1})),
    )  # fmt: skip
    return engine.run(call)[0]


def _reaches_beyond(local: Any, weight: Any) -> bool:
    """Whether a kernel is longer than what it is moved over."""
    return any(kernel > size for kernel, size in zip(weight.shape[2:], local.shape[2:], strict=True))


def _plus(engine: Engine, value: Value, bias: Value) -> Value:
    """A bias for every channel."""
    dims: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    key = Key(engine.graph.signatures.linear([value.key.signature, bias.key.signature]), value.shape)

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        return with_bias(locals_[0], locals_[1].reshape(-1, *[1] * (value.rank - 2)))

    call = Call(
        [value, bias], [dims, (("x1",),)], [dims], [value.shape], [key],
        {f"x{dim}": size for dim, size in enumerate(value.shape)}, run, linear=(frozenset({0, 1}),),
    )  # fmt: skip
    return engine.run(call)[0]
