"""Consoles of fixed width that keep what is drawn on them."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from shardplan.render.console import PIPE_WIDTH


@pytest.fixture
def drawn() -> Callable[..., str]:
    """Text that `draw(console, ...)` puts on a terminal of `width` columns, colourless, or into a pipe."""

    def draw_on(draw: Callable[..., None], *arguments: object, width: int = PIPE_WIDTH, **options: object) -> str:
        file = io.StringIO()
        console = Console(file=file, width=width, color_system=None, highlight=False, markup=False, emoji=False)
        draw(console, *arguments, **options)
        return file.getvalue()

    return draw_on
