"""Models that read weights with gradients off before they read them with gradients on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_cases import far, mesh_of

import shardplan.torch
from shardplan.plan.types import Plan

TEXT = """
net (float[8,16] x) => (float[8,16] y) <float[16,32] up, float[32,16] down> {
  a = MatMul (x, up)
  b = Tanh (a)
  c = MatMul (b, down)
  y = Add (c, x)
}"""


class Product(torch.autograd.Function):
    """A product with the backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class Net(nn.Module):
    """Two products: `own function`, `looks first` (at a number of each weight, without its gradient), or `nested`
    checkpoints."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.up, self.down = nn.Parameter(torch.randn(16, 32) / 4), nn.Parameter(torch.randn(32, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "own function":
            return Product.apply(Product.apply(x, self.up).tanh(), self.down) + x
        if self.form == "looks first":
            with torch.no_grad():
                scale = (x @ self.up).tanh().matmul(self.down).std()
            return ((x @ self.up).tanh() @ self.down + x) / scale
        return checkpoint(self._outer, x, use_reentrant=False)

    def _outer(self, x: Tensor) -> Tensor:
        made = checkpoint(self._inner, x, use_reentrant=False)
        return checkpoint(self._after, made, use_reentrant=False) + x

    def _inner(self, x: Tensor) -> Tensor:
        return (x @ self.up).tanh()

    def _after(self, x: Tensor) -> Tensor:
        return x @ self.down


def train(form: str, plan: Plan) -> tuple[float, list[str]]:
    """The largest error of a gradient after a step, and the weights that have none."""
    torch.manual_seed(0)
    model, reference = Net(form), Net(form)
    model.load_state_dict(reference.state_dict())
    shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
    batch = torch.randn(8, 16)
    for each in (model, reference):
        each(batch).square().mean().backward()
    others = dict(reference.named_parameters())
    held = {name: parameter.grad for name, parameter in model.named_parameters()}
    worst = max((far(grad, others[name].grad) for name, grad in held.items() if grad is not None), default=0.0)
    return worst, [name for name, grad in held.items() if grad is None]
