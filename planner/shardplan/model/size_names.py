"""Prefixes of names among the sizes that a model is read with, for sizes other than those of symbolic dims."""

from __future__ import annotations

from typing import Final

TRIP: Final = "trip:"
"""Before the name of a loop: its trip count."""
PAD: Final = "pad:"
"""Before a dim such as `input_ids[0]`: the size as which it is held."""
