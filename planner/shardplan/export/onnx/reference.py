"""Reference semantics of an exported program's collectives: ONNX's reference evaluator runs all ranks in one process.

Every rank runs in its own thread and meets the others at each collective. This is for checking programs and for
reading; it is not fast.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from shardplan.program.collectives import NODE_KINDS, run_node
from shardplan.program.nodes import DOMAIN

Array = NDArray[Any]
_TIMEOUT_SECONDS = 600.0


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
    """The exchange at a collective: ranks put their operands, and take the result once all have arrived."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, self._carry_out, timeout=_TIMEOUT_SECONDS)
        self.given: list[tuple[OpRun, Array, Mapping[str, Any]] | None] = [None] * ranks
        self.got: list[Array] = []
        self.problem = ""

    def exchange(self, rank: int, node: OpRun, array: Array, settings: Mapping[str, Any]) -> Array:
        """What `rank` gets. All ranks must be at the same collective."""
        self.given[rank] = (node, array, settings)
        self.barrier.wait()
        if self.problem:
            raise RuntimeError(self.problem)
        return self.got[rank]

    def _carry_out(self) -> None:
        given = [entry for entry in self.given if entry is not None]
        asked = sorted({f"('{type(node).__name__}', '{node.onnx_node.name}')" for node, _, _ in given})
        if len(asked) > 1:
            self.problem = f"ranks are at different collectives: {' and '.join(asked)}"
            return
        node, _, settings = given[0]
        self.got = run_node(type(node).__name__, [array for _, array, _ in given], settings)


def _collectives(meeting: _Meeting, rank: int) -> list[type[OpRun]]:
    """The operators of the domain, as one rank runs them."""

    class Collective(OpRun):  # type: ignore[misc]
        op_domain = DOMAIN

        def _run(self, array: Array, **settings: Any) -> tuple[Array]:
            return (meeting.exchange(rank, self, array, settings),)

    return [type(kind, (Collective,), {}) for kind in NODE_KINDS]
