"""Rewrites of torch functions to simpler ones that exports and planned tensors have rules for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from shardplan.torch.eager.aliases import in_memory
from shardplan.torch.listed_functions import by_entry, listed_functions

_BAG, _DISTANCES = functional.embedding_bag, torch.cdist
_ATTENTION = functional.scaled_dot_product_attention
_CROSS_ENTROPY, _GAUSSIAN = functional.cross_entropy, functional.gaussian_nll_loss
_SEARCH, _BUCKETS = torch.searchsorted, torch.bucketize
_COVARIANCE, _CORRELATION = torch.cov, torch.corrcoef
_EQUAL = torch.equal
_NORM = _BatchNorm.forward
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__)


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
    """Bags of equal sizes as lookups and a reduction; bags by offsets as products with what is in them."""
    given = (
        input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, padding_idx,
    )  # fmt: skip
    if offsets is not None and max_norm is None:
        starts = offsets[:-1] if include_last_offset else offsets
        return _ragged(input, weight, starts, padding_idx, per_sample_weights, mode)
    if not _is_even(input, offsets, max_norm, scale_grad_by_freq, sparse):
        made: Tensor = _BAG(*given)
        return made
    rows = functional.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is not None:
        return _padded(rows, input != padding_idx % weight.shape[0], mode)
    reduced: Mapping[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda each: each.sum(1),
        "mean": lambda each: each.mean(1),
        "max": lambda each: each.amax(1),
    }
    return reduced[mode](rows)


def _padded(rows: Tensor, inside: Tensor, mode: str) -> Tensor:
    """Bags without the rows [bag, place, width] that are not `inside`: an empty one is zero."""
    held = inside.unsqueeze(-1)
    if mode == "max":
        most: Tensor = torch.where(held, rows, -math.inf).amax(1)
        return torch.where(inside.any(1, keepdim=True), most, 0)
    made: Tensor = torch.where(held, rows, 0).sum(1)
    return made / inside.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else made


def _ragged(
    indices: Tensor, weight: Tensor, starts: Tensor, padding_idx: int | None, shares: Tensor | None, mode: str
) -> Tensor:
    """Bags that begin at `starts`, each up to the next."""
    places = torch.arange(indices.shape[0], device=indices.device)
    ends = torch.cat([starts[1:], torch.full_like(starts[:1], indices.shape[0])])
    inside = (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))
    if padding_idx is not None:
        inside = inside & (indices != padding_idx)
    rows = functional.embedding(indices, weight)
    if mode == "max":
        made: Tensor = torch.where(inside.unsqueeze(-1), rows, -math.inf).amax(1)
        return torch.where(inside.any(1, keepdim=True), made, 0)
    counts = inside.to(rows.dtype)
    made = (counts if shares is None else counts * shares) @ rows
    return made / counts.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else made


def segments(
    input: Tensor,  # noqa: A002 - torch calls it so
    weight: Tensor,
    offsets: Tensor,
    *given: Any,
    **named: Any,
) -> Tensor:
    """Bags by offsets, as `embedding_bag` has them: rows looked up, and added to the bag that each of them is in."""
    bound = _SIGNATURE.bind(input, weight, offsets, *given, **named)
    bound.apply_defaults()
    mode, shares, padding_idx = (bound.arguments[name] for name in ("mode", "per_sample_weights", "padding_idx"))
    starts = (offsets[:-1] if bound.arguments["include_last_offset"] else offsets).long()
    rows, count = functional.embedding(input, weight), input.shape[0]
    begun = torch.zeros(count + 1, dtype=torch.long, device=input.device)
    bag = begun.index_add(0, starts, torch.ones_like(starts))[:count].cumsum(0) - 1
    kept = torch.ones_like(input, dtype=rows.dtype) if padding_idx is None else (input != padding_idx).to(rows.dtype)
    empty = rows.new_zeros(starts.shape[0], weight.shape[1])
    if mode == "max":
        seen = rows.masked_fill((kept == 0).unsqueeze(1), -math.inf)
        made = (empty - math.inf).scatter_reduce(0, bag.unsqueeze(1).expand(rows.shape), seen, "amax")
        return torch.where(made.isinf(), 0.0, made)
    made = empty.index_add(0, bag, rows * (kept if shares is None else kept * shares).unsqueeze(1))
    if mode == "sum":
        return made
    counts = rows.new_zeros(starts.shape[0]).index_add(0, bag, kept)
    return made / counts.clamp(min=1).unsqueeze(1)


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:
    """`torch.cdist`, of which there is no ONNX operator: the norms of all differences."""
    del compute_mode
    made: Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    return made


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *given: Any, **named: Any
) -> Tensor:
    """Attention with any number of dims before the last two as that of a batch of heads, the only one that exports."""
    if query.dim() in {2, 4}:
        made: Tensor = _ATTENTION(query, key, value, attn_mask, *given, **named)
        return made
    lead = query.shape[:-2]
    if attn_mask is not None and attn_mask.dim() > 2:
        attn_mask = _batched(attn_mask.expand(*lead, *attn_mask.shape[-2:]))
    made = _ATTENTION(_batched(query), _batched(key), _batched(value), attn_mask, *given, **named)
    return made.squeeze(1) if len(lead) == 1 else made.unflatten(0, lead[:-1])


def _batched(tensor: Tensor) -> Tensor:
    """With one dim for the batch and one for heads."""
    return tensor.unsqueeze(1) if tensor.dim() == 3 else tensor.flatten(0, -4)


def cross_entropy(input: Tensor, target: Tensor, *given: Any, **named: Any) -> Tensor:  # noqa: A002 - as torch
    """A loss of targets that are chances of every class, which ONNX has no operator for, as products and a sum."""
    bound = _ENTROPY_SIGNATURE.bind(input, target, *given, **named)
    bound.apply_defaults()
    weight, smoothing, reduction = (bound.arguments[name] for name in ("weight", "label_smoothing", "reduction"))
    if not target.is_floating_point() or bound.arguments["size_average"] is not None:
        made: Tensor = _CROSS_ENTROPY(input, target, *given, **named)
        return made
    dim = 1 if input.dim() > 1 else 0
    chances = target * (1 - smoothing) + smoothing / input.shape[dim] if smoothing else target
    if weight is not None:
        chances = chances * weight.reshape(-1, *(1 for _ in input.shape[dim + 1 :]))
    return _reduced(-(input.log_softmax(dim) * chances).sum(dim), reduction)


def gaussian_nll_loss(
    input: Tensor,  # noqa: A002 - as torch
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The same, without looking whether a variance is negative, which no graph can."""
    spread = torch.as_tensor(var, dtype=input.dtype) if not isinstance(var, Tensor) else var
    if spread.dim() == input.dim() - 1 and spread.shape == input.shape[:-1]:
        spread = spread.unsqueeze(-1)
    spread = spread + (spread.clamp(min=eps) - spread).detach()
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,  # noqa: A002 - as torch
    *,
    out_int32: bool = False,
    right: bool = False,
    **others: Any,
) -> Tensor:
    """How many entries are less than a value, or `right` no more, of which there is no ONNX operator: counted."""
    if not isinstance(input, Tensor) or any(value is not None for value in others.values()):
        made: Tensor = _SEARCH(sorted_sequence, input, out_int32=out_int32, right=right, **others)
        return made
    edges = sorted_sequence if sorted_sequence.dim() == 1 else sorted_sequence.unsqueeze(-2)
    values = input.unsqueeze(-1)
    return (edges <= values if right else edges < values).to(torch.int32 if out_int32 else torch.int64).sum(-1)


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:  # noqa: A002 - as torch
    """As `searchsorted`."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def covariance(
    input: Tensor,  # noqa: A002 - as torch
    *,
    correction: int = 1,
    **weights: Any,
) -> Tensor:
    """Of rows, without weights, and without torch's look at these."""
    if any(weight is not None for weight in weights.values()):
        weighted: Tensor = _COVARIANCE(input, correction=correction, **weights)
        return weighted
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    apart = rows - rows.mean(1, keepdim=True)
    made = apart @ apart.mT / max(rows.shape[1] - correction, 0)
    return made if input.dim() == 2 else made.reshape(())


