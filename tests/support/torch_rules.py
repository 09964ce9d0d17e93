"""Functions of torch on planned tensors beside the same on plain ones, however the operands are sharded."""

from __future__ import annotations

import functools
import itertools
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_twins
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.placement import P, R, S
from shardplan.torch.applied_plan import applied_to
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.eager.planned_tensor import Planned, value_of
from shardplan.torch.propagation.engine import Record
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value


def _turned(x: Tensor, y: Tensor) -> Tensor:
    turns = torch.view_as_complex(y)
    return torch.view_as_real(torch.view_as_complex(x) * (turns / turns.abs())).flatten(-2)


def _in_parts(x: Tensor) -> Tensor:
    number = torch.view_as_complex(x)
    whole = number.sum(0) * number
    return whole.real * number.angle() + whole.conj().imag + number.abs() + (1j * number).real


class Exp(torch.autograd.Function):
    """Saves its result, as programs do that compute a backward of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        made = (times * x).exp()
        ctx.save_for_backward(made)
        ctx.times = times
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return gradient * made * ctx.times, None


class Scored(torch.autograd.Function):
    """Sums over what a part has only a part of, forward and backward; its backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x.softmax(-1) @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return 3 * (gradient @ w.T), x.T @ gradient


class Kept(torch.autograd.Function):
    """Gives on what it is given, and no gradient to one of two."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, _other: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -gradient, None


class Halves(torch.autograd.Function):
    """Has two results."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Any:
        return x.chunk(2, -1)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.cat(gradients, -1)


def below(function: Callable[..., Any], *operands: Tensor) -> Any:
    """What a function does with operands that it does not ask."""
    with torch._C.DisableTorchFunctionSubclass():
        return function(*operands)


def changed_view(x: Tensor, y: Tensor) -> Tensor:
    """A piece is changed; the whole is read."""
    x.narrow(1, 4, 4).mul_(y)
    return x.exp()


