"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from shardplan.torch.gradients.moves import with_own_memory
from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.function_names import in_place

SUMS = frozenset(("add", "sub", "radd", "rsub", "iadd", "isub", "subtract", "complex"))
SCALES = frozenset(("mul", "rmul", "imul", "multiply", "div", "truediv", "itruediv", "true_divide", "divide"))
SELECTS = frozenset(("where", "masked_fill", "copy"))
SAME = frozenset(
    ("neg", "to", "_to_copy", "type_as", "float", "half", "bfloat16", "double", "type", "clone", "alias", "detach",
     "contiguous", "cpu", "cuda", "positive", "lift_fresh_copy", "real", "imag", "conj",
     "_conj", "conj_physical", "resolve_conj", "resolve_neg", "_neg_view")
)  # fmt: skip
"""Linear functions of one value."""
OTHERS = frozenset(
    ("rtruediv", "rdiv", "reciprocal", "pow", "rpow", "square", "sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos",
     "tanh", "sigmoid", "logsigmoid", "log_sigmoid", "relu", "gelu", "silu", "mish", "elu", "leaky_relu", "softplus",
     "hardtanh",
     "relu6", "hardswish", "hardsigmoid", "erf", "abs", "sign", "clamp", "clamp_min", "clamp_max", "clip", "maximum",
     "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "and",
     "or", "xor", "iand", "ior", "ixor", "lshift", "rshift", "ilshift", "irshift", "rlshift", "rrshift", "invert",
     "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_left_shift", "bitwise_right_shift", "floor", "ceil", "round",
     "remainder", "mod", "floordiv", "floor_divide", "fmod", "atan2", "long", "int", "bool", "erfc", "expm1",
     "addcmul", "addcdiv", "lerp", "softsign", "tan", "fill", "zeros_like", "ones_like", "full_like", "zero",
     "empty_like", "copysign", "xlogy", "logaddexp", "hypot", "polar", "angle", "sgn",
     "_prelu_kernel", "celu", "selu", "hardshrink", "softshrink", "threshold", "logit", "log2", "log10", "exp2",
     "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfinv", "lgamma", "digamma", "trunc", "frac",
     "sinc", "logaddexp2", "fmax", "fmin", "float_power", "heaviside", "signbit", "isposinf", "isneginf",
     "bitwise_xor", "tanh_backward", "sigmoid_backward", "silu_backward", "gelu_backward", "softplus_backward",
     "threshold_backward", "leaky_relu_backward", "elu_backward", "hardtanh_backward", "hardswish_backward",
     "hardsigmoid_backward", "log_sigmoid_backward", "mish_backward")
)  # fmt: skip
GUARDS = frozenset(("isnan", "isinf", "isfinite", "nan_to_num"))
"""What only asks whether a value is a number leaves it what it is: exporters guard a softmax so."""
CASTS = frozenset(("to", "_to_copy", "type"))
"""What may make another type of numbers of a value."""
FILLS = frozenset(("zeros_like", "ones_like", "full_like", "empty_like", "zero", "fill"))
"""What takes nothing but a shape from a value: the result is a constant, unless what is filled in is a value."""
ELEMENTWISE = SUMS | SCALES | SELECTS | SAME | GUARDS | OTHERS


_NAMED = ("condition", "input", "self", "mask", "other", "exponent", "value", "min", "max")
"""Operands that functions also take by name, in the order in which they take them by place."""


def elementwise(engine: Engine, op: Op) -> Value:
    """A function of corresponding elements, dims of size 1 broadcast."""
    given: dict[int | str, Any] = {**dict(enumerate(op.args)), **{key: op.kwargs[key] for key in _in_order(op.kwargs)}}
    places = [place for place, argument in given.items() if isinstance(argument, (Value, torch.Tensor))]
    operands = [as_value(engine, given[place]) for place in places]
    shapes = {value.shape for value in operands}
    shape = next(iter(shapes)) if len(shapes) == 1 else tuple(torch.broadcast_shapes(*shapes))
    plain = [argument for argument in op.args if not isinstance(argument, (Value, torch.Tensor))]

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        args, named = list(op.args), dict(op.kwargs)
        for place, local in zip(places, locals_, strict=True):
            (named if isinstance(place, str) else args)[place] = local  # type: ignore[index]
        if in_place(op.func):
            args[0] = with_own_memory(args[0])
        return op.func(*args, **named)

    call = Call(
        operands=operands,
        dims=[_aligned(value.shape, shape) for value in operands],
        results=[tuple((f"x{dim}",) for dim in range(len(shape)))],
        shapes=[shape],
        keys=[_key(engine, op.name, operands, shape)],
        sizes={f"x{dim}": size for dim, size in enumerate(shape)},
        run=run,
        linear=() if _rounds(op, operands) else _linear(op.name, len(operands), plain),
        chains=op.name not in SAME,
    )
    return engine.run(call)[0]


