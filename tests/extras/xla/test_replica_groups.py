"""Replica groups in every syntax of HLO, against tables written out and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.extras.xla.replica_groups import replica_groups, source_target_pairs

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", PAIRS),
        ("[4,2]<=[8]", PAIRS),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=4,'b'=2] {'b'}", PAIRS),
        ("mesh['a'=4,'b'=2] {'a'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=8] {'x':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3))),
        ("@mesh<a=4,b=2> {b}", PAIRS),
        ("{}", (tuple(range(8)),)),
    ],
)
def test_every_syntax(text, groups):
    assert replica_groups(f", channel_id=1, replica_groups={text}, dimensions={{0}}, metadata={{}}", 8) == groups


def test_no_groups_are_one_group_of_all():
    assert replica_groups(", channel_id=1", 4) == ((0, 1, 2, 3),)


def test_an_unknown_syntax_is_refused():
    with pytest.raises(ValueError, match=r"^replica groups in a syntax that is not known: <2x4>"):
        replica_groups("replica_groups=<2x4>", 8)


def test_pairs_of_a_permute():
    attributes = ', channel_id=2, source_target_pairs={{0,1},{1,2},{2,0}}, metadata={op_name="{9,9}"}'
    assert source_target_pairs(attributes) == ((0, 1), (1, 2), (2, 0))


@st.composite
def meshes(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    chosen = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    return sizes, sorted(chosen)


@given(meshes())
def test_the_three_syntaxes_agree(mesh):
    sizes, chosen = mesh
    others = [axis for axis in range(len(sizes)) if axis not in chosen]
    ways, devices = math.prod(sizes[axis] for axis in chosen), math.prod(sizes)
    table = np.arange(devices).reshape(sizes).transpose(*others, *chosen).reshape(-1, ways)
    listed = "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in table.tolist()) + "}"
    order = ",".join(map(str, (*others, *chosen)))
    iota = f"[{devices // ways},{ways}]<=[{','.join(map(str, sizes))}]T({order})"
    axes = ",".join(f"'n{axis}'={size}" for axis, size in enumerate(sizes))
    by_mesh = f"mesh[{axes}] {{{','.join(repr(f'n{axis}') for axis in chosen)}}}"
    expected = tuple(tuple(row) for row in table.tolist())
    for text in (listed, iota, by_mesh):
        assert replica_groups(f"replica_groups={text}", devices) == expected, text
