"""Gathers and scatters by index (`table[ids]`, `take_along_axis`, `logits[rows, labels]`, `x.at[ids].add`) in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardplan.jax.planning.graph import Graph

SCATTERS: Mapping[str, str] = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter-mul": "mul",
    "scatter-min": "min",
    "scatter-max": "max",
}
"""Primitives that write, and how ONNX calls what they do with what was there."""


@dataclass(frozen=True)
class _Lookup:
    """A gather, dims of its operand sorted. The rows of numbers are the indices without the dim of their columns.

    `paired`: operand dim -> dim of the rows of numbers that runs along with it. `indexed`: operand dim -> column of its
    numbers. `kept`: operand dims that the result has, in order. `rows`: shape of the rows of numbers. `offsets`: dims
    of the result at which the kept dims stand.
    """

    operand: tuple[int, ...]
    rows: tuple[int, ...]
    paired: Mapping[int, int]
    indexed: Mapping[int, int]
    kept: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def rest(self) -> list[int]:
        """Dims that are taken whole."""
        return [dim for dim in range(len(self.operand)) if dim not in {*self.paired, *self.indexed}]


def gathered(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """The nodes of a gather: `Gather` for indices into one dim, `GatherElements` where all other dims run along with
    them, else `GatherND`."""
    if equation.invars[1].aval.dtype.kind == "u":  # ONNX takes signed indices only
        inputs = [inputs[0], graph.add("Cast", [inputs[1]], to=graph.INT64)]
    if _takes_blocks(equation):
        return _blocks(graph, equation, inputs)
    look = _lookup(graph, equation, inputs[1])
    dims = equation.params["dimension_numbers"]
    counted = {dim: place for dim, place in look.paired.items() if dim not in dims.operand_batching_dims}
    columns = len(equation.params["dimension_numbers"].start_index_map)
    single = [dim for dim in look.kept if dim in look.indexed]  # taken one by one, and kept with size 1
    if single:
        out = [place for place, dim in zip(look.offsets, look.kept, strict=True) if dim not in single]
        gone = [place for place, dim in zip(look.offsets, look.kept, strict=True) if dim in single]
        offsets = tuple(place - sum(each < place for each in gone) for place in out)
        kept = tuple(dim for dim in look.kept if dim not in single)
        look = _Lookup(look.operand, look.rows, look.paired, look.indexed, kept, offsets)
    in_order = sorted(look.paired.values()) == list(look.paired.values())
    if len(look.indexed) == 1 and not look.rest and in_order and _is_along(look):
        made = _along(graph, look, inputs, columns)
    elif len(look.indexed) == 1 and not look.paired:
        made = _taken(graph, look, inputs, columns)
    else:
        made = _picked(graph, look, inputs, columns)
    if single:
        made = str(graph.add("Reshape", [made, graph.ints(*equation.outvars[0].aval.shape)]))
    if counted:
        graph.counting[made] = counted
    return made


def by_batch(equation: Any, counted: Mapping[int, int], operand: Any, numbers: Any) -> Any:
    """The result of a gather whose numbers for the operand dims `counted` only count along those dims of theirs. As
    batch dims, which they are, XLA splits them and sends nothing."""
    params = dict(equation.params)
    dims = params.pop("dimension_numbers")
    paired = dict(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)) | dict(counted)
    columns = [column for column, dim in enumerate(dims.start_index_map) if dim not in counted]
    by_rows = jax.lax.GatherDimensionNumbers(
        offset_dims=dims.offset_dims,
        collapsed_slice_dims=tuple(dim for dim in dims.collapsed_slice_dims if dim not in counted),
        start_index_map=tuple(dims.start_index_map[column] for column in columns),
        operand_batching_dims=tuple(sorted(paired)),
        start_indices_batching_dims=tuple(paired[dim] for dim in sorted(paired)),
    )
    return jax.lax.gather(operand, numbers[..., np.array(columns)], by_rows, **params)


def _takes_blocks(equation: Any) -> bool:
    """Whether indices choose several elements of a dim, and not all."""
    sizes, operand = equation.params["slice_sizes"], equation.invars[0].aval.shape
    dims = equation.params["dimension_numbers"].start_index_map
    return any(1 != sizes[dim] != operand[dim] for dim in dims) or all(1 != sizes[dim] == operand[dim] for dim in dims)


def _blocks(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A gather of blocks: `GatherND` of their elements, along dims of the operand of which a part is taken."""
    dims, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    operand, rows = equation.invars[0].aval.shape, equation.invars[1].aval.shape[:-1]
    paired = dict(sorted(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True)))
    kept = [dim for dim in range(len(operand)) if dim not in {*dims.collapsed_slice_dims, *paired}]
    cut = _Cut(operand, sizes, tuple(dims.start_index_map), rows, paired, kept)
    order = [*paired.values(), *(place for place in range(len(rows)) if place not in paired.values())]
    numbers = graph.permuted(
        cut.numbers(graph, inputs[1]), [*order, *range(len(rows), len(rows) + len(cut.blocks) + 1)]
    )
    whole = graph.permuted(inputs[0], [*paired, *cut.indexed, *cut.rest])
    made = graph.add("GatherND", [whole, numbers], batch_dims=len(paired))
    places, row = [*cut.blocks, *cut.rest], iter(range(len(rows)))
    perm = [
        len(rows) + places.index(kept[dims.offset_dims.index(at)]) if at in dims.offset_dims else order.index(next(row))
        for at in range(len(rows) + len(kept))
    ]
    return graph.permuted(made, perm)


