"""A plan laid out in time: what one device computes and sends in a step, as tasks that wait for each other.

Three streams: compute; communication of activations and their gradients, which somebody waits for; communication that
can hide (weights gathered ahead of use, their gradients reduced behind it). All microbatches are laid out as one: the
work of a step is the same, and what waits for what as well. Weights updated elsewhere come back as a step begins. What
a plan names as running again does so right before the backward that asks for it, and not before that is reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardplan.cost.schedule import COMPUTE, Task, Timeline, schedule
from shardplan.plan.pipeline_timeline import pipeline_streams, pipeline_timeline
from shardplan.plan.types import Move, OperatorDecision, Plan, Summary
from shardplan.units import S_PER_NS

ACTIVATIONS: Final = 1
WEIGHTS: Final = 2
STREAMS: Final = ("compute", "communication: activations", "communication: weights and gradients")
_DEFAULT_KAPPA = 1.1
_Awaited = tuple[int, ...]
"""Numbers of tasks that somebody waits for."""


def timeline(plan: Plan) -> Timeline:
    """The scheduled step of a plan."""
    if plan.pipeline is not None:
        return pipeline_timeline(plan)
    return schedule_of(plan.operators, plan.moves, plan.summary, str(plan.model.get("mode")), kappa_of(plan.cluster))


def streams_of(plan: Plan) -> tuple[str, ...]:
    """Names of the streams of `timeline`."""
    return STREAMS if plan.pipeline is None else pipeline_streams(plan.pipeline)


def kappa_of(cluster: Mapping[str, object]) -> float:
    """How much slower compute runs beside communication, from the profile inside a plan."""
    profile = cluster.get("profile")
    overlap = profile.get("overlap") if isinstance(profile, Mapping) else None
    kappa = overlap.get("kappa", _DEFAULT_KAPPA) if isinstance(overlap, Mapping) else _DEFAULT_KAPPA
    return float(kappa)


def schedule_of(
    operators: Sequence[OperatorDecision], moves: Sequence[Move], summary: Summary, mode: str, kappa: float
) -> Timeline:
    """As `timeline`, of the parts of a plan in the making. `summary`: its compute includes the optimizer's."""
    work = _Work(operators, moves)
    work.forward()
    if mode == "training":
        work.backward()
        rest_ns = summary.compute_ns - sum(operator.compute_ns for operator in operators)
        work.add("optimizer step", COMPUTE, rest_ns, work.all_so_far())
    return schedule(work.tasks, kappa)


@dataclass
class _Moves:
    """Moves by tensor (of what serves all readers or stores the result) and by tensor and reader, in plan order."""

    shared: dict[str, list[Move]] = field(default_factory=lambda: defaultdict(list))
    own: dict[tuple[str, str], list[Move]] = field(default_factory=lambda: defaultdict(list))

    def put(self, move: Move) -> None:
        (self.own[move.tensor, move.reader] if move.reader else self.shared[move.tensor]).append(move)


