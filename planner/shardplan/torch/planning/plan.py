"""`shardplan.torch.plan`: from a module and a batch to a plan in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from shardplan.api import make_plan
from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.model.read import read_model_bytes
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.torch.applied_plan import refuse_parallel
from shardplan.torch.argument_paths import Inputs, called_with
from shardplan.torch.planning.onnx_program import onnx_bytes, weights_of
from shardplan.torch.planning.refusals import SHAPES_OF_DATA
from shardplan.torch.with_loss import WithLoss, with_loss


def plan(
    model: nn.Module,
    example_inputs: Inputs,
    mesh: str | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    **asked: Any,
) -> Plan:
    """The fastest plan for `model` called with `example_inputs`, the batch of a whole step, ready for `parallelize`.

    `example_inputs`: arguments by place (a tuple, or one tensor) or by name (a mapping); only shapes matter, so model
    and inputs may be on the meta device. `loss(result, target, ...)`: a loss outside of the model, whose targets follow
    the model's arguments; apply the plan to `with_loss(model, loss)`. `mesh`, `asked`: as in `shardplan.make_plan`
    (`cluster`, `mode`, `memory_limit`, `stages`, ...).

    >>> plan = shardplan.torch.plan(model, (ids, targets), "2x2", loss=functional.cross_entropy)

    Raises `ShardplanError` as `make_plan`, and `wrong-inputs`, `cannot-export`, `missing-package`, `loss-parameters`.
    """
    trains = asked.get("mode", "training") == "training"
    return make_plan(read_module(model, example_inputs, loss=loss, trains=trains), mesh, **asked)


def read_module(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    loss: Callable[..., Any] | None = None,
    name: str = "",
    trains: bool = True,
) -> Model:
    """What plans are made of, read from a module. `trains`: its batch norms that are in training take the statistics of
    their batch. Raises `ShardplanError` (`wrong-inputs`, `cannot-export`, `missing-package`)."""
    refuse_parallel(model)
    whole = model if loss is None else with_loss(model, loss)
    args, kwargs = called_with(example_inputs)
    inner = whole.model if isinstance(whole, WithLoss) else whole
    _check_call(whole, args, kwargs)
    called, weights = name or type(inner).__name__, weights_of(whole)
    try:
        return read_model_bytes(onnx_bytes(whole, args, kwargs, trains=trains), called, weights)
    except ShardplanError as problem:
        if not _is_of_shapes(problem):
            raise
    try:  # shapes that only values decide
        return read_model_bytes(onnx_bytes(whole, args, kwargs, by_example=True, trains=trains), called, weights)
    except ShardplanError as problem:
        raise (ShardplanError(_of_shapes(whole)) if _is_of_shapes(problem) else problem) from problem


def _check_call(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises `ShardplanError` (`wrong-inputs`) for arguments with which a module cannot be called."""
    targets: tuple[str, ...] = ()
    if isinstance(model, WithLoss):
        targets = model.targets
        args, kwargs, _ = model.divided(args, kwargs)
        model = model.model
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of a function that Python knows nothing of
        return
    try:
        if not model._forward_pre_hooks:  # noqa: SLF001 - they may change the arguments
            signature.bind(*args, **kwargs)
    except TypeError as problem:
        detail = f"{type(model).__name__}.forward takes {', '.join(signature.parameters) or 'nothing'}"
        hint = "targets of a loss outside of the model follow its arguments: give that loss as loss="
        if targets:
            detail = f"{detail}; the loss takes {', '.join(targets)}"
            hint = "give the model's arguments and then the targets of the loss, or a mapping of names"
        summary = f"the model cannot be called with the example inputs: {problem}"
        raise ShardplanError(error("wrong-inputs", summary, detail=detail, hint=hint)) from None


def _of_shapes(model: nn.Module) -> Diagnostic:
    """Why a model has sizes that nobody knows: a lookup with `max_norm` changes each of its rows once."""
    bounded = [name for name, module in model.named_modules() if getattr(module, "max_norm", None) is not None]
    if not bounded:
        return SHAPES_OF_DATA
    summary = f"no plan can be made of the lookup '{bounded[0]}': it changes the rows of its table (max_norm)"
    hint = "plan it without max_norm, and bound the table between steps: with shardplan.torch.whole(model, name)"
    return error("cannot-export", summary, hint=hint)


def _is_of_shapes(problem: ShardplanError) -> bool:
    return any(each.code == "unresolved-shape" for each in problem.diagnostics)
