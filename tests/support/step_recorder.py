"""Records what a process does in a step under a plan: operators, collectives, what is given to lanes and waited for.

Collectives are carried out by gloo, and recorded with the seconds that a cluster's prices say for the bytes that are
really sent; operators with those of the plan. `virtual_time` tells how long the step takes. What stands for the time of
an operator's backward runs before that; weights that are gathered for it are recorded before its time all the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from virtual_time import Action, Barrier, Compute, Issue, Job, Recorded, Send, Wait

from shardplan.cluster.types import Cluster
from shardplan.cost.collectives import CollectiveModel
from shardplan.plan.types import Plan
from shardplan.torch import process_groups
from shardplan.torch.collectives.executor import MoveExecutor
from shardplan.torch.collectives.lanes import Lanes, _Done
from shardplan.torch.execution import LocalExecution
from shardplan.torch.exported.writer import Traced
from shardplan.torch.propagation.engine import Engine

_KINDS = {
    "all_reduce": ("all_reduce", 0),
    "all_gather_single": ("all_gather", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "all_to_all_single": ("all_to_all", 1),
}
"""Function of torch.distributed -> collective, and which argument is its payload."""
_NUMBERS: ContextVar[tuple[int, ...]] = ContextVar("numbers", default=())


class _Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, recorder: StepRecorder, name: str, times: Any) -> Tensor:
        ctx.recorder, ctx.operator, ctx.times = recorder, name, times
        recorder.record(Compute(name, times[0]))
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.recorder.record_backward(Compute(f"backward: {ctx.operator}", ctx.times[1]))
        return gradient, None, None, None


class BusyNode(nn.Module):
    """A node of a graph that takes the time of an operator."""

    def __init__(self, *given: Any) -> None:
        super().__init__()
        self.given = given

    def forward(self, local: Tensor) -> Tensor:
        return _Busy.apply(local, *self.given)


class StepRecorder:
    """Records into `step`, while that is given."""

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        self.plan, self.prices, self.step = plan, CollectiveModel(cluster), None
        micro = plan.model.get("microbatches", 1)
        self.operators = {
            operator.outputs[0]: (
                operator.name,
                ((operator.compute_ns - operator.backward_ns) / micro * 1e-9, operator.backward_ns / micro * 1e-9),
            )
            for operator in plan.operators
        }
        axes = range(len(plan.mesh))
        sets = [tuple(axis for axis in axes if mask >> axis & 1) for mask in range(1, 1 << len(axes))]
        self.axes = {
            tuple(next(ranks for ranks in plan.mesh.groups(each) if dist.get_rank() in ranks)): each
            for each in reversed(sets)
            if plan.mesh.ways(each) > 1
        }
        self.is_unpacking = False
        self.begun: Compute | None = None
        """The backward of an operator that may still wait for what it reads."""
        self.thread = threading.local()
        self.jobs: dict[_Done, int] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorded]:
        """What this process does meanwhile."""
        self.step = Recorded()
        self.jobs.clear()
        try:
            yield self.step
        finally:
            self._end_begun()
            self.step = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What this process does meanwhile is not part of the step."""
        self._end_begun()
        step, self.step = self.step, None
        try:
            yield
        finally:
            self.step = step
            self.record(Barrier())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While models are put under the plan and run."""
        with contextlib.ExitStack() as stack:
            for name, (kind, place) in _KINDS.items():
                stack.enter_context(mock.patch.object(dist, name, self._sent(getattr(dist, name), kind, place)))
            stack.enter_context(mock.patch.object(Engine, "result", self._computed(Engine.result)))
            stack.enter_context(mock.patch.object(Lanes, "run", self._given(Lanes.run)))
            stack.enter_context(mock.patch.object(_Done, "wait", self._waited(_Done.wait)))
            unpack = staticmethod(self._unpacked(LocalExecution.unpack))
            stack.enter_context(mock.patch.object(LocalExecution, "unpack", unpack))
            for name in ("run", "start"):
                stack.enter_context(mock.patch.object(MoveExecutor, name, _numbered(getattr(MoveExecutor, name))))
            yield

    def record(self, action: Action) -> None:
        """An action of the current thread."""
        job = getattr(self.thread, "job", None)
        if job is not None:
            job.actions.append(action)
        elif self.step is not None:
            if not self.is_unpacking:
                self._end_begun()
            self.step.actions.append(action)

    def record_backward(self, action: Compute) -> None:
        """The backward of an operator, which is about to read what autograd has saved for it."""
        self._end_begun()
        self.begun = action if self.step is not None else None

    def _end_begun(self) -> None:
        if self.step is not None and self.begun is not None:
            self.step.actions.append(self.begun)
        self.begun = None

    def _unpacked(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def unpack(packed: Any) -> Any:
            self.is_unpacking = True
            try:
                return real(packed)
            finally:
                self.is_unpacking = False

        return unpack

    def _sent(self, real: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
        def sent(*args: Any, **kwargs: Any) -> Any:
            group = tuple(dist.get_process_group_ranks(kwargs.get("group", args[-1])))
            if process_groups._PURPOSE.get() != "check" and group in self.axes:
                payload = args[place].numel() * args[place].element_size()
                seconds = self.prices.seconds(kind, self.axes[group], payload)
                levels = frozenset(self.plan.axis_links[axis] for axis in self.axes[group])
                self.record(Send(kind, seconds, group, levels, _NUMBERS.get()))
            return real(*args, **kwargs)

        return sent

    def _given(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(lanes: Lanes, lane: str, work: Callable[[], Any], uses: Any) -> Any:
            if self.step is None:
                return real(lanes, lane, work, uses)
            job, number = Job(lane), len(self.step.jobs)
            self.step.jobs[number] = job
            self.record(Issue(number))

            def recorded() -> Any:
                self.thread.job = job
                try:
                    return work()
                finally:
                    self.thread.job = None

            done = real(lanes, lane, recorded, uses)
            self.jobs[done] = number
            return done

        return run

    def _waited(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wait(done: _Done) -> Any:
            if done in self.jobs:
                self.record(Wait(self.jobs[done]))
            return real(done)

        return wait

    def _computed(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def result(engine: Engine, local: Any, layout: Any, shape: Any, key: Any) -> Any:
            planned = engine.graph.values.get(key)
            if planned is not None and planned.name in self.operators:
                given = (self, *self.operators[planned.name])
                if isinstance(local, Traced):
                    local = engine.backend.module(f"busy_{planned.name}", BusyNode(*given), local, local.meta)
                else:
                    local = _Busy.apply(local, *given)
            return real(engine, local, layout, shape, key)

        return result


def _numbered(real: Callable[..., Any]) -> Callable[..., Any]:
    def numbered(executor: MoveExecutor, locals_: Any, moves: Any, *args: Any, **kwargs: Any) -> Any:
        token = _NUMBERS.set(tuple(move.number for move in moves))
        try:
            return real(executor, locals_, moves, *args, **kwargs)
        finally:
            _NUMBERS.reset(token)

    return numbered
