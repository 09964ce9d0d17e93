"""Lookups, scatters, selections and scans along one dim."""

from __future__ import annotations

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by
from shardplan.rules.signature import Signature


def gather(signature: Signature) -> Row:
    """`Gather`: index dims and the other dims of the data split; the table itself splits by masked lookup."""
    rank, axis = signature.rank(), signature.axis(0)
    data, index = letters("d", rank), letters("i", signature.rank(1))
    table = [*data[:axis], "@v", *data[axis + 1 :]]
    made = [*data[:axis], *index, *data[axis + 1 :]]
    return Row(f"{' '.join(table)}, {' '.join(index)} -> {' '.join(made)}", cost="memory", linear=((0,),), saves="1")


def gather_elements(signature: Signature) -> Row:
    """`GatherElements`: other dims split where data and indices are equally long."""
    axis = signature.axis(0)
    data, index = _paired(signature.shape(), signature.shape(1), axis)
    data[axis] = "@v"
    return Row(f"{' '.join(data)}, {' '.join(index)} -> {' '.join(index)}", cost="memory", linear=((0,),), saves="1")


def gather_nd(signature: Signature) -> Row:
    """`GatherND`: batch dims, index dims and the dims of each slice split; indexed dims do not."""
    batch = signature.integer("batch_dims")
    picked = signature.shape(1)[-1]
    shared, index = letters("b", batch), letters("i", signature.rank(1) - batch - 1)
    piece = letters("d", signature.rank() - batch - picked)
    data, made = " ".join([*shared, *"_" * picked, *piece]), " ".join([*shared, *index, *piece])
    return Row(f"{data}, {' '.join([*shared, *index, '_'])} -> {made}", cost="memory", linear=((0,),), saves="1")


def one_hot(signature: Signature) -> Row:
    """`OneHot`: index dims split, and the new dim (each device marks the classes that it holds)."""
    rank = signature.result().rank
    axis = signature.axis(-1, rank=rank)
    index = letters("i", rank - 1)
    made = [*index[:axis], "@v", *index[axis:]]
    return Row(f"{' '.join(index)}, _*, _* -> {' '.join(made)}", cost="memory")


def scatter_elements(signature: Signature) -> Row:
    """`ScatterElements`, `Scatter`: other dims split where data, indices and updates are equally long."""
    axis = signature.axis(0)
    data, index = _paired(signature.shape(), signature.shape(1), axis)
    data[axis] = index[axis] = "_"
    text = " ".join(data)
    is_linear = signature.text("reduction", "none") in {"none", "add"}
    linear = ((0, 2),) if is_linear else ()
    return Row(f"{text}, {' '.join(index)}, {' '.join(index)} -> {text}", cost="memory", linear=linear, saves="1")


def scatter_nd(signature: Signature) -> Row:
    """`ScatterND`: the dims of each written slice split."""
    picked = signature.shape(1)[-1]
    piece = letters("d", signature.rank() - picked)
    index = signature.rank(1) - 1
    data = " ".join([*"_" * picked, *piece])
    updates = " ".join([*"_" * index, *piece])
    is_linear = signature.text("reduction", "none") in {"none", "add"}
    linear = ((0, 2),) if is_linear else ()
    return Row(f"{data}, _*, {updates} -> {data}", cost="memory", linear=linear, saves="1")


def tensor_scatter(signature: Signature) -> Row:
    """`TensorScatter` (a cache that is written in place): all dims but the written one."""
    rank, axis = signature.rank(), signature.axis(-2)
    names = letters("d", rank)
    names[0] = "b" if axis else "_"
    names[axis] = "_"
    text = " ".join(names)
    return Row(f"{text}, {text}, {'b' if axis else '_'} -> {text}", cost="memory", linear=((0, 1),), saves="2")


def along(signature: Signature) -> Row:
    """`TopK`: every dim but the searched one."""
    rank, axis = signature.rank(), signature.axis(-1)
    names = letters("x", rank)
    names[axis] = "_"
    text = " ".join(names)
    return Row(f"{text}{signature.rest} -> {text}, {text}", cost="memory", saves="r1")


def scan(signature: Signature) -> Row | None:
    """`CumSum`, `CumProd`: every dim but the scanned one."""
    given = signature.constant(1)
    if given is None:
        return None
    rank = signature.rank()
    names = letters("x", rank)
    names[given[0] % rank] = "_"
    text = " ".join(names)
    is_sum = signature.kind == "CumSum"
    return Row(f"{text}, _* -> {text}", cost="memory", linear=((0,),) if is_sum else (), saves="" if is_sum else "0 r0")


def reverse_sequence(signature: Signature) -> Row:
    """`ReverseSequence`: every dim but time; the lengths go with the batch."""
    rank = signature.rank()
    names = letters("x", rank)
    batch, time = signature.axis(1, "batch_axis"), signature.axis(0, "time_axis")
    names[time] = "_"
    text = " ".join(names)
    return Row(f"{text}, {names[batch]} -> {text}", cost="memory", linear=((0,),), saves="1")


def _paired(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[list[str], list[str]]:
    """Names of the dims of data and indices: shared where both are equally long, the axis of the indices free."""
    names = letters("d", len(data))
    shared = [name if size == other else "_" for name, size, other in zip(names, data, index, strict=True)]
    index_names = [*shared[:axis], "i", *shared[axis + 1 :]]
    return list(shared), index_names


TABLE: tuple[Entry, ...] = (
    by("Gather", gather),
    by("GatherElements", gather_elements),
    by("GatherND", gather_nd),
    by("OneHot", one_hot),
    by("ScatterElements Scatter", scatter_elements),
    by("ScatterND", scatter_nd),
    by("TensorScatter", tensor_scatter),
    by("TopK", along),
    by("CumSum CumProd", scan, reads=(1,)),
    by("ReverseSequence", reverse_sequence),
)
