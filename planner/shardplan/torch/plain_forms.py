"""Functions of torch as simpler ones, which exports and planned tensors have rules for."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_BAG, _DISTANCES = functional.embedding_bag, torch.cdist


def embedding_bag(
    input: Tensor,  # noqa: A002 - torch calls it so
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of equal sizes as lookups and a reduction; others as torch does them."""
    given = (
        input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, padding_idx,
    )  # fmt: skip
    if not _is_even(input, offsets, max_norm, scale_grad_by_freq, sparse, padding_idx):
        made: Tensor = _BAG(*given)
        return made
    rows = functional.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    reduced: Mapping[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda each: each.sum(1),
        "mean": lambda each: each.mean(1),
        "max": lambda each: each.amax(1),
    }
    return reduced[mode](rows)


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:
    """`torch.cdist`, of which there is no ONNX operator: the norms of all differences."""
    del compute_mode
    made: Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    return made


def plain_form(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The simpler function for a call of `func`, if there is one."""
    if func is not _BAG:
        return None
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return embedding_bag if _is_even(*(bound.arguments[name] for name in _TELLING)) else None


_SIGNATURE = inspect.signature(embedding_bag)
_TELLING = ("input", "offsets", "max_norm", "scale_grad_by_freq", "sparse", "padding_idx")
"""What `_is_even` looks at."""


def _is_even(
    indices: Tensor,
    offsets: Tensor | None,
    max_norm: float | None,
    scale_grad_by_freq: bool,
    sparse: bool,
    padding_idx: int | None,
) -> bool:
    """Whether bags are the rows of `indices`, and nothing is done but looking up and reducing."""
    plain = max_norm is None and padding_idx is None and not scale_grad_by_freq and not sparse
    return plain and indices.dim() == 2 and offsets is None


@contextlib.contextmanager
def in_plain_forms() -> Iterator[None]:
    """Within the context, modules call the simpler functions."""
    functional.embedding_bag, torch.cdist = embedding_bag, distances
    try:
        yield
    finally:
        functional.embedding_bag, torch.cdist = _BAG, _DISTANCES
