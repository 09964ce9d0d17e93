"""What a command says of what it was given: units, pins, shared links, plans that it replaces, shapes that changed."""

from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import example_plan

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.plan.diff import diff_plans
from shardplan.render.solve import contention


@pytest.mark.parametrize("limit", ["40", "80", "65535", "40.5"])
def test_a_size_without_a_unit_is_asked_for(shardplan, mlp, limit):
    run = shardplan("solve", str(mlp), "--mesh", "2x2", "--dim", "batch=8", "--memory-limit", limit)
    assert run.code == 2
    assert run.err.splitlines() == [
        f"error[bad-quantity]: --memory-limit {limit} has no unit",
        f"hint: write {limit}GiB, or {limit}GB, or {limit}B",
    ]


def test_a_pin_says_what_it_matched(shardplan, mlp):
    run = shardplan("solve", str(mlp), "--mesh", "2x2", "--dim", "batch=64", "--pin", "*.weight=[null, gpu]")
    assert "pin       '*.weight' fixes 2 tensors: up.weight, down.weight\n" in run.out


def test_a_pin_that_matches_nothing_is_refused_by_name(shardplan, mlp):
    run = shardplan("solve", str(mlp), "--mesh", "2x2", "--dim", "batch=64", "--pin", "upp.weight=[null, gpu]")
    assert run.code == 2
    assert "error[no-match]: no tensor matches 'upp.weight'" in run.err


def test_a_plan_for_another_cluster_is_not_replaced_in_silence(shardplan, mlp):
    words = ("solve", str(mlp), "--mesh", "2x2", "--dim", "batch=64", "-o", "a.plan.json")
    assert "replaces" not in shardplan(*words).out
    assert "replaces" not in shardplan(*words).out
    run = shardplan(*words, "--cluster", "a100-dgx")
    assert "it replaces the plan for mlp on h100-dgx (machine=2 x gpu=2)" in run.out


@pytest.mark.parametrize(
    ("profile", "mesh", "said"),
    [
        ("a10g-g5-48xl", "2x8", "1.56 per device when all 8 send"),
        ("a10g-g5-48xl", "2x4", "3.12 per device when all 4 send"),
        ("a10g-g5-48xl", "2x1", ""),
        ("h100-dgx", "2x8", ""),
    ],
)
def test_a_link_that_devices_share_says_what_each_gets(profile, mesh, said):
    cluster = make_cluster(load_profile(profile), mesh)
    assert contention(cluster, cluster.axis_levels[0]) == said


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("device: [{kind: H100}, {kind: A100}]", "3:9: error[bad-value]: device: expected a mapping, found a list"),
        ("devices: [{kind: H100}, {kind: A100}]", "3:1: error[unknown-key]: unknown key 'devices'"),
        ("device: {kinds: [H100, A100]}", "3:10: error[unknown-key]: unknown key 'kinds' in 'device'"),
    ],
)
def test_kinds_of_devices_that_a_profile_mixes_are_refused_in_words(shardplan, folder, device, said):
    Path("mix.yaml").write_text(f"schema: 1\nname: mix\n{device}\n")
    run = shardplan("profiles", "check", "mix.yaml")
    assert run.code == 2
    assert f"mix.yaml:{said}" in run.err
    assert "hint: a plan gives every device the same share of the work: write a profile for each kind" in run.err


def test_a_diff_names_parameters_whose_shapes_changed():
    old = example_plan()
    wider = tuple(
        replace(one, shape=(*one.shape[:-1], 2 * one.shape[-1])) if one.checkpoint.endswith("up.weight") else one
        for one in old.tensors
    )
    causes = diff_plans(old, replace(old, tensors=wider)).causes
    assert causes == ("shape of layers.*.mlp.up.weight (×2) [1024, 4096] → [1024, 8192]",)
