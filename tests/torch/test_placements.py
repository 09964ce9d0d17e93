"""Layouts as DTensor placements: the whole tensor comes back, and the layout too."""

import itertools

import pytest

pytest.importorskip("torch")

from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.torch.placements import to_placements

MESH, SHAPE = Mesh.of(machine=2, gpu=2), (48, 8)
SINGLE = [R, S(0), S(1), S(0, (24, 24)), S(0, (16, 16, 16)), S(0, (12, 12, 12, 12)), S(0, (32, 8, 8))]
LAYOUTS = {
    Layout.of(*placements, order=order)
    for placements in itertools.product(SINGLE, repeat=2)
    for order in ((0, 1), (1, 0))
}
LEGAL = sorted((layout for layout in LAYOUTS if is_legal(layout, MESH, SHAPE)), key=str)


ONE_SEGMENT_EACH = [Layout.of(S(0), S(0, (24, 24))), Layout.of(S(0, (24, 24)), S(0))]
"""Two axes that shard a dim plainly, in the one order or the other, under another name."""


def has_placements(layout):
    try:
        to_placements(layout, MESH)
    except ValueError:
        return False
    return True


def test_whole_tensors_come_back_from_every_layout(four):
    layouts = [layout for layout in LEGAL if has_placements(layout)]
    assert len(layouts) == 26
    for wrong in four.run("torch_cases", "round_trip", layouts, SHAPE, MESH):
        assert {(what, layout) for what, layout, _ in wrong} == {("layout", str(layout)) for layout in ONE_SEGMENT_EACH}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout.of(R, S(0, (32, 8, 8))), "dim 0 is sharded in segments of unequal sizes [32, 8, 8]"),
        (Layout.of(S(0, (16,) * 3), S(0, (16,) * 3)), "several axes shard dim 0, which consists of segments"),
        (Layout.of(S(0, (12,) * 4), S(0)), "several axes shard dim 0, which consists of segments"),
    ],
)
def test_what_torch_cannot_say_is_refused(layout, why):
    with pytest.raises(ValueError, match="dim 0") as caught:
        to_placements(layout, MESH)
    assert str(caught.value) == why
