"""State of optimizers as checkpoints have it: by the names of the module without a plan, of fused weights whole.

State of the shape of its weight (moments, momenta) is joined as the weight is. What an optimizer makes of a part by
itself (rows and columns of Adafactor) is no part of what it would make of the whole: it stays under the names of the
parts, and only a plan that keeps the weight in the same parts can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.torch.checkpoint_blocks import blocks_in, blocks_of, origins_of
from shardplan.torch.parameters.fused import Parts, part_name, part_names
from shardplan.torch.state_dicts import stored_by_name

State = Mapping[str, Any]
"""What an optimizer keeps of one parameter, by its own names."""


@dataclass(frozen=True)
class Weight:
    """A weight of an optimizer: its `names` in the module without a plan, several if it is tied; what it is stored in,
    and the names of that; `parts` if it is fused and kept in parts."""

    names: tuple[str, ...]
    stored: tuple[Tensor, ...]
    stored_names: tuple[str, ...]
    parts: Parts | None


def weights_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Weight]:
    """The weights of `optimizer`. Raises `ShardplanError` (`foreign-parameter`, `refused-optimizer`)."""
    if isinstance(optimizer, torch.optim.LBFGS):
        summary = "the state of torch.optim.LBFGS is of all weights as one vector, and cannot be in a checkpoint"
        raise ShardplanError(error("refused-optimizer", summary, hint="save the model without it"))
    found: dict[int, Weight] = {}
    for name, stored in stored_by_name(model):
        *tensors, parts = stored if isinstance(stored, tuple) else (stored, None)
        inner = (name,) if parts is None else tuple(part_names(name, parts))
        known = found.get(id(tensors[0]), Weight((), tuple(tensors), inner, parts))
        found[id(tensors[0])] = Weight((*known.names, name), known.stored, known.stored_names, parts)
    asked = {id(each) for group in optimizer.param_groups for each in group["params"]}
    kept = [weight for weight in found.values() if asked & {*map(id, weight.stored)}]
    known_ids = {id(each) for weight in kept for each in weight.stored}
    foreign = [each for group in optimizer.param_groups for each in group["params"] if id(each) not in known_ids]
    if foreign:
        summary = f"the optimizer has a parameter of shape {list(foreign[0].shape)} that is none of the model's"
        hint = "make the optimizer of model.parameters(), after the plan has been applied"
        raise ShardplanError(error("foreign-parameter", summary, hint=hint))
    return kept


def state_by_name(optimizer: torch.optim.Optimizer, weights: Sequence[Weight], mesh: Mesh) -> dict[str, State]:
    """The state of these weights of `optimizer` as a checkpoint has it, its tensors as blocks of what this process
    holds."""
    state: dict[str, State] = {}
    for weight in weights:
        held = [optimizer.state.get(each, {}) for each in weight.stored]
        whole = whole_state(weight, held, mesh)
        if whole is None:
            of_parts = zip(weight.stored_names, held, strict=True)
            state |= {name: blocks_in(each, mesh) for name, each in of_parts if each}
        elif whole:
            state[weight.names[0]] = whole
    return state


def groups_of(optimizer: torch.optim.Optimizer, weights: Sequence[Weight]) -> list[dict[str, Any]]:
    """The groups of `optimizer`, whose parameters are these weights, as a checkpoint has them."""
    called = {id(each): weight.names[0] for weight in weights for each in weight.stored}
    return [
        {**group, "params": list(dict.fromkeys(called[id(each)] for each in group["params"]))}
        for group in optimizer.param_groups
    ]


def whole_state(weight: Weight, held: Sequence[State], mesh: Mesh) -> State | None:
    """The state of a weight, of what an optimizer keeps of its parts; None if that cannot be put together."""
    if weight.parts is None:
        return blocks_in(held[0], mesh)  # type: ignore[no-any-return]
    if any(each.keys() != held[0].keys() for each in held):
        return None
    found: dict[str, Any] = {}
    for key in held[0]:
        values = [each[key] for each in held]
        if all(
            isinstance(value, DTensor) and value.shape == stored.shape
            for value, stored in zip(values, weight.stored, strict=True)
        ):
            found[key] = blocks_of((*values, weight.parts), mesh)
        elif all(_is_number(value) and value == values[0] for value in values):
            found[key] = values[0]
        else:
            return None
    return found


def _is_number(value: Any) -> bool:
    return value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, (int, float, type(None)))


def make_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Lets `optimizer` make state of these parameters, and of no others: by a step with gradients of zero at a rate of
    zero, after which weights and gradients are as before."""
    asked, groups = {*map(id, parameters)}, optimizer.param_groups
    before = [(each, each.grad) for group in groups for each in group["params"]]
    rates = [(group, group["lr"]) for group in groups if "lr" in group]
    try:
        for each, _ in before:
            each.grad = torch.zeros_like(each) if id(each) in asked else None
        for group, rate in rates:
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
        optimizer.step()
    finally:
        for each, gradient in before:
            each.grad = gradient
        for group, rate in rates:
            group["lr"] = rate


