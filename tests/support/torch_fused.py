"""What ranks do in the tests of fused weights that torch has no placement for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch_cases import far, mesh_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan

GATED = """
gated (float[8,16] x) => (float[8,16] y)
<float[16,16] w0, float[16,64] w, float[64] b, float[32,16] w1, float[16,16] w2, int64[3] sizes = {32, 16, 16}> {
  g = MatMul (x, w0)
  h0 = MatMul (g, w)
  h = Add (h0, b)
  p, q, r = Split <axis = 1> (h, sizes)
  a = Relu (p)
  c = Mul (q, r)
  d = MatMul (a, w1)
  e = MatMul (c, w2)
  y = Add (d, e)
}"""
SIZES = (32, 16, 16)


class Gated(nn.Module):
    """A packed layer whose parts have unequal sizes."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shapes = {"w0": (16, 16), "w": (16, 64), "b": (64,), "w1": (32, 16), "w2": (16, 16)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter((torch.randn(shape, generator=generator) / 4).to(device)))

    def forward(self, x: Any) -> Any:
        """The sum of what the parts give."""
        p, q, r = (x @ self.w0 @ self.w + self.b).split(SIZES, -1)
        return torch.relu(p) @ self.w1 + (q * r) @ self.w2


class Shrinking(Gated):
    """The same, and changes weights in place before it reads them, one of them in a slice."""

    def forward(self, x: Any) -> Any:
        """As of `Gated`."""
        with torch.no_grad():
            self.w.mul_(0.9)
            self.b[8:40] = 0.5
        return super().forward(x)


def rows() -> Any:
    """A batch."""
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def train(
    plan: Plan, mode: str, checkpoint: str, kind: type[Gated] = Gated, folder: str = ""
) -> tuple[float, list[str]]:
    """Two steps with clipped gradients, from weights of the model or of a checkpoint: the largest error of anything,
    and what the parameters are called. `folder`: where the model and its optimizer are saved, and read from again."""
    reference, x, mesh = kind(), rows(), mesh_of(plan)
    model = kind("meta" if checkpoint else "cpu")
    if mode == "pipeline":
        with exported_once(Gated):
            model = shardplan.torch.pipeline(model, (x[:4],), plan, mesh, loss=lambda y, _: (y * y).mean())
    elif mode == "exported":
        with exported_once(Gated):
            model = shardplan.torch.parallelize_exported(model, (x,), plan, mesh)
    if checkpoint:
        shardplan.torch.load_(model, plan, mesh, checkpoint)
    elif mode == "eager":
        shardplan.torch.parallelize(model, plan, mesh, strict=kind is Gated)
    ours, theirs = (torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, reference))
    errors = []
    for _ in range(2):
        ours.zero_grad()
        theirs.zero_grad()
        expected = (reference(x) ** 2).mean()
        expected.backward()
        if mode == "pipeline":
            got = model.step(x, target=x)
        else:
            got = (model(x).full_tensor() ** 2).mean()
            got.backward()
            norm, other = (nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, reference))
            errors.append(abs(norm.full_tensor() - other).item())
        errors += [] if got is None else [abs(got.item() - expected.item())]
        errors += _differences(model, reference)
        ours.step()
        theirs.step()
    errors += _differences(model, reference)
    if folder:
        kept = [state["exp_avg"].full_tensor() for state in ours.state.values()]
        shardplan.torch.save_checkpoint(folder, model, ours)
        ours.state.clear()
        shardplan.torch.load_checkpoint(folder, model, ours)
        read = [ours.state[weight]["exp_avg"].full_tensor() for weight in model.parameters()]
        errors += [float((one - other).abs().max()) for one, other in zip(kept, read, strict=True)]
    if mode == "eager":
        errors.append((model.w.full_tensor() - reference.w).abs().max().item())
    return max(errors), [name for name, _ in model.named_parameters()]


def _differences(model: Any, reference: Gated) -> list[float]:
    """Of weights and gradients, part by part."""
    others = {}
    for name, weight in reference.named_parameters():
        others[name] = weight, weight.grad
        if name in "wb":
            parts = zip(weight.split(SIZES, -1), weight.grad.split(SIZES, -1), strict=True)
            others |= {f"parametrizations.{name}.original{number}": pair for number, pair in enumerate(parts)}
    found = []
    for name, parameter in model.named_parameters():
        weight, gradient = others[name]
        found += [far(parameter, weight), far(parameter.grad, gradient)]
    return found


def assigned(plan: Plan) -> tuple[list[float], list[str]]:
    """Errors of weights that are set to other tensors between steps, whole and in parts, and of what the model then
    gives; what is said of a tensor of another shape, and of parts that are changed otherwise."""
    model, reference, x = Gated(), Gated(), rows()
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    for each in (model, reference):
        before = each.w1.data
        each.w.data += 0.5
        each.w0.data = each.w0.data / each.w0.norm(dim=1, keepdim=True)
        each.w1.data = torch.ones(32, 16)
        each.w2.data = each.w0.data.clone()
        each.kept = each.w1.data
        each.w1.data = before
        with torch.no_grad():
            each.w[:, 4:40] *= 0.5
            each.w0[1] = each.w0[0] * 2
            each.w0.data[2:4, 3] -= 0.25
            each.w2.copy_(torch.linspace(-0.1, 0.1, 16))
    others = [(getattr(model, name), getattr(reference, name)) for name in ("kept", "w", "w0", "w1", "w2")]
    errors = [far(ours, theirs) for ours, theirs in (*others, (model(x), reference(x)))]
    with pytest.raises(ShardplanError) as said:
        model.w1.data = model.w0.data
    cut = nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh_of(plan), [Shard(0), Shard(1)], src_data_rank=None))
    changes = [lambda: (cut[0].zero_(), cut[1].zero_()), cut.T.data[3:].zero_, lambda: model.w.mul_(2.0)]
    lost = [_lost(change, model, x) for change in changes]
    model.w2._local_tensor = torch.eye(64)  # as of `torch.eye(64, out=model.w2)`
    lost.append(_lost(lambda: None, model, x))
    return errors, [str(said.value), *lost, _lost(lambda: delattr(model, "w1"), model, x)]


