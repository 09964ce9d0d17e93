"""The arguments of a planned function: names of their leaves, and whether a plan was made for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import jax
import onnx

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.jax.named_shardings import path_name
from shardplan.jax.planning.graph import onnx_type
from shardplan.jax.planning.jaxprs import abstract
from shardplan.plan.orientation import checkpoint_shape
from shardplan.plan.types import Plan

Role = Literal["parameter", "input"]
_AGAIN = "call it with what was planned, or plan again: shardplan.jax.plan(fn, params, batch)"
_LONGER = {"float": "float32", "double": "float64"}
_SHOWN = 40


def weights_of(params: Any) -> dict[str, Any]:
    """The leaves of the parameters by their paths. Raises `ShardplanError` (`cannot-export`) for what is no array."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {name: _abstract(name, leaf) for name, leaf in ((path_name(path), leaf) for path, leaf in leaves)}


def inputs_of(fn: Callable[..., Any], batch: tuple[Any, ...], weights: Iterable[str] = ()) -> dict[str, Any]:
    """The leaves of the batch by their names. `weights`: names of parameters, which no input gets."""
    taken = frozenset(weights)
    return {full if short in taken else short: leaf for short, full, leaf in leaves_of(fn, batch)}


def leaves_of(fn: Callable[..., Any], batch: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    """Each leaf of the batch with its short name, and with the longer name that it gets where a parameter has the short
    one: the name of the argument of `fn` comes before it. Raises `ShardplanError` (`cannot-export`) for what is no
    array."""
    try:
        parameters = list(inspect.signature(fn).parameters)[1:]
    except (TypeError, ValueError):
        parameters = []
    alone = len(batch) == 1 and isinstance(batch[0], dict)
    for place, each in enumerate(batch):
        argument = parameters[place] if place < len(parameters) else f"input{place}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(each)[0]:
            parts = [path_name(path)] if path else []
            full = ".".join([argument, *parts]) if alone else ".".join(["input", argument, *parts])
            short = ".".join(parts if alone else [argument, *parts])
            yield short, full, _abstract(short, leaf)


def _abstract(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the leaf of that name."""
    try:
        return abstract(leaf)
    except TypeError:
        text = repr(leaf)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
        hint = "params and batch hold arrays: give other values to the function by functools.partial or a closure"
        summary = f"'{name}' is no array: {type(leaf).__name__} {shown}"
        raise ShardplanError(error("cannot-export", summary, hint=hint)) from None


def in_order(fn: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in the order of the parameters of `fn`. Raises `TypeError` as the call would, and
    `ShardplanError` (`bad-argument`) for arguments that have no place."""
    if not named:
        return given
    bound = inspect.signature(fn).bind(*given, **named)
    if bound.kwargs:
        summary = f"'{next(iter(bound.kwargs))}' is given by name, and has no place after the other arguments"
        hint = "plan and call a function that takes the parameters and then the batch, in places"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    return bound.args


def mismatches(plan: Plan, role: Role, given: Mapping[str, Any]) -> list[Diagnostic]:
    """What of the planned weights or inputs is missing in `given` (the leaves by their names), or has another shape or
    dtype. An input may also be that of one of the plan's microbatches."""
    parts = plan.model.get("microbatches", 1) if role == "input" else 1
    assert isinstance(parts, int)
    found: list[Diagnostic] = []
    for tensor in plan.tensors:
        if tensor.role != role:
            continue
        name = tensor.checkpoint or tensor.name
        if name not in given:
            what = "weight" if role == "parameter" else role
            summary = f"the plan has the {what} '{name}', which is not among the arguments"
            found.append(error(f"missing-{role}", summary, hint=_AGAIN))
            continue
        planned, shape = checkpoint_shape(tensor.shape, tensor.perm), tuple(given[name].shape)
        if not _fits(shape, planned, parts):
            each = f", or one of {parts} parts of dim 0" if parts > 1 else ""
            summary = f"'{name}' has shape {list(shape)}, the plan has {list(planned)}{each}"
            found.append(error("wrong-shape", summary, hint=_AGAIN))
        dtype = onnx.TensorProto.DataType.Name(onnx_type(given[name].dtype)).lower()
        if dtype != tensor.dtype:
            ours, theirs = (_LONGER.get(each, each) for each in (dtype, tensor.dtype))
            found.append(error("wrong-dtype", f"'{name}' holds {ours}, the plan has {theirs}", hint=_AGAIN))
    return found


def _fits(shape: tuple[int, ...], planned: tuple[int, ...], parts: int) -> bool:
    """Whether a shape is as planned, or that of one of so many microbatches, which divide the first dim."""
    return shape == planned or (bool(shape) and (shape[0] * parts, *shape[1:]) == planned)
