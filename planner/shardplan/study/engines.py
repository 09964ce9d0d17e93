"""Where a sweep's points are planned: in processes of this machine, or by the workers of a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.study.sweep import Engine, Point, Request, plan_point

_DASK = "dask://"
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """`processes` of this machine; 1 plans in this one."""

    processes: int = 1

    def points(self, model: Model, options: PlanOptions, requests: Sequence[Request]) -> Iterator[Point]:
        """The points as they are done."""
        if self.processes < 2 or len(requests) < 2:
            for request in requests:
                yield plan_point(model, options, request)
            return
        context = multiprocessing.get_context("spawn")
        given = (model, options)
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(self.processes, mp_context=context, initializer=_receive, initargs=given)
        try:
            for future in as_completed([pool.submit(_plan_here, request) for request in requests]):
                yield future.result()
        except BaseException:  # Ctrl-C, or nobody asks for more: what is begun may take minutes
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class DaskEngine:
    """The workers of a Dask scheduler. The model is sent to them once; what a lost worker had is planned by another."""

    address: str

    def points(self, model: Model, options: PlanOptions, requests: Sequence[Request]) -> Iterator[Point]:
        """The points as they are done. Raises `ShardplanError` (`no-dask`, `no-scheduler`)."""
        distributed = _distributed()
        try:
            client = distributed.Client(self.address, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as problem:
            summary = f"there is no Dask scheduler at {self.address}: {problem}"
            raise ShardplanError(error("no-scheduler", summary, hint="start one: dask scheduler")) from None
        with client:
            sent = client.scatter((model, options), broadcast=True, hash=False)
            futures = [client.submit(_plan_there, sent, request, pure=False, retries=_RETRIES) for request in requests]
            for future in distributed.as_completed(futures, loop=client.loop):
                yield future.result()


def engine_of(text: str) -> Engine:
    """The engine of `--engine`: `local`, or `dask://HOST:PORT`. Raises `ShardplanError` (`bad-engine`, `no-dask`)."""
    if text == "local":
        return LocalEngine(os.cpu_count() or 1)
    if text.startswith(_DASK) and text != _DASK:
        _distributed()
        return DaskEngine("tcp://" + text.removeprefix(_DASK))
    hint = "local, or dask://HOST:PORT of a Dask scheduler"
    raise ShardplanError(error("bad-engine", f"there is no engine '{text}'", hint=hint))


def _distributed() -> Any:
    try:
        import distributed  # noqa: PLC0415 - an extra
    except ImportError:
        hint = "pip install 'shardplan[sweep]'"
        raise ShardplanError(error("no-dask", "Dask is not installed", hint=hint)) from None
    return distributed


_GIVEN: list[tuple[Model, PlanOptions]] = []
"""In a worker process: what it was given when it began."""


def _receive(model: Model, options: PlanOptions) -> None:
    if hasattr(os, "setpgrp"):  # Ctrl-C is for the process that asked: half a search is no point
        os.setpgrp()
    _GIVEN[:] = [(model, options)]


def _plan_here(request: Request) -> Point:
    return plan_point(*_GIVEN[0], request)


def _plan_there(given: tuple[Model, PlanOptions], request: Request) -> Point:
    return plan_point(*given, request)
