"""The layers of a model, and which of them a scheme of recomputation runs again as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.graph.options import Layers, PlanOptions
from shardplan.model.types import Model


@dataclass(frozen=True, slots=True)
class RecomputedSegment:
    """Operators that are recomputed together, right before the backward of operator `last`."""

    operators: frozenset[int]
    last: int


def blocks(model: Model) -> list[RecomputedSegment]:
    """The repeated blocks of a model."""
    return [RecomputedSegment(frozenset(copy), max(copy)) for block in model.blocks for copy in block.copies]


def layers_of(model: Model) -> list[RecomputedSegment]:
    """The layers of a model's repeated blocks, in order: a block of layers of several kinds, as where each second is a
    mixture of experts, has them by name (`layers.0+layers.1`)."""
    found = []
    for block in model.blocks:
        for names, copy in zip(block.names, block.copies, strict=True):
            parts: dict[str, set[int]] = {}
            part = names.partition("+")[0]
            for index in sorted(copy):
                module = f"{model.operators[index].module}."
                part = next((name for name in names.split("+") if module.startswith(f"{name}.")), part)
                parts.setdefault(part, set()).add(index)
            found += [RecomputedSegment(frozenset(own), max(own)) for own in parts.values()]
    return sorted(found, key=lambda segment: segment.last)


def chosen_layers(model: Model, layers: Layers) -> list[RecomputedSegment]:
    """The segments that a scheme recomputes: single layers, or chunks of them."""
    found, number = layers_of(model), layers.number
    if layers.scheme == "block":
        return found[:number]
    if layers.scheme == "every":
        return found[number - 1 :: number]
    chunks = [found[place : place + number] for place in range(0, len(found), number)]
    return [
        RecomputedSegment(frozenset().union(*(each.operators for each in chunk)), chunk[-1].last) for chunk in chunks
    ]


def recomputed_share(model: Model, options: PlanOptions) -> float:
    """The share of a model's layers that run a second forward as a whole."""
    if options.remat != "full":
        return 0.0
    layers = options.full_layers
    if layers is None or layers.scheme == "uniform":
        return 1.0
    return len(chosen_layers(model, layers)) / max(1, len(layers_of(model)))
