"""What each primitive of JAX is in ONNX: one row for each, and functions for those that take more than one node."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardplan.jax.planning.graph import Graph, onnx_type

Row = Callable[[Graph, Any, Sequence[str]], Any]
"""Writes the nodes of an equation for inputs of these names; the name of the result, or names of several."""


def _same(kind: str) -> Row:
    return lambda graph, _, inputs: graph.add(kind, inputs)


def _chain(*kinds: str) -> Row:
    def row(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
        made = graph.add(kinds[0], inputs)
        for kind in kinds[1:]:
            made = graph.add(kind, [made])
        return str(made)

    return row


def _logic(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        is_bool = equation.invars[0].aval.dtype == np.bool_
        return str(graph.add(kind if is_bool else f"Bitwise{kind}", inputs))

    return row


def _like(equation: Any, number: float) -> Any:
    return np.asarray(number, dtype=equation.invars[0].aval.dtype)


def _reduce(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        axes = tuple(equation.params["axes"])
        return str(graph.add(kind, [inputs[0], graph.ints(*axes)], keepdims=0) if axes else inputs[0])

    return row


def _of_booleans(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        number = graph.add("Cast", inputs, to=onnx_type(np.int32))
        made = graph.add(kind, [number, graph.ints(*equation.params["axes"])], keepdims=0)
        return str(graph.add("Cast", [made], to=onnx_type(np.bool_)))

    return row


def _extreme(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        (axis,) = equation.params["axes"]
        made = graph.add(kind, inputs, axis=axis, keepdims=0)
        return str(graph.add("Cast", [made], to=onnx_type(equation.params["index_dtype"])))

    return row


def _integer_pow(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    power = equation.params["y"]
    if power == 2:
        return str(graph.add("Mul", [inputs[0], inputs[0]]))
    return str(graph.add("Pow", [inputs[0], graph.constant(_like(equation, power))]))


def _cast(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Cast", inputs, to=onnx_type(equation.params["new_dtype"])))


def _reshaped(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Reshape", [inputs[0], graph.ints(*equation.outvars[0].aval.shape)]))


def _broadcast(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """New dims of size 1 first, and then as many as there shall be."""
    source, shape = equation.invars[0].aval.shape, equation.params["shape"]
    dims = equation.params["broadcast_dimensions"]
    middle = [1] * len(shape)
    for size, dim in zip(source, dims, strict=True):
        middle[dim] = size
    made = inputs[0] if tuple(middle) == tuple(source) else graph.add("Reshape", [inputs[0], graph.ints(*middle)])
    return str(made if tuple(middle) == tuple(shape) else graph.add("Expand", [made, graph.ints(*shape)]))


def _transpose(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Transpose", inputs, perm=list(equation.params["permutation"])))


def _slice(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
    steps = equation.params["strides"] or (1,) * len(starts)
    shape = equation.invars[0].aval.shape
    cut = [dim for dim, size in enumerate(shape) if (starts[dim], ends[dim], steps[dim]) != (0, size, 1)]
    if not cut:
        return inputs[0]
    given = [graph.ints(*(each[dim] for dim in cut)) for each in (starts, ends)]
    return str(graph.add("Slice", [inputs[0], *given, graph.ints(*cut), graph.ints(*(steps[dim] for dim in cut))]))


def _dynamic_slice(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """Every dim of which a part is taken, by the numbers of its indices."""
    made, shape = inputs[0], equation.invars[0].aval.shape
    for dim, (size, start) in enumerate(zip(equation.params["slice_sizes"], inputs[1:], strict=True)):
        if size != shape[dim]:
            first = graph.add("Cast", [start], to=onnx_type(np.int64))
            numbers = graph.add("Add", [first, graph.constant(np.arange(size))])
            made = graph.add("Gather", [made, numbers], axis=dim)
    return str(made)


def _reversed(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    dims = equation.params["dimensions"]
    ends = graph.ints(*(-(1 << 31) for _ in dims))
    return str(graph.add("Slice", [inputs[0], graph.ints(*(-1 for _ in dims)), ends, graph.ints(*dims),
                                   graph.ints(*(-1 for _ in dims))]))  # fmt: skip


def _concatenated(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Concat", inputs, axis=equation.params["dimension"]))


def _stacked(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    axis, shape = equation.params["axis"], equation.outvars[0].aval.shape
    one = graph.ints(*(1 if dim == axis else size for dim, size in enumerate(shape)))
    return str(graph.add("Concat", [graph.add("Reshape", [each, one]) for each in inputs], axis=axis))


def _split(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    made = graph.add("Split", [inputs[0], graph.ints(*sizes)], results=len(sizes), axis=axis)
    return [made] if len(sizes) == 1 else list(made)


def _padded(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    config = equation.params["padding_config"]
    if any(inner for *_, inner in config) or any(low < 0 or high < 0 for low, high, _ in config):
        raise NotImplementedError("padding between elements, or by less than none")
    widths = graph.ints(*(low for low, *_ in config), *(high for _, high, _ in config))
    return str(graph.add("Pad", [inputs[0], widths, inputs[1]]))


def _iota(graph: Graph, equation: Any, _: Sequence[str]) -> str:
    dim, shape = equation.params["dimension"], equation.params["shape"]
    numbers = np.arange(shape[dim], dtype=np.dtype(equation.params["dtype"]))
    line = graph.constant(numbers.reshape([shape[dim] if place == dim else 1 for place in range(len(shape))]))
    return str(graph.add("Expand", [line, graph.ints(*shape)]) if len(shape) > 1 else line)


def _selected(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    if len(inputs) != 3 or equation.invars[0].aval.dtype != np.bool_:
        raise NotImplementedError("a choice among more than two")
    return str(graph.add("Where", [inputs[0], inputs[2], inputs[1]]))


def _clamped(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    low, value, high = inputs
    return str(graph.add("Min", [graph.add("Max", [value, low]), high]))


def _product(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A matrix product where ONNX has one, else an einsum; results are batch dims, then those of either side."""
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    one, other = (list(variable.aval.shape) for variable in equation.invars)
    wanted, made_of = equation.outvars[0].aval.dtype, equation.invars[0].aval.dtype
    count = len(batch_left)
    leading = tuple(batch_left) == tuple(batch_right) == tuple(range(count))
    plain = (
        leading
        and tuple(left) == (len(one) - 1,)
        and tuple(right) == (count,)
        and len(other) == count + 2
        and (not count or len(one) == len(other))
    )
    if plain:
        made = graph.add("MatMul", inputs)
    else:
        letters = iter(string.ascii_lowercase)
        first = [next(letters) for _ in one]
        second = [next(letters) for _ in other]
        for mine, theirs in zip((*left, *batch_left), (*right, *batch_right), strict=True):
            second[theirs] = first[mine]
        free = [letter for place, letter in enumerate(first) if place not in {*left, *batch_left}]
        free += [letter for place, letter in enumerate(second) if place not in {*right, *batch_right}]
        result = [first[place] for place in batch_left] + free
        made = graph.add("Einsum", inputs, equation=f"{''.join(first)},{''.join(second)}->{''.join(result)}")
    return str(made if wanted == made_of else graph.add("Cast", [made], to=onnx_type(wanted)))


