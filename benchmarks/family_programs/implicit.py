"""Programs that differentiate inside: energies, fixed points, adjoints, inner steps, per-sample gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Energy(nn.Module):
    """An energy of images: negatives drawn by descent along its gradient, a penalty on gradients of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU())
        self.head = nn.Linear(16, 1)

    def energy(self, x: Tensor) -> Tensor:
        return self.head(self.net(x).mean((2, 3))).squeeze(-1)

    def forward(self, real: Tensor, start: Tensor) -> Tensor:
        fake = start
        for _ in range(2):
            with torch.enable_grad():
                fake = fake.detach().requires_grad_(True)
                (slope,) = torch.autograd.grad(self.energy(fake).sum(), fake)
            fake = (fake - 0.1 * slope).clamp(-1, 1)
        ups, downs = self.energy(real), self.energy(fake.detach())
        return (ups - downs).mean() + 0.1 * (ups.square() + downs.square()).mean()


class Solve(torch.autograd.Function):
    """Euler's steps forward; the adjoint equation backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor, steps: int) -> Tensor:
        ctx.steps, states = steps, [y]
        for _ in range(steps):
            y = y + torch.tanh(y @ weight.T + bias) / steps
            states.append(y)
        ctx.save_for_backward(weight, *states)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *states = ctx.saved_tensors
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight[0])
        for before, after in zip(reversed(states[:-1]), reversed(states[1:]), strict=True):
            inner = grad * (1 - ((after - before) * ctx.steps).square()) / ctx.steps
            of_weight = of_weight + inner.flatten(0, -2).T @ before.flatten(0, -2)
            of_bias = of_bias + inner.flatten(0, -2).sum(0)
            grad = grad + inner @ weight
        return grad, of_weight, of_bias, None


class Adjoint(nn.Module):
    """An equation of motion solved by a function of one's own, between layers, twice with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.field, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.inp(x)
        h = Solve.apply(h, self.field.weight, self.field.bias, 3)
        h = Solve.apply(torch.relu(h), self.field.weight, self.field.bias, 2)
        return f.cross_entropy(self.out(h.mean(1)), labels)