def correlation(input: Tensor) -> Tensor:  # noqa: A002 - as torch
    """Covariances as parts of the spreads."""
    made = covariance(input)
    if not made.dim():
        return made / made
    spread = made.diagonal().sqrt()
    return (made / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)


def are_equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002 - as torch
    """`torch.equal`, which looks at numbers, as a comparison whose answer is looked at."""
    return input.shape == other.shape and bool((input == other).all())


def trace(input: Tensor) -> Tensor:  # noqa: A002 - as torch
    """The sum of a diagonal."""
    return input.diagonal().sum()


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:  # noqa: A002 - as torch
    """Entries of `source`, one after the other, where a mask says: looked up by how many places come before. Of a mask
    that was expanded along the last dim, as features of images are put among words, whole rows."""
    width = input.shape[-1] if input.dim() else 1
    by_row = mask.shape == input.shape and input.dim() > 1 and in_memory(mask).stride()[-1] == 0
    if by_row and source.numel() % width == 0:
        mask, rows = mask[..., :1], source.reshape(-1, width)
    else:
        shape = torch.broadcast_shapes(input.shape, mask.shape)
        mask, rows = mask.expand(shape), source.reshape(-1)
    before = mask.reshape(-1).cumsum(0) - 1
    picked = rows[before.clamp(min=0)].reshape(input.shape if by_row else mask.shape)
    return torch.where(mask, picked, input)


