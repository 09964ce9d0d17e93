"""Models that change buffers while they run, which a plan has sharded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_cases import _gradient_error, far, mesh_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

CNN = """
cnn (float[4,3,8,8] pixels) => (float[4,8] y)
<float[8,3,3,3] first_weight, float[8] first_bias, float[8] norm_weight, float[8] norm_bias, float[8] norm_running_mean,
 float[8] norm_running_var, float[16,8,3,3] second_weight, float[16] second_bias, float[16] last_weight,
 float[16] last_bias, float[16] last_running_mean, float[16] last_running_var, float[16,8] head_weight> {
  a = Conv <pads = [1,1,1,1]> (pixels, first_weight, first_bias)
  b = BatchNormalization (a, norm_weight, norm_bias, norm_running_mean, norm_running_var)
  c = Relu (b)
  d = Conv <pads = [1,1,1,1], strides = [2,2]> (c, second_weight, second_bias)
  e = BatchNormalization (d, last_weight, last_bias, last_running_mean, last_running_var)
  f = Relu (e)
  over = Constant <value = int64[2] {2,3}> ()
  g = ReduceMean <keepdims = 0> (f, over)
  y = MatMul (g, head_weight)
}"""
AVERAGES = """
averages (float[4,8] x) => (float[4,8] y)
<float[8] in_place, float[8] copied, float[8] assigned, float[8,8] weight> {
  a = Add (x, in_place)
  c = Add (a, copied)
  b = Mul (c, assigned)
  y = MatMul (b, weight)
}"""


class Cnn(nn.Module):
    """Two convolutions with batch norms, one of which keeps the mean of all batches, and whose ReLU works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 16, 3, 2, padding=1), nn.BatchNorm2d(16, momentum=None)
        self.head_weight = nn.Parameter(torch.randn(16, 8) / 4)

    def forward(self, pixels: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(pixels)), inplace=True)
        return torch.relu_(self.last(self.second(x))).mean((2, 3)) @ self.head_weight


class Averages(nn.Module):
    """Running averages that a program keeps by itself: of the plan's buffers and of one that no plan knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 4)
        for name in ("in_place", "copied", "assigned", "unknown", "replaced"):
            self.register_buffer(name, torch.linspace(0.5, 1, 8))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("rates", torch.ones(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rates = self.rates[None].float() * torch.ones(1, 1).to(device=x.device, dtype=torch.float)
        y = ((x + self.in_place + self.copied) * self.assigned * rates.to(x.device)) @ self.weight
        with torch.no_grad():
            self.in_place.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.copied.copy_(x.mean(0))  # of a split batch a partial sum
            self.assigned = 0.5 * self.assigned + y.abs().amax(0)
            self.unknown.mul_(0.5).add_(y.sum(0))
            self.replaced = y.mean(0)
            self.count = self.count + 1
        return y


CLAMPED = """
clamped (float[4,8] x) => (float[4,8] y) <float[8,8] weight> { y = MatMul (x, weight) }"""


class Clamped(nn.Module):
    """Keeps its weight within bounds by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return y


JOINED = """
joined (float[4,4,8] x) => (float[4,16,8] y)
<float[8,4,1] left_weight, float[8,4,1] right_weight, float[16] norm_weight, float[16] norm_bias,
 float[16] norm_running_mean, float[16] norm_running_var> {
  a = Conv (x, left_weight)
  b = Conv (x, right_weight)
  c = Concat <axis = 1> (a, b)
  y = BatchNormalization (c, norm_weight, norm_bias, norm_running_mean, norm_running_var)
}"""


class Joined(nn.Module):
    """A batch norm of what is put together from two pieces, as in a DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv1d(4, 8, 1, bias=False), nn.Conv1d(4, 8, 1, bias=False)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.left(x), self.right(x)], 1))


class Assigning(Joined):
    """The same, and assigns a statistic in the middle of its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.norm.running_mean = 0.5 * self.norm.running_mean + y.detach().mean((0, 2))
        return y + self.norm.running_mean[:, None]


SHARED = """
shared (float[4,8] x) => (float[4,8] y) <float[8] second_level, float[8,8] weight> {
  a = Mul (x, second_level)
  y = MatMul (a, weight)
}"""


