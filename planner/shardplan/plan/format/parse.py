"""Parses the text of a plan file as a JSON document; errors say what is wrong and on which line.

Stricter than JSON: no key twice in one object, and only numbers that a plan can have (finite, whole ones below 2^63).
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NoReturn

from shardplan.errors import ShardplanError, error
from shardplan.plan.format.fields import MAJOR

Document = dict[str, object]
_LARGEST = 2**63
WRITTEN: Final = "plans are written by shardplan solve"
"""The hint where a file is no plan."""
_OTHER_JSON: Final = "this is JSON, but not a plan of shardplan"


class _TwiceError(ValueError):
    """A key occurs twice in one object."""


class _NumberError(ValueError):
    """A number, as written, that no plan can have."""


def parsed(text: str, path: str) -> Document:
    """The document in `text`; `path` is named in errors.

    Raises `ShardplanError`: `not-a-plan` (no JSON object with a format version), `unsupported-format` (another major
    version), `damaged-plan` (syntax, keys given twice, impossible numbers).
    """
    try:
        document = json.loads(
            text, parse_int=_integer, parse_float=_number, parse_constant=_number, object_pairs_hook=_object
        )
    except RecursionError:
        summary = "this is not a plan of shardplan: it is nested too deeply"
        raise ShardplanError(error("not-a-plan", summary, file=path, hint=WRITTEN)) from None
    except json.JSONDecodeError as problem:
        _refuse_syntax(text, path, problem)
    except _TwiceError as problem:
        _refuse(text, path, f"the key '{problem}' is given twice", "")
    except _NumberError as problem:
        number = str(problem)
        shown = number if len(number) <= 30 else f"{number[:20]}... ({len(number)} characters)"
        where = rf"(?<=[\s:,\[]){re.escape(number)}(?=[\s,\]}}])"
        _refuse(text, path, f"{shown} is no number that a plan can have", where)
    if not isinstance(document, dict) or not isinstance(document.get("format_version"), str) or "model" not in document:
        raise ShardplanError(error("not-a-plan", _OTHER_JSON, file=path, hint=WRITTEN))
    _check_version(str(document["format_version"]), path)
    return document


def _integer(text: str) -> int:
    if len(text) > len(str(_LARGEST)) or abs(int(text)) >= _LARGEST:
        raise _NumberError(text)
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(text)
    return value


def _object(pairs: list[tuple[str, object]]) -> Document:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return found


def _refuse(text: str, path: str, summary: str, pattern: str) -> NoReturn:
    """`pattern`: the regular expression that finds the line; `""` if nothing does."""
    if not _looks_like_a_plan(text):
        raise ShardplanError(error("not-a-plan", _OTHER_JSON, file=path, hint=WRITTEN)) from None
    found = re.search(pattern, text) if pattern else None
    line = text.count("\n", 0, found.start()) + 1 if found else None
    raise ShardplanError(error("damaged-plan", summary, file=path, line=line, hint="solve again")) from None


def _looks_like_a_plan(text: str) -> bool:
    return '"format_version"' in text[:200]


def _refuse_syntax(text: str, path: str, problem: json.JSONDecodeError) -> NoReturn:
    conflict = re.search(r"^<{7} ", text, re.MULTILINE)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        summary, hint = "the plan contains git's conflict markers", "solve again instead of merging by hand"
        raise ShardplanError(error("damaged-plan", summary, file=path, line=line, hint=hint)) from None
    if not _looks_like_a_plan(text):
        raise ShardplanError(
            error("not-a-plan", "this is not a plan of shardplan: it is not JSON", file=path, hint=WRITTEN)
        ) from None
    summary = f"the plan is not valid JSON: {problem.msg}"
    hint = "was it cut off or edited? solve again"
    raise ShardplanError(
        error("damaged-plan", summary, file=path, line=problem.lineno, column=problem.colno, hint=hint)
    ) from None


def _check_version(version: str, path: str) -> None:
    if version.partition(".")[0] != str(MAJOR):
        summary = f"this plan has format version {version}; this shardplan reads {MAJOR}.x"
        hint = "solve again with this version, or install the version that wrote the plan"
        raise ShardplanError(error("unsupported-format", summary, file=path, hint=hint))