def _gathered(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """Rows by number (`table[ids]`, `take`), and elements by number (`take_along_axis`)."""
    numbers, operand = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    indices, sizes = equation.invars[1].aval.shape, equation.params["slice_sizes"]
    (axis,) = numbers.start_index_map if len(numbers.start_index_map) == 1 else (None,)
    others = tuple(dim for dim in range(len(operand)) if dim != axis)
    if axis is None or tuple(numbers.collapsed_slice_dims) != (axis,):
        raise NotImplementedError("indices of several dims at once")
    flat = graph.add("Reshape", [inputs[1], graph.ints(*indices[:-1])])
    if tuple(numbers.operand_batching_dims) == others and all(size == 1 for size in sizes):
        return _along(graph, equation, inputs[0], flat, axis)
    if numbers.operand_batching_dims or any(sizes[dim] != operand[dim] for dim in others):
        raise NotImplementedError("parts of rows by number")
    made = graph.add("Gather", [inputs[0], flat], axis=axis)
    rank, rows = len(operand) - 1 + len(indices) - 1, len(indices) - 1
    natural = [*range(axis), *range(axis + rows, rank)]  # where the dims of rows are in ONNX's result
    wanted = list(numbers.offset_dims)
    rest = iter(range(axis, axis + rows))
    perm = [natural[wanted.index(place)] if place in wanted else next(rest) for place in range(rank)]
    return str(made if perm == list(range(rank)) else graph.add("Transpose", [made], perm=perm))


def _along(graph: Graph, equation: Any, operand: str, flat: str, axis: int) -> str:
    """`take_along_axis`: the dims of the numbers are those of the operand that they share, then one more or none."""
    shape, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    rank = len(shape)
    others = [size for dim, size in enumerate(shape) if dim != axis]
    if list(result) == others:  # one number for each row
        wide = graph.add("Reshape", [flat, graph.ints(*(1 if dim == axis else shape[dim] for dim in range(rank)))])
        made = graph.add("GatherElements", [operand, wide], axis=axis)
        return str(graph.add("Reshape", [made, graph.ints(*result)]))
    if len(result) != rank or [size for dim, size in enumerate(result) if dim != axis] != others:
        raise NotImplementedError("elements by number in another order of dims")
    return str(graph.add("GatherElements", [operand, flat], axis=axis))


def _top(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    axis = equation.params.get("axis", -1)
    values, places = graph.add("TopK", [inputs[0], graph.ints(equation.params["k"])], results=2, axis=axis)
    return [values, graph.add("Cast", [places], to=onnx_type(equation.outvars[1].aval.dtype))]


def _cumulative(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    axis = graph.constant(np.asarray(equation.params["axis"], dtype=np.int64))
    return str(graph.add("CumSum", [inputs[0], axis], reverse=int(equation.params["reverse"])))


def _convolution(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    given = equation.params
    if any(step != 1 for step in given["lhs_dilation"]) or given["batch_group_count"] != 1:
        raise NotImplementedError("a transposed convolution")
    left, right, out = given["dimension_numbers"]
    value = _permuted(graph, inputs[0], left)
    kernel = _permuted(graph, inputs[1], right)
    pads = [low for low, _ in given["padding"]] + [high for _, high in given["padding"]]
    made = graph.add(
        "Conv", [value, kernel], strides=list(given["window_strides"]), dilations=list(given["rhs_dilation"]),
        pads=pads, group=given["feature_group_count"],
    )  # fmt: skip
    return _permuted(graph, made, np.argsort(out).tolist())


def _permuted(graph: Graph, name: str, perm: Sequence[int]) -> str:
    return name if list(perm) == list(range(len(perm))) else str(graph.add("Transpose", [name], perm=list(perm)))


def _window(kind: str) -> Row:
    """Pools of all dims but the batch and the channels, which may come last."""

    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        given, rank = equation.params, len(equation.invars[0].aval.shape)
        sizes, steps, pads = given["window_dimensions"], given["window_strides"], given["padding"]
        if any(each != 1 for each in (*given["base_dilation"], *given["window_dilation"])) or sizes[0] != 1:
            raise NotImplementedError("windows with holes, or of the batch")
        last = sizes[1] != 1 or sizes[-1] == 1
        perm = [0, rank - 1, *range(1, rank - 1)] if last else list(range(rank))
        space = perm[2:]
        settings: dict[str, Any] = {
            "kernel_shape": [sizes[dim] for dim in space],
            "strides": [steps[dim] for dim in space],
            "pads": [pads[dim][0] for dim in space] + [pads[dim][1] for dim in space],
        }
        if kind == "AveragePool":
            settings["count_include_pad"] = 1
        made = graph.add(kind, [_permuted(graph, inputs[0], perm)], **settings)
        if kind == "AveragePool":  # JAX adds up and divides by itself
            made = graph.add("Mul", [made, graph.constant(_like(equation, float(np.prod(sizes))))])
        return _permuted(graph, made, np.argsort(perm).tolist())

    return row


ROWS: Mapping[str, Row] = {
    "add": _same("Add"), "add_any": _same("Add"), "sub": _same("Sub"), "mul": _same("Mul"), "div": _same("Div"),
    "max": _same("Max"), "min": _same("Min"), "pow": _same("Pow"), "rem": lambda g, _, i: g.add("Mod", i, fmod=1),
    "neg": _same("Neg"), "exp": _same("Exp"), "log": _same("Log"), "tanh": _same("Tanh"), "erf": _same("Erf"),
    "logistic": _same("Sigmoid"), "sqrt": _same("Sqrt"), "rsqrt": _chain("Sqrt", "Reciprocal"), "abs": _same("Abs"),
    "sign": _same("Sign"), "floor": _same("Floor"), "ceil": _same("Ceil"), "round": _same("Round"),
    "sin": _same("Sin"), "cos": _same("Cos"), "tan": _same("Tan"), "sinh": _same("Sinh"), "cosh": _same("Cosh"),
    "asin": _same("Asin"), "acos": _same("Acos"), "atan": _same("Atan"),
    "square": lambda g, _, i: g.add("Mul", [i[0], i[0]]),
    "log1p": lambda g, e, i: g.add("Log", [g.add("Add", [i[0], g.constant(_like(e, 1))])]),
    "expm1": lambda g, e, i: g.add("Sub", [g.add("Exp", i), g.constant(_like(e, 1))]),
    "exp2": lambda g, e, i: g.add("Pow", [g.constant(_like(e, 2)), i[0]]),
    "erfc": lambda g, e, i: g.add("Sub", [g.constant(_like(e, 1)), g.add("Erf", i)]),
    "integer_pow": _integer_pow,
    "and": _logic("And"), "or": _logic("Or"), "xor": _logic("Xor"), "not": _logic("Not"),
    "eq": _same("Equal"), "ne": _chain("Equal", "Not"), "lt": _same("Less"), "le": _same("LessOrEqual"),
    "gt": _same("Greater"), "ge": _same("GreaterOrEqual"), "is_finite": _chain("IsInf", "Not"),
    "select_n": _selected, "clamp": _clamped,
    **dict.fromkeys(
        ("stop_gradient", "copy", "copy_p", "reduce_precision", "sharding_constraint", "reshard", "pvary", "name"),
        _same("Identity"),
    ),
    "convert_element_type": _cast, "broadcast_in_dim": _broadcast, "transpose": _transpose,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    "slice": _slice, "dynamic_slice": _dynamic_slice, "rev": _reversed, "concatenate": _concatenated,
    "split": _split, "stack": _stacked, "pad": _padded,
    "tile": lambda g, e, i: g.add("Tile", [i[0], g.ints(*e.params["reps"])]),
    "iota": _iota, "gather": _gathered, "top_k": _top, "cumsum": _cumulative,
    "reduce_sum": _reduce("ReduceSum"), "reduce_max": _reduce("ReduceMax"), "reduce_min": _reduce("ReduceMin"),
    "reduce_prod": _reduce("ReduceProd"), "reduce_or": _of_booleans("ReduceMax"),
    "reduce_and": _of_booleans("ReduceMin"), "argmax": _extreme("ArgMax"), "argmin": _extreme("ArgMin"),
    "dot_general": _product, "conv_general_dilated": _convolution,
    "reduce_window_max": _window("MaxPool"), "reduce_window_sum": _window("AveragePool"),
}  # fmt: skip
"""Rows by the name of the primitive."""
