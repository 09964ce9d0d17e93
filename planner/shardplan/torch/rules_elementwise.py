"""Elementwise operations, reductions and normalisations over the dims of a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from shardplan.torch.engine import Engine, Op
from shardplan.torch.functions import in_place
from shardplan.torch.graph import Key
from shardplan.torch.moves import own
from shardplan.torch.signature import CONSTANT
from shardplan.torch.values import Call, Dims, Site, Value

SUMS = frozenset(("add", "sub", "radd", "rsub", "iadd", "isub", "subtract"))
SCALES = frozenset(("mul", "rmul", "imul", "multiply", "div", "truediv", "itruediv", "true_divide", "divide"))
SELECTS = frozenset(("where", "masked_fill"))
SAME = frozenset(
    ("neg", "to", "_to_copy", "type_as", "float", "half", "bfloat16", "double", "type", "clone", "alias", "detach",
     "contiguous", "cpu", "cuda", "positive", "lift_fresh_copy", "requires_grad_")
)  # fmt: skip
"""Linear functions of one value."""
OTHERS = frozenset(
    ("rtruediv", "rdiv", "reciprocal", "pow", "rpow", "square", "sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos",
     "tanh", "sigmoid", "logsigmoid", "relu", "gelu", "silu", "mish", "elu", "leaky_relu", "softplus", "hardtanh",
     "relu6", "hardswish", "hardsigmoid", "erf", "abs", "sign", "clamp", "clamp_min", "clamp_max", "clip", "maximum",
     "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "and",
     "or", "xor", "invert", "bitwise_not", "bitwise_and", "bitwise_or", "floor", "ceil", "round",
     "remainder", "mod", "floordiv", "floor_divide", "fmod", "atan2", "long", "int", "bool", "erfc", "expm1",
     "addcmul", "addcdiv", "lerp", "softsign", "tan", "fill", "zeros_like", "ones_like", "full_like")
)  # fmt: skip
GUARDS = frozenset(("isnan", "isinf", "isfinite", "nan_to_num"))
"""What only asks whether a value is a number leaves it what it is: exporters guard a softmax so."""
ELEMENTWISE = SUMS | SCALES | SELECTS | SAME | GUARDS | OTHERS


def elementwise(engine: Engine, op: Op) -> Value:
    """A function of corresponding elements, dims of size 1 broadcast."""
    operands: list[Value] = []
    places: list[int] = []
    for position, argument in enumerate(op.args):
        if isinstance(argument, (Value, torch.Tensor)):
            operands.append(lift(engine, argument))
            places.append(position)
    shape = torch.broadcast_shapes(*(value.shape for value in operands))
    plain = [argument for argument in op.args if not isinstance(argument, (Value, torch.Tensor))]

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        given = list(op.args)
        for place, local in zip(places, locals_, strict=True):
            given[place] = local
        if in_place(op.func):
            given[0] = own(given[0])
        return op.func(*given, **op.kwargs)

    call = Call(
        operands=operands,
        dims=[_aligned(value.shape, shape) for value in operands],
        results=[tuple((f"x{dim}",) for dim in range(len(shape)))],
        shapes=[shape],
        keys=[_key(engine, op.name, operands, shape)],
        sizes={f"x{dim}": size for dim, size in enumerate(shape)},
        run=run,
        linear=_linear(op.name, len(operands), plain),
        chains=op.name not in SAME,
    )
    return engine.run(call)[0]


def _aligned(shape: tuple[int, ...], whole: tuple[int, ...]) -> Dims:
    offset = len(whole) - len(shape)
    return tuple((f"x{dim + offset}",) if size == whole[dim + offset] else () for dim, size in enumerate(shape))


def _linear(name: str, count: int, plain: list[Any]) -> tuple[frozenset[int], ...]:
    """Operands in which a function is linear, taken jointly."""
    if name in SUMS:
        shifts = any(isinstance(argument, (int, float)) and argument != 0 for argument in plain)
        return () if shifts else (frozenset(range(count)),)
    if name in SAME:
        return (frozenset({0}),)
    if name in SCALES:
        return (frozenset({0}),) if "div" in name else tuple(frozenset({place}) for place in range(count))
    if name == "where" and count == 3:
        return (frozenset({1, 2}),)
    return ()


def _key(engine: Engine, name: str, operands: list[Value], shape: tuple[int, ...]) -> Key:
    terms, signatures = engine.graph.signatures, [value.key.signature for value in operands]
    if name in SAME:
        return operands[0].key
    varying = sum(signature != CONSTANT for signature in signatures)
    if name in SUMS or name in SELECTS or name in GUARDS or (name in SCALES and varying <= 1):
        signature = terms.linear(signatures)
        same = [value for value in operands if value.key.signature == signature and value.shape == shape]
        return Key(signature, shape, same[0].key.perm if same and varying == 1 else ())
    return Key(terms.nonlinear(signatures), shape)


def dropout(engine: Engine, op: Op) -> Value:
    """Zeros drawn alike by processes that hold the same, and independently by others.

    The seed comes from the CPU generator, which must be in the same state on all processes; so does a recomputation.
    """
    value = op.args[0]
    rate = op.kwargs.get("p", op.args[1] if len(op.args) > 1 else 0.5)
    training = op.kwargs.get("training", op.kwargs.get("train", op.args[2] if len(op.args) > 2 else True))
    if not training or rate == 0:
        return value  # type: ignore[no-any-return]

    def run(locals_: list[Any], site: Site) -> Any:
        return drop(locals_[0], rate, part_of(site))

    call = unary(value, value.key, run)
    call.chains, call.linear = False, (frozenset({0}),)
    return engine.run(call)[0]


def part_of(site: Site) -> int:
    """A number that processes share that have the same part of a call's result."""
    part = 0
    for factor, axes in sorted(site.splits.items()):
        part = part * site.mesh.ways(axes) + site.number(factor)
    return part


