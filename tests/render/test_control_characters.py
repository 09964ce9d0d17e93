"""Names come from files that anybody may have made: a terminal must not obey them."""

import io

from shardplan.errors import error
from shardplan.render.console import emit, make_console, table

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb"
SHOWN = "a\\x1b]0;title\\x07\\x1b[2Jb"


def printed(color):
    stream = io.StringIO()
    rows = table("name")
    rows.add_row(HOSTILE)
    emit(make_console(color, stream), rows)
    return stream.getvalue()


def test_diagnostics_write_them_out():
    assert str(error("code", f"'{HOSTILE}' is wrong", file=HOSTILE)) == f"{SHOWN}: error[code]: '{SHOWN}' is wrong"


def test_tables_write_them_out():
    text = printed("never")
    assert "\x1b" not in text
    assert "\\x1b]0;title" in text


def test_colours_stay():
    text = printed("always")
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text
    assert "\x1b[2mname" in text
