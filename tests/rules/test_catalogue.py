"""The document that lists what every operator allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardplan.rules import FAMILIES
from shardplan.rules.catalogue import catalogue

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_the_document_is_current():
    assert DOCUMENT.read_text(encoding="utf-8") == catalogue(), (
        "run `python -m shardplan.rules.catalogue docs/operators.md`"
    )


def row(operator: str) -> dict[str, str]:
    """The cells of the first row that names the operator, by the heads of its table."""
    heads: list[str] = []
    for line in catalogue().splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]
        if line.startswith("| operators"):
            heads = cells
        elif line.startswith("| ") and operator in cells[0].split(", "):
            return dict(zip(heads, cells, strict=True))
    raise AssertionError(operator)


@pytest.mark.parametrize(
    ("operator", "cells"),
    [
        ("MatMul", ["`b* m k, b* k n -> b* m n`", "`2x4x6, 6x8 -> 2x4x8`", "b, m, n", "k (sum)", "0, 1"]),
        ("ReduceMax", ["`x0 k x1 -> x0 x1 ; k:max`", "`4x6x8 -> 4x8`", "x0, x1", "k (max)", ""]),
        ("NonZero", ["", "", "nothing: data decides how many elements there are", "", ""]),
    ],
)
def test_a_row(operator, cells):
    found = row(operator)
    assert [found.get(head, "") for head in ("equation", "example", "free", "partial", "passes on")] == cells


def test_a_table_has_no_column_without_a_cell():
    heads = re.findall(r"^\| (operators .*) \|$", catalogue(), re.MULTILINE)
    assert len(heads) == len(FAMILIES)
    assert "operators | equation | example | free | passes on" in heads  # pointwise


def test_every_operator_is_listed():
    listed = {
        name.removeprefix("com.microsoft.")
        for line in catalogue().splitlines()
        if line.startswith("| ")
        for name in line.removeprefix("| ").split(" | ")[0].split(", ")
    }
    kinds = {kind.removeprefix("com.microsoft.") for family in FAMILIES.values() for kind in family}
    assert sorted(kinds - listed) == []
