"""Patterns of names: globs, alternatives in braces, and what `show` prints for the numbers of layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.folding import folded
from shardplan.patterns import literal, matches

MEANT = [
    ("layers.3.q_proj.weight", "layers.{0-3}.{q,k}_proj.*"),
    ("layers.0.up", "layers.{0, 2-31}.up"),
    ("layers.4.up", "layers.{0,2…22}.up"),
    ("a.b", "a{.b,}"),
    ("a", "a{.b,}"),
    ("a{x}b", "a{x}?"),
    ("x[0]", "x[0]"),
    ("x{", "x{"),
]
NOT_MEANT = [
    ("layers.4.q_proj.weight", "layers.{0-3}.{q,k}_proj.*"),
    ("layers.1.up", "layers.{0,2-31}.up"),
    ("layers.5.up", "layers.{0,2…22}.up"),
    ("layers.24.up", "layers.{0,2…22}.up"),
    ("layers.10.up", "layers.{1-2}.up"),
    ("x0", "{x}0"),
    ("layers.1", "layers.{3-1}"),
]


@pytest.mark.parametrize(("name", "pattern"), MEANT)
def test_what_a_pattern_means(name, pattern):
    assert matches(name, pattern)


@pytest.mark.parametrize(("name", "pattern"), NOT_MEANT)
def test_what_a_pattern_does_not_mean(name, pattern):
    assert not matches(name, pattern)


@given(st.text())
def test_a_name_means_itself(name):
    assert matches(name, name)


@given(st.text("a0-,*?[]{}!"), st.text("a0-,*?[]{}!"))
def test_a_literal_pattern_means_one_name(name, other):
    assert matches(name, literal(name))
    assert matches(other, literal(name)) == (other in (name, literal(name)))


@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40)))
def test_what_tables_print_can_be_written(chosen, others):
    """The text for some of many layers means them and no others, unless it says only the ends of many runs."""
    everything = [f"layers.{number}.up" for number in sorted(chosen | others)]
    names = [f"layers.{number}.up" for number in sorted(chosen)]
    text = folded(names, everything)
    if "…" in text and "," not in text:
        return
    assert [name for name in everything if matches(name, text)] == names
