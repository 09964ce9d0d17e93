"""The file format of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (github.com/google/iopddl), read
as a stream.

    {"problem": {"name": ..., "nodes": {"intervals": [[0, 9], ...], "costs": [[15], ...], "usages": [[10], ...]},
                 "edges": {"nodes": [[0, 1], ...], "costs": [[30, 40], ...]}, "usage_limit": 50}}

Files are up to a gigabyte of digits. The text is looked at a piece at a time and numbers go straight into flat arrays;
nothing is kept per number. 1e18 and more means: not allowed.
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.solve.problem import Edge, Problem, Usage
from shardplan.solve.validate import memory_fault
from shardplan.units import counted

FORBIDDEN = 10**18
_ENDLESS = 1 << 62
"""A limit that no sum of usages exceeds (`memory_fault`), and that 64 bits hold."""
_FARTHEST = 2**63 - 1
_SURE_DIGITS = 19
"""Numbers of fewer digits are within 64 bits."""
_LONGEST = 40
"""Characters of the file that a message repeats."""
_LATEST = 1 << 26
PIECE = 1 << 20
_SPACE = b" \t\r\n"
_DIGITS = b"0123456789+-.eE"
_DIGIT, _COMMA, _BETWEEN, _OPEN, _SHUT, _STRANGE = range(6)
_KIND = bytearray([_STRANGE]) * 256
for _characters, _kind in ((_DIGITS, _DIGIT), (b",", _COMMA), (_SPACE, _BETWEEN), (b"[", _OPEN), (b"]", _SHUT)):
    for _character in _characters:
        _KIND[_character] = _kind
_BLANK = bytes.maketrans(b"[],\t\r\n", b"      ")
_KEYS = {
    "": {"problem"},
    "problem": {"name", "nodes", "edges", "usage_limit"},
    "problem.nodes": {"intervals", "costs", "usages"},
    "problem.edges": {"nodes", "costs"},
}
_PRICES = ("problem.nodes.costs", "problem.edges.costs")


class _MalformedError(Exception):
    """What is wrong with the text, told to the reader of the file by `read_problem`."""


@dataclass(frozen=True, slots=True)
class _Ragged:
    """Rows of numbers: row i is `values[ends[i - 1]:ends[i]]`."""

    values: NDArray[Any]
    ends: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        start = 0
        for end in self.ends.tolist():
            yield start, end
            start = end


def read_problem(path: Path) -> Problem:
    """The problem of a contest file, `.json` or `.json.gz`. Raises `ShardplanError` saying what is malformed, and
    where."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            fields = _Reader(cast("IO[bytes]", file)).fields()
        return _problem(fields)
    except _MalformedError as fault:
        raise ShardplanError(error("bad-problem", str(fault), file=str(path))) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        summary = "the gzip data ends early or is damaged"
        raise ShardplanError(error("bad-problem", summary, file=str(path), hint="fetch the file again")) from None
    except OSError as fault:
        raise ShardplanError(error("unreadable", fault.strerror or str(fault), file=str(path))) from None


