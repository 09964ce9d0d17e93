"""Views of weights in which two axes split a later dim in the other order, one within the parts of the other.

torch (2.13) has a placement for such a weight, and flattens it to one whose parts are in another order, in silence:
`parameters_to_vector`, norms of `weight.view(-1)`. Here such a view gathers the weight first, as torch itself does for
other views that no placement describes.
"""

from __future__ import annotations

import functools
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
    for operator in (aten.view.default, aten._unsafe_view.default, aten.reshape.default):  # noqa: SLF001 - torch's name
        if operator in known:
            known[operator] = _ordered(known[operator])


def _ordered(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def strategy(schema: Any) -> Any:
        made, mesh = own(schema), schema.get_mesh_from_args(validate=False)
        if is_planned_mesh(mesh):
            pairs = zip(schema.args_schema[0].strategies, made.strategies, strict=True)
            made.strategies = [_gathering(given.output_spec, each) for given, each in pairs]
        return made

    return strategy


def _gathering(given: DTensorSpec, viewed: OpSpec) -> OpSpec:
    """How a tensor placed as `given` is viewed: as torch does, or whole where that has another order."""
    if not _is_misplaced(given.placements, viewed.output_spec.placements):
        return viewed
    mesh, whole = given.mesh, (Replicate(),) * given.mesh.ndim
    source = DTensorSpec(mesh, whole, tensor_meta=given.tensor_meta)
    return OpSpec(DTensorSpec(mesh, whole), (source,), viewed.redistribute_cost)


def _is_misplaced(before: Sequence[Placement], after: Sequence[Placement]) -> bool:
    """Whether a dim that is split twice in another order than that of the axes has become a part of another one."""
    twice = [Counter(each.dim for each in side if isinstance(each, _StridedShard)) for side in (before, after)]
    return bool(twice[0]) and max(twice[1].values(), default=0) > 1
