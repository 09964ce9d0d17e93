"""Hand-written plans (data parallelism, ZeRO, Megatron) as restrictions of the choices; the solver decides the rest.

Each recipe says for some nodes of a cost graph which choices it allows. The recipes serve as yardsticks: no recipe is
cheaper than the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardplan.graph.build import CostGraph, Node
from shardplan.graph.layer_parts import norms_of
from shardplan.graph.options import PlanOptions
from shardplan.graph.strategies import StrategySpace
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.placement import R, S
from shardplan.model.types import Operator
from shardplan.planning.reduction import Allowed, Mask, Restrict
from shardplan.rules.batch import batch_dims_of

_EQUAL = 1e-6
"""Below the least difference between logarithms of pieces."""


def data_parallel(built: CostGraph) -> Allowed:
    """The batch sharded over as many devices as divide it; every weight replicated."""
    weights = _rest(built, _whole)
    return {**_inputs_by_batch(built, axes=range(len(built.cluster.mesh))), **weights, **_weights_read_whole(built)}


def zero_3(built: CostGraph) -> Allowed:
    """As data parallel, with every weight stored in as many pieces as possible and gathered for use."""
    weights = _rest(built, _most_pieces)
    return {**_inputs_by_batch(built, axes=range(len(built.cluster.mesh))), **weights, **_weights_read_whole(built)}


def zero_1(built: CostGraph) -> Allowed:
    """As data parallel, with optimizer state in as many pieces as possible if it may be sharded apart from its
    weight."""
    states = {("updated", name): _most_pieces(space) for name, space in built.updated.items()}
    return {**data_parallel(built), **states}


def megatron(built: CostGraph) -> Allowed:
    """Tensor parallelism on the last axis, data parallelism on the others; activations between blocks replicated."""
    return _megatron(built, sequence=False)


def megatron_sequence(built: CostGraph) -> Allowed:
    """As Megatron, with activations between blocks sharded by sequence on the last axis."""
    return _megatron(built, sequence=True)


def recipes_for(options: PlanOptions) -> Mapping[str, Restrict]:
    """The recipes that apply; ZeRO-1 only where optimizer state may be sharded apart from its weight."""
    if not options.shard_optimizer:
        return RECIPES
    (first, restriction), *others = RECIPES.items()
    return {first: restriction, "ZeRO-1": zero_1, **dict(others)}


def as_written_by_hand(options: PlanOptions) -> Mapping[str, Restrict]:
    """The recipes that apply, with the work of every operator split by the batch where that can be, as programs of data
    parallelism do it. Of `recipes_for`, every device may gather the inputs and compute the whole batch."""
    return {name: _split_by_batch(name, restriction) for name, restriction in recipes_for(options).items()}


def _split_by_batch(name: str, recipe: Restrict) -> Restrict:
    """`recipe`, with operators that work on the batch, on its data-parallel axes, as far as the recipe leaves that
    open."""

    def allowed(built: CostGraph) -> Allowed:
        masks = dict(recipe(built))
        axes = range(len(built.cluster.mesh) - (1 if name in TENSOR_PARALLEL else 0))
        batch = batch_dims_of(built.model, built.rules)
        inputs = _inputs_by_batch(built, axes).items()
        ways = max((int(_pieces(built.kept[node[1]])[mask].max()) for node, mask in inputs), default=1)
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            node: Node = ("operator", operator.name)
            open_still = masks.get(node, np.ones(len(space), dtype=np.bool_))
            pieces = np.where(open_still, _batch_pieces(operator, space.strategies, batch, len(axes), ways), -1.0)
            masks[node] = pieces >= pieces.max() - _EQUAL
        return masks

    return allowed


def _batch_pieces(
    operator: Operator, space: StrategySpace, batch: Mapping[str, int], axes: int, ways: int
) -> NDArray[np.float64]:
    """For each strategy, how finely it splits the batch of operands and results over the first `axes` axes of the mesh:
    the sum of the logarithms of their pieces. The batch itself has at most `ways`: what has more pieces of its rows is
    split by sequence too."""
    found = np.zeros(len(space))
    for side, names, spaces in (
        ("operands", operator.inputs, space.operands), ("results", operator.outputs, space.results),
    ):  # fmt: skip
        for position, (name, tensor) in enumerate(zip(names, spaces, strict=True)):
            code = tensor.code(S(batch[name])) if tensor is not None and name in batch else None
            if code is not None:
                is_split = space.layout_codes(side, position)[:, :axes] == code
                pieces = np.where(is_split, space.axis_sizes[:axes], 1).prod(axis=1)
                found += np.where(ways % pieces == 0, np.log2(pieces), 0.0)
    return found


def without_axes(axes: Sequence[int]) -> Restrict:
    """The restriction to plans that leave some mesh axes unused, which are the plans of the mesh without them."""

    def allowed(built: CostGraph) -> Allowed:
        masks: dict[Node, Mask] = {
            (kind, name): (space.codes[:, axes] == space.code(R)).all(axis=1)
            for kind, spaces in built.places.items()
            for name, space in spaces.items()
        }
        for operator, space in zip(built.model.operators, built.operators, strict=True):
            masks["operator", operator.name] = ~np.any([space.strategies.works_on(axis) for axis in axes], axis=0)
        return {node: mask for node, mask in masks.items() if mask.any()}

    return allowed


RECIPES: Mapping[str, Restrict] = {
    "data parallel": data_parallel,
    "ZeRO-3": zero_3,
    "Megatron": megatron,
    "Megatron + sequence": megatron_sequence,
}
TENSOR_PARALLEL = ("Megatron", "Megatron + sequence")
"""Recipes whose last axis is not data-parallel."""


def _megatron(built: CostGraph, *, sequence: bool) -> Allowed:
    last = len(built.cluster.mesh) - 1
    allowed = dict(_inputs_by_batch(built, axes=range(last)))
    for name in _parameters(built):
        for node, space in _weight_nodes(built, name):
            sharded = space.codes < len(space.kind.shards)
            mask = np.asarray(~sharded[:, :last].any(axis=1))
            if len(space.kind.shape) > 1 and (mask & sharded[:, last]).any():
                mask &= sharded[:, last]
            allowed[node] = mask
    for name in _between_blocks(built):
        space = built.kept[name]
        wanted = space.code(S(1)) if sequence and len(space.kind.shape) > 2 else space.code(R)
        if wanted is not None:
            between = np.asarray(space.codes[:, last] == wanted)
            if between.any():
                allowed["kept", name] = between
    return allowed


def _parameters(built: CostGraph) -> Iterator[str]:
    return (parameter.tensor for parameter in built.model.parameters if parameter.tensor in built.kept)


def _between_blocks(built: CostGraph) -> list[str]:
    """Activations that normalisations read: the residual stream of a transformer."""
    return [norm.source for norm in norms_of(built.model) if norm.source in built.flow.makers]


def _inputs_by_batch(built: CostGraph, axes: range) -> dict[Node, Mask]:
    """Inputs sharded on dim 0 only, over `axes`, in as many pieces as divide it."""
    allowed: dict[Node, Mask] = {}
    for name in built.model.inputs:
        if name not in built.kept:
            continue
        space = built.kept[name]
        batch, whole = space.code(S(0)), space.code(R)
        by_batch: Mask = np.ones(len(space), dtype=np.bool_)
        for axis in range(space.codes.shape[1]):
            usable = {whole, batch} if axis in axes else {whole}
            by_batch &= np.array([code in usable for code in space.codes[:, axis].tolist()])
        allowed["kept", name] = by_batch & (_pieces(space) == _pieces(space)[by_batch].max())
    return allowed


def _weights_read_whole(built: CostGraph) -> dict[Node, Mask]:
    """Operators read whole weights, if they have a choice."""
    weights = set(_parameters(built))
    allowed: dict[Node, Mask] = {}
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        mask = np.ones(len(space), dtype=np.bool_)
        for position, name in enumerate(operator.inputs):
            if name in weights:
                codes = space.strategies.layout_codes("operands", position)
                mask &= (codes >= len(built.kept[name].kind.shards)).all(axis=1)
        if mask.any() and not mask.all():
            allowed["operator", operator.name] = mask
    return allowed


def _weight_nodes(built: CostGraph, name: str) -> list[tuple[Node, TensorSpace]]:
    """The node of a stored weight, and that of its optimizer state if that is a separate choice."""
    kept: tuple[Node, TensorSpace] = (("kept", name), built.kept[name])
    return [kept, (("updated", name), built.updated[name])] if name in built.updated else [kept]


def _rest(built: CostGraph, mask: Callable[[TensorSpace], Mask]) -> dict[Node, Mask]:
    """The same restriction for every stored weight and its optimizer state."""
    return {node: mask(space) for name in _parameters(built) for node, space in _weight_nodes(built, name)}


def _whole(space: TensorSpace) -> Mask:
    mask: Mask = _pieces(space) == 1
    return mask


def _most_pieces(space: TensorSpace) -> Mask:
    mask: Mask = _pieces(space) == _pieces(space).max()
    return mask


def _pieces(space: TensorSpace) -> NDArray[np.int64]:
    pieces: NDArray[np.int64] = space.space.tiles.prod(axis=1)[space.forward]
    return pieces