def cast(engine: Engine, op: Op) -> Value:
    """`to`, `type_as`: what is named beside the value, as a tensor, says the dtype alone and may have any shape."""
    named = {key: given for key, given in op.kwargs.items() if key != "other"}
    value, *rest = [*op.args, *(op.kwargs[key] for key in op.kwargs if key == "other")]
    dtypes = [other.dtype if isinstance(other, (Value, torch.Tensor)) else other for other in rest]
    return elementwise(engine, Op("to", torch.Tensor.to if op.name == "type_as" else op.func, [value, *dtypes], named))


def copied(engine: Engine, op: Op) -> Value:
    """`copy_`, and ATen's `copy`, which torch cannot differentiate: the second operand in the place of the first."""
    return elementwise(engine, Op("copy", _copied, op.args) if op.func is torch.ops.aten.copy.default else op)


def _copied(into: Any, given: Any, non_blocking: bool = False) -> Any:
    del non_blocking
    return given.to(into.dtype).expand(into.shape)


def requires_grad(engine: Engine, op: Op) -> Value:
    """A value that takes a gradient from here on, or none."""
    value: Value = op.args[0]
    wanted = op.kwargs.get("requires_grad", op.args[1] if len(op.args) > 1 else True)
    if value.grad == bool(wanted):
        return value
    if not wanted:
        return elementwise(engine, Op("detach", torch.detach, [value]))
    return replace(value, local=value.local.detach().requires_grad_(), grad=True, forms={})


def _aligned(shape: tuple[int, ...], replicated: tuple[int, ...]) -> Dims:
    offset = len(replicated) - len(shape)
    return tuple((f"x{dim + offset}",) if size == replicated[dim + offset] else () for dim, size in enumerate(shape))


def _in_order(named: Mapping[str, Any]) -> list[str]:
    """Names of arguments, those of operands in the order in which these are taken by place."""
    known = [key for key in _NAMED if key in named] if named else []
    return [*known, *(key for key in named if key not in known)]


def _rounds(op: Op, operands: Sequence[Value]) -> bool:
    """Whether a function that is linear otherwise makes whole numbers: what is partial is added up before."""
    if op.kwargs.get("rounding_mode"):
        return True
    first = operands[0]
    if op.name not in CASTS or all(placement.kind != "P" for placement in first.layout.placements):
        return False
    made: torch.Tensor = op.func(torch.empty(0, dtype=first.dtype), *op.args[1:], **op.kwargs)
    return not (made.is_floating_point() or made.is_complex()) and first.dtype.is_floating_point


def _linear(name: str, count: int, plain: list[Any]) -> tuple[frozenset[int], ...]:
    """Operands in which a function is linear, taken jointly."""
    if name in SUMS:
        shifts = any(isinstance(argument, (int, float)) and argument != 0 for argument in plain)
        return () if shifts else (frozenset(range(count)),)
    if name in SAME:
        return (frozenset({0}),)
    if name in SCALES:
        return (frozenset({0}),) if "div" in name else tuple(frozenset({place}) for place in range(count))
    if name == "copy":  # what has been there does not count
        return (frozenset({1}),) if count == 2 else ()
    if name == "where" and count == 3:
        return (frozenset({1, 2}),)
    return ()


def _key(engine: Engine, name: str, operands: list[Value], shape: tuple[int, ...]) -> Key:
    terms, signatures = engine.graph.signatures, [value.key.signature for value in operands]
    if name in FILLS:
        return Key(terms.nonlinear(signatures[1:]), shape)
    if name in SAME:
        return operands[0].key
    varying = sum(signature != CONSTANT for signature in signatures)
    if name in SUMS or name in SELECTS or name in GUARDS or (name in SCALES and varying <= 1):
        signature = terms.linear(signatures)
        same = [value for value in operands if value.key.signature == signature and value.shape == shape]
        return Key(signature, shape, same[0].key.perm if same and varying == 1 else ())
    return Key(terms.nonlinear(signatures), shape)


def unary(value: Value, key: Key, run: Callable[[list[Any], Site], Any], replicated: Sequence[int] = ()) -> Call:
    """A call of one value that keeps its shape; dims in `replicated` are not split."""
    dims: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    sizes = {f"x{dim}": size for dim, size in enumerate(value.shape)}
    return Call([value], [dims], [dims], [value.shape], [key], sizes, run, frozenset(f"x{dim}" for dim in replicated))


def as_value(engine: Engine, argument: Any) -> Value:
    """An argument as a value: a plain tensor is whole on every process."""
    return argument if isinstance(argument, Value) else engine.constant(argument, tuple(argument.shape))