def _lost(change: Any, model: nn.Module, x: Any) -> str:
    """What is said at the next step of a change that a parameter does not get."""
    with torch.no_grad():
        change()
    with pytest.raises(ShardplanError) as said:
        model(x)
    return str(said.value)


def changed(plan: Plan) -> tuple[float, bool, str]:
    """The largest error of weights that are changed in slices between steps; whether one stays as it was where the
    change ends with an exception; and what is said of a name that there is not."""
    model, reference = Gated(), Gated()
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    with torch.no_grad():
        reference.w[:, 4:40] *= 0.5
        reference.w0[1] = 0.25
    with shardplan.torch.whole(model, "w") as w:
        w[:, 4:40] *= 0.5
    with shardplan.torch.whole(model, "w0") as w0:
        w0[1] = 0.25
    with contextlib.suppress(ZeroDivisionError), shardplan.torch.whole(model, "w2") as w2:
        w2[0] = 1 / 0
    others = [(model.w, reference.w), (model.w0, reference.w0), (model.w2, reference.w2)]
    errors = [float((ours.full_tensor() - theirs).abs().max()) for ours, theirs in others]
    with pytest.raises(ShardplanError) as said, shardplan.torch.whole(model, "w9"):
        pass
    return max(errors[:2]), errors[2] == 0, str(said.value)


class Packed(nn.Module):
    """A packed layer whose parts have equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {"w": (16, 64), "b": (64,), "w1": (16, 16)}.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator) / 4))

    def forward(self, x: Any) -> Any:
        """The sum of what the parts give."""
        p, q, r, s = (x @ self.w + self.b).chunk(4, -1)
        return (p * q + r * s) @ self.w1


def packed(plan: Plan, mode: str, folder: str) -> tuple[list[float], dict[str, tuple[int, ...]]]:
    """Three steps, the last one from the checkpoint of the others, with weights that are set by hand before it: errors
    of losses and weights, and the shapes of what is stored."""
    x, reference = rows(), Packed()
    model, errors = _parallel(Packed(), x, plan, mode), []
    for step in range(3):
        if step == 2:
            _change(model, reference, mode)
            shardplan.torch.save_checkpoint(folder, model)
            model = _parallel(Packed(), x, plan, mode)
            shardplan.torch.load_checkpoint(folder, model)
        errors += [_loss(model, x) - _loss(reference, x)]
        found = shardplan.torch.full_state_dict(model)
        assert found.keys() == reference.state_dict().keys()
        errors += [(found[name] - each).abs().max().item() for name, each in reference.named_parameters()]
    return [*map(abs, errors)], {name: tuple(each.shape) for name, each in model.named_parameters()}


def _change(model: nn.Module, reference: nn.Module, mode: str) -> None:
    """Weights between steps: one whole, one in a slice, and two as `whole` gives them, which a graph has alone."""
    for each in (model, reference) if mode == "eager" else ():
        each.w.data = torch.sin(each.w.data)
        with torch.no_grad():
            each.w[3:5, 15:40] *= 0.5
            each.b.copy_(torch.linspace(-0.1, 0.1, 64))
    for name in ("w", "b"):
        with torch.no_grad(), shardplan.torch.whole(model, name) as weight:
            weight[7] = getattr(reference, name)[7] = 0.25


def _loss(model: nn.Module, *given: Any) -> float:
    """The loss of one step."""
    loss = model(*given).square().mean()
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.05).step()
    model.zero_grad()
    return float(loss)


def _parallel(model: nn.Module, x: Any, plan: Plan, mode: str) -> nn.Module:
    if mode == "eager":
        return shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
    return shardplan.torch.parallelize_exported(model, (x,), plan, mesh_of(plan), strict=False)


class Shown(Packed):
    """The same, and returns the layer's result, too."""

    def forward(self, x: Any) -> Any:
        """Both."""
        return super().forward(x), x @ self.w + self.b


def shown(plan: Plan, mode: str) -> float:
    """How far a result is off whose layout is none of torch's."""
    model = _parallel(Shown(), rows(), plan, mode)
    return float((model(rows())[1].full_tensor() - Shown()(rows())[1]).abs().max())


class Twice(nn.Module):
    """A packed layer whose weight is also that of what reads its result."""

    def __init__(self) -> None:
        super().__init__()
        whole = Packed()
        self.w, self.b, self.last = whole.w, whole.b, nn.Module()
        self.last.weight = self.w

    def forward(self, x: Any) -> Any:
        """As of `Packed`."""
        p, q, r, s = (x @ self.w + self.b).chunk(4, -1)
        return (p * q + r * s) @ self.last.weight


def tied(plan: Plan) -> tuple[list[float], list[str]]:
    """Two steps of a model whose tied weight is kept in parts: errors of losses and of all weights, and their names."""
    reference, x = Twice(), rows()
    model = shardplan.torch.parallelize(Twice(), plan, mesh_of(plan), strict=False)
    errors = [abs(_loss(model, x) - _loss(reference, x)) for _ in range(2)]
    whole = shardplan.torch.full_state_dict(model)
    assert whole["last.weight"] is whole["w"]
    errors += [(whole[name] - each).abs().max().item() for name, each in reference.named_parameters()]
    return errors, [name for name, _ in model.named_parameters()]
