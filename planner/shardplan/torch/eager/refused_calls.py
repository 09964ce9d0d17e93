"""What a program may not call on a value inside a model under a plan."""

from __future__ import annotations

from typing import Any

from torch.distributed import all_reduce

from shardplan.errors import ShardplanError, error

INNER_BACKWARD = error(
    "lost-gradient",
    "a program calls backward on a value inside a model under a plan, as reversible layers do",
    hint="call backward on what the model returns; torch.utils.checkpoint does what reversible layers are for",
)


def refuse_collective(func: Any) -> None:
    """Raises `ShardplanError` (`own-collective`) for a collective that the program itself issues on a value: processes
    have different parts of it, and which ones is the plan's matter."""
    is_operator = getattr(func, "namespace", "") in ("c10d", "_c10d_functional")
    if is_operator or getattr(func, "__module__", "") == _COLLECTIVES:
        name = getattr(func, "__name__", str(func)).partition(".")[0].strip("_")
        raise ShardplanError(
            error(
                "own-collective",
                f"the model calls a collective ({name}) on a value, which under a plan is that of the whole batch",
                hint="turn off what the model sends between processes, as for one process (sync_codebook=False)",
            )
        )


_COLLECTIVES = all_reduce.__module__
