"""Special functions without an ONNX operator (`lgamma`, `digamma`, `erf_inv`), on the usual arguments: gammas of
numbers above zero, the inverse of numbers between -1 and 1."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardplan.jax.planning.graph import Graph, Row

_SHIFT = 8
"""So far is an argument moved up before it is put into a series: with four terms of it the error is then below that of
single precision."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_ASYMPTOTIC = (-1 / 12, 1 / 120, -1 / 252, 1 / 240)
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04, -1.25372503e-03,
           -4.17768164e-03, 2.46640727e-01, 1.50140941e00)  # fmt: skip
_TAIL = (-2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03, -7.6224613e-03,
         9.43887047e-03, 1.00167406e00, 2.83297682e00)  # fmt: skip
"""Of Giles, Approximating the erfinv function (2012)."""


class _Terms:
    """Writes sums and products of values of one dtype and of numbers."""

    def __init__(self, graph: Graph, equation: Any) -> None:
        self.graph, self.dtype = graph, equation.invars[0].aval.dtype

    def of(self, kind: str, *given: str | float) -> str:
        """An operator applied to values and numbers."""
        names = [each if isinstance(each, str) else self.graph.constant(np.asarray(each, self.dtype)) for each in given]
        return str(self.graph.add(kind, names))

    def polynomial(self, x: str, factors: Sequence[float]) -> str:
        """A polynomial in `x`; the factor of the highest power comes first."""
        made = self.of("Mul", x, factors[0])
        for factor in factors[1:-1]:
            made = self.of("Mul", self.of("Add", made, factor), x)
        return self.of("Add", made, factors[-1])

    def above(self, x: str) -> list[str]:
        """`x`, `x` + 1, `x` + 2, ... up to the shift at which the series is accurate."""
        return [x, *(self.of("Add", x, float(more)) for more in range(1, _SHIFT + 1))]


def _lgamma(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    terms = _Terms(graph, equation)
    *below, top = terms.above(inputs[0])
    inverse = terms.of("Reciprocal", top)
    series = terms.polynomial(terms.of("Mul", inverse, inverse), _STIRLING[::-1])
    made = terms.of("Mul", terms.of("Sub", top, 0.5), terms.of("Log", top))
    made = terms.of("Add", terms.of("Sub", made, top), 0.5 * float(np.log(2 * np.pi)))
    made = terms.of("Add", made, terms.of("Mul", inverse, series))
    return terms.of("Sub", made, terms.of("Log", functools.reduce(lambda a, b: terms.of("Mul", a, b), below)))


def _digamma(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    terms = _Terms(graph, equation)
    *below, top = terms.above(inputs[0])
    inverse = terms.of("Reciprocal", top)
    square = terms.of("Mul", inverse, inverse)
    series = terms.of("Mul", square, terms.polynomial(square, _ASYMPTOTIC[::-1]))
    made = terms.of("Add", terms.of("Sub", terms.of("Log", top), terms.of("Mul", inverse, 0.5)), series)
    for each in below:
        made = terms.of("Sub", made, terms.of("Reciprocal", each))
    return made


def _erf_inv(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    terms, x = _Terms(graph, equation), inputs[0]
    inside = terms.of("Mul", terms.of("Sub", 1.0, x), terms.of("Add", x, 1.0))
    w = terms.of("Neg", terms.of("Log", inside))
    centre = terms.polynomial(terms.of("Sub", w, 2.5), _CENTRE)
    tail = terms.polynomial(terms.of("Sub", terms.of("Sqrt", w), 3.0), _TAIL)
    chosen = graph.add("Where", [terms.of("Less", w, 5.0), centre, tail])
    return terms.of("Mul", chosen, x)


SPECIAL: Mapping[str, Row] = {"lgamma": _lgamma, "digamma": _digamma, "erf_inv": _erf_inv}
"""Rows by the name of the primitive."""
