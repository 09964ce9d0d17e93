"""Runs a pipeline on simulated devices, stage after stage, each from what the stage before sent.

A stage starts from the value that the devices of the previous stage have made, assembled and sharded anew. Every value
of a stage, including the sent one, is compared with the same value of the model run whole; so the last stage is right
if all are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from shardplan.model.types import Model
from shardplan.patterns import matches
from shardplan.pipeline.cut_points import begins, chain_at, part_of
from shardplan.plan.agreement import disagreements, inconsistent, require_agreement
from shardplan.plan.recorded_request import require_model
from shardplan.plan.types import Plan
from shardplan.program import collectives
from shardplan.program.machine.run import Machine, Ran, Report, runnable_program, usual_rtol
from shardplan.program.machine.values import random_values
from shardplan.program.types import Array, Compute, Program, Transfer, Value
from shardplan.rules import model_rules


def stage_models(model: Model, plan: Plan) -> Iterator[Model]:
    """The part of `model` that each stage of `plan` runs. Raises `ShardplanError` for a model that cannot be cut."""
    assert plan.pipeline is not None
    stages = plan.pipeline.stages
    chain = chain_at(model, begins(model, [[op.name for op in stage.plan.operators] for stage in stages]))
    for number, stage in enumerate(stages):
        yield part_of(chain, number, number + 1, str(stage.plan.model["name"]))


def misdeclared(model: Model, plan: Plan) -> tuple[str, ...]:
    """The differences between `plan` and `model`, one sentence each: names, shapes, types, parameter names in
    checkpoint and file, their dims and aliases, operands and results of operators, and missing entries."""
    if plan.pipeline is None:
        return tuple(disagreements(plan, model))
    pairs = zip(stage_models(model, plan), plan.pipeline.stages, strict=True)
    return tuple(f"{stage.name}: {text}" for part, stage in pairs for text in disagreements(stage.plan, part))


def stage_of(model: Model, plan: Plan, file: str, name: str) -> tuple[Plan, str, Model]:
    """The plan of the first stage that has a tensor or operator called `name` (a glob), its file, and its part of
    `model`; the last stage if none has it, and the given stage if `name` begins as `stage 1: `. Raises `ShardplanError`
    (`stale-plan`) for another model."""
    assert plan.pipeline is not None
    require_model(plan, model, file)
    pairs = zip(stage_models(model, plan), plan.pipeline.stages, strict=True)
    said = [stage.name for stage in plan.pipeline.stages if name.startswith(f"{stage.name}: ")]
    for part, stage in pairs:
        plan, found = stage.plan, (stage.plan, file, part)
        if said:
            if stage.name in said:
                break
            continue
        known = {operator.name for operator in plan.operators}
        known |= {text for tensor in plan.tensors for text in (tensor.name, tensor.checkpoint, *tensor.aliases)}
        if any(matches(text, name) for text in known):
            break
    return found


class _Stage(Machine):
    """A machine that keeps what its devices make of the value called `sends`: `sent`, put together."""

    def __init__(
        self, program: Program, values: Mapping[str, Array], rtol: float, microbatches: int, sends: str
    ) -> None:
        super().__init__(program, values, rtol, microbatches)
        self.sends = sends
        self.sent: Array | None = None

    def _check(self, instruction: Transfer | Compute, value: Value, locals_: list[Array]) -> None:
        super()._check(instruction, value, locals_)
        if value.tensor == self.sends and self.report.mismatch is None:
            self.sent = collectives.unshard(locals_, value.layout, self.mesh, rtol=self.rtol, atol=self.rtol)


def verify_pipeline(
    model: Model,
    plan: Plan,
    given: Mapping[str, Array] | None = None,
    *,
    rtol: float | None = None,
    seed: int = 0,
    ran: Ran = lambda *_: None,
) -> Report:
    """As `verify_plan`, for a plan with stages: one report on all of them, up to the first value that differs."""
    assert plan.pipeline is not None
    rtol = rtol or usual_rtol(model)
    parts = list(zip(stage_models(model, plan), (stage.plan for stage in plan.pipeline.stages), strict=True))
    for part, own in parts:
        require_agreement(own, part)
    programs = [runnable_program(part, own, model_rules(part)) for part, own in parts]
    values = random_values(model, seed, None, given)
    micro = cast("int", plan.model.get("microbatches", 1))
    total = Report(plan.mesh.size, rtol)
    sends = {transfer.sender: transfer.tensor for transfer in plan.pipeline.handed}
    for number, program in enumerate(programs):
        made = {name for operator in program.model.operators for name in operator.outputs}
        needed = [name for name in program.model.tensors if name not in made]
        if missing := [name for name in needed if name not in values]:
            summary = f"stage {number} reads '{missing[0]}', which no stage before it sends"
            raise inconsistent(summary)
        machine = _Stage(program, {name: values[name] for name in needed}, rtol, micro, sends.get(number, ""))
        _add(total, machine.run(_within(ran, [len(each.instructions) for each in programs], number)))
        if total.mismatch is not None:
            break
        if machine.sent is not None:
            values[machine.sends] = machine.sent
    return total


def _within(ran: Ran, counts: Sequence[int], number: int) -> Ran:
    """What a stage tells, as a part of all of them."""
    return lambda done, _: ran(sum(counts[:number]) + done, sum(counts))


def _add(total: Report, report: Report) -> None:
    total.operators += report.operators
    total.values += report.values
    total.worst = max(total.worst, report.worst)
    total.moved_bytes += report.moved_bytes
    total.priced_bytes += report.priced_bytes
    total.inner_bytes += report.inner_bytes
    total.mispriced += report.mispriced
    total.mismatch = report.mismatch
