"""A GPT whose MLP computes its GELU, forward and backward, in a function of its own, as BLOOM in transformers does."""

from __future__ import annotations

from typing import Any

import torch
import torch_twins
from tiny_models import Tiny
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_cases import _gradient_error, _loss, mesh_of

import shardplan.torch
from shardplan.plan.types import Plan


class Gelu(torch.autograd.Function):
    """BLOOM's; `times`: of the gradient, to see whose it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.times = times
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0]
        tanh_out = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        ff = 0.5 * x * ((1 - tanh_out * tanh_out) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + tanh_out)
        return ff * gradient * ctx.times, None


def twin(tiny: Tiny, times: float, again: bool) -> Any:
    """`again`: what comes before the function, and it, is recomputed in backward."""
    model = torch_twins.twin(tiny)
    for block in model.transformer.h:
        mlp = block.mlp

        def inner(x: Tensor, mlp: Any = mlp) -> Tensor:
            return Gelu.apply(mlp.c_fc(x), times)

        def forward(x: Tensor, mlp: Any = mlp, inner: Any = inner) -> Tensor:
            return mlp.c_proj(checkpoint(inner, x, use_reentrant=False) if again else inner(x))

        mlp.forward = forward
    return model


def step(tiny: Tiny, plan: Plan, times: float, again: bool, strict: bool = True) -> tuple[float, float, Any, Any]:
    """One step under `plan` and in one process: errors of the loss and of the gradients, moves that no plan asked for,
    and what was sent otherwise than planned."""
    model, reference = twin(tiny, times, again), twin(tiny, times, again=False)
    ids = torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=strict)
    with shardplan.torch.count_comms(model) as comms:
        logits = model(ids)
    ours, theirs = _loss(logits.full_tensor(), ids), _loss(reference(ids), ids)
    (gradient,) = torch.autograd.grad(ours, logits)
    with shardplan.torch.count_comms(model) as backward:
        logits.backward(gradient)
    comms.sent += backward.sent
    theirs.backward()
    extra = dict(model._shardplan.engine.record.unplanned)
    return abs(ours.item() - theirs.item()), _gradient_error(model, reference), extra, dict(comms.differences)
