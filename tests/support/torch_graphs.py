"""A program of what is hard to write into a graph, and what ranks do with it."""

from __future__ import annotations

import copy
import io
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as f
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch_cases import _gradient_error, far, mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan


class Weighed(torch.autograd.Function):
    """Of two results, whose backward is not that of its forward: it reads an argument, a weight, an attribute and what
    forward has made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
        made, largest = torch.tanh(x) * weight, x.argmax(-1)
        ctx.save_for_backward(x, weight)
        ctx.found, ctx.factor = {"made": made}, factor
        ctx.mark_non_differentiable(largest)
        return made, x.sum(-1), largest

    @staticmethod
    def backward(ctx: Any, of_made: Tensor, of_sum: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = of_made * weight * ctx.factor + of_sum.unsqueeze(-1) + ctx.found["made"] * 0.1
        return of_x, (of_made * x).sum(tuple(range(x.dim() - 1))), None


WEIGHED = Weighed.apply
"""As programs keep it: what is called is the function that torch had at import."""


class Changing(torch.autograd.Function):
    """It changes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient * 2


TAKEN = vars(torch._C._FunctionBase)["apply"].__get__(None, Changing)
"""What `Changing.apply` is where a program has kept it, since torch 2.14."""


class Hard(nn.Module):
    """Views changed in place, norms of a dim that may be split, elements of each row by number, a module that is called
    as a keyword of Python is."""

    level: Tensor

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(8, 16), nn.Linear(16, 8), kind
        self.add_module("in", nn.Linear(16, 16, bias=False))
        self.register_buffer("level", torch.ones(16))

    def has(self, part: str) -> bool:
        """Whether it computes what a graph can hold and `part` names: of a kind, or of several with ` + ` between."""
        return part in self.kind.split(" + ")

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        h = self.first(x)
        h[:, 1:3] *= 0.5
        h[:, 4] = h[:, 5] * 2
        h.transpose(0, 1)[0].add_(1.0)
        rows = h / h.norm(dim=-1, keepdim=True)
        rows = getattr(self, "in")(rows)
        picked = self.second(rows)[torch.arange(len(x), device=x.device)[:, None], chosen]
        if self.has("own function"):
            made, sums, largest = WEIGHED(h, self.first.bias, 0.5)
            picked = picked + made.mean() + 0.1 * sums.mean() + 0.01 * largest.to(made.dtype).mean()
        if self.has("checkpoint"):
            picked = picked + checkpoint(self.second, h, use_reentrant=True).mean()
        if self.has("buffers"):
            self.level[2:4] *= 0.5
            with torch.no_grad():
                self.level.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)
            picked = picked * self.level.mean()
        if self.has("no gradients"):
            with torch.no_grad():
                weighed = self.second(h)
                weighed[:, 1:3] *= 0.5
            picked = picked + weighed.mean() * h.mean()
        if self.has("mapped"):
            state = {name: torch.stack([each, each * 2]) for name, each in self.second.named_parameters()}
            both = torch.func.vmap(lambda own: torch.func.functional_call(self.second, own, (h,)))(state)
            picked = picked + both.square().mean()
        if self.has("number"):
            picked = picked / (1 + h.abs().mean().item())
        if self.kind == "number of entries":
            picked = picked.clamp(max=h.abs().mean().item())
        if self.kind == "changed weight":
            with torch.no_grad():
                self.first.bias.clamp_(-0.1, 0.1)
        if self.kind == "changed without gradients":
            with torch.no_grad():
                picked.mul_(0.5)
        if self.kind == "branch":
            picked = picked * 2 if h.sum() > 0 else picked
        if self.kind == "dropout":
            picked = f.dropout(picked, 0.5, self.training)
        if self.kind == "changing function":
            picked = Changing.apply(picked)
        if self.kind == "function that was taken before":
            picked = TAKEN(picked)
        if self.kind == "hook":
            picked.register_hook(lambda gradient: gradient * 2)
        if self.kind == "gradient inside":
            picked = torch.autograd.grad(picked.sum(), x, create_graph=True)[0]
        if self.kind == "frozen inside":
            self.first.weight.requires_grad_(False)
        return picked[picked > 0].sum() if self.kind == "shape of data" else picked.square().sum()


def seeded(kind: str = "") -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model and a batch, the same in every process."""
    torch.manual_seed(0)
    model = Hard(kind)
    if model.has("hooked weight"):
        model.second.weight.register_hook(lambda gradient: gradient * (gradient > gradient.mean()))
    if kind == "added gradient":
        model.second.weight.register_post_accumulate_grad_hook(lambda _: None)
    if kind == "hooked module":
        model.second.register_full_backward_hook(lambda *_: None)
    return model, (torch.randn(4, 8, 8), torch.randint(8, (4, 2)))


def train(plan: Plan, kind: str = "", against: str = "one process") -> tuple[float, float]:
    """Errors, of the loss relative, and of the gradients, of a graph under a plan, beside one process or what
    `parallelize` gives."""
    (model, batch), (reference, _) = seeded(kind), seeded(kind)
    graph = shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=False, ignore=("*",))
    if against == "parallelize":
        shardplan.torch.parallelize(reference, plan, mesh_of(plan), strict=False, ignore=("*",))
    torch.manual_seed(1)
    ours = graph(*batch)
    torch.manual_seed(1)
    theirs = reference(*batch)
    ours.backward()
    theirs.backward()
    loss = theirs.full_tensor() if isinstance(theirs, DTensor) else theirs
    return abs(ours.full_tensor().item() / loss.item() - 1), _gradient_error(graph, reference)


def dropped(plan: Plan) -> list[float]:
    """Losses of a graph with dropout, twice with the same seed and once with another."""
    model, batch = seeded("dropout")
    graph = shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=False, ignore=("*",))
    return [(torch.manual_seed(seed), graph(*batch).full_tensor().item())[1] for seed in (1, 1, 2)]


def told_of_each(plan: Plan, kinds: list[str]) -> dict[str, str]:
    """What is said of models that a graph cannot hold. Nothing is sent before it is said, so ranks share them out."""
    mesh_of(plan)
    return {kind: told(plan, kind) for kind in kinds[dist.get_rank() :: dist.get_world_size()]}


def told(plan: Plan, kind: str) -> str:
    """What is said of a model that a graph cannot hold, or not all of."""
    model, batch = seeded(kind)
    try:
        graph = shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=False, ignore=("*",))
        if kind == "gradient of an input":
            graph(batch[0].requires_grad_(), batch[1])
    except ShardplanError as problem:
        return str(problem)
    return ""


class Moody(nn.Module):
    """Evaluated otherwise than trained: other statistics, nothing dropped, a weight that training does not read.
    `held`: what it holds beside tensors."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.linear, self.dropout, self.held = nn.BatchNorm1d(16), nn.Linear(16, 8), nn.Dropout(0.5), held
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        made = self.dropout(self.linear(self.norm(x)))
        return made if self.training else made * self.scale


