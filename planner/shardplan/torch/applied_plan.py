"""A plan applied to a model: its process groups, its engine, and the model's parameters in the plan's layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shardplan.errors import ShardplanError, error, warn
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.issue_order import issue_order
from shardplan.runtime.names import Named, Rename
from shardplan.torch.argument_types import check_model, check_plan
from shardplan.torch.execution import LocalExecution
from shardplan.torch.gradients.bucketing import BucketedWeights, Buckets
from shardplan.torch.microbatch_plan import fewest_rows, one_microbatch, with_rows
from shardplan.torch.optimizer_forms import take_pieces
from shardplan.torch.optimizers import watch_optimizers
from shardplan.torch.parameters.between_steps import keep_changes, refuse_lost_changes
from shardplan.torch.parameters.distribution import distribute, place_constants
from shardplan.torch.parameters.fresh_numbers import draw_whole
from shardplan.torch.parameters.interleaved_views import view_in_order
from shardplan.torch.parameters.naming import name_parameters, trained_and_unnamed, without_constants
from shardplan.torch.parameters.read_numbers import read_whole
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.result_losses import correct_losses, take_plain_tensors
from shardplan.torch.saved_tensors import saving

_ATTRIBUTE = "_shardplan"
_NO_GRADIENTS = (
    "the plan is for inference: what the model returns has no gradients. To train, make a plan with mode='training'; "
    "else call model.eval(), or the model under torch.no_grad()"
)
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Of inputs, by the plan's names."""


