"""What torch's optimizers meet under a plan: those that cannot update parameters in pieces are refused at their step.

Those that update every element by itself, or by whole matrices that torch gathers, run as they are; some have forms
of their own (`optimizer_forms`). A parameter outside of the model that results are computed with (a temperature of the
loss) is a plain tensor, whose gradient torch gives as a `DTensor`: at the step it is whole.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import optim
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardplan.errors import ShardplanError, error
from shardplan.torch.parameters.between_steps import is_on_planned_mesh

_ELSE = "give its embeddings sparse=False, and use Adam, AdamW, Adagrad or any other optimizer of torch"
_REFUSED: Mapping[type[Optimizer], tuple[str, str]] = {
    optim.SparseAdam: ("it needs sparse gradients, and those under a plan are dense", _ELSE),
}


@functools.cache
def watch_optimizers() -> None:
    """From now on a step of an optimizer over parameters on meshes of plans raises `ShardplanError`
    (`refused-optimizer`) if it would fail or, worse, update them wrongly, and takes gradients of plain parameters there
    whole."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    del args, kwargs
    held = [each for group in optimizer.param_groups for each in group["params"]]
    for each in held:
        if not isinstance(each, DTensor) and _is_planned(each.grad):
            each.grad = each.grad.full_tensor()
    said = _refusal(optimizer)
    if said is None or not any(map(_is_planned, held)):
        return
    why, hint = said
    summary = f"torch.optim.{type(optimizer).__name__} cannot run under a plan: {why}"
    raise ShardplanError(error("refused-optimizer", summary, hint=hint))


def _refusal(optimizer: Optimizer) -> tuple[str, str] | None:
    """Why an optimizer cannot update parameters in pieces, and what helps."""
    for kind, said in _REFUSED.items():
        if isinstance(optimizer, kind):
            return said
    return None


def _is_planned(parameter: Any) -> bool:
    return isinstance(parameter, DTensor) and is_on_planned_mesh(parameter)