def changed_by(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    """What a view of a tensor has been changed in is read from the tensor."""
    made = x * 1
    change(made)
    return made * 2


def changed_base(x: Tensor) -> Tensor:
    """The whole is changed; a piece and a transpose from before are read."""
    piece, turned = x.narrow(1, 8, 8), x.t()
    x.mul_(3).add_(1)
    return piece + turned.t()[:, :8]


def changed_inner(x: Tensor) -> Tensor:
    """A view of a view is changed; what both are views of, and another view of it, are read."""
    other = x.flatten(1)
    x.transpose(1, 2)[:, 2:4].zero_()
    return x.flatten(1) * other


def items_set(x: Tensor, y: Tensor) -> Tensor:
    """Some columns become another tensor."""
    x[:, 2:6] = y
    return x * 2


def items_added(x: Tensor, y: Tensor) -> Tensor:
    """Another tensor is added to some columns."""
    x[:, :4] += y
    return x * 2


def found_by_class(x: Tensor, y: Tensor) -> Tensor:
    """A function of the library that a tensor's class is of, as libraries for several kinds of arrays find it."""
    made: Tensor = sys.modules[type(x).__module__.partition(".")[0]].tensordot(x, y, 1)
    return made


def _set(whole: Tensor, index: Any, items: Any) -> Tensor:
    whole[index] = items
    return whole


def _layers(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Two layers of LSTM, both ways, from states that are computed."""
    begin = x[:, :, :4].mean(0, keepdim=True).expand(4, 4, 4)
    made, state, memory = torch.lstm(x, (begin, begin * 2), weights, True, 2, 0.5, False, True, False)
    return made.sum(0) + torch.cat([state.sum(0), memory[1] * memory[2]], 1)


def changed_after(x: Tensor) -> Tensor:
    """The operand of a function is changed in place before the result is read."""
    inner = x * 2
    made = Exp.apply(inner, 0.5)
    inner *= 3
    return made * inner


LOST: dict[str, Callable[[Tensor], Tensor]] = {
    "unread": lambda x: Kept.apply(x, Exp.apply(x, 0.5)) + 1,
    "changed": changed_after,
    "reentrant": lambda x: checkpoint(torch.tanh, x, use_reentrant=True) + 1,
}
"""What cannot be done with functions of one's own."""


def product_of(one: Tensor, other: Tensor) -> Tensor:
    return one * other.exp()


def gradient_inside(x: Tensor, y: Tensor) -> Tensor:
    """As penalties of gradients are made."""
    inner = (x * 1).requires_grad_()
    energy = (inner @ y.T).softmax(-1).square().sum(1)
    (slope,) = torch.autograd.grad(energy, inner, torch.ones_like(energy), create_graph=True)
    return slope.square() * inner


def branched(x: Tensor, y: Tensor) -> Tensor:
    """A branch that a number decides, and a loop that others end; in a model under a plan, nothing is compiled."""
    with torch.compiler.set_stance("force_eager" if isinstance(x, Planned) else "default"):
        made = torch.cond(x.sum() > y.sum(), lambda one, other: one * 2 + other, lambda one, other: one - other, (x, y))
        small = torch.while_loop(lambda each: each.abs().max() > 1, lambda each: (each * 0.5,), (made.detach(),))
    return made * small[0]


def windows_by_strides(x: Tensor, y: Tensor) -> Tensor:
    """Windows by strides that are written out, of a transposed tensor and of a piece of one, and by asking for them."""
    turned, piece, later = (x * 1).transpose(1, 2), (y * 1)[..., 8:], (y * 1)[:, 1:]
    one = turned.as_strided((4, 5, 4, 8), (64, 8, 8, 1))
    other = torch.as_strided(piece, (4, 5, 4, 8), (128, 16, 16, 1), 8)
    row, step, place = later.stride()
    rest = later.as_strided((4, 5, 2, 16), (row, step, step, place), later.storage_offset())
    return (one * other).sum(2) + rest[..., 0, 8:]


def diagonal_set(x: Tensor) -> Tensor:
    made = x * 2
    made.diagonal().fill_(1.5)
    return made * x


WEIGHTS = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
PLACES = torch.tensor([[0, 3, 1, 2, 7, 5, 6, 4], [3] * 8, [7] * 8, [0, 1] * 4])
"""Rows of a table that are looked up."""
Case = tuple[Callable[..., Any], Sequence[tuple[int, ...]]]
"""A function of tensors, and their shapes."""

CASES: dict[str, Case] = {
    "add": (lambda x, y: x + y, [(4, 8), (4, 8)]),
    "add, broadcast": (lambda x, y: x + 2 * y, [(4, 8, 4), (8, 1)]),
    "add in place": (lambda x, y: (x * 1).add_(y), [(4, 8), (4, 8)]),
    "turned as complex numbers": (_turned, [(4, 8, 2), (8, 2)]),
    "polar": (lambda x, y: torch.view_as_real(torch.polar(x.exp(), y).conj() * torch.complex(y, x)), [(4, 8), (8,)]),
    "parts of a complex number": (_in_parts, [(4, 8, 2)]),
    "rfft and irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1)[:, :3], n=8, dim=1), [(4, 8, 4)]),
    "fft2": (lambda x: torch.fft.fftn(torch.fft.fft2(x), dim=(0,)).real, [(2, 4, 8)]),
    "mv and dot": (lambda x, y: torch.mv(x, y) + torch.dot(y, y), [(4, 8), (8,)]),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1, 2], [0, -1])), [(4, 8, 2), (8, 4, 2)]),
    "tensordot of last dims": (lambda x, y: torch.tensordot(x, y, 1), [(4, 8), (8, 2, 4)]),
    "convolution of each channel beyond its size": (
        lambda x, w: functional.conv2d(x, w, padding=(8, 0), groups=4),
        [(4, 4, 8, 2), (4, 1, 17, 1)],
    ),
    "rows where a condition is true": (lambda x: x[torch.where(x[:, 0] > 0)[0]].sum(0), [(8, 4)]),
    "places where a condition is true": (lambda x: x[torch.where(x > 0)].cumsum(0)[-1] + x, [(4, 8)]),
    "diag_embed": (torch.diag_embed, [(4, 8)]),
    "rsub and div": (lambda x, y: (1 - x) / (2 + y * y), [(4, 8), (8,)]),
    "pow and sqrt": (lambda x: (x**2 + 1).sqrt(), [(4, 8)]),
    "gelu": (lambda x: functional.gelu(x, approximate="tanh"), [(4, 8)]),
    "silu": (functional.silu, [(4, 8)]),
    "softplus and tanh": (lambda x: functional.softplus(x).tanh(), [(4, 8)]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [(4, 8), (4, 8)]),
    "masked_fill": (lambda x: x.masked_fill(x < 0, -3.0), [(4, 8)]),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), [(4, 8)]),
    "maximum": (torch.maximum, [(4, 8), (4, 8)]),
    "nan_to_num": (torch.nan_to_num, [(4, 8)]),
    "sum": (lambda x: x.sum(1), [(4, 8, 4)]),
    "sum, as NumPy names it": (lambda x: x.sum(axis=1, keepdims=True), [(4, 8, 4)]),
    "mean and amax, as NumPy names them": (lambda x: x.mean(axis=-1) + x.amax(axis=(2,)), [(4, 8, 4)]),
    "cat, as NumPy names it": (lambda x, y: torch.cat([x, y], axis=1), [(4, 8), (4, 8)]),
    "unbind and stack, as NumPy names them": (lambda x: torch.stack(x.unbind(axis=1), axis=0), [(4, 8)]),
    "softmax and flip, as NumPy names them": (lambda x: x.softmax(axis=1).cumsum(axis=1).unsqueeze(axis=0), [(4, 8)]),
    "mean": (lambda x: x.mean((0, -1), keepdim=True), [(4, 8, 4)]),
    "mean of all": (lambda x: x.mean(), [(4, 8)]),
    "amax": (lambda x: x.amax(-1), [(4, 8)]),
    "var": (lambda x: x.var(-1, unbiased=False), [(4, 8)]),
    "var of all and std": (lambda x: x.std(-1, keepdim=True) / x.var(True), [(4, 8)]),
    "var_mean": (lambda x: torch.stack(torch.var_mean(x, (0, -1), correction=0)), [(4, 8, 4)]),
    "norms": (lambda x: x.norm() * x.norm(3, dim=1) + torch.linalg.vector_norm(0 * x, dim=1), [(4, 8, 4)]),
    "prelu and hardshrink": (lambda x, y: functional.hardshrink(functional.prelu(x, y), 0.2), [(4, 8), (8,)]),
    "set by a mask": (lambda x: _set(x * 1, x < 0, 0.5), [(4, 8)]),
    "binary cross entropy": (
        lambda x, y: (
            functional.binary_cross_entropy_with_logits(x, y, pos_weight=WEIGHTS)
            + functional.binary_cross_entropy(x.sigmoid(), y.sigmoid(), WEIGHTS, reduction="sum")
        ),
        [(4, 8), (4, 8)],
    ),
    "cross entropy of soft labels": (
        lambda x, y: functional.cross_entropy(x, y.softmax(1), WEIGHTS, label_smoothing=0.1),
        [(4, 8, 2), (4, 8, 2)],
    ),
    "cross entropy, weighted and smoothed": (
        lambda x: functional.cross_entropy(x, PLACES[:, :2], WEIGHTS, ignore_index=3, label_smoothing=0.1),
        [(4, 8, 2)],
    ),
    "logsumexp": (lambda x: x.logsumexp(-1), [(4, 8)]),
    "cumsum": (lambda x: x.cumsum(1), [(4, 8)]),
    "softmax": (lambda x: x.softmax(-1), [(4, 8)]),
    "log_softmax": (lambda x: functional.log_softmax(x, 0), [(4, 8)]),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (8,), w, b), [(4, 4, 8), (8,), (8,)]),
    "rms_norm": (lambda x, w: functional.rms_norm(x, (8,), w, 1e-6), [(4, 4, 8), (8,)]),
    "reshape that splits": (lambda x: x.reshape(4, 4, 4), [(4, 16)]),
    "view that merges": (lambda x: x.view(-1, 8), [(4, 4, 8)]),
    "view that does both": (lambda x: x.view(4, 2, 16), [(4, 4, 8)]),
    "flatten": (lambda x: x.flatten(1), [(4, 4, 8)]),
    "unflatten": (lambda x: x.unflatten(1, (4, 4)), [(4, 16)]),
    "transpose": (lambda x: x.transpose(0, 1).mT, [(4, 8, 4)]),
    "permute": (lambda x: x.permute(2, 0, 1), [(4, 8, 4)]),
    "squeeze": (lambda x: x.squeeze(1).unsqueeze(-1), [(4, 1, 8)]),
    "expand": (lambda x: x.expand(-1, 4, -1), [(4, 1, 8)]),
    "repeat": (lambda x: x.repeat(2, 1), [(4, 8)]),
    "repeat to a new dim": (lambda x: x.repeat(3, 1, 2), [(4, 8)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), [(4, 4, 8)]),
    "chunk": (lambda x: sum(x.chunk(2, -1)), [(4, 16)]),
    "split": (lambda x: torch.cat(x.split([4, 8, 4], 1)[::-1], 1), [(4, 16)]),
    "unbind": (lambda x: x.unbind(1)[2], [(4, 4, 8)]),
    "slices": (lambda x: x[:, 4:12], [(4, 16)]),
    "slices from the end": (lambda x: x[..., -4:], [(4, 16)]),
    "an empty slice": (lambda x: torch.cat([x[:, :16], x[:, 16:]], 1), [(4, 16)]),
    "slices with steps": (lambda x: x[:, ::2] * x[:, 1::2], [(4, 16)]),
    "a list of one": (lambda x: x[:, [-1]], [(4, 4, 8)]),
    "new dims": (lambda x: x[:, None, ..., 0], [(4, 4, 8)]),
    "select": (lambda x: x.select(1, -1), [(4, 4, 8)]),
    "narrow": (lambda x: x.narrow(1, 4, 8), [(4, 16)]),
    "cat": (lambda x, y: torch.cat([x, y], -1), [(4, 8), (4, 16)]),
    "stack": (lambda x, y: torch.stack([x, y], 1), [(4, 8), (4, 8)]),
    "flip": (lambda x: x.flip(1), [(4, 8)]),
    "flip of two dims": (lambda x: x.flip(0, 1) + torch.flip(x, (-1,)), [(4, 8)]),
    "roll": (lambda x: x.roll(2, 1) + torch.roll(x, (1, 3), (0, 1)) + x.roll(1), [(4, 8)]),
    "larger of two": (lambda x, y: torch.max(x, y) * x.min(other=y), [(4, 8), (4, 8)]),
    "entries of a rank": (
        lambda x: x.median(1).values * x.kthvalue(2, 1)[0] + x.median() + torch.mode(x.round(), 1).values,
        [(4, 8, 4)],
    ),
    "distances": (torch.cdist, [(4, 8, 4), (4, 4, 4)]),
    "samples at places": (
        lambda x, y: functional.grid_sample(x, y.tanh(), align_corners=False),
        [(4, 4, 4, 4), (4, 4, 4, 2)],
    ),
    "named results": (lambda x: x.topk(3, -1).values.sum(-1) + x.max(1).values, [(4, 8)]),
    "embedding": (lambda w: functional.embedding(PLACES, w), [(8, 4)]),
    "embedding with padding": (
        lambda w: functional.embedding(PLACES, w, 3) * functional.embedding(PLACES, w, padding_idx=-1),
        [(8, 4)],
    ),
    "embedding of bounded norm": (lambda w: functional.embedding(PLACES, w * 1, max_norm=1.0), [(8, 4)]),
    "embedding_bag": (lambda w: functional.embedding_bag(PLACES, w, mode="sum"), [(8, 4)]),
    "embedding_bag without a row": (
        lambda w: (
            functional.embedding_bag(PLACES, w, padding_idx=3)
            * functional.embedding_bag(PLACES, w, mode="max", padding_idx=-5)
        ),
        [(8, 4)],
    ),
    "embedding_bag of unequal bags": (
        lambda w: functional.embedding_bag(PLACES.flatten(), w, torch.tensor([0, 3, 3, 20])),
        [(8, 4)],
    ),
    "weighted and largest of unequal bags": (
        lambda w: (
            functional.embedding_bag(PLACES[0], w, torch.tensor([0, 3, 8]), None, 2, False, "sum", False, WEIGHTS, True)
            * functional.embedding_bag(PLACES[0], w, torch.tensor([0, 2]), mode="max", padding_idx=3)
        ),
        [(8, 4)],
    ),
    "rows by number": (lambda x: x[:, torch.tensor([[0, -1], [3, 3]])] * x[..., [0, 2], None].sum(), [(4, 8, 4)]),
    "rows by number, from a value": (lambda x, y: x[y.detach().abs().long() % 4] + y.sum(), [(4, 8), (4, 4)]),
    "the element of each row": (lambda x: x[torch.arange(4), torch.tensor([0, 3, 7, -1])], [(4, 8, 4)]),
    "elements of each row": (lambda x: x[torch.arange(4)[:, None], PLACES[:4, :3]], [(4, 8, 4)]),
    "elements by two lists": (
        lambda x: x[:, [0, 3, -1], [1, 2, 0]] * x[None, PLACES[:2, :2], 1:][0].sum(),
        [(4, 8, 4)],
    ),
    "rows by a mask": (lambda x: x[torch.tensor([True, False, True, True])], [(4, 8)]),
    "index_select": (lambda x: x.index_select(1, torch.tensor([5, 0, 5])), [(4, 8)]),
    "gather": (lambda x: x.gather(1, PLACES[:4]) * torch.gather(x, 0, PLACES[3:4, :4]).sum(), [(4, 8)]),
    "take_along_dim": (lambda x: torch.take_along_dim(x, PLACES[:, :4], 1), [(4, 8)]),
    "scatter": (
        lambda x, y: (x * 1).scatter_(1, PLACES[:1], y[:1]).scatter(0, PLACES[3:, :4] % 4, 2.0),
        [(4, 8), (4, 8)],
    ),
    "scatter_add": (lambda x, y: x.scatter_add(1, PLACES[:4], y), [(4, 8), (4, 8)]),
    "scatter_reduce": (
        lambda x, y: x.scatter_reduce(1, PLACES[:4], y, "amax", include_self=False),
        [(4, 8), (4, 8)],
    ),
    "index_add": (lambda x, y: x.index_add(1, torch.tensor([3, 0, 3, 1]), y, alpha=2), [(4, 8), (4, 4)]),
    "index_copy": (lambda x, y: (x * 1).index_copy_(0, torch.tensor([3, 0]), y), [(4, 8), (2, 8)]),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([3, 0]), 0.5), [(4, 8)]),
    "an item set": (lambda x: _set(x * 1, (slice(None), 3), 2.0) + _set(x * 1, (..., slice(1, None, 2)), 0), [(4, 8)]),
    "a tensor in new zeros": (lambda x: _set(x.new_zeros(4, 9), (slice(None), slice(1, None)), x), [(4, 8)]),
    "an item set by numbers": (lambda x, y: _set(x * 1, torch.tensor([2, 0]), y), [(4, 8), (2, 8)]),
    "columns set by numbers": (lambda x, y: _set(x * 1, (..., torch.tensor([5, -1])), y), [(4, 8), (4, 2)]),
    "elements set by two lists": (lambda x: _set(x * 1, ([0, 3], [1, 2]), 0.5), [(4, 8, 4)]),
    "items added by numbers": (
        lambda x, y: x.index_put((torch.tensor([3, 0, 3, 1]),), y, accumulate=True),
        [(4, 8), (4, 8)],
    ),
    "elements set by arrays": (
        lambda x, y: _set(x * 1, (np.array([0, 3]), np.array([1, 2])), y) * x[..., np.array([5, 1])].sum(),
        [(4, 8), (2,)],
    ),
    "elements set by an array of truths": (lambda x: _set(x * 1, (np.array([True, False] * 2), 1), 0.5), [(4, 8)]),
    "rows set by a mask": (lambda x, y: _set(x * 1, torch.tensor([True, False, True, True]), y), [(4, 8), (8,)]),
    "parts set": (
        lambda x, y: x.slice_scatter(y, 1, 2, 10, 2).select_scatter(y[:, 0] * 2, -1, 7),
        [(4, 12), (4, 4)],
    ),
    "asked whether it contains": (lambda x: x * (2 if 7.5 in x else 3), [(4, 8)]),
    "asked for a number": (lambda x: x * float(x.sum()) if x.mean() > 7 else x * x.abs().amax().item(), [(4, 8)]),
    "matmul from the right": (lambda x, y: x.__rmatmul__(y), [(4, 8), (8, 4)]),
    "repeat_interleave of elements": (lambda x: x.repeat_interleave(2), [(4, 8)]),
    "a slice by name": (lambda x: torch.ops.aten.slice.Tensor(x, dim=1, start=2, end=7), [(4, 8)]),
    "the mean of a number": (lambda x: x.sum().mean(), [(4, 8)]),
    "tril": (lambda x: x.tril() + torch.triu(x, 1) * 2, [(4, 4, 8)]),
    "windows": (lambda x: x.unfold(1, 4, 2), [(4, 8, 4)]),
    "windows of space": (
        lambda x: functional.fold(functional.unfold(x, 3, padding=1) * 2, (4, 4), 3, padding=1),
        [(4, 8, 4, 4)],
    ),
    "softmax of a number": (lambda x: x.sum().softmax(0) * x, [(4, 8)]),
    "rotate half": (lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), [(4, 4, 8)]),
    "linear": (functional.linear, [(4, 4, 8), (16, 8), (16,)]),
    "linear of one row": (functional.linear, [(8,), (16, 8)]),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), [(16,), (4, 8), (8, 16)]),
    "baddbmm": (lambda b, x, w: b.baddbmm(x, w, alpha=0.5), [(4, 4, 16), (4, 4, 8), (4, 8, 16)]),
    "matmul": (torch.matmul, [(4, 4, 4, 8), (4, 8, 4)]),
    "matmul with a vector": (torch.matmul, [(4, 4, 8), (8,)]),
    "einsum with an ellipsis": (lambda x, y: torch.einsum("...ij, jk", x, y), [(4, 4, 8), (8, 4)]),
    "matrices solved and inverted": (
        lambda x, y: (
            torch.linalg.solve_triangular(x + 9 * torch.eye(4), torch.linalg.inv(y + 9 * torch.eye(4)), upper=True)
            * torch.linalg.det(x)[:, None, None]
        ),
        [(4, 4, 4), (4, 4, 4)],
    ),
    "einsum of a diagonal": (lambda x: torch.einsum("bii->b", x), [(4, 4, 4)]),
    "einsum": (lambda x, y: torch.einsum("bik, bjk -> bij", x, y), [(4, 4, 8), (4, 8, 8)]),
    "a function of one's own": (lambda x: 1 + Exp.apply(x, 0.5), [(4, 8)]),
    "a function of one's own, with sums": (lambda x, w: Scored.apply(x, w) * 2, [(4, 8), (8, 16)]),
    "a function of two results": (lambda x: product_of(*Halves.apply(x)), [(4, 8)]),
    "one result of two": (lambda x: Halves.apply(x * 1)[1].sin(), [(4, 8)]),
    "functions of one's own, one of the other": (
        lambda x, y: Exp.apply(Exp.apply(x, 0.5), 0.5) + Exp.apply(y, 0.1) * Halves.apply(Exp.apply(x, 1.0))[0].sum(),
        [(4, 8), (4, 8)],
    ),
    "a function of one's own, of nothing": (lambda x, y: Kept.apply(x, y) + y, [(4, 8), (4, 8)]),
    "conv1d": (lambda x, w, b: functional.conv1d(x, w, b, padding=1), [(4, 8, 8), (16, 8, 3), (16,)]),
    "conv1d of one": (functional.conv1d, [(8, 8), (4, 8, 3), (4,)]),
    "conv2d of groups": (lambda x, w: functional.conv2d(x, w, stride=2, groups=4), [(4, 8, 8, 8), (16, 2, 2, 2)]),
    "conv_transpose1d": (
        lambda x, w, b: functional.conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1),
        [(4, 8, 8), (8, 4, 3), (4,)],
    ),
    "conv_transpose2d of groups": (
        lambda x, w: functional.conv_transpose2d(x, w, groups=4, dilation=2),
        [(4, 8, 4, 4), (8, 2, 2, 2)],
    ),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), [(8, 4, 4), (8, 1, 1)]),
    "a function taken apart": (lambda x, y: functional.cosine_similarity(x, y, -1), [(4, 8), (4, 8)]),
    "a recurrent layer": (
        lambda x, w, u, b: torch.gru(x, x.new_zeros(1, 4, 4), [w, u, b, b], True, 1, 0.0, True, False, True)[0],
        [(4, 4, 8), (12, 8), (12, 4), (12,)],
    ),
    "recurrent layers both ways": (
        lambda x, w, u, b, v: _layers(x, [w, u, b, b, w, u, b, b, v, u, b, b, v, u, b, b]),
        [(3, 4, 8), (16, 8), (16, 4), (16,), (16, 8)],
    ),
    "recurrent cells": (
        lambda x, w, u: sum(torch.lstm_cell(x, [x[:, :4], x[:, 4:]], w, u)) + torch.gru_cell(x, x[:, 4:], w[4:], u[4:]),
        [(4, 8), (16, 8), (16, 4)],
    ),
    "norm": (
        lambda x: functional.normalize(x, dim=1) * x.norm(3, -1, keepdim=True) + torch.linalg.vector_norm(x),
        [(4, 8)],
    ),
    "nll_loss": (
        lambda x: (
            functional.nll_loss(x.log_softmax(1), torch.tensor([3, 0, 15, -100]))
            + functional.nll_loss(x, torch.tensor([3, 0, 15, 9]), reduction="sum")
        ),
        [(4, 16)],
    ),
    "copy": (lambda x, y: x.new_empty(4, 8).copy_(y) * x, [(4, 8), (8,)]),
    "a transform of complex numbers": (lambda x: torch.fft.hfft2(x.to(torch.complex128)).sum(), [(4, 8, 4)]),
    "batch_norm": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        [(4, 8, 4, 4), (8,), (8,)],
    ),
    "batch_norm by ATen": (
        lambda x, w: torch.batch_norm(x, w, None, None, None, True, 0.1, 1e-5, False),
        [(4, 8, 4), (8,)],
    ),
    "group_norm": (lambda x, w, b: functional.group_norm(x, 2, w, b), [(4, 8, 4, 4), (8,), (8,)]),
    "group_norm of many groups": (lambda x: functional.group_norm(x, 8), [(4, 16, 4)]),
    "instance_norm": (lambda x, w: functional.instance_norm(x, weight=w), [(4, 8, 4, 4), (8,)]),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), [(4, 8, 8, 8)]),
    "max_pool2d with indices": (
        lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True)[0],
        [(4, 8, 8, 8)],
    ),
    "avg_pool1d": (lambda x: functional.avg_pool1d(x, 3, padding=1), [(4, 8, 8)]),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, 2), [(4, 8, 8, 8)]),
    "interpolate": (
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        [(4, 8, 4, 4)],
    ),
    "pad": (lambda x: functional.pad(x, (0, 0, 1, 2), value=0.5), [(4, 8, 8)]),
    "pad by reflection": (lambda x: functional.pad(x, (2, 1), mode="reflect"), [(4, 8, 8)]),
    "pixel_shuffle": (lambda x: functional.pixel_shuffle(x, 2), [(4, 8, 4, 4)]),
    "cross_entropy": (lambda x: functional.cross_entropy(x, torch.tensor([3, 0, 15, 9])), [(4, 16)]),
    "cross_entropy with ignored rows": (
        lambda x: functional.cross_entropy(x.transpose(1, 2), torch.tensor([[3, 0, -1, 9]] * 4), ignore_index=-1),
        [(4, 4, 16)],
    ),
    "cross_entropy of each row": (
        lambda x: functional.cross_entropy(x, torch.tensor([3, 0, 15, 9]), reduction="none"),
        [(4, 16)],
    ),
    "cross_entropy, smoothed": (
        lambda x: functional.cross_entropy(x, torch.tensor([3, 0, 15, 9]), label_smoothing=0.1, reduction="sum"),
        [(4, 16)],
    ),
    "cross_entropy of few": (lambda x: functional.cross_entropy(x, torch.tensor([3, 0, 15, -100])), [(4, 16)]),
    "casts like another": (lambda x, y: x.type_as(y) * 2 + x.to(y).exp() * y.sum(), [(4, 8), (2, 4)]),
    "mse_loss": (functional.mse_loss, [(4, 8), (4, 8)]),
    "smooth_l1_loss": (lambda x, y: functional.smooth_l1_loss(x, y, reduction="sum", beta=0.5), [(4, 8), (4, 8)]),
    "a view changed in place": (lambda x, y: changed_view(x * 1, y), [(4, 16), (4, 4)]),
    "a view of what is changed": (lambda x: changed_base(x * 1), [(4, 16)]),
    "a view of a view changed in place": (lambda x: changed_inner(x * 1), [(4, 4, 8)]),
    "a diagonal changed in place": (lambda x, y: changed_by(x, lambda z: z.diagonal().add_(y)), [(8, 8), (8,)]),
    "unfolded dims changed in place": (lambda x: changed_by(x, lambda z: z.unfold(1, 2, 2).mul_(3)), [(4, 8)]),
    "a view like another changed in place": (
        lambda x, y: changed_by(x, lambda z: z.view_as(y).exp_()) + y.sum(),
        [(4, 8), (8, 4)],
    ),
    "views changed by operators of bits": (lambda x, y: changed_bits(x * 1, y), [(4, 16), (4, 4)]),
    "views that functions write into": (lambda x, y: with_written_views(x * 1, y), [(4, 8), (2, 8)]),
    "copies changed in place": (
        lambda x: changed_by(x, lambda z: (z.t().contiguous().mul_(2), z.t().reshape(-1).add_(1))),
        [(4, 8)],
    ),
    "a tensor of the program that is written": (
        lambda x, w: torch.zeros(4, 8, dtype=x.dtype).copy_((x.detach() @ w.detach())[:, 0]) * x[:, 0] + w.sum(),
        [(4, 2, 8), (8, 8)],
    ),
    "channels dropped whole": (
        lambda x: (functional.dropout1d(x, 0.5) == 0).to(x.dtype).var(-1) + x.sum(-1),
        [(4, 8, 4)],
    ),
    "cross_entropy of chances": (
        lambda x, y: functional.cross_entropy(x, y.softmax(1), label_smoothing=0.1, weight=torch.ones(8).to(x)),
        [(4, 8, 4), (4, 8, 4)],
    ),
    "attention of five dims": (functional.scaled_dot_product_attention, [(2, 4, 2, 8, 4)] * 3),
    "attention of three dims": (
        functional.scaled_dot_product_attention,
        [(4, 8, 4), (4, 8, 4), (4, 8, 4), (4, 8, 8)],
    ),
    "gaussian_nll_loss": (
        lambda x, y: functional.gaussian_nll_loss(x, y, x * x + 0.1, full=True),
        [(4, 8), (4, 8)],
    ),
    "a function found by class": (found_by_class, [(4, 8), (8, 4)]),
    "items set": (lambda x, y: items_set(x * 1, y), [(4, 8), (4, 4)]),
    "items added to": (lambda x, y: items_added(x * 1, y), [(4, 8), (4, 4)]),
    "operands by name": (
        lambda x, y: x.clamp(max=y) + torch.lerp(input=x, end=y, weight=y.sigmoid()),
        [(4, 8), (4, 8)],
    ),
    "whole numbers of sums": (
        lambda x: x + (5 * x).to(torch.int64) + torch.div(x, 0.3, rounding_mode="floor"),
        [(4, 8)],
    ),
    "gradients hooked": (lambda x: hooked(x * 2), [(4, 8)]),
    "data": (lambda x: rounded_data(x * 1), [(4, 8)]),
    "changes with gradients off": (lambda x: halved(x * 1), [(4, 8)]),
    "results given": (lambda x, y: with_results_given(x * 1, y), [(4, 8), (4, 8)]),
    "a shape changed in place": (lambda x: reshaped(x * 1), [(4, 8)]),
    "rows of noise": (functional.rrelu, [(4, 8)]),
    "logsigmoid": (functional.logsigmoid, [(4, 8)]),
    "windows of images": (lambda x: functional.unfold(x, 2, stride=2), [(4, 4, 4, 4)]),
    "the last two": (lambda x: x.narrow(1, -2, 2), [(4, 8)]),
    "a function written in Python": (lambda x: functional.normalize(x, dim=-1), [(4, 8)]),
    "a function of ATen": (lambda x, y: torch.ops.aten.lerp.Scalar(x, y, 0.3), [(4, 8), (4, 8)]),
    "a function below torch's": (lambda x: below(torch.tanh, x), [(4, 8)]),
    "glu": (lambda x: functional.glu(x, 1), [(4, 8, 4)]),
    "vmap": (lambda x, y: torch.func.vmap(lambda each: torch.tanh(x @ each))(y), [(4, 8), (4, 8, 4)]),
    "a gradient asked for by attribute": (lambda x: asked_for(x * 1), [(4, 8)]),
    "rows mapped and differentiated": (
        lambda x, y: torch.func.vmap(torch.func.jacrev(lambda row: torch.tanh(row * y[0])))(x).sum(-1),
        [(4, 8), (4, 8)],
    ),
    "what is differentiated forward": (
        lambda x, y: torch.func.jvp(lambda row: torch.tanh(row) * y, (x,), (y * 2,))[1],
        [(4, 8), (4, 8)],
    ),
    "a Hessian's product": (
        lambda x, y: torch.func.jvp(torch.func.grad(lambda row: (row.sin() * y).sum()), (x,), (y,))[1],
        [(4, 8), (4, 8)],
    ),
    "a gradient inside": (gradient_inside, [(4, 8), (4, 8)]),
    "a diagonal below torch's, changed": (lambda x: below(diagonal_set, x), [(4, 4)]),
    "a trace": (lambda x, y: torch.trace(x @ y) * x, [(4, 8), (8, 4)]),
    "turned by right angles": (
        lambda x: torch.cat([torch.rot90(x, 1, (0, 1)), torch.rot90(x, 3), x.rot90(2, (0, 1)), x.rot90(4)], 1),
        [(4, 4)],
    ),
    "rows put where a mask says": (
        lambda x, y: x.masked_scatter((WEIGHTS[:4] > 0.8)[:, None].expand_as(x), y.exp()),
        [(4, 8), (4, 8)],
    ),
    "rows put where a value says": (
        lambda x, y: x.masked_scatter((x.detach()[..., :1] > 0).expand(4, 8, 4), y * 2),
        [(4, 8, 4), (4, 8, 4)],
    ),
    "entries put where a mask says": (
        lambda x, y: torch.masked_scatter(x, x.detach().sin() > 0, y) * y + x.masked_scatter(WEIGHTS > 1, y),
        [(4, 8), (4, 8)],
    ),
    "searched": (
        lambda x, y: torch.searchsorted(y.sort(-1)[0].detach(), x) * x + torch.bucketize(x, WEIGHTS, right=True) * y,
        [(4, 8), (4, 8)],
    ),
    "functions that torch calls elementwise": (
        lambda x, y: torch.special.i0e(x) * torch.special.erfcx(y.abs()) + torch.special.entr(torch.sigmoid(x)),
        [(4, 8), (8,)],
    ),
    "branches and loops of torch": (branched, [(4, 8), (4, 8)]),
    "windows by strides of memory": (windows_by_strides, [(4, 8, 8), (4, 8, 16)]),
    "are equal": (
        lambda x, y: x * (2 + torch.equal(x, y) + torch.equal(y, y)) + torch.ops.aten._is_all_true(y < 9) * y,
        [(4, 8), (4, 8)],
    ),
    "attention of many heads": (
        lambda x, w, b, v, c: functional.multi_head_attention_forward(
            x, x, x, 8, 2, w, b, None, None, False, 0.0, v, c, need_weights=False
        )[0],
        [(4, 4, 8), (24, 8), (24,), (8, 8), (8,)],
    ),
    "attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(4, 4, 8, 4), (4, 4, 8, 4), (4, 4, 8, 4)],
    ),
    "attention of a query that sees nothing": (
        lambda q, k, v: (
            functional.scaled_dot_product_attention(q, k, v, torch.ones(8, 8, dtype=torch.bool).tril(-1))
            + functional.scaled_dot_product_attention(q, k, v, torch.full((8, 8), -torch.inf, dtype=q.dtype).triu(0))
        ),
        [(2, 4, 8, 4)] * 3,
    ),
    "grouped attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.5),
        [(4, 8, 8, 4), (4, 4, 8, 4), (4, 4, 8, 4)],
    ),
}


