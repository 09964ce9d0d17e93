"""A model and its loss as one module under a plan that has both."""

from __future__ import annotations

import torch
import torch_twins
from tiny_models import tiny_gpt
from torch import Tensor
from torch.nn import functional
from torch_cases import _gradient_error, mesh_of

import shardplan.torch
from shardplan.plan.types import Plan


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def seeded() -> tuple[torch.nn.Module, Tensor]:
    return torch_twins.twin(tiny_gpt()), torch.tensor(tiny_gpt().inputs["input_ids"])


def step(plan: Plan, called: str) -> tuple[float, float, list[str], int]:
    """Errors of the loss and of gradients, weights of the plan that the model has not, and the number of kinds of
    collectives that the forward pass sent otherwise than planned. `called`: by place or by name."""
    (model, ids), (reference, _) = seeded(), seeded()
    whole = shardplan.torch.with_loss(model, next_token)
    shardplan.torch.parallelize(whole, plan, mesh_of(plan))
    batch = {"input_ids": ids, "targets": ids.roll(-1, 1)}
    given = shardplan.torch.inputs(plan, mesh_of(plan), batch)
    with shardplan.torch.count_comms(whole) as comms:
        loss = whole(*given.values()) if called == "place" else whole(**given)
        loss.backward()
    wanted = next_token(reference(ids), ids.roll(-1, 1))
    wanted.backward()
    names = {tensor.checkpoint for tensor in plan.tensors if tensor.role == "parameter"}
    others = sorted(names - {name for name, _ in [*model.named_parameters(), *model.named_buffers()]})
    forward = [key for key in comms.differences if key[0] == "forward"]
    return abs(float(loss.full_tensor() - wanted)), _gradient_error(model, reference), others, len(forward)
