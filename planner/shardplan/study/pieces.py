"""Even cuts of a model into the pieces of a pipeline between layers, as trainers make them."""

from __future__ import annotations

import itertools

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.pipeline.cut_points import chain_of
from shardplan.planning.parallelism import bad
from shardplan.rules import model_rules
from shardplan.units import counted


def starts(model: Model, pieces: int) -> list[int]:
    """The first operator of each piece except the first."""
    begins = _layer_starts(model)
    if begins and len(begins) + 2 == pieces:  # embedding and output matrix are pieces of their own
        return [*begins, 1 + max(index for block in model.blocks for copy in block.copies for index in copy)]
    if len(begins) < pieces:
        hint = "take at most as many stages, times --vp, as there are layers"
        raise ShardplanError(bad(f"the model has {counted(len(begins), 'layer')}, too few for {pieces} stages", hint))
    return [begins[place] for place in itertools.accumulate(layers_of(len(begins), pieces)[:-1])]


def layers_of(layers: int, pieces: int) -> list[int]:
    """The number of layers of each piece: equal if possible; otherwise embedding and output matrix count as one layer
    each, and the remainder goes to the inner pieces, from the front."""
    each, over = divmod(layers, pieces)
    if not over:
        return [each] * pieces
    each, over = divmod(layers + 2, pieces)
    order = [*range(1, pieces - 1), 0, pieces - 1]
    more = set(order[:over])
    counts = [each + (place in more) - (place in (0, pieces - 1)) for place in range(pieces)]
    return counts if min(counts) > 0 else [layers // pieces + (place < layers % pieces) for place in range(pieces)]


def _layer_starts(model: Model) -> list[int]:
    """The first operator of every layer, at a place where the model can be cut. Layers of several kinds, as in a
    mixture of experts whose first layers are dense, are copies of several blocks of one module."""
    block = max(model.blocks, key=lambda block: len(block.copies), default=None)
    if block is None:
        return []
    first = {
        name: min(copy)
        for each in model.blocks
        for name, copy in zip(each.names, each.copies, strict=True)
        if each is block or _module(name) == _module(block.names[0])
    }
    chain = chain_of(model, model_rules(model))
    cut = {name: min(unit) for name, unit in zip(chain.names, chain.units, strict=True)}
    return sorted(cut.get(name, start) for name, start in first.items())


def _module(name: str) -> str:
    """`model.layers` of `model.layers.7`."""
    return name.rpartition(".")[0]
