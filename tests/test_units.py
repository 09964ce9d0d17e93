"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.units import (
    count,
    counted,
    decimal_size,
    digits,
    duration,
    flop,
    percent,
    rate,
    size,
    sizes_apart,
    sizes_in_one_unit,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0004, "<0.001"), (0.05, "0.050"), (0.5, "0.500"), (1, "1"), (1.05, "1.05"), (38.24, "38.2"),
     (450, "450"), (999.4, "999"), (999.6, "1,000"), (1240, "1,240")],
)  # fmt: skip
def test_digits(value, text):
    assert digits(value) == text


def test_more_digits_of_thousands():
    assert [digits(20387.5, 6), digits(20387, 6), digits(1240.25, 5)] == ["20,387.5", "20,387", "1,240.2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(0), "0 B"),
        (size(1023), "1,023 B"),
        (size(1024), "1 KiB"),
        (size(80 * 2**30), "80 GiB"),
        (size(2**60), "1,024 PiB"),
        (duration(0), "0 ns"),
        (duration(999), "999 ns"),
        (duration(38_240_000), "38.2 ms"),
        (duration(61e9), "61 s"),
        (count(1395), "1,395"),
        (count(8_030_261_248), "8.03 B"),
        (count(140_630_071_296, 4), "140.6 B"),
        (count(8_030_261_248, 4), "8.030 B"),
        (flop(162e9), "162 GFLOP"),
        (flop(12.0), "12 FLOP"),
        (rate(450e9), "450 GB/s"),
        (rate(3.125e9), "3.12 GB/s"),
        (decimal_size(80e9), "80 GB"),
        (percent(0), "0.0 %"),
        (percent(0.0001), "<0.1 %"),
        (percent(0.1234), "12.3 %"),
    ],
)
def test_amounts(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "device", "1 device"), (0, "device", "0 devices"), (1200, "row", "1,200 rows"), (2, "axis", "2 axes"),
     (1, "axis", "1 axis"), (3, "process", "3 processes"), (4, "microbatch", "4 microbatches"),
     (2, "entry", "2 entries"), (1, "more kind", "1 more kind"), (5, "more mesh", "5 more meshes"),
     (2, "way", "2 ways")],
)  # fmt: skip
def test_nouns_agree_with_their_number(number, noun, text):
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [(2 * 2**30, 3 * 2**30, ("2 GiB", "3 GiB")), (13 * 2**30 - 35 * 2**20, 13 * 2**30, ("12.97 GiB", "13 GiB")),
     (2**30 + 1, 2**30, ("1,073,741,825 bytes", "1,073,741,824 bytes")), (2**30, 2**30, ("1 GiB", "1 GiB")),
     (1, 0, ("1 B", "0 B"))],
)  # fmt: skip
def test_sizes_that_differ_read_differently(one, other, texts):
    assert sizes_apart(one, other) == texts


def test_sizes_share_the_unit_of_the_largest():
    assert sizes_in_one_unit([2**30, 0, 1], 80 * 2**30) == (["1", "0", "<0.01"], "GiB")


@given(st.floats(0, 1e15))
def test_digits_are_right_to_half_a_percent(value):
    shown = float(digits(value).replace(",", "").removeprefix("<"))
    assert abs(shown - value) <= max(0.005 * value, 0.001)
    assert "e" not in digits(value)