def hooked(x: Tensor) -> Tensor:
    """Gradients that are scaled and cut on their way."""
    x.register_hook(lambda gradient: gradient.clamp(-1.5, 1.5) * 3)
    return (x * x.sum(0)).sin()


def rounded_data(x: Tensor) -> Tensor:
    """As quantised nets do: values of which autograd knows nothing, read, changed and set."""
    x = x + (x.round() - x).data
    x.data.mul_(2)
    x.data = x.data.clamp(-3, 3)
    return x * x.data.abs().max()


def halved(x: Tensor) -> Tensor:
    """Values and views that are changed with gradients off, which leaves gradients as they are."""
    with torch.no_grad():
        x.clamp_(-1, 1)
        x.t()[2:5].mul_(0.5)
        x[:, 1] = 3.0
    return x.sin()


def with_results_given(x: Tensor, y: Tensor) -> Tensor:
    """Results that are written into tensors of the program and into planned ones."""
    with torch.no_grad():
        values, numbers, made = torch.empty(4, 3, dtype=x.dtype), torch.empty(4, 3, dtype=torch.long), x * 0
        torch.topk(x, 3, 1, out=(values, numbers))
        torch.mul(x, y, out=made)
    return made * x + values.sum() * y


def reshaped(x: Tensor) -> Tensor:
    """Dims added, dropped and turned in place, of a value and of a view of it."""
    column = x[:, 1]
    column.unsqueeze_(1)
    column.mul_(2)
    x.unsqueeze_(1)
    assert x.shape == (4, 1, 8)
    x.squeeze_(1)
    x.t_()
    return x + torch.quantile(x, 0.3, 0)


