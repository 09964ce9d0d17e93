"""ONNX forms of torch operators that its exporter lacks, or has wrong: cumulative values, medians, convolutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shardplan.torch.planning.decompositions import decompositions


def onnx_forms() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export` takes as its `custom_translation_table`.

    Functions along a dim of all entries up to each place take log2(n) rounds; in each a place is combined with the one
    that is twice as far before it as in the last round (Hillis and Steele, Data parallel algorithms, 1986)."""
    from onnxscript import opset18 as op  # noqa: PLC0415 - of the extra, and only for planning

    aten = torch.ops.aten
    grouped = [getattr(torch.ops.transformers, "grouped_mm_fallback", None), getattr(aten, "_grouped_mm", None)]
    return {
        **decompositions(op),
        aten._adaptive_avg_pool3d.default: functools.partial(_adaptive_mean, op),  # noqa: SLF001 - torch calls it so
        **{
            getattr(aten, f"adaptive_max_pool{rank}d").default: functools.partial(_adaptive_largest, op, rank)
            for rank in (2, 3)
        },
        **{each.default: functools.partial(_grouped, op) for each in grouped if each is not None},
        **dict.fromkeys(_shifts(aten), functools.partial(_shifted_right, op)),
        aten.amax.default: functools.partial(_extreme, op, op.ReduceMax),
        aten.amin.default: functools.partial(_extreme, op, op.ReduceMin),
        aten.conv3d.default: functools.partial(_convolved, op),
        aten.cummax.default: _running_best(op, op.Max, op.GreaterOrEqual),
        aten.cummin.default: _running_best(op, op.Min, op.LessOrEqual),
        aten.cumprod.default: _running(op, op.Mul),
        aten.kthvalue.default: lambda self, k, dim=-1, keepdim=False: _ranked(op, self, k, dim, keepdim),
        aten.median.dim: lambda self, dim, keepdim=False: _median(op, self, dim, keepdim),
        aten.median.default: functools.partial(_middle, op),
        aten.nanmedian.dim: lambda self, dim, keepdim=False: _median(op, self, dim, keepdim),
        aten.nanmedian.default: functools.partial(_middle, op),  # what is not a number is not known to a plan
        aten.mode.default: lambda self, dim=-1, keepdim=False: _mode(op, self, dim, keepdim),
        aten.diagonal_scatter.default: lambda self, src, offset=0, dim1=0, dim2=1: _with_diagonal(
            op, self, src, offset, (dim1, dim2)
        ),
        **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), functools.partial(_with_items, op)),  # noqa: SLF001
        aten.logcumsumexp.default: _running(op, lambda one, other: _log_of_sum(op, one, other)),
    }


