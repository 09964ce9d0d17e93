"""Which links a collective occupies: those of the levels that its group crosses."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.occupancy import levels_of, links_of


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


@pytest.mark.parametrize(
    ("profile", "mesh", "passing"),
    [
        ("v100-p3-16xl", "4x8", (("up", "net", pytest.approx(0.026, abs=0.001)),)),
        ("h100-dgx", "4x1", ()),
        ("tpu-v4", "4x4", (("ici_x", "ici_y", 1.0),)),
    ],
)
def test_what_passes_a_link_takes_the_share_that_its_rate_is(profile, mesh, passing):
    """Of NVLink a ring over machines takes little where the network is slow, and all of a link that is no faster."""
    assert links_of(make_cluster(load_profile(profile), mesh)).passing == passing


@pytest.mark.parametrize("mesh", ["4x4", "4x8", "2x2x4"])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_no_large_collective_passes_more_than_its_share(mesh, kind):
    """In the time that it takes over all axes, the link inside could carry what it does for the axes inside."""
    cluster = make_cluster(load_profile("h100-dgx"), mesh)
    model, links = CollectiveModel(cluster), links_of(cluster)
    inside = tuple(axis for axis, level in enumerate(cluster.axis_levels) if level == 0)
    for size_bytes in (2.0**24, 2.0**28, 2.0**33):
        over_all = model.seconds(kind, tuple(range(len(cluster.mesh))), size_bytes)
        needed = model.seconds(kind, inside, size_bytes)
        if size_bytes == 2.0**33:
            assert needed <= links.share("up", frozenset({"up", "net"})) * over_all * 1.01
        assert needed <= over_all
