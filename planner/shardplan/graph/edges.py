"""Prices of the edges of the cost graph: terms of a step's time (`shardplan.schedule.terms`), in picoseconds.

    made -> kept             moves the producer's result to the layout in which it is kept; its gradient moves back
    kept -> served           gathers a tensor with several readers once for all; their gradients are reduced once
    kept or served -> read   the further move for one reader
    kept -> updated          moves a weight's gradient to the optimizer's state, and the new weight back, once per step

Activations and their gradients, and all results of operators, are waited for (`blocking`); weights are gathered ahead
of use (`gather`), and their gradients reduced beside what follows (`reduce`). The last moves of weights' gradients, and
those of new weights, are priced at their share of a bucket (`shardplan.cost.coalesce`). A value that backward reads
again is re-gathered there, unless it was kept as it is read. What happens inside of a loop happens in every iteration;
a value from outside is served once, and read in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.moves import Index, Seconds
from shardplan.graph.strategies import StrategySpace
from shardplan.graph.tensors import TensorSpace
from shardplan.schedule.terms import Priced, Resource, Segment, Table, Term, priced
from shardplan.units import PS_PER_S

Part = tuple[Term, Table]


def made_to_kept(
    strategies: StrategySpace,
    position: int,
    kept: TensorSpace,
    *,
    forwards: int,
    unread: bool = False,
    iterations: int = 1,
) -> Priced:
    """Strategies (rows) to kept choices (columns). `forwards`: how often the value is made (2 if recomputed).

    `unread`: no operator reads the value except its maker's backward (a dropout mask); it stays as it was made.
    `iterations`: how often this happens per microbatch.
    """
    made = strategies.makes[position]
    assert made is not None
    value, gradient = made
    moved = kept.value_move(value, kept.forward)
    closed = np.zeros(moved.shape[1:], dtype=np.bool_)
    exclusive = strategies.exclusive_codes(position).any(axis=1)
    if exclusive.any():
        partial = (kept.codes == len(kept.kind.shards) + 1).any(axis=1)
        moved[:, exclusive] = kept.extremum_move(value[exclusive], kept.forward)
        closed[np.ix_(exclusive, partial)] = True  # no layout holds two kinds of partial values
    if unread:
        closed |= value[:, None] != kept.forward[None, :]
    back = _swapped(kept.gradient_move(kept.gradient, gradient))
    parts = [*_value(kept, moved, forwards, "blocking"), *_by_level(kept, "backward", "blocking", back)]
    return _picoseconds(parts, iterations, closed)


def kept_to_served(
    kept: TensorSpace, served: TensorSpace, *, forwards: int, last: bool = False, iterations: int = 1
) -> Priced:
    """Kept choices (rows) to served choices (columns). `forwards`: 2 when backward gathers the value again; `last`:
    as in `to_read`."""
    parts = list(_value(served, served.value_move(kept.forward, served.forward), forwards, _move_resource(served)))
    back = _swapped(served.gradient_move(served.gradient, kept.gradient))
    if last:
        together = _swapped(kept.gradient_share(served.gradient, kept.gradient))
        back = np.where(kept.comes_free(kept.forward, served.forward), together, back)
    return _picoseconds([*parts, *_gradient(served, back, kept.codes, served.codes)], iterations)


def kept_to_updated(kept: TensorSpace, updated: TensorSpace) -> Priced:
    """Kept choices of a weight (rows) to the layouts its optimizer state may have (columns)."""
    back = kept.gradient_share(kept.gradient, updated.gradient)
    there = _swapped(kept.value_share(updated.forward, kept.forward))
    return _picoseconds([*_by_level(kept, "once", "reduce", back), *_by_level(kept, "first", "gather", there)], 1)


def to_read(
    source: TensorSpace,
    strategies: StrategySpace,
    position: int,
    *,
    forwards: int,
    last: bool = False,
    iterations: int = 1,
) -> Priced:
    """Kept or served choices (rows) to strategies of the reader (columns).

    `last`: this is the last move of a weight's gradient before the one to the optimizer, once per step. If the value is
    read as it is kept, or as a part of that, nothing waits for the gradient, and it is sent in a bucket with others.
    """
    read = strategies.reads[position]
    assert read is not None
    value, gradient = read
    codes = strategies.layout_codes("operands", position)
    back = _swapped(source.gradient_move(gradient, source.gradient))
    if last:
        together = _swapped(source.gradient_share(gradient, source.gradient))
        back = np.where(source.comes_free(source.forward, value), together, back)
    parts = _value(source, source.value_move(source.forward, value), forwards, _move_resource(source))
    return _picoseconds([*parts, *_gradient(source, back, source.codes, codes)], iterations)


def around(enter: StrategySpace, leave: StrategySpace) -> Priced:
    """From the strategies in which an iteration of a loop starts with a value (rows) to those in which one ends with it
    (columns). Both have one layout for the value: all other pairs are closed."""
    begins = [enter.layout("results", 0, strategy) for strategy in range(len(enter))]
    ends = [leave.layout("operands", 0, strategy) for strategy in range(len(leave))]
    return priced({}, np.array([[begin != end for end in ends] for begin in begins]))


def gradient_count(space: TensorSpace, kept_codes: Index, read_codes: Index) -> Seconds:
    """How often per step the gradient moves from the read layouts (columns) back to the kept ones (rows).

    That of an activation moves once per microbatch. That of a weight is accumulated and reduced once, unless the weight
    is kept sharded where it is read whole: then every microbatch's gradient is reduce-scattered to the shards.
    """
    micro = space.kind.microbatches
    if space.kind.traffic == "activation" or micro == 1:
        return np.full((len(kept_codes), len(read_codes)), float(micro))
    sharded = kept_codes < len(space.kind.shards)
    partial = read_codes == len(space.kind.shards) + 2
    scattered = (sharded[:, None, :] & partial[None, :, :]).any(axis=2)
    return np.where(scattered, float(micro), 1.0)


def _is_weight(space: TensorSpace) -> bool:
    return space.kind.traffic == "weight"


def _by_level(space: TensorSpace, segment: Segment, resource: Resource, stack: Seconds) -> Iterator[Part]:
    for levels, table in zip(space.level_sets, stack, strict=True):
        yield Term(segment, resource, levels), table


def _move_resource(space: TensorSpace) -> Resource:
    return "gather" if _is_weight(space) else "blocking"


def _value(space: TensorSpace, moved: Seconds, forwards: int, resource: Resource) -> Iterator[Part]:
    """The moves of a value: in forward, and once more in backward if `forwards` is 2."""
    yield from _by_level(space, "forward", resource, moved)
    if forwards > 1:
        yield from _by_level(space, "backward", resource, (forwards - 1) * moved)


def _gradient(space: TensorSpace, moved: Seconds, kept_codes: Index, read_codes: Index) -> Iterator[Part]:
    """The moves of a gradient, shape (level sets, kept, read): in every microbatch, or once in the last."""
    if not space.kind.has_gradient:
        return
    if not _is_weight(space):
        yield from _by_level(space, "backward", "blocking", moved)
        return
    if space.kind.microbatches == 1:
        yield from _by_level(space, "once", "reduce", moved)
        return
    every = gradient_count(space, kept_codes, read_codes) > 1
    closed = np.isinf(moved)
    yield from _by_level(space, "backward", "reduce", np.where(every | closed, moved, 0.0))
    yield from _by_level(space, "once", "reduce", np.where(every & ~closed, 0.0, moved))


def _swapped(stack: Seconds) -> Seconds:
    """Rows and columns of every table swapped."""
    return stack.transpose(0, 2, 1)


def _picoseconds(parts: list[Part], iterations: int, closed: NDArray[np.bool_] | None = None) -> Priced:
    """The sums of tables with equal terms, in whole picoseconds of all `iterations`."""
    scale = iterations * PS_PER_S
    found: dict[Term, Table] = {}
    shut = np.zeros(parts[0][1].shape, dtype=np.bool_) if closed is None else closed
    for term, table in parts:
        endless = np.isinf(table)
        if endless.any():
            shut = shut | endless
        finite = np.where(endless, 0.0, table) if endless.any() else table
        if finite.any():
            found[term] = found[term] + finite if term in found else finite
    return priced({term: np.rint(scale * table) for term, table in found.items()}, shut)
