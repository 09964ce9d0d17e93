"""The language of the tables: reading it, fitting it to ranks, and finding sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.rules.equation import EquationError, bind, parse, spread
from shardplan.rules.views import match_factors


def dims(text, ranks, made):
    """The factors of each dim of each operand and result."""
    equation = spread(parse(text), ranks, made)
    return [[dim.factors for dim in pattern.dims] for pattern in (*equation.operands, *equation.results)]


def test_a_star_covers_what_is_left_over_aligned_at_the_right():
    text = "b* m k, b* k n -> b* m n"
    assert dims(text, [2, 2], [2]) == [[("m",), ("k",)], [("k",), ("n",)], [("m",), ("n",)]]
    assert dims(text, [3, 2], [3])[0] == [("b",), ("m",), ("k",)]
    assert dims(text, [3, 4], [4])[:2] == [[("b1",), ("m",), ("k",)], [("b0",), ("b1",), ("k",), ("n",)]]


def test_two_stars_in_one_result_take_their_lengths_from_the_operands():
    assert dims("v d*, i* -> i* d*", [2, 2], [3])[-1] == [("i0",), ("i1",), ("d",)]


def test_dots_repeat_the_operand_before_them():
    assert dims("x*, ... -> x*", [2, 1, 0], [2]) == [[("x0",), ("x1",)], [("x1",)], [], [("x0",), ("x1",)]]


def test_absent_operands_have_no_dims():
    assert dims("x, c, c -> x", [1, None, 1], [1])[1] == []


def test_marks_prefixes_and_notes():
    equation = spread(parse("+n, !k ~s* @v -> =n _ ; k:max"), [1, 4], [2])
    assert equation.marks == {"k": "!", "s0": "~", "s1": "~", "v": "@"}
    assert equation.reductions == {"k": "max"}
    assert (equation.operands[0].prefix, equation.results[0].prefix) == ("+", "=")
    assert equation.results[0].dims[1].factors == ()


@pytest.mark.parametrize(
    ("text", "ranks", "made", "message"),
    [
        ("a b", [2], [2], "equation 'a b' has no '->'"),
        ("a -> a ; a:sun", [1], [1], "equation 'a -> a ; a:sun' combines 'a' by unknown 'sun'"),
        ("a b -> a", [3], [1], "rank 3 does not fit 'a b -> a'"),
        ("a* b* -> a*", [3], [1], "'a* b* -> a*' leaves the length of a and b open"),
        ("a -> a", [1, 1], [1], "2 given where the rule knows 1"),
    ],
)
def test_what_does_not_fit_is_named(text, ranks, made, message):
    with pytest.raises(EquationError) as caught:
        spread(parse(text), ranks, made)
    assert str(caught.value) == message


def sizes(text, *shapes, operands, **known):
    ranks = [len(shape) for shape in shapes]
    return bind(spread(parse(text), ranks[:operands], ranks[operands:]), shapes, known)


def test_sizes_come_from_plain_dims_then_from_products_and_sums():
    assert sizes("b (h d) -> b h d", (2, 24), (2, 4, 6), operands=1) == {"b": 2, "h": 4, "d": 6}
    assert sizes("b (h d) -> b (h d)", (2, 24), (2, 24), operands=1, h=4) == {"b": 2, "h": 4, "d": 6}
    assert sizes("q|k -> q, k", (10,), (6,), (4,), operands=1) == {"q": 6, "k": 4}


def test_size_one_broadcasts():
    assert sizes("x*, ... -> x*", (4, 1), (1, 6), (4, 6), operands=2) == {"x0": 4, "x1": 6}


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("m k, k n -> m n", [(2, 3), (4, 5), (2, 5)], "factor 'k' of 'm k, k n -> m n' is 3 and 4"),
        ("a, (a b) -> b", [(4,), (10,), (3,)], "a dim of 10 is not ('a', 'b') of"),
    ],
)
def test_contradicting_sizes_are_named(text, shapes, message):
    with pytest.raises(EquationError, match=message.replace("(", "\\(").replace(")", "\\)")):
        sizes(text, *shapes, operands=2)


@st.composite
def reshapes(draw):
    """Two shapes made of the same factors, grouped differently, with ones strewn in."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=6))

    def grouped():
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    return grouped(), grouped()


@given(reshapes())
def test_factors_of_a_reshape_multiply_to_both_shapes(shapes):
    before, after = shapes
    left, right, found = match_factors(before, after)
    bound = bind(spread(parse(f"{left} -> {right}"), [len(before)], [len(after)]), shapes, found)
    assert bound == found
    plain = [factor for factor in found if f"!{factor}" not in f"{left} {right}"]
    assert all(factor in left and factor in right for factor in plain)


@given(reshapes())
def test_the_leading_dims_share_what_they_can(shapes):
    """The first dims larger than 1 have their common divisor as first factor."""
    import math

    before, after = ([size for size in shape if size > 1] for shape in shapes)
    _, _, found = match_factors(*shapes)
    if before and math.gcd(before[0], after[0]) > 1:
        assert next(iter(found.values())) == math.gcd(before[0], after[0])
