"""Price matrices of the edges of the cost graph, in picoseconds per step.

made -> kept     the producer's result is brought into the layout in which it is kept; its gradient goes the other way
kept -> served   a tensor with several readers is gathered once for all; their gradients are reduced once
kept or served -> read   what one reader needs beyond that
kept -> updated  the gradient of a weight is brought to where the optimizer's state is, and the new weight back, once

The last moves of weights' gradients, and those of new weights, are charged their share of a bucket
(`shardplan.cost.coalesce`). A value that backward reads again is gathered again there, unless it was kept as it is
read. What happens inside of a loop happens in every turn; a value from outside is served once, and read in every turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.moves import Index, Seconds
from shardplan.graph.strategies import StrategySpace
from shardplan.graph.tensors import TensorSpace
from shardplan.units import PS_PER_S

Table = NDArray[np.float64]


def made_to_kept(
    strategies: StrategySpace, position: int, kept: TensorSpace, *, forwards: int, unread: bool = False
) -> Table:
    """Strategies (rows) to kept choices (columns). `forwards`: how often the value is made (2 when recomputed).

    `unread`: no operator reads the value but its maker's backward (the mask of a dropout); it stays as it was made.
    """
    made = strategies.makes[position]
    assert made is not None
    value, gradient = made
    table = forwards * kept.value_move(value, kept.forward)
    exclusive = strategies.exclusive_codes(position).any(axis=1)
    if exclusive.any():
        partial = (kept.codes == len(kept.kind.shards) + 1).any(axis=1)
        table[exclusive] = forwards * kept.extremum_move(value[exclusive], kept.forward)
        table[np.ix_(exclusive, partial)] = np.inf  # no layout holds two kinds of partial values
    table += kept.kind.microbatches * kept.gradient_move(kept.gradient, gradient).T
    if unread:
        table[value[:, None] != kept.forward[None, :]] = np.inf
    return _picoseconds(table)


def kept_to_served(kept: TensorSpace, served: TensorSpace, *, forwards: int, last: bool = False) -> Table:
    """Kept choices (rows) to served choices (columns). `forwards`: 2 when backward gathers the value again; `last`:
    as in `to_read`."""
    table = forwards * served.value_move(kept.forward, served.forward)
    table += _gradient_back(served, kept.codes, kept.gradient, served.codes, served.gradient)
    if last:
        together = kept.gradient_share(served.gradient, kept.gradient).T
        table = np.where(kept.forward[:, None] == served.forward[None, :], together, table)
    return _picoseconds(table)


def kept_to_updated(kept: TensorSpace, updated: TensorSpace) -> Table:
    """Kept choices of a weight (rows) to the layouts its optimizer state may have (columns)."""
    table = kept.gradient_share(kept.gradient, updated.gradient)
    return _picoseconds(table + kept.value_share(updated.forward, kept.forward).T)


def to_read(
    source: TensorSpace, strategies: StrategySpace, position: int, *, forwards: int, last: bool = False
) -> Table:
    """Kept or served choices (rows) to strategies of the reader (columns).

    `last`: this is the last move of a weight's gradient but for the one to the optimizer, once a step. Where the value
    is read as it is kept, nothing waits for it, and it is sent together with those of other weights.
    """
    read = strategies.reads[position]
    assert read is not None
    value, gradient = read
    table = forwards * source.value_move(source.forward, value)
    codes = strategies.layout_codes("operands", position)
    table += _gradient_back(source, source.codes, source.gradient, codes, gradient)
    if last:
        together = source.gradient_share(gradient, source.gradient).T
        table = np.where(source.forward[:, None] == value[None, :], together, table)
    return _picoseconds(table)


def around(enter: StrategySpace, leave: StrategySpace) -> Table:
    """Strategies in which a turn of a loop begins with a value (rows) to those in which one ends with it (columns).

    They must hand it on in one layout: 0 where they do, `inf` elsewhere."""
    begins = [enter.layout("results", 0, strategy) for strategy in range(len(enter))]
    ends = [leave.layout("operands", 0, strategy) for strategy in range(len(leave))]
    return np.array([[0.0 if begin == end else np.inf for end in ends] for begin in begins])


def gradient_count(space: TensorSpace, kept_codes: Index, read_codes: Index) -> Seconds:
    """How often per step the gradient moves from the read layouts (columns) back to the kept ones (rows).

    An activation's moves once per microbatch. A weight's is accumulated and reduced once, unless it is kept sharded
    where it is read whole: then every microbatch's is scattered to the shards.
    """
    micro = space.kind.microbatches
    if space.kind.traffic == "activation" or micro == 1:
        return np.full((len(kept_codes), len(read_codes)), float(micro))
    sharded = kept_codes < len(space.kind.shards)
    partial = read_codes == len(space.kind.shards) + 2
    scattered = (sharded[:, None, :] & partial[None, :, :]).any(axis=2)
    return np.where(scattered, float(micro), 1.0)


def _gradient_back(
    space: TensorSpace, kept_codes: Index, kept_gradient: Index, read_codes: Index, read_gradient: Index
) -> Seconds:
    moved = space.gradient_move(read_gradient, kept_gradient).T
    if not space.kind.has_gradient:
        return moved
    return moved * gradient_count(space, kept_codes, read_codes)


def _picoseconds(seconds: Seconds) -> Table:
    table: Table = np.rint(seconds * PS_PER_S)
    return table
