"""`init`: what it writes can be used as it stands."""

import shlex
from pathlib import Path

import pytest
import yaml

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import list_profiles, load_profile

WRITTEN = ["cluster.yaml", "shardplan.toml", ".github/workflows/shardplan.yml"]


def test_a_plan_and_its_check_follow(shardplan, mlp):
    run = shardplan("init", "--like", "a100-dgx", "--machines", "2", "--devices", "4", "--model", "mlp.onnx")
    assert run.code == 0
    assert run.out.split()[:4] == ["wrote", *WRITTEN]
    assert run.out.endswith("next      shardplan solve mlp.onnx   plans it for the mesh 2x4\n")
    assert shardplan("profiles", "check", "cluster.yaml").code == 0
    solved = shardplan("solve", "mlp.onnx", "--dim", "batch=64")
    assert "cluster   a100-dgx-2x4, mesh of the profile machine=2" in solved.out
    steps = yaml.safe_load(Path(WRITTEN[2]).read_text())["jobs"]["check"]["steps"]
    words = shlex.split(steps[-1]["run"].replace("plans/*.plan.json", "plans/mlp.2x4.plan.json"))
    assert words[0] == "shardplan"
    assert shardplan(*words[1:]).code == 0


@pytest.mark.parametrize("name", list_profiles())
@pytest.mark.parametrize("machines", ["1", "2"])
def test_every_shipped_profile_gives_a_cluster_that_can_be_read(shardplan, folder, name, machines):
    assert shardplan("init", "--like", name, "--machines", machines, "--devices", "2", "--no-ci").code == 0
    assert load_profile("cluster.yaml").axes[-1].size == 2
    assert not Path(WRITTEN[2]).exists()


def test_nothing_is_replaced_unless_that_is_said(shardplan, folder):
    Path("shardplan.toml").write_text("mine = 1\n")
    refused = shardplan("--help") and shardplan("init")
    assert refused.code == 2
    assert not Path("cluster.yaml").exists()


def test_what_is_there_is_named(shardplan, folder):
    Path("cluster.yaml").write_text("mine: 1\n")
    refused = shardplan("init")
    assert refused.code == 2
    assert refused.err.splitlines() == [
        "cluster.yaml: error[file-exists]: this file is there already; nothing was written",
        "hint: shardplan init --force replaces it",
    ]
    assert not Path("shardplan.toml").exists()
    assert shardplan("init", "--force").code == 0
    assert Path("cluster.yaml").read_text() != "mine: 1\n"


def test_a_second_time_changes_nothing(shardplan, folder):
    assert shardplan("init").code == 0
    assert shardplan("init").code == 0


def test_names_with_blanks_and_quotes_are_quoted_for_the_shell(shardplan, folder):
    assert shardplan("init", "--model", "a 'b'.onnx").code == 0
    steps = yaml.safe_load(Path(WRITTEN[2]).read_text())["jobs"]["check"]["steps"]
    assert shlex.split(steps[-1]["run"])[-1] == "a 'b'.onnx"


def test_an_unknown_profile_is_refused_and_nothing_written(shardplan, folder):
    refused = shardplan("init", "--like", "h1000")
    assert refused.code == 2
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("there", [{}, {"shardplan.toml": "json = false\n"}])
def test_where_one_file_cannot_be_written_none_is(shardplan, folder, there):
    there = {**there, ".github": "not a folder\n"}
    for name, text in there.items():
        Path(name).write_text(text)
    refused = shardplan("init", "--force")
    assert (refused.code, refused.err) == (
        2,
        f"{WRITTEN[2]}: error[unwritable-output]: cannot write the file: not a directory; nothing was written\n",
    )
    assert {path.name: path.read_text() for path in Path().iterdir()} == there


def test_machines_of_a_rack_are_joined_by_its_links(shardplan, folder):
    for machines, level in ((2, "nvlink"), (32, "net")):
        made = shardplan("init", "--like", "gb200-nvl72", "--machines", str(machines), "--devices", "4", "--force")
        assert (made.code, made.err) == (0, "")
        assert f"{{name: machine, size: {machines}, level: {level}}}" in Path("cluster.yaml").read_text()


def test_a_model_that_is_not_there_yet_is_said(shardplan, folder):
    assert "there is no later.onnx yet" in shardplan("init", "--model", "later.onnx").out
    assert "there is no" not in shardplan("init", "--force").out
    assert shardplan("init").out.split()[:2] == ["same", "as"]


@pytest.mark.parametrize("name", list_profiles())
@pytest.mark.parametrize("devices", [8, 16])
def test_what_is_written_can_be_planned_on(shardplan, folder, name, devices):
    shardplan("init", "--like", name, "--machines", "2", "--devices", str(devices), "--no-ci")
    assert make_cluster(load_profile("cluster.yaml")).mesh.size == 2 * devices
