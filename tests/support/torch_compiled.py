"""What ranks do in the tests of graphs that are compiled between their moves."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch_cases import far, mesh_of, unprofiled

import shardplan.torch
from shardplan.plan.types import Plan
from shardplan.torch.collectives.executor import MoveExecutor

TEXT = """
net (float[8,16] x) => (float[8,16] one, float[8,16] two)
<float[16,32] up, float[32] shift, float[32,16] down, float[16] scale> {
  a = MatMul (x, up)
  b = Add (a, shift)
  c = Sin (b)
  d = MatMul (c, down)
  e = Tanh (d)
  one = Sin (e)
  f = Mul (e, scale)
  two = Cos (f)
}"""


class Net(nn.Module):
    """Two results, of which one reads a weight that the other does not, and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"up": (16, 32), "shift": (32,), "down": (32, 16), "scale": (16,)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.tanh(torch.sin(linear(x, self.up.t(), self.shift)) @ self.down)
        return torch.sin(made), torch.cos(made * self.scale) * torch.rand(16, device=x.device)


@unprofiled
def steps(plan: Plan, backend: Any) -> tuple[float, list[list[Any]], list[list[str]], int, int]:
    """A step of a loss of the first result, and one of both: the largest error of a gradient; of the graph uncompiled
    and compiled, what is moved, in order, and the weights without gradient in the first step; the number of compiled
    runs; and how many of their operands backward gathers again."""
    torch.manual_seed(0)
    reference, batch = Net(), torch.randn(8, 16)
    errors, moved, without = [], [], []
    for given in (None, backend):
        model = Net()
        model.load_state_dict(reference.state_dict())
        graph = shardplan.torch.parallelize_exported(model, (batch,), plan, mesh_of(plan), backend=given, strict=False)
        with _Moves() as moves:
            for results in (1, 2):
                for each in (graph, reference):
                    torch.manual_seed(results)
                    each.zero_grad()
                    sum(made.square().sum() for made in each(batch)[:results]).backward()
                held = {name: parameter.grad for name, parameter in graph.named_parameters()}
                others = {name: parameter.grad for name, parameter in reference.named_parameters()}
                if results == 1:
                    without.append([name for name, grad in held.items() if grad is None])
                errors += [far(grad, others[name]) for name, grad in held.items() if grad is not None]
        moved.append(moves.made)
    runs = [node for node in graph.graph.nodes if str(node.target).startswith("between")]
    again = sum(_is_gathered_again(graph, each) for run in runs for each in run.args)
    return max(errors), moved, without, len(runs), again


def _is_gathered_again(graph: nn.Module, node: Any) -> bool:
    route = getattr(graph.get_submodule(node.target), "route", None) if node.op == "call_module" else None
    return route is not None and route.regather is not None


class _Moves:
    """Notes the moves that are made and issued, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self._patches: list[Any] = []

    def __enter__(self) -> _Moves:
        for name in ("run", "start"):
            real = getattr(MoveExecutor, name)
            patch = mock.patch.object(MoveExecutor, name, self._noting(name, real))
            patch.start()
            self._patches.append(patch)
        return self

    def _noting(self, name: str, real: Any) -> Any:
        def made(executor: Any, locals_: Any, moves: Any, label: Any, *args: Any, **kwargs: Any) -> Any:
            self.made.append((name, label.name, [move.number for move in moves]))
            return real(executor, locals_, moves, label, *args, **kwargs)

        return made

    def __exit__(self, *problem: object) -> None:
        for patch in self._patches:
            patch.stop()
