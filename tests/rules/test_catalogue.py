"""The document that lists what every operator allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardplan.rules import FAMILIES
from shardplan.rules.catalogue import catalogue

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_the_document_is_current():
    assert DOCUMENT.read_text(encoding="utf-8") == catalogue(), (
        "run `python -m shardplan.rules.catalogue docs/operators.md`"
    )


def row(operator: str) -> list[str]:
    """The cells of the first row that names the operator."""
    lines = (line.replace("\\|", "¦").split(" | ") for line in catalogue().splitlines() if line.startswith("| "))
    return next(cells for cells in lines if operator in cells[0].removeprefix("| ").split(", "))


@pytest.mark.parametrize(
    ("operator", "cells"),
    [
        ("MatMul", ["`b* m k, b* k n -> b* m n`", "`2x4x6, 6x8 -> 2x4x8`", "b, m, n", "k (sum)", "", "", "0, 1"]),
        ("ReduceMax", ["`x0 k x1 -> x0 x1 ; k:max`", "`4x6x8 -> 4x8`", "x0, x1", "k (max)", "", "", ""]),
        ("NonZero", ["", "", "nothing: data decides how many elements there are", "", "", "", ""]),
    ],
)
def test_a_row(operator, cells):
    assert [cell.strip(" |") for cell in row(operator)[1:]] == cells


def test_every_operator_is_listed():
    listed = {
        name.removeprefix("com.microsoft.")
        for line in catalogue().splitlines()
        if line.startswith("| ")
        for name in line.removeprefix("| ").split(" | ")[0].split(", ")
    }
    kinds = {kind.removeprefix("com.microsoft.") for family in FAMILIES.values() for kind in family}
    assert sorted(kinds - listed) == []
