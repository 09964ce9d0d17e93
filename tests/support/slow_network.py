"""A network and a device of known speed, in processes on one machine: collectives take the seconds that a cluster's
prices say for the bytes that are really sent, operators those of the plan.

A collective is first carried out by gloo and then occupies the levels of its links until its time is over. On a level
blocking collectives go before gathered weights, and those before gradients; who gives way pauses, as streams of
different priority do. Operators sleep until their time is over, so that what torch needs of it does not count.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardplan.cluster.types import Cluster
from shardplan.cost.collectives import CollectiveModel
from shardplan.plan.types import Plan
from shardplan.torch import process_groups
from shardplan.torch.collectives.lanes import Lanes, _Done
from shardplan.torch.exported.writer import Traced
from shardplan.torch.propagation.engine import Engine

_KINDS = {
    "all_reduce": ("all_reduce", 0),
    "all_gather_single": ("all_gather", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "all_to_all_single": ("all_to_all", 1),
}
"""Function of torch.distributed -> collective, and which argument is its payload."""


@dataclass(eq=False)
class Transfer:
    """A collective on the link: seconds `left`, and when it ended."""

    priority: int
    number: int
    levels: frozenset[str]
    left: float
    ended: float = 0.0


class Link:
    """The link levels of one device, which each serve one collective at a time. Their state is known at `now`; `free`:
    since when a level has had nothing to do."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queue: list[Transfer] = []
        self.now = time.perf_counter()
        self.free: dict[str, float] = {}
        self.count = 0

    def enter(self, levels: frozenset[str], seconds: float, priority: int, arrival: float) -> Transfer:
        """A collective that arrived at `arrival`, which threads may tell a little late: what was free since serves it
        since."""
        with self.changed:
            now = time.perf_counter()
            self._advance(now)
            used = {level for one in self._active() for level in one.levels}
            since = max(arrival, *(self.free.get(level, 0.0) for level in levels))
            early = 0.0 if used & levels else max(0.0, now - since)
            self.count += 1
            made = Transfer(priority, self.count, levels, max(seconds - early, 1e-9))
            self.queue.append(made)
            self.queue.sort(key=lambda one: (one.priority, one.number))
            self.changed.notify_all()
        return made

    def leave(self, transfer: Transfer) -> float:
        """Return when it has ended; the moment."""
        with self.changed:
            while True:
                self._advance(time.perf_counter())
                if transfer not in self.queue:
                    return transfer.ended
                self.changed.wait(min(one.left for one in self._active()))

    def _active(self) -> list[Transfer]:
        found: list[Transfer] = []
        for one in self.queue:
            if not any(one.levels & other.levels for other in found):
                found.append(one)
        return found

    def _advance(self, now: float) -> None:
        while self.queue and self.now < now:
            active = self._active()
            step = min(now - self.now, *(one.left for one in active))
            self.now += step
            for one in active:
                one.left -= step
                if one.left <= 1e-9:
                    one.ended = self.now
                    self.queue.remove(one)
                    self.free |= dict.fromkeys(one.levels, self.now)
        self.now = max(self.now, now)


class Device:
    """The compute of one device: `until` is when it is free. What it waits for ends when it ends."""

    def __init__(self) -> None:
        self.until = time.perf_counter()

    def compute(self, seconds: float) -> None:
        self.until += seconds
        time.sleep(max(0.0, self.until - time.perf_counter()))


class _Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, compute: Callable[[float], None], forward: float, backward: float) -> Tensor:
        ctx.compute, ctx.backward_s = compute, backward
        compute(forward)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.compute(ctx.backward_s)
        return gradient, None, None, None


class BusyNode(nn.Module):
    """A node of a graph that takes the time of an operator."""

    def __init__(self, *given: Any) -> None:
        super().__init__()
        self.given = given

    def forward(self, local: Tensor) -> Tensor:
        return _Busy.apply(local, *self.given)


