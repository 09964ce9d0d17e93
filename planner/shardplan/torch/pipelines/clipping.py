"""Clipping of gradients by their norm over all stages of a pipeline, of which each process has some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardplan.torch.pipelines.stage_meshes import StageMeshes
from shardplan.torch.placements import whole_of


def total_norm(gradients: Sequence[Tensor], norm_type: float, meshes: StageMeshes) -> Tensor:
    """The norm of the gradients of all stages, in double precision, on all processes; `gradients`: those of this
    process's stages, without those that another stage counts."""
    kinds = ([each for each in gradients if isinstance(each, DTensor)],
             [each for each in gradients if not isinstance(each, DTensor)])  # fmt: skip
    norms = [whole_of(torch.nn.utils.get_total_norm(kind, norm_type)) for kind in kinds if kind]
    mine = _norm([norm.to(meshes.device, torch.float64) for norm in norms], norm_type, meshes)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return _norm([found[rank] for rank in sorted(set(meshes.first_ranks))], norm_type, meshes)


def clip(gradients: Iterable[Tensor], max_norm: float, norm: Tensor) -> None:
    """Scales gradients, of which `norm` is the norm of all, in place, as `torch.nn.utils.clip_grads_with_norm_`."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(factor)


def _norm(norms: Sequence[Tensor], norm_type: float, meshes: StageMeshes) -> Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=meshes.device)
    found: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), norm_type)
    return found
