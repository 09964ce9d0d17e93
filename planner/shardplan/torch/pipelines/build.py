"""Plans with pipeline stages on models: the exported program is cut, every piece runs under the plan of its stage."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.plan.types import Pipeline as PlannedPipeline
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, Rename
from shardplan.torch.applied_plan import AppliedPlan, refuse_parallel
from shardplan.torch.argument_paths import Inputs, called_with
from shardplan.torch.arguments import match_inputs
from shardplan.torch.exported.call_form import CallForm
from shardplan.torch.exported.modes import Mode, UnweightedModel, root_for
from shardplan.torch.exported.program import (
    argument_names,
    export_program,
    parameter_tree,
    shapes_of_arguments,
    user_outputs,
)
from shardplan.torch.microbatch_plan import batch_dims, microbatches_of, one_microbatch
from shardplan.torch.parameters.distribution import distribute
from shardplan.torch.parameters.gradient_hooks import refuse_hooks_of_several
from shardplan.torch.parameters.naming import name_parameters
from shardplan.torch.pipelines.cut import Boundary, StageNodes, cut
from shardplan.torch.pipelines.run import Argument, Loss, Pipeline, WrittenPipeline
from shardplan.torch.pipelines.stage import LocalStage, matching_value, run_stage, write_stage
from shardplan.torch.pipelines.stage_meshes import StageMeshes, stage_meshes
from shardplan.torch.pipelines.tied_weights import tied_weights
from shardplan.torch.process_groups import ProcessGroups, refuse_together
from shardplan.torch.with_loss import WithLoss, planned_name


def pipeline(
    model: nn.Module,
    example_inputs: Inputs,
    plan: Plan,
    mesh: DeviceMesh,
    *,
    loss: Loss | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> Pipeline:
    """The pieces of `model` that this process runs under a plan with stages.

    `torch.export` writes the model as a graph, with the shapes of `example_inputs`, which are those of one microbatch;
    a tuple, one tensor, or a mapping of names to them.
    It is cut where the plan ends its stages. `loss`: called on the last stage with what the model returns (DTensors)
    and a target, for each microbatch; the mean over its samples. A plan that was made with a loss takes
    `with_loss(model, loss)` as the model, with the targets among `example_inputs`, and no `loss` here; nor does a model
    need one that returns its loss, the only number in its result. `mesh`,
    `rename`, `ignore`, `strict`: as in `parallelize_exported`. The model itself stays as it is; build it on the meta
    device where it does not fit.

    Raises `ShardplanError` as `parallelize_exported`, on all processes, and `no-stages`, `cannot-cut`,
    `uneven-rounds`, `unused-input`.
    """
    stages = _check(model, plan)
    ProcessGroups(plan, mesh)
    args, kwargs = called_with(example_inputs, example_kwargs)
    build = _Build(model, stages, stage_meshes(stages, mesh), strict=strict)
    build.program, unweighted = export_program(model, args, kwargs), UnweightedModel.of(model, args, kwargs)
    _refuse_unused_inputs(build, loss)
    build.refuse_other_shapes()
    every = name_parameters(model, _union(plan, stages), rename=rename, ignore=ignore, strict=strict)
    kept = _only({planned_name(model, name) for name in every}, rename)
    build.named = [
        name_parameters(model, stage.plan, rename=kept, ignore=("*",), strict=False) for stage in stages.stages
    ]
    refuse_hooks_of_several(model, build.stages_by_weight())
    modes = PipelineModes(unweighted, build)
    made = Pipeline(model, plan, modes, CallForm.of(model, args, kwargs), build.meshes)
    made.run_under(loss or _own_loss(model, plan, build.program), tied_weights(stages, build.named, made.stages))
    return made


def _own_loss(model: nn.Module, plan: Plan, program: ExportedProgram) -> Loss | None:
    """The loss of a model that returns it: all of its result, or the only number in it."""
    if isinstance(model, WithLoss):
        return _returned
    results = [node.meta.get("val") for node in user_outputs(program) if isinstance(node, fx.Node)]
    has_one = sum(map(_is_number, results)) == 1
    return _number_of if has_one and plan.model["mode"] == "training" else None


def _returned(result: Any) -> Any:
    return result


def _number_of(result: Any) -> Any:
    return next(filter(_is_number, pytree.tree_leaves(result)))


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim() and value.is_floating_point()


def _refuse_unused_inputs(build: _Build, loss: Loss | None) -> None:
    """A plan that was made with a loss has its targets as inputs."""
    inputs = build.own_inputs()
    unused = sorted(inputs.keys() - {each.name for each in build.partners().values()})
    if unused and build.strict and loss is not None:
        summary = f"the plan has the input '{unused[0]}', which the model does not take"
        hint = (
            "a plan made with loss= is for both: pipeline(shardplan.torch.with_loss(model, loss), example_inputs, plan,"
            " mesh), with the targets among the inputs, and step(*inputs)"
        )
        raise ShardplanError(error("unused-input", summary, hint=hint))


class PipelineModes:
    """The stages of this process in the modes of the model that were asked for."""

    def __init__(self, unweighted: UnweightedModel, build: _Build) -> None:
        """`build`: of the model as it is now."""
        self._unweighted = unweighted
        self._later = replace(build, model=unweighted.model or nn.Module())  # without the weights of other stages
        self._later.named = build.named
        self._stages = build.local_stages()
        for stage in self._stages:
            run_stage(stage)
        self._written = {unweighted.mode: _written(unweighted.mode, build, map(copy.copy, self._stages))}

    def local_stages(self) -> list[LocalStage]:
        """The stages, which run what was last `written`."""
        return self._stages

    def written(self, *, training: bool, was: bool) -> WrittenPipeline:
        """That of the model after `train(training)`; `was`: whether it trained before."""
        model, mode = self._unweighted.in_mode(training=training, was=was), self._unweighted.mode
        if mode not in self._written:
            self._later.program = export_program(model, self._unweighted.args, self._unweighted.kwargs)
            self._written[mode] = _written(mode, self._later, self._later.local_stages(self._stages))
            del self._later.program
        return self._written[mode]


def _written(mode: Mode, build: _Build, stages: Iterable[LocalStage]) -> WrittenPipeline:
    planned = {name: decision.name for name, decision in build.partners().items()}
    shapes = shapes_of_arguments(build.program)
    arguments = {name: Argument(planned.get(name, name), shape) for name, shape in shapes.items()}
    return WrittenPipeline(mode, arguments, build.program.call_spec.out_spec, list(stages))


@dataclass
class _Build:
    """A pipeline under construction. `named`: by stage, the parameters of the model that it has."""

    model: nn.Module
    stages: PlannedPipeline
    meshes: StageMeshes
    strict: bool
    program: ExportedProgram = field(init=False)
    named: list[dict[str, Named]] = field(init=False)

    def local_stages(self, before: Sequence[LocalStage] = ()) -> list[LocalStage]:
        """The stages of this process; `before`: the same in another mode, whose tensors they have. An error in any
        stage is raised by all processes, so that none waits."""
        received = _received_dims(self.stages)

        def choose(number: int, nodes: StageNodes, values: Sequence[fx.Node]) -> fx.Node:
            anywhere = ProcessGroups.elsewhere(self.stages.stages[number].plan, self.meshes.own)
            piece, root = self._prepared(number, received[number], nodes, anywhere), parameter_tree(self.model)
            wanted = self.stages.handed[number].tensor
            return matching_value(values, wanted, piece, self.program, root, self.partners(), self._arriving(number))

        homes = {name: number for number, names in reversed([*enumerate(self.named)]) for name in names}
        nodes = cut(self.program, self.stages_by_weight(), _boundaries(self.stages, received), choose, homes)
        local_stages: list[LocalStage] = []
        faults: Sequence[Diagnostic] = ()
        try:
            local_stages = [
                self._stage(number, received[number], nodes[number], before) for number in self.meshes.stage_numbers
            ]
        except ShardplanError as problem:
            faults = problem.diagnostics
        refuse_together(faults)
        return local_stages

    def stages_by_weight(self) -> dict[str, list[int]]:
        """The stages that have a weight, by all its names; small buffers belong to all stages."""
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        found: dict[str, list[int]] = {}
        for number, names in enumerate(self.named):
            for name, entry in names.items():
                if name in parameters or math.prod(entry.shape) > _BUFFER_ELEMENTS:
                    found.setdefault(name, []).append(number)
        return found

    def _stage(
        self, number: int, received: Mapping[str, int], nodes: StageNodes, before: Sequence[LocalStage]
    ) -> LocalStage:
        same = next((stage for stage in before if stage.number == number), None)
        if same is None:
            piece = self._prepared(number, received, nodes, self.meshes.groups(self.stages.stages[number]))
            root = parameter_tree(
                self.model, without={name for names in self.named for name in names} - set(self.named[number])
            )
            distribute(root, piece.applied.named, piece.applied.groups)
            _own_buffers(root, piece.applied.groups.device)
        else:
            piece, root = LocalStage(number, nodes, same.applied), root_for(same.module, same.root)
        leaving = self.stages.handed[number].source if number < len(self.stages.handed) else None
        write_stage(piece, self.program, root, self.partners(), self._arriving(number), leaving)
        return piece

    def _prepared(
        self, number: int, received: Mapping[str, int], nodes: StageNodes, groups: ProcessGroups
    ) -> LocalStage:
        applied = AppliedPlan(
            self.model, self.stages.stages[number].plan, groups,
            named=self.named[number], strict=self.strict, received_dims=received,
        )  # fmt: skip
        return LocalStage(number, nodes, applied)

    def _arriving(self, number: int) -> tuple[str, Layout] | None:
        """The tensor that a stage receives, and the layout in which it arrives."""
        before = self.stages.handed[number - 1] if number else None
        return (before.tensor, before.target) if before else None

    def partners(self) -> dict[str, TensorDecision]:
        """The arguments of the program and the model's inputs that they are."""
        return match_inputs(argument_names(self.program), list(self.own_inputs().values()))

    def refuse_other_shapes(self) -> None:
        """Raises `ShardplanError` (`wrong-shape`) if the program is of other inputs than those of one microbatch."""
        micro = microbatches_of(self.stages.stages[0].plan)
        shapes = _shapes(self.stages, _received_dims(self.stages))
        planned = {name: shape for of_stage in reversed(shapes) for name, shape in of_stage.items()}
        given = shapes_of_arguments(self.program)
        for argument, decision in self.partners().items():
            wanted, found = planned[decision.name], given[argument]
            if found != wanted:
                whose = "the plan" if micro == 1 else f"each of the plan's {micro} microbatches"
                summary = f"'{decision.name}' of example_inputs has shape {list(found)}, {whose} has {list(wanted)}"
                hint = (
                    f"give one microbatch as example_inputs, {decision.name}[:{wanted[0]}], and the whole batch to step"
                )
                is_whole = micro > 1 and found == decision.shape
                hint = hint if is_whole else "solve again for a batch of such inputs, or give others"
                raise ShardplanError(error("wrong-shape", summary, hint=hint))

    def own_inputs(self) -> dict[str, TensorDecision]:
        """The model's inputs in the plan, by name."""
        handed = {transfer.tensor for transfer in self.stages.handed}
        tensors = [tensor for stage in self.stages.stages for tensor in stage.plan.tensors if tensor.role == "input"]
        return {tensor.name: tensor for tensor in tensors if tensor.name not in handed}


