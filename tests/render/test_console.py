"""Tables on terminals of any width: text is folded, numbers are never cut."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from shardplan.cluster.profile import list_profiles, load_profile, profile_from_text
from shardplan.render.console import Folded, Sentence, emit, table
from shardplan.render.profiles import show_profile
from shardplan.text_lines import KEPT

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


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("model.layers.*.mlp.down_proj.weight", 20, ["model.layers.*.mlp.", "down_proj.weight"]),
        ("  model.layers.*.mlp.down_proj.weight", 20, ["  model.layers.*.", "    mlp.down_proj.", "    weight"]),
        ("machine 69.9 %, gpu 1.5 %", 15, ["machine 69.9 %,", "gpu 1.5 %"]),
        ("S(0)@machine,gpu, served R/P@gpu", 14, ["S(0)@machine,", "gpu, served", "R/P@gpu"]),
        ("mul_{10,19…289}", 8, ["mul_{10,", "19…289}"]),
        ("up.post_attention_layernorm", 10, ["up.", "post_atten", "tion_layer", "norm"]),
        ("net 50 GB/s, up 900 GB/s".replace(" ", KEPT).replace(f",{KEPT}", ", "), 16, ["net 50 GB/s,", "up 900 GB/s"]),
        ("short", 5, ["short"]),
    ],
)
def test_names_are_folded_where_they_may_be(text, width, lines):
    assert [line.plain for line in Folded(text).wrap(Console(), width)] == lines


def test_lines_outside_of_tables_end_between_words_and_keep_units():
    """Rich joins bare texts to one of its own, which knows neither names nor units."""
    written = io.StringIO()
    emit(Console(file=written, width=34), Text("model.layers.0.mlp.weight: +600 MiB of model.embed_tokens.weight"))
    assert written.getvalue() == "model.layers.0.mlp.weight:\n  +600 MiB of\n  model.embed_tokens.weight\n"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("compute 6.39, exposed communication 1.30", 24, ["compute 6.39, exposed", "  communication 1.30"]),
        ("Add ×49, Mul ×48, Pow ×12", 10, ["Add ×49,", "  Mul ×48,", "  Pow ×12"]),
        ("communication 2.14 ms → 16.4 ms", 24, ["communication 2.14 ms →", "  16.4 ms"]),
        ("ZeRO-3 0.0 % → 28.5 %, row 1.0 % → 2.0 %", 30, ["ZeRO-3 0.0 % → 28.5 %,", "  row 1.0 % → 2.0 %"]),
    ],
)
def test_a_number_stays_with_its_word_and_what_was_with_what_is(text, width, lines):
    assert [line.plain for line in Sentence(text).wrap(Console(), width)] == lines


@given(st.text(alphabet="ab. ,:%1_é", max_size=40), st.integers(1, 12))
def test_folding_loses_nothing_but_blanks(text, width):
    lines = [line.plain for line in Folded(text).wrap(Console(), width)]
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(len, lines)) <= max(width, 2)


def test_lines_of_a_text_are_folded_each_by_itself():
    written = io.StringIO()
    emit(Console(file=written, width=24), "first\n    a second line of many words\nthird")
    assert written.getvalue() == "first\n    a second line of\n      many words\nthird\n"


@pytest.mark.parametrize("name", list_profiles())
def test_a_shown_profile_is_a_profile_on_a_narrow_terminal_too(name):
    written, profile = io.StringIO(), load_profile(name)
    show_profile(Console(file=written, width=40), profile)
    again = profile_from_text(written.getvalue(), "shown")
    assert json.loads(json.dumps(again.resolved, default=dict)) == json.loads(
        json.dumps(profile.resolved, default=dict)
    )
    assert {warning.code for warning in again.warnings} == {warning.code for warning in profile.warnings}


def shown(width, *rows):
    file = io.StringIO()
    made = table(">", "=what", "=how")
    for row in rows:
        made.add_row(*row)
    console = Console(file=file, width=width, color_system=None)
    emit(console, made)
    return file.getvalue()


def test_names_stand_in_their_row_where_most_rows_have_room():
    """In columns; closer together where only that fits; the one that is too long stands below its row."""
    long = "layers.attention.projection (MatMul)"
    rows = [("1 ms", "up", "compute"), ("2 ms", "down (MatMul)", "compute"), ("3 ms", "a.much.longer.name", "go")]
    assert shown(30, *rows, ("4 ms", long, "compute")) == (
        "      what           how\n"
        "1 ms  up             compute\n"
        "2 ms  down (MatMul)  compute\n"
        "3 ms  a.much.longer.name  go\n"
        "4 ms\n"
        "    layers.attention.projection\n"
        "      (MatMul)  compute\n"
    )


def test_where_more_than_a_few_first_names_have_no_room_all_stand_below_their_rows():
    """A column that is now in the row and now below it cannot be read down."""
    long, short = ("1 ms", "layers.attention.projection", "compute"), ("2 ms", "layers.attention.out", "compute")
    said = shown(30, long, long, short)
    assert said.splitlines()[-3:] == ["2 ms", "    layers.attention.out", "      compute"]
    said = shown(30, long, *[short] * 6)
    assert said.splitlines()[-2:] == ["2 ms  layers.attention.out", "    compute"]
