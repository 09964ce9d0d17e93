"""Programs of what torch's exporter does not know, or no module of torch does: operators of one's own, special
functions, branches by `torch.cond`, strides of memory, transforms of sound there and back, checked distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled_rows, rows


@torch.library.custom_op("shardplan_families::lifted", mutates_args=())
def lifted(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A product and the sums of rows, as a kernel of a library might give them."""
    return x @ weight, x.sum(-1)


@lifted.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[1]), x.new_empty(x.shape[:1])


def _of_lifted(ctx: Any, of_product: Tensor, of_sums: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return of_product @ weight.T + of_sums.unsqueeze(-1), x.T @ of_product


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs)


lifted.register_autograd(_of_lifted, setup_context=_keep)


class OwnOperator(nn.Module):
    """An operator of a library, with two results and a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.weight, self.out = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 8) / 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        made, sums = lifted(f.relu(self.a(x)), self.weight)
        return f.cross_entropy(self.out(made) + sums.unsqueeze(-1), labels)


class Special(nn.Module):
    """Directions under von Mises's distribution, and other functions that few programs call."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.width = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        width, mean = f.softplus(self.width(x)) + 0.1, self.mean(x)
        chance = width * torch.cos(y - mean) - math.log(2 * math.pi) - torch.special.i0e(width).log() - width
        more = torch.special.entr(width.sigmoid()) + torch.special.xlog1py(width, mean.sigmoid())
        more = more + torch.special.erfcx(width) + torch.special.ndtri(mean.sigmoid() * 0.9 + 0.05)
        return (
            0.01 * (more + torch.polygamma(1, width) + torch.lgamma(width) + torch.digamma(width)).mean()
            - chance.mean()
        )


class Burgers(nn.Module):
    """An equation of flow as a loss: derivatives by place and time, which is called `t`, as an operator of torch is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.viscosity = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, t: Tensor, start: Tensor) -> Tensor:
        with torch.enable_grad():
            x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
            u = self.net(torch.cat([x, t], 1))
            by_x, by_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
            (twice,) = torch.autograd.grad(by_x.sum(), x, create_graph=True)
        first = self.net(torch.cat([x, torch.zeros_like(t)], 1))
        return (by_t + u * by_x - self.viscosity * twice).square().mean() + f.mse_loss(first, start)


class Branch(nn.Module):
    """A branch that data decides, by torch's own function for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.cond(x.sum() > 0, lambda each: each.tanh(), lambda each: each.sin(), (self.a(x),))
        return f.mse_loss(self.b(h), y)


class Memory(nn.Module):
    """Windows by strides of memory, of a transposed tensor and of a piece of a wider one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        turned, piece, later = self.b(x).transpose(1, 2), self.a(x)[..., 8:], self.a(x)[:, 1:]
        one = turned.as_strided((4, 5, 4, 8), (64, 8, 8, 1))
        other = torch.as_strided(piece, (4, 5, 4, 8), (128, 16, 16, 1), 8)
        row, step, place = later.stride()
        rest = later.as_strided((4, 5, 2, 16), (row, step, step, place), later.storage_offset())
        return f.mse_loss((one * other).mean(2), goal) + rest.square().mean()


class Masked(nn.Module):
    """Sound by short transforms, masked, and back to a wave; bands of magnitudes are classified."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.out = nn.Conv1d(9, 9, 3, padding=1), nn.Linear(5, 4)
        self.register_buffer("window", torch.hann_window(16))
        self.register_buffer("bands", torch.rand(5, 9))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        seen = torch.stft(x, 16, 8, window=self.window, return_complex=True)
        size = seen.abs() + 1e-3
        back = torch.istft(seen * self.mask(size).sigmoid(), 16, 8, window=self.window, length=x.shape[1])
        bands = torch.log(self.bands @ size.square() + 1e-4).mean(-1)
        return f.l1_loss(back, x) + f.cross_entropy(self.out(bands), labels)


class Mixture(nn.Module):
    """Mixtures by `torch.distributions`, which check their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads, self.corner = nn.Linear(16, 16), nn.Linear(16, 28), nn.Linear(16, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kinds, h = torch.distributions, torch.tanh(self.trunk(x))
        shares, mean, width = self.heads(h).split([4, 12, 12], -1)
        spread = f.softplus(width) + 0.1
        parts = kinds.Independent(kinds.Normal(mean.unflatten(1, (4, 3)), spread.unflatten(1, (4, 3))), 1)
        mixture = kinds.MixtureSameFamily(kinds.Categorical(logits=shares), parts)
        factor = self.corner(h).unflatten(1, (3, 3)).tril(-1) + torch.diag_embed(spread[:, :3] + 0.4)
        whole = kinds.MultivariateNormal(mean[:, :3], scale_tril=factor)
        apart = kinds.kl_divergence(kinds.Dirichlet(spread[:, :4] + 1), kinds.Dirichlet(torch.ones_like(shares)))
        return 0.1 * apart.mean() - mixture.log_prob(y[:, :3]).mean() - 0.1 * whole.log_prob(y[:, :3]).mean()


FOREIGN: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "own operator": lambda: (OwnOperator(), labelled_rows()),
    "special functions": lambda: (Special(), rows()),
    "flow equation": lambda: (Burgers(), (torch.randn(8, 1), torch.rand(8, 1), torch.randn(8, 1))),
    "torch's branch": lambda: (Branch(), rows()),
    "memory": lambda: (Memory(), (torch.randn(4, 8, 8), torch.randn(4, 5, 8))),
    "masked transforms": lambda: (Masked(), (torch.randn(4, 64), torch.randint(4, (4,)))),
    "mixture": lambda: (Mixture(), rows()),
}
