"""Laws of layouts as values: normal form, text round trips, legality, tiles."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from layout_schemes import from_scheme, to_scheme

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.legal import check, is_legal, local_shape, tile
from shardplan.layout.mesh import Axis, Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.layout.text import (
    from_text,
    to_text,
)

NAMES = ("machine", "gpu", "x", "R", "S0", "a_long-name")
PLAIN = st.one_of(st.just(R), st.builds(S, st.integers(0, 3)))
SEGMENTED = st.builds(S, st.integers(0, 3), st.lists(st.sampled_from([4, 6, 12]), min_size=1, max_size=4).map(tuple))
ANY = st.one_of(PLAIN, SEGMENTED, st.just(RP), st.sampled_from(["sum", "max", "min", "prod"]).map(P))


SIZES = st.integers(1, 4)


@st.composite
def placed(draw, placements, sizes=SIZES):
    """A mesh of one to four axes and a layout on it."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    mesh = Mesh(tuple(Axis(name, draw(sizes)) for name in names))
    order = draw(st.permutations(range(len(mesh))))
    return mesh, Layout.of(*(draw(placements) for _ in names), order=order)


@given(placed(ANY))
def test_named_text_round_trips(case):
    mesh, layout = case
    assert from_text(to_text(layout, mesh), mesh) == layout


PIECES = ["S", "R", "P", "R/P", "(", ")", "[", "]", "0", "1", "9", ";", "x", ",", " ", "@", "gpu", "max", "²"]


@settings(max_examples=300)
@given(st.sampled_from([from_text, from_scheme]), st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_any_text_is_a_layout_or_a_diagnostic(parse, text):
    mesh = Mesh.of(machine=2, gpu=2)
    try:
        layout = parse(text, mesh)
    except ShardplanError as caught:
        codes = [diagnostic.code for diagnostic in caught.diagnostics]
    else:
        codes = ["layout-text"] if from_text(to_text(layout, mesh), mesh) == layout else []
    assert codes == ["layout-text"]


@given(placed(ANY))
def test_different_layouts_have_different_text(case):
    mesh, layout = case
    texts = {to_text(Layout.of(*layout.placements, order=order), mesh): order for order in orders(mesh)}
    layouts = {Layout.of(*layout.placements, order=order) for order in orders(mesh)}
    assert len(texts) == len(layouts)


def orders(mesh):
    return itertools.permutations(range(len(mesh)))


@given(placed(PLAIN), st.sampled_from(["alpa", "ort"]))
def test_scheme_round_trips(case, style):
    mesh, layout = case
    assert from_scheme(to_scheme(layout, mesh, 4, style), mesh) == layout


@given(placed(ANY))
def test_normal_form(case):
    """Making a layout again changes nothing, and its order is all that tells nested axes apart."""
    _, layout = case
    assert Layout.of(*layout.placements, order=layout.order) == layout
    axes = {(dim, segments): layout.axes_of(S(dim, segments)) for dim, segments in layout.dims()}
    assert layout.dims() == axes
    assert sorted(itertools.chain.from_iterable(axes.values())) == [
        axis for axis, placement in enumerate(layout.placements) if placement.is_shard
    ]


@given(placed(ANY))
def test_forward_and_gradient_are_plain_and_keep_the_shards(case):
    _, layout = case
    for half in (layout.forward, layout.gradient):
        assert half.forward == half
        assert half.dims() == layout.dims()


SHAPES = st.lists(st.sampled_from([4, 6, 8, 12, 24]), max_size=4).map(tuple)


@settings(max_examples=400)
@given(placed(ANY), SHAPES)
def test_legal_means_nothing_to_say(case, shape):
    mesh, layout = case
    assert is_legal(layout, mesh, shape) == (check(layout, mesh, shape) == [])


@st.composite
def legal_cases(draw):
    """A mesh, a layout and a shape that it divides, segmented dims and compound dims among them."""
    mesh, layout = draw(placed(st.one_of(PLAIN, st.just(P())), st.integers(1, 3)))
    ways = [mesh.ways(layout.axes_of(S(dim))) for dim in range(4)]
    dim, count = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    segments = (mesh.size,) * (count * ways[dim])
    shape = [count * way for way in ways]
    if draw(st.booleans()):
        swap = S(dim, segments)
        keep = draw(st.sets(st.integers(0, len(mesh) - 1)))
        placements = [swap if p == S(dim) and a not in keep else p for a, p in enumerate(layout.placements)]
        layout, shape[dim] = Layout.of(*placements, order=layout.order), sum(segments)
    return mesh, layout, tuple(shape)


@settings(max_examples=200)
@given(legal_cases())
def test_tiles_cover_every_element_equally_often(case):
    """Each element lies in the tiles of as many devices as there are copies and partial values of it."""
    mesh, layout, shape = case
    assert check(layout, mesh, shape) == []
    sharding = [axis for axis, placement in enumerate(layout.placements) if placement.is_shard]
    copies = mesh.size // mesh.ways(sharding)
    seen = {}
    for place in mesh.coordinates():
        held = [list(itertools.chain(*(range(*piece) for piece in dim))) for dim in tile(layout, mesh, shape, place)]
        assert tuple(map(len, held)) == local_shape(layout, mesh, shape)
        assert all(indices == sorted(indices) for indices in held)
        for element in itertools.product(*held):
            seen[element] = seen.get(element, 0) + 1
    assert len(seen) == math.prod(shape)
    assert set(seen.values()) <= {copies}
