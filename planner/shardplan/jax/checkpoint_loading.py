"""Sharded arrays from a checkpoint: each process reads only the slices of its own devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from shardplan.jax.device_mesh import check_mesh
from shardplan.jax.named_shardings import leaf_spec, path_name
from shardplan.jax.pytrees import Leaf, Names, match_leaves
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.header import Entry
from shardplan.loading.sources import sources_of
from shardplan.plan.types import Plan

Array = NDArray[Any]
Index = tuple[slice, ...]

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "C64": np.complex64, "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


def load(
    plan: Plan,
    mesh: Mesh,
    tree: Any,
    path: str | Path,
    *,
    names: Names | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> Any:
    """A pytree like `tree` (of arrays or `ShapeDtypeStruct`s) with the values of the safetensors checkpoint at `path`
    (a file, an index or a folder), every leaf sharded as the plan keeps it.

    Values are cast to the leaf's dtype. A process reads only the slices that its devices hold, and each slice once.
    `names`, `ignore`, `strict`: as in `shardings`; leaves that are not in the plan are returned unchanged.

    Raises `ShardplanError` as `shardings` and `loading.checkpoint.open_checkpoint`, and `missing-weight`,
    `wrong-weight-shape` where the checkpoint does not match the plan.
    """
    check_mesh(plan, mesh)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    given = {path_name(keys): leaf for keys, leaf in paths}
    shapes = {name: tuple(leaf.shape) for name, leaf in given.items()}
    leaves = match_leaves(plan, shapes, names, ignore=ignore, strict=strict)
    checkpoint = open_checkpoint(path)
    sources = sources_of(checkpoint, [named.decision for leaf in leaves.values() for named in leaf.parameters])
    found = []
    for name, leaf in given.items():
        if name not in leaves:
            found.append(leaf)
            continue
        matched = leaves[name]
        views = [_view(sources[named.decision.checkpoint], matched) for named in matched.parameters]
        sharding = NamedSharding(mesh, leaf_spec(plan, matched, "kept"))
        read = _reader(views, leaf.dtype, stacked=matched.stacked)
        found.append(jax.make_array_from_callback(shapes[name], sharding, read))
    return jax.tree_util.tree_unflatten(structure, found)


def _view(entry: Entry, leaf: Leaf) -> Array:
    """The parameter in the leaf's dims. Nothing is read yet: a permuted and divided array is still a view of the mapped
    file."""
    dtype = np.dtype(_DTYPES[entry.dtype])
    whole: Array = np.zeros(entry.shape, dtype)
    if entry.size_bytes and entry.shape:
        whole = np.memmap(entry.file, dtype, mode="r", offset=entry.start, shape=entry.shape)
    elif entry.size_bytes:
        whole = np.fromfile(entry.file, dtype, count=1, offset=entry.start).reshape(())
    if leaf.part is not None:
        whole = whole[(*[slice(None)] * leaf.part.dim, slice(leaf.part.start, leaf.part.stop))]
    turned = whole.transpose(leaf.perm) if leaf.perm else whole
    return turned.reshape([size for sizes in leaf.divided for size in sizes])


def _reader(views: Sequence[Array], dtype: Any, *, stacked: bool) -> Callable[[Index | None], Array]:
    """A function that reads the slice of one device. Devices that ask for the same slice get the same array."""
    kept: dict[str, Array] = {}

    def read(index: Index | None) -> Array:
        assert index is not None
        key = repr(index)
        if key not in kept:
            inner = index[1:] if stacked else index
            parts = [np.asarray(view[inner]) for view in (views[index[0]] if stacked else views)]
            part = np.stack(parts) if stacked else parts[0]
            # numpy gives a scalar a dim when it makes it contiguous
            kept[key] = np.ascontiguousarray(part).astype(dtype, copy=False).reshape(part.shape)
        return kept[key]

    return read
