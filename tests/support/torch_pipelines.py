"""What ranks do in the tests of pipelines in torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch_twins
from tiny_models import Tiny
from torch.nn import functional
from torch_cases import _loss, mesh_of

import shardplan.torch
from shardplan.plan.types import Plan


class Seen(NamedTuple):
    """What one rank saw: largest errors against one process, of losses (on the last stage) and of the gradients and
    weights that it has; how many parameters those are; `differences` of what was sent from what the stages say."""

    loss_error: float
    gradient_error: float
    weight_error: float
    parameters: int
    differences: Any


def loss(logits: Any, ids: Any) -> Any:
    """Of the next token."""
    return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def train(tiny: Tiny, plan: Plan, fused: bool = False, steps: int = 3, strict: bool = True) -> Seen:
    """Train a twin as a pipeline and beside it the same in one process."""
    model, reference = torch_twins.twin(tiny, fused=fused), torch_twins.twin(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    micro = int(plan.model["microbatches"])
    example = (ids[: len(ids) // micro],)
    pipe = shardplan.torch.pipeline(model, example, plan, mesh_of(plan), loss=loss, strict=strict)
    ours, theirs = torch.optim.AdamW(pipe.parameters(), 1e-3), torch.optim.AdamW(reference.parameters(), 1e-3)
    others = dict(reference.named_parameters(remove_duplicate=False))
    losses, gradients = [0.0], []
    for _ in range(steps):
        ours.zero_grad()
        theirs.zero_grad()
        with shardplan.torch.count_comms(pipe) as comms:
            got = pipe.step(ids, target=ids)
        expected = _loss(reference(ids), ids)
        expected.backward()
        losses += [] if got is None else [abs(got.item() - expected.item())]
        gradients += [_far(p.grad, others[name].grad) for name, p in pipe.named_parameters()]
        ours.step()
        theirs.step()
    weights = [_far(p.detach(), others[name]) for name, p in pipe.named_parameters()]
    return Seen(max(losses), max(gradients), max(weights), len(weights), dict(comms.differences))


def _far(ours: Any, other: Any) -> float:
    return float((ours.full_tensor() - other.detach()).abs().max())
