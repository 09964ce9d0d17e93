"""Programs in the ways in which people train: functions of one's own, hooks, recomputation, buffers, results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Swish(torch.autograd.Function):
    """Keeps its argument alone and asks which gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: Tensor) -> Tensor:
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        own = grad * (s + x * beta * s * (1 - s)) if ctx.needs_input_grad[0] else None
        other = (grad * x * x * s * (1 - s)).sum() if ctx.needs_input_grad[1] else None
        return own, other


class Reverse(torch.autograd.Function):
    """Gives gradients back with another sign (domain adversaries)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.neg() * ctx.weight, None


class Surrogate(torch.autograd.Function):
    """A spike whose gradient is that of something smooth."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad / (1 + (math.pi * x).square())


class OwnFunctions(nn.Module):
    """Functions of one's own: several gradients, reversed ones, spikes in a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.beta, self.label, self.domain = (
            nn.Linear(16, 16),
            nn.Parameter(torch.ones(())),
            nn.Linear(16, 4),
            nn.Linear(16, 2),
        )
        self.decay = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        h = Swish.apply(self.first(x), self.beta)
        potential, spikes = torch.zeros_like(h[:, 0]), []
        for step in range(h.size(1)):
            potential = potential * self.decay.sigmoid() + h[:, step]
            spike = Surrogate.apply(potential - 0.5)
            potential = potential - spike.detach() * 0.5
            spikes.append(spike)
        rate = torch.stack(spikes, 1).mean(1) + h.mean(1)
        return f.cross_entropy(self.label(rate), labels) + f.cross_entropy(
            self.domain(Reverse.apply(rate, 0.3)), domains
        )


class Recomputed(nn.Module):
    """Blocks that are run again: with mappings, with several results, sequences in parts, within one another."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = (
            nn.Linear(16, 16),
            nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(4)),
        )
        self.gate, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def _pair(self, x: Tensor, *, scale: float, extra: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        h = self.blocks[0](x) * scale + extra["bias"]
        return h, torch.sigmoid(self.gate(h))

    def _nested(self, x: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.blocks[3], x, use_reentrant=False)
        return x + made

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(x)
        h, gate = checkpoint(self._pair, x, use_reentrant=False, scale=0.5, extra={"bias": x.mean(1, keepdim=True)})
        x = x + h * gate
        x = checkpoint_sequential(nn.Sequential(*self.blocks[1:3]), 2, x, use_reentrant=False)
        x = checkpoint(
            lambda y: y + checkpoint(self.blocks[3], y, use_reentrant=False),
            x,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        return f.cross_entropy(self.head(x[:, -1]), labels)


class Tracked(nn.Module):
    """Buffers that change: by `copy_` and `lerp_`, in slices, by number, as `.data`, by assignment, by counting."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.teacher, self.head = (
            nn.Linear(16, 16),
            nn.Linear(16, 16).requires_grad_(False),
            nn.Linear(16, 4),
        )
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("spread", torch.ones(16))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("counts", torch.zeros(4))
        self.register_buffer("bank", torch.zeros(8, 16))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("centre", None)

    @torch.no_grad()
    def _follow(self, h: Tensor, labels: Tensor) -> None:
        self.steps += 1
        rate = torch.where(self.steps > 1, 0.1, 1.0).to(h.dtype)
        self.mean.copy_(torch.lerp(self.mean, h.mean((0, 1)), rate))
        self.spread.mul_(1 - rate).addcmul_(h.std((0, 1)), rate.expand(16))
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=self.counts.dtype))
        self.bank[labels] = h.mean(1)
        self.bank = torch.roll(self.bank, 1, 0)
        self.scale.data = self.scale.data * 0.9 + h.abs().amax().reshape(1) * 0.1
        for own, other in zip(self.teacher.parameters(), self.body.parameters(), strict=True):
            own.mul_(0.9).add_(other.detach(), alpha=0.1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.body(x)
        if self.training:
            self._follow(h.detach(), labels)
        y = (h - self.mean) / (self.spread + 1e-3) / self.scale
        loss = f.cross_entropy(self.head(y.mean(1)), labels, weight=1 / (self.counts + 1))
        near = f.cosine_similarity(y.mean(1).unsqueeze(1), self.bank.unsqueeze(0), dim=-1)
        return loss + f.mse_loss(h, self.teacher(x)) - 0.1 * near.amax(1).mean()


class Renorm(nn.Module):
    """Norms by hand: batch renormalisation, power norms, ghost batches, whitening of groups, weights standardised."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale, self.shift = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Parameter(torch.ones(8)),
            nn.Parameter(torch.zeros(8)),
        )
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_std", torch.ones(8))
        self.ghost, self.head = nn.BatchNorm2d(8, affine=False, track_running_stats=False), nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        w = self.conv.weight
        spread, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, unbiased=False)
        x = f.conv2d(x, (w - mean) * torch.rsqrt(spread + 1e-5), self.conv.bias, padding="same")
        if self.training:
            std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
            r = (std.detach() / self.running_std).clamp_(1 / 3, 3)
            d = ((mean.detach() - self.running_mean) / self.running_std).clamp_(-5, 5)
            y = (x - mean.view(1, -1, 1, 1)) / (std + 1e-5).view(1, -1, 1, 1) * r[None, :, None, None] + d[
                None, :, None, None
            ]
            self.running_mean += 0.1 * (mean.detach() - self.running_mean)
            self.running_std += 0.1 * (std.detach() - self.running_std)
        else:
            y = (x - self.running_mean.view(1, -1, 1, 1)) / self.running_std.view(1, -1, 1, 1)
        y = torch.addcmul(self.shift.view(-1, 1, 1), y, self.scale.view(-1, 1, 1))
        y = torch.cat([self.ghost(each) for each in y.chunk(2)])
        groups = y.transpose(0, 1).reshape(2, 4, -1)
        y = y * torch.cov(groups[0].detach()).trace().rsqrt() + groups.pow(2).mean((1, 2)).sqrt().sum()
        return f.cross_entropy(self.head(y.flatten(2).mean(-1)), labels)