def changed_bits(x: Tensor, y: Tensor) -> Tensor:
    """Pieces of a mask and of whole numbers, changed by Python's operators."""
    mask, counts = x > 0, (x.detach() * 8).long()
    kept, more, few = mask[:, :4], mask[:, 4:8], counts[:, 8:]
    kept &= y > 0
    more |= y > 0
    more ^= kept
    few <<= 2
    few >>= 1
    few //= 3
    few %= 5
    return x * mask + counts * y.sum()


def with_written_views(x: Tensor, y: Tensor) -> Tensor:
    """Rows that a batch norm and a function of lists write into, between reads of another view."""
    sums = y.detach().abs()
    mean, column = sums[0], sums[:, 1]
    torch._foreach_mul_(list(sums.unbind(0)), 0.5)  # as optimizers and averages of weights do
    made = functional.batch_norm(x, mean, sums[1], training=True)
    return made * sums.sum() + column.mean() + float(f"{y.sum():.6f}") * y.sum()


def asked_for(x: Tensor) -> Tensor:
    """As Hugging Face's encoders of speech ask for the gradient of what takes none, for checkpoints."""
    other = x.detach()[:, None]
    other.requires_grad = True
    return x.exp() + other[:, 0] * 2


GATHERED = frozenset(
    ("rows where a condition is true", "places where a condition is true", "embedding of bounded norm",
     "rows by a mask", "softmax of a number", "einsum of a diagonal",
     "a transform of complex numbers", "rows of noise", "windows by strides of memory",
     "views that functions write into", "elements set by an array of truths")
)  # fmt: skip
"""Those that are in part computed whole by every process."""