class Equilibrium(nn.Module):
    """A fixed point found without gradients, and a hook that solves the backward equation by iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.inject, self.inner, self.norm, self.head = (
            nn.Linear(8, 16),
            nn.Linear(16, 16, bias=False),
            nn.LayerNorm(16),
            nn.Linear(16, 4),
        )

    def cell(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(0.3 * self.inner(z) + x))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        u = self.inject(x)
        z = torch.zeros_like(u)
        with torch.no_grad():
            for _ in range(6):
                z = self.cell(z, u)
        z = self.cell(z, u)
        if self.training and z.requires_grad:
            z.register_hook(lambda grad: grad + 0.25 * grad.clamp(-1, 1))
        return f.cross_entropy(self.head(z), labels)


class TestTime(nn.Module):
    """A layer whose state is a model: weights of every sequence, trained by a step per chunk (test-time training)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.start, self.rate = (
            nn.Linear(16, 48),
            nn.Parameter(torch.randn(16, 16) * 0.2),
            nn.Parameter(torch.zeros(16)),
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        def inner(weight: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return (f.layer_norm(key @ weight, (16,)) - value).square().mean()

        q, k, v = self.qkv(x).chunk(3, -1)
        weight, made = self.start.expand(x.shape[0], -1, -1), []
        for at in range(0, x.shape[1], 4):
            key, value = k[:, at : at + 4], v[:, at : at + 4]
            slopes = torch.func.vmap(torch.func.grad(inner))(weight, key, value)
            weight = weight - torch.sigmoid(self.rate) * slopes
            made.append(q[:, at : at + 4] @ weight)
        return f.cross_entropy(self.head(self.norm(torch.cat(made, 1) + x)).mean(1), labels)


class PerSample(nn.Module):
    """Gradients of every sample, clipped and summed as private training does, as a term of the loss; their norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        weights = {"first": self.first.weight, "last": self.last.weight}

        def loss(given: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
            made = torch.tanh(row @ given["first"].T + self.first.bias) @ given["last"].T + self.last.bias
            return f.cross_entropy(made, label)

        slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, labels)
        size = sum(each.flatten(1).square().sum(1) for each in slopes.values()).add(1e-6).sqrt()
        clipped = [torch.einsum("b...,b->...", each, (1 / size).clamp(max=1)) for each in slopes.values()]
        direct = f.cross_entropy(self.last(torch.tanh(self.first(x))), labels)
        return direct + 0.01 * sum(each.square().sum() for each in clipped) + 0.01 * size.mean()


class Curved(nn.Module):
    """Score matching: the trace of a Jacobian by products with it, exact and by random directions; a Hessian's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 6)

    def score(self, x: Tensor) -> Tensor:
        return self.last(f.softplus(self.middle(torch.tanh(self.first(x)))))

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        made, along = torch.func.jvp(self.score, (x,), (direction,))
        _, pull = torch.func.vjp(self.score, x)
        (back,) = pull(direction)
        exact = torch.func.vmap(torch.func.jacrev(self.score))(x).diagonal(dim1=-2, dim2=-1).sum(-1)
        near = (along * direction).sum(-1) + (back * direction).sum(-1)
        return (0.5 * made.square().sum(-1) + 0.1 * near + 0.1 * exact).mean()


class Penalised(nn.Module):
    """A critic's gradient penalty between two batches, a generator's path length, and R1, in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.critic = (
            nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8)),
            nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.LayerNorm(16), nn.Linear(16, 1)),
        )

    def forward(self, real: Tensor, latent: Tensor, share: Tensor, noise: Tensor) -> Tensor:
        with torch.enable_grad():
            latent = latent.clone().requires_grad_(True)
            fake = self.make(latent)
            (path,) = torch.autograd.grad((fake * noise).sum(), latent, create_graph=True)
            between = (share * real + (1 - share) * fake.detach()).requires_grad_(True)
            said = self.critic(between)
            (slope,) = torch.autograd.grad(said, between, torch.ones_like(said), create_graph=True)
        lengths = path.square().sum(1).sqrt()
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        gap = self.critic(fake).mean() - self.critic(real).mean()
        return gap + 10 * penalty + (lengths - lengths.mean().detach()).square().mean()


class Learned(torch.autograd.Function):
    """Learned step sizes: rounded, with gradients for what is rounded and for the step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x, step)
        ctx.ends = low, high
        return torch.clamp(torch.round(x / step), low, high) * step

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, step = ctx.saved_tensors
        low, high = ctx.ends
        ratio = x / step
        below, above = ratio < low, ratio > high
        inside = ~(below | above)
        own = torch.where(below, low, torch.where(above, high, ratio.round() - ratio))
        return grad * inside, (grad * own).sum().reshape(step.shape) / math.sqrt(x.numel() * high), None, None


class Pair(torch.autograd.Function):
    """Two results of one function: a product and a norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        return x * weight, x.square().sum(-1)

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, of_norm: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return of_product * weight + 2 * x * of_norm.unsqueeze(-1), (of_product * x).flatten(0, -2).sum(0)


class Steps(nn.Module):
    """Weights and activations rounded to learned steps, signs with scales; a function of two results, one of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.steps, self.scale = nn.Parameter(torch.tensor([0.05, 0.1])), nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        weight = Learned.apply(self.first.weight, self.steps[0], -4, 3)
        h = Learned.apply(f.linear(x, weight, self.first.bias).relu(), self.steps[1], 0, 15)
        h, norms = Pair.apply(h, self.scale)
        sign = self.last.weight.sign() * self.last.weight.abs().mean(1, keepdim=True)
        last = self.last.weight + (sign - self.last.weight).detach()
        return f.cross_entropy(f.linear(h, last, self.last.bias), labels) + 0.01 * norms.mean()


class Rematerialised(nn.Module):
    """Blocks that are run again in backward, and a gradient for what they make that scales it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = x
        for _ in range(2):
            h = h + torch.utils.checkpoint.checkpoint(self.net, h, use_reentrant=False, determinism_check="none")
        with torch.enable_grad():
            inner = h.detach().requires_grad_(True)
            (saliency,) = torch.autograd.grad(self.head(inner).logsumexp(-1).sum(), inner)
        return f.cross_entropy(self.head(h * (1 + saliency)), labels)


def _rows(width: int = 8, rows: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, width), torch.randint(4, (rows,))


def _seq(width: int = 8, rows: int = 4, times: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, times, width), torch.randint(4, (rows,))


IMPLICIT: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "energy": lambda: (Energy(), (torch.rand(4, 3, 8, 8) * 2 - 1, torch.rand(4, 3, 8, 8) * 2 - 1)),
    "adjoint": lambda: (Adjoint(), _seq()),
    "equilibrium": lambda: (Equilibrium(), _rows()),
    "test time": lambda: (TestTime(), _seq(16)),
    "per sample": lambda: (PerSample(), _rows()),
    "curved": lambda: (Curved(), (torch.randn(8, 6), torch.randn(8, 6).sign())),
    "penalised": lambda: (Penalised(), (torch.randn(8, 8), torch.randn(8, 4), torch.rand(8, 1), torch.randn(8, 8))),
    "steps": lambda: (Steps(), _rows()),
    "rematerialised": lambda: (Rematerialised(), _rows()),
}
