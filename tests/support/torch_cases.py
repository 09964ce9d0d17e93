"""What ranks do in the tests of plans in torch."""

from __future__ import annotations

import contextlib
import io
import logging
import runpy
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch_twins
from tiny_models import Tiny
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch_steps import Descent, exported_once

import shardplan.torch
from shardplan.plan.types import Plan
from shardplan.torch.collectives.executor import Flight, MoveExecutor


@dataclass(frozen=True)
class Seen:
    """What one rank saw. Errors are the largest of absolute differences from one process; `differences`: key ->
    (predicted, actual) where they are not the same."""

    loss_error: float
    gradient_error: float
    forward_wire_bytes: int
    actual: Any
    differences: Any
    record: Any


def seen(losses: list[float], errors: list[float], model: nn.Module, comms: Any) -> Seen:
    """What a model has shown: `losses` and `errors` of gradients by step; `comms`: what was sent in the last one."""
    record = model._shardplan.engine.record
    return Seen(
        max(losses), max(errors), comms.wire_bytes("forward"), dict(comms.actual), dict(comms.differences),
        (dict(record.unplanned), dict(record.without_rule)),
    )  # fmt: skip


unprofiled = mock.patch("torch._dynamo.guards.profile_guard_manager", new=mock.Mock(return_value=0.0))
"""torch times every guard that it compiles, for a line of its log: it empties the processor's caches first."""

_MESHES: dict[Any, Any] = {}


def mesh_of(plan: Plan) -> Any:
    """The mesh of a plan; groups are made once."""
    if plan.mesh not in _MESHES:
        _MESHES[plan.mesh] = shardplan.torch.mesh(plan, "cpu")
    return _MESHES[plan.mesh]


