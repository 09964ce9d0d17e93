"""Views of weights in which two axes split a later dim in the other order, one within the parts of the other, or an
axis splits each piece of a dim.

torch (2.13) has a placement for such a weight, and flattens or divides it to one whose parts are in another order, in
silence: `parameters_to_vector`, norms of `weight.view(-1)`. Here such a view gathers the weight first, as torch itself
does for other views that no placement describes.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSpec
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from shardplan.torch.parameters.between_steps import is_planned_mesh


@functools.cache
def view_in_order() -> None:
    """From now on views of DTensors of plans have the entries in order."""
    aten = torch.ops.aten
    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs  # noqa: SLF001 - there is no public way
    for view in (aten.view.default, aten._unsafe_view.default, aten.reshape.default):  # noqa: SLF001 - torch's name
        if view in known:
            known[view] = _ordered(known[view])
    forget_strategies()


def forget_strategies() -> None:
    """What torch has found out before a plan was applied; its own function for this is in a module that imports its
    compiler."""
    found = DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding  # noqa: SLF001 - as above
    if hasattr(found, "cache_clear"):
        found.cache_clear()
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache"):  # noqa: SLF001 - as above
        torch._C._clear_DTensor_sharding_propagator_cache()  # noqa: SLF001 - as above


def _ordered(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def strategy(schema: Any) -> Any:
        made, mesh = own(schema), schema.get_mesh_from_args(validate=False)
        if is_planned_mesh(mesh):
            pairs = zip(schema.args_schema[0].strategies, made.strategies, strict=True)
            shape = _resolved(schema.args_schema[1], math.prod(schema.args_schema[0].shape))
            made.strategies = [_gathering(given.output_spec, each, shape) for given, each in pairs]
        return made

    return strategy


def _gathering(given: DTensorSpec, viewed: OpSpec, shape: Sequence[int]) -> OpSpec:
    """How a tensor placed as `given` is viewed: as torch does, or whole where that has another order."""
    is_cut = any(_is_cut(each, given.shape, shape) for each in given.placements if isinstance(each, _StridedShard))
    if not is_cut and not _is_misplaced(given.placements, viewed.output_spec.placements):
        return viewed
    mesh, whole = given.mesh, (Replicate(),) * given.mesh.ndim
    source = DTensorSpec(mesh, whole, tensor_meta=given.tensor_meta)
    return OpSpec(DTensorSpec(mesh, whole), (source,), viewed.redistribute_cost)


def _is_misplaced(before: Sequence[Placement], after: Sequence[Placement]) -> bool:
    """Whether a dim that is split twice in another order than that of the axes has become a part of another one."""
    twice = [Counter(each.dim for each in side if isinstance(each, _StridedShard)) for side in (before, after)]
    return bool(twice[0]) and max(twice[1].values(), default=0) > 1


def _is_cut(placement: _StridedShard, before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a dim that consists of pieces, each of which is split, becomes several dims of which none begins with a
    piece."""
    start = math.prod(before[: placement.dim])
    ends = list(itertools.accumulate(after, operator.mul, initial=1))
    if start not in ends or start * before[placement.dim] not in ends:
        return False  # it becomes a part of another dim
    within = [end // start for end in ends if start < end < start * before[placement.dim]]
    return bool(within) and placement.split_factor not in within


def _resolved(shape: Sequence[int], count: int) -> list[int]:
    """Sizes, with -1 replaced by what is left."""
    known = math.prod(size for size in shape if size != -1)
    return [count // known if size == -1 and known else size for size in shape]
