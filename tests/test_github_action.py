"""The shell steps of the Action, run as GitHub runs them, in a repository with a plan that changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from example_plans import example_plan, example_summary

from shardplan.plan.file import write_plan
from shardplan.plan.types import Plan, Summary

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "github-action" / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
CHECKED = "plans/two.plan.json"


def run(step: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """One step with its defaults as GitHub fills them in, `env` in their place."""
    given = {
        "PLANS": ACTION["inputs"]["plans"]["default"],
        "MODELS": "",
        "RESOLVE": "false",
        "BASE": "HEAD",
        "FAIL_IF": "",
    }
    files = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output.txt")}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    script = STEPS[step]["run"]
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**given, **files, **env, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def stored_plan(**changes: object) -> Plan:
    """What the example stores, on a cluster that is not shipped."""
    mine = {**example_plan().cluster, "name": "mine"}
    summary = {"summary": computing(41_234_567)}
    return example_plan(**{**summary, "cluster": mine, "operators": (), "moves": (), "blocks": (), **changes})


def computing(step_ns: int) -> Summary:
    """Of a step that does nothing but compute."""
    return example_summary(step_ns=step_ns, compute_ns=step_ns, communication_ns=0)


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one committed plan, and `shardplan` on the path."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "shardplan"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "planner"} exec {sys.executable} -m shardplan "$@"\n')
    command.chmod(0o755)
    write_plan(stored_plan(), tmp_path / CHECKED)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "plans")
    git(tmp_path, "commit", "--quiet", "-m", "a plan")
    return tmp_path


def slower(repository: Path) -> None:
    write_plan(stored_plan(summary=computing(50_000_000)), repository / CHECKED)


def test_check(repository: Path):
    done = run("Check", repository)
    assert (done.returncode, done.stdout) == (
        0,
        f"{CHECKED}  fresh  not compared with its model: give it with --model\n",
    )
    (repository / CHECKED).write_text("{}")
    assert run("Check", repository).returncode == 2


def test_nothing_changed(repository: Path):
    done = run("Diff", repository, FAIL_IF="step>+0%")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (repository / "summary.md").read_text() == ""


def test_a_slower_plan(repository: Path):
    slower(repository)
    done = run("Diff", repository)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"::warning file={CHECKED},title=plan changed::step 41.2 ms → 50 ms (+21.3 %25)")
    summary = (repository / "summary.md").read_text()
    assert summary.startswith(f"<!-- shardplan diff: {CHECKED} -->\n**`{CHECKED}`** step 41.2 ms → 50 ms (+21.3 %)\n")
    report = (repository / "output.txt").read_text().removeprefix("report=").strip()
    assert Path(report).read_text() == summary


def test_a_plan_slower_than_is_allowed(repository: Path):
    slower(repository)
    assert run("Diff", repository, FAIL_IF="step>+2%").returncode == 1
    assert run("Diff", repository, FAIL_IF="step>+30%").returncode == 0


def test_a_new_plan_has_nothing_to_be_compared_with(repository: Path):
    write_plan(example_plan(), repository / "plans" / "new.plan.json")
    assert run("Diff", repository, FAIL_IF="step>+0%").returncode == 0


def test_documented_inputs_are_the_real_ones():
    text = (ROOT / "github-action" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in ACTION["inputs"])
