"""`init`: what it writes can be used as it stands."""

import shlex
from pathlib import Path

import pytest
import yaml

from shardplan.cluster.profile import list_profiles, load_profile

WRITTEN = ["cluster.yaml", "shardplan.toml", ".github/workflows/shardplan.yml"]


def test_a_plan_and_its_check_follow(shardplan, mlp):
    run = shardplan("init", "--like", "a100-dgx", "--machines", "2", "--devices", "4", "--model", "mlp.onnx")
    assert run.code == 0
    assert run.out.split()[:4] == ["wrote", *WRITTEN]
    assert run.out.endswith("next      shardplan solve mlp.onnx   plans it on 2x4 devices\n")
    assert shardplan("profiles", "check", "cluster.yaml").code == 0
    solved = shardplan("solve", "mlp.onnx", "--dim", "batch=64")
    assert "cluster   cluster, mesh of the profile machine=2" in solved.out
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