@dataclass(frozen=True)
class _Cut:
    """Blocks of `sizes` of an operand, one for each row of numbers, whose columns are for the dims `columns`. `paired`:
    operand dim -> dim of the rows of numbers that runs along with it. `kept`: operand dims that a block has."""

    operand: Sequence[int]
    sizes: Sequence[int]
    columns: Sequence[int]
    rows: Sequence[int]
    paired: Mapping[int, int]
    kept: Sequence[int]

    @property
    def indexed(self) -> list[int]:
        """Dims of which a part is taken; there is at least one."""
        found = [dim for dim, size in enumerate(self.operand) if dim not in self.paired and self.sizes[dim] != size]
        return found or [self.columns[0]]

    @property
    def blocks(self) -> list[int]:
        """Dims of which a part is taken, and that a block has."""
        return [dim for dim in self.indexed if dim in self.kept]

    @property
    def rest(self) -> list[int]:
        """Dims that are taken whole."""
        return [dim for dim in self.kept if dim not in self.indexed]

    def numbers(self, graph: Graph, numbers: str, *, paired: bool = False) -> str:
        """The positions of all elements of blocks, dims [*rows, *block, position]; those in `paired` dims before the
        others."""
        shape = [*self.rows, *(self.sizes[dim] for dim in self.blocks)]
        found = (
            [graph.constant(_line(self.rows[row], row, len(shape))) for row in self.paired.values()] if paired else []
        )
        for dim in self.indexed:
            first = graph.ints0(0)
            if dim in self.columns:
                column = list(self.columns).index(dim)
                first = graph.add(
                    "Cast", [_column(graph, numbers, column, len(self.columns), self.rows)], to=graph.INT64
                )
                first = _up_to(graph, first, self.operand[dim] - self.sizes[dim])
                first = graph.add("Reshape", [first, graph.ints(*self.rows, *(1 for _ in self.blocks))])
            if dim in self.blocks:
                place = len(self.rows) + self.blocks.index(dim)
                first = graph.add("Add", [first, graph.constant(_line(self.sizes[dim], place, len(shape)))])
            found.append(first)
        wide = [graph.add("Expand", [each, graph.ints(*shape)]) for each in found]
        cut = [graph.add("Reshape", [each, graph.ints(*shape, 1)]) for each in wide]
        return str(graph.add("Concat", cut, axis=len(shape)) if len(cut) > 1 else cut[0])


def _up_to(graph: Graph, numbers: str, most: int) -> str:
    """Positions, those below 0 as 0 and those above the last one as that."""
    return str(graph.add("Min", [graph.add("Max", [numbers, graph.ints0(0)]), graph.ints0(most)]))


def _line(count: int, place: int, rank: int) -> Any:
    """The numbers 0, 1, 2, ... along one of `rank` dims."""
    return np.arange(count).reshape([-1 if dim == place else 1 for dim in range(rank)])


def _lookup(graph: Graph, equation: Any, numbers: str) -> _Lookup:
    """The parts of a gather. Numbers that only count the rows (`arange`) make a paired dim, all others an
    indexed one."""
    dims, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    operand, rows = equation.invars[0].aval.shape, equation.invars[1].aval.shape[:-1]
    paired = dict(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True))
    columns = {dim: column for column, dim in enumerate(dims.start_index_map) if sizes[dim] != operand[dim]}
    columns = columns or {dim: column for column, dim in enumerate(dims.start_index_map) if operand[dim] == 1}
    for dim, column in list(columns.items()):
        if len(columns) == 1 or dim not in dims.collapsed_slice_dims:
            continue
        place = _counts(_known(graph, numbers, column, len(dims.start_index_map)), operand[dim])
        if place is not None and place not in paired.values():
            paired[dim] = place
            del columns[dim]
    gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    kept = tuple(dim for dim in range(len(operand)) if dim not in gone)
    return _Lookup(operand, rows, dict(sorted(paired.items())), columns, kept, tuple(dims.offset_dims))


