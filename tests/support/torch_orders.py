"""Models that iterate over a set of strings, in an order that every process chooses for itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_cases import _gradient_error, buffers_apart, mesh_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

KINDS = ("full_attention", "sliding_attention", "strided_attention", "chunked_attention")
TABLES = """
tables (float[4,8,16] x) => (float[4,8,16] y)
<float[16,8] w_in, float[8,16] w_out, float[8] full_attention, float[8] sliding_attention, float[8] strided_attention,
 float[8] chunked_attention> {
  arange = Constant <value = float[8,1] {0,1,2,3,4,5,6,7}> ()
  a1 = Mul (arange, full_attention)
  a2 = Sin (a1)
  b1 = Mul (arange, sliding_attention)
  b2 = Sin (b1)
  c1 = Mul (arange, strided_attention)
  c2 = Sin (c1)
  d1 = Mul (arange, chunked_attention)
  d2 = Sin (d1)
  h = MatMul (x, w_in)
  h1 = Mul (h, a2)
  h2 = Mul (h1, b2)
  h3 = Mul (h2, c2)
  h4 = Mul (h3, d2)
  y = MatMul (h4, w_out)
}"""
BRANCHES = """
branches (float[4,8,16] x) => (float[4,8,16] y)
<float[16,16] full_attention, float[16,16] sliding_attention, float[16,16] strided_attention,
 float[16,16] chunked_attention> {
  a1 = MatMul (x, full_attention)
  a = Tanh (a1)
  b1 = MatMul (x, sliding_attention)
  b = Tanh (b1)
  c1 = MatMul (x, strided_attention)
  c = Tanh (c1)
  d1 = MatMul (x, chunked_attention)
  d = Tanh (d1)
  ab = Add (a, b)
  abc = Add (ab, c)
  y = Add (abc, d)
}"""
SCALED = """
scaled (float[4,8,16] x) => (float[4,8,16] y) <float[16,16] w> {
  full_1 = Constant <value = float[1] {1.0}> ()
  full_2 = Constant <value = float[1] {2.0}> ()
  full_3 = Constant <value = float[1] {3.0}> ()
  full_4 = Constant <value = float[1] {4.0}> ()
  a1 = Mul (x, full_1)
  a = MatMul (a1, w)
  b1 = Mul (x, full_2)
  b = MatMul (b1, w)
  c1 = Mul (x, full_3)
  c = MatMul (c1, w)
  d1 = Mul (x, full_4)
  d = MatMul (d1, w)
  ab = Add (a, b)
  abc = Add (ab, c)
  y = Add (abc, d)
}"""


class Tables(nn.Module):
    """Makes a table of each kind, of buffers that no checkpoint has, as ModernBERT makes rotary tables."""

    def __init__(self) -> None:
        super().__init__()
        self.w_in, self.w_out = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(8, 16))
        for number, kind in enumerate(KINDS):
            self.register_buffer(kind, torch.arange(1, 9) / (8 * number + 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(8.0)[:, None]
        tables = {kind: torch.sin(places * getattr(self, kind)) for kind in set(KINDS)}
        h = x @ self.w_in
        for kind in KINDS:
            h = h * tables[kind]
        return h @ self.w_out


class Branches(nn.Module):
    """Reads a weight of each kind."""

    def __init__(self) -> None:
        super().__init__()
        for kind in KINDS:
            self.register_parameter(kind, nn.Parameter(torch.randn(16, 16) / 4))

    def forward(self, x: Tensor) -> Tensor:
        found = {kind: torch.tanh(x @ getattr(self, kind)) for kind in set(KINDS)}
        return sum(found[kind] for kind in KINDS)


class Scaled(nn.Module):
    """Reads one weight four times, of what differs by a constant alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16) / 16)

    def forward(self, x: Tensor) -> Tensor:
        scales = {kind: torch.tensor([number + 1.0]) for number, kind in enumerate(KINDS)}
        found = {kind: (x * scales[kind]) @ self.w for kind in set(KINDS)}
        return sum(found[kind] for kind in KINDS)


MODELS: dict[str, tuple[type[nn.Module], str]] = {
    "tables": (Tables, TABLES),
    "branches": (Branches, BRANCHES),
    "scaled": (Scaled, SCALED),
}


def order() -> tuple[str, ...]:
    """The order in which this process meets the kinds."""
    return tuple(set(KINDS))


def step(name: str, plan: Plan, mode: str = "eager") -> tuple[float, float, float] | str:
    """Errors of the result, the gradients and the buffers of a step, or what is said of it."""
    made, expected, x = _models(name)
    try:
        if mode == "exported":
            with exported_once(name):
                made = shardplan.torch.parallelize_exported(made, (x,), plan, mesh_of(plan), strict=False)
        else:
            shardplan.torch.parallelize(made, plan, mesh_of(plan), strict=False)
        ours = made(x)
        ours.square().mean().backward()
    except ShardplanError as problem:
        return str(problem)
    theirs = expected(x)
    theirs.square().mean().backward()
    apart = float((ours.full_tensor() - theirs).abs().max())
    return apart, _gradient_error(made, expected), buffers_apart(made, expected)


def _models(name: str) -> tuple[Any, nn.Module, Tensor]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(MODELS[name][0]())
    return made[0], made[1], torch.randn(4, 8, 16)
