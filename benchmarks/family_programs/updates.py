"""Loops that change weights in ways of their own: averages of them, rates and norms by layer, updates in backward."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Batch = tuple[Tensor, ...]


def sgd(model: nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def step_of(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def passed(model: nn.Module, batch: Batch) -> Tensor:
    """The loss, whose gradients and no others the weights have now."""
    model.zero_grad()
    loss: Tensor = model(*batch)
    loss.backward()
    return loss


def averaged(model: nn.Module, batch: Batch) -> list[Tensor]:
    """A moving average of the weights beside the model, which is what is evaluated."""
    optimizer, decay = sgd(model), 0.5
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    seen = []
    for _ in range(2):
        seen.append(step_of(optimizer, model(*batch)))
        with torch.no_grad():
            for name, each in model.named_parameters():
                shadow[name].lerp_(each, 1 - decay)
    kept = {name: each.detach().clone() for name, each in model.named_parameters()}
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(shadow[name])
        seen.append(model(*batch))
        for name, each in model.named_parameters():
            each.copy_(kept[name])
    return seen


def copied(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The same by torch's own copy of the whole model, which is called in its place."""
    optimizer, seen = sgd(model), []
    follower = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    for _ in range(2):
        seen.append(step_of(optimizer, model(*batch)))
        follower.update_parameters(model)
    follower.eval()
    with torch.no_grad():
        seen.append(follower(*batch))
    return [*seen, model(*batch).detach()]


def clipped_groups(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Rates that fall layer by layer, no decay of biases and norms, each group clipped by itself, biases by value."""
    named = list(model.named_parameters())
    rates = [0.05 * 0.8**number for number in range(len(named))]
    groups = [
        {"params": [each], "lr": rate, "weight_decay": 0.1 if each.ndim > 1 else 0.0}
        for (_, each), rate in zip(named, rates, strict=True)
    ]
    optimizer, seen = torch.optim.AdamW(groups, eps=1e-3), []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        half = len(groups) // 2
        norms = [
            clip_grad_norm_([each for group in some for each in group["params"]], 0.1, norm_type=kind)
            for some, kind in ((optimizer.param_groups[:half], 2.0), (optimizer.param_groups[half:], float("inf")))
        ]
        clip_grad_value_([each for _, each in named if each.ndim == 1], 0.01)
        optimizer.step()
        schedule.step()
        seen += [loss.detach(), *norms, get_total_norm([each.grad for _, each in named])]
    return seen


def schedule_free(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Weights between two sequences, one of them an average; evaluation takes the average (schedule-free SGD)."""
    base = [each.detach().clone() for each in model.parameters()]
    mean, seen = [each.clone() for each in base], []
    for step in range(3):
        with torch.no_grad():
            for each, z, x in zip(model.parameters(), base, mean, strict=True):
                each.copy_(torch.lerp(z, x, 0.9))
        loss = passed(model, batch)
        with torch.no_grad():
            for each, z, x in zip(model.parameters(), base, mean, strict=True):
                z.add_(each.grad, alpha=-0.1)
                x.mul_(1 - 1 / (step + 1)).add_(z, alpha=1 / (step + 1))
        seen.append(loss.detach())
    with torch.no_grad():
        for each, x in zip(model.parameters(), mean, strict=True):
            each.copy_(x)
        seen.append(model(*batch))
    return seen


def in_backward(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Every weight is updated as soon as its gradient is there, which is then let go."""
    optimizers = {each: torch.optim.SGD([each], 0.05, momentum=0.9) for each in model.parameters()}

    def update(each: Tensor) -> None:
        optimizers[each].step()
        optimizers[each].zero_grad()

    handles = [each.register_post_accumulate_grad_hook(update) for each in model.parameters()]
    seen = []
    for _ in range(3):
        loss = model(*batch)
        loss.backward()
        seen.append(loss.detach())
    for handle in handles:
        handle.remove()
    model(*batch).backward()
    return seen


def centred(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Gradients of matrices are centred by hooks on the weights before they are summed up."""
    handles = [
        each.register_hook(lambda grad: grad - grad.mean(dim=tuple(range(1, grad.ndim)), keepdim=True))
        for each in model.parameters()
        if each.ndim > 1
    ]
    optimizer = sgd(model)
    seen = [step_of(optimizer, model(*batch)) for _ in range(2)]
    for handle in handles:
        handle.remove()
    return seen


def looked_ahead(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Slow weights that follow the fast ones every second step (Lookahead); ratios of norms scale updates (LAMB)."""
    slow = [each.detach().clone() for each in model.parameters()]
    first = [torch.zeros_like(each) for each in model.parameters()]
    seen = []
    for step in range(4):
        loss = passed(model, batch)
        with torch.no_grad():
            for each, m in zip(model.parameters(), first, strict=True):
                m.lerp_(each.grad, 0.1)
                ratio = each.norm() / m.norm().clamp(min=1e-3)
                each.add_(m * ratio.clamp(max=10.0), alpha=-0.01)
            if step % 2:
                for each, held in zip(model.parameters(), slow, strict=True):
                    held.add_(each - held, alpha=0.5)
                    each.copy_(held)
        seen.append(loss.detach())
    return seen


def orthogonal(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Gradients of matrices made orthogonal by products with themselves (Muon), others as signs (Lion)."""
    seen = []
    for _ in range(2):
        loss = passed(model, batch)
        with torch.no_grad():
            for each in model.parameters():
                update = each.grad.sign() if each.ndim < 2 else _orthogonal(each.grad.flatten(1)).view_as(each)
                each.sub_(update, alpha=0.01)
        seen.append(loss.detach())
    return seen


def _orthogonal(gradient: Tensor) -> Tensor:
    made = gradient / (gradient.norm() + 1e-7)
    made = made.mT if gradient.shape[0] > gradient.shape[1] else made
    for _ in range(3):
        squared = made @ made.mT
        made = 3.4445 * made + (-4.7750 * squared + 2.0315 * squared @ squared) @ made
    return made.mT if gradient.shape[0] > gradient.shape[1] else made


def as_vector(model: nn.Module, batch: Batch) -> list[Tensor]:
    """All weights as one vector, moved by the vector of all gradients."""
    seen = []
    for _ in range(2):
        loss = passed(model, batch)
        with torch.no_grad():
            gradient = parameters_to_vector([each.grad for each in model.parameters()])
            vector = parameters_to_vector(model.parameters())
            vector_to_parameters(vector - 0.05 * gradient, model.parameters())
        seen += [loss.detach(), gradient.norm()]
    return seen


def accumulated(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Steps of one, two and three passes, whose gradients are summed, then clipped and scaled."""
    optimizer, seen = torch.optim.RMSprop(model.parameters(), 0.01, eps=1e-2, centered=True), []
    for passes in (1, 2, 3):
        for number, x in enumerate(itertools.repeat(batch[0], passes)):
            loss = model(x * (1 + 0.1 * number), *batch[1:])
            loss.backward()
        for each in model.parameters():
            each.grad.div_(passes)
        seen += [loss.detach(), clip_grad_norm_(model.parameters(), 0.2, foreach=True)]
        optimizer.step()
        optimizer.zero_grad()
    model(*batch).backward()
    return seen
