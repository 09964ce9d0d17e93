"""Small models that are trained by loops of one's own (`loops`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Block(nn.Module):
    """A residual net with a norm and a buffer that follows what it sees."""

    level: Tensor

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)
        self.register_buffer("level", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.training:
            self.level.lerp_(h.detach().abs().mean(0), 0.1)
        return x + self.down(f.gelu(self.up(h))) / (1 + self.level.clone())


class Classifier(nn.Module):
    """Two blocks and a head; gives its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(16, 8), nn.Sequential(Block(8, 16), Block(8, 32))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.blocks(self.first(x))), labels)


class Scorer(nn.Module):
    """The same without a loss: scores and features by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.head = nn.Linear(16, 8), Block(8, 16), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.block(self.first(x))
        return {"scores": self.head(h), "features": h}


class Views(nn.Module):
    """Two losses of one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(16, 8), Block(8, 16)
        self.heads = nn.ModuleDict({"sort": nn.Linear(8, 4), "size": nn.Linear(8, 1)})

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = self.block(self.first(x))
        found = {name: head(h) for name, head in self.heads.items()}
        return f.cross_entropy(found["sort"], labels), f.huber_loss(found["size"].squeeze(-1), labels.to(x.dtype))


class Imaged(nn.Module):
    """Images of any size: convolutions, batch norms, one number for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.inner, self.norm = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        h = f.relu(self.norm(self.inner(self.stem(pixels))))
        return f.cross_entropy(self.head(f.adaptive_avg_pool2d(h, 1).flatten(1)), labels)
