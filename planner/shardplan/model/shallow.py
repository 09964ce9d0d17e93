"""A model with fewer copies of its repeated blocks, at full size otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from shardplan.model.blocks import find_blocks
from shardplan.model.types import Model


def thinned(model: Model, copies: int) -> tuple[list[int], dict[tuple[int, str], str]]:
    """Operators that stay, and (operator, value it reads) -> the value it reads in the thinner model, in which every
    repeated block has at most so many copies: the last one, and the first ones.

    A value that a dropped copy of a block makes is replaced by that of the last copy before it that stays."""
    dropped: set[int] = set()
    stands_for: dict[str, str] = {}
    for block in model.blocks:
        count = len(block.copies)
        stays = {*range(copies - 1), count - 1} if count > copies else set(range(count))
        for number, copy in enumerate(block.copies):
            if number in stays:
                continue
            dropped.update(copy)
            before = block.copies[max(place for place in stays if place < number)]
            for index, other in zip(copy, before, strict=True):
                both = zip(model.operators[index].outputs, model.operators[other].outputs, strict=True)
                stands_for.update({old: new for old, new in both if old})
    kept = [index for index in range(len(model.operators)) if index not in dropped]
    renamed = {
        (index, name): stands_for[name]
        for index in kept
        for name in model.operators[index].inputs
        if name in stands_for
    }
    return kept, renamed


def thin_model(model: Model, kept: Sequence[int], renamed: Mapping[tuple[int, str], str]) -> Model:
    """The model of these operators, at full size."""
    operators = tuple(
        replace(o, inputs=tuple(renamed.get((index, name), name) for name in o.inputs))
        for index, o in ((index, model.operators[index]) for index in kept)
    )
    alive = {name for operator in operators for name in (*operator.inputs, *operator.outputs) if name}
    return replace(
        model,
        operators=operators,
        tensors={name: tensor for name, tensor in model.tensors.items() if name in alive},
        parameters=tuple(parameter for parameter in model.parameters if parameter.tensor in alive),
        inputs=tuple(name for name in model.inputs if name in alive),
        outputs=tuple(name for name in model.outputs if name in alive),
        constants={name: array for name, array in model.constants.items() if name in alive},
        blocks=(),
    )


def shallow(model: Model, copies: int) -> Model:
    """The model with at most so many copies of every repeated block. What a copy holds in memory counts for several
    (`Model.depth`), so that the shallow model needs about as much as the whole one."""
    kept, renamed = thinned(model, copies)
    thin = thin_model(model, kept, renamed)
    depth = {name: each for block in model.blocks for name, each in _depth(model, block.copies, copies).items()}
    return replace(thin, depth=depth, blocks=find_blocks(thin.operators, thin.tensors, thin.constants))


def _depth(model: Model, block: Sequence[Sequence[int]], copies: int) -> Mapping[str, Fraction]:
    """By tensor that one copy of a block makes or alone reads, how many copies one that stays stands for."""
    own = [[model.operators[index] for index in copy] for copy in block]
    made = {name for copy in own for operator in copy for name in operator.outputs}
    weights = {parameter.tensor for parameter in model.parameters}
    read = Counter(name for copy in own for name in {name for one in copy for name in one.inputs} & weights)
    alone = {name for name, times in read.items() if times == 1}
    return dict.fromkeys(sorted(made | alone), Fraction(max(len(block), copies), copies))
