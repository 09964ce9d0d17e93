"""Steps for loaders that shard while they load: TVM's Disco and MLC (`shardplan.loading.shard_info` reads them too)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardplan.errors import Diagnostic, error
from shardplan.export.types import Exported
from shardplan.layout.layout import Layout
from shardplan.layout.legal import local_shape
from shardplan.layout.mesh import Mesh
from shardplan.loading.shard_info import write_shard_info
from shardplan.loading.steps import Step, mesh_numbers
from shardplan.plan.orientation import checkpoint_layout, checkpoint_shape
from shardplan.plan.types import Plan, TensorDecision

DTYPES = {"float": "float32", "double": "float64", "float8e4m3fn": "e4m3_float8", "float8e5m2": "e5m2_float8"}
_SAME = ("float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_DTYPES: Mapping[str, str] = DTYPES | {name: name for name in _SAME}


def export_shard_info(plan: Plan) -> Exported:
    """One list of steps for every parameter that is not replicated, by its name in the checkpoint.

    On a mesh whose axes all cut one dim in rank order, these are TVM's own functions; `shard_mesh` says the rest. A
    bias that its reader adds before a sum over devices is given to the first of them alone (`once`), as loaders do that
    cannot mask it later.
    """
    steps: dict[str, tuple[Step, ...]] = {}
    refused: list[Diagnostic] = []
    once = _added_once(plan)
    for tensor in plan.tensors:
        if tensor.role != "parameter":
            continue
        try:
            found = tuple(_steps(plan.mesh, tensor, once.get(tensor.name, ())))
        except ValueError as problem:
            summary = f"shard-info cannot express how '{tensor.checkpoint}' is kept: {problem}"
            refused.append(error("cannot-say", summary))
            continue
        if found:
            steps[tensor.checkpoint] = found
    return Exported(write_shard_info(steps), tuple(refused))


def _steps(mesh: Mesh, tensor: TensorDecision, once: tuple[int, ...]) -> Iterator[Step]:
    """`once`: axes over which the readers take partial values of this replicated parameter."""
    shape = checkpoint_shape(tensor.shape, tensor.perm)
    layout = checkpoint_layout(tensor.layout, tensor.perm)
    dims = layout.dims()
    if not dims and not once:
        return
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"it is of type {tensor.dtype}")
    dtype = _DTYPES[tensor.dtype]
    if not dims:
        if len(mesh) > 1 and mesh.ways(once) != mesh.size:
            raise ValueError("its readers add it once over some axes of the mesh and on every device of the others")
        yield Step("once", (mesh.size, *shape), dtype, (mesh.size,))
        return
    axes = [tuple(axis for (where, _), by in dims.items() if where == dim for axis in by) for dim in range(len(shape))]
    for (dim, segments), by in dims.items():
        if segments and len(axes[dim]) > len(by):
            raise ValueError(f"dim {dim} is cut both by segments and across them")
        if segments:
            yield Step(f"reorganise_dim_{dim}", shape, dtype, (mesh.ways(by), *segments))
    local = (mesh.size, *local_shape(layout, mesh, shape))
    simple = _only_dim(mesh, layout)
    if simple is None:
        yield Step("shard_mesh", local, dtype, mesh_numbers(mesh, axes))
    else:
        yield Step(f"shard_dim_{simple}", local, dtype, (mesh.size,))


def _only_dim(mesh: Mesh, layout: Layout) -> int | None:
    """The dim that all devices cut together, in rank order."""
    found = [(dim, by) for (dim, _), by in layout.dims().items()]
    if len(found) == 1 and mesh.ways(found[0][1]) == mesh.size and list(found[0][1]) == sorted(found[0][1]):
        return found[0][0]
    return None


def _added_once(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Replicated parameters -> axes over which all their readers take partial values."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for operator in plan.operators:
        for name, read in zip(operator.inputs, operator.reads, strict=True):
            if name and read is not None:
                partial = tuple(axis for axis, placement in enumerate(read.placements) if placement.kind == "P")
                found.setdefault(name, set()).add(partial)
    return {name: next(iter(axes)) for name, axes in found.items() if len(axes) == 1 and axes != {()}}
