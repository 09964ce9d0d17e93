"""Even cuts of a model into the chunks of a pipeline between layers, as trainers make them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from shardplan.errors import ShardplanError
from shardplan.model.types import Model
from shardplan.pipeline.cut_points import chain_of
from shardplan.planning.parallelism import bad
from shardplan.rules import model_rules
from shardplan.units import counted


def chunk_starts(model: Model, chunks: int) -> list[int]:
    """The first operator of each chunk except the first."""
    begins = [start for start, _ in _layers(model)]
    after = 1 + max((index for block in model.blocks for copy in block.copies for index in copy), default=-1)
    if begins and len(begins) + 2 == chunks:  # embedding and output matrix are chunks of their own
        return [*begins, after]
    if len(begins) < chunks:
        hint = "take at most as many stages, times --vp, as there are layers"
        raise ShardplanError(bad(f"the model has {counted(len(begins), 'layer')}, too few for {chunks} stages", hint))
    counts = layers_of(len(begins), chunks, _further(model, after))
    return [[*begins, after][place] for place in itertools.accumulate(counts[:-1])]


def layers_in_chunks(model: Model, starts: Sequence[int]) -> list[tuple[int, ...]]:
    """By chunk, how many of its layers are copies of each block of the model. `starts`: as of `chunk_starts`."""
    counts = [[0] * len(model.blocks) for _ in range(len(starts) + 1)]
    for start, block in _layers(model):
        counts[bisect_right(starts, start)][block] += 1
    return [tuple(each) for each in counts]


def layers_of(layers: int, chunks: int, further: int = 0) -> list[int]:
    """The number of layers of each chunk: equal if possible; otherwise embedding and output matrix count as one layer
    each, and the remainder goes to the inner chunks, from the front.

    `further`: modules behind the last layer that predict further tokens. Of each, layer and output matrix count as one
    layer each, and the embedding as none, if chunks are equal then; otherwise module, output matrix and embedding count
    as one each, and the last chunk may have nothing else. These are the layouts of Megatron-Bridge for DeepSeek-V3 (16
    stages: 4, 14 times 4, 1; 32 stages: 1, 30 times 2, 0).
    """
    behind = 1 + 2 * further if further else 0
    each, over = divmod(layers + behind, chunks)
    if not over and each > behind:
        return [*[each] * (chunks - 1), each - behind]
    each, over = divmod(layers + further + 2, chunks)
    order = [*range(1, chunks - 1), 0, chunks - 1]
    more = set(order[:over])
    counts = [each + (place in more) - (place in (0, chunks - 1)) for place in range(chunks)]
    counts[-1] -= further
    if min(counts[:-1]) > 0 and counts[-1] >= (not further):
        return counts
    return [layers // chunks + (place < layers % chunks) for place in range(chunks)]


def _further(model: Model, after: int) -> int:
    """Modules that predict further tokens: outputs like the first, of operators behind the last layer."""
    made = {name for operator in model.operators[after:] for name in operator.outputs}
    first = model.tensor(model.outputs[0]).shape if model.outputs else ()
    return max(0, sum(name in made and model.tensor(name).shape == first for name in model.outputs) - 1)


def _layers(model: Model) -> list[tuple[int, int]]:
    """The first operator of every layer, at a place where the model can be cut, and the block of which it is a copy.
    Layers of several kinds, as in a mixture of experts whose first layers are dense, are copies of several blocks of
    one module."""
    block = max(model.blocks, key=lambda block: len(block.copies), default=None)
    if block is None:
        return []
    first = {
        name: (min(copy), number)
        for number, each in enumerate(model.blocks)
        for name, copy in zip(each.names, each.copies, strict=True)
        if each is block or _module(name) == _module(block.names[0])
    }
    chain = chain_of(model, model_rules(model))
    cut = {name: min(unit) for name, unit in zip(chain.names, chain.units, strict=True)}
    return sorted((cut.get(name, start), number) for name, (start, number) in first.items())


def _module(name: str) -> str:
    """`model.layers` of `model.layers.7`."""
    return name.rpartition(".")[0]
