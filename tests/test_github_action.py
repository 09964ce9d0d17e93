"""The shell steps of the Action, run as GitHub runs them, in a repository with a plan that changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from example_plans import example_plan, example_summary

from shardplan import __version__
from shardplan.plan.file import write_plan
from shardplan.plan.types import Plan, Summary

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "github-action" / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
CHECKED = "plans/two.plan.json"


def run(step: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """One step with its defaults as GitHub fills them in, `env` in their place."""
    inputs = ACTION["inputs"]
    given = {
        "MODELS": "",
        "RESOLVE": inputs["resolve"]["default"],
        "BASE": "HEAD",
        "FAIL_IF": inputs["fail-if"]["default"],
    }
    given |= {"PLANS": inputs["plans"]["default"], "ALLOW_DELETED": inputs["allow-deleted"]["default"]}
    files = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output.txt")}
    files["GITHUB_ACTION_PATH"] = str(ROOT / "github-action")
    for name in ("summary.md", "output.txt"):
        (folder / name).unlink(missing_ok=True)
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


def report(repository: Path) -> str:
    """What is left for a comment, which is also what the job summary says."""
    text = (repository / "summary.md").read_text()
    named = (repository / "output.txt").read_text().removeprefix("report=").strip()
    assert Path(named).read_text() == text
    return text


def commands(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What GitHub obeys among the lines of a log: nothing between `stop-commands` and its token."""
    obeyed, token = [], None
    for line in done.stdout.splitlines() + done.stderr.splitlines():
        if token is not None:
            token = None if line == f"::{token}::" else token
        elif line.startswith("::stop-commands::"):
            token = line.removeprefix("::stop-commands::")
        elif line.lstrip().startswith("::") or "##[" in line:
            obeyed.append(line)
    return obeyed


def test_check(repository: Path):
    done = run("Check", repository)
    assert (done.returncode, commands(done)) == (0, [])
    assert f"{CHECKED}  fresh  not compared with its model: give it with --model\n" in done.stdout
    (repository / CHECKED).write_text("{}")
    done = run("Check", repository)
    assert done.returncode == 2
    assert [line.partition("::shardplan")[0] for line in commands(done)] == ["::error file=,title=stale plans"]


def test_reports(repository: Path):
    done = run("Check", repository, JUNIT="out/check.xml", SARIF="out/check.sarif")
    assert done.returncode == 0
    assert (
        '<testcase classname="shardplan.check" name="plans/two.plan.json"' in (repository / "out/check.xml").read_text()
    )
    assert '"results": []' in (repository / "out/check.sarif").read_text()


@pytest.mark.parametrize("step", ["Check", "Diff"])
@pytest.mark.parametrize("plans", ["", "nowhere/*.plan.json"])
def test_no_plans_are_no_answer(repository: Path, step: str, plans: str):
    """A pattern that matches nothing is a typing error; only where nothing changed may `diff` find nothing."""
    done = run(step, repository, PLANS=plans)
    assert done.returncode == (0 if step == "Diff" and plans else 2)


def test_plans_in_several_folders(repository: Path):
    write_plan(stored_plan(), repository / "a b" / "deep" / "-x.plan.json")
    done = run("Check", repository, PLANS="plans/*.json\n\na b/**/*.plan.json")
    assert done.returncode == 0, done.stderr
    assert "all 2 plans are fresh" in done.stdout


def test_nothing_changed(repository: Path):
    done = run("Diff", repository, FAIL_IF="step>+0%")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert report(repository) == ""


def test_a_slower_plan(repository: Path):
    slower(repository)
    done = run("Diff", repository)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"::warning file={CHECKED},title=plan changed::step 41.2 ms → 50 ms (+21.3 %25)")
    summary = report(repository)
    assert summary.startswith(f"<!-- shardplan diff: {CHECKED} -->\n**`{CHECKED}`** step 41.2 ms → 50 ms (+21.3 %)\n")


def test_a_plan_slower_than_is_allowed(repository: Path):
    slower(repository)
    done = run("Diff", repository, FAIL_IF="step>+2%")
    assert done.returncode == 1
    assert commands(done)[-1].startswith(f"::error file={CHECKED},title=plan gets worse::")
    assert run("Diff", repository, FAIL_IF="step>+30%").returncode == 0


def test_a_condition_that_is_none(repository: Path):
    slower(repository)
    assert run("Diff", repository, FAIL_IF="step>2 apples").returncode == 1


