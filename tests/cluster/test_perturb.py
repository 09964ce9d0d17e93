"""Clusters with other constants."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.perturb import constants, perturbed
from shardplan.cluster.profile import load_profile
from shardplan.cost.collectives import CollectiveModel


def test_only_levels_that_the_mesh_uses_have_constants():
    one = make_cluster(load_profile("h100-dgx"), "1x8")
    assert constants(one) == ("compute", "memory bandwidth", "up bandwidth", "up latency")
    assert constants(make_cluster(load_profile("h100-dgx"), "4x8"))[-2:] == ("net bandwidth", "net latency")


def test_nothing_else_changes():
    cluster = make_cluster(load_profile("v100-p3-16xl"), "2x8")
    assert perturbed(cluster, {}) == cluster
    assert perturbed(cluster, dict.fromkeys(constants(cluster), 1.0)) == cluster


@pytest.mark.parametrize("profile", ["generic", "h100-dgx", "v100-p3-16xl", "mi300x-8"])
def test_twice_the_bandwidth_and_half_the_latency_is_twice_as_fast(profile):
    cluster = make_cluster(load_profile(profile))
    factors = {name: 2.0 if "bandwidth" in name else 0.5 for name in constants(cluster)}
    fast, slow = CollectiveModel(perturbed(cluster, factors)), CollectiveModel(cluster)
    for axis in range(len(cluster.mesh)):
        for kind in ("all_reduce", "all_to_all"):
            expected = slow.seconds(kind, (axis,), 1e8) / 2
            assert fast.seconds(kind, (axis,), 1e8) == pytest.approx(expected)


def test_compute_and_memory_belong_to_the_device():
    cluster = make_cluster(load_profile("h100-dgx"))
    device = perturbed(cluster, {"compute": 1.5, "memory bandwidth": 0.5}).device
    assert device.peak_flops["bf16"] == 1.5 * cluster.device.peak_flops["bf16"]
    assert device.hbm_bytes_per_s == 0.5 * cluster.device.hbm_bytes_per_s
