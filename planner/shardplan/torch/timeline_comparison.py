"""Measured steps of a model under its plan, beside the plan's schedule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan
from shardplan.runtime.timeline_comparison import Span, Step, TimelineComparison
from shardplan.torch.applied_plan import AppliedPlan, applied_to
from shardplan.torch.collectives.times import Times
from shardplan.torch.microbatch_plan import microbatches_of
from shardplan.torch.microbatches import microbatches
from shardplan.torch.with_loss import Divided, divided_for

_BEFORE = 2
"""Steps before those that are measured: in the first one a program learns what it gathers."""


def compare_timeline(
    model: nn.Module,
    batch: Mapping[str, Tensor] | Sequence[Any] | Tensor,
    *,
    loss: Callable[..., Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 3,
) -> TimelineComparison:
    """Run steps of a model that a plan has been applied to, and set what they took beside the plan's schedule.

    `batch`: what the model is called with: a tensor, a sequence of arguments, or a mapping of names; under a plan of
    several microbatches a mapping, which is cut. `loss`: of the model's result, which by default is the loss itself,
    and of targets, which are in the batch behind the model's arguments, or by the names that the loss has for them; not
    asked for where the plan is one for inference. `optimizer`: makes a step too, so weights change. All processes
    call this together. Times are those of this process: of the wall clock on the CPU, of events on accelerators.

    Raises `ShardplanError` (`not-parallel`, `missing-target`, or `not-measured` where a pipeline or no steps are asked
    for).
    """
    if steps < 1:
        raise ShardplanError(error("not-measured", f"{steps} steps are none to measure", hint="give 1 or more"))
    if not isinstance(model, nn.Module):
        hint = "measure a stage by itself, or look at torch.profiler's trace of the whole"
        raise ShardplanError(error("not-measured", "a pipeline's schedule is torch's and is not measured", hint=hint))
    applied = applied_to(model)
    executor = applied.execution.context.executor
    measured: list[Step] = []
    for number in range(_BEFORE + steps):
        times = Times(applied.groups.device)
        executor.times = times if number >= _BEFORE else None
        try:
            _step(applied, model, batch, loss, optimizer, times)
        finally:
            executor.times = None
        if number >= _BEFORE:
            measured.append(_spans(times, applied.plan))
    return TimelineComparison(applied.plan, tuple(measured))


def _step(
    applied: AppliedPlan, model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None,
    optimizer: torch.optim.Optimizer | None, times: Times,
) -> None:  # fmt: skip
    """One step; the moments at which phases begin and the last one ends."""
    model.zero_grad(set_to_none=True)
    many = microbatches_of(applied.plan)
    with torch.set_grad_enabled(applied.trains):
        for part in microbatches(model, batch) if many > 1 else (batch,):
            times.moment("forward")
            args, kwargs, targets = _divided(part, loss)
            result = model(*args, **kwargs)
            if applied.trains:
                value = result if loss is None else loss(result, **targets)
                times.moment("backward")
                (value / many).backward()
    if optimizer is not None:
        times.moment("update")
        optimizer.step()
    times.moment("end")
    if applied.groups.device.type != "cpu":
        torch.accelerator.synchronize()


def _divided(batch: Any, loss: Callable[..., Tensor] | None) -> Divided:
    """The arguments of the model, by place and by name, and the targets of the loss."""
    kwargs = dict(batch) if isinstance(batch, Mapping) else {}
    args = () if kwargs else (batch,) if isinstance(batch, Tensor) else tuple(batch)
    return (args, kwargs, {}) if loss is None else divided_for(loss, args, kwargs)


def _spans(times: Times, plan: Plan) -> Step:
    """What was noted, since the step began."""
    moments = times.moments()
    begin = moments[0][1]
    found = [Span(start - begin, end - begin, name) for (name, start), (_, end) in itertools.pairwise(moments)]
    sent = [
        Span(one.start - begin, one.end - begin, numbers=one.numbers, issued=one.issued - begin)
        for one in times.all_sent()
        if _sends(one.numbers, plan)
    ]
    waited = [
        Span(one.start - begin, one.end - begin, numbers=one.numbers, waits=True)
        for one in times.all_awaited()
        if _sends(one.numbers, plan)
    ]
    return (*found, *sent, *waited)


def _sends(numbers: Sequence[int], plan: Plan) -> bool:
    """Whether these are moves of the plan for which something is sent: no mere cut, and nothing that autograd asked for
    besides. There are none where a microbatch keeps all gradients."""
    if not numbers or min(numbers) < 0:
        return False
    return any(not step.collective.is_free for step in plan.moves[numbers[0]].steps)
