"""What ranks do on a slow network: a step under a plan, recorded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch_twins
from step_recorder import StepRecorder
from tiny_models import Tiny
from torch import Tensor
from torch_cases import _loss, mesh_of
from torch_steps import exported_once
from virtual_time import Compute, Recorded

import shardplan.torch
from shardplan.cluster.types import Cluster
from shardplan.plan.types import Plan


def parallel(tiny: Tiny, plan: Plan, ids: Tensor, mode: str) -> Any:
    model, mesh = torch_twins.twin(tiny), mesh_of(plan)
    if mode == "exported":
        with exported_once(tiny.name, tiny.sizes):
            return shardplan.torch.parallelize_exported(model, (ids,), plan, mesh)
    return shardplan.torch.parallelize(model, plan, mesh)


def recorded_step(tiny: Tiny, plan: Plan, cluster: Cluster, mode: str = "eager") -> Recorded:
    """A step: forward, backward and the optimizer. The loss is no part of the plan, and is not recorded."""
    ids = torch.tensor(tiny.inputs["input_ids"])
    recorder = StepRecorder(plan, cluster)
    with recorder.installed():
        model = parallel(tiny, plan, ids, mode)
        _step(recorder, model, ids)  # in which it learns what it gathers
        dist.barrier()
        with recorder.recording() as step:
            _step(recorder, model, ids)
    update_s = (plan.summary.compute_ns - sum(operator.compute_ns for operator in plan.operators)) * 1e-9
    step.actions.append(Compute("optimizer step", update_s))
    return step


def _step(recorder: StepRecorder, model: Any, ids: Tensor) -> None:
    logits = model(ids)
    with recorder.paused():
        (gradient,) = torch.autograd.grad(_loss(logits.full_tensor(), ids), logits)
    logits.backward(gradient)
