"""Hooks that a program has put on the gradients of its parameters, taken over by the DTensors in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.placements import whole_of, wrap
from shardplan.torch.process_groups import ProcessGroups

Hook = Callable[[Tensor], Tensor | None]


def refuse_hooks(name: str, tensor: Tensor, *, in_parts: bool) -> None:
    """Raises `ShardplanError` (`hooked-parameter`) for a parameter with hooks that no DTensor can have: those that are
    called when a gradient has been added, which step an optimizer of the parameters that there were, and any on a
    weight that is stored in parts."""
    if tensor._post_accumulate_grad_hooks:  # noqa: SLF001 - there is no public name
        summary = f"parameter '{name}' has a hook that is called when its gradient has been added"
        hint = "register it on the parameters of what parallelize returns, and make optimizers of these"
        raise ShardplanError(error("hooked-parameter", summary, hint=hint))
    if in_parts and tensor._backward_hooks:  # noqa: SLF001 - as above
        summary = f"parameter '{name}' has a hook on its gradient and is kept in parts, each with its own gradient"
        hint = "change the gradient after backward, or keep the parameter on one mesh axis: --pin or constraints"
        raise ShardplanError(error("hooked-parameter", summary, hint=hint))


def refuse_hooks_of_several(model: nn.Module, stages: Mapping[str, Sequence[int]]) -> None:
    """Raises `ShardplanError` (`hooked-parameter`) for a parameter with a hook of which several stages (by name in
    `stages`) have a gradient each, which are summed after the hook would have been called."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter._backward_hooks and len(stages.get(name, ())) > 1:  # noqa: SLF001 - as above
            summary = (
                f"parameter '{name}' has a hook on its gradient and several stages, which each compute a part of it"
            )
            hint = "change the gradient after the step's backward passes, or untie the weights"
            raise ShardplanError(error("hooked-parameter", summary, hint=hint))


def take_over_hooks(before: Tensor, after: nn.Parameter, layout: Layout, groups: ProcessGroups) -> None:
    """Let `after`, a DTensor in `layout`, have the hooks of `before`. Each is given the whole gradient, as it expects,
    which is gathered for it."""
    for hook in (before._backward_hooks or {}).values():  # noqa: SLF001 - as above
        after.register_hook(_on_whole(hook, layout, groups))


def _on_whole(hook: Hook, layout: Layout, groups: ProcessGroups) -> Hook:
    def run(gradient: DTensor) -> Tensor | None:
        made = hook(gradient.full_tensor())
        if made is None:
            return None
        whole = whole_of(made)
        return wrap(shard_of_whole(whole, layout.forward, groups).contiguous(), layout, whole.shape, groups)

    return run
