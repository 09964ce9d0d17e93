"""What ranks do in the tests of pipelines in torch."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch_autograd
import torch_twins
from tiny_models import Tiny
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch_cases import _loss, far, mesh_of, optimizer_of
from torch_steps import exported_once

import shardplan.torch
from shardplan.layout.collective import Collective
from shardplan.plan.types import CollectiveStep, Plan
from shardplan.torch.collectives.steps import shard_of_whole
from shardplan.torch.pipelines.p2p import Endpoint, SendReceive
from shardplan.torch.process_groups import ProcessGroups


class Seen(NamedTuple):
    """What one rank saw: largest errors against one process, of losses (on the last stage) and of the gradients that it
    has; how many parameters those are; `differences` of what was sent from what the stages say."""

    loss_error: float
    gradient_error: float
    parameters: int
    differences: Any
    is_last: bool


def loss(logits: Any, ids: Any) -> Any:
    """Of the next token."""
    return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def train(tiny: Tiny, plan: Plan, steps: int, strict: bool = True, times: float = 0.0) -> Seen:
    """Train a twin as a pipeline and beside it the same in one process. `times`: it computes its GELU in a function of
    its own, by which the gradient is multiplied."""
    make = functools.partial(torch_autograd.twin, times=times, again=False) if times else torch_twins.twin
    model, reference = make(tiny), make(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    micro = int(plan.model["microbatches"])
    example = (ids[: len(ids) // micro],)
    with exported_once(tiny.name, tiny.sizes, times):
        pipe = shardplan.torch.pipeline(model, example, plan, mesh_of(plan), loss=loss, strict=strict)
    ours, theirs = optimizer_of(pipe), optimizer_of(reference)
    others = dict(reference.named_parameters(remove_duplicate=False))
    losses, gradients = [0.0], []
    for step in range(steps):
        if step:
            ours.step()
            theirs.step()
        ours.zero_grad()
        theirs.zero_grad()
        with shardplan.torch.count_comms(pipe) as comms:
            got = pipe.step(ids, target=ids)
        comms.sent = [item for item in comms.sent if item.payload_bytes > ids.element_size()]  # the loss's own
        expected = _loss(reference(ids), ids)
        expected.backward()
        losses += [] if got is None else [abs(got.item() - expected.item())]
        losses += _evaluated(pipe, reference, ids, micro) if not gradients else []
        gradients += [far(p.grad, others[name].grad) for name, p in pipe.named_parameters()]
    held = len(list(pipe.named_parameters()))
    return Seen(max(losses), max(gradients), held, dict(comms.differences), pipe.is_last)


def _evaluated(pipe: Any, reference: Any, ids: Any, micro: int) -> list[float]:
    """Between two steps, without gradients: how far the logits are from those of one process."""
    found = pipe.forward(ids)
    with torch.no_grad():
        expected = reference(ids).chunk(micro)
    return [far(ours, other) for ours, other in zip(found, expected, strict=False)]


class Mlp(torch.nn.Module):
    """Four layers, written as exporters' graphs have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = (6, 8, 10, 12, 14)
        for number, (inner, outer) in enumerate(itertools.pairwise(sizes), 1):
            self.register_parameter(f"w{number}", torch.nn.Parameter(torch.randn(inner, outer) / inner**0.5))
            self.register_parameter(f"b{number}", torch.nn.Parameter(torch.randn(outer) * 0.1))

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        hidden = torch.relu(x @ self.w1 + self.b1) @ self.w2 + self.b2
        return torch.relu(hidden @ self.w3 + self.b3) @ self.w4 + self.b4


