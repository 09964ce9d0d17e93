"""Legality of a layout for a shape, exact sentences, local shapes and tiles."""

import pytest

from shardplan.layout.layout import Layout
from shardplan.layout.legal import check, is_legal, legal_for, local_shape, tile
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S

MESH = Mesh.of(machine=4, gpu=2)
QKV = (8, 8, 8)


@pytest.mark.parametrize(
    ("layout", "shape", "sentences"),
    [
        (Layout.of(S(0), S(0)), (16, 3), []),
        (Layout.of(R), (4,), ["the layout has 1 placements but the mesh has 2 axes (machine=4 x gpu=2)"]),
        (Layout.of(S(2), R), (4, 4), ["S(2) needs a dim 2 but the tensor has only dims 0 to 1"]),
        (Layout.of(S(1), R), (4,), ["S(1) needs a dim 1 but the tensor has only dim 0"]),
        (Layout.of(S(0), R), (), ["S(0) needs a dim 0 but the tensor has no dims (it is a scalar)"]),
        (Layout.of(S(0), R), (6,), ["dim 0 of size 6 does not divide by machine=4"]),
        (Layout.of(S(0), S(0)), (12,), ["dim 0 of size 12 does not divide by machine=4 x gpu=2 = 8"]),
        (
            Layout.of(S(0), S(0), order=(1, 0)),
            (12,),
            ["dim 0 of size 12 does not divide by gpu=2 x machine=4 = 8"],
        ),
        (Layout.of(S(0, QKV), R), (25,), ["the segments of dim 0 sum to 24 but its size is 25"]),
        (
            Layout.of(S(0, (8, 6)), R),
            (14,),
            ["a segment of 6 in dim 0 does not divide by machine=4"],
        ),
        (Layout.of(S(0, QKV), S(0)), (24,), ["the 3 segments of dim 0 do not divide by gpu=2"]),
        (
            Layout.of(S(0, (8, 4)), S(0)),
            (12,),
            ["dim 0 is sharded both plainly (gpu=2) and by segments (machine=4); that needs segments of equal size"],
        ),
        (Layout.of(S(0, (8, 8)), S(0)), (16,), []),
        (
            Layout.of(S(0, (8, 8)), S(0, (4, 4, 4, 4))),
            (16,),
            ["dim 0 is cut into segments in 2 different ways; one tensor can have only one"],
        ),
        (
            Layout.of(P(), P("max")),
            (4,),
            ["partial values of one tensor must be combined in one way, found max and sum"],
        ),
        (Layout.of(P("max"), P("max")), (4,), []),
    ],
)
def test_check(layout, shape, sentences):
    assert check(layout, MESH, shape) == sentences
    assert is_legal(layout, MESH, shape) == (not sentences)
    assert legal_for(MESH, shape)(layout) == (not sentences)


def test_local_shape():
    assert local_shape(Layout.of(S(0), S(1)), MESH, (8, 6, 5)) == (2, 3, 5)
    assert local_shape(Layout.of(S(1), S(1)), MESH, (8, 16)) == (8, 2)
    assert local_shape(Layout.of(P(), S(1, QKV)), MESH, (3, 24)) == (3, 12)
    with pytest.raises(ValueError, match="dim 0 of size 6 does not divide by machine=4"):
        local_shape(Layout.of(S(0), R), MESH, (6,))


def test_tile_of_nested_axes_counts_the_first_in_order_as_major():
    machine_major, gpu_major = Layout.of(S(0), S(0)), Layout.of(S(0), S(0), order=(1, 0))
    assert tile(machine_major, MESH, (16,), (1, 0)) == (((4, 6),),)
    assert tile(gpu_major, MESH, (16,), (1, 0)) == (((2, 4),),)
    assert tile(gpu_major, MESH, (16,), (0, 1)) == (((8, 10),),)


def test_tile_of_segments_takes_a_part_of_each():
    assert tile(Layout.of(R, S(1, (8, 4, 4))), MESH, (3, 16), (0, 1)) == (((0, 3),), ((4, 8), (10, 12), (14, 16)))


def test_tile_of_compound_dim_splits_count_plainly_and_length_by_segments():
    layout = Layout.of(S(0, (4, 4, 4, 4)), S(0))
    assert tile(layout, MESH, (16,), (1, 0)) == (((1, 2), (5, 6)),)
    assert tile(layout, MESH, (16,), (1, 1)) == (((9, 10), (13, 14)),)
    with pytest.raises(ValueError, match="the 3 segments of dim 0 do not divide by gpu=2"):
        tile(Layout.of(S(0, QKV), S(0)), MESH, (24,), (0, 0))


def test_mesh_groups_and_numbers():
    assert MESH.groups((1,)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert MESH.groups((0,)) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert MESH.groups((0, 1)) == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert MESH.groups(()) == tuple((rank,) for rank in range(8))


def test_axes_of_several_devices_and_the_argument_of_a_mesh():
    mesh = Mesh.of(machine=1, gpu=4, core=2)
    assert (mesh.real_axes, mesh.argument) == ((1, 2), "machine=1,gpu=4,core=2")
    assert Mesh.of(gpu=1).real_axes == ()
    assert MESH.number((1, 0), (3, 1)) == 7
    assert MESH.number((), (3, 1)) == 0
