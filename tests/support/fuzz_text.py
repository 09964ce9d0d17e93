"""Mutations of bytes, text and JSON documents: of any format."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, MutableMapping, MutableSequence, Sequence
from random import Random
from typing import Any

Path = tuple[Any, ...]
JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 1e-9, 1.5, -0.5, 1e300, 1e18, 2**31, 2**53, 2**62, 2**70, 10**30,
    float("nan"), float("inf"), "", " ", "zz", "S(0)@gpu", "R", "P", "R/P@gpu", "1/0", "-", "*", "training", "0",
    "a\n::error::b", "\x1b[2J", "\u202e", "\ud800", "a|b`c`<script>", [], [[]], [None], [0, 5], [[0, 5]], ["gpu"], {},
    {"a": []}, {"0": [1]}, [1] * 50,
)  # fmt: skip
BITS = ("\t", "\n", " ", ":", "-", "- ", "{", "}", "[", "]", ",", "'", '"', "#", "&a", "*a", "!!int ", "%", "|", ">",
        "~", "null", "true", "1e999", "-1", "0", "9" * 40, "nan", ".inf", "1 GB", "-3 us", "\x00", "\u202e",
        "\x1b[2J", "é", "<<: *a", "?", "\\", "\r", "1:30", "0x1f", "1_000", "=", "..", "/", "builtin:")  # fmt: skip

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "0.5",
    "1e-9",
    "1e9",
    "1e18",
    "1e300",
    "1e999",
    "nan",
    "16777216",
    "1000000",
    "9" * 30,
)


def changed_bytes(content: bytes, random: Random, most: int = 4) -> bytes:
    """`content` with bytes that are others, gone, repeated or moved."""
    changed = bytearray(content)
    for _ in range(random.randint(1, most)):
        if not changed:
            break
        at, width = random.randrange(len(changed)), random.choice((1, 2, 4, 8, 64))
        what = random.randrange(6)
        if what == 0:
            changed[at] = random.randrange(256)
        elif what == 1:
            changed[at] ^= 1 << random.randrange(8)
        elif what == 2:
            del changed[at : at + width]
        elif what == 3:
            changed[at:at] = changed[at : at + width]
        elif what == 4:
            to = random.randrange(len(changed))
            changed[to : to + width] = changed[at : at + width]
        elif random.random() < 0.2:
            del changed[at:]
        else:
            changed[at : at + 1] = random.choice((b"\xff", b"\x80", b"\x00", b"\x7f", b"\xff\xff\xff\xff\x0f"))
    return bytes(changed)


def changed_text(text: str, random: Random, donors: Sequence[str] = ()) -> str:
    """`text` with lines and words that are others, gone, repeated, moved, or those of a donor."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        lines = text.splitlines(keepends=True) or [""]
        at = random.randrange(len(lines))
        what = random.randrange(8)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(random.randrange(len(lines) + 1), lines[at])
        elif what == 2:
            lines[at] = " " * random.choice((1, 2, 4)) + lines[at] if random.random() < 0.5 else lines[at].lstrip()
        elif what == 3 and donors:
            lines.insert(at, random.choice(random.choice(donors).splitlines(keepends=True) or [""]))
        else:
            lines[at] = _changed_words(lines[at], random)
        text = "".join(lines)
    return text


def _changed_words(line: str, random: Random) -> str:
    numbers = list(re.finditer(r"\d+(\.\d+)?", line))
    if numbers and random.random() < 0.4:
        number = random.choice(numbers)
        return line[: number.start()] + random.choice(NUMBERS) + line[number.end() :]
    at = random.randrange(len(line) + 1)
    end = min(len(line), at + random.choice((0, 1, 2, 5)))
    if random.random() < 0.4:  # a whole word, so that values stay values
        words = line.split(" ")
        words[random.randrange(len(words))] = random.choice(BITS)
        return " ".join(words)
    return line[:at] + random.choice(BITS) + line[end:]


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Where something stands in a document, the document itself first."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def at(document: Any, path: Path) -> Any:
    """What stands at `path`."""
    for key in path:
        document = document[key]
    return document


def changed_document(document: Any, random: Random, donors: Sequence[Any] = (), most: int = 3) -> Any:
    """A copy of `document` with one to `most` entries that are others, gone, repeated, exchanged, or a donor's."""
    made = copy.deepcopy(document)
    for _ in range(random.randint(1, most)):
        paths = [path for path in places(made) if path]
        if not paths:
            break
        depth = random.randint(1, max(map(len, paths)))  # else rows of large tables are all that is ever touched
        path = random.choice([path for path in paths if len(path) == min(depth, max(map(len, paths)))])
        _change(made, path, random, donors, paths)
    return made


def _change(document: Any, path: Path, random: Random, donors: Sequence[Any], paths: Sequence[Path]) -> None:
    around, key = at(document, path[:-1]), path[-1]
    what = random.choice(("junk", "junk", "near", "near", "delete", "repeat", "swap", "swap", "donor", "rename"))
    if what == "junk":
        around[key] = copy.deepcopy(random.choice(JUNK))
    elif what == "near":
        around[key] = _near(around[key], random)
    elif what == "delete":
        del around[key]
    elif what == "repeat" and isinstance(around, MutableSequence):
        around.insert(random.randrange(len(around) + 1), copy.deepcopy(around[key]))
    elif what == "rename" and isinstance(around, MutableMapping):
        around[random.choice(("", "x", "name", str(random.choice(JUNK))))] = around.pop(key)
    elif what == "donor" and donors:
        around[key] = copy.deepcopy(_alike(random.choice(donors), path, random))
    else:
        same = [other for other in paths if len(other) == len(path) and other[-1] == path[-1]] or [path]
        around[key] = copy.deepcopy(at(document, random.choice(same)))


def _near(value: Any, random: Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return random.choice((0, -value, value + 1, value - 1, value * 2, value // 2, value / 3, 2**40, 1))
    if isinstance(value, str):
        return changed_text(value, random) if random.random() < 0.5 else value[: len(value) // 2]
    if isinstance(value, list):
        return random.choice((value[::-1], value[1:], value + value, value[:1]))
    if isinstance(value, dict):
        return dict(list(value.items())[1:])
    return random.choice(JUNK)


def _alike(donor: Any, path: Path, random: Random) -> Any:
    """What stands in `donor` where `path` leads, or anything there."""
    try:
        return at(donor, path)
    except (LookupError, TypeError):
        return at(donor, random.choice(list(places(donor))))