class _Reader:
    """A position in the text, and the piece of it that is in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.piece = b""
        self.at = 0
        self.before = 0  # bytes of the file ahead of this piece

    def fields(self) -> dict[str, object]:
        """Everything that is not an object, by dotted name."""
        found: dict[str, object] = {}
        self._object("", found)
        if self._peek():
            raise _MalformedError(f"byte {self._byte}: text after the end of the document")
        return found

    @property
    def _byte(self) -> int:
        return self.before + self.at

    def _refill(self) -> bool:
        fresh = self.file.read(PIECE)
        self.before += self.at
        self.piece, self.at = self.piece[self.at :] + fresh, 0
        return bool(fresh)

    def _peek(self) -> bytes:
        """The next character that is no space; empty at the end."""
        while True:
            while self.at < len(self.piece) and self.piece[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.piece):
                return self.piece[self.at : self.at + 1]
            if not self._refill():
                return b""

    def _expect(self, characters: bytes) -> bytes:
        found = self._peek()
        if not found or found not in characters:
            wanted = " or ".join(f"'{chr(character)}'" for character in characters)
            raise _MalformedError(f"byte {self._byte}: {wanted} expected, found {_shown(found)}")
        self.at += 1
        return found

    def _object(self, name: str, found: dict[str, object]) -> None:
        self._expect(b"{")
        seen: set[str] = set()
        while True:
            key = self._string()
            if key not in _KEYS[name]:
                where = f"'{name}'" if name else "the document"
                hint = did_you_mean(key, _KEYS[name])
                raise _MalformedError(
                    f"byte {self._byte}: unknown key '{key}' in {where}" + (f"; {hint}" if hint else "")
                )
            if key in seen:
                raise _MalformedError(f"byte {self._byte}: key '{key}' comes twice")
            seen.add(key)
            self._expect(b":")
            path = f"{name}.{key}" if name else key
            if path in _KEYS:
                self._object(path, found)
            elif path == "problem.name":
                found[path] = self._string()
            elif path == "problem.usage_limit":
                found[path] = self._integer()
            else:
                found[path] = self._rows(path)
            if self._expect(b",}") == b"}":
                return

    def _string(self) -> str:
        self._expect(b'"')
        while True:
            end = self.piece.find(b'"', self.at)
            while end >= 0 and _is_escaped(self.piece[self.at : end]):
                end = self.piece.find(b'"', end + 1)
            if end >= 0:
                text = self.piece[self.at : end]
                try:
                    read = str(json.loads(b'"' + text + b'"'))
                except ValueError:
                    what = "holds an escape or a character that no string of JSON may"
                    raise _MalformedError(f"byte {self._byte}: {_shown(text[:_LONGEST])} {what}") from None
                self.at = end + 1
                return read
            if not self._refill():
                raise _MalformedError(f"byte {self._byte}: a string without an end")

    def _integer(self) -> int:
        self._peek()
        while not (rest := self.piece[self.at :].lstrip(b"0123456789-")):
            if not self._refill():
                break
        text = self.piece[self.at : len(self.piece) - len(rest)]
        try:
            value = int(text)
        except ValueError:
            raise _MalformedError(f"byte {self._byte}: an integer expected, found {_shown(text or rest[:1])}") from None
        self.at += len(text)
        return value

    def _rows(self, name: str) -> _Ragged:
        """A list of lists of integers."""
        self._expect(b"[")
        depth, total, commas = 1, 0, np.zeros(3, dtype=np.int64)
        values = _Growing(_priced(np.zeros(0, dtype=np.int64)) if name in _PRICES else np.zeros(0, dtype=np.int64))
        ends: list[NDArray[np.int64]] = []
        while depth:
            if self.at == len(self.piece) and not self._refill():
                raise _MalformedError(f"byte {self._byte}: '{name}' ends before its last ']'")
            part = self._take(name, depth)
            depth = int(part.depths[-1])
            numbers = _numbers(part, name)
            values.append(_priced(numbers) if name in _PRICES else numbers)
            ends.append(total + np.searchsorted(part.starts, part.brackets[part.shut & (part.depths[1:] == 1)]))
            total += len(part.starts)
            commas += np.bincount(part.depths, weights=part.between(part.commas), minlength=3).astype(np.int64)
        rows = _Ragged(values.whole(), np.concatenate(ends))
        if commas[1] != max(len(rows.ends) - 1, 0) or commas[2] != np.maximum(rows.lengths - 1, 0).sum():
            raise _MalformedError(f"'{name}' has a comma too many or too few")
        return rows

    def _take(self, name: str, depth: int) -> _Part:
        """The next part of a list that cuts no number."""
        while True:
            part = _part(self.piece[self.at :], depth)
            if part.text:
                break
            if not self._refill():
                raise _MalformedError(f"byte {self._byte}: '{name}' ends before its last ']'")
        flat = part.between(part.starts) * (part.depths == 1) > 0
        strange = [part.brackets[part.strange], part.brackets[part.depths[1:] > 2]]
        if flat.any():
            first = int(np.flatnonzero(flat)[0])
            strange.append(part.starts[np.searchsorted(part.starts, part.brackets[first - 1] if first else 0) :])
        if wrong := [int(places[0]) for places in strange if len(places)]:
            at = min(wrong)
            found = _shown(part.text[at : at + 1])
            raise _MalformedError(f"byte {self._byte + at}: '{name}' is a list of lists of integers, found {found}")
        self.at += len(part.text)
        return part


class _Growing:
    """An array that pieces are added to. Its memory is extended where it is: nothing is there twice."""

    def __init__(self, empty: NDArray[Any]) -> None:
        self.held = empty
        self.used = 0

    def append(self, piece: NDArray[Any]) -> None:
        end = self.used + len(piece)
        if end > len(self.held):
            self.held.resize(max(end, 3 * len(self.held) // 2), refcheck=False)
        self.held[self.used : end] = piece
        self.used = end

    def whole(self) -> NDArray[Any]:
        """Everything that was added; no more may be."""
        self.held.resize(self.used, refcheck=False)
        return self.held


@dataclass(frozen=True, slots=True)
class _Part:
    """A text of a list of lists and the places of what matters in it: `depths[i]` is the depth of brackets ahead of
    bracket i, the last one that after all of them. What belongs in no list counts as a bracket that changes nothing."""

    text: bytes
    brackets: NDArray[np.int64]
    depths: NDArray[np.int64]
    shut: NDArray[np.bool_]
    strange: NDArray[np.bool_]
    starts: NDArray[np.int64]
    commas: NDArray[np.int64]

    def between(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many places lie ahead of each bracket and behind the one before it; last, behind all of them."""
        return np.diff(np.searchsorted(places, self.brackets), prepend=0, append=len(places))


