"""The ONNX form of each JAX primitive: one row each, with functions for those that take more than one node."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardplan.jax.planning.convolutions import convolution, window
from shardplan.jax.planning.draws import DRAWS
from shardplan.jax.planning.gathers import SCATTERS, gathered, scattered, updated
from shardplan.jax.planning.graph import Graph, Row, onnx_type
from shardplan.jax.planning.matrices import MATRICES
from shardplan.jax.planning.running import RUNNING
from shardplan.jax.planning.special import SPECIAL


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


def _reduced(kind: str) -> Row:
    """Collectives of the members that `vmap` maps over, each reduced on its own."""

    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
        axes = graph.ints(*equation.params["axes"])
        return [str(graph.add(kind, [each, axes], keepdims=0)) for each in inputs]

    return row


def _of_booleans(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        if not equation.params["axes"]:
            return inputs[0]
        number = graph.add("Cast", inputs, to=onnx_type(np.int32))
        made = graph.add(kind, [number, graph.ints(*equation.params["axes"])], keepdims=0)
        return str(graph.add("Cast", [made], to=onnx_type(np.bool_)))

    return row


def _extreme(kind: str) -> Row:
    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        (axis,) = equation.params["axes"]
        is_bool = equation.invars[0].aval.dtype == np.bool_
        given = [graph.add("Cast", inputs, to=onnx_type(np.int32))] if is_bool else inputs
        made = graph.add(kind, given, axis=axis, keepdims=0)
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
    """Dims of size 1 are added first, and then expanded."""
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
    """One gather for every dim of which a part is taken; its indices follow from the start index."""
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
    made, shape = inputs[0], list(equation.invars[0].aval.shape)
    for dim, (*_, inner) in enumerate(config):
        if inner and shape[dim] > 1:
            made = _spread(graph, made, shape, dim, inner, inputs[1])
    config = [(low, high) for low, high, _ in config]
    if any(low > 0 or high > 0 for low, high in config):
        widths = graph.ints(*(max(low, 0) for low, _ in config), *(max(high, 0) for _, high in config))
        made = graph.add("Pad", [made, widths, inputs[1]])
    cut = [dim for dim, each in enumerate(config) if min(each) < 0]
    if not cut:
        return str(made)
    out = equation.outvars[0].aval.shape
    starts = [max(-config[dim][0], 0) for dim in cut]
    ends = [start + out[dim] for start, dim in zip(starts, cut, strict=True)]
    return str(graph.add("Slice", [made, graph.ints(*starts), graph.ints(*ends), graph.ints(*cut)]))


def _spread(graph: Graph, value: str, shape: list[int], dim: int, inner: int, filling: str) -> str:
    """`value` with `inner` entries of `filling` between neighbouring elements of a dim; `shape` is updated."""
    one = graph.add("Reshape", [value, graph.ints(*shape[: dim + 1], 1, *shape[dim + 1 :])])
    widths = [0] * (2 * (len(shape) + 1))
    widths[len(shape) + 1 + dim + 1] = inner
    wide = graph.add("Pad", [one, graph.ints(*widths), filling])
    shape[dim] *= inner + 1
    flat = graph.add("Reshape", [wide, graph.ints(*shape)])
    shape[dim] -= inner
    return str(graph.add("Slice", [flat, graph.ints(0), graph.ints(shape[dim]), graph.ints(dim)]))


def _iota(graph: Graph, equation: Any, _: Sequence[str]) -> str:
    dim, shape = equation.params["dimension"], equation.params["shape"]
    numbers = np.arange(shape[dim], dtype=np.dtype(equation.params["dtype"]))
    line = graph.constant(numbers.reshape([shape[dim] if place == dim else 1 for place in range(len(shape))]))
    return str(graph.add("Expand", [line, graph.ints(*shape)]) if len(shape) > 1 else line)


def _selected(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A choice between two values by a boolean, or among several by a number."""
    which, *cases = inputs
    kind = equation.invars[0].aval.dtype
    if kind == np.bool_:
        return str(graph.add("Where", [which, cases[1], cases[0]]))
    made = cases[-1]
    for number, case in reversed(list(enumerate(cases[:-1]))):
        chosen = graph.add("Equal", [which, graph.constant(np.asarray(number, dtype=kind))])
        made = graph.add("Where", [chosen, case, made])
    return str(made)