def compare(planned: str, names: list[str]) -> dict[str, str]:
    """What is wrong with the functions called `names`, in every layout of their first two operands."""
    applied, wrong = _applied(planned), {}
    for name in names:
        function, shapes = CASES[name]
        torch.manual_seed(3)
        plain = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        expected = _expected(function, plain)
        for layouts in _layouts(applied.groups.mesh, shapes):
            applied.engine.record = Record()
            problem = _problem(applied.engine, function, plain, layouts, expected)
            if applied.engine.record.without_rule and name not in GATHERED:
                problem = f"{problem} gathered: {sorted(applied.engine.record.without_rule)}"
            if problem:
                wrong[f"{name} {[layout.placements for layout in layouts]}"] = problem
    return wrong


def lost(planned: str, what: str) -> str:
    """What is said of a function whose gradient would be lost."""
    engine, x = _applied(planned).engine, torch.randn(4, 8, requires_grad=True)
    value = Value(x, Layout.replicated(len(engine.groups.mesh)), (4, 8), x.dtype, True, _key(engine, 0, x))
    try:
        LOST[what](Planned.of(value, engine))
    except ShardplanError as problem:
        return str(problem)
    return "nothing"


@functools.cache
def _applied(planned: str) -> Any:
    """What a file holds, a tiny model and a plan: the plan applied to a twin, the same for all calls."""
    tiny, plan = pickle.loads(Path(planned).read_bytes())
    model = torch_twins.twin(tiny)
    shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
    return applied_to(model)