def in_both_modes(plan: Plan, backend: str | None) -> tuple[list[float], list[bool]]:
    """How far a graph is from one process in evaluation, before and after a training step, and in its statistics after
    another one; what has to be so of its modes."""
    model, reference = Moody(), Moody()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)) * 3 + 1
    graph = shardplan.torch.parallelize_exported(model, (x,), plan, mesh_of(plan), strict=False, backend=backend)
    errors, first = [], graph.graph
    for rate in (0.1, 0.0):
        drawn = [graph(x), graph(x)]
        reference(x), reference(x)
        drawn[0].sum().backward()
        graph.eval()
        errors += [far(graph(x), reference.eval()(x)), far(graph(x), reference(x))]
        of_mode = [not graph.training, graph.graph is not first, not torch.equal(_whole(drawn[0]), _whole(drawn[1]))]
        graph.train()
        reference.train()
        with torch.no_grad():
            for own in (graph, reference):
                own.get_parameter("linear.bias").sub_(rate)
        errors.append(far(graph.get_buffer("norm.running_mean"), reference.norm.running_mean))
    of_copies, of_copy = copied(graph, reference, x)
    return errors + of_copies, [*of_mode, graph.training, graph.graph is first, *of_copy]


def copied(graph: Any, reference: Any, x: Tensor) -> tuple[list[float], list[bool]]:
    """How far a copy of a graph is from one of `reference` in evaluation, with weights of its own, and in its
    statistics; what has to be so of both."""
    calls: list[Any] = []
    graph.register_forward_hook(lambda *given: calls.append(given[0]))
    other, twin = AveragedModel(graph).module, copy.deepcopy(reference)
    before = graph.get_parameter("linear.bias").full_tensor()
    with torch.no_grad():
        for own in (other, twin):
            own.get_parameter("linear.bias").add_(1)
    errors = [far(other.eval()(x), twin.eval()(x))]
    so = [graph.training, not other.training, not torch.equal(_whole(graph(x)), _whole(graph(x)))]
    graph.zero_grad()
    other.train()(x).sum().backward()
    twin.train()(x)
    errors.append(far(other.get_buffer("norm.running_mean"), twin.norm.running_mean))
    so += [all(each.grad is None for each in graph.parameters()), other.get_parameter("linear.bias").grad is not None]
    so += [torch.equal(graph.get_parameter("linear.bias").full_tensor(), before), calls == [other, graph, graph, other]]
    return errors, [*so, list(other.state_dict()) == list(graph.state_dict())]


def _whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def told_of_modes(plan: Plan) -> str:
    """What is said of another mode of a model that cannot be copied, while the mode that it has can be asked for."""
    model, x = Moody(threading.Lock()), torch.randn(8, 16)
    graph = shardplan.torch.parallelize_exported(model, (x,), plan, mesh_of(plan), strict=False).train()
    try:
        graph.eval()
    except ShardplanError as problem:
        with pytest.raises(ShardplanError) as pickled:
            torch.save(graph, io.BytesIO())
        return f"{problem} {graph.training}\n{pickled.value}"
    return ""


def given(plan: Plan, example: Any) -> list[Any]:
    """Of a graph that is made with an example of any form: how far its result is from one process, by place and by
    name; what is said of a smaller batch."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    wanted = Moody().eval()(x)
    graph = shardplan.torch.parallelize_exported(Moody().eval(), example, plan, mesh_of(plan), strict=False)
    errors = [far(graph(x), wanted), far(graph(x=x), wanted)]
    try:
        graph(x[:4])
    except ShardplanError as problem:
        return [*errors, str(problem)]
    return errors


class Tied(nn.Module):
    """Tied weights, a layer that no result depends on, a table that no checkpoint has, and a norm that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight
        self.norm, self.pooler = nn.BatchNorm1d(16), nn.Linear(4, 4)
        self.register_buffer("scale", torch.linspace(1, 2, 16), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores."""
        return self.head(self.norm(torch.tanh(self.table(ids))) * self.scale)


def tied_state(plan: Plan) -> tuple[bool, list[str]]:
    """Whether the state of a graph is that of the module, by names and values; the names that are one tensor."""
    torch.manual_seed(0)
    ids, alone = torch.arange(8), Tied()
    graph = shardplan.torch.parallelize_exported(Tied(), (ids,), plan, mesh_of(plan))
    found, wanted = shardplan.torch.full_state_dict(graph), alone.state_dict()
    alone.load_state_dict(found)
    one = [name for name in found if found[name] is found["table.weight"]]
    return found.keys() == wanted.keys(), one
