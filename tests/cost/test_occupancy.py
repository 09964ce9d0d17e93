"""Which links a collective occupies: those of the levels that its group crosses."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.occupancy import levels_of


@pytest.mark.parametrize(
    ("profile", "mesh", "axes", "levels"),
    [
        ("h100-dgx", "4x4", (1,), ("up",)),
        ("h100-dgx", "4x4", (0,), ("net",)),
        ("h100-dgx", "4x4", (0, 1), ("up", "net")),
        ("h100-dgx", "4x4", (1, 0), ("up", "net")),
        ("h100-dgx", "4x2x4", (1, 2), ("up",)),
        ("h100-dgx", "4x1", (0, 1), ("net",)),
        ("h100-dgx", "4x1", (1,), ()),
        ("h100-dgx", "4x4", (), ()),
    ],
)
def test_levels_are_those_that_the_group_crosses(profile, mesh, axes, levels):
    assert levels_of(make_cluster(load_profile(profile), mesh), axes) == levels
