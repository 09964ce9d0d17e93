"""Mutations that the project was not mended for: they show what the others miss."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from fuzz_classes import Commands, Workplace

HELD_OUT: dict[str, Callable[[Workplace, Random], Commands]] = {}