def _known(graph: Graph, numbers: str, column: int, columns: int) -> Any:
    """The numbers of one dim, if they are constants."""
    parts = graph.parts(numbers)
    part, at = (parts[column], 0) if len(parts) == columns else (numbers, column)
    known = graph.value(part)
    return None if known is None else known[..., at]


def _counts(numbers: Any, size: int) -> int | None:
    """The dim along which the numbers are known to be 0, 1, 2, ..., `size` - 1; None if there is none."""
    if numbers is None:
        return None
    for place, extent in enumerate(numbers.shape):
        if extent == size and (numbers == _line(size, place, numbers.ndim)).all():
            return place
    return None


def _column(graph: Graph, numbers: str, column: int, columns: int, rows: Sequence[int]) -> str:
    """The numbers of one dim."""
    one = [graph.ints(column), graph.ints(column + 1), graph.ints(len(rows))]
    cut = graph.add("Slice", [numbers, *one]) if columns > 1 else numbers
    return str(graph.add("Reshape", [cut, graph.ints(*rows)]))


def _taken(graph: Graph, look: _Lookup, inputs: Sequence[str], columns: int) -> str:
    """A gather with indices into one dim."""
    ((axis, column),) = look.indexed.items()
    made = graph.add("Gather", [inputs[0], _column(graph, inputs[1], column, columns, look.rows)], axis=axis)
    rows = len(look.rows)
    return _placed(graph, made, look, [*range(axis), *range(axis + rows, axis + rows + len(look.rest) - axis)], axis)


def _is_along(look: _Lookup) -> bool:
    """Whether the numbers have the operand's dims in its order, with or without the indexed dim."""
    (axis,) = look.indexed
    others = [size for dim, size in enumerate(look.operand) if dim != axis]
    is_long = len(look.rows) == len(look.operand)
    return list(look.rows) == others or (is_long and [n for dim, n in enumerate(look.rows) if dim != axis] == others)


def _along(graph: Graph, look: _Lookup, inputs: Sequence[str], columns: int) -> str:
    """A gather of single elements. The numbers have all dims of the operand but the indexed one, in whose place they
    may have a dim of their own."""
    ((axis, column),) = look.indexed.items()
    flat = _column(graph, inputs[1], column, columns, look.rows)
    others = [size for dim, size in enumerate(look.operand) if dim != axis]
    if list(look.rows) == others:  # one number for each row
        one = [1 if dim == axis else size for dim, size in enumerate(look.operand)]
        made = graph.add("GatherElements", [inputs[0], graph.add("Reshape", [flat, graph.ints(*one)])], axis=axis)
        return str(graph.add("Reshape", [made, graph.ints(*look.rows)]))
    return str(graph.add("GatherElements", [inputs[0], flat], axis=axis))


def _picked(graph: Graph, look: _Lookup, inputs: Sequence[str], columns: int) -> str:
    """A gather with indices into several dims, with or without paired dims."""
    operand = graph.permuted(inputs[0], [*look.paired, *look.indexed, *look.rest])
    shared = list(look.paired.values())
    others = [place for place in range(len(look.rows)) if place not in shared]
    cut = [
        graph.add("Reshape", [_column(graph, inputs[1], column, columns, look.rows), graph.ints(*look.rows, 1)])
        for column in look.indexed.values()
    ]
    numbers = graph.add("Concat", cut, axis=len(look.rows)) if len(cut) > 1 else cut[0]
    numbers = graph.add("Cast", [graph.permuted(numbers, [*shared, *others, len(look.rows)])], to=graph.INT64)
    after = list(range(len(look.rows), len(look.rows) + len(look.rest)))
    made = graph.add("GatherND", [operand, numbers], batch_dims=len(shared))
    made = graph.permuted(made, np.argsort([*shared, *others, *after]).tolist())
    return _placed(graph, made, look, after, 0)


def _placed(graph: Graph, made: str, look: _Lookup, natural: Sequence[int], first: int) -> str:
    """`made`, its dims permuted to the order of the result: dims taken whole are at `natural`, dims of the rows from
    `first` on."""
    wanted = list(look.offsets)
    rest = iter(range(first, first + len(look.rows)))
    rank = len(look.rows) + len(look.rest)
    return graph.permuted(made, [natural[wanted.index(at)] if at in wanted else next(rest) for at in range(rank)])


