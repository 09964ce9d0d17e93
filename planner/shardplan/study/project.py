"""The files with which a project starts: its cluster, its settings, its check in CI."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from shardplan.cluster.build import Profile

CLUSTER_FILE, SETTINGS_FILE, WORKFLOW_FILE = "cluster.yaml", "shardplan.toml", ".github/workflows/shardplan.yml"


@dataclass(frozen=True, slots=True)
class Project:
    """`base`: the shipped profile nearest to the machines; `machines` of `devices` each; `model`: what is planned, `""`
    where that is not known yet; `version`: of shardplan, for CI; `workflow`: whether there is one."""

    base: str
    machines: int
    devices: int
    model: str
    version: str
    workflow: bool = True


def project_files(asked: Project, profile: Profile) -> Mapping[str, str]:
    """Path -> text. `profile`: that of `asked.base`."""
    files = {CLUSTER_FILE: _cluster(asked, profile), SETTINGS_FILE: _settings()}
    return files | ({WORKFLOW_FILE: _workflow(asked)} if asked.workflow else {})


def _cluster(asked: Project, profile: Profile) -> str:
    outer, inner = profile.levels[-1].name, profile.levels[0].name
    axes = [f"{{name: gpu, size: {asked.devices}, level: {inner}}}"]
    if asked.machines > 1:
        axes.insert(0, f"{{name: machine, size: {asked.machines}, level: {outer}}}")
    listed = "\n".join(f"    - {axis}" for axis in axes)
    return f"""# The machines that plans are for: {asked.machines} with {asked.devices} devices each, as {asked.base}.
# What differs from it goes here; docs/cluster-profiles.md has every key. `shardplan calibrate` fits it to measurements.
extends: builtin:{asked.base}
mesh:
  axes:
{listed}
"""


def _settings() -> str:
    return f"""# Options of shardplan in this folder, by their names; the command line wins.
# A table such as [solve] is for one verb.
cluster = "{CLUSTER_FILE}"
"""


def _workflow(asked: Project) -> str:
    model = f" --model {shlex.quote(asked.model)}" if asked.model else ""
    return f"""# Fails when a committed plan no longer holds. The Action of shardplan's repository, github-action,
# also says in the summary of a pull request what the change of a plan costs.
name: plans
on: [pull_request]
permissions:
  contents: read
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.12"}}
      - run: python -m pip install shardplan=={asked.version}
      - run: {_scalar(f"shardplan check plans/*.plan.json{model}")}
"""


def _scalar(text: str) -> str:
    """A YAML scalar in single quotes."""
    return "'" + text.replace("'", "''") + "'"