class Shared(nn.Module):
    """Two modules with one buffer: the program changes it by the first and reads it by the second."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, level = nn.Parameter(torch.randn(8, 8) / 4), torch.linspace(0.5, 1, 8)
        self.first, self.second = nn.Module(), nn.Module()
        for each in (self.first, self.second):
            each.register_buffer("level", level)

    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.second.level) @ self.weight
        with torch.no_grad():
            self.change(x)
        return y + self.second.level

    def change(self, x: Tensor) -> None:
        self.first.level.mul_(0.9).add_(x.mean(0), alpha=0.1)


class Untying(Shared):
    """The same, and makes them two buffers."""

    def change(self, x: Tensor) -> None:
        self.first.level = x.mean(0)


ROWS = """
rows (float[4,8] x) => (float[4,8] y) <float[2,8] sums, float[8,8] weight> {
  first = Constant <value = int64[1] {0}> ()
  a = MatMul (x, weight)
  b = ReduceSum <keepdims = 0> (sums, first)
  y = Add (a, b)
}"""


class Rows(nn.Module):
    """Keeps the statistics of a batch norm in the rows of one buffer, and halves them by a function of lists."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 4)
        self.register_buffer("sums", torch.linspace(0.5, 1, 16).view(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        torch._foreach_mul_(list(self.sums.unbind(0)), 0.5)
        y = functional.batch_norm(x @ self.weight, self.sums[0], self.sums[1], training=True)
        return y + self.sums.sum(0)


MODELS: dict[str, tuple[type[nn.Module], str, tuple[int, ...]]] = {
    "cnn": (Cnn, CNN, (4, 3, 8, 8)),
    "averages": (Averages, AVERAGES, (4, 8)),
    "clamped": (Clamped, CLAMPED, (4, 8)),
    "joined": (Joined, JOINED, (4, 4, 8)),
    "shared": (Shared, SHARED, (4, 8)),
    "rows": (Rows, ROWS, (4, 8)),
}


def _under(plan: Plan, model: nn.Module, batch: Tensor, mode: str, strict: bool = False) -> nn.Module:
    """The model under a plan whose names have no dots."""
    given: dict[str, Any] = {"rename": lambda name: name.replace(".", "_"), "ignore": ("*",), "strict": strict}
    if mode == "exported":
        with exported_once(type(model)):
            return shardplan.torch.parallelize_exported(model, (batch,), plan, mesh_of(plan), **given)
    shardplan.torch.parallelize(model, plan, mesh_of(plan), **given)
    return model


def train(name: str, plan: Plan, mode: str = "eager", strict: bool = False) -> list[tuple[float, float, float]]:
    """Errors of the result, of gradients and buffers, and of weights, for two steps, and for one in evaluation."""
    torch.manual_seed(0)
    kind, _, shape = MODELS[name]
    model, reference = kind(), kind()
    model.load_state_dict(reference.state_dict())
    batches, found = torch.randn(3, *shape), []
    model = _under(plan, model, batches[0], mode, strict)
    for batch in batches:
        if batch is batches[2] and mode == "eager":
            model.eval(), reference.eval()
        ours, theirs = model(batch), reference(batch)
        ours.square().mean().backward()
        theirs.square().mean().backward()
        apart = float((ours.full_tensor() - theirs).detach().abs().max())
        others = dict(reference.named_parameters())
        weights = max(far(parameter, others[name]) for name, parameter in model.named_parameters())
        found.append((apart, _gradient_error(model, reference), weights))
        for each in (model, reference):
            each.zero_grad()
    return found


def train_in_parts(plan: Plan, mode: str, kind: type[nn.Module] = Joined) -> tuple[float, int, int]:
    """The largest error of the running statistics of a `Joined` after two steps, how many of them are kept in parts,
    and how many have become parameters."""
    torch.manual_seed(0)
    model, reference = kind(), kind()
    model.load_state_dict(reference.state_dict())
    batches = torch.randn(2, 4, 4, 8)
    model = _under(plan, model, batches[0], mode)
    for batch in batches:
        model(batch).full_tensor().square().mean().backward()
        reference(batch)
    held = dict(model.named_buffers())
    worst, in_parts = 0.0, 0
    for name in ("running_mean", "running_var"):
        parts = [held[key] for key in sorted(held) if key.startswith(f"norm.parametrizations.{name}.")]
        ours = torch.cat([part.full_tensor() for part in parts or [held[f"norm.{name}"]]])
        worst = max(worst, float((ours - getattr(reference.norm, name)).abs().max()))
        in_parts += bool(parts)
    return worst, in_parts, sum("running" in name for name, _ in model.named_parameters())


def refused(plan: Plan) -> str:
    """What is said of a program that gives one of two modules another buffer than they had together."""
    model = _under(plan, Untying(), torch.randn(4, 8), "eager")
    with pytest.raises(ShardplanError) as said:
        model(torch.randn(4, 8))
    return str(said.value)
