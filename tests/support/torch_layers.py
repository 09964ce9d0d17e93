"""A few layers with biases, and what ranks do with them in tests of passes that are not trained on, of autocast, and of
layers that are changed after the plan has been applied."""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch
from forced_plans import forced_plan
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan
from shardplan.torch.planning.plan import read_module

SHAPE = (8, 4, 8)


class Layers(nn.Module):
    """Layers that save their results for backward; `dtypes`: of what each layer with a bias gave last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.up, self.down = nn.Conv1d(4, 8, 3, padding=1), nn.Linear(64, 32), nn.Linear(32, 16)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        """Shares of 16 classes."""
        made = self.conv(x)
        up = self.up(made.tanh().flatten(1))
        down = torch.addmm(self.down.bias, up.relu(), self.down.weight.t())
        self.dtypes = [each.dtype for each in (made, up, down)]
        return down.softmax(-1)


class Numbers(Layers):
    """The same, with one number as result, as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        """The mean or the sum of squares."""
        squares = super().forward(x).square()
        return squares.mean() if self.how == "mean" else squares.sum()


@functools.cache
def plan_of(recipe: str) -> Plan:
    """The plan of a recipe on 2x2."""
    return forced_plan(read_module(Layers(), (torch.ones(SHAPE),)), "2x2", recipe=recipe)


def _under(plan: Plan, mode: str, how: str = "") -> tuple[Any, nn.Module]:
    """The layers under a plan, and those of one process; with one number as result if `how` says which."""
    model, reference = (Numbers(how) if how else Layers() for _ in range(2))
    mesh = mesh_of(plan)
    if mode == "exported":
        return shardplan.torch.parallelize_exported(model, (torch.ones(SHAPE),), plan, mesh), reference
    return shardplan.torch.parallelize(model, plan, mesh), reference


def number(plan: Plan, mode: str, how: str) -> tuple[float, float, list[Any]]:
    """Errors of a number that the model returns, and of the gradient of a bias; what was not sent as planned."""
    model, reference = _under(plan, mode, how)
    x = torch.linspace(-1, 1, 256).reshape(SHAPE)
    with shardplan.torch.count_comms(model) as comms:
        results = [model(x)]
        results[0].backward()
    results.append(reference(x))
    results[1].backward()
    slopes = [_whole(each.get_parameter("up.bias").grad) for each in (model, reference)]
    errors = [((_whole(one) - other).abs().max() / other.abs().max()).item() for one, other in (results, slopes)]
    return *errors, [*comms.differences]


def discarded(plan: Plan, mode: str) -> list[int]:
    """How many tensors there are after two, four and six forward passes whose results nobody keeps."""
    model, _ = _under(plan, mode)
    found = []
    for step in range(6):
        model(torch.ones(SHAPE) * step)
        if step % 2:
            gc.collect()
            found.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))
    return found


def autocast(plan: Plan, mode: str) -> tuple[list[torch.dtype], list[torch.dtype], float, float]:
    """Dtypes under autocast to bfloat16 and in one process; errors of the result and of a gradient of a bias."""
    model, reference = _under(plan, mode)
    x = torch.linspace(-1, 1, 256).reshape(SHAPE)
    results, slopes = [], []
    for each in (model, reference):
        with torch.autocast("cpu", torch.bfloat16):
            results.append(_whole(each(x)))
        results[-1][:, 0].sum().backward()
        slopes.append(_whole(each.get_parameter("up.bias").grad))
    errors = [((one - other).abs().max() / other.abs().max()).item() for one, other in (results, slopes)]
    ours = [] if mode == "exported" else model.dtypes
    return [*ours, results[0].dtype], [*reference.dtypes[: len(ours)], results[1].dtype], *errors


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def computed(plan: Plan, what: str) -> tuple[str, float]:
    """What is said of a weight that is computed from others since the plan was applied; and the error of the result
    when it is a parameter again."""
    model, reference = _under(plan, "eager")
    with torch.no_grad():
        for each in (model, reference):
            if what == "pruned":
                prune.l1_unstructured(each.up, "weight", amount=0.5)
            else:
                parametrizations.weight_norm(each.up)
        try:
            model(torch.ones(SHAPE))
            said = "nothing"
        except ShardplanError as problem:
            said = str(problem)
        for each in (model, reference):
            if what == "pruned":
                prune.remove(each.up, "weight")
            else:
                parametrize.remove_parametrizations(each.up, "weight")
        apart = _whole(model(torch.ones(SHAPE))) - reference(torch.ones(SHAPE))
    return said, apart.abs().max().item()