def _layouts(mesh: Any, shapes: Sequence[tuple[int, ...]]) -> list[tuple[Layout, ...]]:
    """All whole; the first operand partial; and the first, then the second, sharded in every way that is legal, the
    others whole: by both axes in whole dims, by one in two segments of a dim, each on its own. Rules take the axes one
    by one and all alike, so of two layouts that differ in the order of the axes there is one: now this, now that."""
    whole, partial = Layout.replicated(len(mesh)), Layout.of(P(), *[R] * (len(mesh) - 1))
    found = [(whole,) * len(shapes), (partial, *[whole] * (len(shapes) - 1))]
    for place, shape in enumerate(shapes[:2]):
        choices = [R, *(S(dim) for dim in range(len(shape)))]
        several = [S(dim, _segments(size)) for dim, size in enumerate(shape) if size % 4 == 0]
        unordered = itertools.combinations_with_replacement(choices, len(mesh))
        pairs = [pair[::-1] if turn % 2 else pair for turn, pair in enumerate(unordered)]
        for pair in (*pairs, *((R, each) for each in several)):
            layout = Layout.of(*pair)
            if layout != whole and is_legal(layout, mesh, shape):
                found.append((whole,) * place + (layout,) + (whole,) * (len(shapes) - place - 1))
    return found