def _own_buffers(root: nn.Module, device: torch.device) -> None:
    """Copies of the buffers that every process has whole: a stage changes its own, neither the model's nor those of
    another stage of this process."""
    copies: dict[int, Tensor] = {}
    for module in root.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - a buffer is replaced in place
            if buffer is not None and not isinstance(buffer, DTensor) and not buffer.is_meta:
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().to(device, copy=True)
                module._buffers[name] = copies[id(buffer)]  # noqa: SLF001


def _check(model: nn.Module, plan: Plan) -> PlannedPipeline:
    refuse_parallel(model)
    found = plan.pipeline
    if found is None:
        hint = "use shardplan.torch.parallelize, or solve with --stages"
        raise ShardplanError(error("no-stages", "the plan has no stages", hint=hint))
    micro, count = microbatches_of(plan), len({stage.first_device for stage in found.stages})
    rounds = max(1, micro // count)
    if found.schedule.startswith("interleaved") and micro % rounds:
        summary = f"torch runs interleaved stages in {rounds} rounds, into which {micro} microbatches do not go"
        raise ShardplanError(error("uneven-rounds", summary, hint=f"solve with --microbatches {count * rounds}"))
    return found


def _union(plan: Plan, stages: PlannedPipeline) -> Plan:
    """A plan that names the parameters of all stages."""
    found: dict[str, TensorDecision] = {}
    for stage in stages.stages:
        for tensor in stage.plan.tensors:
            if tensor.role == "parameter":
                found.setdefault(tensor.checkpoint, tensor)
    return replace(stages.stages[0].plan, tensors=tuple(found.values()), model=plan.model)


def _only(every: Container[str], rename: Rename | None) -> Rename:
    """The renaming of parameters that some stage has; any of the names of a tied weight."""

    def renamed(name: str) -> Any:
        if name not in every:
            return None
        return rename(name) if rename is not None else name

    return renamed


def _received_dims(stages: PlannedPipeline) -> list[dict[str, int]]:
    """For every stage, the tensor that it receives -> its dim that is the batch."""
    found: list[dict[str, int]] = [{}]
    for stage, handed in zip(stages.stages, stages.handed, strict=False):
        dims = batch_dims(stage.plan, found[-1])
        found.append({handed.tensor: dims.get(handed.tensor, 0)})
    return found


def _shapes(stages: PlannedPipeline, received: list[dict[str, int]]) -> list[dict[str, tuple[int, ...]]]:
    """For every stage, the shapes of its tensors in one microbatch."""
    return [
        {tensor.name: tensor.shape for tensor in one_microbatch(stage.plan, given).tensors}
        for stage, given in zip(stages.stages, received, strict=True)
    ]


def _boundaries(stages: PlannedPipeline, received: list[dict[str, int]]) -> list[Boundary]:
    shapes = _shapes(stages, received)
    return [Boundary(handed.tensor, shapes[handed.sender][handed.tensor]) for handed in stages.handed]


_BUFFER_ELEMENTS = 1 << 16
"""As in `shardplan.pipeline.cut_points`: a buffer of more is a weight."""
