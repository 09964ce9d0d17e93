"""Complex numbers in ONNX: a complex value is two real ones, its parts, and Fourier transforms are `DFT` of both.

The name of a complex value is that of its real part; `Graph.imaginary` has the name of its imaginary part. A value
without one there is real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import FftType

from shardplan.jax.planning.graph import Graph, Row, onnx_type

BOTH = frozenset((
    "add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "select_n", "copy", "copy_p", "stop_gradient", "name",
    "sharding_constraint", "transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice",
    "dynamic_slice", "dynamic_update_slice", "rev", "concatenate", "split", "stack", "pad", "tile", "gather", "scatter",
    "scatter-add",
))  # fmt: skip
"""Primitives that do the same to the real and to the imaginary part."""


def is_complex(aval: Any) -> bool:
    """Whether a value holds complex numbers."""
    return bool(jnp.issubdtype(aval.dtype, jnp.complexfloating))


def real_aval(aval: Any) -> Any:
    """A part of an abstract value: its shape, and the real dtype of as many bits."""
    dtype = jnp.float32 if aval.dtype == jnp.complex64 else jnp.float64
    return jax.ShapeDtypeStruct(aval.shape, dtype) if is_complex(aval) else aval


def real_avals(avals: Sequence[Any]) -> list[Any]:
    """The abstract values of all parts of values, in order."""
    return [real_aval(aval) for aval in avals for _ in range(1 + is_complex(aval))]


def has_complex(equation: Any) -> bool:
    """Whether an equation reads or makes complex numbers."""
    return any(is_complex(each.aval) for each in (*equation.invars, *equation.outvars))


def parts(graph: Graph, name: str, aval: Any) -> list[str]:
    """The names of a value's real and imaginary part; its own name where it is real by its dtype."""
    return [name, imaginary(graph, name, aval)] if is_complex(aval) else [name]


def all_parts(graph: Graph, names: Sequence[str], avals: Sequence[Any]) -> list[str]:
    """The names of all parts of values; that of the value itself where it is real."""
    return [part for name, aval in zip(names, avals, strict=True) for part in parts(graph, name, aval)]


def joined(graph: Graph, names: Sequence[str], avals: Sequence[Any]) -> list[str]:
    """The names of values from the names of all their parts, in order."""
    given, found = iter(names), []
    for aval in avals:
        name = next(given)
        found.append(name)
        if is_complex(aval):
            graph.imaginary[name] = next(given)
    return found


def imaginary(graph: Graph, name: str, aval: Any) -> str:
    """The name of the imaginary part of a complex value; zeros where it has none."""
    if name in graph.imaginary:
        return graph.imaginary[name]
    zero = graph.constant(np.zeros((), real_aval(aval).dtype))
    return str(graph.add("Expand", [zero, graph.ints(*aval.shape)]))


@dataclass(frozen=True)
class _Arithmetic:
    """Sums and products of parts, of which some are zero (None)."""

    graph: Graph
    row: Row
    equation: Any

    def times(self, one: str | None, other: str | None) -> str | None:
        """The product, by the row of the primitive."""
        return None if one is None or other is None else str(self.row(self.graph, self.equation, [one, other]))

    def plus(self, one: str | None, other: str | None, kind: str = "Add") -> str | None:
        """The sum or (`Sub`) the difference."""
        if other is None:
            return one
        if one is None:
            return str(self.graph.add("Neg", [other])) if kind == "Sub" else other
        return str(self.graph.add(kind, [one, other]))