def drawn_seed(part: int) -> int:
    """A seed of its own for every part, drawn from the CPU generator, which all processes keep in the same state."""
    return int(torch.randint(0, 1 << 30, ()).item()) * 65537 + part


def drop(local: torch.Tensor, rate: float, part: int) -> torch.Tensor:
    """Zeros at `rate` in place of elements, the others scaled up; processes with the same `part` draw alike."""
    if has_torch_function_unary(local):
        return handle_torch_function(drop, (local,), local, rate, part)
    generator = torch.Generator(local.device).manual_seed(drawn_seed(part))
    drawn = torch.rand(local.shape, generator=generator, device=local.device)
    return local * (drawn >= rate).to(local.dtype) / (1 - rate)


def unary(value: Value, key: Key, run: Callable[[list[Any], Site], Any], whole: Sequence[int] = ()) -> Call:
    """A call of one value that keeps its shape; dims in `whole` are not split."""
    dims: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    sizes = {f"x{dim}": size for dim, size in enumerate(value.shape)}
    return Call([value], [dims], [dims], [value.shape], [key], sizes, run, frozenset(f"x{dim}" for dim in whole))


def lift(engine: Engine, argument: Any) -> Value:
    """An argument as a value: a plain tensor is whole on every process."""
    return argument if isinstance(argument, Value) else engine.constant(argument, tuple(argument.shape))


_MEANS = frozenset(("mean",))
_ADDED = frozenset(("sum", "mean", "count_nonzero"))


