"""A model under a plan: its parameters become DTensors, its forward pass runs on planned tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.layout.layout import Layout
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, Rename
from shardplan.torch.eager import Now, Planned, value_of
from shardplan.torch.engine import Engine, Record
from shardplan.torch.graph import Key
from shardplan.torch.grid import Grid
from shardplan.torch.microbatch import microbatches_of, one_microbatch
from shardplan.torch.naming import name_parameters
from shardplan.torch.parameters import distribute, enter_module, held_weights, leave_module, owner_of
from shardplan.torch.placements import to_layout, to_placements
from shardplan.torch.strictness import check_record
from shardplan.torch.together import Shared, Weights
from shardplan.torch.values import Value

_ATTRIBUTE = "_shardplan"


class Applied:
    """A plan on a model: what `parallelize` leaves behind at `model._shardplan`. `fed`: as in `batch_dims`."""

    def __init__(
        self, model: nn.Module, plan: Plan, grid: Grid, *, strict: bool, fed: Mapping[str, int] | None = None
    ) -> None:
        self.plan, self.grid, self.strict = plan, grid, strict
        self.now = Now(grid)
        micro = one_microbatch(plan, fed)
        self.shared = Shared.of(micro)
        self.engine = Engine(self.shared.seen_by(micro), grid, self.now)
        self.weights: Weights | None = None
        self.inputs = [tensor for tensor in micro.tensors if tensor.role == "input"]
        self.arguments = _argument_names(model)
        self.named: dict[str, Named] = {}
        self.depth = 0
        self.parameters: dict[str, Planned] = {}
        self.checked = False
        self._saving: contextlib.ExitStack | None = None

    @property
    def trains(self) -> bool:
        """Whether the plan has gradients; in one for inference nothing takes any."""
        return self.plan.model["mode"] == "training"

    def start_saving(self) -> None:
        """From here on autograd keeps what the plan keeps, and nothing is compiled."""
        self._saving = contextlib.ExitStack()
        self._saving.enter_context(torch.autograd.graph.saved_tensors_hooks(self.now.pack, self.now.unpack))
        self._saving.enter_context(torch.compiler.set_stance("force_eager"))  # blocks may have been compiled

    def stop_saving(self) -> None:
        """The forward pass has ended."""
        if self._saving is not None:
            self._saving.close()
        self._saving = None
        self.now.end()


def parallelize(
    model: nn.Module,
    plan: Plan,
    mesh: DeviceMesh,
    *,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> nn.Module:
    """Apply `plan` to `model` in place and return it. Parameters become DTensors; the model is called as before.

    Parameters are expected with equal values on all processes (each keeps its part; nothing is sent), or on the meta
    device, to be filled by `load_`. `rename`, `ignore`: as in `shardplan.runtime.names.match_names`. `strict`: refuse a
    model or a first forward pass that is not the plan's; without it the result is still right, and may send more.

    What the model returns are DTensors in the layouts of the plan's outputs.

    Raises `ShardplanError` as `match_names` and `Grid`, and `no-placement`, `not-tied`, `already-parallel`.
    """
    applied = prepare(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    attach(model, applied)
    _hook(model, applied)
    return model


def prepare(
    model: nn.Module, plan: Plan, mesh: DeviceMesh, *, rename: Rename | None, ignore: Iterable[str], strict: bool
) -> Applied:
    """Everything that can be refused before the model is touched. Raises `ShardplanError` as `parallelize`."""
    if is_parallel(model):
        hint = "apply a plan to a fresh model"
        raise ShardplanError(error("already-parallel", "a plan has been applied to this model already", hint=hint))
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages"
        hint = "run it with shardplan.torch.pipeline(model, example_inputs, plan, mesh, loss=...)"
        raise ShardplanError(error("pipeline-plan", summary, hint=hint))
    applied = Applied(model, plan, Grid(plan, mesh), strict=strict)
    applied.named = name_parameters(model, plan, rename=rename, ignore=ignore, strict=strict)
    return applied


def attach(model: nn.Module, applied: Applied) -> None:
    """Make the parameters of `model` DTensors in the layouts in which the plan keeps them."""
    distribute(model, applied)
    object.__setattr__(model, _ATTRIBUTE, applied)


def applied_to(model: nn.Module) -> Applied:
    """What `parallelize` left at `model`. Raises `ShardplanError` (`not-parallel`)."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        hint = "call shardplan.torch.parallelize(model, plan, mesh) first"
        raise ShardplanError(error("not-parallel", "no plan has been applied to this model", hint=hint))
    return found  # type: ignore[no-any-return]


def is_parallel(model: nn.Module) -> bool:
    """Whether a plan has been applied to this model."""
    return hasattr(model, _ATTRIBUTE)


def _hook(model: nn.Module, applied: Applied) -> None:
    """Every module finds its parameters as planned tensors while it runs; the outermost one turns its arguments into
    planned tensors and its results into DTensors."""
    owners: dict[nn.Module, list[tuple[str, str]]] = {}
    for name in applied.named:
        owner, attribute = owner_of(model, name)
        owners.setdefault(owner, []).append((attribute, name))
    for module, parameters in owners.items():
        module.register_forward_pre_hook(enter_module(applied, parameters))
        module.register_forward_hook(leave_module(parameters), always_call=True)
    run_eagerly(model, _enter(applied), _leave(applied))


