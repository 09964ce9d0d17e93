"""Clusters that a program has changed: the profile that plans record says what their values say."""

from dataclasses import replace
from pathlib import Path

import pytest

import shardplan
from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.consistency import consistent
from shardplan.cluster.mesh import cluster_digest, make_cluster
from shardplan.cluster.perturb import constants, perturbed
from shardplan.cluster.profile import load_profile
from shardplan.cluster.types import Coalesce, Curve, Overlap
from shardplan.errors import ShardplanError
from shardplan.layout.mesh import Axis, Mesh

PROFILES = sorted(path.stem for path in (Path(__file__).parents[2] / "cluster_profiles").glob("*.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_every_changed_constant_is_written_into_the_profile(name):
    cluster = make_cluster(load_profile(name))
    assert consistent(cluster) is cluster
    other = perturbed(cluster, dict.fromkeys(constants(cluster), 1.5))
    found = consistent(other)
    assert consistent(found) is found
    assert cluster_digest(found) != cluster_digest(cluster)
    read = profile_from_resolved(found.resolved)
    assert read.device.peak_flops == pytest.approx(other.device.peak_flops)
    assert read.device.hbm_bytes_per_s == pytest.approx(other.device.hbm_bytes_per_s)
    for one, same in zip(read.levels, other.levels, strict=True):
        assert one.link_bytes_per_s == pytest.approx(same.link_bytes_per_s)
        assert one.base_s == pytest.approx(same.base_s)
        assert (one.eta, one.eta_by_ranks) == (same.eta, same.eta_by_ranks)


def test_values_of_all_kinds_are_written():
    cluster = make_cluster(load_profile("h100-dgx"), "2x8")
    device = replace(cluster.device, attention={}, gemm=replace(cluster.device.gemm, e=0.5, narrow=0.25))
    up = replace(cluster.levels[0], share=0.5, eta={"default": 0.5}, eta_by_ranks={"all_reduce": {2: 0.25}})
    other = replace(
        cluster,
        device=device,
        levels=(up, *cluster.levels[1:]),
        overlap=Overlap(kappa=1.5),
        coalesce=Coalesce(1e6),
        curves=(Curve("all_reduce", 1, 8, ((1024.0, 1.5e-5),)),),
        mesh=Mesh((Axis("net", 4), Axis("up", 4))),
    )
    read = profile_from_resolved(consistent(other).resolved)
    assert read.device == device
    assert read.levels == other.levels
    assert (read.overlap, read.coalesce, read.curves) == (other.overlap, other.coalesce, other.curves)
    assert [axis.size for axis in read.axes] == [4, 4]
    back = replace(other, device=replace(device, gemm=replace(device.gemm, narrow=None)))
    assert "narrow" not in consistent(back).resolved["device"]["gemm"]


def test_what_no_profile_says_is_refused():
    cluster = make_cluster(load_profile("generic"), "2x4")
    with pytest.raises(ShardplanError, match="the levels of the cluster are up, and its profile, `resolved`, has up, "):
        consistent(replace(cluster, levels=cluster.levels[:1]))
    with pytest.raises(ShardplanError, match=r"'device.hbm_gbps' is -0\.001"):
        consistent(replace(cluster, device=replace(cluster.device, hbm_bytes_per_s=-1e6)))


def test_a_mesh_is_laid_over_the_cluster_as_it_is():
    """The plan is the same as without a mesh, and can be checked against the profile that it records."""
    cluster = make_cluster(load_profile("generic"), "2x4")
    slow = replace(cluster, device=replace(cluster.device, peak_flops=dict.fromkeys(cluster.device.peak_flops, 1e9)))
    model = "transformer:layers=1,hidden=32,heads=4,vocab=64,seq=16,batch=8"
    plans = [shardplan.make_plan(model, mesh, cluster=slow) for mesh in (None, "2x4")]
    assert plans[0].summary == plans[1].summary
    assert plans[1].summary.step_ns > 10 * shardplan.make_plan(model, "2x4", cluster=cluster).summary.step_ns
    recorded = plans[0].cluster["profile"]
    assert set(recorded["device"]["peak_tflops"].values()) == {0.001}
