"""The timeline of a pipeline: every stage runs forward and backward of every microbatch in the order of its schedule.

One stream per stage, then one per transfer. A stage runs as many microbatches forward as it may hold, then alternates
one backward and one forward (1F1B; in GPipe it may hold all). A stage with several model chunks runs each on as many
microbatches in a row as there are stages (Narayanan et al. 2021). What a stage does once per step is spread over its
microbatches. At the end, tied weights are made equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from shardplan.plan.types import CollectiveStep, Pipeline, Plan, Stage, Transfer
from shardplan.plan.views.span_details import SpanDetails
from shardplan.schedule.tasks import Task, Timeline, schedule
from shardplan.units import S_PER_NS


def pipeline_streams(pipeline: Pipeline) -> tuple[str, ...]:
    """Names of the streams of `pipeline_timeline`: those of stages, then of what is sent between two."""
    computing = range(device_groups(pipeline))
    handed = (_between(pipeline, transfer) for transfer in pipeline.handed)
    tied = (f"{_between(pipeline, transfer)}: {transfer.tensor}" for transfer in _tied(pipeline))
    own = (f"stage {place}" if _interleaved(pipeline) else pipeline.stages[place].name for place in computing)
    return (*own, *handed, *tied)


def _between(pipeline: Pipeline, transfer: Transfer) -> str:
    """`stage 0 to 1`; of an interleaved pipeline `stage 1 piece 0 to 0 piece 1`."""
    if not _interleaved(pipeline):
        return f"stage {transfer.sender} to {transfer.receiver}"
    count = device_groups(pipeline)
    ends = (f"{place % count} piece {place // count}" for place in (transfer.sender, transfer.receiver))
    return f"stage {' to '.join(ends)}"


def _tied(pipeline: Pipeline) -> tuple[Transfer, ...]:
    """The transfers that keep tied weights equal."""
    return pipeline.transfers[len(pipeline.handed) :]


def device_groups(pipeline: Pipeline) -> int:
    """The number of groups of devices: the model chunks of an interleaved stage share one group."""
    return len({stage.first_device for stage in pipeline.stages})


def _interleaved(pipeline: Pipeline) -> bool:
    return device_groups(pipeline) < len(pipeline.stages)


def pipeline_tasks(plan: Plan) -> tuple[Timeline, list[SpanDetails]]:
    """The scheduled step of a plan with stages, and the details of each task for a trace."""
    pipeline = plan.pipeline
    assert pipeline is not None
    micro = cast("int", plan.model.get("microbatches", 1))
    work = _Work(pipeline, micro, training=plan.model.get("mode") == "training")
    return schedule(work.tasks()), work.details


_Key = tuple[str, int, int]
_PHASES = {
    "F": "forward",
    "send": "forward",
    "B": "backward",
    "back": "backward",
    "gradient": "update",
    "weight": "update",
}


class _Work:
    """Tasks by key: `("F" | "B" | "send" | "back", stage, microbatch)`, `("gradient" | "weight", number of the weight,
    0)`."""

    def __init__(self, pipeline: Pipeline, microbatches: int, *, training: bool) -> None:
        self.pipeline, self.microbatches, self.training = pipeline, microbatches, training
        self.groups = device_groups(pipeline)
        self.number: dict[_Key, int] = {}
        self.made: list[tuple[str, int, float, list[_Key]]] = []
        self.details: list[SpanDetails] = []

    def tasks(self) -> list[Task]:
        for group in range(self.groups):
            self._device(group)
        for place, transfer in enumerate(self.pipeline.handed):
            stream = self.groups + place
            for batch in range(self.microbatches):
                self._send(("send", place, batch), stream, transfer.forward, [("F", transfer.sender, batch)])
                if self.training:
                    self._send(("back", place, batch), stream, transfer.backward, [("B", transfer.receiver, batch)])
        ended = [("B", place, self.microbatches - 1) for place in range(len(self.pipeline.stages))]
        for number, transfer in enumerate(_tied(self.pipeline)):
            stream = self.groups + len(self.pipeline.handed) + number
            self._send(("gradient", number, 0), stream, transfer.backward, ended)
            self._send(("weight", number, 0), stream, transfer.forward, [("gradient", number, 0)])
        return [
            Task(name, stream, nanoseconds * S_PER_NS, tuple(self.number[before] for before in after))
            for name, stream, nanoseconds, after in self.made
        ]

    def _device(self, group: int) -> None:
        """Tasks of the stage, or of the model chunks of the stage, that a group of devices runs one after the other."""
        stages, before = self.pipeline.stages, list[_Key]()
        halves = [_halves(stage, self.microbatches, training=self.training) for stage in stages[group :: self.groups]]
        if len(halves) == 1:
            ahead = stages[group].in_flight - 1
        else:
            ahead = 2 * (self.groups - 1 - group) + (len(halves) - 1) * self.groups
        for kind, chunk, batch in _order(self.microbatches, len(halves), self.groups, ahead, training=self.training):
            place, after = chunk * self.groups + group, list(before)
            if kind == "F" and place:
                after.append(("send", place - 1, batch))
            if kind == "B" and place < len(self.pipeline.handed):
                after.append(("back", place, batch))
            self._add((kind, place, batch), group, halves[chunk][kind == "B"], after)
            before = [(kind, place, batch)]

    def _send(self, key: _Key, stream: int, steps: Sequence[CollectiveStep], after: list[_Key]) -> None:
        payload = sum(step.payload_bytes for step in steps)
        self._add(key, stream, sum(step.time_ns for step in steps), after, payload)

    def _add(self, key: _Key, stream: int, nanoseconds: float, after: list[_Key], payload_bytes: int = 0) -> None:
        words = {"F": "forward", "B": "backward", "send": "hand on", "back": "hand back"}
        self.number[key] = len(self.made)
        name = f"{words[key[0]]} {key[2]}" if key[0] in words else key[0]
        if key[0] in ("F", "B") and _interleaved(self.pipeline):
            name += f" of piece {key[1] // self.groups}"
        self.made.append((name, stream, nanoseconds, after))
        self.details.append(SpanDetails(_PHASES[key[0]], key[2], payload_bytes))


def _halves(stage: Stage, microbatches: int, *, training: bool) -> tuple[float, float]:
    """Nanoseconds of one microbatch forward and backward, each with its share of what a stage does once per step."""
    each = stage.plan.summary.step_ns / microbatches
    compute = sum(operator.compute_ns for operator in stage.plan.operators)
    later = sum(operator.backward_ns for operator in stage.plan.operators)
    share = later / compute if training and compute else 0.0
    return each * (1.0 - share), each * share


def _order(
    microbatches: int, chunks: int, stages: int, ahead: int, *, training: bool
) -> list[tuple[Literal["F", "B"], int, int]]:
    """What a stage runs in turn, as kind, model chunk and microbatch: `ahead` times forward, then one forward and one
    backward, until every chunk has run every microbatch. Chunks take turns after as many microbatches as there are
    stages; a single chunk takes them all."""
    turn = stages if chunks > 1 else microbatches
    forward = [
        (chunk, batch)
        for first in range(0, microbatches, turn)
        for chunk in range(chunks)
        for batch in range(first, min(first + turn, microbatches))
    ]
    if not training:
        return [("F", *one) for one in forward]
    order: list[tuple[Literal["F", "B"], int, int]] = [("F", *one) for one in forward[:ahead]]
    for number, (chunk, batch) in enumerate(forward):
        order += [("F", *one) for one in forward[ahead + number : ahead + number + 1]]
        order.append(("B", chunks - 1 - chunk, batch))
    return order
