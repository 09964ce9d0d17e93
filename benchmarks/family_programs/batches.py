"""Batches of common shapes: what a program reads, and what its loss compares with."""

from __future__ import annotations

import torch
from torch import Tensor


def sequences(goal: int = 16) -> tuple[Tensor, Tensor]:
    """Sequences of vectors, (4, 8, 16), and vectors of the width `goal` for every place."""
    return torch.randn(4, 8, 16), torch.randn(4, 8, goal)


def labelled(width: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Sequences of vectors, (4, 8, width), and a class for each."""
    return torch.randn(4, 8, width), torch.randint(classes, (4,))


def words() -> tuple[Tensor, Tensor]:
    """Numbers of words below 32, (4, 8), and the word for every place."""
    return torch.randint(32, (4, 8)), torch.randint(32, (4, 8))


def marked_words(classes: int = 32, batch: int = 4, length: int = 8) -> tuple[Tensor, Tensor]:
    """Numbers of words without 0, which pads, (batch, length), and the word for every place."""
    return torch.randint(1, classes, (batch, length)), torch.randint(classes, (batch, length))


def rows() -> tuple[Tensor, Tensor]:
    """Vectors, (8, 16), twice."""
    return torch.randn(8, 16), torch.randn(8, 16)


def labelled_rows() -> tuple[Tensor, Tensor]:
    """Vectors, (8, 16), and a class for each."""
    return torch.randn(8, 16), torch.randint(4, (8,))
