"""The equation language of the rule tables: how an operator's dims relate to each other, as one line of text.

    b* m k, b* k n -> b* m n            a matrix product with broadcast batch dims

Operands are left of the arrow and results right of it, separated by commas; each lists its dims by *factor*. A factor
that the operands have and a result does not is summed. The rest of the grammar:

| text       | meaning                                                                                        |
|------------|------------------------------------------------------------------------------------------------|
| `x*`       | any number of dims, aligned at the right as numpy broadcasts; a dim of size 1 has no factor       |
| `(h d)`    | one dim that is a product of factors, the major one first                                        |
| `q|k|v`    | one dim that is the concatenation of others                                                    |
| `_`, `_*`  | a dim, or any number of dims, without a factor                                                   |
| `+n`       | an addend of the result: where the result is partial it must be added once, so it is partial too |
| `=b h`     | a result that does not depend on the factors it lacks: replicated, not summed                  |
| `...`      | the operand (result) before it, again for all that follow                                       |
| `!k`       | whole: may not be split                                                                        |
| `~k`       | statistics: may be split at the price of all-reducing them inside the operator                  |
| `^y`       | halo: may be split at the price of exchanging borders                                          |
| `@v`       | addressed by index values: each device looks up what it holds and the results are summed        |
| `; k:max`  | how a factor that results lack is combined: `max`, `min`, `prod`, `mean`, or `merge` (inside)    |

A mark is written once and holds for the factor wherever it occurs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

TOKEN = re.compile(r"\([^)]*\)|\S+")
MARKS = "!~^@"


class EquationError(ValueError):
    """The shapes of an operator do not fit its equation."""


@dataclass(frozen=True, slots=True)
class Dim:
    """Factors of one dim, major first; of a `joined` dim they are its parts. No factors: nothing to split."""

    factors: tuple[str, ...] = ()
    joined: bool = False
    star: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """The dims of one operand or result; `prefix` is `+`, `=` or nothing."""

    dims: tuple[Dim, ...]
    prefix: str = ""


@dataclass(frozen=True)
class Equation:
    """A parsed equation; `marks` and `reductions` by factor (a starred factor under its bare name)."""

    text: str
    operands: tuple[Pattern, ...]
    results: tuple[Pattern, ...]
    marks: Mapping[str, str]
    reductions: Mapping[str, str]
    repeats: tuple[bool, bool]


@lru_cache(maxsize=4096)
def parse(text: str) -> Equation:
    """Read an equation; `EquationError` names the part that makes no sense."""
    body, _, notes = text.partition(";")
    left, arrow, right = body.partition("->")
    if not arrow:
        raise EquationError(f"equation '{text}' has no '->'")
    marks: dict[str, str] = {}
    sides, repeats = [], []
    for side in (left, right):
        parts = [part.strip() for part in side.split(",")]
        repeats.append(parts[-1] == "...")
        sides.append(tuple(_pattern(part, marks) for part in (parts[:-1] if repeats[-1] else parts)))
    reductions = {}
    for note in notes.split():
        factor, _, how = note.partition(":")
        if how not in {"max", "min", "prod", "mean", "merge"}:
            raise EquationError(f"equation '{text}' combines '{factor}' by unknown '{how}'")
        reductions[factor] = how
    return Equation(text, sides[0], sides[1], marks, reductions, (repeats[0], repeats[1]))


def _pattern(text: str, marks: dict[str, str]) -> Pattern:
    prefix = text[:1] if text[:1] in {"+", "="} else ""
    return Pattern(tuple(_dim(token, marks) for token in TOKEN.findall(text.removeprefix(prefix))), prefix)


def _dim(token: str, marks: dict[str, str]) -> Dim:
    if token.startswith("("):
        return Dim(tuple(_name(part, marks) for part in token[1:-1].split()))
    if "|" in token:
        return Dim(tuple(_name(part, marks) for part in token.split("|")), joined=True)
    star = token.endswith("*")
    name = _name(token.removesuffix("*"), marks)
    return Dim(() if name in {"_", "1"} else (name,), star=star)


def _name(text: str, marks: dict[str, str]) -> str:
    name = text.lstrip(MARKS)
    if name != text:
        marks[name] = text[0]
    return name


def letters(stem: str, count: int) -> list[str]:
    """`x` or `x0`, `x1` ...: names for `count` factors."""
    return [stem] if count == 1 else [f"{stem}{index}" for index in range(count)]


def listed(patterns: Sequence[str], tensors: Sequence[object]) -> str:
    """One side of an equation: as many of `patterns` as there are `tensors`."""
    return ", ".join(patterns[: len(tensors)])


def spread(equation: Equation, ranks: Sequence[int | None], made: Sequence[int | None]) -> Equation:
    """The equation for operands and results of these ranks (None: absent): repeats written out, stars replaced.

    A starred factor covers as many dims as are left over; where operands differ, the shorter ones have the last
    of them. Marks and reductions of a starred factor hold for each.
    """
    operands = _repeated(equation.operands, len(ranks), repeat=equation.repeats[0])
    results = _repeated(equation.results, len(made), repeat=equation.repeats[1])
    lengths: dict[str, int] = {}
    patterns = [*zip(operands, ranks, strict=True), *zip(results, made, strict=True)]
    for pattern, rank in patterns:
        if rank is not None:
            _measure(equation, pattern, rank, lengths)
    names = {star: letters(star, count) for star, count in lengths.items()}
    whole = [_unstarred(pattern, rank, names) for pattern, rank in patterns]
    return Equation(
        equation.text,
        tuple(whole[: len(ranks)]),
        tuple(whole[len(ranks) :]),
        {name: mark for key, mark in equation.marks.items() for name in names.get(key, [key])},
        {name: how for key, how in equation.reductions.items() for name in names.get(key, [key])},
        (False, False),
    )


def _repeated(patterns: tuple[Pattern, ...], count: int, *, repeat: bool) -> tuple[Pattern, ...]:
    if len(patterns) < count and not repeat:
        raise EquationError(f"{count} given where the rule knows {len(patterns)}")
    return (patterns + patterns[-1:] * max(0, count - len(patterns)))[:count]


def _measure(equation: Equation, pattern: Pattern, rank: int, lengths: dict[str, int]) -> None:
    """Note how many dims the one star of a pattern covers, when the others are known."""
    stars = [dim.factors[0] if dim.factors else "_" for dim in pattern.dims if dim.star]
    left = rank - (len(pattern.dims) - len(stars))
    unknown = [star for star in stars if star not in lengths] if len(stars) > 1 else stars
    if len(unknown) > 1:
        raise EquationError(f"'{equation.text}' leaves the length of {' and '.join(unknown)} open")
    if left < 0 or (not stars and left):
        raise EquationError(f"rank {rank} does not fit '{equation.text}'")
    for star in unknown:
        covered = left - sum(lengths[other] for other in stars if other != star)
        lengths[star] = max(lengths.get(star, 0), covered)


def _unstarred(pattern: Pattern, rank: int | None, names: Mapping[str, list[str]]) -> Pattern:
    dims: list[Dim] = []
    if rank is None:
        return Pattern((), pattern.prefix)
    stars = sum(dim.star for dim in pattern.dims)
    free = rank - (len(pattern.dims) - stars)
    for dim in pattern.dims:
        if not dim.star:
            dims.append(dim)
        elif not dim.factors:
            dims += [Dim()] * free
        else:
            all_names = names[dim.factors[0]]
            count = free if stars == 1 else len(all_names)
            dims += [Dim((name,)) for name in all_names[len(all_names) - count :]]
    if len(dims) != rank:
        raise EquationError(f"rank {rank} where the rule has {len(dims)} dims")
    return Pattern(tuple(dims), pattern.prefix)


Shapes = Sequence[tuple[int, ...] | None]


def bind(equation: Equation, shapes: Shapes, known: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all factors, from the shapes of operands and results in order; `known` sizes are believed.

    `EquationError` where two dims of one factor differ (size 1 excepted: it broadcasts) or a product is left open.
    """
    sizes = dict(known)
    dims = list(_sized(equation, shapes))
    for dim, size in dims:
        if len(dim.factors) == 1:
            _settle(equation, sizes, dim.factors[0], size)
    for dim, size in dims:
        if len(dim.factors) > 1:
            _settle_compound(equation, sizes, dim, size)
    return sizes