def _part(text: bytes, depth: int) -> _Part:
    """A text up to where the outermost list ends, or else up to its last character that is in no number."""
    kinds = np.frombuffer(text.translate(_KIND), dtype=np.uint8)
    brackets = np.flatnonzero(kinds >= _OPEN)
    which = kinds[brackets]
    depths = depth + np.cumsum((which == _OPEN).astype(np.int64) - (which == _SHUT))
    closed = np.flatnonzero(depths == 0)
    stop = int(brackets[closed[0]]) + 1 if len(closed) else len(text.rstrip(_DIGITS))
    count = int(np.searchsorted(brackets, stop))
    digit = kinds[:stop] == _DIGIT
    digit[1:] &= kinds[: max(stop - 1, 0)] != _DIGIT
    return _Part(
        text=text[:stop],
        brackets=brackets[:count],
        depths=np.concatenate([[depth], depths[:count]]),
        shut=which[:count] == _SHUT,
        strange=which[:count] == _STRANGE,
        starts=np.flatnonzero(digit),
        commas=np.flatnonzero(kinds[:stop] == _COMMA),
    )


def _is_escaped(before: bytes) -> bool:
    """Whether a quote after this text belongs to the string: an odd number of backslashes is right ahead of it."""
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _numbers(part: _Part, name: str) -> NDArray[np.int64]:
    """The integers in a part of a list."""
    words = part.text.translate(_BLANK)
    has_marks = any(mark in words for mark in (b".", b"e", b"E"))
    numbers = _read_integers(_exactly(words, name) if has_marks else words)
    if numbers.max(initial=0) == _FARTHEST:  # of what 64 bits do not hold, even the sign is lost
        numbers = _read_integers(_exactly(words, name))
    if len(numbers) != len(part.starts):
        raise _MalformedError(f"'{name}' holds something that is no integer")
    if numbers.min(initial=0) < -FORBIDDEN:
        raise _MalformedError(f"'{name}' holds a number below -{FORBIDDEN:,}, the least that is read")
    return numbers


