"""Causal attention whose queries are split: as a graph with the fused operator, and as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_cases import mesh_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.plan.types import Plan

GRAPH = """
context (float[2,16,24] x) => (float[2,16,24] y)
<float[24,24] wq, float[24,24] wk, float[24,24] wv, float[24,24] wo> {
  qw = Transpose (wq)
  kw = Transpose (wk)
  vw = Transpose (wv)
  ow = Transpose (wo)
  q = MatMul (x, qw)
  k = MatMul (x, kw)
  v = MatMul (x, vw)
  heads = Constant <value = int64[4] {2,16,3,8}> ()
  q4 = Reshape (q, heads)
  k4 = Reshape (k, heads)
  v4 = Reshape (v, heads)
  qt = Transpose <perm = [0,2,1,3]> (q4)
  kt = Transpose <perm = [0,2,1,3]> (k4)
  vt = Transpose <perm = [0,2,1,3]> (v4)
  a = Attention <is_causal = 1> (qt, kt, vt)
  at = Transpose <perm = [0,2,1,3]> (a)
  flat = Constant <value = int64[3] {2,16,24}> ()
  af = Reshape (at, flat)
  y = MatMul (af, ow)
}"""


class Context(nn.Module):
    """What `GRAPH` is."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(0.2 * torch.randn(24, 24)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (functional.linear(x, weight) for weight in (self.wq, self.wk, self.wv))
        heads = (part.unflatten(2, (3, 8)).transpose(1, 2) for part in parts)
        made = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return functional.linear(made.transpose(1, 2).flatten(2), self.wo)


def attended(plan: Plan, mode: str) -> tuple[float, float, Any]:
    """Largest errors of the result and of the gradients against one process, and moves that no plan asked for.

    In double precision: in single precision the order in which a kernel adds, which depends on the processor, is worth
    1e-5.
    """
    torch.manual_seed(0)
    reference = Context().double()
    model = Context().double()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(2, 16, 24).double()
    if mode == "exported":
        with exported_once(Context):
            model = shardplan.torch.parallelize_exported(model, (x,), plan, mesh_of(plan))
    else:
        shardplan.torch.parallelize(model, plan, mesh_of(plan))
    made, expected = model(x).full_tensor(), reference(x)
    made.square().sum().backward()
    expected.square().sum().backward()
    others = dict(reference.named_parameters())
    errors = [(p.grad.full_tensor() - others[name].grad).abs().max() for name, p in model.named_parameters()]
    return float((made - expected).abs().max()), float(max(errors)), dict(model._shardplan.engine.record.unplanned)
