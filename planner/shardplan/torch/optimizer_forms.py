"""Forms of torch's optimizers that do what one process does with parameters in pieces, where torch's own cannot.

Rprop is elementwise and runs on the part of each process, and so do the fused kernels of SGD and Adagrad; Adafactor
runs on one parameter after the other, whole; L-BFGS sees all parameters and gradients as one vector, whole on every
process, as is its history.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS

from shardplan.torch.parameters.between_steps import is_on_planned_mesh, keep_whole
from shardplan.torch.placements import like, whole_of

Update = Callable[..., None]
"""A functional form: lists of parameters, gradients and state, one entry for each parameter, then options."""


@functools.cache
def take_pieces() -> None:
    """From now on these optimizers take DTensors of plans."""
    for module, name, form, option in _FORMS:
        holder = importlib.import_module(f"torch.optim.{module}")
        setattr(holder, name, _planned(getattr(holder, name), form, option))
    own = LBFGS._gather_flat_grad  # noqa: SLF001 - torch has no other place for it
    LBFGS._gather_flat_grad = functools.wraps(own)(lambda optimizer: _flat_gradients(optimizer, own))  # noqa: SLF001


def _planned(own: Update, form: Callable[..., None], option: str) -> Update:
    @functools.wraps(own)
    def called(params: list[Tensor], *given: Any, **options: Any) -> None:
        if (not option or options.get(option)) and any(
            isinstance(each, DTensor) and is_on_planned_mesh(each) for each in params
        ):
            lists = [each for each in given if isinstance(each, list)]
            form(own, [params, *lists], given[len(lists) :], options)
        else:
            own(params, *given, **options)

    return called


def _local(own: Update, lists: Sequence[list[Any]], given: Sequence[Any], options: dict[str, Any]) -> None:
    """On the part of each process: it is changed in place, in parameters and state alike."""
    params = lists[0]

    def part(at: int, held: Any) -> Any:
        if not isinstance(held, DTensor):
            return held
        return held.redistribute(placements=params[at].placements).to_local() if held.ndim else held.to_local()

    parts = [[part(at, held) for at, held in enumerate(each)] for each in lists]
    own(*parts, *given, **options)
    for held, part_of_it in zip(lists, parts, strict=True):
        for at, before in enumerate(held):
            if before is None and part_of_it[at] is not None:  # state that has been made
                held[at] = like(params[at], part_of_it[at])


def _whole(own: Update, lists: Sequence[list[Any]], given: Sequence[Any], options: dict[str, Any]) -> None:
    """One parameter after the other, gathered; of what has changed, every process keeps its part."""
    for row in zip(*lists, strict=True):
        wholes = [held.full_tensor().clone() if isinstance(held, DTensor) else held for held in row]
        own(*([whole] for whole in wholes), *given, **options)
        for at, (held, whole) in enumerate(zip(row, wholes, strict=True)):
            if isinstance(held, DTensor) and at != 1:  # the gradient is as it was
                keep_whole(held, whole)


def _flat_gradients(optimizer: LBFGS, own: Callable[[LBFGS], Tensor]) -> Tensor:
    """All gradients in one plain vector. (What is added to a parameter is a plain tensor, too, and is taken.)"""
    held: list[Tensor] = optimizer._params  # noqa: SLF001 - as above
    if not any(isinstance(each, DTensor) and is_on_planned_mesh(each) for each in held):
        return own(optimizer)
    found = []
    for each in held:
        gradient = torch.zeros_like(each) if each.grad is None else each.grad
        whole = whole_of(gradient)
        found.append((torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1))
    return torch.cat(found)


_FORMS: tuple[tuple[str, str, Callable[..., None], str], ...] = (
    ("rprop", "rprop", _local, ""),
    ("sgd", "sgd", _local, "fused"),
    ("adagrad", "adagrad", _local, "fused"),
    ("_adafactor", "adafactor", _whole, ""),
)
"""Module and name of a function, the form that it takes, and the option under which it takes it."""
