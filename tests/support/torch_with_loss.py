"""A model and its loss as one module under a plan that has both."""

from __future__ import annotations

import itertools
import warnings

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


def timed(plan: Plan) -> list[list[str]]:
    """The phases of measured steps with a loss that takes targets: in a mapping, of which microbatches are cut, or
    behind the arguments; and the largest difference of gradients that those steps leave, as a text."""
    found = []
    for how in ("name", "place"):
        (model, ids), (reference, _) = seeded(), seeded()
        shardplan.torch.parallelize(model, plan, mesh_of(plan))
        if how == "place" and plan.model["microbatches"] > 1:
            continue
        batch = {"input_ids": ids, "targets": ids.roll(-1, 1)}
        given = batch if how == "name" else tuple(batch.values())
        steps = shardplan.torch.compare_timeline(model, given, loss=next_token, steps=1)
        next_token(reference(ids), ids.roll(-1, 1)).backward()
        found.append([*(phase.name for phase in steps.phases), f"{_gradient_error(model, reference):.3f}"])
    return found


def warned(plan: Plan) -> list[int]:
    """How often it is warned of a plan for inference: in training, again, without gradients, in evaluation; as a
    graph in training, and in evaluation."""
    counts = []
    for mode, how in itertools.product(("eager", "graph"), ("training", "no gradients", "evaluation")):
        model, ids = seeded()
        model.train(how != "evaluation")
        if mode == "eager":
            model = shardplan.torch.parallelize(model, plan, mesh_of(plan))
        else:
            model = shardplan.torch.parallelize_exported(model, (ids,), plan, mesh_of(plan))
        with warnings.catch_warnings(record=True) as said, torch.set_grad_enabled(how != "no gradients"):
            warnings.simplefilter("always")
            model(ids)
            model(ids)
        counts.append(sum("the plan is for inference" in str(each.message) for each in said))
    return counts


def classes() -> tuple[torch.nn.Module, tuple[Tensor, Tensor]]:
    """A classifier with one target for every row."""
    torch.manual_seed(0)
    return torch.nn.Linear(16, 8), (torch.randn(8, 16), torch.arange(8))


def strict_step(plan: Plan, reduction: str, called: str) -> tuple[float, float, int]:
    """Errors of the loss and of gradients of `classes`, and the number of kinds of collectives that the forward pass
    sent otherwise than planned. `called`: eager or as a graph."""
    (model, batch), (reference, _) = classes(), classes()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits, target, reduction=reduction)

    whole = shardplan.torch.with_loss(model, loss)
    if called == "graph":
        run = shardplan.torch.parallelize_exported(whole, batch, plan, mesh_of(plan))
    else:
        run = shardplan.torch.parallelize(whole, plan, mesh_of(plan))
    with shardplan.torch.count_comms(run) as comms:
        made = run(*batch)
        made.backward()
    wanted = loss(reference(batch[0]), batch[1])
    wanted.backward()
    worst = max(
        float((dict(reference.named_parameters())[name].grad - whole_of(each.grad)).abs().max())
        for name, each in ((name.split(".")[-1], each) for name, each in run.named_parameters())
    )
    forward = [key for key in comms.differences if key[0] == "forward"]
    return abs(float(whole_of(made) - wanted)), worst, len(forward)


def whole_of(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def in_microbatches(plan: Plan, called: str) -> tuple[float, float]:
    """Errors of the mean loss and of gradients of a graph whose example was a whole batch, or one microbatch of it, in
    a mapping."""
    (model, ids), (reference, _) = seeded(), seeded()
    whole, batch = shardplan.torch.with_loss(model, next_token), {"input_ids": ids, "targets": ids.roll(-1, 1)}
    count = int(plan.model["microbatches"])
    one = {name: each[: len(each) // count] for name, each in batch.items()}
    run = shardplan.torch.parallelize_exported(whole, batch if called == "whole" else one, plan, mesh_of(plan))
    losses = []
    for part in shardplan.torch.microbatches(run, batch):
        losses.append(run(**part) / count)
        losses[-1].backward()
    wanted = next_token(reference(ids), ids.roll(-1, 1))
    wanted.backward()
    found = float(sum(whole_of(each.detach()) for each in losses))
    return abs(found - float(wanted)), _gradient_error(model, reference)
