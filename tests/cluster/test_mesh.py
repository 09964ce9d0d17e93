"""Laying a mesh over a profile: which axis runs over which link."""
# ruff: noqa: E501 - messages are written as users see them

import json
from dataclasses import replace

import pytest

from shardplan.cluster.mesh import cluster_digest, cluster_from_resolved, make_cluster
from shardplan.cluster.profile import list_profiles, load_profile
from shardplan.errors import ShardplanError


def laid(text, profile="h100-dgx"):
    cluster = make_cluster(load_profile(profile), text)
    names = [cluster.levels[level].name for level in cluster.axis_levels]
    return f"{cluster.mesh} over {','.join(names)}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "machine=4 x gpu=8 over net,up"),
        ("4x4", "machine=4 x gpu=4 over net,up"),
        ("16X8", "machine=16 x gpu=8 over net,up"),
        ("4×4", "machine=4 x gpu=4 over net,up"),
        (" 2x2 ", "machine=2 x gpu=2 over net,up"),
        ("8", "gpu=8 over up"),
        ("1", "gpu=1 over up"),
        ("4x2x4", "machine=4 x gpu0=2 x gpu1=4 over net,up,up"),
        ("2x2x2x2", "machine=2 x gpu0=2 x gpu1=2 x gpu2=2 over net,up,up,up"),
        ("2x2x2x4", "machine0=2 x machine1=2 x gpu0=2 x gpu1=4 over net,net,up,up"),
        ("4x4x4", "machine0=4 x machine1=4 x gpu=4 over net,net,up"),
        ("machine=4,gpu=4", "machine=4 x gpu=4 over net,up"),
        ("gpu=4, net=2", "machine=2 x gpu=4 over net,up"),
        ("up=4", "gpu=4 over up"),
        ("machine=16", "machine=16 over net"),
        ("gpu1=4,gpu0=2", "gpu0=2 x gpu1=4 over up,up"),
        ("machine0=2,machine1=3,gpu=8", "machine0=2 x machine1=3 x gpu=8 over net,net,up"),
    ],
)
def test_axes_and_their_links(text, expected):
    assert laid(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "tray=4 x gpu=4 over nvlink,up"),
        ("4x4", "tray=4 x gpu=4 over nvlink,up"),
        ("2x18x4", "rack=2 x tray=18 x gpu=4 over net,nvlink,up"),
        ("2x3x2x2x2", "rack=2 x tray0=3 x tray1=2 x gpu0=2 x gpu1=2 over net,nvlink,nvlink,up,up"),
        ("2x9x4x4", "rack0=2 x rack1=9 x tray=4 x gpu=4 over net,net,nvlink,up"),
        ("rack=2,gpu=4", "rack=2 x gpu=4 over net,up"),
    ],
)
def test_three_levels(text, expected):
    assert laid(text, "gb200-nvl72") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4x", "error[bad-mesh]: mesh '4x' cannot be read\nhint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4"),
        ("axb", "error[bad-mesh]: mesh 'axb' cannot be read\nhint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4"),
        ("", "error[bad-mesh]: mesh '' cannot be read\nhint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4"),
        ("0x4", "error[bad-mesh]: mesh '0x4' has an axis of size 0\nhint: a size is at least 1"),
        ("gpu=", "error[bad-mesh]: mesh 'gpu=' cannot be read at 'gpu='\nhint: a mesh is sizes such as 4x4, outermost first, or names such as machine=4,gpu=4"),
        ("gpu=0", "error[bad-mesh]: mesh 'gpu=0' has an axis of size 0\nhint: a size is at least 1"),
        ("99999999x1", "error[mesh-too-large]: the mesh has 99,999,999 devices\nhint: at most 16,777,216 can be planned for"),
        ("99999999999999999999x2", "error[mesh-too-large]: the mesh has over 1,000,000,000,000 devices\nhint: at most 16,777,216 can be planned for"),
        ("gpu=2,gpu=4", "error[bad-mesh]: mesh 'gpu=2,gpu=4' names axis 'gpu' twice\nhint: cut one level into several axes as gpu0=…,gpu1=…"),
        ("gpu=2,gpu0=4", "error[bad-mesh]: mesh 'gpu=2,gpu0=4' names axis 'gpu' twice\nhint: cut one level into several axes as gpu0=…,gpu1=…"),
        ("machin=4,gpu=4", "error[unknown-axis]: mesh 'machin=4,gpu=4': there is no axis 'machin'\nhint: did you mean 'machine'?"),
        ("tp=4", "error[unknown-axis]: mesh 'tp=4': there is no axis 'tp'\nhint: axes of profile 'h100-dgx': machine, gpu"),
        ("tp=4,tp=4", "error[unknown-axis]: mesh 'tp=4,tp=4': there is no axis 'tp'\nhint: axes of profile 'h100-dgx': machine, gpu"),
        ("2x16", "error[mesh-too-large]: 16 devices on axis 'gpu', but one machine of profile 'h100-dgx' has 8\nhint: the same number of devices: --mesh machine=4,gpu=8"),
        ("16", "error[mesh-too-large]: 16 devices on axis 'gpu', but one machine of profile 'h100-dgx' has 8\nhint: the same number of devices: --mesh machine=2,gpu=8"),
        ("12", "error[mesh-too-large]: 12 devices on axis 'gpu', but one machine of profile 'h100-dgx' has 8\nhint: at most 8"),
        ("gpu0=4,gpu1=4", "error[mesh-too-large]: 16 devices on axis 'gpu', but one machine of profile 'h100-dgx' has 8\nhint: the same number of devices: --mesh machine=2,gpu=8"),
    ],
)  # fmt: skip
def test_meshes_that_cannot_be(text, message):
    with pytest.raises(ShardplanError) as caught:
        make_cluster(load_profile("h100-dgx"), text)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_idle_devices_of_a_machine_are_a_warning():
    profile = load_profile("h100-dgx")
    (warning,) = make_cluster(profile, "4x3").warnings
    assert str(warning) == "warning[uneven-mesh]: axis 'gpu' uses 3 of 8 devices; the others stay idle"
    assert make_cluster(profile, "4x4").warnings == ()


