"""Processes that stay: a process group of N ranks which run one function after another.

One process imports everything once and forks the ranks, so that starting many costs little; they meet in a file. Ranks
that hash strings each in its own way, as a launcher's do, cannot be forks of one process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

_PATIENCE_S = 20.0
"""How long the answers of others are waited for once a rank has failed."""


class LostRanksError(AssertionError):
    """A rank has died or does not answer."""


class Ranks:
    """`world` ranks on gloo; `run` calls a function of a module in all of them and gives their results by rank.
    `hash_seeds`: for each rank its `PYTHONHASHSEED`, if they are to differ; those of one seed are forks of one process.
    """

    def __init__(
        self, world: int, folder: Path, modules: Sequence[str] = ("torch_cases",), hash_seeds: Sequence[int] = ()
    ) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(world)]
        self.pipes = [mine for mine, _ in pairs]
        theirs = [other for _, other in pairs]
        meeting = str(folder / f"meeting-{world}")
        seeds = hash_seeds or [0] * world
        families = [[rank for rank in range(world) if seeds[rank] == seed] for seed in dict.fromkeys(seeds)]
        self.nurseries = []
        for ranks in families:
            pipes = [theirs[rank] for rank in ranks]
            nursery = context.Process(target=_nursery, args=(pipes, ranks, world, meeting, list(modules)))
            with pytest.MonkeyPatch.context() as patch:
                if hash_seeds:
                    patch.setenv("PYTHONHASHSEED", str(hash_seeds[ranks[0]]))
                nursery.start()
            self.nurseries.append(nursery)
        for other in theirs:
            other.close()

    def run(self, module: str, function: str, *args: Any, timeout: float = 120) -> list[Any]:
        """Results by rank. The first failure of a rank is raised with its traceback; `LostRanksError` where one has
        died or does not answer: what the others do then is not known."""
        answers: dict[int, tuple[bool, Any]] = {}
        until = time.monotonic() + timeout
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # of a rank that has died: its answer is missed
                pipe.send((module, function, args))
        while len(answers) < len(self.pipes):
            left = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in answers}
            ready = wait(left, max(0.0, until - time.monotonic()))
            if not ready:
                raise LostRanksError("\n".join([f"rank {min(left.values())} does not answer", *_failures(answers)]))
            for pipe in ready:
                rank = left[pipe]
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise LostRanksError("\n".join([f"rank {rank} has died", *_failures(answers)])) from None
                if answers[rank][0]:  # the others may wait for it in a collective
                    until = min(until, time.monotonic() + _PATIENCE_S)
        if failures := _failures(answers):
            raise AssertionError(failures[0])
        return [answers[rank][1] for rank in range(len(self.pipes))]

    def kill(self) -> None:
        """End them whatever they do."""
        for nursery in self.nurseries:
            with contextlib.suppress(ProcessLookupError):  # it has ended, or is not yet a group
                os.killpg(nursery.pid, signal.SIGKILL)
            nursery.kill()
            nursery.join()

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # of a rank that has died
                pipe.send(None)
        for nursery in self.nurseries:
            nursery.join(20)
            if nursery.is_alive():
                nursery.kill()


class Pool:
    """Ranks that are started when they are first asked for, and anew after some were lost: a test in which one dies or
    hangs fails, and the next one has others."""

    def __init__(self, make: Callable[[], Ranks]) -> None:
        self.make, self.ranks = make, None

    def run(self, module: str, function: str, *args: Any, **how: Any) -> list[Any]:
        """As `Ranks.run`."""
        self.ranks = self.ranks or self.make()
        try:
            return self.ranks.run(module, function, *args, **how)
        except LostRanksError:
            self.ranks.kill()
            self.ranks = None
            raise

    def close(self) -> None:
        """End those that there are."""
        if self.ranks is not None:
            self.ranks.close()
        self.ranks = None


def _failures(answers: dict[int, tuple[bool, Any]]) -> list[str]:
    return [text for _, (failed, text) in sorted(answers.items()) if failed]


def _nursery(pipes: list[Connection], ranks: list[int], world: int, meeting: str, modules: list[str]) -> None:
    os.setpgid(0, 0)  # so that all that it starts can be ended together
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # torch makes many objects, and few of them are rings
    children = []
    for rank, own in zip(ranks, pipes, strict=True):
        child = os.fork()
        if child == 0:
            for pipe in pipes:
                if pipe is not own:
                    pipe.close()
            _rank(rank, world, own, meeting)
            os._exit(0)
        children.append(child)
    for pipe in pipes:
        pipe.close()  # so that the end of a rank is the end of its pipe
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)  # an interpreter with torch in it takes seconds to end


def _rank(rank: int, world: int, pipe: Connection, meeting: str) -> None:
    import torch.distributed as dist

    sys.stdout = sys.stderr
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        if job is None:
            return
        module, function, args = job
        try:
            pipe.send((False, getattr(importlib.import_module(module), function)(*args)))
        except BaseException:  # noqa: BLE001 - it is the test's to judge
            pipe.send((True, f"rank {rank}:\n{traceback.format_exc()}"))
