"""Programs around losses and functions that the other files have none of, each between two products with weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as f

Function = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A function of hidden values `[8, 4, 32]`, whose result a second layer projects; the loss is a module."""

    def __init__(self, function: Function | nn.Module, width: int = 32, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(width, 8)
        self.function, self.loss = function, loss or nn.MSELoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.function(torch.tanh(self.up(x)))
        return self.loss(self.down(hidden), y)


class Classes(nn.Module):
    """A classifier with a loss of classes, some of which are ignored."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.net, self.loss = nn.Sequential(nn.Linear(16, 32), nn.PReLU(32), nn.Linear(32, 12)), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


class Codes(nn.Module):
    """A buffer and a parameter with the names of other things of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)
        self.register_buffer("code", torch.linspace(0.1, 1.0, 32))
        self.register_buffer("shape", torch.linspace(1.0, 0.1, 32))
        self.type_ = nn.Parameter(torch.ones(32))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.up(x) * self.code + self.shape * self.type_
        return f.mse_loss(self.down(hidden), y)


def _masked_set(x: Tensor) -> Tensor:
    x = x.clone()
    x[x < 0] = 0.25
    return x


def _masked_put(x: Tensor) -> Tensor:
    rows, columns = torch.tensor([0, 3, 5], device=x.device), torch.tensor([1, 2, 0], device=x.device)
    return x.index_put((rows, columns), x.mean((0, 1)), accumulate=True)


def _moments(x: Tensor) -> Tensor:
    std, mean = torch.std_mean(x, -1, keepdim=True)
    var, whole = torch.var_mean(x, (0, 1))
    return (x - mean) / (std + 1e-3) + (x - whole) / (var + 1e-3).sqrt()


def _checked(x: Tensor) -> Tensor:
    fine, some = torch.isfinite(x).all(), (x > 0.5).any(-1, keepdim=True)
    return torch.where(fine, x, torch.zeros_like(x)) * (1.0 + some)


def _norms(x: Tensor) -> Tensor:
    return x / (x.norm() + x.norm(dim=-1, keepdim=True) + torch.linalg.norm(x, 1, dim=1, keepdim=True))


def _ordered(x: Tensor) -> Tensor:
    return x + x.median(-1, keepdim=True).values + x.cummax(1).values


def _data() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 4, 16), torch.rand(8, 4, 8)


def _rows(classes: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(16, 16), torch.randint(0, classes, (16,))


def _between(function: Function | nn.Module, width: int = 32, loss: nn.Module | None = None) -> object:
    return lambda: (Between(function, width, loss), _data())


def _of_classes(loss: Callable[[], nn.Module], targets: Callable[[], Tensor]) -> object:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return Classes(loss()), (torch.randn(16, 16), targets())

    return make


def _labels() -> Tensor:
    found = torch.randint(0, 12, (16,))
    found[::5] = -100
    return found


def _weights() -> Tensor:
    return torch.linspace(0.5, 2.0, 12)


FUNCTIONS = {
    "label smoothing": _of_classes(lambda: nn.CrossEntropyLoss(weight=_weights(), label_smoothing=0.1), _labels),
    "soft labels": _of_classes(
        lambda: nn.CrossEntropyLoss(label_smoothing=0.2), lambda: torch.rand(16, 12).softmax(-1)
    ),
    "nll": _of_classes(lambda: _Then(partial(f.log_softmax, dim=-1), nn.NLLLoss(weight=_weights())), _labels),
    "bce with logits": _of_classes(
        lambda: nn.BCEWithLogitsLoss(pos_weight=_weights(), weight=_weights().flip(0)), lambda: torch.rand(16, 12)
    ),
    "bce": _of_classes(lambda: _Then(torch.sigmoid, nn.BCELoss(weight=_weights())), lambda: torch.rand(16, 12)),
    "multi margin": _of_classes(nn.MultiMarginLoss, lambda: torch.randint(0, 12, (16,))),
    "multilabel soft margin": _of_classes(nn.MultiLabelSoftMarginLoss, lambda: torch.rand(16, 12).round()),
    "poisson": _of_classes(lambda: nn.PoissonNLLLoss(full=True), lambda: 3 * torch.rand(16, 12)),
    "kl": _of_classes(
        lambda: _Then(partial(f.log_softmax, dim=-1), nn.KLDivLoss(reduction="batchmean")),
        lambda: torch.rand(16, 12).softmax(-1),
    ),
    "norms": _between(_norms),
    "prelu": lambda: (Between(nn.PReLU()), _data()),
    "masked set": _between(_masked_set),
    "masked put": _between(_masked_put),
    "moments": _between(_moments),
    "cdist": _between(lambda x: torch.cdist(x, x + 1.0), 4),
    "celu": _between(nn.CELU(0.7)),
    "hardshrink": _between(nn.Hardshrink(0.2)),
    "softshrink": _between(nn.Softshrink(0.2)),
    "diagonal": _between(lambda x: x[:4].diagonal(0, 0, 1).t().unsqueeze(1).expand(4, 8, 32).transpose(0, 1)),
    "vander": _between(lambda x: torch.linalg.vander(x.mean(-1), N=6), 6),
    "plain vander": _between(lambda x: x[..., :6] + torch.vander(x.detach().flatten()[:32], 6).view(8, 4, 6), 6),
    "all and any": _between(_checked),
    "ordered": _between(_ordered),
    "renorm": _between(lambda x: x.flatten(0, 1).renorm(2, 0, 1.5).view_as(x)),
    "bincount": _between(lambda x: x * torch.bincount((x[:, 0, 0] > 0).long(), minlength=2).sum()),
    "names": lambda: (Codes(), _data()),
}


class _Then(nn.Module):
    """A loss of a function of logits."""

    def __init__(self, function: Function, loss: nn.Module) -> None:
        super().__init__()
        self.function, self.loss = function, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.function(x), y)
