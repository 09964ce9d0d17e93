"""A planned graph as a JAX function: every value is pinned to the plan where it is made and where it is read.

Weights are a dict with the names and dims of the checkpoint. A fused q, k, v weight that the plan cuts in its segments
has the dims (3, hidden, ...) in place of (3 * hidden, ...); the values made of it keep that division until the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from onnx import numpy_helper
from tiny_models import Tiny

import shardplan.jax
from shardplan.model.types import Model, Operator
from shardplan.plan.types import Plan

Array = Any


def unfolded(plan: Plan, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The checkpoint with its segmented dims divided, as JAX can shard them."""
    found = dict(weights)
    for tensor in plan.tensors:
        for _, segments in tensor.layout.dims():
            if segments and tensor.role == "parameter":
                whole = weights[tensor.checkpoint]
                found[tensor.checkpoint] = whole.reshape(len(segments), segments[0], *whole.shape[1:])
    return found


def inputs_of(tiny: Tiny, model: Model) -> dict[str, np.ndarray]:
    """One batch, and the large constants of the graph (masks, tables)."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in tiny.proto.graph.initializer}
    large = [name for name, t in model.tensors.items() if t.role == "constant" and name not in model.constants]
    return {**{name: array.astype(np.int32) for name, array in tiny.inputs.items()}, **{n: stored[n] for n in large}}


def function_of(model: Model, plan: Plan | None = None, mesh: Mesh | None = None) -> Callable[..., Array]:
    """`(weights, inputs) -> output` for the one output of `model`; without a plan nothing is pinned."""
    parameters = {parameter.tensor: parameter for parameter in model.parameters}
    planned = {tensor.name for tensor in plan.tensors} if plan is not None else set()

    def pinned(name: str, x: Array, reader: str = "") -> Array:
        if name not in planned:
            return x
        return shardplan.jax.constrain(plan, mesh, name, x, reader=reader)

    def run(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> Array:
        values: dict[str, Array] = dict(model.constants)
        values |= {name: pinned(name, inputs[name]) for name in model.inputs}
        for name, tensor in model.tensors.items():
            if name not in values and tensor.role == "constant":
                values[name] = inputs[name]

        def read(operator: Operator, name: str) -> Array:
            if name not in parameters:
                return pinned(name, values[name], operator.name)
            weight = pinned(name, weights[parameters[name].name], operator.name)
            return turned(weight, parameters[name].perm)

        for operator in model.operators:
            operands = [read(operator, name) if name else None for name in operator.inputs]
            results = KERNELS[operator.op_type](operator.attributes, *operands)
            for name, value in zip(operator.outputs, results if isinstance(results, list) else [results], strict=True):
                values[name] = pinned(name, value)
        return values[model.outputs[0]]

    return run


def turned(weight: Array, perm: tuple[int, ...]) -> Array:
    """A checkpoint tensor in the graph's dims; a first dim that is divided in two stays so."""
    if not perm:
        return weight
    groups = [(0,), (1,)] if weight.ndim == len(perm) else [(0, 1), (2,)]
    return weight.transpose([dim for graph_dim in perm for dim in groups[graph_dim]])


def _layer_norm(attributes: Mapping[str, Any], x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + attributes["epsilon"]) * scale + shift


def _rms_norm(attributes: Mapping[str, Any], x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + attributes["epsilon"]) * scale


def _attention(_: Mapping[str, Any], q: Array, k: Array, v: Array, mask: Array) -> Array:
    """[batch, heads, seq, width]; the mask tells where to look."""
    scores = jnp.einsum("bhqw,bhkw->bhqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bhqk,bhkw->bhqw", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)


def _split(attributes: Mapping[str, Any], x: Array, sizes: Array) -> list[Array]:
    if x.ndim > 3:  # the fused dim is divided: [..., part, size]
        return [x[..., part, :] for part in range(len(sizes))]
    return jnp.split(x, np.cumsum(sizes)[:-1], attributes["axis"])


def _slice(
    _: Mapping[str, Any], x: Array, starts: Array, ends: Array, axes: Array, steps: Array | None = None
) -> Array:
    cuts = [slice(None)] * x.ndim
    steps = np.ones_like(axes) if steps is None else steps
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        cuts[axis] = slice(start, end, step)
    return x[tuple(cuts)]


def _one_hot(attributes: Mapping[str, Any], index: Array, depth: Array, _: Array) -> Array:
    return jax.nn.one_hot(index, int(depth), axis=attributes["axis"])


DTYPES = {1: jnp.float32, 6: jnp.int32, 7: jnp.int32, 9: jnp.bool_, 10: jnp.float16, 16: jnp.bfloat16}
KERNELS: dict[str, Callable[..., Any]] = {
    "Add": lambda _, x, y: x + y,
    "And": lambda _, x, y: x & y,
    "Attention": _attention,
    "ArgMax": lambda a, x: jnp.argmax(x, a["axis"]),
    "Cast": lambda a, x: x.astype(DTYPES[a["to"]]),
    "Concat": lambda a, *parts: jnp.concatenate(parts, a["axis"]),
    "Cos": lambda _, x: jnp.cos(x),
    "Einsum": lambda a, *operands: jnp.einsum(a["equation"], *operands),
    "Expand": lambda _, x, shape: jnp.broadcast_to(x, tuple(shape.tolist())),
    "Gather": lambda _, table, index: table[index],
    "GatherND": lambda _, x, index: x[tuple(jnp.moveaxis(index, -1, 0))],
    "Gelu": lambda _, x: jax.nn.gelu(x, approximate=True),
    "LayerNormalization": _layer_norm,
    "LessOrEqual": lambda _, x, y: x <= y,
    "MatMul": lambda _, x, y: jnp.tensordot(x, y, 1) if y.ndim in (2, 3) and x.ndim == 3 else jnp.matmul(x, y),
    "Mul": lambda _, x, y: x * y,
    "Neg": lambda _, x: -x,
    "OneHot": _one_hot,
    "RMSNormalization": _rms_norm,
    "Reshape": lambda _, x, shape: x.reshape(shape.tolist()),
    "Sigmoid": lambda _, x: jax.nn.sigmoid(x),
    "Sin": lambda _, x: jnp.sin(x),
    "Slice": _slice,
    "Softmax": lambda a, x: jax.nn.softmax(x, a["axis"]),
    "Split": _split,
    "Transpose": lambda a, x: x.transpose(a["perm"]),
    "Unsqueeze": lambda _, x, axes: jnp.expand_dims(x, tuple(axes.tolist())),
}
