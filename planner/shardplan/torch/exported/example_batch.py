"""The example of a graph that runs under a plan of several microbatches: one of them, as graphs have fixed shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.argument_paths import named_tensors, with_tensors
from shardplan.torch.arguments import match_inputs
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.with_loss import argument_names


def first_microbatch(
    model: nn.Module, applied: AppliedPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a whole step, cut to those of one microbatch; those of one microbatch as they are.

    Inputs of the plan are cut where they have as many rows as the step, and with them other tensors of so many rows.
    """
    count = microbatches_of(applied.plan)
    if count == 1:
        return args, dict(kwargs)
    names = argument_names(model, args, kwargs)
    given = [*zip(names, args, strict=True), *kwargs.items()]
    tensors = dict(named_tensors(given))
    planned = match_inputs(list(tensors), applied.inputs)
    whole = {
        tensors[name].shape[0]
        for name, decision in planned.items()
        if decision.shape and tuple(tensors[name].shape) == (count * decision.shape[0], *decision.shape[1:])
    }

    def cut(name: str, leaf: Any) -> Any:
        is_whole = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] in whole
        fits = name not in planned or leaf.shape != planned[name].shape
        return leaf[: leaf.shape[0] // count] if is_whole and fits else leaf

    made = [with_tensors(name, value, cut) for name, value in given]
    return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))
