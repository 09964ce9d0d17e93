"""`shardplan.jax.plan`: from a function of parameters and a batch to a plan in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import onnx
from onnx import helper

from shardplan.api import make_plan
from shardplan.errors import ShardplanError, error
from shardplan.jax.planning.arguments import inputs_of, weights_of
from shardplan.jax.planning.complex_numbers import all_parts, is_complex, real_avals
from shardplan.jax.planning.graph import OPSET, Graph, value_info, weight
from shardplan.jax.planning.jaxprs import traced, write
from shardplan.model.read import read_model_bytes
from shardplan.model.types import Model
from shardplan.plan.types import Plan


def plan(
    fn: Callable[..., Any], params: Any, *batch: Any, mesh: str | None = None, trainable: Any = None, **asked: Any
) -> Plan:
    """The fastest plan for `fn(params, *batch)`, a loss or a forward pass over the batch of a whole step.

    `params`, `batch`: pytrees of arrays or of `jax.ShapeDtypeStruct`s; only shapes and dtypes matter. Weights are
    called by their paths in `params`, so `shardings(plan, mesh, params)` needs no names; inputs by the arguments of
    `fn` and the paths in them (those of a single mapping by its keys). Layers that `jax.lax.scan` goes over stay
    stacked: a leaf has one sharding. `trainable`: a function of a weight's name; all floats are, by default. `mesh`,
    `asked`: as in `shardplan.make_plan` (`cluster`, `mode`, `memory_limit`, `microbatches`, ...). Plans are those of
    `target="jax"`, which shardings can express (`""`: of all), but for pipelines.

    >>> plan = shardplan.jax.plan(loss, params, batch, mesh="2x4", cluster="h100-dgx")

    Raises `ShardplanError` as `make_plan`, and `cannot-export` for what has no form in a plan, with its line.
    """
    asked.setdefault("target", "" if asked.get("stages") else "jax")
    return make_plan(read_function(fn, params, *batch, trainable=trainable), mesh, **asked)


def read_function(fn: Callable[..., Any], params: Any, *batch: Any, trainable: Any = None, name: str = "") -> Model:
    """The model and source that plans are made of, read from a function. Raises `ShardplanError` (`cannot-export`)."""
    weights = weights_of(params)
    floats = {each: jnp.issubdtype(leaf.dtype, jnp.floating) for each, leaf in weights.items()}
    known = {each: trainable is None or bool(trainable(each)) for each, is_float in floats.items() if is_float}
    return read_model_bytes(onnx_program(fn, params, *batch).SerializeToString(), name or _title(fn), known)


def onnx_program(fn: Callable[..., Any], params: Any, *batch: Any) -> onnx.ModelProto:
    """The graph of `fn(params, *batch)`, its weights without values. Raises as `read_function`."""
    weights = weights_of(params)
    inputs = inputs_of(fn, batch, weights)
    closed, result = traced(fn, params, *batch)
    if len({*weights, *inputs}) < len(jax.tree.leaves((params, *batch))):
        hint = "leaves are called by their paths, joined by dots: give one of them another key"
        raise ShardplanError(error("cannot-export", "two leaves of the arguments have one name", hint=hint))
    _check_real({**weights, **inputs})
    graph = Graph(taken=frozenset((*weights, *inputs)))
    outputs = written(graph, closed, weights, inputs)
    avals = real_avals(jax.tree.leaves(result))
    unread = [weights[node.input[0]] for node in graph.nodes[len(graph.nodes) - len(outputs) + len(avals) :]]
    results = [value_info(*each) for each in zip(outputs, [*avals, *unread], strict=True)]
    stored = [*(weight(each, leaf) for each, leaf in weights.items()), *graph.constants]
    given = [value_info(each, leaf) for each, leaf in inputs.items()]
    whole = helper.make_graph(graph.nodes, "function", given, results, initializer=stored)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)])


def written(graph: Graph, closed: Any, weights: Iterable[str], inputs: Iterable[str]) -> list[str]:
    """Write a closed jaxpr into `graph`, for weights and inputs of these names; returns the names of its results, all
    different. Weights that no result needs are results too, after the others: a train step holds their state."""
    known = list(weights)
    consts = [graph.constant(const) for const in closed.consts]
    names = write(graph, closed.jaxpr, consts, [*known, *inputs])
    made = all_parts(graph, names, [each.aval for each in closed.jaxpr.outvars])
    return [str(graph.add("Identity", [each])) for each in (*made, *graph.unread(known, made))]


def _check_real(arguments: Mapping[str, Any]) -> None:
    """Refuse complex arguments: a tensor of a plan is real."""
    if faults := [name for name, leaf in arguments.items() if is_complex(leaf)]:
        hint = "let the function take the real and the imaginary part, and join them with jax.lax.complex"
        raise ShardplanError(error("cannot-export", f"'{faults[0]}' holds complex numbers", hint=hint))


def _title(fn: Callable[..., Any]) -> str:
    name = str(getattr(fn, "__name__", type(fn).__name__))
    return name if name.isidentifier() else "function"
