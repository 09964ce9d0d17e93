"""Pipelines at run time: torch's schedules over the stages of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.exported.program import argument_names
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.pipelines.stage import LocalStage
from shardplan.torch.pipelines.stage_meshes import StageMeshes
from shardplan.torch.pipelines.tied_weights import TiedWeight

Loss = Callable[[Any, Any], Tensor]


class Pipeline:
    """The stages of a model that this process runs, and the schedule over all stages. Made by `pipeline`.

    `modules`: a graph for each stage, its parameters DTensors on the mesh of the stage; `schedule`: torch's.
    """

    def __init__(
        self, plan: Plan, program: ExportedProgram, form: CallForm, stages: list[LocalStage], meshes: StageMeshes
    ) -> None:
        self.plan, self.stages = plan, stages
        self._program, self._form, self._meshes = program, form, meshes
        self._tied: Sequence[TiedWeight] = ()
        self._outputs: list[Any] = []
        self._loss: Loss | None = None
        self.schedule: Any = None

    @property
    def modules(self) -> tuple[fx.GraphModule, ...]:
        return tuple(stage.module for stage in self.stages)

    @property
    def is_last(self) -> bool:
        """Whether this process is one of those that compute the loss."""
        return self.stages[-1].nodes.sent is None

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

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> Tensor | None:
        """One step forward and backward over the whole batch, cut into the plan's microbatches along dim 0.

        `args`, `kwargs`: what the model is called with, and `target`, what the loss is given beside the model's
        result: whole on every process; of a model that returns its loss there is none. Gradients are the mean over
        microbatches. Gives the loss, the mean over microbatches, to the processes of the last stage, None to others.
        """
        if self._loss is None:
            hint = "give the loss to shardplan.torch.pipeline(..., loss=...)"
            raise ShardplanError(error("no-loss", "a pipeline without a loss cannot take a training step", hint=hint))
        losses: list[Tensor] = []
        self._begin()
        targets = torch.zeros(microbatches_of(self.plan)) if target is None else target
        given = {"target": targets, "losses": losses} if self.is_last else {}
        first, rest = self._given(args, kwargs)
        self.schedule.step(*first, **rest, **given, return_outputs=False)
        for weight in self._tied:
            weight.reduce()
        return _mean(losses) if self.is_last else None

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

        Raises `ShardplanError` (`wrong-inputs`)."""
        tensors = [value for value in self._form.leaves(args, kwargs) if isinstance(value, Tensor)]
        given = dict(zip(argument_names(self._program), tensors, strict=True))
        micro, device = microbatches_of(self.plan), self._meshes.device
        names = [name for stage in self.stages for name in stage.nodes.arguments]
        mine = {name: _with_rows(given[name], micro).to(device) for name in names}
        if self.stages[0].nodes.received is not None:
            return (), mine
        first = self.stages[0].nodes.arguments
        return tuple(mine[name] for name in first), mine if len(self.stages) > 1 else {}

    def computed(self, outputs: Any) -> Any:
        """What the model returns, of the local results of the last stage."""
        flat = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return pytree.tree_unflatten(self.stages[-1].global_outputs(flat), self._program.call_spec.out_spec)

    def run_under(self, loss: Loss | None, tied: Sequence[TiedWeight]) -> None:
        """Construct torch's stages and schedule."""
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

        from shardplan.torch.pipelines.sharded_stage import ShardedStage

        self._loss, self._tied = loss, tied
        last = self.stages[-1]
        if self.is_last:
            last.module.register_forward_hook(self._note)
        found = self.plan.pipeline
        assert found is not None
        scheduled = [ShardedStage(stage, found, self._meshes) for stage in self.stages]
        micro, count = microbatches_of(self.plan), len(found.stages)
        compute = self._computed_loss if loss is not None else None
        if found.schedule.startswith("interleaved"):
            self.schedule = ScheduleInterleaved1F1B(scheduled, micro, compute)
        elif found.schedule == "gpipe" or micro < count:
            self.schedule = ScheduleGPipe(scheduled[0], micro, compute)
        else:
            self.schedule = Schedule1F1B(scheduled[0], micro, compute)

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

        return self._loss(self.computed(outputs), pytree.tree_map(placed, target))


def _with_rows(tensor: Tensor, micro: int) -> Tensor:
    """A tensor that torch can cut into so many microbatches: one row for all of them becomes one for each."""
    return tensor.expand(micro, *tensor.shape[1:]) if tensor.shape[:1] == (1,) else tensor


def _mean(losses: list[Tensor]) -> Tensor:
    whole = [loss.full_tensor() if isinstance(loss, DTensor) else loss for loss in losses]
    return torch.stack([loss.detach() for loss in whole]).mean()
