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
from safetensors.torch import load_file
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


class Judged(Mlp):
    """The same, which returns its loss among other results."""

    def forward(self, x: Any, target: Any) -> dict[str, Any]:
        """The loss, and how large the last layer's result is in each row."""
        made = super().forward(x)
        return {"size": made.detach().abs().sum(-1), "loss": functional.mse_loss(made, target)}


def train_with_loss(plan: Plan) -> tuple[float, float, str]:
    """Errors of the loss and of gradients under a plan that has the loss, by `with_loss` and of a model that returns
    it, and what is said of the model without it."""
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
    judged = shardplan.torch.pipeline(Judged(), example, plan, mesh_of(plan), strict=False)
    again = judged.step(x, target)
    assert got is None or torch.allclose(again, got)
    gradients += [far(p.grad, others[name].grad) for name, p in judged.named_parameters()]
    try:
        shardplan.torch.pipeline(Mlp(), example[:1], plan, mesh_of(plan), loss=functional.mse_loss)
    except ShardplanError as problem:
        said = str(problem)
    return 0.0 if got is None else abs(got.item() - expected.item()), max(gradients), said


class Remembering(torch.nn.Sequential):
    """Layers that count how often they are trained, by what no weight is needed for, and keep the mean of their last
    result."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(16))

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        made = super().forward(x)
        if self.training:
            self.calls += 1
            self.last = made.detach().mean(0)
        return made


class Moody(torch.nn.Module):
    """Layers that are evaluated otherwise than trained: other statistics, nothing dropped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds = torch.nn.BatchNorm1d, torch.nn.Dropout, torch.nn.Linear
        self.layers = torch.nn.ModuleList(
            Remembering(kinds[0](16, momentum=None), kinds[2](16, 32), torch.nn.GELU(), kinds[1](0.5), kinds[2](32, 16))
            for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        for layer in self.layers:
            x = x + layer(x)
        return x


def in_both_modes(plan: Plan) -> tuple[list[float], list[bool], str]:
    """How far a pipeline is from one process in evaluation, before training steps and between them (in which nothing is
    dropped); what has to be so of its modes; what is said of the mode of one stage."""
    model, reference, x = Moody(), Moody(), torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) * 3 + 1
    for module in (*model.modules(), *reference.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    pipe = shardplan.torch.pipeline(model.eval(), (x[:8],), plan, mesh_of(plan), loss=functional.mse_loss, strict=False)
    errors, so, first = [0.0], [not pipe.training], pipe.schedule
    for _ in range(2):
        errors += _evaluated(pipe.eval(), reference.eval(), x, 2)
        so += [not any(module.training for module in pipe.modules), pipe.schedule is first]
        pipe.train().step(x, target=x)
        for part in x.chunk(2):
            reference.train()(part)
        so += [pipe.training, all(module.training for module in pipe.modules), pipe.schedule is not first]
        state = shardplan.torch.full_state_dict(pipe)
        errors += [float((state[name] - buffer).abs().max()) for name, buffer in reference.named_buffers()]
    so.append(not any(module.calls for module in model.layers))  # the pipeline has buffers of its own
    return errors, so, told(pipe.modules[0].eval)


def clipped(tiny: Tiny, plan: Plan, norm_type: float) -> tuple[list[float], list[float]]:
    """Two steps whose gradients are clipped: how far norms, gradients and new weights are from one process, and the sum
    of the weight that several stages have."""
    model, reference, ids = torch_twins.twin(tiny), torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])
    example = (ids[: len(ids) // int(plan.model["microbatches"])],)
    with exported_once(tiny.name, tiny.sizes, 0.0):
        pipe = shardplan.torch.pipeline(model, example, plan, mesh_of(plan), loss=loss)
    others, errors = dict(reference.named_parameters(remove_duplicate=False)), list[float]()
    own, other = (torch.optim.SGD(each.parameters(), 1.0) for each in (pipe, reference))
    for _ in range(2):
        own.zero_grad()
        other.zero_grad()
        pipe.step(ids, target=ids)
        _loss(reference(ids), ids).backward()
        norm = pipe.clip_grad_norm_(0.01, norm_type)
        errors.append(abs(norm.item() - torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01, norm_type).item()))
        errors += [far(p.grad, others[name].grad) for name, p in pipe.named_parameters()]
        own.step()
        other.step()
        errors += [far(p, others[name]) for name, p in pipe.named_parameters()]
    tied = {"transformer.wte.weight", "lm_head.weight"}
    return errors, [p.full_tensor().sum().item() for name, p in pipe.named_parameters() if name in tied]


def kept(tiny: Tiny, plan: Plan, folder: str) -> tuple[list[float], list[bool]]:
    """After a training step: how far what is saved in every way is from one process, and how far two steps under what
    is loaded are from those without an end between; what has to be so of names."""
    reference, ids = torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])

    def made() -> tuple[Any, Any]:
        example = (ids[: len(ids) // int(plan.model["microbatches"])],)
        with exported_once(tiny.name, tiny.sizes, 0.0):
            pipe = shardplan.torch.pipeline(torch_twins.twin(tiny), example, plan, mesh_of(plan), loss=loss)
        return pipe, torch.optim.SGD(pipe.parameters(), 0.1, 0.9)

    def trained(pipe: Any, optimizer: Any) -> float:
        optimizer.zero_grad()
        got = pipe.step(ids, target=ids)
        optimizer.step()
        return 0.0 if got is None else float(got)

    pipe, optimizer = made()
    trained(pipe, optimizer)
    descent = torch.optim.SGD(reference.parameters(), 0.1, 0.9)
    _loss(reference(ids), ids).backward()
    descent.step()
    wanted, rank = reference.state_dict(), torch.distributed.get_rank()
    shardplan.torch.save_checkpoint(f"{folder}/distributed", pipe, optimizer)
    shardplan.torch.save(pipe, f"{folder}/whole.safetensors")
    found, of_first = shardplan.torch.full_state_dict(pipe), shardplan.torch.full_state_dict(pipe, rank=1)
    read = load_file(f"{folder}/whole.safetensors")
    so = [list(found) == list(wanted), (of_first.keys() == wanted.keys()) == (rank == 1), of_first == {} or rank == 1]
    once = {id(tensor) for tensor in found.values()}
    so.append(len(read) == len(once) == len({tensor.data_ptr() for tensor in wanted.values()}))
    errors = [float((state[name] - wanted[name]).abs().max()) for state in (found, of_first, read) for name in state]
    before = [trained(pipe, optimizer) for _ in range(2)]
    again, other = made()
    other.param_groups[0]["lr"] = 1.0
    shardplan.torch.load_checkpoint(f"{folder}/distributed", again, other)
    errors += [abs(trained(again, other) - each) for each in before]
    return errors, so


class Aside(Mlp):
    """One that has a bias which takes no gradient, though it is trained."""

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        hidden = torch.relu(x @ self.w1 + self.b1.detach()) @ self.w2 + self.b2
        return torch.relu(hidden @ self.w3 + self.b3) @ self.w4 + self.b4


def kept_aside(plan: Plan, folder: str) -> tuple[list[float], list[bool], list[str]]:
    """Of a pipeline with a trained weight that gets no gradient, how far two steps under what is loaded are from those
    without an end between; whether it has no state then; what is said of what cannot be loaded."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))

    def made() -> tuple[Any, Any]:
        pipe = shardplan.torch.pipeline(
            Aside(), (x[:32],), plan, mesh_of(plan), loss=lambda y: y.square().mean(), strict=False
        )
        return pipe, torch.optim.AdamW(pipe.parameters(), 0.1)

    def trained(pipe: Any, optimizer: Any) -> Any:
        optimizer.zero_grad()
        pipe.step(x)
        optimizer.step()
        return [weight.full_tensor().detach() for weight in pipe.parameters()]

    (pipe, optimizer), (again, other) = made(), made()
    trained(pipe, optimizer)
    shardplan.torch.save_checkpoint(f"{folder}/all", pipe, optimizer)
    shardplan.torch.save_checkpoint(f"{folder}/weights", pipe)
    said = [
        told(lambda: shardplan.torch.load_checkpoint(f"{folder}/weights", again, other)),
        told(
            lambda: shardplan.torch.load_checkpoint(
                f"{folder}/all", again, torch.optim.SGD(again.parameters(), 0.1, 0.9)
            )
        ),
        told(lambda: shardplan.torch.save_checkpoint(f"{folder}/none", again, torch.optim.SGD([torch.ones(2)], 0.1))),
    ]
    shardplan.torch.load_checkpoint(f"{folder}/all", again, other)
    errors = [
        float((one - two).abs().max())
        for _ in range(2)
        for one, two in zip(trained(pipe, optimizer), trained(again, other), strict=True)
    ]
    so = [bool(other.state.get(weight)) == (name != "b1") for name, weight in again.named_parameters()]
    return errors, so, [each.replace(folder, "FOLDER") for each in said]


def told(call: Any) -> str:
    """What a call is refused with."""
    from shardplan.errors import ShardplanError

    try:
        call()
    except ShardplanError as problem:
        return str(problem)
    return "nothing"


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


class Scaled(Mlp):
    """One whose first value is scaled by what came last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        made = super().forward(x * self.scale)
        self.scale.copy_(made.detach().mean())
        return made


MODELS = {"skips": Skipping, "common buffer": Scaled}


def refused(plan: Plan, what: str) -> str:
    """What is said of a model or a call that does not fit a pipeline."""
    from shardplan.errors import ShardplanError

    model, x = MODELS.get(what, Mlp)(), torch.zeros(64, 6)
    try:
        if what == "parallelize":
            shardplan.torch.parallelize(model, plan, mesh_of(plan))
        if what == "inputs":
            shardplan.torch.inputs(plan, mesh_of(plan), {"x": x})
        if what == "loader":
            shardplan.torch.data_loader(plan, mesh_of(plan), [{"x": row} for row in x])
        example = {"whole example": (x,), "wide example": x[:32, :5], "narrow example": {"x": x[:32, :3]}}
        if what in example:  # Mlp would not take them either
            model.forward = lambda x: (x.sum() * model.w1).sum() + x  # type: ignore[method-assign]
        wanted = functional.mse_loss if "batch" in what else None
        pipe = shardplan.torch.pipeline(model, example.get(what, [x[:32]]), plan, mesh_of(plan), loss=wanted)
        if "small" in what:
            pipe.forward(x[:32]) if "forward" in what else pipe.step(x[:32], target=x[:32])
        pipe.step(x)
    except ShardplanError as problem:
        return str(problem)
    return "nothing"


def without_target(plan: Plan) -> list[str]:
    """What is said of steps without the target that the plan has, and with it where a loss outside takes it."""
    x, whole = torch.zeros(64, 6), shardplan.torch.with_loss(Mlp(), functional.mse_loss)
    pipe = shardplan.torch.pipeline(whole, {"x": x[:32], "target": torch.zeros(32, 14)}, plan, mesh_of(plan))
    other = shardplan.torch.pipeline(
        shardplan.torch.with_loss(Mlp(), functional.mse_loss), (x[:32], torch.zeros(32, 14)), plan, mesh_of(plan)
    )
    return [told(lambda: pipe.step(x=x)), told(lambda: other.step(x)), told(other.step)]


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
