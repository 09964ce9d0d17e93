"""Diagnostics as data, and the exception types that carry them.

A `Diagnostic` names what was found, where, what is allowed and what to do next. Validators collect them in lists; the
edge of each module raises one `ShardplanError` that carries all of them, and `shardplan.cli` prints them together.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from shardplan.escapes import one_line, visible

Severity = Literal["error", "warning", "note"]
T = TypeVar("T")


ITEM = "\n  - "
"""Separator of the items of a list in a hint; other line ends in hints are escaped."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One statement to a person, with a stable `code` for machines (`unknown-axis`, `cyclic-graph` ...)."""

    severity: Severity
    code: str
    summary: str
    detail: str = ""
    hint: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        head = f"{where}: " if where else ""
        lines = [one_line(f"{head}{self.severity}[{self.code}]: {self.summary}")]
        lines += [f"  {line}" for line in self.detail.splitlines()]
        if self.hint:
            first, *items = self.hint.split(ITEM)
            lines.append(f"hint: {ITEM.join(map(one_line, (first, *items)))}")
        return visible("\n".join(lines))


OnWarning = Callable[[Diagnostic], None]
"""What is called with every warning."""


def error(code: str, summary: str, **fields: object) -> Diagnostic:
    """A diagnostic of severity `error`; `fields` are those of `Diagnostic`."""
    return Diagnostic("error", code, summary, **fields)  # type: ignore[arg-type]


def warning(code: str, summary: str, **fields: object) -> Diagnostic:
    """A diagnostic of severity `warning`; `fields` are those of `Diagnostic`."""
    return Diagnostic("warning", code, summary, **fields)  # type: ignore[arg-type]


class ShardplanError(Exception):
    """Could not answer: bad arguments or unusable input. Exit code 2."""

    exit_code = 2

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = tuple(dict.fromkeys(diagnostics))
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))


class InfeasibleError(ShardplanError):
    """Proven that no plan fits. Exit code 3."""

    exit_code = 3


class NoneFitsError(InfeasibleError):
    """No plan was found whose schedule fits, which is no proof that there is none. Exit code 4."""

    exit_code = 4


class LimitError(ShardplanError):
    """A limit ended the search before any plan was found. Exit code 4."""

    exit_code = 4


class Attempts:
    """Runs the readings of several inputs and keeps what is wrong with each, to be raised together."""

    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []

    def __call__(self, read: Callable[[], T]) -> T | None:
        """What `read` returns, or None when it raises a `ShardplanError`, which is kept."""
        try:
            return read()
        except ShardplanError as problem:
            self.problems += problem.diagnostics
            return None

    def finish(self) -> None:
        """Raise everything that went wrong, if anything did."""
        if self.problems:
            raise ShardplanError(*self.problems)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """`"did you mean 'batch'?"` for the nearest of `allowed`, or `""` when none is near."""
    near = difflib.get_close_matches(name, sorted(allowed), n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def reason_of(problem: OSError) -> str:
    """Why a file could not be read or written, as part of a sentence: `no such file or directory`."""
    text = problem.strerror or str(problem)
    return text[:1].lower() + text[1:]


def checks_itself() -> bool:
    """Whether defects that an answer survives are raised, as in tests: `SHARDPLAN_CHECK_PRICES` is set."""
    return bool(os.environ.get("SHARDPLAN_CHECK_PRICES"))


_BETWEEN = frozenset((__name__.partition(".")[0], "torch", "jax", "contextlib"))
"""Packages that call one another between a program and what warns of it."""


def warn(text: str) -> None:
    """A warning of Python that names the line of the program: the innermost one outside of this package and of the
    frameworks that call it."""
    frame, level = sys._getframe(), 1  # noqa: SLF001 - `skip_file_prefixes` needs Python 3.12
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
