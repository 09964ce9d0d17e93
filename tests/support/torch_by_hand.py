"""What programs do to weights between steps by hand, and optimizers with forms of their own, under a plan and alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn, optim
from torch.nn import functional, init
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch_cases import mesh_of

import shardplan.torch
from shardplan.plan.types import Plan

NET = """
net (float[4,8] x) => (float[4,8] y)
<float[16,8] first_weight, float[16] first_bias, float[8,16] second_weight, float[8] second_bias> {
  a = Gemm <transB = 1> (x, first_weight, first_bias)
  b = Tanh (a)
  y = Gemm <transB = 1> (b, second_weight, second_bias)
}"""


class Net(nn.Module):
    """Two layers, whose parameters are named as the plan's."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"first": (16, 8), "second": (8, 16)}.items():
            setattr(self, f"{name}_weight", nn.Parameter(torch.randn(shape) / 4))
            setattr(self, f"{name}_bias", nn.Parameter(torch.zeros(shape[:1])))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(functional.linear(x, self.first_weight, self.first_bias))
        return functional.linear(h, self.second_weight, self.second_bias)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """The mean of squares, whole on every process; gradients are the model's now."""
    made = model(x)
    made = made.full_tensor() if hasattr(made, "full_tensor") else made
    model.zero_grad()
    loss = (made - 0.5).square().mean()
    loss.backward()
    return loss


def optimized(make: Callable[[list[Tensor]], optim.Optimizer]) -> Callable[[nn.Module, Tensor], list[float]]:
    """Two steps of an optimizer, which asks for the loss itself."""

    def loop(model: nn.Module, x: Tensor) -> list[float]:
        optimizer = make(list(model.parameters()))
        return [float(optimizer.step(lambda: loss_of(model, x))) for _ in range(2)]

    return loop


def nudged(model: nn.Module, x: Tensor) -> list[float]:
    """Plain tensors beside weights and gradients."""
    found, drawn = [loss_of(model, x).item()], torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in model.parameters():
            noise = torch.randn(each.shape, generator=drawn, dtype=each.dtype)
            each.grad *= noise > 0
            each += 0.1 * noise  # noqa: PLW2901 - in place
            each.sub_(each.grad * noise).lerp_(noise.abs(), 0.2).copy_(each * (1 + 0.1 * noise))
    return [*found, loss_of(model, x).item()]


def scaled(model: nn.Module, x: Tensor) -> list[float]:
    """Norms and sums of weights and gradients as numbers of Python, which scale updates (LAMB)."""
    found = [loss_of(model, x).item()]
    with torch.no_grad():
        for each in model.parameters():
            trust = (each.norm().item() + 0.1) / float(each.grad.norm())
            found += [trust, float(each.sum()), bool((each > 0.2).any()), *each.flatten().tolist()[:2]]
            each.add_(each.grad, alpha=-0.1 * trust)
    return [*found, loss_of(model, x).item()]


def fresh(model: nn.Module, x: Tensor) -> list[float]:
    """Weights drawn and set anew."""
    torch.manual_seed(7)
    init.orthogonal_(model.first_weight)
    init.kaiming_uniform_(model.second_weight)
    init.trunc_normal_(model.first_bias)
    found = [loss_of(model, x).item()]
    init.eye_(model.first_weight)
    init.sparse_(model.second_weight, 0.5)
    with torch.no_grad():
        model.second_bias.exponential_(2.0)
    return [*found, loss_of(model, x).item()]


def flattened(model: nn.Module, x: Tensor) -> list[float]:
    """All weights as one vector, whatever their layouts; rows by number; a change of it is a change of them."""
    with torch.no_grad():
        vector = parameters_to_vector(model.parameters())
        found = [*vector.tolist(), *model.first_weight[torch.tensor([3, 1])].tolist()[0]]
        found += torch.flatten(model.second_weight).tolist()
        vector_to_parameters(vector * 0.5, model.parameters())
    return [*found, loss_of(model, x).item()]


LOOPS: dict[str, Callable[[nn.Module, Tensor], list[float]]] = {
    "nudged": nudged,
    "scaled": scaled,
    "fresh": fresh,
    "flattened": flattened,
    "Rprop": optimized(lambda held: optim.Rprop(held, 0.05)),
    "fused SGD": optimized(lambda held: optim.SGD(held, 0.05, 0.9, fused=True)),
    "fused Adagrad": optimized(lambda held: optim.Adagrad(held, 0.05, fused=True)),
    "Adafactor": optimized(lambda held: optim.Adafactor(held, 0.05)),
    "L-BFGS": optimized(lambda held: optim.LBFGS(held, 0.5, max_iter=3, line_search_fn="strong_wolfe")),
}


def compared(plan: Plan) -> dict[str, float]:
    """By loop, how far a model under `plan` is from one process: in what the loop tells, and in its weights then."""
    found = {}
    for name, loop in LOOPS.items():
        torch.manual_seed(0)
        alone, x = Net().double(), torch.randn(4, 8, dtype=torch.double)
        model = Net().double()
        model.load_state_dict(alone.state_dict())
        shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
        told = [abs(one - other) for one, other in zip(loop(model, x), loop(alone, x), strict=True)]
        state, wanted = shardplan.torch.full_state_dict(model), alone.state_dict()
        found[name] = max(*told, *((state[key] - wanted[key]).abs().max().item() for key in wanted))
    return found
