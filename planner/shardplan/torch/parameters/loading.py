"""Checkpoints: every process reads the shards that it stores from safetensors files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardplan.errors import ShardplanError, error
from shardplan.loading.checkpoint import Checkpoint, open_checkpoint
from shardplan.loading.layout import MANIFEST
from shardplan.loading.presharded import iterate_presharded
from shardplan.loading.ranged import Reader
from shardplan.loading.sources import sources_of
from shardplan.plan.orientation import checkpoint_layout
from shardplan.plan.types import Plan
from shardplan.runtime.names import Named, Rename
from shardplan.runtime.shards import runs_of
from shardplan.torch.applied_plan import AppliedPlan, applied_to, is_parallel
from shardplan.torch.collectives.steps import run_steps
from shardplan.torch.eager.parallelize import parallelize
from shardplan.torch.parameters.fused import part_name, part_names, parts_of
from shardplan.torch.parameters.orientation import in_module_dims, stored_layout
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.placements import like
from shardplan.torch.process_groups import ProcessGroups

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "U32": torch.uint32,
    "U64": torch.uint64, "C64": torch.complex64,
}  # fmt: skip


def load_(
    model: nn.Module | Pipeline,
    plan: Plan,
    mesh: DeviceMesh,
    path: str | Path,
    *,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> nn.Module | Pipeline:
    """Fill `model` from the safetensors at `path` (a file, an index, a folder, or what `shardplan split` wrote).

    A model that no plan has been applied to is given `plan` first, with `rename`, `ignore` and `strict` as in
    `parallelize`; build it on the meta device, so that nothing is ever held whole. (A pipeline has been made before.)
    Every process reads what it keeps; values are cast to the dtype of the parameter. Tensors that are none of the
    plan's are read whole by their own names.

    Raises `ShardplanError` as `parallelize` and `open_checkpoint`, and `missing-weight`, `wrong-weight-shape`,
    `not-loaded` (a tensor on the meta device that the checkpoint does not have).
    """
    if isinstance(model, nn.Module) and not is_parallel(model):
        parallelize(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    modules = model.modules if isinstance(model, Pipeline) else (model,)
    for module in modules:
        if (Path(path) / MANIFEST).exists():
            _fill_presharded(module, applied_to(module), Path(path))
        else:
            _fill(module, applied_to(module), open_checkpoint(path))
    left = [name for module in modules for name, tensor in _tensors(module) if _local(tensor).is_meta]
    if left:
        more = f" and {len(left) - 8} more" if len(left) > 8 else ""
        summary = f"still on the meta device: {', '.join(sorted(left)[:8])}{more}"
        hint = "make buffers that are computed and not stored on a real device, or put them into the checkpoint"
        raise ShardplanError(error("not-loaded", summary, hint=hint))
    return model


def _present(model: nn.Module, applied: AppliedPlan) -> dict[str, Named]:
    """The plan's parameters among the tensors of `model`, which may be one stage of several."""
    own = {name for name, _ in _tensors(model)}
    return {name: named for name, named in applied.named.items() if own & {name, part_name(name, 0)}}


def _fill(model: nn.Module, applied: AppliedPlan, checkpoint: Checkpoint) -> None:
    present = _present(model, applied)
    sources = sources_of(checkpoint, [named.decision for named in present.values()])
    groups = applied.groups
    with Reader() as reader, torch.no_grad():
        for name, named in present.items():
            entry, decision = sources[named.decision.checkpoint], named.decision
            layout = checkpoint_layout(stored_layout(decision), decision.perm)
            runs = runs_of(layout, groups.mesh, entry.shape, groups.coordinates)
            _put(model, named, name, _as_tensor(reader.part(entry, runs), entry.dtype, named), groups)
        for name, tensor in _tensors(model):
            if name not in applied.named and name in checkpoint.entries:
                entry = checkpoint.entries[name]
                _put_plain(model, name, tensor, _as_tensor(reader.whole(entry), entry.dtype), groups)


def _fill_presharded(model: nn.Module, applied: AppliedPlan, folder: Path) -> None:
    groups = applied.groups
    present = _present(model, applied)
    by_name = {
        stored: name
        for name, named in present.items()
        for stored in (named.decision.checkpoint, *named.decision.aliases)
    }
    filled = set()
    with torch.no_grad():
        for part in iterate_presharded(folder, groups.rank, groups.mesh.size):
            name = by_name.get(part.name)
            if name is None:
                continue
            named = applied.named[name]
            _put(model, named, name, _to_stored(_as_tensor(part.array, part.dtype, named), named, applied), groups)
            filled.add(named.decision.checkpoint)
    missing = sorted({named.decision.checkpoint for named in present.values()} - filled)
    if missing:
        raise ShardplanError(error("missing-weight", f"the split has no tensor '{missing[0]}'", file=str(folder)))


def _to_stored(part: Tensor, named: Named, applied: AppliedPlan) -> Tensor:
    """From the layout that the plan keeps, in which `shardplan split` writes, to the one that a process stores."""
    kept = in_module_dims(named.decision.layout, named).forward
    route = applied.engine.router.route(kept, named.layout.forward, named.shape, has_gradient=False)
    return run_steps(part.to(applied.groups.device), kept, route.forward, named.shape, applied.groups)


def _as_tensor(array: Any, dtype: str, named: Named | None = None) -> Tensor:
    """The bits of an array as a tensor, in the dims of the module."""
    wanted = _DTYPES[dtype]
    tensor = torch.from_numpy(array)
    tensor = tensor if tensor.dtype == wanted else tensor.view(wanted)
    return tensor.permute(named.perm) if named is not None and named.perm else tensor


def _put(model: nn.Module, named: Named, name: str, part: Tensor, groups: ProcessGroups) -> None:
    """Fill a parameter, or those of its parts, with what this process stores."""
    parts = parts_of(named.layout, groups.mesh)
    if parts is None:
        _put_one(model, name, part, groups)
        return
    for each, piece in zip(part_names(name, parts), parts.split_local(part), strict=True):
        _put_one(model, each, piece, groups)


def _put_one(model: nn.Module, name: str, part: Tensor, groups: ProcessGroups) -> None:
    """A tensor on the meta device is replaced by a real one."""
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    tensor = getattr(owner, attribute)
    if not _local(tensor).is_meta:
        tensor.to_local().copy_(part.to(tensor.dtype))
        return
    local = torch.empty(part.shape, dtype=tensor.dtype, device=groups.device)
    local.copy_(part)
    made = like(tensor, local)
    for module, place in _owners(model, tensor):
        if place in module._parameters:  # noqa: SLF001 - a parameter is replaced in place
            module._parameters[place] = nn.Parameter(made, requires_grad=tensor.requires_grad)  # noqa: SLF001
            made = module._parameters[place]  # noqa: SLF001 - tied parameters stay one
        else:
            module._buffers[place] = made  # noqa: SLF001


def _put_plain(model: nn.Module, name: str, tensor: Tensor, value: Tensor, groups: ProcessGroups) -> None:
    path, _, attribute = name.rpartition(".")
    owner = model.get_submodule(path)
    made = value.to(device=groups.device, dtype=tensor.dtype)
    store = owner._parameters if attribute in owner._parameters else owner._buffers  # noqa: SLF001 - as above
    is_parameter = isinstance(tensor, nn.Parameter)
    store[attribute] = nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made


def _owners(model: nn.Module, tensor: Tensor) -> list[tuple[nn.Module, str]]:
    return [
        (module, attribute)
        for module in model.modules()
        for store in (module._parameters, module._buffers)  # noqa: SLF001 - as above
        for attribute, found in store.items()
        if found is tensor
    ]


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
