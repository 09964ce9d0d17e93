"""Lookup of a plan's tensors by name, and of a rank's coordinates.

A parameter can be looked up by its checkpoint name, its aliases (tied weights), its value name in the planned graph and
its name in the ONNX file, in this order of precedence. Parameters are returned in checkpoint orientation; other tensors
as the graph has them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.stages import one_mesh

_known: dict[int, Mapping[str, TensorDecision]] = {}


def tensors_by_name(plan: Plan) -> Mapping[str, TensorDecision]:
    """Every known name -> the tensor. Cached for each plan. Raises `ShardplanError` (`pipeline-plan`)."""
    found = _known.get(id(plan))
    if found is None:
        found = _known[id(plan)] = _index(plan)
        weakref.finalize(plan, _known.pop, id(plan), None)
    return found


def find_tensor(plan: Plan, name: str) -> TensorDecision:
    """The tensor called `name`. Raises `ShardplanError` (`unknown-tensor`, with the nearest name; `pipeline-plan`)."""
    index = tensors_by_name(plan)
    if name not in index:
        near = did_you_mean(name, index)
        hint = near or "shardplan show --all lists the tensors of a plan"
        raise ShardplanError(error("unknown-tensor", f"the plan has no tensor '{name}'", hint=hint))
    return index[name]


def coordinates_of(mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Coordinates of a rank; ranks are row-major, the last axis fastest. Raises `ShardplanError` (`unknown-rank`)."""
    if not 0 <= rank < mesh.size:
        summary = f"there is no rank {rank}: the mesh {mesh} has ranks 0 to {mesh.size - 1}"
        raise ShardplanError(error("unknown-rank", summary))
    place = []
    for size in reversed(mesh.shape):
        rank, coordinate = divmod(rank, size)
        place.append(coordinate)
    return tuple(reversed(place))


def _index(plan: Plan) -> Mapping[str, TensorDecision]:
    parameters = [tensor for tensor in one_mesh(plan).tensors if tensor.role == "parameter"]
    index: dict[str, TensorDecision] = {}
    for tensor in parameters:
        index.setdefault(tensor.checkpoint, tensor)
    for tensor in parameters:
        for alias in tensor.aliases:
            index.setdefault(alias, tensor)
    for tensor in plan.tensors:
        index.setdefault(tensor.name, tensor)
    for tensor in parameters:
        index.setdefault(tensor.onnx, tensor)
    index.pop("", None)
    return index
