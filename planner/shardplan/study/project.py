"""The initial files of a project: its cluster, its settings, its check in CI."""

from __future__ import annotations

import itertools
import operator
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardplan.cluster.build import Profile
from shardplan.cluster.types import Level
from shardplan.units import counted

CLUSTER_FILE, SETTINGS_FILE, WORKFLOW_FILE = "cluster.yaml", "shardplan.toml", ".github/workflows/shardplan.yml"


@dataclass(frozen=True, slots=True)
class Project:
    """`base`: the shipped profile nearest to the machines; `machines` of `devices` each; `model`: what is planned, `""`
    if not known yet; `version`: of shardplan, for CI; `workflow`: whether to write one."""

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
    axes = _inside(asked.devices, profile.levels)
    above, whole = profile.levels[max(1, len(axes) - 1) :], asked.machines * asked.devices
    larger = _larger(axes, profile.levels)
    if asked.machines > 1:
        # machines of a rack are joined by the links of the rack
        outer = next((level for level in above if level.devices >= whole), profile.levels[-1])
        axes.insert(0, ("machine", asked.machines, outer.name))
    listed = "\n".join(f"    - {{name: {name}, size: {size}, level: {level}}}" for name, size, level in axes)
    machines = f"{counted(asked.machines, 'machine')} with {counted(asked.devices, 'device')} each, like {asked.base}"
    return f"""# The machines that plans are for: {machines}.
# What differs from it goes here; docs/cluster-profiles.md has every key. `shardplan calibrate` fits it to measurements.
extends: builtin:{asked.base}
name: {asked.base}-{asked.machines}x{asked.devices}
mesh:
  axes:
{listed}
{larger}"""


def _inside(devices: int, levels: Sequence[Level]) -> list[tuple[str, int, str]]:
    """(name, size, level) of the axes of one machine, outermost first: the innermost level, and further levels except
    the network as far as there are more devices than it joins."""
    axes = [("gpu", devices, levels[0].name)]
    below = 1
    for level, after in itertools.pairwise(levels):
        name, size, _ = axes[0]
        room = level.devices // below
        if not level.devices or size <= room or size % room or after is levels[-1]:
            break
        axes[:1] = [(after.name, size // room, after.name), (name, room, level.name)]
        below = level.devices
    return axes


def _larger(axes: Sequence[tuple[str, int, str]], levels: Sequence[Level]) -> str:
    """The section of levels that join more devices than those of the profile."""
    sizes = itertools.accumulate((size for _, size, _ in reversed(axes)), operator.mul)
    found = [
        f"  {level.name}: {{devices: {size}}}\n"
        for level, size in zip(levels, sizes, strict=False)
        if 0 < level.devices < size
    ]
    return "".join(["levels:\n", *found]) if found else ""


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
