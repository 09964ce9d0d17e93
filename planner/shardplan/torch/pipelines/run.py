"""Pipelines at run time: torch's schedules over the stages of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.exported.modes import Mode
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.pipelines.clipping import clip, total_norm
from shardplan.torch.pipelines.stage import LocalStage, keyword_of
from shardplan.torch.pipelines.stage_meshes import StageMeshes
from shardplan.torch.pipelines.tied_weights import TiedWeight
from shardplan.torch.placements import whole_of
from shardplan.torch.with_loss import needed_targets

Loss = Callable[..., Tensor]
"""Of what a model returns, and of a target if one is given."""


class Argument(NamedTuple):
    """A tensor that a program is called with: the plan's name of it, and its shape in one microbatch."""

    name: str
    shape: tuple[int, ...]


@dataclass
class WrittenPipeline:
    """What the stages of this process run in one `mode` of the model: a program with these `arguments` and results of
    this `spec`, cut into `stages`. `schedule`: torch's over them, once it has been
    asked for."""

    mode: Mode
    arguments: Mapping[str, Argument]
    spec: pytree.TreeSpec
    stages: Sequence[LocalStage]
    schedule: Any = None


class Modes(Protocol):
    """What writes the stages of this process in the modes of the model."""

    def local_stages(self) -> list[LocalStage]:
        """The stages."""

    def written(self, *, training: bool, was: bool) -> WrittenPipeline:
        """What they run after `train(training)`; `was`: whether the model trained before."""


