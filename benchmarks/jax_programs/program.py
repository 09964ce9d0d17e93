"""What a program of the table is, and what all of them draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DRAW = np.random.default_rng(11)


@dataclass(frozen=True)
class Program:
    """`loss(params, *batch)`, with what is drawn for it; `pins`: a split in the manner of Megatron."""

    loss: Callable[..., Any]
    params: Any
    batch: tuple[Any, ...]
    pins: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return jnp.asarray(_DRAW.standard_normal(shape).astype(np.float32) * scale)


def ids(*shape: int, below: int) -> Any:
    return jnp.asarray(_DRAW.integers(below, size=shape).astype(np.int32))


def kernel(*shape: int) -> Any:
    """A weight whose second dim from the end is summed over."""
    return normal(*shape, scale=shape[-2] ** -0.5)


def entropy(logits: Any, targets: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))
