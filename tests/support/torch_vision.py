"""A small vision model written as people write them: patches, a class token, biased products, changes in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import shardplan.torch
from shardplan.plan.types import Plan

BATCH, IMAGE, PATCH, HIDDEN, HEADS, CLASSES, KERNEL = 4, 16, 4, 32, 4, 8, 3


class Mixer(nn.Module):
    """Attention by `baddbmm` with a bias of its own, keys and values cut from one product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.both, self.out = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, distance: Tensor) -> Tensor:
        batch, length, _ = x.shape
        seen = self.norm(x)
        both = self.both(seen).view(batch, length, 2, HEADS, -1)
        query = self.query(seen).view(batch, length, HEADS, -1).transpose(1, 2).reshape(batch * HEADS, length, -1)
        keys = both[:, :, 0].permute(0, 2, 3, 1).reshape(batch * HEADS, -1, length)
        values = both[:, :, [-1]].squeeze(2).transpose(1, 2).reshape(batch, HEADS, length, -1)
        scores = distance.baddbmm(batch1=query, batch2=keys, beta=0.5, alpha=0.25)
        shares = torch.softmax(scores.view(batch, HEADS, length, length), -1)
        mixed = torch.matmul(shares, values).transpose(1, 2).reshape(batch, length, HIDDEN)
        made = self.out(mixed)
        made += x
        return made


class Vision(nn.Module):
    """Patches of an image, mixed, and the class that the first token says."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, PATCH, PATCH)
        self.smooth = nn.Conv1d(HIDDEN, HIDDEN, KERNEL, padding=1, groups=HIDDEN)
        self.token = nn.Parameter(torch.zeros(1, 1, HIDDEN))
        self.mixer, self.norm, self.head = Mixer(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        seen = self.patches(pixels).flatten(2)
        seen = (seen + self.smooth(seen)).transpose(1, 2)
        x = torch.cat([self.token.expand(pixels.shape[0], -1, -1), seen], 1)
        places = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        distance = (places[None, :] - places[:, None]).abs().mul(-0.1).expand(BATCH * HEADS, -1, -1)
        x = self.mixer(x, distance)
        return self.head(self.norm(x)[:, 0])


def seeded() -> tuple[Vision, Tensor]:
    """The model and a batch, the same in every process."""
    torch.manual_seed(0)
    return Vision(), torch.randn(BATCH, 3, IMAGE, IMAGE)


def step(plan: Plan) -> tuple[float, float, Any]:
    """One step under `plan` and in one process: errors of the result and of the gradients, and what was not planned."""
    (model, pixels), (reference, _) = seeded(), seeded()
    shardplan.torch.parallelize(model, plan, shardplan.torch.mesh(plan, "cpu"))
    with shardplan.torch.count_comms(model) as counted:
        made = model(pixels)
        made.square().mean().backward()
    expected = reference(pixels)
    expected.square().mean().backward()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    gradients = [(ours.grad.full_tensor() - theirs.grad).abs().max().item() for ours, theirs in pairs]
    differences = {key: pair for key, pair in counted.differences.items() if key[0] == "forward"}
    return (made.full_tensor() - expected).abs().max().item(), max(gradients), differences
