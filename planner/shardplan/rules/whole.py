"""Operators that make small or constant tensors, and those of which no dim can be split."""

from __future__ import annotations

from shardplan.rules.row import Entry, row

TABLE: tuple[Entry, ...] = (
    row("Constant", "-> x*", cost="free"),
    row(
        "ConstantOfShape EyeLike Range BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
        "_*, ... -> _*",
        cost="free",
    ),
    row("Shape Size", "x* -> _* ; x:merge", cost="free"),
)