@pytest.mark.parametrize("name", list_profiles())
def test_a_cluster_comes_back_from_its_own_description(name):
    cluster = make_cluster(load_profile(name), "2x2x2")
    read = cluster_from_resolved(json.loads(json.dumps(cluster.resolved)))
    assert replace(read, warnings=cluster.warnings) == cluster
    assert cluster_digest(read) == cluster_digest(cluster)


def test_the_digest_sees_what_decides_costs_and_nothing_else(tmp_path):
    def digest(text, mesh=None):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return cluster_digest(make_cluster(load_profile(path), mesh))

    base = digest("extends: builtin:h100-dgx")
    assert base.startswith("sha256:")
    assert base == cluster_digest(make_cluster(load_profile("h100-dgx")))
    assert base == digest("# a remark\nname: other\nextends: builtin:h100-dgx\nprovenance: {status: measured}", "4x8")
    assert base != digest("extends: builtin:h100-dgx", "8x8")
    assert base != digest("{extends: builtin:h100-dgx, device: {launch_us: 3}}")
    assert base == digest("{extends: builtin:h100-dgx, overlap: {tp: 0.5, grad_reduce: 0}}")
    assert base != digest("{extends: builtin:h100-dgx, overlap: {kappa: 1.2}}")


@pytest.mark.parametrize(
    "text", ["1x8", "4x1", "1x1", "2x2x4", "gpu=8", "machine=2", "1x2x4", "machine=1,gpu0=1,gpu1=4"]
)
def test_a_plan_gives_back_its_mesh_with_axes_of_size_one(text):
    cluster = make_cluster(load_profile("h100-dgx"), text)
    read = cluster_from_resolved(json.loads(json.dumps(cluster.resolved)))
    assert (read.mesh, read.axis_levels, cluster_digest(read)) == (
        cluster.mesh,
        cluster.axis_levels,
        cluster_digest(cluster),
    )