class AppliedPlan:
    """The state that `parallelize` stores at `model._shardplan`. `received_dims`: as in `batch_dims`.

    `named`: the parameters of the model that the plan has. For the current forward pass: `engine`, and `shapes`, the
    input shapes that it is for; `depth`, the nesting depth of calls of the model; `weights`; `planned`, planned tensors
    of parameters by the plan's names. `checked`: whether a forward pass has been compared with the plan; `gathered`:
    operations already reported as computed whole by every process; `left_alone`: trained parameters that the plan does
    not name, while it has not been looked whether the program reads them; `mode`: of a graph, whose modules
    train or do not.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        groups: ProcessGroups,
        *,
        named: Mapping[str, Named],
        strict: bool,
        received_dims: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.groups, self.strict = plan, groups, strict
        self.named, constants = without_constants(model, named)
        self.execution = LocalExecution(groups, plan.axis_links, issue_order(plan))
        self._micro = one_microbatch(plan, received_dims)
        self.buckets = Buckets.of(self._micro)
        self._constants = constants
        self.inputs = [tensor for tensor in self._micro.tensors if tensor.role == "input"]
        self._engines: dict[Shapes, Engine] = {self.planned_shapes: self._engine_of(self._micro)}
        self.engine, self.shapes = self._engines[self.planned_shapes], self.planned_shapes
        self.depth = 0
        self.weights: BucketedWeights | None = None
        self.planned: dict[str, Any] = {}
        self.checked = False
        self.gathered: set[str] = set()
        self.left_alone: Sequence[str] = ()
        self.is_compiled = self.is_warned = False
        self.mode: tuple[bool, ...] = ()
        self._hooks: contextlib.ExitStack | None = None
        keep_changes(groups.device_mesh)
        for once in (watch_optimizers, take_plain_tensors, draw_whole, read_whole, view_in_order, take_pieces):
            once()

    def __deepcopy__(self, memo: dict[int, Any]) -> AppliedPlan:
        """A copy of a model is under the same plan."""
        return self

    @property
    def planned_shapes(self) -> Shapes:
        """The shapes of the plan's inputs, of one microbatch."""
        return tuple((tensor.name, tensor.shape) for tensor in self.inputs)

    def take(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Inputs have these shapes, by the plan's names: sets `engine` to one for them. They are the plan's, or the
        plan's with fewer rows; with other shapes, values that depend on them need not be values of the plan."""
        self.shapes = tuple((name, shapes.get(name, shape)) for name, shape in self.planned_shapes)
        planned = dict(self.planned_shapes)
        changed = {name: shape for name, shape in self.shapes if shape != planned[name]}
        if self.shapes not in self._engines:
            has_rows = all(shape[1:] == planned[name][1:] and shape[:1] > (0,) for name, shape in changed.items())
            found = with_rows(self._micro, {name: shape[0] for name, shape in changed.items()}) if has_rows else None
            base = self._engines[self.planned_shapes]
            self._engines[self.shapes] = base if found is None else self._engine_of(found)
            self._engines[self.shapes].weight_of = base.weight_of
        self.engine = self._engines[self.shapes]
        is_sized = not changed or self.engine is not self._engines[self.planned_shapes]
        return is_sized and all(shape[0] <= planned[name][0] for name, shape in changed.items())

    def fewest_rows(self, decision: TensorDecision, changed: Iterable[TensorDecision]) -> int:
        """Of which number of rows a smaller batch of input `decision` is to have a multiple; `changed`: all inputs that
        have fewer rows then."""
        return fewest_rows(self._micro, decision.name, [each.name for each in changed])

    def _engine_of(self, plan: Plan) -> Engine:
        return Engine(self.buckets.without_bucketed_moves(plan), self.groups, self.execution, self._constants)

    @property
    def sent_plan(self) -> Plan:
        """The plan without moves of tensors that are constant in the program, for which nothing is sent."""
        known = self.engine.graph.keys
        return replace(self.plan, moves=tuple(move for move in self.plan.moves if move.tensor in known))

    @property
    def trains(self) -> bool:
        """Whether the plan has gradients; under a plan for inference nothing takes any."""
        return self.plan.model["mode"] == "training"

    def begin_forward(self, model: nn.Module) -> None:
        """From here on autograd saves what the plan saves, and compilation is off, except for the parts between moves.
        Forward passes that issue the same moves are of one kind."""
        refuse_lost_changes()
        correct_losses()  # each time: what ends (`loss_parallel`, `implicit_replication`) takes it away
        if model.training and torch.is_grad_enabled() and not (self.trains or self.is_warned):
            self.is_warned = True
            warn(_NO_GRADIENTS)
        grads, accumulator = self.trains and torch.is_grad_enabled(), self.execution.accumulator
        self.engine.is_running, self.engine.takes_gradients = True, grads
        kind = (model.training, self.mode, grads, accumulator.is_first, accumulator.is_last, self.shapes)
        self.execution.order.begin(kind, has_backward=grads)
        self.execution.begin(kind)
        self._hooks = contextlib.ExitStack()
        self._hooks.enter_context(saving(self.execution.pack, self.execution.unpack))
        if not self.is_compiled:
            self._hooks.enter_context(torch.compiler.set_stance("force_eager"))  # blocks may have been compiled

    def end_forward(self) -> None:
        """The forward pass has ended."""
        if self._hooks is not None:
            self._hooks.close()
        self._hooks, self.engine.is_running = None, False
        self.engine.returned.clear()
        self.execution.end()


def prepare(
    model: nn.Module, plan: Plan, mesh: DeviceMesh, *, rename: Rename | None, ignore: Iterable[str], strict: bool
) -> AppliedPlan:
    """All checks before the model is changed. Raises `ShardplanError` as `parallelize`."""
    check_model(model)
    check_plan(plan)
    refuse_parallel(model)
    if plan.pipeline is not None:
        summary = f"the plan is a pipeline of {len(plan.pipeline.stages)} stages"
        hint = "run it with shardplan.torch.pipeline(model, example_inputs, plan, mesh, loss=...)"
        raise ShardplanError(error("pipeline-plan", summary, hint=hint))
    groups = ProcessGroups(plan, mesh)
    left = trained_and_unnamed(model, plan, rename=rename, ignore=ignore) if strict else []
    named = name_parameters(model, plan, rename=rename, ignore=(*ignore, *left), strict=strict)
    applied = AppliedPlan(model, plan, groups, named=named, strict=strict)
    applied.left_alone = left
    return applied


def attach(model: nn.Module, applied: AppliedPlan) -> None:
    """Makes the parameters of `model` DTensors in the layouts in which the plan stores them, and stores the plan at the
    model."""
    distribute(model, applied.named, applied.groups)
    place_constants(model, applied.groups)
    remember(model, applied)


def remember(model: nn.Module, applied: AppliedPlan) -> None:
    """Stores the plan at the model for `applied_to(model)`."""
    object.__setattr__(model, _ATTRIBUTE, applied)


def applied_to(model: nn.Module) -> AppliedPlan:
    """The state that `parallelize` stored at `model`. Raises `ShardplanError` (`not-parallel`)."""
    found = getattr(model, _ATTRIBUTE, None)
    if found is None:
        hint = "call shardplan.torch.parallelize(model, plan, mesh) first"
        raise ShardplanError(error("not-parallel", "no plan has been applied to this model", hint=hint))
    return found  # type: ignore[no-any-return]


def is_parallel(model: nn.Module) -> bool:
    """Whether a plan has been applied to this model."""
    return hasattr(model, _ATTRIBUTE)


def refuse_parallel(model: nn.Module) -> None:
    """Raises `ShardplanError` (`already-parallel`) for a model that a plan has been applied to."""
    if is_parallel(model):
        hint = "apply a plan to a fresh model"
        raise ShardplanError(error("already-parallel", "a plan has been applied to this model already", hint=hint))


def run_eagerly(model: nn.Module, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
    """Calls `enter` before and `leave` after `model` runs, outside of `torch.compile`, which can trace neither
    collectives nor planned tensors."""
    stay_uncompiled(model)
    model.register_forward_pre_hook(torch.compiler.disable(enter), with_kwargs=True, prepend=True)
    model.register_forward_hook(torch.compiler.disable(leave), always_call=True)


def stay_uncompiled(model: nn.Module) -> None:
    """`torch.compile` leaves the model's `forward` as it is."""
    forward = model.forward
    if id(getattr(forward, "__self__", None)) == id(model):  # a copy of the model is to run itself
        model.forward = MethodType(torch.compiler.disable(forward.__func__), model)
    else:
        model.forward = torch.compiler.disable(forward)
