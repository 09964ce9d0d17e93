"""Types of options that are numbers in a range."""

from __future__ import annotations

import math
from typing import Any

import click


class WholeRange(click.IntRange):
    """A whole number in a range, called so in messages."""

    name = "whole number"


class FiniteRange(click.FloatRange):
    """A finite number in a range: no range refuses `nan`, and one without an upper end takes `inf`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that `value` is or spells."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number