def scattered(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """The nodes of a scatter of rows or of the elements of blocks: `ScatterND`; of one block (`x.at[:, :5].add`): a
    `Where` of the positions in it."""
    dims = equation.params["dimension_numbers"]
    operand, updates = equation.invars[0].aval.shape, equation.invars[2].aval.shape
    if equation.invars[1].aval.ndim == 1:
        return _block(graph, equation, inputs)
    indexed = list(dims.scatter_dims_to_operand_dims)
    rest = [dim for dim in range(len(operand)) if dim not in indexed]
    window = list(dims.update_window_dims)
    rows = [place for place in range(len(updates)) if place not in window]
    is_plain = not dims.operand_batching_dims and sorted(dims.inserted_window_dims) == sorted(indexed)
    numbers = inputs[1]
    if not is_plain or [updates[place] for place in window] != [operand[dim] for dim in rest]:
        paired = dict(sorted(zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True)))
        kept = [dim for dim in range(len(operand)) if dim not in {*dims.inserted_window_dims, *paired}]
        sizes = [updates[window[kept.index(dim)]] if dim in kept else 1 for dim in range(len(operand))]
        cut = _Cut(operand, sizes, indexed, equation.invars[1].aval.shape[:-1], paired, kept)
        numbers = cut.numbers(graph, inputs[1], paired=True)
        window = [window[kept.index(dim)] for dim in (*cut.blocks, *cut.rest)]
        indexed, rest = [*paired, *cut.indexed], cut.rest
    perm = [*indexed, *rest]
    numbers = graph.add("Cast", [numbers], to=graph.INT64)
    given = [graph.permuted(inputs[0], perm), numbers, graph.permuted(inputs[2], [*rows, *window])]
    made = graph.add("ScatterND", given, reduction=SCATTERS[equation.primitive.name])
    return graph.permuted(made, np.argsort(perm).tolist())


_COMBINED: Mapping[str, str] = {"add": "Add", "mul": "Mul", "min": "Min", "max": "Max"}


def _block(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """A scatter of one block, whose first corner is at the given position."""
    dims, kind = equation.params["dimension_numbers"], SCATTERS[equation.primitive.name]
    operand, updates = equation.invars[0].aval.shape, equation.invars[2].aval.shape
    sizes = iter(updates)
    part = [1 if dim in dims.inserted_window_dims else next(sizes) for dim in range(len(operand))]
    columns = list(dims.scatter_dims_to_operand_dims)
    starts = [
        _column(graph, inputs[1], columns.index(dim), len(columns), ()) if dim in columns else graph.ints0(0)
        for dim in range(len(operand))
    ]
    value = graph.add("Reshape", [inputs[2], graph.ints(*part)])
    near, inside = _spread(graph, value, part, operand, starts)
    if kind in _COMBINED:
        near = graph.add(_COMBINED[kind], [inputs[0], near])
    return str(graph.add("Where", [inside, near, inputs[0]]) if inside else near)


def updated(graph: Graph, equation: Any, inputs: Sequence[str]) -> str:
    """`dynamic_update_slice`: in every dim of which a part is written, the positions follow from the start index."""
    operand, part = (each.aval.shape for each in equation.invars[:2])
    value, written = _spread(graph, inputs[1], part, operand, inputs[2:])
    return str(graph.add("Where", [written, value, inputs[0]]) if written else value)


def _spread(
    graph: Graph, value: str, part: Sequence[int], operand: Sequence[int], starts: Sequence[str]
) -> tuple[str, str]:
    """A block, spread to the shape of the operand by repeating its borders, and whether a position is in the block;
    empty where all are."""
    written = ""
    for dim, (size, extent) in enumerate(zip(part, operand, strict=True)):
        if size == extent:
            continue
        first = graph.add("Cast", [starts[dim]], to=graph.INT64)
        first = _up_to(graph, first, extent - size)
        place = graph.add("Sub", [graph.constant(np.arange(extent)), first])
        near = _up_to(graph, place, size - 1)
        value = graph.add("Gather", [value, near], axis=dim)
        inside = graph.add("Equal", [place, near])
        line = graph.ints(*(extent if each == dim else 1 for each in range(len(operand))))
        inside = graph.add("Reshape", [inside, line])
        written = graph.add("And", [written, inside]) if written else inside
    return value, written