def saved_names(weight: Weight, saved: Mapping[str, Any]) -> tuple[str, ...]:
    """The names under which a checkpoint has the state of a weight; none if it has none of it.

    Raises `ShardplanError` (`state-in-parts`) if it has it in other parts than the plan.
    """
    whole = next((name for name in weight.names if name in saved), None)
    if whole is not None:
        return (whole,)
    if any(part_name(name, 0) in saved for name in weight.names):
        if weight.parts is None or not all(name in saved for name in weight.stored_names):
            raise ShardplanError(_in_other_parts(weight))
        return weight.stored_names
    return ()


def target_state(
    optimizer: torch.optim.Optimizer, weight: Weight, names: Sequence[str], mesh: Mesh
) -> dict[str, State]:
    """What the state of a weight is to be read into, by the names of the checkpoint. Raises `ShardplanError`
    (`state-in-parts`)."""
    held = [optimizer.state.get(each, {}) for each in weight.stored]
    if tuple(names) == weight.stored_names:
        return {name: blocks_in(each, mesh) for name, each in zip(names, held, strict=True)}
    whole = whole_state(weight, held, mesh)
    if whole is None:
        raise ShardplanError(_in_other_parts(weight))
    return {names[0]: whole}


def state_that_was_read(weight: Weight, read: Mapping[str, State]) -> Iterator[tuple[Tensor, State]]:
    """The parameters that a weight is stored in, each with what has been read for it."""
    for number, (inner, stored) in enumerate(zip(weight.stored_names, weight.stored, strict=True)):
        name = next((name for name in (inner, *weight.names) if name in read), None)
        if name is not None:
            yield stored, origins_of(read[name], number)


def _in_other_parts(weight: Weight) -> Diagnostic:
    summary = f"the state of '{weight.names[0]}' cannot be read: the optimizer sees each part of this weight by itself"
    detail = "plans keep a fused weight whole, or in parts; what was saved is of other parts than this plan's"
    hint = "load it under a plan that keeps the weight as the saved one did, or the weights alone, without an optimizer"
    return error("state-in-parts", summary, detail=detail, hint=hint)


def loaded(
    optimizer: torch.optim.Optimizer,
    weights: Sequence[Weight],
    states: Mapping[Tensor, State],
    groups: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What `optimizer.load_state_dict` takes: `states` by parameter, and the options of those of the saved `groups`
    that have the same weights."""
    names = {id(each): {*weight.names, *weight.stored_names} for weight in weights for each in weight.stored}
    numbers: dict[int, int] = {}
    made = []
    for group in optimizer.param_groups:
        own = {name for each in group["params"] for name in names[id(each)]}
        found: Mapping[str, Any] = next((saved for saved in groups if own & {*saved["params"]}), {})
        for each in group["params"]:
            numbers[id(each)] = len(numbers)
        made.append({**group, **found, "params": [numbers[id(each)] for each in group["params"]]})
    return {"state": {numbers[id(each)]: state for each, state in states.items()}, "param_groups": made}
