"""Lines that are folded to the width of a terminal."""

import io
import re

import pytest

from shardplan.text_lines import columns_of, folded_line

LONG = "  there are transformer.h.*.attn.c_attn.bias, transformer.h.*.attn.c_proj.weight, and other-names-with-hyphens"


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_names_stay_whole_and_later_lines_are_indented(columns):
    lines = folded_line(LONG, columns).split("\n")
    assert " ".join(lines).split() == LONG.split()
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


@pytest.mark.parametrize("columns", range(12, 60))
def test_a_number_stays_with_its_word_and_unit(columns):
    line = "net carries 50 GB/s or 400 Gb/s, its gap is 4.3 % of 12.5 ms, 67.1 GiB are left, and 3 samples 7 seconds"
    folded = folded_line(line, columns)
    assert folded.split() == line.split()
    assert not any(re.match(r"\s*(%|GB/s|Gb/s|ms|GiB)", part) for part in folded.split("\n"))
    assert all(kept in folded for kept in ("carries 50 GB/s", "is 4.3 %"))


@pytest.mark.parametrize("line", ["short", "hint: shardplan solve model.onnx --mesh 4x4", "  - pip install x"])
def test_what_fits_and_commands_are_left_alone(line):
    assert folded_line(line, 12) == line


def test_what_is_no_terminal_is_as_wide_as_it_takes():
    assert columns_of(io.StringIO()) > 10_000
