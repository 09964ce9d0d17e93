"""Plans in torch: from a module to its plan; the device mesh, the model under a plan, its checkpoint and batches."""

from __future__ import annotations

from shardplan.torch.batches import inputs, part_of
from shardplan.torch.checkpoints import load_checkpoint, save_checkpoint
from shardplan.torch.comm_counter import count_comms
from shardplan.torch.data_loader import data_loader
from shardplan.torch.eager.parallelize import parallelize
from shardplan.torch.exported.parallelize import parallelize_exported
from shardplan.torch.launch import mesh
from shardplan.torch.microbatches import microbatches
from shardplan.torch.parameters.loading import load_
from shardplan.torch.pipelines.build import pipeline
from shardplan.torch.pipelines.run import Pipeline
from shardplan.torch.planning.plan import plan
from shardplan.torch.state_dicts import full_state_dict, save
from shardplan.torch.timeline_comparison import compare_timeline
from shardplan.torch.vocabulary_loss import cross_entropy
from shardplan.torch.whole_weights import whole
from shardplan.torch.with_loss import with_loss

__all__ = [
    "Pipeline",
    "compare_timeline",
    "count_comms",
    "cross_entropy",
    "data_loader",
    "full_state_dict",
    "inputs",
    "load_",
    "load_checkpoint",
    "mesh",
    "microbatches",
    "parallelize",
    "parallelize_exported",
    "part_of",
    "pipeline",
    "plan",
    "save",
    "save_checkpoint",
    "whole",
    "with_loss",
]
