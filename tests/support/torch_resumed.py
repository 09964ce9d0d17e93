"""What ranks do in the tests of training that goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch_cases import mesh_of
from torch_fused import Gated, rows

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda held: optim.AdamW(held, 1e-2),
    "AdamW in groups": lambda held: optim.AdamW(
        [
            {"params": [each for each in held if each.ndim < 2], "lr": 0.1},
            {"params": [each for each in held if each.ndim > 1]},
        ]
    ),
    "foreach Adam": lambda held: optim.Adam(held, 1e-2, amsgrad=True, foreach=True),
    "fused AdamW": lambda held: optim.AdamW(held, 1e-2, fused=True),
    "foreach SGD": lambda held: optim.SGD(held, 0.1, foreach=True),
    "SGD with momentum": lambda held: optim.SGD(held, 0.1, 0.9),
    "Adafactor": lambda held: optim.Adafactor(held, 1e-2),
    "Adagrad": lambda held: optim.Adagrad(held, 0.1),
    "RMSprop": lambda held: optim.RMSprop(held, 1e-3, momentum=0.5, centered=True),
    "L-BFGS": lambda held: optim.LBFGS(held, 0.5),
}


class Pooled(Gated):
    """With a trained layer that no result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.pooler = nn.Linear(4, 4)


def goes_on(plan: Plan, other: Plan, names: list[str], folder: Path) -> dict[str, Any]:
    """By optimizer: two steps under `plan`, then two from a checkpoint under `other`. How far the weights are from
    those of four steps under `plan`, or what is said of it."""
    return {name: _goes_on(plan, other, name, folder / name) for name in names}


def _goes_on(plan: Plan, other: Plan, name: str, folder: Path) -> float | str:
    model, optimizer = _made(plan, name)
    _steps(model, optimizer)
    try:
        shardplan.torch.save_checkpoint(folder, model, optimizer)
        again, fresh = _made(other, name)
        with torch.no_grad():
            for each in again.parameters():
                each.zero_()
        shardplan.torch.load_checkpoint(folder, again, fresh)
    except ShardplanError as problem:
        return str(problem).replace(str(folder), "FOLDER")
    _steps(model, optimizer)
    _steps(again, fresh)
    found, wanted = (shardplan.torch.full_state_dict(each) for each in (again, model))
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


def _made(plan: Plan, name: str) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = shardplan.torch.parallelize(Pooled(), plan, mesh_of(plan), strict=False)
    return model, OPTIMIZERS[name](list(model.parameters()))


def _steps(model: nn.Module, optimizer: optim.Optimizer) -> None:
    def loss() -> Any:
        optimizer.zero_grad()
        found = model(rows()).square().mean()
        found.backward()
        return found

    for _ in range(2):
        optimizer.step(loss)


def unreadable(plan: Plan, folder: Path) -> list[str]:
    """What is said of a checkpoint that is not there, of a folder without one, of one without state of an optimizer, of
    weights of other shapes and names, of another optimizer, and of one of another model."""
    model, optimizer = _made(plan, "AdamW")
    said = [_told(folder / "nowhere", model), _told(folder, model)]
    shardplan.torch.save_checkpoint(folder / "model", model)
    said.append(_told(folder / "model", model, optimizer))
    model.pooler.weight = nn.Parameter(torch.zeros(3, 3))
    model.register_parameter("gain", nn.Parameter(torch.ones(2)))
    said.append(_told(folder / "model", model))
    model, optimizer = _made(plan, "AdamW")
    _steps(model, optimizer)
    shardplan.torch.save_checkpoint(folder / "both", model, optimizer)
    other = OPTIMIZERS["SGD with momentum"](list(model.parameters()))
    said += [_told(folder / "both", model, other), _told(folder / "both", model, optim.AdamW(Pooled().parameters()))]
    assert not other.state
    return [text.replace(str(folder), "FOLDER") for text in said]


def _told(folder: Path, model: nn.Module, *optimizer: optim.Optimizer) -> str:
    try:
        shardplan.torch.load_checkpoint(folder, model, *optimizer)
    except ShardplanError as problem:
        return str(problem)
    return "nothing"
