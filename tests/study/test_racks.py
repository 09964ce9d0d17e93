"""Racks of which trainers fill a part: `shardplan.study.racks`."""

import pytest

import shardplan
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.planning.parallelism import Parallelism, axes_of
from shardplan.study.racks import as_filled

RACK = "gb200-nvl72"


def filled(profile_name, **ways):
    return as_filled(make_cluster(load_profile(profile_name)), Parallelism(**ways))


def sizes(profile_name, **ways):
    found = filled(profile_name, **ways)
    return [(axis.kind, axis.size, found.levels[axis.level].name) for axis in axes_of(Parallelism(**ways), found)]


def test_trays_and_rack_are_one_fabric():
    assert sizes(RACK, tensor=8, data=9) == [("data", 9, "nvlink"), ("tensor", 8, "nvlink")]
    assert [level.name for level in filled(RACK, data=8).levels] == ["nvlink", "net"]


def test_three_levels_of_one_fabric():
    """The name of each leads to the outermost, also through one that was joined itself."""
    resolved = load_profile(RACK).resolved
    up, nvlink, net = resolved["levels"]
    mesh = {"axes": [{"name": "row", "size": 2, "level": "row"}, *resolved["mesh"]["axes"][1:]]}
    levels = [up, nvlink, {**nvlink, "name": "row", "devices": 144}, {**net, "devices": 1440}]
    rows = profile_from_resolved({**resolved, "levels": levels, "mesh": mesh})
    assert [axis.level for axis in rows.axes] == [2, 1, 0]
    found = as_filled(make_cluster(rows), Parallelism(data=8))
    assert [level.name for level in found.levels] == ["row", "net"]
    assert [(axis.size, axis.level) for axis in found.axes] == [(32, 0)]


def test_dimensions_of_a_torus_have_links_of_their_own():
    assert [level.name for level in filled("tpu-v4", data=8).levels] == ["ici_x", "ici_y", "ici_z", "dcn"]
    assert sizes("tpu-v4", tensor=16, data=16) == [("data", 16, "ici_y"), ("tensor", 16, "ici_x")]


def test_of_a_rack_that_powers_of_two_do_not_fill_64_devices_are_taken():
    assert sizes(RACK, data=128) == [("data", 2, "net"), ("data", 64, "nvlink")]
    assert sizes(RACK, tensor=8, data=16) == [("data", 2, "net"), ("data", 8, "nvlink"), ("tensor", 8, "nvlink")]
    net = filled(RACK, data=128).levels[-1]
    whole = load_profile(RACK).levels[-1]
    assert net.node_bytes_per_s == pytest.approx(whole.node_bytes_per_s * 64 / 72)


def test_machines_of_a_power_of_two_stay_as_they_are():
    assert filled("h100-dgx", data=16).levels == load_profile("h100-dgx").levels
    with pytest.raises(ShardplanError, match="12 data-parallel ranks do not fill a level of links") as wrong:
        filled("h100-dgx", data=12)
    assert wrong.value.diagnostics[0].hint == "8 or 16 ranks fill it, or take a power of two"


def test_a_configuration_over_several_racks_is_priced():
    model = "transformer:layers=2,hidden=256,heads=8,vocab=1024,seq=128"
    found = shardplan.price(model, cluster=RACK, tp=4, pp=2, dp=32, sequence_parallel=True, global_batch=64)
    assert found.plan.summary.step_ns > 0
