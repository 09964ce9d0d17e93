"""Patterns of names, as people write them in constraints and as tables print them: `layers.{0-3}.{q,k}_proj.*`.

`*`, `?` and `[a-z]` mean what they mean to a shell. Braces hold alternatives, separated by commas: words, ranges of
numbers `1-31`, and even steps `0,2…22` (as the tables of `show` write the numbers of layers).
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import re
from collections.abc import Sequence

_BRACES = re.compile(r"(?<!\[)\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_END = fnmatch.translate("").partition(")")[2]
MOST_NUMBERS = 10_000
"""In one range: each becomes a word of a regular expression."""
_STEPS = re.compile(r"(\d{1,9}),(\d{1,9})…(\d{1,9})")


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern` means `name`. A name always means itself, whatever characters it has."""
    return name == pattern or _compiled(pattern).match(name) is not None


def literal(name: str) -> str:
    """The pattern that means `name` and no other."""
    return glob.escape(name).replace("{", "[{]")


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = _BRACES.split(pattern)
    choices = [_alternatives(text) if number % 2 else (text,) for number, text in enumerate(pieces)]
    return re.compile("".join(f"(?:{'|'.join(map(_translated, words))})" for words in choices) + _END)


def _translated(words: str) -> str:
    """The regular expression of a part of a pattern: that of `fnmatch` without what it adds at the end."""
    return fnmatch.translate(words).removesuffix(_END)


def _alternatives(text: str) -> Sequence[str]:
    """What braces around `text` stand for; around one word they are part of a name."""
    steps = _STEPS.fullmatch(text)
    if steps:
        first, second, last = map(int, steps.groups())
        return _numbers(range(first, last + 1, max(second - first, 1))) or (text,)
    if "," not in text and not _RANGE.fullmatch(text):
        return ("{" + text + "}",)
    return [word for option in text.split(",") for word in _option(option.strip())]


def _option(text: str) -> Sequence[str]:
    """A range that runs backwards, or has more than `MOST_NUMBERS`, is a word."""
    numbers = _RANGE.fullmatch(text)
    return (_numbers(range(int(numbers[1]), int(numbers[2]) + 1)) if numbers else ()) or (text,)


def _numbers(numbers: range) -> Sequence[str]:
    return [str(number) for number in numbers] if len(numbers) <= MOST_NUMBERS else ()
