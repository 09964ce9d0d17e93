"""The laws of `rule_execution` on operators drawn at random: reshapes, broadcasts, einsums, cuts and joins."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import Case, f, i
from rule_execution import prove, prove_linear

SIZES = st.sampled_from([1, 2, 3, 4, 6])
FEW = settings(max_examples=40)


def prove_all(case: Case) -> None:
    """Every option in as few pieces as it can be cut into, and every passing of partial sums."""
    for option in case.options().values():
        ways = next((ways for ways in (2, 3) if option.size % ways == 0), None)
        if ways:
            prove(case, option, ways)
    for group in case.rule().linear:
        prove_linear(case, group)


@st.composite
def regroupings(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of the same factors in the same order, grouped differently."""
    factors = draw(st.lists(SIZES, min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        shape = [1]
        for factor in factors:
            shape = [*shape, factor] if draw(st.booleans()) else [*shape[:-1], shape[-1] * factor]
        return tuple(shape)

    return grouped(), grouped()


@given(regroupings())
@FEW
def test_reshapes(shapes):
    before, after = shapes
    prove_all(Case("Reshape", (f(*before), i(*after)), constants=(1,)))


@st.composite
def broadcasts(draw) -> list[np.ndarray]:
    """Arrays that broadcast together: leading dims missing, dims of size 1."""
    shape = draw(st.lists(SIZES, min_size=1, max_size=4))
    return [
        f(*(size if draw(st.booleans()) else 1 for size in shape[draw(st.integers(0, len(shape))) :]))
        for _ in range(draw(st.integers(2, 3)))
    ]


@given(broadcasts())
@FEW
def test_broadcasts(operands):
    prove_all(Case("Sum", tuple(operands)))
    prove_all(Case("Mul", tuple(operands[:2])))


@st.composite
def einsums(draw) -> Case:
    """Two operands over four letters, any of which the result may keep."""
    sizes = {letter: draw(st.sampled_from([2, 4, 6])) for letter in "abcd"}
    terms = [draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)) for _ in range(2)]
    kept = draw(st.lists(st.sampled_from(sorted({letter for term in terms for letter in term})), unique=True))
    equation = f"{','.join(map(''.join, terms))}->{''.join(kept)}"
    operands = tuple(f(*(sizes[letter] for letter in term)) for term in terms)
    return Case("Einsum", operands, {"equation": equation})


@given(einsums())
@FEW
def test_einsums(case):
    prove_all(case)


@given(st.lists(st.sampled_from([2, 4, 6]), min_size=2, max_size=4), st.integers(0, 2))
@FEW
def test_joins_and_cuts(parts, axis):
    shape = [2, 4, 3]
    pieces = [f(*shape[:axis], size, *shape[axis + 1 :]) for size in parts]
    prove_all(Case("Concat", tuple(pieces), {"axis": axis}))
    whole = np.concatenate(pieces, axis=axis)
    prove_all(Case("Split", (whole, i(*parts)), {"axis": axis}, (1,), outputs=len(parts)))
    bounds = np.cumsum([0, *parts])
    for start, stop in itertools.pairwise(bounds):
        prove_all(Case("Slice", (whole, i(start), i(stop), i(axis)), constants=(1, 2, 3)))


@given(st.data())
@FEW
def test_convolutions(data):
    draw = data.draw
    kernel, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    size = draw(st.sampled_from([6, 8, 12, 24]))
    reach = (kernel - 1) * dilation + 1
    pads = [draw(st.integers(0, reach - 1)) for _ in range(2)]
    if size + sum(pads) < reach:
        return
    attributes = {"pads": pads, "strides": [stride], "dilations": [dilation], "kernel_shape": [kernel]}
    prove_all(Case("Conv", (f(2, 4, size), f(6, 4, kernel), f(6)), attributes))