def turned(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:  # noqa: A002 - as torch
    """`torch.rot90`: flips and a transposition."""
    one, other = dims
    quarters = k % 4
    if quarters == 2:
        return input.flip(one, other)
    made = input.flip(other) if quarters == 1 else input.flip(one) if quarters else input.clone()
    return made.transpose(one, other) if quarters else made


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.bilinear`, a kernel of its own, as a product of three tensors."""
    made: Tensor = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return made if bias is None else made + bias


def summed_products(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:  # noqa: A002
    """`torch.addbmm`: products of a batch, summed over it."""
    return input * beta + torch.bmm(batch1, batch2).sum(0) * alpha


def added_product(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:  # noqa: A002
    """`torch.addmv`: a product of a matrix and a vector."""
    return input * beta + torch.mv(mat, vec) * alpha


def added_outer(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:  # noqa: A002
    """`torch.addr`: an outer product of vectors."""
    return input * beta + vec1.unsqueeze(1) * vec2.unsqueeze(0) * alpha


def batch_norm(module: _BatchNorm, input: Tensor) -> Tensor:  # noqa: A002 - as torch
    """The forward pass of a batch norm. One that keeps the mean of all batches (`momentum=None`) reads their number,
    which no graph can: here it goes into the averages as a tensor."""
    count, means = module.num_batches_tracked, (module.running_mean, module.running_var)
    if module.momentum is not None or not module.training or count is None:
        made: Tensor = _NORM(module, input)
        return made
    module._check_input_dim(input)  # noqa: SLF001 - as torch does
    count.add_(1)
    average, variance = (torch.zeros_like(mean) for mean in means)
    made = functional.batch_norm(
        input, average, variance, module.weight, module.bias, training=True, momentum=1.0, eps=module.eps
    )
    for mean, other in zip(means, (average, variance), strict=True):
        share = count.to(mean.dtype).reciprocal()
        mean.mul_(1 - share).add_(other * share)
    return made


def with_stacked_index(func: Any, tensor: Tensor, index: Any, *given: Any) -> Any:
    """`tensor[index]` or its assignment, where sequences of tensors without dims are in the index."""
    items = index if isinstance(index, tuple) else (index,)
    return func(tensor, tuple(torch.stack(tuple(each)) if _is_of_tensors(each) else each for each in items), *given)


def is_by_sequences(func: Any, args: Sequence[Any]) -> bool:
    """Whether items are read or set by sequences of tensors."""
    return func in _INDEXED and isinstance(args[1], tuple) and any(map(_is_of_tensors, args[1]))


def _is_of_tensors(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and bool(item) and all(isinstance(each, Tensor) for each in item)


def plain_form(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The simpler function for a call of `func`, if there is one."""
    if func is _ATTENTION:
        query = args[0] if args else kwargs["query"]
        return None if query.dim() in {2, 4} else attention
    if func is _CROSS_ENTROPY:
        target = args[1] if len(args) > 1 else kwargs["target"]
        return cross_entropy if target.is_floating_point() else None
    if is_by_sequences(func, args):
        return functools.partial(with_stacked_index, func)
    if func is not _BAG:
        return _OF_TENSORS.get(func) or by_entry(func)
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    if _is_even(*(bound.arguments[name] for name in _TELLING)):
        return embedding_bag
    is_plain = not any(bound.arguments[name] for name in ("max_norm", "scale_grad_by_freq", "sparse"))
    return segments if is_plain and bound.arguments["offsets"] is not None else None


_OF_TENSORS: Mapping[Any, Callable[..., Tensor]] = {
    _GAUSSIAN: gaussian_nll_loss,
    torch.bilinear: bilinear,
    **dict.fromkeys((torch.addbmm, Tensor.addbmm), summed_products),
    **dict.fromkeys((torch.addmv, Tensor.addmv), added_product),
    **dict.fromkeys((torch.addr, Tensor.addr), added_outer),
    **dict.fromkeys((torch.trace, Tensor.trace), trace),
    **dict.fromkeys((torch.rot90, Tensor.rot90), turned),
    **dict.fromkeys((torch.masked_scatter, Tensor.masked_scatter), masked_scatter),
}
_SIGNATURE = inspect.signature(embedding_bag)
_ENTROPY_SIGNATURE = inspect.signature(_CROSS_ENTROPY)
_TELLING = ("input", "offsets", "max_norm", "scale_grad_by_freq", "sparse")
"""What `_is_even` looks at."""


def _is_even(
    indices: Tensor,
    offsets: Tensor | None,
    max_norm: float | None,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> bool:
    """Whether bags are the rows of `indices`, and nothing is done but looking up and reducing."""
    plain = max_norm is None and not scale_grad_by_freq and not sparse
    return plain and indices.dim() == 2 and offsets is None


@contextlib.contextmanager
def in_plain_forms() -> Iterator[None]:
    """Within the context, modules call the simpler functions."""
    importlib.import_module("torch._dynamo")  # an export imports it, and it is to find torch's own functions
    torch.cdist, torch.searchsorted, torch.bucketize = distances, searchsorted, bucketize
    torch.cov, torch.corrcoef = covariance, correlation
    torch.equal, _BatchNorm.forward = are_equal, batch_norm
    checks = Distribution._validate_args  # noqa: SLF001 - there is no public way to read it
    Distribution.set_default_validate_args(False)  # it looks at numbers, and a graph has none
    for name, form in _OF_FUNCTIONAL.items():
        setattr(functional, name, form)
    listed = listed_functions()
    owned = {name: getattr(torch, name) for name in listed}
    for name, entries in listed.items():
        setattr(torch, name, entries)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)
        torch.cdist, torch.searchsorted, torch.bucketize = _DISTANCES, _SEARCH, _BUCKETS
        torch.cov, torch.corrcoef = _COVARIANCE, _CORRELATION
        torch.equal, _BatchNorm.forward = _EQUAL, _NORM
        for holder, functions in ((functional, _OWN), (torch, owned)):
            for name, own in functions.items():
                setattr(holder, name, own)


_OF_FUNCTIONAL: Mapping[str, Callable[..., Tensor]] = {
    "embedding_bag": embedding_bag,
    "scaled_dot_product_attention": attention,
    "cross_entropy": cross_entropy,
    "gaussian_nll_loss": gaussian_nll_loss,
}
_OWN = {name: getattr(functional, name) for name in _OF_FUNCTIONAL}
"""torch's own functions of these names."""