def _sorted(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    """All operands in the order of the first `num_keys`. They are sorted by the last key first: equal entries keep
    their order."""
    dim, shape, made = equation.params["dimension"], equation.invars[0].aval.shape, list(inputs)
    for key in reversed(range(equation.params["num_keys"])):
        values, places = graph.add(
            "TopK", [made[key], graph.ints(shape[dim])], results=2, axis=dim, largest=0, sorted=1
        )  # fmt: skip
        made = [
            values if number == key else graph.add("GatherElements", [each, places], axis=dim)
            for number, each in enumerate(made)
        ]
    return made


def _clamped(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    low, value, high = inputs
    return str(graph.add("Min", [graph.add("Max", [value, low]), high]))


def _product(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A matrix product where ONNX has one, else an einsum; the result has the batch dims, then the free dims of the
    left and of the right operand."""
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    one, other = (list(variable.aval.shape) for variable in equation.invars)
    wanted = equation.outvars[0].aval.dtype
    inputs, made_of = _factors(graph, equation, inputs)
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


def _factors(graph: Graph, equation: Any, inputs: Sequence[str]) -> tuple[Sequence[str], Any]:
    """The operands of a product in a type of which ONNX has products, and that type: operands of fewer than 16 bits,
    or of two types, are cast to the type of the result."""
    wanted, *types = (each.aval.dtype for each in (*equation.outvars, *equation.invars))
    if types[0] == types[1] and types[0].itemsize > 1:
        return inputs, types[0]
    if wanted.itemsize == 1:
        wanted = np.dtype(np.int32 if np.issubdtype(wanted, np.integer) else np.float32)
    return [
        name if kind == wanted else str(graph.add("Cast", [name], to=onnx_type(wanted)))
        for name, kind in zip(inputs, types, strict=True)
    ], wanted


def _top(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    axis = equation.params.get("axis", -1)
    values, places = graph.add("TopK", [inputs[0], graph.ints(equation.params["k"])], results=2, axis=axis)
    return [values, graph.add("Cast", [places], to=onnx_type(equation.outvars[1].aval.dtype))]


def _nearly_top(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    """`approx_max_k` and `approx_min_k`, as if they were exact."""
    given = equation.params
    kind = onnx_type(equation.outvars[1].aval.dtype)
    values, places = graph.add(
        "TopK", [inputs[0], graph.ints(given["k"])], results=2, axis=given["reduction_dimension"],
        largest=int(given["is_max_k"]),
    )  # fmt: skip
    return [values, graph.add("Cast", [places], to=kind)]


def _cumulative(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    axis = graph.constant(np.asarray(equation.params["axis"], dtype=np.int64))
    return str(graph.add("CumSum", [inputs[0], axis], reverse=int(equation.params["reverse"])))


def _smallest(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """The minimum of every window."""
    return str(graph.add("Neg", [window("MaxPool")(graph, equation, [graph.add("Neg", [inputs[0]])])]))


def _angle(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """The angle of (x, y), `atan2(y, x)`: 2 atan(y / (|(x, y)| + x)), and pi where y is 0 and x below."""
    y, x = inputs
    far = graph.add("Sqrt", [graph.add("Add", [graph.add("Mul", [x, x]), graph.add("Mul", [y, y])])])
    half = graph.add("Atan", [graph.add("Div", [y, graph.add("Add", [far, x])])])
    zero, pi = (graph.constant(_like(equation, number)) for number in (0, np.pi))
    is_back = graph.add("And", [graph.add("Equal", [y, zero]), graph.add("Less", [x, zero])])
    return str(graph.add("Where", [is_back, pi, graph.add("Mul", [half, graph.constant(_like(equation, 2))])]))


def _cube_root(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    size = graph.add("Pow", [graph.add("Abs", inputs), graph.constant(_like(equation, 1 / 3))])
    return str(graph.add("Mul", [graph.add("Sign", inputs), size]))


ROWS: Mapping[str, Row] = {
    "add": _same("Add"), "add_any": _same("Add"), "sub": _same("Sub"), "mul": _same("Mul"), "div": _same("Div"),
    "max": _same("Max"), "min": _same("Min"), "pow": _same("Pow"), "rem": lambda g, _, i: g.add("Mod", i, fmod=1),
    "neg": _same("Neg"), "exp": _same("Exp"), "log": _same("Log"), "tanh": _same("Tanh"), "erf": _same("Erf"),
    "logistic": _same("Sigmoid"), "sqrt": _same("Sqrt"), "rsqrt": _chain("Sqrt", "Reciprocal"), "abs": _same("Abs"),
    "sign": _same("Sign"), "floor": _same("Floor"), "ceil": _same("Ceil"), "round": _same("Round"),
    "sin": _same("Sin"), "cos": _same("Cos"), "tan": _same("Tan"), "sinh": _same("Sinh"), "cosh": _same("Cosh"),
    "asinh": _same("Asinh"), "acosh": _same("Acosh"),
    "atanh": _same("Atanh"), "asin": _same("Asin"), "acos": _same("Acos"), "atan": _same("Atan"),
    "square": lambda g, _, i: g.add("Mul", [i[0], i[0]]),
    "log1p": lambda g, e, i: g.add("Log", [g.add("Add", [i[0], g.constant(_like(e, 1))])]),
    "expm1": lambda g, e, i: g.add("Sub", [g.add("Exp", i), g.constant(_like(e, 1))]),
    "exp2": lambda g, e, i: g.add("Pow", [g.constant(_like(e, 2)), i[0]]),
    "erfc": lambda g, e, i: g.add("Sub", [g.constant(_like(e, 1)), g.add("Erf", i)]),
    "integer_pow": _integer_pow, "atan2": _angle, "cbrt": _cube_root,
    "and": _logic("And"), "or": _logic("Or"), "xor": _logic("Xor"), "not": _logic("Not"),
    "eq": _same("Equal"), "ne": _chain("Equal", "Not"), "lt": _same("Less"), "lt_to": _same("Less"),
    "le_to": _same("LessOrEqual"), "le": _same("LessOrEqual"),
    "gt": _same("Greater"), "ge": _same("GreaterOrEqual"), "is_finite": _chain("IsInf", "Not"),
    "select_n": _selected, "clamp": _clamped,
    **dict.fromkeys(
        ("stop_gradient", "copy", "copy_p", "reduce_precision", "sharding_constraint", "reshard", "pvary", "name"),
        _same("Identity"),
    ),
    "device_put": lambda graph, _, inputs: [graph.add("Identity", [each]) for each in inputs],
    "convert_element_type": _cast, "broadcast_in_dim": _broadcast, "transpose": _transpose,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    "slice": _slice, "dynamic_slice": _dynamic_slice, "rev": _reversed, "concatenate": _concatenated,
    "split": _split, "stack": _stacked, "pad": _padded,
    "tile": lambda g, e, i: g.add("Tile", [i[0], g.ints(*e.params["reps"])]),
    "platform_index": lambda g, e, _: g.constant(np.zeros((), e.outvars[0].aval.dtype)),  # branches differ in kernels
    "iota": _iota, "gather": gathered, "dynamic_update_slice": updated,
    **dict.fromkeys(SCATTERS, scattered), "top_k": _top, "approx_top_k": _nearly_top, "sort": _sorted,
    "cumsum": _cumulative,
    "reduce_sum": _reduce("ReduceSum"), "reduce_max": _reduce("ReduceMax"), "reduce_min": _reduce("ReduceMin"),
    "reduce_prod": _reduce("ReduceProd"), "reduce_or": _of_booleans("ReduceMax"),
    "reduce_and": _of_booleans("ReduceMin"),
    "psum": _reduced("ReduceSum"), "pmax": _reduced("ReduceMax"), "pmin": _reduced("ReduceMin"),
    "argmax": _extreme("ArgMax"), "argmin": _extreme("ArgMin"),
    **DRAWS, **MATRICES, **RUNNING, **SPECIAL, "dot_general": _product, "conv_general_dilated": convolution,
    "reduce_window_max": window("MaxPool"), "reduce_window_min": _smallest, "reduce_window_sum": window("AveragePool"),
}  # fmt: skip
"""Rows by the name of the primitive."""
