"""Normalisations: rows are independent; a normalised dim splits at the price of all-reducing its statistics.

Statistics per row, forward and backward: softmax needs a maximum and a sum, then one sum; a layer norm two sums, then
two; an RMS norm one and one.
"""

from __future__ import annotations

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


def softmax(signature: Signature) -> Row:
    """`Softmax`, `LogSoftmax`, `Hardmax`: over one dim; before opset 13 over that dim and all after it."""
    rank = signature.rank()
    axis = signature.axis(1 if signature.version < 13 else -1)
    last = rank if signature.version < 13 else axis + 1
    dims = _over(rank, set(range(axis, last)))
    return Row(f"{dims} -> {dims}", saves="r0", statistics=(2, 1), work=5)


def layer_norm(signature: Signature) -> Row:
    """`LayerNormalization`, `RMSNormalization`: all dims from `axis` on are one row. Scale and bias broadcast to the
    values."""
    shape = signature.shape()
    axis = signature.axis(-1)
    rows, row_dims = letters("x", axis), [f"~{name}" for name in letters("k", len(shape) - axis)]
    each = list(zip([*rows, *row_dims], shape, strict=True))
    scale = ", ".join(
        " ".join(
            "_" if size == 1 < whole else name
            for (name, whole), size in zip(each[-len(tensor.shape) :], tensor.shape, strict=False)
        )
        for tensor in signature.operands[1:]
        if tensor is not None
    )
    means = f", {' '.join([*rows, *'_' * len(row_dims)])}" * (len(signature.results) - 1)
    dims = " ".join([*rows, *row_dims])
    is_rms = "RMS" in signature.kind or "Simplified" in signature.kind
    statistics = (1, 1) if is_rms else (2, 2)
    return Row(f"{dims}, {scale} -> {dims}{means}", saves="0 1 r1 r2", statistics=statistics, work=4 if is_rms else 6)


def batch_norm(signature: Signature) -> Row:
    """`BatchNormalization`: with given statistics every dim splits; in training they are those of the batch.

    Before opset 9 there may be a scale for every unit of a sample (`spatial` 0)."""
    is_training = bool(signature.integer("training_mode")) or len(signature.results) > 1
    is_training |= signature.version < 7 and not signature.integer("is_test")
    if signature.rank(1) > 1:
        each, how = "c y*", "~n" if is_training else "n"
        results = f", {each}" * (len(signature.results) - 1)
        return Row(f"{how} c y*{f', {each}' * 4} -> n c y*{results}", saves="0 1 3 4", work=2)
    if is_training:
        results = ", c" * (len(signature.results) - 1)
        return Row(f"~n c ~y*, c, c, c, c -> n c y*{results}", saves="0 1", statistics=(2, 2), work=6)
    return Row("n c y*, c, c, c, c -> n c y*", saves="0 1 3 4", work=2)


def group_norm(signature: Signature) -> Row:
    """`GroupNormalization`: groups are independent; scale and bias are per channel (per group before opset 21)."""
    groups = signature.integer("num_groups", 1)
    scale = "(g ~c)" if signature.shape(1)[0] != groups or signature.version >= 21 else "g"
    rank = signature.rank()
    space = " ".join(f"~{name}" for name in letters("y", rank - 2))
    return Row(f"n (g ~c) {space}, {scale}, {scale} -> n (g ~c) {space}", sizes={"g": groups}, saves="0 1",
               statistics=(2, 2), work=6)  # fmt: skip


def lp_norm(signature: Signature) -> Row:
    """`LpNormalization`: each line along the axis by its norm."""
    dims = _over(signature.rank(), {signature.axis(-1)})
    return Row(f"{dims} -> {dims}", saves="0", statistics=(1, 1), work=3)


def mean_variance(signature: Signature) -> Row:
    """`MeanVarianceNormalization`: over the given dims together, by default all but the channels."""
    rank = signature.rank()
    dims = _over(rank, {axis % rank for axis in signature.integers("axes", (0, 2, 3)) or ()})
    return Row(f"{dims} -> {dims}", saves="0", statistics=(2, 2), work=5)


def _over(rank: int, axes: set[int]) -> str:
    """Dims of which those in `axes` share statistics."""
    return " ".join(f"~k{dim}" if dim in axes else f"x{dim}" for dim in range(rank))


TABLE: tuple[Entry, ...] = (
    by("Softmax LogSoftmax Hardmax", softmax),
    by("LayerNormalization RMSNormalization SimplifiedLayerNormalization", layer_norm),
    by("com.microsoft.SimplifiedLayerNormalization", layer_norm),
    by("BatchNormalization", batch_norm),
    by("GroupNormalization", group_norm),
    by("LpNormalization", lp_norm),
    by("MeanVarianceNormalization", mean_variance),
    row("InstanceNormalization", "n c ~y*, c, c -> n c y*", saves="0 1", statistics=(2, 2), work=6),
    row("LRN", "n !c y* -> n c y*", saves="0 r0", work=8),
)
