"""Small models of families that people train, of torch's own modules, with their loss inside.

`tests/torch/models/make.py` writes their graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_cases import _gradient_error, mesh_of
from torch_steps import Descent, exported_once

import shardplan.torch
from shardplan.plan.types import Plan


class Encoder(nn.Module):
    """An `nn.TransformerEncoderLayer` under a head, and the loss of the next token, as Hugging Face computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 16)
        layers = [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)]
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(16), nn.Linear(16, 24, bias=False)
        self.recomputes = False

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            if self.recomputes:
                x.requires_grad_()
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        logits = self.head(self.norm(x)).float()
        shifted = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return functional.cross_entropy(logits.view(-1, 24), shifted.view(-1), ignore_index=-100, reduction="mean")


class Attentive(nn.Module):
    """`nn.MultiheadAttention` of one sequence to another, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 4), nn.LayerNorm(16)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool, device=x.device).triu(1)
        made, _ = self.attention(x, other, other, attn_mask=mask, need_weights=False)
        return self.norm(x + made).square().mean()


class Residual(nn.Module):
    """A ResNet's stem and one of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.first, self.first_norm = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.across = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.last, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 8)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(self.relu(self.stem_norm(self.stem(pixels))))
        made = self.second_norm(self.second(self.relu(self.first_norm(self.first(x)))))
        made += self.across(x)
        return functional.cross_entropy(self.head(self.last(self.relu(made)).flatten(1)), labels)


class Upsampling(nn.Module):
    """What a UNet is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(4, 8, 3, 2, 1), nn.GroupNorm(4, 8)
        self.each, self.up, self.out = nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 8, 1), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.silu(self.norm(self.down(x)))
        wide = functional.interpolate(self.up(self.each(inner)), scale_factor=2.0, mode="nearest")
        return functional.mse_loss(self.out(torch.cat([x, wide], 1)), x)


class Assembled(nn.Module):
    """Tables looked up by constants and repeated, one of several parts taken, a gated unit, a row that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.table = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(9, 16))
        self.parts, self.gated, self.out = nn.Linear(16, 48), nn.Linear(16, 32), nn.Linear(16, 8)
        self.register_buffer("places", torch.tensor([0, 3, 5, 8]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.cat([self.row.unsqueeze(0).repeat(4, 1, 1)] * 2, -1)
        shifted = torch.cat([torch.full_like(x[:, :1], 0.5), x[:, :-1]], 1)
        x = torch.cat([shifted, shifted], -1)[:, :4] + at + self.table[self.places]
        three = self.parts(x).unflatten(-1, (3, 16)).permute(2, 0, 1, 3).contiguous()
        x = functional.glu(self.gated(three[0] * three[1] + three[2]), -1)
        return self.out(x).square().mean()


class Recurrent(nn.Module):
    """An LSTM, whose parameters its module keeps in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0]).square().mean()


def seeded(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model and a batch, the same in every process."""
    torch.manual_seed(0)
    ids, pixels = torch.randint(24, (2, 4, 8)), torch.randn(4, 3, 16, 16)
    pair, image, sequence = torch.randn(2, 8, 4, 16), torch.randn(4, 4, 8, 8), torch.randn(4, 8, 8)
    batches: dict[str, tuple[type[nn.Module], dict[str, Tensor]]] = {
        "encoder": (Encoder, {"ids": ids[0], "labels": ids[1]}),
        "attentive": (Attentive, {"x": pair[0], "other": pair[1]}),
        "residual": (Residual, {"pixels": pixels, "labels": torch.tensor([1, 7, 0, 3])}),
        "upsampling": (Upsampling, {"x": image}),
        "recurrent": (Recurrent, {"x": sequence}),
        "assembled": (Assembled, {"x": sequence}),
    }
    kind, batch = batches[name]
    return kind(), batch


def train(
    name: str, plan: Plan, strict: bool, mode: str = "eager", recomputes: bool = False
) -> tuple[list[tuple[float, float]], Any]:
    """Errors of the loss, and of gradients and buffers, of two steps; operations without a rule."""
    (model, batch), (reference, _) = seeded(name), seeded(name)
    model.recomputes = recomputes
    if mode == "exported":
        with exported_once(name):
            model = shardplan.torch.parallelize_exported(
                model, tuple(batch.values()), plan, mesh_of(plan), strict=strict, ignore=("*",)
            )
    else:
        shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=strict, ignore=("*",))
    optimizers = [Descent(each, 0.1) for each in (model, reference)]
    found = []
    for _ in range(2):
        ours, theirs = model(*batch.values()), reference(*batch.values())
        for optimizer, loss in zip(optimizers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss.backward()
        apart = float((ours.full_tensor() - theirs).detach().abs())
        found.append((apart, _gradient_error(model, reference)))
        for optimizer in optimizers:
            optimizer.step()
    return found, dict(model._shardplan.engine.record.without_rule)