def under(
    plan: Plan, tiny: Tiny, mode: str = "eager", *, fused: bool | str = False, strict: bool = True, backend: Any = None
) -> nn.Module:
    """A twin under `plan`, as a module or as a graph that is made for the rows of one microbatch."""
    model = torch_twins.twin(tiny, fused=fused)
    if mode != "exported":
        return shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=strict)
    ids = torch.tensor(tiny.inputs["input_ids"])
    batch = (ids[: len(ids) // int(plan.model.get("microbatches", 1))],)
    with exported_once(tiny.name, tiny.sizes, fused):
        return shardplan.torch.parallelize_exported(model, batch, plan, mesh_of(plan), strict=strict, backend=backend)


def train(
    tiny: Tiny, plan: Plan, mode: str = "eager", fused: bool | str = False, steps: int = 2, strict: bool = True,
    adam: bool = False,
) -> Seen:  # fmt: skip
    """Train a twin under `plan` and beside it the same in one process; what is sent in the last step is counted."""
    model, reference = under(plan, tiny, mode, fused=fused, strict=strict), torch_twins.twin(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    ours, theirs = (optimizer_of(m, adam=adam) for m in (model, reference))
    losses, errors = [], []
    for step in range(steps):
        if step:
            ours.step()
            theirs.step()
        comms, loss = _step(model, ours, ids, counted=step == steps - 1)
        expected = _loss(reference(ids), ids)
        theirs.zero_grad()
        expected.backward()
        losses.append(abs(loss.item() - expected.item()))
        errors.append(_gradient_error(model, reference))
    return seen(losses, errors, model, comms)


def without_gradients(tiny: Tiny, plan: Plan) -> float:
    """The largest difference of the logits from one process, in evaluation and where the biases are frozen."""
    errors, ids = [], torch.tensor(tiny.inputs["input_ids"])
    for frozen in (False, True):
        model, reference = torch_twins.twin(tiny), torch_twins.twin(tiny)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (frozen and name.endswith("bias")))
        shardplan.torch.parallelize(model, plan, mesh_of(plan))
        with contextlib.nullcontext() if frozen else torch.no_grad():
            logits = model(ids).full_tensor()
        errors.append((logits - reference(ids)).abs().max().item())
    return max(errors)


class _Products(TorchDispatchMode):
    """Tells `events` of matrix products."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm}:
            self.events.append("product")
        return func(*args, **(kwargs or {}))


def events_of_buckets(tiny: Tiny, plan: Plan, mode: str = "eager") -> list[str]:
    """What a backward pass does, in order: products, buckets that are sent, and buckets that are waited for."""
    model, ids = under(plan, tiny, mode), torch.tensor(tiny.inputs["input_ids"])
    logits, events = model(ids), []
    (gradient,) = torch.autograd.grad(_loss(logits.full_tensor(), ids), logits)
    start, wait = MoveExecutor.start, Flight.wait

    def sent(*args: Any, **kwargs: Any) -> Any:
        events.append("sent on" if isinstance(args[1], Flight) else "sent")
        return start(*args, **kwargs)

    def awaited(flight: Flight) -> Any:
        events.append("awaited")
        return wait(flight)

    with mock.patch.object(MoveExecutor, "start", sent), mock.patch.object(Flight, "wait", awaited), _Products(events):
        logits.backward(gradient)
    return events


def issues_of_gathers(tiny: Tiny, plan: Plan, mode: str) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Of the first forward pass, the second one and its backward: which moves are issued and waited for, in order."""
    model, ids = under(plan, tiny, mode), torch.tensor(tiny.inputs["input_ids"])
    events: list[tuple[str, tuple[int, ...]]] = []
    start, wait = MoveExecutor.start, Flight.wait

    def issued(*args: Any, way: str, **kwargs: Any) -> Flight:
        flight = start(*args, way=way, **kwargs)
        if way == "gather":
            events.append(("issue", flight.numbers))
        return flight

    def awaited(flight: Flight) -> Any:
        if ("issue", flight.numbers) in events:
            events.append(("wait", flight.numbers))
        return wait(flight)

    def taken() -> list[tuple[str, tuple[int, ...]]]:
        found = list(events)
        events.clear()
        return found

    with mock.patch.object(MoveExecutor, "start", issued), mock.patch.object(Flight, "wait", awaited):
        model(ids)
        first = taken()
        logits = model(ids)
        second = taken()
        logits.full_tensor().square().sum().backward()
        return [first, second, taken()]


def optimizer_of(model: Any, *, adam: bool = False) -> Any:
    """One of torch's, or the least that makes a second step differ from the first."""
    return torch.optim.AdamW(model.parameters(), 1e-3) if adam else Descent(model, 0.5)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, *, counted: bool) -> tuple[Any, Tensor]:
    """One step; the loss and its own gathering of the logits are not the plan's and not counted."""
    count = shardplan.torch.count_comms if counted else contextlib.nullcontext
    optimizer.zero_grad()
    with count(model) as comms:
        logits = model(ids)
    whole = logits.full_tensor()
    loss = _loss(whole, ids)
    (gradient,) = torch.autograd.grad(loss, logits)
    with count(model) as backward:
        logits.backward(gradient)
    if counted:
        comms.sent += backward.sent
    return comms, loss


def _loss(logits: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def _gradients(model: nn.Module, reference: nn.Module) -> Any:
    """Those of both, of weights that are kept in parts part by part."""
    for name, other in reference.named_parameters():
        path, _, attribute = name.rpartition(".")
        owner = model.get_submodule(path)
        if attribute in owner._parameters:
            yield owner.get_parameter(attribute).grad, other.grad
        else:
            parts = list(owner.parametrizations.get_submodule(attribute).parameters())
            if len(parts) > 1:
                dim = next(dim for dim, size in enumerate(other.shape) if size != parts[0].shape[dim])
                wanted = other.grad.split([part.shape[dim] for part in parts], dim)
            else:  # one of whose dims is two
                wanted = [other.grad.view(parts[0].shape)]
            yield from zip((part.grad for part in parts), wanted, strict=True)


def _gradient_error(model: nn.Module, reference: nn.Module) -> float:
    """The largest error of a gradient or a buffer."""
    return max(buffers_apart(model, reference), *(far(ours, other) for ours, other in _gradients(model, reference)))


def buffers_apart(model: nn.Module, reference: nn.Module) -> float:
    """How far the buffers of both are apart, those of a graph by their names in the model."""
    mine = dict(model.named_buffers())
    found = ((mine[name], other) for name, other in reference.named_buffers() if name in mine)
    whole = ((b.full_tensor() if isinstance(b, DTensor) else b, other) for b, other in found)
    return max((float((b.double() - other.double()).abs().max()) for b, other in whole), default=0.0)


def far(ours: DTensor, whole: Tensor) -> float:
    """How far what this rank holds is from what torch deals it of `whole`; nothing is sent."""
    wanted = distribute_tensor(whole.detach(), ours.device_mesh, ours.placements, src_data_rank=None)
    return float((ours.to_local() - wanted.to_local()).detach().abs().max())


def round_trip(layouts: Any, shape: tuple[int, ...], mesh: Any) -> list[tuple[str, str]]:
    """The layouts in which a DTensor made of each rank's part is not the whole tensor again, or not its own layout."""
    from torch.distributed.device_mesh import init_device_mesh

    from shardplan.layout.layout import Layout
    from shardplan.layout.lower import by_bytes, lower
    from shardplan.torch.collectives.steps import run_steps
    from shardplan.torch.placements import to_layout, wrap
    from shardplan.torch.process_groups import ProcessGroups

    class Holder:
        pass

    plan: Any = Holder()
    plan.mesh = mesh
    groups = ProcessGroups(plan, init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.names))
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    replicated = Layout.replicated(len(mesh))
    wrong = []
    for layout in layouts:
        steps = lower(mesh, replicated, layout, by_bytes(mesh))
        made = wrap(run_steps(whole, replicated, steps, shape, groups), layout, shape, groups)
        try:
            right = torch.equal(made.full_tensor(), whole)
        except RuntimeError:
            right = False
        if not right:
            wrong.append(("values", str(layout), str(made.placements)))
        if to_layout(made.placements, mesh, shape) != layout:
            wrong.append(("layout", str(layout), str(made.placements)))
    return wrong


def load(tiny: Tiny, plan: Plan, path: str) -> tuple[int, float, float]:
    """Fill a model made on the meta device: elements held by this rank, largest error of a weight, and of the loss."""
    model = torch_twins.twin(tiny, device="meta")
    model.transformer.mask = torch_twins.Gpt(tiny.sizes).transformer.mask
    mesh = mesh_of(plan)
    shardplan.torch.load_(model, plan, mesh, path)
    wrong = max(
        float((parameter.detach().full_tensor() - torch.tensor(tiny.weights[name])).abs().max())
        for name, parameter in model.named_parameters()
    )
    ids = torch.tensor(tiny.inputs["input_ids"])
    batch = shardplan.torch.inputs(plan, mesh, {"input_ids": ids})
    ours, theirs = (_loss(m, ids) for m in (model(**batch).full_tensor(), torch_twins.twin(tiny)(ids)))
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    return held, wrong, abs(float(ours) - float(theirs))


def refused(tiny: Tiny, plan: Plan, what: str) -> str:
    """What is said of a model, a mesh or a batch that is not the plan's."""
    from torch.distributed.device_mesh import init_device_mesh

    from shardplan.errors import ShardplanError

    model, mesh = torch_twins.twin(tiny), mesh_of(plan)
    ids = torch.tensor(tiny.inputs["input_ids"])
    try:
        match what:
            case "mesh":
                shardplan.torch.parallelize(model, plan, init_device_mesh("cpu", (4,), mesh_dim_names=("gpu",)))
            case "extra":
                model.unread, model.gain, run = nn.Linear(2, 2), nn.Parameter(torch.ones(())), model.lm_head.forward
                model.lm_head.forward = lambda x: (run(x) * (model.gain + 1), model.unread(x[..., :2].detach()))[0]
                shardplan.torch.parallelize(model, plan, mesh)(ids)
            case "missing":
                del model.transformer.ln_f.bias
                shardplan.torch.parallelize(model, plan, mesh)
            case "shape":
                model.lm_head = nn.Linear(tiny.sizes.hidden, 7, bias=False)
                shardplan.torch.parallelize(model, plan, mesh)
            case "twice":
                shardplan.torch.parallelize(shardplan.torch.parallelize(model, plan, mesh), plan, mesh)
            case "batch":
                shardplan.torch.parallelize(model, plan, mesh)(ids[:, :8])
            case "whole batch":
                shardplan.torch.parallelize(model, plan, mesh)(ids)
            case "targets":
                shardplan.torch.parallelize(model, plan, mesh)
                shardplan.torch.microbatches(model, {"input_ids": ids, "targets": ids[:6]})
            case "inputs":
                shardplan.torch.inputs(plan, mesh, {"input_idz": ids})
            case "another model":
                model.transformer.h[1].mlp.forward = torch.tanh
                shardplan.torch.parallelize(model, plan, mesh)(ids)
            case "unknown operation":
                shardplan.torch.parallelize(model, plan, mesh)
                model.transformer.ln_f.forward = lambda x: torch.renorm(x, 2.0, 0, 1.0)
                model(ids)
            case "own collective":
                shardplan.torch.parallelize(model, plan, mesh)
                model.transformer.ln_f.register_forward_pre_hook(lambda _, args: torch.distributed.all_reduce(args[0]))
                model(ids)
            case "inner backward":
                shardplan.torch.parallelize(model, plan, mesh)
                model.transformer.ln_f.register_forward_pre_hook(lambda _, args: args[0].sum().backward())
                model(ids)
            case "kept value":
                shardplan.torch.parallelize(model, plan, mesh)
                kept: list[Any] = []
                model.transformer.ln_f.register_forward_hook(lambda *given: kept.append(given[2]))
                (model(ids).mean() + kept[0].square().mean()).backward()
            case "not parallel":
                with shardplan.torch.count_comms(model):
                    pass
            case "meta":
                shardplan.torch.load_(torch_twins.twin(tiny, device="meta"), plan, mesh, ".")
    except ShardplanError as problem:
        return str(problem)
    return "nothing"


def later(tiny: Tiny, plan: Plan) -> list[str]:
    """What is warned of while a model computes something without a rule, from its second forward pass on."""
    model, ids = torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        model(ids)
        model.transformer.ln_f.forward = lambda x: torch.renorm(x, 2.0, 0, 1.0)
        for _ in range(2):
            model(ids)
    return [str(each.message) for each in said if "no rule" in str(each.message)]


def recompute(tiny: Tiny, plan: Plan) -> tuple[float, float]:
    """Train one step with every block recomputed in backward: errors of the loss and of the gradients."""
    from torch.utils.checkpoint import checkpoint

    model, reference = torch_twins.twin(tiny), torch_twins.twin(tiny)
    for block in model.transformer.h:
        block.forward = lambda x, mask, run=block.forward: checkpoint(run, x, mask, use_reentrant=False)
    return _one_step(tiny, plan, model, reference)


def in_other_steps(tiny: Tiny, plan: Plan) -> tuple[float, float]:
    """Train one step of a program that computes what two products are given in other steps than the plan, which allows
    no move that it has not: errors of the loss and of the gradients."""
    model, reference = torch_twins.twin(tiny), torch_twins.twin(tiny)
    for block in model.transformer.h:
        block.mlp.c_fc.register_forward_pre_hook(lambda _, given: (given[0] + 0 * given[0].softmax(-1),))
    return _one_step(tiny, plan, model, reference)


def _one_step(tiny: Tiny, plan: Plan, model: nn.Module, reference: nn.Module) -> tuple[float, float]:
    """Train one step of a model under a plan and of its twin: errors of the loss and of the gradients."""
    ids = torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    ours, theirs = _loss(model(ids).full_tensor(), ids), _loss(reference(ids), ids)
    ours.backward()
    theirs.backward()
    return abs(ours.item() - theirs.item()), _gradient_error(model, reference)


def infer(tiny: Tiny, plan: Plan) -> tuple[float, Any]:
    """Run without gradients: the largest error of a logit, and what was sent otherwise than planned."""
    model, reference = torch_twins.twin(tiny), torch_twins.twin(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    with torch.no_grad(), shardplan.torch.count_comms(model) as comms:
        logits = model(ids)
    return (logits.full_tensor() - reference(ids)).abs().max().item(), dict(comms.differences)


def forward(tiny: Tiny, plan: Plan) -> tuple[float, int, Any]:
    """The forward pass of a plan for training: the largest error of a logit, the bytes that one device sends, and what
    was sent otherwise than planned."""
    model, ids = under(plan, tiny), torch.tensor(tiny.inputs["input_ids"])
    with torch.no_grad(), shardplan.torch.count_comms(model) as comms:
        logits = model(ids)
    error = (logits.full_tensor() - torch_twins.twin(tiny)(ids)).abs().max().item()
    return (
        error,
        comms.wire_bytes("forward"),
        {key: pair for key, pair in comms.differences.items() if key[0] == "forward"},
    )


def accumulate(tiny: Tiny, plan: Plan, mode: str = "eager", steps: int = 2) -> Seen:
    """Train under a plan of several microbatches, and beside it one process with the whole batch."""
    model, reference = under(plan, tiny, mode), torch_twins.twin(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    ours, theirs = (optimizer_of(m) for m in (model, reference))
    batch = {"input_ids": ids, "targets": ids.roll(-1, 1)}
    losses, errors = [], []
    for step in range(steps):
        if step:
            ours.step()
            theirs.step()
        ours.zero_grad()
        theirs.zero_grad()
        total, sent = 0.0, []
        for part in (parts := shardplan.torch.microbatches(model, batch)):
            with shardplan.torch.count_comms(model) as comms:
                logits = model(part["input_ids"])
            whole, targets = logits.full_tensor(), part["targets"].full_tensor()
            loss = functional.cross_entropy(whole.flatten(0, 1), targets.flatten()) / len(parts)
            (gradient,) = torch.autograd.grad(loss, logits)
            with shardplan.torch.count_comms(model) as backward:
                logits.backward(gradient)
            total, sent = total + loss.item(), [*sent, *comms.sent, *backward.sent]
        comms.sent = sent
        expected = _loss(reference(ids), ids)
        expected.backward()
        losses.append(abs(total - expected.item()))
        errors.append(_gradient_error(model, reference))
    return seen(losses, errors, model, comms)


def dropping(tiny: Tiny, plan: Plan, mode: str) -> tuple[Tensor, list[float]]:
    """Train two steps with shares of attention dropped: the first logits and the losses, which all ranks see alike."""
    torch.manual_seed(3)
    model = under(plan, tiny, mode, fused="dropping")
    ids = torch.tensor(tiny.inputs["input_ids"])
    optimizer = optimizer_of(model)
    logits, losses = [], []
    torch.manual_seed(3)
    for _ in range(2):
        logits.append(model(ids).full_tensor())
        loss = _loss(logits[-1], ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return logits[0].detach(), losses


@unprofiled
def compiled(tiny: Tiny, plan: Plan, what: str) -> tuple[float, float, int]:
    """Train one step with the model, its blocks or its graph compiled: errors of the loss and of the gradients, and how
    often the compiler has given up to compile a function anew."""
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger("torch._dynamo.convert_frame").addHandler(handler)
    model, reference = under(plan, tiny, "exported" if what == "graph" else "eager"), torch_twins.twin(tiny)
    ids = torch.tensor(tiny.inputs["input_ids"])
    run = model
    if what == "blocks":
        for block in model.transformer.h:
            block.compile(backend="aot_eager")
    else:
        run = torch.compile(model, backend="aot_eager")
    ours, theirs = _loss(run(ids).full_tensor(), ids), _loss(reference(ids), ids)
    ours.backward()
    theirs.backward()
    logging.getLogger("torch._dynamo.convert_frame").removeHandler(handler)
    given_up = sum("recompile_limit" in record.getMessage() for record in said)
    return abs(ours.item() - theirs.item()), _gradient_error(model, reference), given_up


@unprofiled
def compiled_between_moves(tiny: Tiny, plan: Plan) -> tuple[float, float, list[Any], int]:
    """Two steps of the graph, as it is and with what stands between its moves compiled: the compiled one's errors of
    losses and of gradients, what each of both has sent, and how many parts torch has compiled."""
    parts: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        parts.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, examples)

    sent = []
    for given in (None, backend):
        reference, ids = torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])
        model = under(plan, tiny, "exported", backend=given)
        losses, gradients = [], []
        for counted in (False, True):  # nothing is compiled while sends are counted; what has been, runs
            with shardplan.torch.count_comms(model) if counted else contextlib.nullcontext() as comms:
                ours, theirs = _loss(model(ids).full_tensor(), ids), _loss(reference(ids), ids)
                ours.backward()
                theirs.backward()
            losses.append(abs(ours.item() - theirs.item()))
            gradients.append(_gradient_error(model, reference))
        sent.append(dict(comms.actual))
    return max(losses), max(gradients), sent, len(parts)


def script(path: str, *args: str) -> str:
    """What a script prints, run as `torchrun` would run it in this process, but for the group, which stays."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [path, *args])
        patch.syspath_prepend(str(Path(path).parent))
        patch.setattr(torch.distributed, "destroy_process_group", lambda: None)
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def script_in(folder: str, path: str) -> str:
    """`script` of a file in `folder`, which is the working directory meanwhile."""
    with contextlib.chdir(folder):
        return script(str(Path(folder) / path))


def gradients_apart(tiny: Tiny, *plans: Plan) -> float:
    """How far the gradients of one step under two plans are apart."""
    found = []
    for plan in plans:
        model, ids = torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])
        shardplan.torch.parallelize(model, plan, mesh_of(plan))
        _loss(model(ids).full_tensor(), ids).backward()
        found.append([parameter.grad.full_tensor() for parameter in model.parameters()])
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


def penalised(tiny: Tiny, plan: Plan) -> float:
    """One step of a model that also scales by a weight's own norm, which no plan knows of: the error of gradients."""
    models = torch_twins.twin(tiny), torch_twins.twin(tiny)
    for model in models:
        head, run = model.lm_head, model.lm_head.forward
        head.forward = lambda x, head=head, run=run: run(x) * head.weight.square().mean()
    ids = torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(models[0], plan, mesh_of(plan), strict=False)
    _loss(models[0](ids).full_tensor(), ids).backward()
    _loss(models[1](ids), ids).backward()
    return _gradient_error(*models)


def hooked(tiny: Tiny, plan: Plan) -> float:
    """One step of a model that halves the gradients of its weights while it runs: the error of gradients."""
    models = torch_twins.twin(tiny), torch_twins.twin(tiny)
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(_halves_gradients)
    ids = torch.tensor(tiny.inputs["input_ids"])
    shardplan.torch.parallelize(models[0], plan, mesh_of(plan))
    for model in models:
        logits = model(ids)
        _loss(logits.full_tensor() if isinstance(logits, DTensor) else logits, ids).backward()
    return _gradient_error(*models)


def _halves_gradients(module: nn.Linear, args: Any) -> None:
    del args
    for parameter in filter(lambda one: one is not None, (module.weight, module.bias)):
        parameter.register_hook(lambda gradient: gradient / 2)


def measured(tiny: Tiny, plan: Plan, mode: str, trace: str) -> Any:
    """Two measured steps beside the schedule."""
    model, ids = under(plan, tiny, mode), torch.tensor(tiny.inputs["input_ids"])
    found = shardplan.torch.compare_timeline(
        model, ids, loss=lambda logits: _loss(logits.full_tensor(), ids),
        optimizer=torch.optim.SGD(model.parameters(), 0.5), steps=2,
    )  # fmt: skip
    if torch.distributed.get_rank() == 0:
        found.write_trace(trace)
    return found
