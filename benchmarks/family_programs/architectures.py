"""Programs of architectures: conformers, capsules, fields, adversaries, masked patches, graphs, quantised nets."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, labelled_rows, sequences, words


class Straight(torch.autograd.Function):
    """Rounds; gradients pass where inputs are inside of a range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= ctx.bound), None


class Quantised(nn.Module):
    """Quantisation-aware training: observed ranges as buffers, rounded weights by a function of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("top", torch.ones(1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.training:
            self.top.mul_(0.9).add_(0.1 * x.detach().abs().max())
            self.seen += 1
        x = Straight.apply(x / self.top, 1.0) * self.top
        h = f.linear(x, Straight.apply(self.a.weight, 2.0), self.a.bias).clamp_(-3, 3)
        h *= 0.5
        h[:, ::2] += 0.1
        return f.cross_entropy(f.linear(h, Straight.apply(self.b.weight, 2.0), self.b.bias), labels)


class Cells(nn.Module):
    """A decoder of recurrent cells with attention over an encoder: loops, lists that are stacked, teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.encoder = nn.GRU(16, 8, bidirectional=True, batch_first=True)
        self.cell, self.score, self.out = nn.LSTMCell(32, 16), nn.Linear(32, 1), nn.Linear(16, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.embed(source))
        h, c = memory.mean(1), torch.zeros_like(memory[:, 0])
        logits = []
        for step in range(target.shape[1] - 1):
            pair = torch.cat([memory, h.unsqueeze(1).expand_as(memory)], -1)
            weights = self.score(pair).squeeze(-1).softmax(1)
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            h, c = self.cell(torch.cat([self.embed(target[:, step]), context], -1), (h, c))
            logits.append(self.out(h))
        return f.cross_entropy(torch.stack(logits, 1).transpose(1, 2), target[:, 1:], ignore_index=3)


class Graph(nn.Module):
    """Attention over edges: scores by `scatter_reduce` and `index_add`, a softmax of every node's edges."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.edge = nn.Linear(8, 16), nn.Linear(4, 16)
        self.att, self.out = nn.Parameter(torch.randn(16) * 0.3), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        src, dst = edges
        h = self.node(x)
        message = h.index_select(0, src) + self.edge(features)
        score = f.leaky_relu(message) @ self.att
        top = torch.full((16,), -1e9, device=x.device, dtype=x.dtype).scatter_reduce(0, dst, score.detach(), "amax")
        weight = (score - top[dst]).exp()
        total = torch.zeros(16, device=x.device, dtype=x.dtype).scatter_add(0, dst, weight)
        weight = weight / (total[dst] + 1e-9)
        h = h + torch.zeros_like(h).index_add(0, dst, message * weight[:, None])
        return f.cross_entropy(self.out(h), labels)


class Mixed(nn.Module):
    """Numbers of several kinds: half masks, ints in products, booleans summed, `torch.where` of numbers, promotion."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("steps", torch.arange(16, dtype=torch.int32))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x) + self.steps / 16
        positive = (h > 0).sum(-1, keepdim=True)
        h = h * positive / 16 + torch.where(h > 1, 1.0, h).pow(3) - h.double().mean().to(h.dtype)
        h = h.bfloat16().to(h.dtype) * 0 + h - torch.as_tensor(3) * h.sign() * (labels % 2 == 0)[:, None, None]
        h = torch.nan_to_num(h / h.abs().amax(-1, keepdim=True).clamp_min(1e-3))
        return f.cross_entropy(self.out(h.mean(1)), labels, weight=torch.tensor([1, 2, 1, 0.5], dtype=h.dtype))


class Gated(NamedTuple):
    """Two halves."""

    value: Tensor
    gate: Tensor


