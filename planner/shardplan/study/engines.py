"""Engines that plan a sweep's points: local processes, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.processes import processors, run_all
from shardplan.request import Request
from shardplan.study.sweep import Combination, Engine, Point, plan_point

_DASK = "dask://"
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """So many `processes` of this machine; 1 plans in the calling process."""

    processes: int = 1

    def points(self, request: Request, combinations: Sequence[Combination]) -> Iterator[Point]:
        """The points in the order in which they finish."""
        return run_all(plan_point, request, combinations, self.processes)


@dataclass(frozen=True, slots=True)
class DaskEngine:
    """The workers of a Dask scheduler. The model is sent to each of them once; points of a lost worker are planned by
    another."""

    address: str

    def points(self, request: Request, combinations: Sequence[Combination]) -> Iterator[Point]:
        """The points in the order in which they finish. Raises `ShardplanError` (`no-dask`, `no-scheduler`)."""
        distributed = _distributed()
        try:
            client = distributed.Client(self.address, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as problem:
            summary = f"there is no Dask scheduler at {self.address}: {problem}"
            raise ShardplanError(error("no-scheduler", summary, hint="start one: dask scheduler")) from None
        with client:
            sent = client.scatter(request, broadcast=True, hash=False)
            futures = [client.submit(plan_point, sent, one, pure=False, retries=_RETRIES) for one in combinations]
            for future in distributed.as_completed(futures, loop=client.loop):
                yield future.result()


def engine_of(text: str) -> Engine:
    """The engine of `--engine`: `local`, or `dask://HOST:PORT`. Raises `ShardplanError` (`bad-engine`, `no-dask`)."""
    if text == "local":
        return LocalEngine(processors())
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