def _convolved(
    op: Any,
    value: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = (1,) * 3,
    padding: Any = (0,) * 3,
    dilation: Any = (1,) * 3,
    groups: int = 1,
) -> Any:
    """A convolution in three dims: torch's exporter gives one without a bias a bias of two dims."""
    strides, pads, dilations = ([*each] * (3 // len(each)) for each in (stride, padding, dilation))
    given = (value, weight) if bias is None else (value, weight, bias)
    return op.Conv(*given, strides=strides, pads=pads * 2, dilations=dilations, group=groups)  # fmt: skip


def _extreme(op: Any, reduce: Callable[..., Any], value: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest or the least entry along dims, along all of them where none are named."""
    rank = len(value.shape)
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(rank))
    return reduce(value, op.Constant(value_ints=dims), keepdims=int(keepdim)) if rank else op.Identity(value)


def _shifts(aten: Any) -> tuple[Any, ...]:
    shifts = aten.bitwise_right_shift
    return aten.__rshift__.Scalar, aten.__rshift__.Tensor, shifts.Tensor_Scalar, shifts.Tensor


def _shifted_right(op: Any, value: Any, places: Any) -> Any:
    """Bits of whole numbers moved to the right. What torch's exporter writes for numbers without a sign has two types
    in one operator, and is only needed for a sign."""
    from onnxscript.function_libs.torch_lib.ops import core  # noqa: PLC0415 - of the extra, as above

    is_one = isinstance(places, int)
    if value.dtype.is_signed():
        return (core.aten_bitwise_right_shift_tensor_scalar if is_one else core.aten_bitwise_right_shift)(value, places)
    number = op.Cast(op.Constant(value_int=places) if is_one else places, to=value.dtype)
    return op.BitShift(value, number, direction="RIGHT")


def _adaptive_mean(op: Any, value: Any, sizes: Any) -> Any:
    """Means of windows of equal sizes, where these fit."""
    windows, strides = _windows(value, sizes)
    return op.AveragePool(value, kernel_shape=windows, strides=strides)


def _adaptive_largest(op: Any, rank: int, value: Any, sizes: Any) -> Any:
    """The largest entries of windows of equal sizes, and where they stand in their map."""
    windows, strides = _windows(value, sizes)
    batched = value if len(value.shape) == rank + 2 else op.Unsqueeze(value, op.Constant(value_ints=[0]))
    made, places = op.MaxPool(batched, kernel_shape=windows, strides=strides)
    if batched is not value:
        made, places = (op.Squeeze(each, op.Constant(value_ints=[0])) for each in (made, places))
    return made, places


def _windows(value: Any, sizes: Any) -> tuple[list[int], list[int]]:
    """Windows and strides of an adaptive pool; windows of unequal sizes are planned as if all were as the largest."""
    space = [int(size) for size in value.shape[-len(sizes) :]]
    strides = [size // int(wanted) for size, wanted in zip(space, sizes, strict=True)]
    return [size - (int(wanted) - 1) * step for size, wanted, step in zip(space, sizes, strides, strict=True)], strides


def _with_items(op: Any, value: Any, indices: Any, items: Any, accumulate: bool = False) -> Any:
    """`value` with items set. By a mask, where no item depends on how many are set, it is a choice, whose sizes are
    known."""
    from onnxscript.function_libs.torch_lib.ops.core import aten_index_put  # noqa: PLC0415 - of the extra, as above

    mask = indices[0] if len(indices) == 1 else None
    shape = [int(size) for size in items.shape]
    more = 0 if mask is None else len(value.shape) - len(mask.shape)
    if mask is None or mask.dtype != _BOOL or (len(shape) > more and any(size != 1 for size in shape)):
        return aten_index_put(value, [_as_index(op, each) for each in indices], items, accumulate)
    if len(shape) > more:
        items = op.Reshape(items, op.Constant(value_ints=[1] * max(1, len(value.shape))))
    axes = list(range(len(mask.shape), len(value.shape)))
    chosen = op.Unsqueeze(mask, op.Constant(value_ints=axes)) if axes else mask
    return op.Where(chosen, op.Add(value, items) if accumulate else items, value)


def _as_index(op: Any, numbers: Any) -> Any:
    """A mask, or numbers of the one type that ONNX takes; the exporter knows the shapes of its own values alone."""
    if numbers is None or numbers.dtype in (_BOOL, _INT64):
        return numbers
    made = op.Cast(numbers, to=_INT64)
    made.shape = numbers.shape
    return made


def _running(op: Any, combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def running(self: Any, dim: int, dtype: int | None = None) -> Any:
        made = self if dtype is None else op.Cast(self, to=dtype)
        axis, size = _axis(self, dim)
        for distance in _distances(size):
            first, before, own = _shifted(op, made, axis, size, distance)
            made = op.Concat(first, combine(before, own), axis=axis)
        return op.Identity(made)

    return running


def _running_best(
    op: Any, better: Callable[[Any, Any], Any], is_later: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """The best entry so far and where it stands: of equal ones the last, as in torch."""

    def running(self: Any, dim: int) -> tuple[Any, Any]:
        axis, size = _axis(self, dim)
        shape = [int(each) for each in self.shape]
        ends = op.Constant(value_ints=[size if each == axis else 1 for each in range(len(shape))])
        numbers = op.Reshape(op.Constant(value_ints=list(range(size))), ends)
        values, places = self, op.Expand(numbers, op.Constant(value_ints=shape))
        for distance in _distances(size):
            first, before, own = _shifted(op, values, axis, size, distance)
            first_place, before_place, own_place = _shifted(op, places, axis, size, distance)
            places = op.Concat(first_place, op.Where(is_later(own, before), own_place, before_place), axis=axis)
            values = op.Concat(first, better(before, own), axis=axis)
        return op.Identity(values), op.Identity(places)

    return running


def _middle(op: Any, value: Any) -> Any:
    """The median of all entries."""
    size = math.prod(int(each) for each in value.shape)
    middle, row = (size + 1) // 2, op.Reshape(value, op.Constant(value_ints=[size]))
    values, _ = op.TopK(row, op.Constant(value_ints=[middle]), axis=0, largest=0, sorted=1)
    return op.Gather(values, op.Constant(value_int=middle - 1), axis=0)


def _median(op: Any, value: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The lower one of the two in the middle, and where it stands."""
    return _ranked(op, value, (_axis(value, dim)[1] + 1) // 2, dim, keepdim)


def _ranked(op: Any, value: Any, rank: int, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The entry of a rank, counted from the least, and where it stands."""
    axis, _ = _axis(value, dim)
    values, places = op.TopK(value, op.Constant(value_ints=[rank]), axis=axis, largest=0, sorted=1)
    last, axes = op.Constant(value_int=rank - 1), op.Constant(value_ints=[axis])
    found, place = (op.Gather(each, last, axis=axis) for each in (values, places))
    return (op.Unsqueeze(found, axes), op.Unsqueeze(place, axes)) if keepdim else (found, place)


def _mode(op: Any, value: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The least of the entries that are there most often, and where the last of them stands."""
    axis, size = _axis(value, dim)
    rank = len(value.shape)
    last = [*(each for each in range(rank) if each != axis), axis]
    rows, end = op.Transpose(value, perm=last), op.Constant(value_ints=[-1])
    same = op.Equal(op.Unsqueeze(rows, end), op.Unsqueeze(rows, op.Constant(value_ints=[-2])))
    counts = op.ReduceSum(op.Cast(same, to=_INT64), end, keepdims=0)
    most = op.Equal(counts, op.ReduceMax(counts, end, keepdims=1))
    found = op.ReduceMin(op.Where(most, rows, op.ReduceMax(rows, end, keepdims=1)), end, keepdims=1)
    numbers = op.Constant(value_ints=list(range(size)))
    none = op.Constant(value_int=-1)
    place = op.ReduceMax(op.Where(op.Equal(rows, found), numbers, none), end, keepdims=1)
    if not keepdim:
        return op.Squeeze(found, end), op.Squeeze(place, end)
    back = [last.index(each) for each in range(rank)]
    return op.Transpose(found, perm=back), op.Transpose(place, perm=back)


def _with_diagonal(op: Any, value: Any, source: Any, offset: int, dims: tuple[int, int]) -> Any:
    """`value` with the entries of `source` on a diagonal of two dims, as a choice by a constant mask."""
    rank = len(value.shape)
    row, column = (dim % rank for dim in dims)
    perm = [*(dim for dim in range(rank) if dim not in {row, column}), row, column]
    rows, columns = int(value.shape[row]), int(value.shape[column])
    numbers = torch.eye(max(rows, columns) + abs(offset))
    mask = numbers[max(offset, 0) :, max(-offset, 0) :][:rows, :columns].int().flatten().tolist()
    along = rank - 1 if offset < 0 else rank - 2  # the dim in which the diagonal begins with the first entry
    size, length = (columns if offset < 0 else rows), int(source.shape[-1])
    wide = op.Unsqueeze(source, op.Constant(value_ints=[rank - 2 if offset < 0 else rank - 1]))
    if size > length:
        ends = [size - length if dim == along else 0 for dim in range(rank)]
        wide = op.Pad(wide, op.Constant(value_ints=[0] * rank + ends))
    chosen = op.Cast(op.Reshape(op.Constant(value_ints=mask), op.Constant(value_ints=[rows, columns])), to=_BOOL)
    made = op.Where(chosen, wide, op.Transpose(value, perm=perm))
    return op.Transpose(made, perm=[perm.index(dim) for dim in range(rank)])


_BOOL, _INT64 = 9, 7
"""ONNX's numbers of the types."""


def _grouped(op: Any, rows: Any, weights: Any, offs: Any = None, *_: Any, **__: Any) -> Any:
    """Rows in groups, each times the matrix of its group: matrices are looked up for every row."""
    count, groups = int(rows.shape[0]), int(weights.shape[0])
    numbers = op.Constant(value_ints=list(range(count)))
    ends = op.Unsqueeze(op.Cast(offs, to=_INT64), op.Constant(value_ints=[0]))
    passed = op.GreaterOrEqual(op.Unsqueeze(numbers, op.Constant(value_ints=[1])), ends)
    group = op.ReduceSum(op.Cast(passed, to=_INT64), op.Constant(value_ints=[1]), keepdims=0)
    own = op.Gather(weights, op.Min(group, op.Constant(value_int=groups - 1)), axis=0)
    middle = op.Constant(value_ints=[1])
    return op.Squeeze(op.MatMul(op.Unsqueeze(rows, middle), own), middle)


def _axis(value: Any, dim: int) -> tuple[int, int]:
    """A dim counted from the front, and its size."""
    rank = len(value.shape)
    return (dim % rank, int(value.shape[dim])) if rank else (0, 1)


def _distances(size: int) -> Iterator[int]:
    distance = 1
    while distance < size:
        yield distance
        distance *= 2


def _shifted(op: Any, value: Any, axis: int, size: int, distance: int) -> tuple[Any, Any, Any]:
    """The entries that have none so far before them; those that are so far before others; and these."""
    spans = (0, distance), (0, size - distance), (distance, size)
    first, before, own = (
        op.Slice(value, *(op.Constant(value_ints=[each]) for each in (start, end, axis))) for start, end in spans
    )
    return first, before, own


def _log_of_sum(op: Any, one: Any, other: Any) -> Any:
    """log(exp(one) + exp(other)), without overflow."""
    return op.Add(op.Max(one, other), op.Softplus(op.Neg(op.Abs(op.Sub(one, other)))))
