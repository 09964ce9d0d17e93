"""Tables on terminals of any width: text is folded, numbers are never cut."""

import io
import re

import pytest
from rich.console import Console

from shardplan.render.console import emit, table

ROWS = [("model.layers.*.mlp.down_proj.weight", "12.1 %", "1.25 GiB"), ("lm_head.weight", "<0.1 %", "125 MiB")]


def printed(width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, no_color=True, highlight=False)
    rows = table("*tensor", ">share", ">memory")
    for row in ROWS:
        rows.add_row(*row)
    emit(console, "before", rows, "after")
    assert console.width == width
    return stream.getvalue()


@pytest.mark.parametrize("width", [1, 10, 20, 35, 50, 51, 200])
def test_every_number_is_whole_at_every_width(width):
    text = printed(width)
    assert "…" not in text
    for _, share, memory in ROWS:
        assert share in text
        assert memory in text


@pytest.mark.parametrize("width", [35, 50, 51, 200])
def test_lines_stay_within_a_width_that_is_wide_enough(width):
    assert max(map(len, printed(width).splitlines())) <= width


def test_names_are_folded_before_anything_else():
    text = printed(40)
    folded = "".join(re.sub(r" .*", "", line) for line in text.splitlines()[2:5])
    assert folded.startswith("model.layers.*.mlp.down_proj.weight")