class SlowNetwork:
    """`scale`: seconds here for one second of the plan. Compute and collectives take their time inside `active`."""

    def __init__(self, plan: Plan, cluster: Cluster, scale: float) -> None:
        self.plan, self.scale = plan, scale
        self.prices, self.link, self.device = CollectiveModel(cluster), Link(), Device()
        micro = plan.model.get("microbatches", 1)
        self.operators = {
            operator.outputs[0]: ((operator.compute_ns - operator.backward_ns) / micro, operator.backward_ns / micro)
            for operator in plan.operators
        }
        self.axes = {
            tuple(next(ranks for ranks in plan.mesh.groups(axes) if dist.get_rank() in ranks)): axes
            for axes in ((0,), (1,), (0, 1))
        }
        self.is_active = False
        self.thread = threading.local()
        """When the work of a lane's thread was given to it, and when its last collective ended."""
        self.arrived: dict[int, float] = {}
        """By identity of what a lane makes: when it is there."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While models are put under the plan and run."""
        with contextlib.ExitStack() as stack:
            for name, (kind, place) in _KINDS.items():
                stack.enter_context(mock.patch.object(dist, name, self._slow(getattr(dist, name), kind, place)))
            stack.enter_context(mock.patch.object(Engine, "result", self._computed(Engine.result)))
            stack.enter_context(mock.patch.object(Lanes, "run", self._given(Lanes.run)))
            stack.enter_context(mock.patch.object(_Done, "wait", self._waiting(_Done.wait)))
            yield

    def _slow(self, real: Callable[..., Any], kind: str, place: int) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            lane, purpose = process_groups._LANE.get(), process_groups._PURPOSE.get()
            axes = self.axes.get(tuple(dist.get_process_group_ranks(kwargs.get("group", args[-1]))))
            if not self.is_active or purpose == "check" or axes is None:
                return real(*args, **kwargs)
            payload = args[place].numel() * args[place].element_size()
            seconds = self.prices.seconds(kind, axes, payload) * self.scale
            priority = 0 if not lane else 1 if lane.startswith("gather") else 2
            levels = frozenset(self.plan.axis_links[axis] for axis in axes)
            arrival = max(self.thread.given, self.thread.ended) if lane else self.device.until
            transfer = self.link.enter(levels, seconds, priority, arrival)
            done = real(*args, **kwargs)
            ended = self.link.leave(transfer)
            if lane:
                self.thread.ended = ended
            else:
                self.device.until = max(self.device.until, ended)
            return done

        return slow

    def _given(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(lanes: Lanes, lane: str, work: Callable[[], Any], uses: Any) -> Any:
            given = time.perf_counter()

            def timed() -> Any:
                self.thread.given, self.thread.ended = given, getattr(self.thread, "ended", 0.0)
                made = work()
                self.arrived[id(made)] = self.thread.ended
                return made

            return real(lanes, lane, timed, uses)

        return run

    def _waiting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wait(done: _Done) -> Any:
            made = real(done)
            arrived = self.arrived.get(id(made), 0.0)
            if threading.current_thread() is threading.main_thread():
                self.device.until = max(self.device.until, arrived)
            else:
                self.thread.given = max(self.thread.given, arrived)
            return made

        return wait

    def _compute(self, nanoseconds: float) -> None:
        if self.is_active:
            self.device.compute(nanoseconds * 1e-9 * self.scale)

    def _computed(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def result(engine: Engine, local: Any, layout: Any, shape: Any, key: Any) -> Any:
            planned = engine.graph.values.get(key)
            if planned is not None and planned.name in self.operators:
                given = (self._compute, *self.operators[planned.name])
                if isinstance(local, Traced):
                    local = engine.backend.module(f"busy_{planned.name}", BusyNode(*given), local, local.meta)
                else:
                    local = _Busy.apply(local, *given)
            return real(engine, local, layout, shape, key)

        return result
