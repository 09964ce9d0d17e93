"""What a program may not call on a value inside a model under a plan."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.distributed import all_reduce

from shardplan.errors import ShardplanError, error

_INNER = error(
    "lost-gradient",
    "a program calls backward on a value inside a model under a plan, as reversible layers do",
    hint="call backward on what the model returns; torch.utils.checkpoint does what reversible layers are for",
)
_OUTSIDE = error(
    "lost-gradient",
    "a loss depends on a value inside of the model, which a forward hook or the model itself has kept",
    detail="under a plan such values have gradients while the model runs; what it returns has them afterwards too",
    hint="let the model return the value beside its result, and compute the loss of what it returns",
)


def refuse_backward(*, is_running: bool) -> NoReturn:
    """Raises `ShardplanError` (`lost-gradient`) for a call of backward on a value inside of a model. `is_running`:
    whether the model runs now."""
    is_inside = is_running or torch._C._current_graph_task_id() != -1  # noqa: SLF001 - there is no public name
    raise ShardplanError(_INNER if is_inside else _OUTSIDE)


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
