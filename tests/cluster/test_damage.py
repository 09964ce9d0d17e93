"""Resolved profiles that somebody edited: the copy inside a plan is checked before anything is built of it."""

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.cluster.damage import check_resolved
from shardplan.cluster.mesh import cluster_from_resolved
from shardplan.cluster.profile import list_profiles, load_profile
from shardplan.cost.collectives import CollectiveModel
from shardplan.errors import ShardplanError

BASE = json.loads(json.dumps(load_profile("h100-dgx").resolved))
JUNK = (
    None,
    True,
    -1,
    0,
    7,
    2**62,
    1.5,
    1e300,
    float("nan"),
    "",
    "zz",
    [],
    [[]],
    {},
    {"a": []},
    {"0": [1]},
    {"2": 0.5},
)


def places(value, path=()):
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def edited(path, junk, *, delete=False):
    found = copy.deepcopy(BASE)
    around = found
    for key in path[:-1]:
        around = around[key]
    if delete:
        del around[path[-1]]
    else:
        around[path[-1]] = junk
    return found


@pytest.mark.parametrize("name", list_profiles())
def test_what_is_resolved_is_sound(name):
    check_resolved(json.loads(json.dumps(load_profile(name).resolved)))


@pytest.mark.parametrize(
    ("path", "junk", "fault"),
    [
        (("device", "hbm_gbps"), -1, "'device.hbm_gbps' is -1"),
        (("device", "gemm"), 3, "'device.gemm' is no object"),
        (("levels", 0, "topology"), "ring", "'levels[0].topology' is 'ring'"),
        (("levels", 1, "devices"), 7, "levels: units of 8 devices do not fit into units of 7"),
        (("mesh", "axes", 0, "level"), "web", "mesh.axes: there is no level 'web'"),
        (("mesh", "axes", 0, "name"), "S(0)@x", "'mesh.axes[0].name' is 'S(0)@x'"),
        (
            ("mesh", "axes", 0, "name"),
            "gpu1",
            "mesh.axes: 'gpu1' and 'gpu' differ only in their number, and lie on different levels",
        ),
        (("name",), "a\nb", "'name' is no text on one line without control characters"),
        (("overlap",), [], "'overlap' is no object"),
    ],
)
def test_a_fault_is_named(path, junk, fault):
    with pytest.raises(ShardplanError) as caught:
        cluster_from_resolved(edited(path, junk))
    assert str(caught.value) == f"error[damaged-profile]: cluster profile: {fault}\nhint: solve again"


def test_a_level_has_a_name_that_a_mesh_can_have():
    with pytest.raises(ShardplanError) as caught:
        cluster_from_resolved(edited(("levels", 0, "name"), "a b"))
    allowed = "letters, digits, '_' and '-', beginning with a letter or '_'"
    assert [one.summary for one in caught.value.diagnostics] == [
        f"cluster profile: levels: each needs a name of its own, of {allowed}",
        "cluster profile: mesh.axes: there is no level 'up'",
    ]


def test_older_plans_know_nothing_of_buckets():
    del (older := copy.deepcopy(BASE))["coalesce"]
    assert cluster_from_resolved(older).coalesce.bucket_bytes == 0


def test_older_plans_say_what_share_overlaps_and_it_does_not_matter():
    (older := copy.deepcopy(BASE))["overlap"] |= {"weight_gather": 0.9, "grad_reduce": 0.9, "tp": 0.0, "a2a": 0.0}
    whole = cluster_from_resolved(BASE)
    assert replace(cluster_from_resolved(older), resolved=whole.resolved) == whole


@given(st.sampled_from([path for path in places(BASE) if path]), st.sampled_from(JUNK), st.booleans())
@settings(max_examples=200)
def test_after_any_one_edit_it_is_refused_or_prices_collectives(path, junk, delete):
    resolved = edited(path, junk, delete=delete)
    try:
        cluster = cluster_from_resolved(resolved)
    except ShardplanError:
        return
    axes = tuple(range(len(cluster.mesh.axes)))
    for kind in ("all_reduce", "all_gather", "all_to_all", "permute"):
        assert CollectiveModel(cluster).seconds(kind, axes, 1e6) >= 0