def test_a_base_that_is_not_there(repository: Path):
    """What actions/checkout leaves unless it is told otherwise."""
    shallow = repository / "shallow"
    slower(repository)
    git(repository, "commit", "--quiet", "-am", "slower")
    git(repository, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(shallow))
    base = subprocess.run(["git", "rev-parse", "HEAD~1"], cwd=repository, capture_output=True, text=True, check=True)
    (shallow / "bin").symlink_to(repository / "bin")
    done = run("Diff", shallow, BASE=base.stdout.strip(), FAIL_IF="step>+2%")
    assert done.returncode == 2
    assert "fetch-depth: 0" in commands(done)[0]


def test_a_plan_that_is_renamed_is_compared(repository: Path):
    slower(repository)
    (repository / CHECKED).rename(repository / "plans" / "three.plan.json")
    git(repository, "add", "--all", "plans")
    done = run("Diff", repository, FAIL_IF="step>+2%")
    assert done.returncode == 1
    assert commands(done)[0].startswith("::warning file=plans/three.plan.json,title=plan changed::step 41.2 ms → 50 ms")
    assert f"The plan was `{CHECKED}` before." in report(repository)


def test_a_plan_that_is_deleted(repository: Path):
    (repository / CHECKED).unlink()
    done = run("Diff", repository)
    assert done.returncode == 0
    assert commands(done) == [f"::warning file={CHECKED},title=plan deleted::the plan is gone"]
    assert report(repository) == f"**`{CHECKED}`** is deleted\n\n"
    assert run("Diff", repository, FAIL_IF="step>+2%").returncode == 1
    assert run("Diff", repository, FAIL_IF="step>+2%", ALLOW_DELETED="true").returncode == 0


def test_a_new_plan_has_nothing_to_be_compared_with(repository: Path):
    write_plan(example_plan(), repository / "plans" / "new.plan.json")
    git(repository, "add", "plans")
    assert run("Diff", repository, FAIL_IF="step>+0%").returncode == 0
    assert report(repository) == "**`plans/new.plan.json`** is new\n\n"


@pytest.mark.parametrize("broken", ["old", "new"])
def test_plans_that_cannot_be_read_fail_and_the_others_are_compared(repository: Path, broken: str):
    """In either order of the two."""
    for name, text in (("a", "{}"), ("z", "{}")):
        if broken == "old":
            (repository / "plans" / f"{name}.plan.json").write_text(text)
    git(repository, "add", "plans")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "damaged plans")
    for name in ("a", "z"):
        path = repository / "plans" / f"{name}.plan.json"
        if broken == "old":
            write_plan(stored_plan(), path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
    if broken == "new":
        write_plan(stored_plan(), repository / "plans" / "a.plan.json")
        git(repository, "add", "plans")
        git(repository, "commit", "--quiet", "-m", "another")
        (repository / "plans" / "a.plan.json").write_text("{}")
    slower(repository)
    done = run("Diff", repository)
    assert done.returncode == 1
    assert any("title=cannot compare" in line for line in commands(done))
    assert "step 41.2 ms → 50 ms" in report(repository)


def test_names_of_files_are_names(repository: Path):
    """A pull request chooses them."""
    evil = "plans/x\n::error::pwned\n%0A,title=`|<b>.plan.json"
    git(repository, "config", "core.quotepath", "false")
    write_plan(stored_plan(), repository / evil)
    git(repository, "add", "plans")
    git(repository, "commit", "--quiet", "-m", "evil")
    (repository / evil).write_text("{}")
    for step in ("Check", "Diff"):
        assert not [line for line in commands(run(step, repository)) if line.startswith("::error::")]
    (repository / evil).unlink()
    done = run("Diff", repository)
    assert [line.count("::") for line in commands(done)] == [2]
    assert report(repository) == "**`$'plans/x\\n::error::pwned\\n%0A,title=<b>.plan.json'`** is deleted\n\n"


def test_documented_inputs_are_the_real_ones():
    text = (ROOT / "github-action" / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in ACTION["inputs"])


def test_the_action_fails_closed():
    """Steps after a failed check run; what is installed is one version; the example asks for no rights but reading."""
    assert STEPS["Diff"]["if"] == "inputs.base != '' && !cancelled()"
    assert ACTION["inputs"]["version"]["default"] == f"shardplan=={__version__}"
    text = (ROOT / "github-action" / "README.md").read_text(encoding="utf-8")
    assert "permissions: {contents: read}" in text
