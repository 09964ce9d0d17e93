"""Random numbers of JAX in ONNX: a key is one number, and a draw from it is a value of the drawn shape.

ONNX has no operator that draws as JAX does, and a plan does not depend on the numbers: in the graph every draw is a
uniform draw between 0 and 1, which `verify` can run. A function under the plan draws the same numbers as without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import dtypes

from shardplan.jax.planning.graph import Graph, Row, onnx_type


def is_key(aval: Any) -> bool:
    """Whether a value holds keys of random numbers."""
    return bool(dtypes.issubdtype(aval.dtype, dtypes.prng_key))


def is_draw(equation: Any) -> bool:
    """Whether an equation draws: it reads keys and scalars (bounds, a probability), and returns no keys."""
    given = [each.aval for each in equation.invars]
    made = [each.aval for each in equation.outvars]
    reads = any(map(is_key, given)) and all(is_key(one) or not one.shape for one in given)
    return equation.primitive.name in {"jit", "pjit"} and reads and not any(map(is_key, made))


def drawn(graph: Graph, equation: Any, inputs: Sequence[str]) -> list[str]:
    """The results of an equation that draws. Where the first dims of a result are those of the keys, each key draws one
    row."""
    place = next(place for place, each in enumerate(equation.invars) if is_key(each.aval))
    made = [_laid_out(graph, inputs[place], equation.invars[place].aval, each.aval) for each in equation.outvars]
    graph.drawn.update(made)
    return made


def _laid_out(graph: Graph, key: str, given: Any, made: Any) -> str:
    """Uniform numbers between 0 and 1, cast to the dtype of `made` (a boolean is true, an integer is 0)."""
    kept = len(given.shape) if made.shape[: len(given.shape)] == given.shape else 0
    if not kept and given.shape:
        key = graph.add("ReduceMax", [key], keepdims=0)
    number = graph.add("Cast", [key], to=onnx_type(np.float32))
    number = graph.add("Reshape", [number, graph.ints(*given.shape[:kept], *(1 for _ in made.shape[kept:]))])
    number = graph.add("RandomUniformLike", [graph.add("Expand", [number, graph.ints(*made.shape)])])
    return str(graph.add("Cast", [number], to=onnx_type(made.dtype)))


def _more(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """Several keys, words or bits of each key, in dims after those of the keys."""
    given, made = equation.invars[0].aval, equation.outvars[0].aval
    one = graph.add("Reshape", [inputs[0], graph.ints(*given.shape, *(1 for _ in made.shape[len(given.shape) :]))])
    cast = graph.add("Cast", [one], to=onnx_type(made.dtype))
    return str(graph.add("Expand", [cast, graph.ints(*made.shape)]))


def _of_number(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    return str(graph.add("Cast", [inputs[0]], to=onnx_type(equation.outvars[0].aval.dtype)))


def _of_words(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    last = graph.ints(len(equation.outvars[0].aval.shape))
    return str(graph.add("ReduceMax", [inputs[0], last], keepdims=0))


def _folded(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    number = graph.add("Cast", [inputs[1]], to=onnx_type(equation.outvars[0].aval.dtype))
    return str(graph.add("Add", [inputs[0], number]))


def _of_shapes(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A number of the gamma distribution for each shape parameter, through which gradients go."""
    keys, shapes = (each.aval for each in equation.invars)
    return str(graph.add("Add", [inputs[1], _laid_out(graph, inputs[0], keys, shapes)]))


DRAWS: Mapping[str, Row] = {
    "random_seed": _of_number,
    "random_wrap": _of_words,
    "random_fold_in": _folded,
    **dict.fromkeys(("random_split", "random_unwrap", "random_bits"), _more),
    "random_gamma": _of_shapes,
    "random_clone": lambda graph, _, inputs: graph.add("Identity", inputs),
}
"""Rows by the name of the primitive."""
