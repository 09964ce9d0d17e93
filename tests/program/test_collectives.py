"""The numpy machine itself: it must refuse what a real cluster could not do."""

from fractions import Fraction

import numpy as np
import pytest
from mesh_values import shard

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.program.collectives import global_shape, run, unshard

MESH = Mesh.of(machine=2, gpu=2)
ARRAY = np.arange(16, dtype=np.float64).reshape(4, 4)


def step(kind, axes, source, target, array=ARRAY):
    return run(shard(array, source, MESH), source, Collective(kind, axes, Fraction(1)), target, MESH)


def test_shards_by_hand():
    rows = shard(ARRAY, Layout.of(S(0), R), MESH)
    assert [local.tolist() for local in rows] == [ARRAY[:2].tolist()] * 2 + [ARRAY[2:].tolist()] * 2
    gpu_major = shard(ARRAY, Layout.of(S(0), S(0), order=(1, 0)), MESH)
    assert [int(local[0, 0]) // 4 for local in gpu_major] == [0, 2, 1, 3]
    pieces = shard(ARRAY, Layout.of(R, S(1, (2, 2))), MESH)
    assert pieces[1].tolist() == ARRAY[:, [1, 3]].tolist()
    assert global_shape((2, 2), Layout.of(S(0), S(1, (2, 2))), MESH) == (4, 4)


FLOATS, WHOLE = (np.float64, np.float32), (np.int64,)


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [(r, t) for r in ("sum", "max", "min") for t in FLOATS + WHOLE] + [("prod", t) for t in FLOATS],
)
def test_partial_values_combine_to_the_array(reduction, dtype):
    array = ARRAY.astype(dtype)
    layout = Layout.of(P(reduction), S(0))
    value = shard(array, layout, MESH)
    assert all(local.dtype == dtype for local in value)
    assert not np.array_equal(value[0], array[:2])
    assert np.array_equal(unshard(value, layout, MESH), array)
    reduced = step("all_reduce", (0,), layout, Layout.of(R, S(0)), array)
    assert np.array_equal(unshard(reduced, Layout.of(R, S(0)), MESH), array)


def test_scalars_have_copies_and_partial_values():
    scalar = np.array(3.0)
    for layout in (Layout.of(R, R), Layout.of(P(), R), Layout.of(RP, P("max"))):
        assert unshard(shard(scalar, layout, MESH), layout, MESH) == scalar


def test_dual_layouts_are_held_as_their_forward_half():
    assert np.array_equal(unshard(shard(ARRAY, Layout.of(RP, S(1)), MESH), Layout.of(RP, S(1)), MESH), ARRAY)


@pytest.mark.parametrize(
    ("kind", "axes", "source", "target"),
    [
        ("all_gather", (1,), Layout.of(S(0), R), Layout.of(R, R)),
        ("all_to_all", (1,), Layout.of(S(0), R), Layout.of(S(1), R)),
        ("slice", (1,), Layout.of(S(0), R), Layout.of(S(1), R)),
    ],
)
def test_a_wrong_group_cannot_get_what_it_does_not_hold(kind, axes, source, target):
    with pytest.raises(ValueError, match=r"device \d wants elements that no device of its group \(.*\) holds"):
        step(kind, axes, source, target)


def test_a_permute_sends_every_tensor_once():
    source, target = Layout.of(S(0), S(0)), Layout.of(S(0), S(0), order=(1, 0))
    with pytest.raises(ValueError, match="wants a tensor that no device of its group"):
        step("permute", (0,), source, target)
    with pytest.raises(ValueError, match="wants a tensor that no device of its group"):
        step("permute", (0, 1), Layout.of(S(0), R), Layout.of(S(0), S(1)))


def test_a_reduction_over_the_wrong_group_gives_other_values():
    after = step("all_reduce", (1,), Layout.of(P(), R), Layout.of(R, R))
    with pytest.raises(ValueError, match="holds other values than the devices it should be a copy of"):
        unshard(after, Layout.of(R, R), MESH)


def test_unshard_checks_copies_and_shapes():
    layout = Layout.of(S(0), R)
    value = shard(ARRAY, layout, MESH)
    value[1] = value[1] + 1e-9
    with pytest.raises(ValueError, match="device 1 holds other values"):
        unshard(value, layout, MESH)
    assert np.allclose(unshard(value, layout, MESH, atol=1e-6), ARRAY)
    value[1] = value[1][:1]
    with pytest.raises(ValueError, match=r"device 1 holds shape \(1, 4\), its layout says \(2, 4\)"):
        unshard(value, layout, MESH)


def test_not_a_number_is_a_copy_of_itself():
    array = np.full((4, 4), np.nan)
    assert np.isnan(unshard(shard(array, Layout.of(R, S(0)), MESH), Layout.of(R, S(0)), MESH)).all()


def test_masked_copies_stand_on_one_device_only():
    after = step("mask", (0, 1), Layout.of(S(0), R), Layout.of(P(), P()))
    assert [bool(local.any()) for local in after] == [True, False, True, False]
    assert np.array_equal(unshard(after, Layout.of(P(), P()), MESH), ARRAY)