def train_mlp(plan: Plan, strict: bool = True) -> Seen:
    """The same of `Mlp` on random rows, with a quadratic loss."""
    model, reference = Mlp(), Mlp()
    shape = next(t.shape for t in plan.pipeline.stages[0].plan.tensors if t.role == "input")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    example = (x[: len(x) // int(plan.model["microbatches"])],)
    with exported_once(Mlp):
        pipe = shardplan.torch.pipeline(
            model, example, plan, mesh_of(plan), loss=lambda y, _: functional.mse_loss(y, 0 * y), strict=strict
        )
    with shardplan.torch.count_comms(pipe) as comms:
        got = pipe.step(x, target=x)
    expected = (reference(x) ** 2).mean()
    expected.backward()
    others = dict(reference.named_parameters())
    gradients = [far(p.grad, others[name].grad) for name, p in pipe.named_parameters()]
    off = 0.0 if got is None else abs(got.item() - expected.item())
    return Seen(off, max(gradients), len(gradients), dict(comms.differences), pipe.is_last)


def train_with_loss(plan: Plan) -> tuple[float, float, str]:
    """Errors of the loss and of gradients under a plan that has the loss, and what is said of the model without it."""
    from shardplan.errors import ShardplanError

    model, reference, micro = Mlp(), Mlp(), int(plan.model["microbatches"])
    drawn = torch.Generator().manual_seed(1)
    x, target = torch.randn(64, 6, generator=drawn), torch.randn(64, 14, generator=drawn)
    example, said = (x[: 64 // micro], target[: 64 // micro]), "nothing"
    pipe = shardplan.torch.pipeline(shardplan.torch.with_loss(model, functional.mse_loss), example, plan, mesh_of(plan))
    got = pipe.step(x, target)
    expected = functional.mse_loss(reference(x), target)
    expected.backward()
    others = dict(reference.named_parameters())
    gradients = [far(p.grad, others[name.removeprefix("model.")].grad) for name, p in pipe.named_parameters()]
    try:
        shardplan.torch.pipeline(Mlp(), example[:1], plan, mesh_of(plan), loss=functional.mse_loss)
    except ShardplanError as problem:
        said = str(problem)
    return 0.0 if got is None else abs(got.item() - expected.item()), max(gradients), said


class Masked(Mlp):
    """One whose last result is masked alike in all rows."""

    def forward(self, x: Any, mask: Any) -> Any:
        """The last layer's result times a mask of one row."""
        return super().forward(x) * mask


def train_masked(plan: Plan) -> tuple[float, float]:
    """Errors of the loss and of gradients of `Masked`."""
    model, reference, micro = Masked(), Masked(), int(plan.model["microbatches"])
    drawn = torch.Generator().manual_seed(1)
    x, target = torch.randn(64, 6, generator=drawn), torch.randn(64, 14, generator=drawn)
    mask = torch.arange(14)[None] % 2 * 1.0
    with_loss = shardplan.torch.with_loss(model, functional.mse_loss)
    pipe = shardplan.torch.pipeline(with_loss, (x[: 64 // micro], mask, target[: 64 // micro]), plan, mesh_of(plan))
    got = pipe.step(x, mask, target)
    expected = functional.mse_loss(reference(x, mask), target)
    expected.backward()
    others = dict(reference.named_parameters())
    gradients = [far(p.grad, others[name.removeprefix("model.")].grad) for name, p in pipe.named_parameters()]
    return 0.0 if got is None else abs(got.item() - expected.item()), max(gradients)


class Skipping(Mlp):
    """One that needs its first value again in the end."""

    def forward(self, x: Any) -> Any:
        """The last layer's result, and of the first."""
        first = torch.relu(x @ self.w1 + self.b1)
        last = torch.relu((first @ self.w2 + self.b2) @ self.w3 + self.b3) @ self.w4 + self.b4
        return last + first.sum(-1, keepdim=True)


def refused(plan: Plan, what: str) -> str:
    """What is said of a model or a call that does not fit a pipeline."""
    from shardplan.errors import ShardplanError

    model = Skipping() if what == "skips" else Mlp()
    try:
        if what == "parallelize":
            shardplan.torch.parallelize(model, plan, mesh_of(plan))
        pipe = shardplan.torch.pipeline(model, (torch.zeros(32, 6),), plan, mesh_of(plan))
        pipe.step(*() if what == "missing" else (torch.zeros(64, 6),))
    except ShardplanError as problem:
        return str(problem)
    return "nothing"


def load(tiny: Tiny, plan: Plan, path: str) -> tuple[float, list[float]]:
    """Fill a pipeline made on the meta device: the largest error of a weight, and of every microbatch's logits."""
    model, reference = torch_twins.twin(tiny, device="meta"), torch_twins.twin(tiny)
    model.transformer.mask = reference.transformer.mask
    ids = torch.tensor(tiny.inputs["input_ids"])
    micro = int(plan.model["microbatches"])
    with exported_once(tiny.name, tiny.sizes):
        pipe = shardplan.torch.pipeline(model, (ids[: len(ids) // micro],), plan, mesh_of(plan))
    shardplan.torch.load_(pipe, plan, mesh_of(plan), path)
    wrong = [far(p.detach(), torch.tensor(tiny.weights[name])) for name, p in pipe.named_parameters()]
    found = pipe.forward(ids)
    return max(wrong), [far(ours, other) for ours, other in zip(found, reference(ids).chunk(micro), strict=False)]


def transferred(cases: Any, shape: tuple[int, ...]) -> int:
    """How many transfers from one endpoint to another, some of them gathered, give every process its part."""
    whole = torch.arange(float(math.prod(shape))).view(shape)
    parts = sorted({(end.first_rank, end.mesh.shape) for case in cases for end in case[:2]})
    meshes = {key: _mesh(*key) for key in parts}
    return sum(_transferred(source, target, gathered, whole, meshes) for source, target, gathered in cases)


@functools.cache
def _mesh(first: int, shape: tuple[int, ...]) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(first, first + math.prod(shape)).view(shape))


def _transferred(source: Endpoint, target: Endpoint, gathered: bool, whole: Any, meshes: Any) -> bool:
    rank, shape = torch.distributed.get_rank(), tuple(whole.shape)
    grids = {
        end: ProcessGroups(SimpleNamespace(mesh=end.mesh), meshes[end.first_rank, end.mesh.shape], end.first_rank)
        for end in (source, target)
        if 0 <= rank - end.first_rank < end.mesh.size
    }
    if not grids:
        return True
    free = [axis for axis, p in enumerate(target.layout.placements) if not p.is_shard and target.mesh.shape[axis] > 1]
    gather = Collective("all_gather", tuple(free), Fraction(1))
    steps = (CollectiveStep(gather, 0, 0),) if gathered and free else ()
    groups = grids.get(target) or grids[source]
    transfer = SendReceive(source, target, shape, whole.dtype, steps, groups)
    got = transfer.run(shard_of_whole(whole, source.layout, grids[source]) if source in grids else None)
    wanted = shard_of_whole(whole, target.layout, grids[target]) if target in grids else None
    return (got is None) == (wanted is None) and (got is None or torch.equal(got, wanted))
