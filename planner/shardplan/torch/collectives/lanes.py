"""Communication lanes: streams or threads that run collectives beside compute.

A lane is a stream on accelerators and a thread on the CPU, with its own process groups. Work on a lane runs in the
order in which it was given. If all processes give their lanes the same work in the same order, they wait for each other
only in that order, however long each of them takes.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

Work = Callable[[], list[Tensor]]


class Pending(Protocol):
    """Tensors that a lane computes."""

    def wait(self) -> list[Tensor]:
        """The tensors, for the next compute on this thread or stream. Raises what the work has raised."""


class Lanes:
    """The lanes of one mesh by name, created on first use. `groups`: process groups by lane (`""`: of the computing
    thread) and ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.groups: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
        self._lanes: dict[str, _Thread | _Stream] = {}

    def __deepcopy__(self, memo: object) -> Lanes:
        """The same: a copy of a mesh has the same processes."""
        return self

    def run(self, lane: str, work: Work, uses: Sequence[Tensor]) -> Pending:
        """Runs `work` on `lane` with the current values of the tensors `uses`. `work` may wait for earlier work of
        other lanes."""
        if lane not in self._lanes:
            self._lanes[lane] = _Thread(lane) if self.device.type == "cpu" else _Stream(self.device)
        return self._lanes[lane].run(work, uses)


def lanes_of(mesh: DeviceMesh, device: torch.device) -> Lanes:
    """The lanes of a mesh, shared by all models on it: each process group has one order of collectives."""
    found = mesh.__dict__.setdefault("_shardplan_lanes", Lanes(device))
    assert isinstance(found, Lanes)
    return found


class _Done:
    """What a thread makes."""

    def __init__(self) -> None:
        self.future: Future[list[Tensor]] = Future()

    def wait(self) -> list[Tensor]:
        return self.future.result()


class _Thread:
    """A daemon thread that ends with its lane."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._jobs,), name=f"shardplan {name}", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def run(self, work: Work, uses: Sequence[Tensor]) -> Pending:
        """As `Lanes.run`. Collectives of `work` count for the counters of this thread's caller."""
        del uses
        done, context = _Done(), contextvars.copy_context()
        modes = _get_current_dispatch_mode_stack()
        self._jobs.put(lambda: context.run(_finish, work, modes, done.future))
        return done


def _serve(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job()
        del job  # what it has sent can be freed while the thread waits for more


def _finish(work: Work, modes: Sequence[Any], future: Future[list[Tensor]]) -> None:
    for mode in modes:
        _push_mode(mode)
    try:
        with torch.no_grad():
            made = work()
    except BaseException as problem:  # noqa: BLE001 - it is raised where it is waited for
        future.set_exception(problem)
    else:
        future.set_result(made)
    finally:
        for _ in modes:
            _pop_mode()


class _Issued:
    """What a stream makes."""

    def __init__(self, made: list[Tensor], event: torch.Event) -> None:
        self.made, self.event = made, event

    def wait(self) -> list[Tensor]:
        now = torch.accelerator.current_stream()
        now.wait_event(self.event)
        for tensor in self.made:
            tensor.record_stream(now)
        return self.made


class _Stream:
    """A stream of an accelerator; the host waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.Stream(device)

    def run(self, work: Work, uses: Sequence[Tensor]) -> Pending:
        """As `Lanes.run`."""
        self._stream.wait_stream(torch.accelerator.current_stream())
        with self._stream, torch.no_grad():
            made = work()
        for tensor in uses:
            tensor.record_stream(self._stream)
        return _Issued(made, self._stream.record_event())
