"""Loops with each of torch's optimizers in its forms, and with updates, noise and fresh weights by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import init

from family_programs.updates import Batch, passed, sgd, step_of

Loop = Callable[[nn.Module, Batch], list[Tensor]]


def _by(kind: type[optim.Optimizer], rate: float, **given: Any) -> Loop:
    def loop(model: nn.Module, batch: Batch) -> list[Tensor]:
        """Weights and biases in groups of their own, rates that a schedule changes."""
        several = [[each for each in model.parameters() if (each.ndim > 1) == wide] for wide in (True, False)]
        groups = [{"params": several[0]}, {"params": several[1], "lr": rate / 2}]
        optimizer = kind(groups, lr=rate, **given)  # type: ignore[call-arg]
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=8, cycle_momentum=False)
        seen = []
        for _ in range(3):
            seen.append(step_of(optimizer, model(*batch)))
            schedule.step()
        return seen

    return loop


def quasi_newton(model: nn.Module, batch: Batch) -> list[Tensor]:
    """L-BFGS with its search along a line, which calls the model as often as it likes."""
    optimizer = optim.LBFGS(model.parameters(), 0.5, max_iter=3, history_size=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(*batch)
        loss.backward()
        return loss

    return [optimizer.step(closure).detach() for _ in range(2)]


def descended(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Descent without an optimizer: in place, by `data`, by a list at once; gradients changed before."""
    seen = []
    for way in range(3):
        seen.append(passed(model, batch).detach())
        held = [each for each in model.parameters() if each.grad is not None]
        with torch.no_grad():
            for each in held:
                each.grad.mul_(0.9).clamp_(-0.2, 0.2)
                if way == 0:
                    each -= 0.1 * each.grad  # noqa: PLW2901 - in place
                elif way == 1:
                    each.data.add_(each.grad, alpha=-0.1)
                    each.data.mul_(0.999)
            if way == 2:
                torch._foreach_add_(held, [each.grad for each in held], alpha=-0.1)
    return seen


def nudged(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Plain tensors, the same in every process, are added to weights and multiplied into them; masks of gradients."""
    optimizer, seen = sgd(model), []
    drawn = torch.Generator().manual_seed(1)
    for _ in range(2):
        seen.append(step_of(optimizer, model(*batch)))
        with torch.no_grad():
            for each in model.parameters():
                noise = torch.randn(each.shape, generator=drawn, dtype=each.dtype)
                each += 0.01 * noise  # noqa: PLW2901 - in place
                each.mul_(1 + 0.01 * noise).sub_(0.01 * noise.abs()).clamp_(max=noise.abs() + 1)
                if each.grad is not None:
                    each.grad *= (noise > 0).to(each.dtype)
                    each.addcmul_(each.grad, noise, value=-0.01)
                    each.copy_(each + 0.001 * noise)
    return [*seen, passed(model, batch).detach()]


def reset(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Weights made anew when the plan has been applied: by functions of `nn.init` and by modules of their own."""
    torch.manual_seed(5)
    linears = [each for each in model.modules() if isinstance(each, nn.Linear)]
    init.eye_(linears[0].weight)
    init.orthogonal_(linears[1].weight)
    init.trunc_normal_(linears[2].weight, std=0.2)
    init.kaiming_uniform_(linears[3].weight)
    init.xavier_normal_(linears[4].weight)
    for each in linears:
        init.constant_(each.bias, 0.1)
    init.normal_(linears[0].bias)
    seen = [passed(model, batch).detach()]
    linears[-1].reset_parameters()
    init.sparse_(linears[2].weight, 0.5)
    return [*seen, passed(model, batch).detach()]


BY_HAND: dict[str, Loop] = {
    "AdamW foreach": _by(optim.AdamW, 0.01, foreach=True, amsgrad=True),
    "AdamW fused": _by(optim.AdamW, 0.01, fused=True),
    "Adam capturable": _by(optim.Adam, 0.01, maximize=False, weight_decay=0.1, decoupled_weight_decay=True),
    "RMSprop": _by(optim.RMSprop, 0.01, centered=True, momentum=0.5),
    "NAdam": _by(optim.NAdam, 0.01, decoupled_weight_decay=True),
    "RAdam": _by(optim.RAdam, 0.01, foreach=True),
    "Adamax": _by(optim.Adamax, 0.01),
    "Adadelta": _by(optim.Adadelta, 1.0, foreach=True),
    "Adagrad": _by(optim.Adagrad, 0.1, lr_decay=0.1),
    "ASGD": _by(optim.ASGD, 0.05),
    "Rprop": _by(optim.Rprop, 0.01),
    "Adafactor": _by(optim.Adafactor, 0.01),
    "quasi-Newton": quasi_newton,
    "descended": descended,
    "nudged": nudged,
    "reset": reset,
}
