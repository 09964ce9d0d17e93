"""Where trainers cut a model into the pieces of a pipeline: between layers, dealt out evenly."""

from __future__ import annotations

import itertools

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.pipeline.cut_points import chain_of
from shardplan.planning.parallelism import bad
from shardplan.rules import model_rules
from shardplan.units import counted


def starts(model: Model, pieces: int) -> list[int]:
    """The operator with which each piece but the first begins."""
    begins = _layer_starts(model)
    if begins and len(begins) + 2 == pieces:  # embedding and output matrix are pieces of their own
        return [*begins, 1 + max(index for block in model.blocks for copy in block.copies for index in copy)]
    if len(begins) < pieces:
        hint = "take at most as many stages, times --vp, as there are layers"
        raise ShardplanError(bad(f"the model has {counted(len(begins), 'layer')}, too few for {pieces} stages", hint))
    return [begins[place] for place in itertools.accumulate(layers_of(len(begins), pieces)[:-1])]


def layers_of(layers: int, pieces: int) -> list[int]:
    """Layers of each piece: equally many, else with embedding and output matrix counted as a layer each, and what is
    left over by the pieces between the ends first, from the front."""
    each, over = divmod(layers, pieces)
    if not over:
        return [each] * pieces
    each, over = divmod(layers + 2, pieces)
    order = [*range(1, pieces - 1), 0, pieces - 1]
    more = set(order[:over])
    counts = [each + (place in more) - (place in (0, pieces - 1)) for place in range(pieces)]
    return counts if min(counts) > 0 else [layers // pieces + (place < layers % pieces) for place in range(pieces)]


def _layer_starts(model: Model) -> list[int]:
    """The operator with which every layer begins, at a place where the model can be cut. Layers of several kinds, as
    those of a mixture whose first ones are dense, are copies of several blocks of one module."""
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
