"""Convolutions and pools of JAX in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardplan.jax.planning.graph import Graph, Row


def convolution(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """`Conv`, or `ConvTranspose` where JAX dilates the input. Dims are permuted to the order of ONNX, and back."""
    given = equation.params
    if given["batch_group_count"] != 1:
        raise NotImplementedError("groups of the batch")
    left, right, out = given["dimension_numbers"]
    value, kernel = graph.permuted(inputs[0], left), graph.permuted(inputs[1], right)
    if any(step != 1 for step in given["lhs_dilation"]):
        made = _transposed(graph, equation, value, kernel)
    else:
        pads = [low for low, _ in given["padding"]] + [high for _, high in given["padding"]]
        made = graph.add(
            "Conv", [value, kernel], strides=list(given["window_strides"]), dilations=list(given["rhs_dilation"]),
            pads=pads, group=given["feature_group_count"],
        )  # fmt: skip
    return graph.permuted(made, np.argsort(out).tolist())


def _transposed(graph: Graph, equation: Any, value: str, kernel: str) -> str:
    """A convolution over a dilated input is a transposed convolution with the kernel reversed. ONNX's padding is the
    part of the kernel's reach beyond the edge that `low` does not cover."""
    given = equation.params
    if any(step != 1 for step in given["window_strides"]) or given["feature_group_count"] != 1:
        raise NotImplementedError("a transposed convolution with strides or groups")
    sizes = [equation.invars[1].aval.shape[dim] for dim in given["dimension_numbers"].rhs_spec[2:]]
    reach = [(size - 1) * step for size, step in zip(sizes, given["rhs_dilation"], strict=True)]
    lows = [most - low for most, (low, _) in zip(reach, given["padding"], strict=True)]
    highs = [most - high for most, (_, high) in zip(reach, given["padding"], strict=True)]
    if min(lows) < 0:
        raise NotImplementedError("a transposed convolution padded by more than its kernel")
    space = range(2, 2 + len(sizes))
    backwards = [graph.ints(*(each for _ in sizes)) for each in (-1, -(1 << 31))]
    turned = graph.add("Slice", [kernel, *backwards, graph.ints(*space), graph.ints(*(-1 for _ in sizes))])
    return str(
        graph.add(
            "ConvTranspose", [value, graph.permuted(turned, [1, 0, *space])], strides=list(given["lhs_dilation"]),
            dilations=list(given["rhs_dilation"]), pads=[*lows, *(max(high, 0) for high in highs)],
            output_padding=[max(-high, 0) for high in highs],
        )
    )  # fmt: skip


def window(kind: str) -> Row:
    """Pools. ONNX takes a batch and channels before the dims of the window: these are the first and the last dim along
    which the window does not reach, or dims of size 1 that are added."""

    def row(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
        given, shape = equation.params, equation.invars[0].aval.shape
        if any(each != 1 for each in (*given["base_dilation"], *given["window_dilation"])):
            raise NotImplementedError("windows with holes")
        reach = list(zip(given["window_dimensions"], given["window_strides"], given["padding"], strict=True))
        more = max(0, 2 - reach.count((1, 1, (0, 0))))
        value = graph.add("Reshape", [inputs[0], graph.ints(*[1] * more, *shape)]) if more else inputs[0]
        reach = [(1, 1, (0, 0))] * more + reach
        free = [dim for dim, each in enumerate(reach) if each == (1, 1, (0, 0))]
        space = [dim for dim in range(len(reach)) if dim not in {free[0], free[-1]}]
        perm = [free[0], free[-1], *space]
        settings: dict[str, Any] = {
            "kernel_shape": [reach[dim][0] for dim in space],
            "strides": [reach[dim][1] for dim in space],
            "pads": [reach[dim][2][end] for end in (0, 1) for dim in space],
        }
        if kind == "AveragePool":
            settings["count_include_pad"] = 1
        made = graph.add(kind, [graph.permuted(value, perm)], **settings)
        if kind == "AveragePool":  # JAX adds up and divides by itself
            count = np.asarray(float(np.prod(settings["kernel_shape"])), dtype=equation.invars[0].aval.dtype)
            made = graph.add("Mul", [made, graph.constant(count)])
        made = graph.permuted(made, np.argsort(perm).tolist())
        return str(graph.add("Reshape", [made, graph.ints(*equation.outvars[0].aval.shape)]) if more else made)

    return row