def run_eagerly(model: nn.Module, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
    """Call `enter` before and `leave` after `model` runs, which `torch.compile` is made to leave alone: it cannot look
    into collectives, and planned tensors are not what they seem."""
    model.forward = torch.compiler.disable(model.forward)
    model.register_forward_pre_hook(torch.compiler.disable(enter), with_kwargs=True, prepend=True)
    model.register_forward_hook(torch.compiler.disable(leave), always_call=True)


def _enter(applied: Applied) -> Callable[..., Any]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        applied.depth += 1
        if applied.depth > 1:
            return None
        applied.engine.record = Record()
        applied.weights = Weights(applied.engine, applied.shared, held_weights(module, applied))
        applied.start_saving()
        return planned_arguments(applied, args, kwargs)

    return enter


def _leave(applied: Applied) -> Callable[..., Any]:
    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        applied.depth -= 1
        if applied.depth:
            return None
        applied.stop_saving()
        applied.parameters.clear()
        applied.weights = None
        if output is None:
            return None
        found = _left(applied, output)
        if applied.strict and not applied.checked:
            applied.checked = True
            check_record(applied.engine)
        return found

    return leave


def _argument_names(model: nn.Module) -> list[str]:
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]


def planned_arguments(applied: Applied, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Tensors among the arguments as planned tensors: by name those of the plan's inputs, else in its order."""
    names = [*applied.arguments[: len(args)], *kwargs]
    values = [*args, *kwargs.values()]
    tensors = [name for name, value in zip(names, values, strict=True) if isinstance(value, Tensor)]
    partner = match_inputs(tensors, applied.inputs)
    made = [
        _planned_input(applied, partner[name], value) if name in partner else value
        for name, value in zip(names, values, strict=True)
    ]
    return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))


def match_inputs(names: Sequence[str], inputs: Sequence[TensorDecision]) -> dict[str, TensorDecision]:
    """Argument -> input of the plan: by name, and what is left over in order.

    Raises `ShardplanError` (`wrong-inputs`) where there are fewer inputs than arguments.
    """
    by_name = {tensor.name: tensor for tensor in inputs}
    partner = {name: by_name[name] for name in names if name in by_name}
    rest = [tensor for tensor in inputs if tensor not in partner.values()]
    others = [name for name in names if name not in partner]
    if len(others) > len(rest):
        listed = ", ".join(by_name) or "none"
        summary = f"the model is called with the tensors {', '.join(names)}; the plan's inputs are {listed}"
        hint = did_you_mean(others[0], by_name) or "solve again for a model with these inputs"
        raise ShardplanError(error("wrong-inputs", summary, hint=hint))
    return partner | dict(zip(others, rest, strict=False))


def _planned_input(applied: Applied, decision: TensorDecision, tensor: Tensor) -> Planned:
    return Planned.of(input_part(applied, decision, tensor), applied.engine)


def input_part(applied: Applied, decision: TensorDecision, tensor: Tensor) -> Value:
    """A batch that every process has whole, or a DTensor, as the plan keeps the input.

    Raises `ShardplanError`: `wrong-shape`, `unknown-placement`.
    """
    engine, mesh = applied.engine, applied.grid.mesh
    shape = tuple(tensor.shape)
    if shape != decision.shape:
        raise ShardplanError(_wrong_shape(decision, shape, microbatches_of(applied.plan)))
    local, layout = tensor, Layout.replicated(len(mesh))
    if isinstance(tensor, DTensor):
        found = to_layout(tensor.placements, mesh, shape)
        if found is None:
            summary = f"input '{decision.name}' has placements {list(tensor.placements)}, which no plan can name"
            hint = "make it with shardplan.torch.inputs(plan, mesh, batch)"
            raise ShardplanError(error("unknown-placement", summary, hint=hint))
        local, layout = tensor.to_local(), found
    if local.device.type != "meta":
        local = local.to(applied.grid.device)
    key = Key(engine.graph.signatures.leaf("input", decision.name), shape)
    return engine.result(local, layout, shape, key)


def _wrong_shape(decision: TensorDecision, shape: tuple[int, ...], micro: int) -> Diagnostic:
    whose = "the plan is for" if micro == 1 else f"each of the plan's {micro} microbatches has"
    summary = f"input '{decision.name}' has shape {list(shape)}, {whose} {list(decision.shape)}"
    hint = "solve again for this shape, or pad the batch to the plan's"
    if micro > 1:
        hint = "cut the batch of a step: for part in shardplan.torch.microbatches(model, batch)"
    return error("wrong-shape", summary, hint=hint)


def _left(applied: Applied, output: Any) -> Any:
    """What the model returns, planned tensors as DTensors."""
    if isinstance(output, Planned):
        value = applied.engine.kept(value_of(output))
        return output_tensor(applied.engine, value.local, value.layout, value.shape, grad=value.grad)
    if isinstance(output, dict):
        made = {key: _left(applied, item) for key, item in output.items()}
        return type(output)(**made) if type(output) is not dict else made
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_left(applied, item) for item in output))
    if isinstance(output, (tuple, list)):
        return type(output)(_left(applied, item) for item in output)
    return output


def output_tensor(engine: Engine, local: Tensor, layout: Layout, shape: tuple[int, ...], *, grad: bool) -> DTensor:
    """A local part as the DTensor that a program gets; its gradient comes back as the plan's output takes it."""
    mesh = engine.grid.mesh
    placements = to_placements(layout, mesh)
    gradient = to_placements(layout.gradient, mesh) if grad else placements
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        local, engine.grid.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride,
        grad_placements=gradient,
    )  # fmt: skip