def of_both(row: Row) -> Row:
    """From the row of a primitive to one that applies it to both parts; values that are real by their dtype (indices,
    conditions) are read for both."""

    def made(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
        avals = [each.aval for each in equation.invars]
        found = _listed(row(graph, equation, inputs))
        if found == list(inputs[: len(found)]):
            return found
        if any(is_complex(aval) and name in graph.imaginary for name, aval in zip(inputs, avals, strict=True)):
            second = [parts(graph, *each)[-1] for each in zip(inputs, avals, strict=True)]
            graph.imaginary.update(zip(found, _listed(row(graph, equation, second)), strict=True))
        return found

    return made


def of_products(row: Row) -> Row:
    """From the row of a bilinear primitive (a product of elements or of matrices) to that of complex operands."""

    def made(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        do = _Arithmetic(graph, row, equation)
        (a, c), (b, d) = inputs, (graph.imaginary.get(each) for each in inputs)
        real = do.plus(do.times(a, c), do.times(b, d), "Sub")
        return _value(graph, real, do.plus(do.times(a, d), do.times(b, c)))

    return made


def _value(graph: Graph, real: str | None, other: str | None) -> str:
    """The complex value of these parts."""
    assert real is not None
    if other is not None:
        graph.imaginary[real] = other
    return real


def _listed(made: Any) -> list[str]:
    return [made] if isinstance(made, str) else list(made)


def _complex(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    return _value(graph, graph.add("Identity", [inputs[0]]), inputs[1])


def _imaginary(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return imaginary(graph, inputs[0], equation.invars[0].aval)


def _conjugate(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    other = graph.imaginary.get(inputs[0])
    real = graph.add("Identity", [inputs[0]])
    return _value(graph, real, None if other is None else graph.add("Neg", [other]))


def _squares(graph: Graph, name: str) -> str:
    """The square of the absolute value."""
    made = graph.add("Mul", [name, name])
    if (other := graph.imaginary.get(name)) is not None:
        made = graph.add("Add", [made, graph.add("Mul", [other, other])])
    return str(made)


def _absolute(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Sqrt", [_squares(graph, inputs[0])]))


def _quotient(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """The quotient z / w = z conj(w) / |w|^2."""
    size = _squares(graph, inputs[1])
    made = of_products(_times)(graph, equation, [inputs[0], _conjugate(graph, equation, inputs[1:])])
    other = graph.imaginary.get(made)
    real = graph.add("Div", [made, size])
    return _value(graph, real, None if other is None else graph.add("Div", [other, size]))


def _times(graph: Graph, _: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Mul", inputs))


def _square(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    if equation.params.get("y", 2) != 2:
        raise NotImplementedError("powers of complex numbers other than squares")
    return str(of_products(_times)(graph, equation, [inputs[0], inputs[0]]))


def _equal(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """Whether both parts are equal (`eq`), or not (`ne`)."""
    names = [parts(graph, name, each.aval) for name, each in zip(inputs, equation.invars, strict=True)]
    alike = graph.add("And", [graph.add("Equal", pair) for pair in zip(*names, strict=True)])
    return str(graph.add("Not", [alike]) if equation.primitive.name == "ne" else alike)


def _exponential(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    size, angle = graph.add("Exp", [inputs[0]]), imaginary(graph, inputs[0], equation.invars[0].aval)
    real = graph.add("Mul", [size, graph.add("Cos", [angle])])
    return _value(graph, real, graph.add("Mul", [size, graph.add("Sin", [angle])]))


def _cast(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A cast from real to complex numbers, between two types of them, or to the real part."""
    wanted, other = real_aval(equation.outvars[0].aval).dtype, graph.imaginary.get(inputs[0])
    real = graph.add("Cast", [inputs[0]], to=onnx_type(wanted))
    if other is not None and is_complex(equation.outvars[0].aval):
        other = graph.add("Cast", [other], to=onnx_type(wanted))
    return _value(graph, real, other if is_complex(equation.outvars[0].aval) else None)


def _transformed(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A Fourier transform along the last dims, one `DFT` for each.

    A transform of real numbers (`RFFT`) begins with the last dim, and keeps half of the frequencies. One to real
    numbers (`IRFFT`) ends with it; the other frequencies are conjugates of those that are given.
    """
    kind, lengths = equation.params["fft_type"], equation.params["fft_lengths"]
    kind = FftType.from_string(kind) if isinstance(kind, str) else kind
    rank = len(equation.invars[0].aval.shape)
    first, last = list(range(rank - len(lengths), rank - 1)), rank - 1
    back = int(kind in (FftType.IFFT, FftType.IRFFT))
    pairs = _paired(graph, inputs[0], equation.invars[0].aval)
    if kind == FftType.RFFT:
        pairs = graph.add("DFT", [pairs, "", graph.ints0(last)], onesided=1)
    for dim in first:
        pairs = graph.add("DFT", [pairs, "", graph.ints0(dim)], inverse=back)
    if kind == FftType.IRFFT:
        pairs = _completed(graph, pairs, last, lengths[-1])
    if kind != FftType.RFFT:
        pairs = graph.add("DFT", [pairs, "", graph.ints0(last)], inverse=back)
    shape = graph.ints(*equation.outvars[0].aval.shape)
    cut = [
        graph.add("Slice", [pairs, graph.ints(at), graph.ints(at + 1), graph.ints(rank)])
        for at in range(1 if kind == FftType.IRFFT else 2)
    ]
    made = [str(graph.add("Reshape", [each, shape])) for each in cut]
    return _value(graph, made[0], made[1] if len(made) > 1 else None)


def _paired(graph: Graph, name: str, aval: Any) -> str:
    """The parts of a value along a last dim of their own."""
    one = graph.ints(*aval.shape, 1)
    known = [name, graph.imaginary[name]] if name in graph.imaginary else [name]
    made = [graph.add("Reshape", [each, one]) for each in known]
    return str(graph.add("Concat", made, axis=len(aval.shape)) if len(made) > 1 else made[0])


def _completed(graph: Graph, pairs: str, dim: int, length: int) -> str:
    """All frequencies of real numbers from the first half of them. Those of negative sign are conjugates, in reversed
    order."""
    middle = (length - 1) // 2
    if not middle:
        return pairs
    cut = graph.add("Slice", [pairs, graph.ints(middle), graph.ints(0), graph.ints(dim), graph.ints(-1)])
    signs = graph.constant(np.asarray([1.0, -1.0], np.float32))
    return str(graph.add("Concat", [pairs, graph.add("Mul", [cut, signs])], axis=dim))


def rows_of_complex(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows of primitives on complex numbers; `rows`: those on real numbers."""
    products: dict[str, Callable[[Row], Row]] = {"mul": of_products, "dot_general": of_products}
    return {
        **{name: of_both(rows[name]) for name in BOTH if name in rows},
        **{name: make(rows[name]) for name, make in products.items()},
        "fft": _transformed, "complex": _complex, "real": lambda graph, _, inputs: graph.add("Identity", inputs),
        "imag": _imaginary, "conj": _conjugate, "abs": _absolute, "div": _quotient, "exp": _exponential,
        "square": _square, "integer_pow": _square, "convert_element_type": _cast,
        "eq": _equal, "ne": _equal,
    }  # fmt: skip
