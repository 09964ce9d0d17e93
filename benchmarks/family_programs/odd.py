"""Programs of plain torch that do what models seldom do, and some do: parts that are shared, called twice, recomputed,
changed in place or written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class NnTransformer(nn.Module):
    """`nn.Transformer` with both of its stacks, and its own mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.both = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        made = self.both(self.table(ids), self.table(labels), tgt_mask=mask.to(self.head.weight.dtype))
        return functional.cross_entropy(self.head(made).flatten(0, 1), labels.flatten())


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.mul(4).round().div(4)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Quantised(nn.Module):
    """Products of rounded weights and activations, as in training that knows of quantisation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = functional.linear(x, Straight.apply(self.one.weight), self.one.bias).relu()
        x = functional.linear(x, Straight.apply(self.two.weight), self.two.bias)
        return functional.cross_entropy(x, labels)


class InPlace(nn.Module):
    """Changes views of what it computes, and a buffer that it keeps."""

    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 24), nn.Linear(24, 8)
        self.register_buffer("counts", torch.zeros(24))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        made = self.into(x)
        made[:, :8].mul_(2)
        made[:, 8:16] += made[:, 16:]
        made.view(-1, 3, 8)[:, 2].clamp_(min=0)
        self.counts.add_(made.detach().abs().sum(0))
        return functional.cross_entropy(self.out(made.tanh_()), labels)


class Shared(nn.Module):
    """One weight in two modules, once transposed, and one module called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block, self.norm = nn.Embedding(32, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 48, bias=False), nn.Linear(48, 16, bias=False)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = x + self.block(self.norm(x)).relu()
        x = x + functional.linear(self.up(x).relu(), self.up.weight.t()) + self.down(self.up(x).tanh())
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Recomputed(nn.Module):
    """Blocks that are run again in backward, one by one and as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(self._block() for _ in range(2))
        self.rest = nn.Sequential(*(self._block() for _ in range(4)))
        self.head = nn.Linear(16, 8)

    @staticmethod
    def _block() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for block in self.first:
            x = x + checkpoint(block, x, use_reentrant=False)
        x = checkpoint_sequential(self.rest, 2, x, use_reentrant=False)
        return functional.cross_entropy(self.head(x), labels)


class Messages(nn.Module):
    """A net over a graph given by its edges: gathered, weighed by a softmax over each node's edges, scattered."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.weigh, self.out = nn.Linear(8, 16), nn.Linear(32, 1), nn.Linear(16, 8)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        x = self.into(nodes)
        pair = torch.cat([x.index_select(0, source), x[target]], -1)
        weight = functional.leaky_relu(self.weigh(pair)).exp()
        total = x.new_zeros(x.shape[0], 1).index_add(0, target, weight)
        sent = x[source] * weight / total[target].clamp(min=1e-6)
        made = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(sent), sent)
        return functional.cross_entropy(self.out(made + x), labels)


class Cells(nn.Module):
    """Cells of all three kinds in a loop of one's own, and a packed bidirectional layer of them all."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.LSTMCell(8, 16), nn.GRUCell(16, 16), nn.RNNCell(16, 16)
        self.both = nn.GRU(16, 8, 2, bidirectional=True)
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        state = memory = second = third = x.new_zeros(x.shape[1], 16)
        made = []
        for turn in x:
            state, memory = self.one(turn, (state, memory))
            second = self.two(state, second)
            third = self.three(second, third)
            made.append(third)
        last, _ = self.both(torch.stack(made))
        return functional.cross_entropy(self.out(last[-1]), labels)


class Solved(nn.Module):
    """An equation of motion, integrated by Runge and Kutta's method; energies by `einsum`, `outer` and `bmm`."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        self.metric = nn.Parameter(torch.randn(8, 8) / 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        step = 0.25
        for _ in range(3):
            one = self.field(x)
            two = self.field(x + step / 2 * one)
            three = self.field(x + step / 2 * two)
            four = self.field(x + step * three)
            x = x + step / 6 * (one + 2 * two + 2 * three + four)
        apart = x - goal
        return torch.einsum("bi,ij,bj->b", apart, self.metric @ self.metric.T, apart).mean().sqrt()


class Points(nn.Module):
    """A set of points, whatever their order: shared layers, a maximum, distances, nearest neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.edges = nn.Conv1d(3, 16, 1), nn.Conv2d(32, 16, 1, bias=False)
        self.norm, self.out = nn.BatchNorm2d(16), nn.Linear(32, 8)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        x = self.each(points)
        near = torch.cdist(points.mT, points.mT).topk(4, largest=False).indices
        batch = torch.arange(points.shape[0], device=points.device)[:, None, None]
        others = x.mT[batch, near].permute(0, 3, 1, 2)
        own = x[..., None].expand_as(others)
        made = functional.leaky_relu(self.norm(self.edges(torch.cat([own, others - own], 1))), 0.2).amax(-1)
        return functional.cross_entropy(self.out(torch.cat([made.amax(-1), made.mean(-1)], 1)), labels)


def _rows(width: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(8, width), torch.randint(8, (8,))


def _text() -> tuple[Tensor, Tensor]:
    return torch.randint(32, (4, 8)), torch.randint(32, (4, 8))


ODD = {
    "nn.Transformer": lambda: (NnTransformer(), _text()),
    "own function": lambda: (Quantised(), _rows()),
    "in place": lambda: (InPlace(), _rows()),
    "shared weights": lambda: (Shared(), _text()),
    "recomputed": lambda: (Recomputed(), _rows()),
    "messages": lambda: (
        Messages(),
        (torch.randn(8, 8), torch.randint(8, (16,)), torch.randint(8, (16,)), torch.randint(8, (8,))),
    ),
    "cells": lambda: (Cells(), (torch.randn(6, 4, 8), torch.randint(8, (4,)))),
    "runge kutta": lambda: (Solved(), (torch.randn(8, 8), torch.randn(8, 8))),
    "points": lambda: (Points(), (torch.randn(4, 3, 16), torch.randint(8, (4,)))),
}
