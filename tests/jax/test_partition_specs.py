"""Layouts as partition specs, also where the array divides a dim of the plan in several."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from jax.sharding import PartitionSpec as Spec

from shardplan.errors import ShardplanError
from shardplan.jax.partition_specs import division, partition_spec
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, R, S

MESH = Mesh.of(machine=2, gpu=4)


def spec(layout, *divided):
    return partition_spec(layout, MESH, divided, "w")


@pytest.mark.parametrize(
    ("fine", "coarse", "divided"),
    [
        ((32, 96), (32, 96), ((32,), (96,))),
        ((32, 3, 4, 8), (32, 96), ((32,), (3, 4, 8))),
        ((3, 32, 32), (96, 32), ((3, 32), (32,))),
        ((1, 32), (1, 32), ((1,), (32,))),
        ((32, 1), (32,), ((32, 1),)),
        ((), (), ()),
        ((96, 32), (32, 96), None),
        ((32, 3), (32, 96), None),
        ((32,), (32, 1), None),
        ((32, 3, 33), (32, 96), None),
    ],
)
def test_division(fine, coarse, divided):
    assert division(fine, coarse) == divided


@given(st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=3), max_size=4))
def test_divided_dims_are_put_together_again(groups):
    coarse = [math.prod(group) for group in groups]
    divided = division([size for group in groups for size in group], coarse)
    assert divided == tuple(tuple(group) for group in groups)


@pytest.mark.parametrize(
    ("layout", "divided", "expected"),
    [
        (Layout.of(R, RP), ((8,), (8,)), Spec()),
        (Layout.of(S(0), S(1)), ((8,), (8,)), Spec("machine", "gpu")),
        (Layout.of(S(1), S(1)), ((8,), (8,)), Spec(None, ("machine", "gpu"))),
        (Layout.of(S(1), S(1), order=(1, 0)), ((8,), (8,)), Spec(None, ("gpu", "machine"))),
        (Layout.of(S(0), R), ((8,), (8,)), Spec("machine")),
        (Layout.of(S(1), R), ((8,), (4, 2)), Spec(None, "machine")),
        (Layout.of(S(1), S(1)), ((8,), (2, 8)), Spec(None, "machine", "gpu")),
        (Layout.of(R, S(1, (8, 8, 8))), ((8,), (3, 8)), Spec(None, None, "gpu")),
        (Layout.of(R, S(1, (8, 8, 8))), ((8,), (3, 4, 2)), Spec(None, None, "gpu")),
        (Layout.of(S(1), S(1, (8, 8))), ((8,), (2, 8)), Spec(None, "machine", "gpu")),
    ],
)
def test_partition_specs(layout, divided, expected):
    assert spec(layout, *divided) == expected


def test_a_fused_dim_in_one_piece_is_refused():
    with pytest.raises(ShardplanError) as caught:
        spec(Layout.of(R, S(1, (8, 8, 8))), (8,), (24,))
    assert str(caught.value) == (
        "error[segmented-dim]: dim 1 of 'w' is sharded in each of its segments (8, 8, 8), "
        "which no JAX sharding can express\n"
        "hint: give the array the dims (3, 8) in place of dim 1, as einsum layers do"
    )


def test_segments_of_different_sizes_are_refused():
    with pytest.raises(ShardplanError) as caught:
        spec(Layout.of(R, S(0, (8, 4, 4))), (16,))
    assert str(caught.value) == (
        "error[segmented-dim]: dim 0 of 'w' is sharded in each of its segments (8, 4, 4), "
        "which no JAX sharding can express\n"
        "hint: make its segments arrays of their own: let names give shardplan.jax.Part(name, start, stop) for each"
    )


def test_a_division_that_the_axes_do_not_divide_is_refused():
    with pytest.raises(ShardplanError) as caught:
        spec(Layout.of(R, S(0)), (2, 12))
    assert str(caught.value) == (
        "error[indivisible-dim]: 'w' is S(0)@gpu, which does not divide its dims [2, 12] of dim 0\n"
        "hint: let the major one of these dims be a multiple of the axes that shard it"
    )