def _read_integers(words: bytes) -> NDArray[np.int64]:
    """The integers of a text, those beyond 64 bits as the largest there is; fewer where a word is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what numpy said before it raised
        try:
            return np.fromstring(words, dtype=np.int64, sep=" ") if words.strip() else np.zeros(0, dtype=np.int64)
        except ValueError:
            return np.zeros(0, dtype=np.int64)


def _exactly(words: bytes, name: str) -> bytes:
    """The same numbers without points and exponents. Those far beyond 64 bits are cut off, which is as good: they are
    forbidden, or refused."""
    parts = words.split()
    unsure = (word for word in dict.fromkeys(parts) if not word.isdigit() or len(word) >= _SURE_DIGITS)
    exact = {word: b"%d" % _whole(word, name) for word in unsure}
    return b" ".join([exact.get(word, word) for word in parts])


def _whole(word: bytes, name: str) -> int:
    try:
        value = Decimal(word.decode())
    except InvalidOperation:
        value = Decimal("NaN")
    if value != value.to_integral_value():
        raise _MalformedError(f"'{name}' holds {_shown(word[:_LONGEST])}, which is no integer")
    return int(max(min(value, Decimal(_FARTHEST)), Decimal(-_FARTHEST)))


def _shown(text: bytes) -> str:
    return f"'{text.decode(errors='replace')}'" if text else "the end of the file"


def _problem(fields: dict[str, object]) -> Problem:
    missing = [
        f"{parent}.{key}"
        for parent in ("problem.nodes", "problem.edges")
        for key in sorted(_KEYS[parent])
        if f"{parent}.{key}" not in fields
    ]
    if missing:
        raise _MalformedError("missing: " + ", ".join(f"'{name}'" for name in missing))
    intervals, costs, usages = (_rows(fields, f"problem.nodes.{key}") for key in ("intervals", "costs", "usages"))
    ends, tables = (_rows(fields, f"problem.edges.{key}") for key in ("nodes", "costs"))
    limit = fields.get("problem.usage_limit")
    _check_nodes(intervals, costs, usages)
    _check_edges(ends, tables, costs.lengths)
    prices, pairs = costs.values, tables.values
    sizes, times, joined = costs.lengths.tolist(), intervals.values.tolist(), ends.values.tolist()
    edges = zip(joined[::2], joined[1::2], tables, strict=True)
    problem = Problem(
        costs=tuple(prices[a:b] for a, b in costs),
        edges=tuple(Edge(u, v, pairs[a:b].reshape(sizes[u], sizes[v])) for u, v, (a, b) in edges),
        usages=tuple(
            Usage(node, times[2 * node], times[2 * node + 1], usages.values[a:b]) for node, (a, b) in enumerate(usages)
        ),
        limit=min(limit, _ENDLESS) if isinstance(limit, int) else None,
    )
    if fault := memory_fault(problem):
        raise _MalformedError(fault)
    return problem


def _rows(fields: dict[str, object], name: str) -> _Ragged:
    rows = fields[name]
    assert isinstance(rows, _Ragged)
    return rows


def _priced(values: NDArray[np.int64]) -> NDArray[np.float64]:
    prices = values.astype(np.float64)
    prices[values >= FORBIDDEN] = np.inf
    return prices


def _check_nodes(intervals: _Ragged, costs: _Ragged, usages: _Ragged) -> None:
    count = len(costs.ends)
    if not len(intervals.ends) == count == len(usages.ends):
        raise _MalformedError(
            f"{counted(len(intervals.ends), 'interval')}, {counted(count, 'cost')} and "
            f"{counted(len(usages.ends), 'usage')}: one each per node"
        )
    _refuse("node", intervals.lengths != 2, lambda v: f"its interval has {counted(intervals.lengths[v], 'end')}, not 2")
    start, end = intervals.values[::2], intervals.values[1::2]
    _refuse("node", (start < 0) | (end < start), lambda v: f"[{start[v]}, {end[v]}) is no interval of time")
    _refuse("node", end > _LATEST, lambda v: f"[{start[v]}, {end[v]}) ends after {_LATEST:,}, the last moment there is")
    _refuse("node", costs.lengths == 0, lambda _: "it has no choices")
    _refuse(
        "node",
        costs.lengths != usages.lengths,
        lambda v: f"{counted(costs.lengths[v], 'cost')} and {counted(usages.lengths[v], 'usage')}: one each per choice",
    )
    negative = np.searchsorted(usages.ends, np.flatnonzero(usages.values < 0), side="right")
    _refuse("node", np.bincount(negative, minlength=count) > 0, lambda _: "a usage is negative")


def _check_edges(ends: _Ragged, tables: _Ragged, sizes: NDArray[np.int64]) -> None:
    if len(ends.ends) != len(tables.ends):
        raise _MalformedError(
            f"{counted(len(ends.ends), 'edge')} and {counted(len(tables.ends), 'cost table')}: one table per edge"
        )
    _refuse("edge", ends.lengths != 2, lambda e: f"it joins {counted(ends.lengths[e], 'node')}, not 2")
    u, v = ends.values[::2], ends.values[1::2]
    outside = (np.minimum(u, v) < 0) | (np.maximum(u, v) >= len(sizes))
    _refuse("edge", outside, lambda e: f"it joins nodes {u[e]} and {v[e]}; there are nodes 0 to {len(sizes) - 1}")
    _refuse("edge", u == v, lambda e: f"it joins node {u[e]} to itself")
    wanted = sizes[u] * sizes[v]
    _refuse(
        "edge",
        wanted != tables.lengths,
        lambda e: (
            f"it has {counted(int(tables.lengths[e]), 'cost')} and must have {wanted[e]}: "
            f"its nodes have {sizes[u[e]]} and {sizes[v[e]]} choices"
        ),
    )


def _refuse(kind: str, faulty: NDArray[np.bool_], explain: Callable[[int], str]) -> None:
    places = np.flatnonzero(faulty).tolist()
    if places:
        more = f" ({len(places)} {kind}s are like that)" if len(places) > 1 else ""
        raise _MalformedError(f"{kind} {places[0]}: {explain(places[0])}{more}")