class Symmetric(nn.Module):
    """A weight that is symmetric, and one of unit columns, through parametrizations."""

    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


class Unit(nn.Module):
    """Columns of one length."""

    def forward(self, w: Tensor) -> Tensor:
        return w / w.norm(dim=0, keepdim=True).clamp_min(1e-6)


class Hooked(nn.Module):
    """Hooks before and after modules, with keywords, of tensors and of parameters; parametrizations on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = parametrizations.spectral_norm(nn.Linear(16, 16)), nn.Linear(16, 16, bias=False)
        parametrize.register_parametrization(self.second, "weight", Symmetric())
        parametrize.register_parametrization(self.second, "weight", Unit())
        self.head, self.seen = nn.Linear(16, 4), []
        self.first.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))
        self.second.register_forward_hook(self._keep)
        self.head.register_forward_pre_hook(self._named, with_kwargs=True)

    def _keep(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        del module
        self.seen.append(output.square().mean())
        return output + args[0]

    def _named(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        del module
        return args, {key: value.tanh() for key, value in kwargs.items()}

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        self.seen.clear()
        h = self.first(x).relu()
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-1e-2, 1e-2))
        for _ in range(2):
            h = self.second(h)
        return f.cross_entropy(self.head(input=h.mean(1)), labels) + 0.1 * torch.stack(self.seen).sum()


class Shapes(NamedTuple):
    """What a pass is told about."""

    batch: int
    length: int


@dataclass(frozen=True)
class Made:
    """What a block gives."""

    hidden: Tensor
    attentions: tuple[Tensor, ...] = ()
    aux: dict[str, Tensor] | None = None


class Structured(nn.Module):
    """Blocks that take and give dataclasses, mappings and named tuples; losses with learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"mix": nn.Linear(8, 8), "net": nn.Linear(16, 16)}) for _ in range(2))
        self.heads = nn.ModuleDict({"class": nn.Linear(16, 4), "depth": nn.Linear(16, 1), "mask": nn.Linear(16, 8)})
        self.uncertain = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(3)])

    def _block(self, block: Any, state: Made, shapes: Shapes) -> Made:
        mixed = block["mix"](state.hidden.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax(mixed @ mixed.mT / shapes.length, -1)
        hidden = state.hidden + block["net"](weights @ state.hidden)
        return Made(
            hidden, (*state.attentions, weights), {**(state.aux or {}), f"norm {len(state.attentions)}": hidden.norm()}
        )

    def forward(self, x: Tensor, labels: Tensor, depth: Tensor) -> Tensor:
        state, shapes = Made(x), Shapes(*x.shape[:2])
        for block in self.blocks:
            state = self._block(block, state, shapes)
        made = {name: head(state.hidden) for name, head in self.heads.items()}
        losses = {
            "class": f.cross_entropy(made["class"].mean(1), labels),
            "depth": f.huber_loss(made["depth"].squeeze(-1), depth),
            "mask": f.binary_cross_entropy(
                made["mask"].sigmoid(), (depth.unsqueeze(-1) > 0).to(x.dtype).expand(-1, -1, 8)
            ),
        }
        total = sum(torch.exp(-s) * loss + s for s, loss in zip(self.uncertain, losses.values(), strict=True)).squeeze()
        sharp = torch.stack(state.attentions).clamp(min=1e-9)
        return total - 0.01 * (sharp * sharp.log()).sum(-1).mean() + 1e-3 * sum(state.aux.values())


class InPlace(nn.Module):
    """What is changed in place: strided columns, transposes, rows that a mask picks, views of views, accumulations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.scale, self.token = nn.Parameter(torch.rand(8)), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, gone: Tensor, labels: Tensor) -> Tensor:
        h = self.first(x)
        h[..., ::2] *= self.scale
        h.transpose(0, 1)[0].add_(self.token, alpha=0.5)
        h[gone] = self.token
        rows = self.second(h).clone()
        rows.unflatten(-1, (4, 4)).select(-2, 1).copy_(h[..., :4])
        one, two = rows[..., :4], rows.narrow(-1, 4, 4)
        two.sub_(one.detach()).mul_(0.5)
        rows.swapaxes(1, 2)[:, -1].clamp_(-1, 1)
        out = torch.zeros_like(rows)
        for number, part in enumerate(rows.chunk(4, dim=1)):
            out[:, number * 2 : number * 2 + 2].addcdiv_(part, part.abs() + 1, value=0.5)
        out += h
        out.masked_fill_(gone.unsqueeze(-1), 0.1).add_(rows.flip(1))
        out.view(-1)[::5] = 0
        total = out.new_zeros(out.shape[0], 16)
        total.index_add_(0, torch.tensor([1, 0, 3, 2], device=x.device), out.sum(1))
        total[[0, 2]] += 1
        total.scatter_(1, labels.unsqueeze(1), 0.5).squeeze_()
        return f.cross_entropy(self.head(total), labels)


class Lowered(nn.Module):
    """Numbers of low precision: autocast inside, casts there and back, scaled by maxima, rounded; stable sums."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=False):
            h = f.silu(self.first(self.norm(x)))
        scale = h.detach().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        rounded = torch.clamp(torch.round(h / scale), -128, 127) * scale
        h = h + (rounded - h).detach()
        w = self.second.weight
        level = w.abs().mean()
        ternary = (w / (level + 1e-5)).round().clamp(-1, 1) * level
        h = f.linear(h, w + (ternary - w).detach(), self.second.bias)
        total = torch.einsum("...td,...sd->...ts", h, h).softmax(-1, dtype=h.dtype)
        logits = self.head(torch.einsum("...ts,...sd->...td", total, x + h))
        return f.cross_entropy(logits.transpose(-1, -2), labels, reduction="none").masked_fill(
            labels.eq(0), 0
        ).sum() / labels.ne(0).sum().clamp(min=1)


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8, 16), torch.randint(4, (4,))


PRACTICES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "own functions": lambda: (OwnFunctions(), (*_batch(), torch.randint(2, (4,)))),
    "recomputed": lambda: (Recomputed(), _batch()),
    "tracked": lambda: (Tracked(), (torch.randn(4, 8, 16), torch.tensor([2, 0, 3, 1]))),
    "renormed": lambda: (Renorm(), (torch.randn(4, 3, 8, 8), torch.randint(4, (4,)))),
    "hooked": lambda: (Hooked(), _batch()),
    "structured": lambda: (Structured(), (*_batch(), torch.randn(4, 8))),
    "in place": lambda: (InPlace(), (torch.randn(4, 8, 16), torch.rand(4, 8) < 0.3, torch.randint(4, (4,)))),
    "lowered": lambda: (Lowered(), (torch.randn(4, 8, 16), torch.randint(4, (4, 8)))),
}
