"""The loss that vocabulary-parallel logits have outside a model, beside torch's on whole ones."""

from __future__ import annotations

import itertools

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional
from torch_cases import mesh_of

import shardplan.torch
from shardplan.plan.types import Plan

SHAPES = ((8, 16), (4, 16, 8), (16,))


def compare(plan: Plan) -> list[str]:
    """What is wrong, over shapes, reductions and every pair of placements."""
    mesh, wrong = mesh_of(plan), []
    torch.manual_seed(5)
    for shape in SHAPES:
        logits = torch.randn(shape, dtype=torch.float64)
        target = torch.randint(16, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
        if len(shape) > 1:
            target.flatten()[::3] = -1
        choices = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
        for pair, reduction in itertools.product(itertools.product(choices, repeat=2), ("mean", "sum")):
            theirs = logits.clone().requires_grad_()
            given = distribute_tensor(logits.clone(), mesh, list(pair)).requires_grad_()
            loss = shardplan.torch.cross_entropy(given, target, ignore_index=-1, reduction=reduction)
            wanted = functional.cross_entropy(theirs, target, ignore_index=-1, reduction=reduction)
            loss.backward()
            wanted.backward()
            if not (torch.allclose(loss, wanted) and torch.allclose(given.grad.full_tensor(), theirs.grad)):
                wrong.append(f"{shape} {pair} {reduction}")
    return wrong


def sent(plan: Plan) -> int:
    """The largest number of elements that a collective takes, of logits whose classes are split over both axes."""
    mesh = mesh_of(plan)
    logits = distribute_tensor(torch.randn(8, 64, requires_grad=True), mesh, [Shard(1), Shard(1)])
    largest = [0]

    class Watch(CommDebugMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "c10d_functional" in str(func) and "wait" not in str(func):
                largest[0] = max(largest[0], args[0].numel())
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Watch():
        shardplan.torch.cross_entropy(logits, torch.zeros(8, dtype=torch.long)).backward()
    return largest[0]
