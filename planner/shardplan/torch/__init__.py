"""Plans in torch: the mesh, the model, its weights, its batches, and what it sends."""

from __future__ import annotations

from shardplan.torch.count import count_comms
from shardplan.torch.grid import mesh
from shardplan.torch.parallelize import parallelize

__all__ = ["count_comms", "mesh", "parallelize"]
