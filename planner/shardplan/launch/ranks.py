"""Assignment of ranks to machines: row-major in the plan's mesh, so that the ranks of a machine are consecutive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.launch.job import DEFAULT_PORT
from shardplan.plan.format.conversions import devices_per_host, placed_axes
from shardplan.plan.types import Plan
from shardplan.units import counted

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
VALUE = re.compile(r"[A-Za-z0-9_.,:;=^/+@%~ -]{0,512}")
NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Launch:
    """The input of every launcher. `ranks`: processes, `per_machine` of them on each of `machines`; `hosts`: the
    machines in the order of their ranks, empty if a scheduler chooses them; `program`: words; `environment`: variables
    of the processes; `gpus`: whether to ask a scheduler for a GPU per process."""

    title: str
    axes: tuple[str, ...]
    ranks: int
    per_machine: int
    hosts: tuple[str, ...]
    program: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = DEFAULT_PORT
    name: str = "shardplan"
    image: str | None = None
    gpus: bool = True

    @property
    def machines(self) -> int:
        return self.ranks // self.per_machine

    @property
    def rendezvous(self) -> tuple[str, str]:
        """The rendezvous address and port: of the first machine, or from `environment`, if a scheduler's machine names
        are not names in its network."""
        first = self.hosts[0] if self.hosts else ""
        return self.environment.get("MASTER_ADDR", first), self.environment.get("MASTER_PORT", str(self.port))

    @property
    def about(self) -> tuple[str, ...]:
        """Comment lines about ranks and machines, for the head of a script; by the first line shardplan recognises its
        own file."""
        many = f"{self.per_machine} on each of {self.machines} machines" if self.machines > 1 else "on one machine"
        lines = [f"shardplan launch-env: {self.title}: {counted(self.ranks, 'process')}, {many}"]
        lines += [f"  {axis}" for axis in self.axes]
        lines += [f"  {host}: ranks {self.ranks_of(number)}" for number, host in enumerate(self.hosts)]
        return tuple(lines)

    def ranks_of(self, machine: int) -> str:
        """`4-7`, of the machine with that number."""
        first = machine * self.per_machine
        return str(first) if self.per_machine == 1 else f"{first}-{first + self.per_machine - 1}"


def per_machine_of(plan: Plan, asked: int | None = None, *, one_machine: bool = False) -> int:
    """Processes on a machine: devices of the plan that share its innermost link, all with `one_machine`, or `asked`,
    where a machine has fewer devices than the link joins.

    Raises `ShardplanError`: `no-machines` where the profile does not say, `wrong-host` where `asked` does not divide.
    """
    planned = devices_per_host(plan)
    if one_machine:
        return plan.mesh.size
    if asked is None and planned is None:
        summary = f"the plan's cluster '{plan.cluster.get('name')}' does not say how many devices share a machine"
        raise ShardplanError(error("no-machines", summary, hint="say it with --per-machine N"))
    whole = plan.mesh.size if planned is None else planned
    if asked is not None and whole % asked:
        summary = (
            f"--per-machine {asked} does not divide the {counted(whole, 'device')} that the plan places on a machine"
        )
        hint = "a machine may have all of them, or an equal part"
        raise ShardplanError(error("wrong-host", summary, hint=hint))
    return asked or whole


def axes_of(plan: Plan) -> tuple[str, ...]:
    """A line per mesh axis: its link, and how far apart its neighbours are in ranks."""
    lines = []
    stride = plan.mesh.size
    for axis in placed_axes(plan):
        stride //= axis.size
        lines.append(f"axis {axis.name}={axis.size} over {axis.link}: neighbours are {counted(stride, 'rank')} apart")
    return tuple(lines)


def environment_of(given: Iterable[str], plan: Plan) -> dict[str, str]:
    """Variables given as `NAME=VALUE`, and those of the plan's cluster profile that are not given, sorted. Raises
    `ShardplanError` (`bad-variable`): they go into scripts."""
    profile = plan.cluster.get("profile")
    known = profile.get("environment") if isinstance(profile, Mapping) else None
    found = dict(known) if isinstance(known, Mapping) else {}
    found |= dict(text.partition("=")[::2] for text in given)
    if faults := bad_variables(found, "--env or the cluster profile"):
        raise ShardplanError(*faults)
    return dict(sorted(found.items()))


def fits(name: str, value: object) -> bool:
    """Whether a launcher may set this variable."""
    return bool(VARIABLE.fullmatch(name)) and isinstance(value, str) and bool(VALUE.fullmatch(value))


def bad_variables(variables: Mapping[str, object], setter: str) -> list[Diagnostic]:
    """The variables that no launcher sets, `setter` being who asks for it."""
    hint = "names are capitals, digits and '_'; values letters, digits and .,:;=^/+@%~_-"
    return [
        error("bad-variable", f"{setter} sets '{name}' to what no launcher should", hint=hint)
        for name, value in sorted(variables.items())
        if not fits(name, value)
    ]


def check_hosts(launch: Launch) -> list[Diagnostic]:
    """Checks that there are as many machines as the plan has."""
    if not launch.hosts or len(launch.hosts) == launch.machines:
        return []
    found, wanted = len(launch.hosts), launch.machines
    summary = (
        f"the plan takes {counted(wanted, 'machine')} of {counted(launch.per_machine, 'device')}, "
        f"{found} {'are' if found != 1 else 'is'} given"
    )
    hint = f"name {wanted}" + (", or --one-machine to try the program on one" if found == 1 else "")
    return [error("wrong-machines", summary, hint=hint)]
