"""Plans in torch: the mesh, the model, its weights, its batches, and what it sends."""

from __future__ import annotations

from shardplan.torch.batches import inputs, part_of
from shardplan.torch.count import count_comms
from shardplan.torch.exported import parallelize_exported
from shardplan.torch.grid import mesh
from shardplan.torch.parallelize import parallelize
from shardplan.torch.pipeline import pipeline
from shardplan.torch.running import Pipeline
from shardplan.torch.turns import microbatches
from shardplan.torch.weights import load_

__all__ = [
    "Pipeline",
    "count_comms",
    "inputs",
    "load_",
    "mesh",
    "microbatches",
    "parallelize",
    "parallelize_exported",
    "part_of",
    "pipeline",
]