def reduction(engine: Engine, op: Op) -> Any:
    """`sum`, `mean` of split dims are partial; other reductions (`amax`, `argmax`, `var` ...) need their dims whole."""
    value = op.args[0]
    given = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 and not isinstance(op.args[1], torch.dtype) else None)
    dims = _dims_of(given, value.rank)
    meta = torch.empty(value.shape, device="meta", dtype=value.dtype)
    made = op.func(meta, *op.args[1:], **op.kwargs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    kept = len(results[0].shape) == value.rank
    factors: Dims = tuple(
        (f"x{dim}",) if dim not in dims else () for dim in range(value.rank) if kept or dim not in dims
    )
    terms = engine.graph.signatures
    signature = (terms.linear if op.name in _ADDED else terms.nonlinear)([value.key.signature])

    def run(locals_: list[Any], site: Site) -> Any:
        found = op.func(locals_[0], *op.args[1:], **op.kwargs)
        ways = site.ways(*(f"x{dim}" for dim in dims))
        return found / ways if op.name in _MEANS and ways > 1 else found

    call = unary(value, value.key, run, () if op.name in _ADDED else dims)
    call.results = [factors] * len(results)
    call.shapes = [tuple(result.shape) for result in results]
    call.keys = [Key(signature, tuple(result.shape)) for result in results]
    call.linear = (frozenset({0}),) if op.name in _ADDED else ()
    call.integer = not results[0].dtype.is_floating_point
    found = engine.run(call)
    return type(made)(found) if isinstance(made, tuple) and len(found) > 1 else found[0]


def _dims_of(given: Any, rank: int) -> tuple[int, ...]:
    if given is None:
        return tuple(range(rank))
    wanted = given if isinstance(given, (tuple, list)) else (given,)
    return tuple(sorted(int(dim) % rank for dim in wanted)) or tuple(range(rank))


def along(engine: Engine, op: Op) -> Any:
    """Functions along one dim that keep the others (`cumsum`, `topk`, `sort`): the dim is whole."""
    value = op.args[0]
    place = 2 if op.name == "topk" else 1
    given = op.kwargs.get("dim", op.args[place] if len(op.args) > place else -1)
    dim = int(given) % value.rank
    made = op.func(torch.empty(value.shape, device="meta", dtype=value.dtype), *op.args[1:], **op.kwargs)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    key = engine.graph.signatures.nonlinear([value.key.signature])
    call = unary(value, value.key, lambda locals_, _: op.func(locals_[0], *op.args[1:], **op.kwargs), [dim])
    dims = tuple((f"x{place}",) if place != dim else ("new",) for place in range(value.rank))
    call.sizes = {**call.sizes, "new": results[0].shape[dim]}
    call.results, call.whole = [dims] * len(results), frozenset({f"x{dim}", "new"})
    call.shapes = [tuple(result.shape) for result in results]
    call.keys = [Key(key, tuple(result.shape)) for result in results]
    found = engine.run(call)
    return tuple(found) if len(found) > 1 else found[0]


def one_hot(engine: Engine, op: Op) -> Value:
    """`one_hot` with a known number of classes; the classes are whole."""
    value = op.args[0]
    classes = int(op.kwargs.get("num_classes", op.args[1] if len(op.args) > 1 else -1))
    if classes < 0:
        raise TypeError("one_hot needs num_classes: without it the result's shape depends on data")
    shape = (*value.shape, classes)
    key = Key(engine.graph.signatures.nonlinear([value.key.signature]), shape)
    call = unary(value, key, lambda locals_, _: torch.nn.functional.one_hot(locals_[0], classes))
    call.results, call.shapes = [(*call.dims[0], ("class",))], [shape]
    call.sizes, call.whole, call.integer = {**call.sizes, "class": classes}, frozenset({"class"}), True
    return engine.run(call)[0]


def whole(engine: Engine, op: Op) -> Any:
    """An operation without a rule: every process does all of it."""
    engine.record.unknown[op.name] += 1
    leaves: list[Value] = []

    def collect(argument: Any) -> Any:
        if isinstance(argument, Value):
            leaves.append(argument)
            return _Place(len(leaves) - 1)
        if isinstance(argument, (tuple, list)):
            return type(argument)(collect(item) for item in argument)
        return argument

    given = [collect(argument) for argument in op.args]
    named = {key: collect(argument) for key, argument in op.kwargs.items()}
    plain = [engine.convert(value, engine.constant(value.local, value.shape).layout) for value in leaves]

    def fill(argument: Any) -> Any:
        if isinstance(argument, _Place):
            return plain[argument.number].local
        if isinstance(argument, (tuple, list)):
            return type(argument)(fill(item) for item in argument)
        return argument

    made = op.func(*[fill(argument) for argument in given], **{key: fill(item) for key, item in named.items()})
    signature = engine.graph.signatures.nonlinear([value.key.signature for value in leaves])

    def as_value(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            shape = tuple(result.shape)
            return engine.result(result, engine.constant(result, shape).layout, shape, Key(signature, shape))
        if isinstance(result, (tuple, list)):
            return type(result)(as_value(item) for item in result)
        return result

    return as_value(made)


class _Place:
    def __init__(self, number: int) -> None:
        self.number = number
