"""Solutions in files: `{"solution": [...], "cost": ..., "bound": ..., "outcome": ...}`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.solve.problem import Solution
from shardplan.text_files import read_text
from shardplan.whole_files import write_whole

_HEADS = ('{"solution"', "[")


def solution_document(solution: Solution) -> dict[str, Any]:
    """What a solution file holds. Costs are integers; a bound that is no number (nothing proven, or infeasible) is
    `None`."""
    found = solution.choices is not None
    return {
        "solution": list(solution.choices) if solution.choices is not None else None,
        "cost": int(solution.cost) if found else None,
        "bound": int(solution.bound) if abs(solution.bound) != float("inf") else None,
        "outcome": solution.outcome,
        "reproducible": solution.reproducible,
    }


def check_solution_file(path: Path) -> None:
    """Refuse, before any work is done, a path that a solution cannot or should not be written to: it raises
    `ShardplanError` for a file that exists and is no solution, such as the problem itself."""
    try:
        if not path.exists():
            folder = path.absolute().parent
            if not folder.is_dir():
                raise NotADirectoryError(0, f"there is no folder '{path.parent}'")
            writable = os.access(folder, os.W_OK)
        else:
            with path.open("rb") as file:
                head = file.read(40).decode(errors="replace")
            if head.strip() and not head.lstrip().startswith(_HEADS):
                raise FileExistsError(0, "this file exists and is no solution; it is left as it is")
            writable = os.access(path, os.W_OK)
        if not writable:
            raise PermissionError(0, "permission denied")
    except OSError as fault:
        raise _unwritable(path, fault) from None


def write_solution(solution: Solution, path: Path) -> None:
    """Write a solution file; it is whole or not there. Raises `ShardplanError` where nothing can be written."""
    try:
        write_whole(path, solution_text(solution).encode())
    except OSError as fault:
        raise _unwritable(path, fault) from None


def solution_text(solution: Solution) -> str:
    """A solution file's text: one line."""
    return json.dumps(solution_document(solution)) + "\n"


def read_solution(path: Path) -> tuple[list[int], int | None]:
    """The choices in a solution file, or in a bare list, and the cost that it gives for them.

    Raises `ShardplanError` for a file that cannot be read or is something else.
    """
    try:
        document = json.loads(read_text(path))
    except OSError as fault:
        raise ShardplanError(error("unreadable", fault.strerror or str(fault), file=str(path))) from None
    except RecursionError:
        raise _bad_solution(path, "it is nested too deeply") from None
    except ValueError as fault:
        raise _bad_solution(path, f"not a JSON document: {fault}") from None
    choices, claimed = document, None
    if isinstance(document, dict):
        choices, claimed = document.get("solution"), document.get("cost")
    if not isinstance(choices, list) or not all(type(choice) is int for choice in choices):
        raise _bad_solution(path, "a solution is a list of integers, one choice per node")
    return choices, claimed if type(claimed) is int else None


def _bad_solution(path: Path, summary: str) -> ShardplanError:
    return ShardplanError(error("bad-solution", summary, file=str(path)))


def _unwritable(path: Path, fault: OSError) -> ShardplanError:
    summary = f"cannot write the solution: {fault.strerror or fault}"
    return ShardplanError(error("unwritable-output", summary, file=str(path), hint="write elsewhere with --output"))