def _segments(size: int) -> tuple[int, int]:
    return (size // 2, size // 2) if size == 4 else (size // 4, size - size // 4)


def _expected(function: Any, plain: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """What the function makes of plain tensors; factors of its elements in a sum; the gradients of that sum."""
    leaves = [tensor.clone().requires_grad_() for tensor in plain]
    made = function(*leaves)
    scale = torch.linspace(1, 2, made.numel(), dtype=torch.float64).reshape(made.shape)
    (made * scale).sum().backward()
    return made.detach(), scale, [leaf.grad for leaf in leaves]


def _problem(
    engine: Any, function: Any, plain: list[Tensor], layouts: tuple[Layout, ...],
    told: tuple[Tensor, Tensor, list[Tensor | None]],
) -> str:  # fmt: skip
    expected, scale, gradients = told
    parts = [_part(tensor, layout, engine).requires_grad_() for tensor, layout in zip(plain, layouts, strict=True)]
    given = [
        Planned.of(Value(part, layout, tuple(tensor.shape), part.dtype, True, _key(engine, number, tensor)), engine)
        for number, (part, layout, tensor) in enumerate(zip(parts, layouts, plain, strict=True))
    ]
    made = function(*given)
    whole = engine.convert(value_of(made), Layout.replicated(len(engine.groups.mesh)))
    if tuple(whole.local.shape) != tuple(expected.shape):
        return f"shape {list(whole.local.shape)}, not {list(expected.shape)}"
    if not torch.allclose(whole.local, expected, rtol=1e-9, atol=1e-9):
        return f"differs by {(whole.local - expected).abs().max().item():.1e}"
    (whole.local * scale).sum().backward()
    for number, (part, gradient, layout) in enumerate(zip(parts, gradients, layouts, strict=True)):
        wanted = shard_of_whole(gradient, _added_up(layout), engine.groups)
        if part.grad is None or not torch.allclose(part.grad, wanted, rtol=1e-9, atol=1e-9):
            return f"the gradient of operand {number} differs"
    return ""


def _part(tensor: Tensor, layout: Layout, engine: Any) -> Tensor:
    """What a process has of a tensor; of a partial one, shares that add up to it."""
    part = shard_of_whole(tensor, _added_up(layout), engine.groups).clone()
    for place, coordinate in zip(layout.placements, engine.groups.coordinates, strict=True):
        part *= (1.75, -0.75)[coordinate] if place.kind == "P" else 1
    return part


def _added_up(layout: Layout) -> Layout:
    return Layout.of(*(R if place.kind == "P" else place for place in layout.placements), order=layout.order)


def _key(engine: Any, number: int, tensor: Tensor) -> Key:
    return Key(engine.graph.signatures.leaf("input", f"of the test {number}"), tuple(tensor.shape))