def _sized(equation: Equation, shapes: Shapes) -> Iterator[tuple[Dim, int]]:
    for pattern, shape in zip((*equation.operands, *equation.results), shapes, strict=True):
        if shape is not None:
            yield from zip(pattern.dims, shape, strict=True)


def _settle(equation: Equation, sizes: dict[str, int], factor: str, size: int) -> None:
    before = sizes.setdefault(factor, size)
    if size in {1, before}:
        return
    if before == 1 or equation.marks.get(factor) == "^":
        sizes[factor] = size  # the result, which comes last, counts steps of a window
    else:
        raise EquationError(f"factor '{factor}' of '{equation.text}' is {before} and {size}")


def _settle_compound(equation: Equation, sizes: dict[str, int], dim: Dim, size: int) -> None:
    unknown = [factor for factor in dim.factors if factor not in sizes]
    if size == 1:
        sizes.update(dict.fromkeys(unknown, 1))
        return
    known = [sizes[factor] for factor in dim.factors if factor in sizes]
    done = sum(known) if dim.joined else math.prod(known)
    if len(unknown) == 1:
        rest = size - done if dim.joined else size // max(1, done)
        sizes[unknown[0]] = rest
        done = done + rest if dim.joined else done * rest
    if len(unknown) > 1 or done != size:
        raise EquationError(f"a dim of {size} is not {dim.factors} of '{equation.text}' with sizes {sizes}")