class Conformer(nn.Module):
    """A conformer's block: half steps, convolution module with a gate, relative shift of positions (Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.ff, self.back = nn.Linear(16, 32), nn.Linear(32, 16)
        self.point, self.depth, self.last = (
            nn.Conv1d(16, 32, 1),
            nn.Conv1d(16, 16, 3, padding=1, groups=16),
            nn.Conv1d(16, 16, 1),
        )
        self.norm, self.batch = nn.LayerNorm(16), nn.BatchNorm1d(16)
        self.qkv, self.pos, self.u, self.v = (
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            nn.Parameter(torch.randn(4, 4)),
            nn.Parameter(torch.randn(4, 4)),
        )
        self.out = nn.Linear(16, 8)
        self.register_buffer("places", torch.randn(15, 16))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        x = x + 0.5 * self.back(f.silu(self.ff(self.norm(x))))
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 4).unbind(2)
        r = self.pos(self.places).view(15, 4, 4)
        content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        place = f.pad(torch.einsum("bihd,jhd->bhij", q + self.v, r), (1, 0))
        place = place.view(b, 4, 16, t)[:, :, 1:].view_as(place[..., :-1])[..., :t]
        x = x + torch.einsum("bhij,bjhd->bihd", ((content + place) / 2).softmax(-1), v).flatten(2)
        made = Gated(*self.point(self.norm(x).transpose(1, 2)).chunk(2, 1))
        h = self.last(f.silu(self.batch(self.depth(made.value * made.gate.sigmoid()))))
        return f.mse_loss(self.out(x + h.transpose(1, 2)), goal)


class Physics(nn.Module):
    """Fields of coordinates: sines, Fourier features, finite differences, signed distances, a mixture's likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 12)])
        self.register_buffer("b", torch.randn(2, 8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        angles = 2 * math.pi * x @ self.b
        h = torch.cat((angles.sin(), angles.cos()), -1)
        for layer in self.layers[:-1]:
            h = torch.sin(layer(h))
        weight, mean, spread = self.layers[-1](h).tensor_split(3, -1)
        spread = f.softplus(spread) + 0.1
        chance = torch.distributions.Normal(mean, spread, validate_args=False).log_prob(
            y[:, None]
        ) + weight.log_softmax(-1)
        smooth = (mean[1:] - mean[:-1]).diff(dim=0).square().mean() + torch.trapezoid(mean, dim=0).mean()
        return -chance.logsumexp(-1).mean() + 0.01 * smooth + 0.01 * torch.cov(mean.t()).trace()


class Adversary(nn.Module):
    """Two nets in one: a generator with noise maps and demodulated weights, hinge losses, an average of minibatches."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.const = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 8, 4, 4))
        self.weight, self.rgb = nn.Parameter(torch.randn(8, 8, 3, 3)), nn.Conv2d(8, 3, 1)
        self.judge = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 3, 2, 1)), nn.LeakyReLU(0.2))
        self.score = nn.Linear(33, 1)

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        b = z.shape[0]
        w = self.weight[None] * (self.style(z) + 1)[:, None, :, None, None]
        w = w * torch.rsqrt(w.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        h = f.conv2d(self.const.expand(b, -1, -1, -1).reshape(1, -1, 4, 4), w.flatten(0, 1), padding=1, groups=b)
        fake = self.rgb(f.leaky_relu(h.view(b, 8, 4, 4), 0.2)).tanh()

        def judged(image: Tensor) -> Tensor:
            features = self.judge(image).flatten(1)
            spread = features.view(2, -1, 32).std(0, unbiased=False).mean(-1, keepdim=True).repeat(2, 1)
            return self.score(torch.cat([features, spread], 1))

        return f.relu(1 - judged(real)).mean() + f.relu(1 + judged(fake)).mean() - 0.1 * judged(fake).mean()


class Capsules(nn.Module):
    """Capsules routed by agreement: products over five dims, squashing, loops with detached logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(16, 32), nn.Parameter(torch.randn(1, 8, 4, 8, 4) * 0.2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        u = _squashed(self.first(x).view(-1, 8, 4))
        hat = torch.matmul(self.weight, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(*hat.shape[:3], 1, device=x.device, dtype=x.dtype)
        for step in range(3):
            source = hat if step == 2 else hat.detach()
            v = _squashed((b.softmax(2) * source).sum(1))
            b = b + torch.matmul(source.unsqueeze(-2), v[:, None, :, :, None]).squeeze(-1)
        length = v.norm(dim=-1)
        truth = torch.eye(4, device=x.device, dtype=x.dtype).index_select(0, labels)
        return (truth * f.relu(0.9 - length) ** 2 + 0.5 * (1 - truth) * f.relu(length - 0.1) ** 2).sum(1).mean()


def _squashed(x: Tensor) -> Tensor:
    square = (x**2).sum(-1, keepdim=True)
    return square / (1 + square) * x / (square.sqrt() + 1e-6)


class Linear2(nn.Module):
    """Attention without softmax: feature maps, running sums of outer products, retention's group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16), nn.Linear(16, 32)
        self.embed, self.norm = nn.Embedding(32, 16, padding_idx=0), nn.GroupNorm(4, 16, affine=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = f.dropout(self.embed(ids), 0.0, self.training)
        n, t, d = x.shape
        q, k, v = (each.view(n, t, 4, 4).movedim(2, 1) for each in self.qkv(x).split(d, dim=2))
        q, k = f.elu(q) + 1, f.elu(k) + 1
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        total = torch.einsum("nhtd,nhtd->nht", q, k.cumsum(2)).unsqueeze(-1)
        y = torch.einsum("nhtd,nhtde->nhte", q, state) / (total + 1e-6)
        y = self.norm(y.swapaxes(1, 2).reshape(n * t, d)).reshape(n, t, d)
        y = x.lerp(y * self.gate(x).sigmoid(), 0.5)
        valid = (labels > 4).to(y.dtype)
        loss = f.cross_entropy(self.out(y).permute(0, 2, 1), labels, reduction="none")
        return (loss * valid).sum() / valid.sum()


class Tokens(nn.Module):
    """A masked autoencoder: noise sorted into an order, kept patches gathered, mask tokens put back, pixels normed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, 4)
        self.token, self.cls = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.randn(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 17, 16) * 0.1)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(16, 48)

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        n = image.shape[0]
        x = self.embed(image).flatten(2).transpose(1, 2) + self.place[:, 1:]
        order = noise.argsort(1)
        back = order.argsort(1)
        kept = x.gather(1, order[:, :8, None].repeat(1, 1, 16))
        kept = self.block(torch.cat([(self.cls + self.place[:, :1]).expand(n, -1, -1), kept], 1))
        whole = torch.cat([kept[:, 1:], self.token.repeat(n, 8, 1)], 1)
        whole = whole.gather(1, back.unsqueeze(-1).expand(-1, -1, 16)) + self.place[:, 1:]
        patches = image.reshape(n, 3, 4, 4, 4, 4)
        patches = torch.einsum("nchpwq->nhwpqc", patches).reshape(n, 16, 48)
        patches = (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6) ** 0.5
        mask = torch.ones_like(noise).scatter_(1, order[:, :8], 0)
        return (((self.out(whole) - patches) ** 2).mean(-1) * mask).sum() / mask.sum()


class Kept(nn.Module):
    """Results kept between calls: a transposed view of the last one is a buffer, changed in place by the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("last", torch.zeros(16, 8))
        self.register_buffer("spread", torch.zeros(4, 1, 16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x)
        y = h + self.last.t().unsqueeze(0) * 0.1 + self.spread.expand(4, 8, 16) * 0.1
        if self.training:
            with torch.no_grad():
                self.last.lerp_(h.mean(0).t(), 0.5)
                view = self.last.t()
                view[0].zero_()
                view.mul_(0.9)
                self.spread = h.detach().mean(1, keepdim=True)
                self.spread.transpose(0, 2).add_(1.0)
        return f.cross_entropy(self.out(y.mean(1)), labels)


ARCHITECTURES = {
    "quantised": lambda: (Quantised(), labelled_rows()),
    "cells": lambda: (Cells(), words()),
    "edges": lambda: (
        Graph(),
        (torch.randn(16, 8), torch.randint(16, (2, 32)), torch.randn(32, 4), torch.randint(4, (16,))),
    ),
    "mixed numbers": lambda: (Mixed(), labelled()),
    "conformer": lambda: (Conformer(), sequences(8)),
    "fields": lambda: (Physics(), (torch.randn(16, 2), torch.randn(16))),
    "adversary": lambda: (Adversary(), (torch.randn(4, 8), torch.randn(4, 3, 4, 4))),
    "capsules": lambda: (Capsules(), labelled_rows()),
    "linear attention": lambda: (Linear2(), words()),
    "masked patches": lambda: (Tokens(), (torch.randn(4, 3, 16, 16), torch.rand(4, 16))),
    "kept results": lambda: (Kept(), labelled()),
}