class Pipeline:
    """The stages of a model that this process runs, and the schedule over all stages. Made by `pipeline`.

    `modules`: a graph for each stage, its parameters DTensors on the mesh of the stage; `schedule`: torch's, another
    one in training and in evaluation; `training`: as of a module, at first as the model was; `names`: all names in
    `state_dict()` of the model, each with the first name of the same tensor.
    """

    def __init__(self, model: nn.Module, plan: Plan, modes: Modes, form: CallForm, meshes: StageMeshes) -> None:
        self.plan, self.stages, self.training = plan, modes.local_stages(), model.training
        first: dict[int, str] = {}
        stored = model.state_dict(keep_vars=True)
        self.names = {name: first.setdefault(id(tensor), name) for name, tensor in stored.items()}
        self._modes, self._form, self._meshes = modes, form, meshes
        self._tied: Sequence[TiedWeight] = ()
        self._outputs: list[Any] = []
        self._loss: Loss | None = None
        self._has_target = False
        self.schedule: Any = None

    @property
    def modules(self) -> tuple[fx.GraphModule, ...]:
        return tuple(stage.module for stage in self.stages)

    @property
    def is_last(self) -> bool:
        """Whether this process is one of those that compute the loss."""
        return self.stages[-1].nodes.sent is None

    @property
    def device(self) -> torch.device:
        """Where this process keeps its tensors."""
        return self._meshes.device

    def first_rank(self, stage: int) -> int:
        """The first process of a stage."""
        return self._meshes.first_ranks[stage]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this process's stages under the model's names; tied ones once."""
        seen: set[int] = set()
        for module in self.modules:
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """The same without names: what the optimizer of this process updates."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers of this process's stages, as DTensors on their stages."""
        return {name: tensor for module in self.modules for name, tensor in module.state_dict().items()}

    def train(self, mode: bool = True) -> Pipeline:
        """Training or evaluation of all modules of the model, as of any module. All processes have to call it. What the
        stages run in a mode is written when that is first asked for.

        Raises `ShardplanError` as `pipeline`, and `fixed-mode`, on all processes.
        """
        self._take(self._modes.written(training=mode, was=self.training))
        self.training = mode
        for module in self.modules:
            nn.Module.train(module, mode)
        return self

    def eval(self) -> Pipeline:
        """`train(False)`."""
        return self.train(False)

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> Tensor | None:
        """One step forward and backward over the whole batch, cut into the plan's microbatches along dim 0.

        `args`, `kwargs`: what the model is called with, and `target`, what the loss is given beside the model's
        result: whole on every process; of a model that returns its loss there is none. Gradients are the mean over
        microbatches. Gives the loss, the mean over microbatches, to the processes of the last stage, None to others.

        Raises `ShardplanError` (`no-loss`, `missing-target`, `wrong-inputs`, `wrong-shape`), on all processes.
        """
        self._refuse_step(target)
        losses: list[Tensor] = []
        self._begin()
        self._has_target = target is not None
        targets = torch.zeros(microbatches_of(self.plan)) if target is None else target
        given = {"target": targets, "losses": losses} if self.is_last else {}
        first, rest = self._given(args, kwargs)
        self.schedule.step(*first, **rest, **given, return_outputs=False)
        for weight in self._tied:
            weight.reduce()
        return _mean(losses) if self.is_last else None

    def _refuse_step(self, target: Any) -> None:
        if self._loss is None:
            hint = "give the loss to shardplan.torch.pipeline(..., loss=...), or let the model return it alone"
            raise ShardplanError(error("no-loss", "a pipeline without a loss cannot take a training step", hint=hint))
        needed = needed_targets(self._loss)
        if target is None and needed:
            summary = f"the loss needs {needed[0]} beside what the model returns, and the step has no target"
            hint = "give all processes the target of the whole batch: step(..., target=...)"
            raise ShardplanError(error("missing-target", summary, hint=hint))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False) -> Tensor:
        """As `torch.nn.utils.clip_grad_norm_` of the whole model: the norm is that of the gradients of all stages, a
        weight of several of them once. All processes have to call it; all are given the norm, in double precision.

        `torch.nn.utils.clip_grad_norm_(pipeline.parameters(), ...)` would scale each stage by its own norm.

        Raises `RuntimeError` for a norm that is not finite, if `error_if_nonfinite`, and scales nothing.
        """
        copies = {id(weight) for tied in self._tied for weight in tied.copies()}
        trained = [(id(weight), weight.grad) for weight in self.parameters() if weight.grad is not None]
        norm = total_norm([grad for key, grad in trained if key not in copies], norm_type, self._meshes)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(f"the norm of order {norm_type} of all gradients is {norm.item()}: it cannot be clipped")
        clip((grad for _, grad in trained), max_norm, norm)
        return norm

    def forward(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run without gradients: what the model returns for each microbatch, on the last stage; elsewhere nothing."""
        self._begin()
        first, rest = self._given(args, kwargs)
        unused = {"target": torch.zeros(microbatches_of(self.plan))} if self.is_last and self._loss is not None else {}
        self.schedule.scale_grads = False  # it would scale what the last step has left, too
        try:
            with torch.no_grad():
                self.schedule.eval(*first, **rest, **unused, return_outputs=False)
        finally:
            self.schedule.scale_grads = True
        found, self._outputs = self._outputs, []
        return found

    def _begin(self) -> None:
        self._outputs = []
        for stage in self.stages:
            stage.begin()

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model is called with, as this process's stages take it: for the first stage by place.

        Raises `ShardplanError` (`wrong-inputs`, `wrong-shape`) on all processes, before anything is sent."""
        tensors = [value for value in self._form.leaves(args, kwargs) if isinstance(value, Tensor)]
        given = dict(zip(self._written.arguments, tensors, strict=True))
        self._refuse_other_shapes(given)
        micro, device = microbatches_of(self.plan), self._meshes.device
        names = [name for stage in self.stages for name in stage.nodes.arguments]
        mine = {keyword_of(name): _with_rows(given[name], micro).to(device) for name in names}
        if self.stages[0].nodes.received is not None:
            return (), mine
        first = self.stages[0].nodes.arguments
        return tuple(mine[keyword_of(name)] for name in first), mine if len(self.stages) > 1 else {}

    def _refuse_other_shapes(self, given: Mapping[str, Tensor]) -> None:
        micro = microbatches_of(self.plan)
        planned = self.plan.pipeline.stages if self.plan.pipeline is not None else ()
        of_all = {each.name for stage in planned for each in stage.plan.tensors if each.shape[:1] == (1,)}
        for name, tensor in given.items():
            told, one = self._written.arguments[name]
            wanted = (one[0] * micro, *one[1:]) if one and told not in of_all else one
            if tuple(tensor.shape) != wanted:
                parts = f", {micro} microbatches of {list(one)}" if micro > 1 else ""
                summary = f"'{told}' has shape {list(tensor.shape)}, the pipeline is for {list(wanted)}{parts}"
                hint = "give all processes the whole batch of a step: pad a smaller one, or solve again for its size"
                raise ShardplanError(error("wrong-shape", summary, hint=hint))

    def computed(self, outputs: Any) -> Any:
        """What the model returns, of the local results of the last stage."""
        flat = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return pytree.tree_unflatten(self.stages[-1].global_outputs(flat), self._written.spec)

    def run_under(self, loss: Loss | None, tied: Sequence[TiedWeight]) -> None:
        """Construct torch's stages and schedule."""
        self._loss, self._tied = loss, tied
        if self.is_last:
            self.stages[-1].module.register_forward_hook(self._note)
        self.train(self.training)

    def _take(self, written: WrittenPipeline) -> None:
        """The stages run what was `written`."""
        self._written = written
        for stage, other in zip(self.stages, written.stages, strict=True):
            stage.take(other)
            stage.applied.mode = written.mode
        written.schedule = self.schedule = written.schedule or self._scheduled()

    def _scheduled(self) -> Any:
        """Torch's schedule over what the stages run now."""
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

        from shardplan.torch.pipelines.sharded_stage import ShardedStage

        found = self.plan.pipeline
        assert found is not None
        scheduled = [ShardedStage(stage, found, self._meshes) for stage in self.stages]
        micro, count = microbatches_of(self.plan), len(found.stages)
        compute = self._computed_loss if self._loss is not None else None
        if found.schedule.startswith("interleaved"):
            return ScheduleInterleaved1F1B(scheduled, micro, compute)
        is_gpipe = found.schedule == "gpipe" or micro < count
        return (ScheduleGPipe if is_gpipe else Schedule1F1B)(scheduled[0], micro, compute)

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        if not torch.is_grad_enabled():
            self._outputs.append(self.computed(output))

    def _computed_loss(self, outputs: Any, target: Any) -> Tensor:
        if self._loss is None or not torch.is_grad_enabled():
            return torch.zeros(())  # torch's schedule asks for a loss where nobody wants one
        mesh = self._meshes.own

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, DTensor):
                return value
            return DTensor.from_local(value.to(self._meshes.device), mesh, [Replicate()] * mesh.ndim, run_check=False)

        return self._loss(self.computed(outputs), *([pytree.tree_map(placed, target)] if self._has_target else []))


def _with_rows(tensor: Tensor, micro: int) -> Tensor:
    """A tensor that torch can cut into so many microbatches: one row for all of them becomes one for each."""
    return tensor.expand(micro, *tensor.shape[1:]) if tensor.shape[:1] == (1,) else tensor


def _mean(losses: list[Tensor]) -> Tensor:
    whole = [whole_of(loss) for loss in losses]
    return torch.stack([loss.detach() for loss in whole]).mean()
