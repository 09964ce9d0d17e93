"""The catalogue of operators in docs/operators.md, made from the tables: what each line allows and what that costs.

python -m shardplan.rules.catalogue docs/operators.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardplan.rules.equation import parse, spread
from shardplan.rules.examples import EXAMPLES, LATEST, Example
from shardplan.rules.row import Entry, Row, make_rule
from shardplan.rules.signature import Shaped, Signature
from shardplan.rules.table import TABLES
from shardplan.rules.types import Option, Rule

_BAR = "\\|"
_HEAD = """\
# What every operator allows

Made from the tables by `python -m shardplan.rules.catalogue docs/operators.md`; a test holds it current. The language
of the equations is described in [rules.md](rules.md). Where ranks, attributes or constants decide the equation, the
table shows that of one example, whose shapes are given.

- **free**: each device works on its shard, nothing is sent; gradients of operands without the factor are summed later.
- **sum**, **max** ...: devices make partial results, which are combined when and where they are needed.
- **inside**: the operator itself communicates: `all_reduce` of statistics or looked-up pairs, `permute` of borders,
  `all_gather` of states.
- **segments**: free where neighbours follow with shards of the pieces that a dim consists of.
- **passes on**: operands that may be partial sums, so that the results are: `0, 1` either of the two, `0+1` both at
  once.

Operators that no table has are replicated, or split as the functions they stand for.
"""


_COLUMNS = ("operators", "equation", "example", "free", "partial", "inside", "segments", "passes on")


def catalogue() -> str:
    """The document: one table per family; operators with the same cells are one row, columns without a cell are left
    out."""
    parts = [_HEAD]
    for family, table in TABLES.items():
        rows = _rows(table, family)
        used = [number for number in range(len(_COLUMNS)) if any(row[number] for row in rows)]
        parts += [f"## {family}", "", _line([_COLUMNS[number] for number in used]), "|" + "---|" * len(used)]
        parts += [_line([row[number] for number in used]) for row in rows]
        parts.append("")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |"


def _rows(table: Iterable[Entry], family: str) -> list[tuple[str, ...]]:
    """The rows of a table, in the order of their first operators."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for entry in table:
        for kind in entry.kinds:
            name = kind.removeprefix("com.microsoft.") if family == "microsoft" else kind
            grouped.setdefault(_cells(entry, kind), []).append(name)
    return [(", ".join(kinds), *cells) for cells, kinds in grouped.items()]


def _cells(entry: Entry, kind: str) -> tuple[str, ...]:
    """What a row says of one operator of a line."""
    if entry.why:
        return "", "", f"nothing: {entry.why}", "", "", "", ""
    rule = example_rule(entry, kind)
    example = _example(entry, kind)
    shapes = f"`{example.shapes}`" if example else ""
    return (f"`{rule.equation}`", shapes, *_effects(rule), _passed(rule))


def _example(entry: Entry, kind: str) -> Example | None:
    return EXAMPLES.get(kind, EXAMPLES.get(entry.kinds[0]))


def example_rule(entry: Entry, kind: str) -> Rule:
    """The rule of the example of `kind`, one of the operators of a line. `ValueError` where that is replicated."""
    example = _example(entry, kind)
    signature = example.signature(kind) if example else _plain(entry.row, kind)
    line = entry.row(signature) if callable(entry.row) else entry.row
    if line is None:
        raise ValueError(f"the example of {kind} is replicated")
    return make_rule(line, signature)


def _passed(rule: Rule) -> str:
    """Operands whose partial sums pass to the results: `0, 1` each alone, `0+1` together."""
    return ", ".join("+".join(map(str, group)) for group in rule.linear)


def _plain(line: object, kind: str) -> Signature:
    """An example for a line that is one equation: every `*` covers two dims."""
    if not isinstance(line, Row):
        raise TypeError(f"{kind} needs an example")
    equation = parse(line.equation)
    sides = []
    for patterns in (equation.operands, equation.results):
        ranks = [sum(2 if dim.star else 1 for dim in pattern.dims) for pattern in patterns]
        sides.append(ranks)
    plain = spread(equation, sides[0], sides[1])
    sizes = dict(line.sizes)
    operands, results = (
        tuple(Shaped(tuple(_size(dim.factors, sizes) for dim in pattern.dims), "float") for pattern in patterns)
        for patterns in (plain.operands, plain.results)
    )
    return Signature(kind, LATEST, operands, results)


def _size(factors: tuple[str, ...], sizes: dict[str, int]) -> int:
    size = 1
    for factor in factors:
        size *= sizes.get(factor, 12)
    return size


def _effects(rule: Rule) -> tuple[str, str, str, str]:
    """Factors that split freely, with partial results, with collectives inside, in segments."""
    free, partial, inside = [], [], []
    segments = [join.factor for join in rule.joins] + [option.factor for option in rule.latent]
    for option in rule.options:
        if option.inner:
            kinds = dict.fromkeys(collective.kind for collective in option.inner if collective.phase == "forward")
            inside.append(f"{option.factor} ({', '.join(kinds)})")
        elif _reduction(option):
            partial.append(f"{option.factor} ({_reduction(option)})")
        elif any(placement.segments for placement in (*option.operands, *option.results)):
            segments.append(option.factor)
        else:
            free.append(option.factor)
    return tuple(", ".join(words) for words in (free, partial, inside, segments))  # type: ignore[return-value]


def _reduction(option: Option) -> str:
    """How partial results combine, `""` if none are made."""
    how = next((placement.reduction for placement in option.results if placement.kind == "P"), "")
    return "mean" if option.averaged and how else how


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(catalogue(), encoding="utf-8")
