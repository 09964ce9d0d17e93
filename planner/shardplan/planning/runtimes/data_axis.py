"""An axis of data parallelism: every device runs the program on its part of the batch, and gradients are summed.

Inputs are sharded on dim 0, weights are read whole, and every value is whole or the part of the device's batch. The
forward pass communicates only to gather sharded weights (`shards`) and for the statistics of batch normalisations.
Values computed from inputs only (a mask), or from weights only, are computed for the device's part of the batch.
Scalars (a loss) are summed.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.graph.build import Join, Node
from shardplan.layout.placement import RP, Placement, R, S
from shardplan.planning.reduction import Mask
from shardplan.planning.runtimes.axis_states import AxisMasks, AxisView, same, same_or_slice_of_whole

_SYNCHRONISED = frozenset({"BatchNormalization"})


def nodes(on: AxisMasks, *, shards: bool) -> Iterator[tuple[Node, Mask]]:
    """The masks of operators and tensors. `shards`: weights are stored in shards if their sizes divide."""
    built, facts = on.built, on.facts
    for index, operator in enumerate(built.model.operators):
        weights = tuple(at for at, name in enumerate(operator.inputs) if name in facts.views)
        single = tuple(name == "" or built.model.tensor(name).elements == 1 for name in operator.outputs)
        inside = operator.op_type in _SYNCHRONISED or all(single)

        def allows(view: AxisView, weights: tuple[int, ...] = weights, single: tuple[bool, ...] = single,
                   inside: bool = inside) -> bool:  # fmt: skip
            return _splits_batch(view, weights, single, inside=inside)

        yield ("operator", operator.name), on.strategies(index, allows, "data", weights, single, inside)
    for name, space in built.kept.items():
        if name in facts.views and not shards:
            yield ("kept", name), on.layouts(space, lambda p: not p.is_shard, "whole")
        elif name in facts.views:
            yield ("kept", name), _in_pieces(on, name)
        elif name in built.model.inputs:
            yield ("kept", name), on.layouts(space, lambda p: p in (R, S(0)), "batch")


def _in_pieces(on: AxisMasks, name: str) -> Mask:
    """A sharded weight: on dim 0 of the checkpoint's tensor if that divides, else whole; its views accordingly."""
    space, view = on.built.kept[name], on.facts.views[name]
    weights = {parameter.tensor for parameter in on.built.model.parameters}
    if name not in weights or view.dims is None or 0 not in view.dims:
        return on.layouts(space, lambda p: not p.is_shard, "whole")
    first = S(view.dims.index(0))
    cut = on.layouts(space, lambda p: p == first, "first", first)
    return cut if cut.any() else on.layouts(space, lambda p: not p.is_shard, "whole")


def _splits_batch(view: AxisView, weights: tuple[int, ...], single: tuple[bool, ...], *, inside: bool) -> bool:
    if view.choice.label in ("-", "~"):
        return True
    if view.shards(weights) or (view.choice.inner and not inside):
        return False
    data = [at for at in range(len(view.operands)) if at not in weights]
    for at, made in enumerate(view.results):
        if made is None:
            continue
        if made.kind == "P" and not single[at]:
            return False
        if made.is_shard and not view.shards(data):
            return False
    return True


def pair(on: AxisMasks, join: Join, position: int) -> Mask:
    """The mask of an edge."""
    (kind, name), (other, reader), _ = join
    tensor = reader if kind == "operator" else name
    if tensor in on.facts.views:
        return on.pairs(join, position, _weight, "weight")
    if on.built.model.tensor(tensor).elements == 1:
        return on.pairs(join, position, _number, "number")
    if tensor not in on.facts.live and other in ("operator", "served"):
        return on.pairs(join, position, same_or_slice_of_whole, "sliced")
    return on.pairs(join, position, same, "same")


def _weight(source: Placement, target: Placement) -> bool:
    return target in (R, RP) or source == target


def _number(source: Placement, target: Placement) -> bool:
    return source == target or source.kind == "P" or target in (R, RP)