class _Work:
    """Collects the tasks of a step. `made[t]`: tasks after which tensor t can be read; in backward, `there[t]` and
    `there[t, r]`: after which it is there again for all of its readers, and for reader r."""

    def __init__(self, operators: Sequence[OperatorDecision], moves: Sequence[Move]) -> None:
        self.operators = operators
        self.tasks: list[Task] = []
        self.bring, self.again, self.back = _Moves(), _Moves(), _Moves()
        for move in moves:
            kind = self.back if move.phase == "backward" else self.bring
            (self.again if move.regather else kind).put(move)
        self.readers: dict[str, list[str]] = defaultdict(list)
        for operator in operators:
            for name in dict.fromkeys(filter(None, operator.inputs)):
                self.readers[name].append(operator.name)
        self.made: dict[str, tuple[int, ...]] = {}
        self.there: dict[str | tuple[str, str], _Awaited] = {}
        self.pieces: dict[str, list[OperatorDecision]] = defaultdict(list)
        for operator in operators:
            if operator.again:
                self.pieces[operator.again].append(operator)

    def add(self, name: str, stream: int, nanoseconds: int, after: _Awaited) -> _Awaited:
        """A task, and its number as what to wait for; work that takes no time is no task."""
        if nanoseconds <= 0:
            return after
        self.tasks.append(Task(name, stream, nanoseconds * S_PER_NS, tuple(dict.fromkeys(after))))
        return (len(self.tasks) - 1,)

    def all_so_far(self) -> _Awaited:
        """Tasks that nobody waits for yet: when they have ended, all have."""
        awaited = {before for task in self.tasks for before in task.after}
        return tuple(number for number in range(len(self.tasks)) if number not in awaited)

    def forward(self) -> None:
        for operator in self.operators:
            after: list[int] = []
            for name in filter(None, operator.inputs):
                if name not in self.made:
                    self.made[name] = self._chain(self.bring.shared.get(name, ()), (), "")
                after += self._chain(self.bring.own.get((name, operator.name), ()), self.made[name], "")
            done = self._run(operator, "", operator.compute_ns - operator.backward_ns, tuple(after))
            for name in filter(None, operator.outputs):
                self.made[name] = self._chain(self.bring.shared.get(name, ()), done, "")

    def backward(self) -> None:
        """Operators in reverse; a gradient comes back from every reader, is stored, and starts the maker's backward."""
        turn = reached = self.all_so_far()
        come: dict[str, list[int]] = defaultdict(list)
        missing = {name: len(readers) for name, readers in self.readers.items()}
        stored: dict[str, tuple[int, ...]] = {}
        for operator in reversed(self.operators):
            after = list(turn)
            for twice in self.pieces.get(operator.name, ()):
                after += self._run_again(twice, turn, reached)
            after += self._brought_again(operator, turn)
            for name in filter(None, operator.outputs):
                after += stored.get(name, ())
            before = len(self.tasks)
            done = self._run(operator, "backward: ", operator.backward_ns - operator.again_ns, tuple(after))
            reached = (before,) if len(self.tasks) > before else reached
            for name in dict.fromkeys(filter(None, operator.inputs)):
                come[name] += self._chain(self.back.own.get((name, operator.name), ()), done, "gradient: ")
                missing[name] -= 1
                if not missing[name]:
                    stored[name] = self._chain(self.back.shared.get(name, ()), tuple(come[name]), "gradient: ")

    def _run_again(self, operator: OperatorDecision, turn: _Awaited, reached: _Awaited) -> _Awaited:
        """A second run in backward, once that has `reached` what is computed before; what it makes is there again."""
        after = (*reached, *self._brought_again(operator, turn))
        done = self._run(operator, "again: ", operator.again_ns, after)
        for name in filter(None, operator.outputs):
            self.there[name] = self._chain(self.again.shared.get(name, ()), done, "again: ")
        return done

    def _brought_again(self, operator: OperatorDecision, turn: _Awaited) -> _Awaited:
        """What an operator's second run or its backward waits for, whichever reads its operands first."""
        after: list[int] = []
        for name in dict.fromkeys(filter(None, operator.inputs)):
            if name not in self.there:
                self.there[name] = self._chain(self.again.shared.get(name, ()), turn, "again: ")
            if (name, operator.name) not in self.there:
                own = self.again.own.get((name, operator.name), ())
                self.there[name, operator.name] = self._chain(own, self.there[name], "again: ")
            after += self.there[name, operator.name]
        return tuple(after)

    def _run(self, operator: OperatorDecision, prefix: str, nanoseconds: int, after: _Awaited) -> _Awaited:
        done = self.add(prefix + operator.name, COMPUTE, nanoseconds, after)
        share = nanoseconds / operator.compute_ns if operator.compute_ns else 0.0
        return self.add(f"{prefix}inside {operator.name}", ACTIVATIONS, round(operator.inner_ns * share), done)

    def _chain(self, moves: Sequence[Move], after: _Awaited, prefix: str) -> _Awaited:
        for move in moves:
            stream = WEIGHTS if move.hidden else ACTIVATIONS
            kinds = ", ".join(step.collective.kind.replace("_", "-") for step in move.steps)
            after = self.add(f"{prefix}{move.tensor} ({kinds})", stream, move.time_ns, after)
        return after


def chrome_trace(laid_out: Timeline, title: str, streams: Sequence[str] = STREAMS) -> dict[str, object]:
    """The timeline as Chrome's trace event format, which Perfetto reads; times in microseconds."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": title}},
        *(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "args": {"name": name}}
            for stream, name in enumerate(streams)
        ),
    ]
    for task, start, end in zip(laid_out.tasks, laid_out.starts, laid_out.ends, strict=True):
        events.append(
            {
                "ph": "X", "name": task.name, "cat": streams[task.stream], "pid": 0, "tid": task.stream,
                "ts": round(start * 1e6, 3), "dur": round((end - start) * 1e6, 3),
            }
        )  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}
