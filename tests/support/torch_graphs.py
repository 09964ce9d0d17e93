"""A program of what is hard to write into a graph, and what ranks do with it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch_cases import _gradient_error, mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan


class Doubled(torch.autograd.Function):
    """Whose backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient * 2


class Hard(nn.Module):
    """Views changed in place, norms of a dim that may be split, elements of each row by number."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(8, 16), nn.Linear(16, 8), kind

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        h = self.first(x)
        h[:, 1:3] *= 0.5
        h[:, 4] = h[:, 5] * 2
        h.transpose(0, 1)[0].add_(1.0)
        rows = h / h.norm(dim=-1, keepdim=True)
        picked = self.second(rows)[torch.arange(len(x), device=x.device)[:, None], chosen]
        if self.kind == "own function":
            picked = Doubled.apply(picked)
        if self.kind == "hook":
            picked.register_hook(lambda gradient: gradient * 2)
        return picked[picked > 0].sum() if self.kind == "shape of data" else picked.square().sum()


def seeded(kind: str = "") -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model and a batch, the same in every process."""
    torch.manual_seed(0)
    return Hard(kind), (torch.randn(4, 8, 8), torch.randint(8, (4, 2)))


def train(plan: Plan) -> tuple[float, float]:
    """Errors of the loss and the gradients of a graph under a plan."""
    (model, batch), (reference, _) = seeded(), seeded()
    graph = shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=False, ignore=("*",))
    ours, theirs = graph(*batch), reference(*batch)
    ours.backward()
    theirs.backward()
    return abs(ours.full_tensor().item() - theirs.item()), _gradient_error(graph, reference)


def told(plan: Plan, kind: str) -> str:
    """What is said of a model that a graph cannot hold, or not all of."""
    model, batch = seeded(kind)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            graph = shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=False, ignore=("*",))
            if kind == "gradient of an input":
                graph(batch[0].requires_grad_(), batch[1])
        except ShardplanError as problem:
            return str(problem)
    return "\n".join(str(each.message) for each in said)
