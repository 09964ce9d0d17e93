"""What ranks do on a slow network: steps under a plan, each timed."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
import torch_twins
from slow_network import SlowNetwork
from tiny_models import Tiny
from torch import Tensor
from torch_cases import _loss, mesh_of

import shardplan.torch
from shardplan.cluster.types import Cluster
from shardplan.plan.types import Plan


def parallel(tiny: Tiny, plan: Plan, ids: Tensor, mode: str) -> Any:
    model, mesh = torch_twins.twin(tiny), mesh_of(plan)
    if mode == "exported":
        return shardplan.torch.parallelize_exported(model, (ids,), plan, mesh)
    return shardplan.torch.parallelize(model, plan, mesh)


def step_seconds(
    tiny: Tiny, plan: Plan, cluster: Cluster, scale: float, mode: str = "eager", steps: int = 1
) -> list[float]:
    """Seconds of steps: forward, backward and the optimizer. The loss is no part of the plan, and is not timed."""
    ids = torch.tensor(tiny.inputs["input_ids"])
    network = SlowNetwork(plan, cluster, scale)
    update_s = (plan.summary.compute_ns - sum(operator.compute_ns for operator in plan.operators)) * 1e-9 * scale
    found = []
    with network.installed():
        model = parallel(tiny, plan, ids, mode)
        for step in range(steps + 1):
            network.is_active = step > 0
            dist.barrier()
            begin = network.device.until = time.perf_counter()
            logits = model(ids)
            forward_s = time.perf_counter() - begin
            network.is_active = False
            (gradient,) = torch.autograd.grad(_loss(logits.full_tensor(), ids), logits)
            network.is_active = step > 0
            dist.barrier()
            begin = network.device.until = time.perf_counter()
            logits.backward(gradient)
            if step:
                found.append(forward_s + time.perf_counter() - begin + update_s)
    return found
