"""What the collectives of an exported program mean, as code: ONNX's reference evaluator runs all ranks in one process.

Every rank runs in a thread of its own and meets the others at each collective. This is for checking programs and for
reading; it is not fast.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from shardplan.program.steps import DOMAIN

Array = NDArray[Any]
Group = list[int]
_COMBINE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip
_PATIENCE_SECONDS = 600.0


def read_ranks(folder: str | Path) -> list[ModelProto]:
    """The programs of all ranks in an exported folder, with their weights."""
    found = sorted(Path(folder).glob("rank-*"), key=lambda path: int(path.name.partition("-")[2]))
    return [onnx.load(path / "program.onnx") for path in found]


def run_ranks(models: Sequence[ModelProto], feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Run the program of every rank with its local inputs; the local outputs of every rank by name.

    What a rank raises is raised here; the others stop at their next collective.
    """
    meeting = _Meeting(len(models))
    results: list[dict[str, Array]] = [{} for _ in models]
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            evaluator = ReferenceEvaluator(models[rank], new_ops=_collectives(meeting, rank))
            names = [output.name for output in models[rank].graph.output]
            results[rank] = dict(zip(names, evaluator.run(None, dict(feeds[rank])), strict=True))
        except threading.BrokenBarrierError:
            return  # another rank has failed, and says why
        except BaseException as problem:  # noqa: BLE001 - raised again where the caller is
            problems.append(problem)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return results


class _Meeting:
    """Where ranks put what they give and take what the others gave."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=_PATIENCE_SECONDS)
        self.given: list[tuple[object, Array | None]] = [("", None)] * ranks

    def exchange(self, rank: int, what: object, array: Array) -> list[Array]:
        """The arrays of all ranks, of which every one must be at the same collective."""
        self.given[rank] = (what, array)
        self.barrier.wait()
        asked = {str(what) for what, _ in self.given}
        arrays = [array for _, array in self.given if array is not None]
        self.barrier.wait()
        if len(asked) > 1:
            raise RuntimeError(f"ranks are at different collectives: {' and '.join(sorted(asked))}")
        return arrays


def _all_reduce(arrays: Sequence[Array], group: Group, rank: int, *, reduction: str) -> Array:
    del rank
    return functools.reduce(_COMBINE[reduction], (arrays[member] for member in group))


def _all_gather(arrays: Sequence[Array], group: Group, rank: int, *, dim: int) -> Array:
    del rank
    return np.concatenate([arrays[member] for member in group], axis=dim)


def _reduce_scatter(arrays: Sequence[Array], group: Group, rank: int, *, dim: int, reduction: str) -> Array:
    total = _all_reduce(arrays, group, rank, reduction=reduction)
    return np.split(total, len(group), axis=dim)[group.index(rank)]


def _all_to_all(arrays: Sequence[Array], group: Group, rank: int, *, split_dim: int, concat_dim: int) -> Array:
    mine = group.index(rank)
    return np.concatenate(
        [np.split(arrays[member], len(group), axis=split_dim)[mine] for member in group], axis=concat_dim
    )


_GROUPED: Mapping[str, Callable[..., Array]] = {
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
    "ReduceScatter": _reduce_scatter,
    "AllToAll": _all_to_all,
}
_SETTINGS = ("dim", "reduction", "split_dim", "concat_dim")


def _collectives(meeting: _Meeting, rank: int) -> list[type[OpRun]]:
    """The operators of the domain, as one rank runs them."""

    class Collective(OpRun):  # type: ignore[misc]
        op_domain = DOMAIN

        def _run(self, array: Array, **settings: Any) -> tuple[Array]:
            kind = type(self).__name__
            arrays = meeting.exchange(rank, (kind, self.onnx_node.name), array)
            if kind == "Permute":
                pairs = np.array(settings["source_target_pairs"]).reshape(-1, 2).tolist()
                senders = [source for source, target in pairs if target == rank]
                return (arrays[senders[0]] if senders else np.zeros_like(array),)
            groups = np.array(settings["groups"]).reshape(-1, settings["group_size"]).tolist()
            group = next(group for group in groups if rank in group)
            given = {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
            return (_GROUPED[kind](arrays, group, rank, **given),)

    return [type(kind, (Collective,), {}) for kind in (*_GROUPED, "Permute")]
