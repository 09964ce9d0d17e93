"""Identical layers as one row: `layers.*.mlp.up.weight` stands for the numbered names that it matches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_MOST_RUNS = 4


def pattern(name: str) -> str:
    """`name` with every number that stands alone as `*`: names of corresponding things in identical layers agree."""
    return _NUMBER.sub("*", name)


def folded(names: Sequence[str], everything: Iterable[str]) -> str:
    """One text for `names`, which agree in `pattern`; `everything`: all names there are.

    `layers.*.up` when all that match are meant, `layers.{0,2-31}.up` when only some are.
    """
    numbers = [_NUMBER.findall(name) for name in names]
    pieces = _NUMBER.split(names[0])
    varying = [slot for slot in range(len(pieces) - 1) if len({row[slot] for row in numbers}) > 1]
    whole = len(varying) != 1 or _is_all(names, everything)
    text = pieces[0]
    for slot, piece in enumerate(pieces[1:]):
        found = sorted({int(row[slot]) for row in numbers})
        number = numbers[0][slot] if slot not in varying else "*" if whole else "{" + ranges(found) + "}"
        text += number + piece
    return text


def _is_all(names: Sequence[str], everything: Iterable[str]) -> bool:
    alike = pattern(names[0])
    return {name for name in everything if pattern(name) == alike} <= set(names)


def ranges(numbers: Sequence[int]) -> str:
    """`[0, 2, 3, 4]` -> `0,2-4`; even steps are `0,2…22`, and of many uneven runs only the ends are said."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(runs) <= _MOST_RUNS:
        return ",".join(said)
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    return f"{said[0]},{said[1]}…{said[-1]}" if len(steps) == 1 else f"{said[0]}…{said[-1]}"
