"""Patterns of names: globs, alternatives in braces, and what `show` prints for the numbers of layers."""

import fnmatch
import itertools
import time

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


WORDS = st.lists(st.text("ab0*?", max_size=3), min_size=2, max_size=3)


@given(st.lists(st.one_of(st.text("ab0.*?", max_size=3), WORDS), max_size=4), st.text("ab0.", max_size=8))
def test_braces_mean_any_of_the_patterns_without_them(parts, name):
    choices = [[part] if isinstance(part, str) else part for part in parts]
    pattern = "".join(words[0] if len(words) == 1 else "{" + ",".join(words) + "}" for words in choices)
    expanded = ["".join(words) for words in itertools.product(*choices)]
    assert matches(name, pattern) == any(fnmatch.fnmatchcase(name, one) for one in (pattern, *expanded))


@pytest.mark.parametrize(
    "pattern", ["w{0-999999999}", "w{0,5…999999999}", "w{0-" + "7" * 5000 + "}", "{0-9}" * 40 + "x", "{a,b}" * 40]
)
def test_large_patterns_take_no_time(pattern):
    started_s = time.process_time()
    assert not matches("w5", pattern)
    assert time.process_time() - started_s < 1


def test_a_range_of_all_layers_that_anything_has():
    assert matches("w9999", "w{0-9999}")
    assert not matches("w5", "w{0-10000}")
