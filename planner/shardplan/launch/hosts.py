"""Names of machines: lists, host files and node lists of SLURM -> host names, or what is wrong with them."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.text_files import read_text
from shardplan.units import counted

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_SLOTS = re.compile(r"(?P<host>\S+?)(?::(?P<colon>\d{1,6})|\s+(?:slots|max_slots)=(?P<slots>\d{1,6})(?:\s+\S+=\d+)*)?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_MOST_HOSTS = 1 << 20


def host_names(text: str, where: str = "--hosts") -> tuple[str, ...]:
    """`a,b,node[01-04]`: host names in their order. Raises `ShardplanError`: `bad-host`, `repeated-host`."""
    return _checked([host for part in _split(text) if part for host in _expanded(part, where)], where)


def read_host_file(path: str, per_machine: int) -> tuple[str, ...]:
    """Host names of a file of one host per line, as Open MPI (`a slots=4`), MPICH (`a:4`) or a scheduler (`a`, once
    or once for each process) write it; `#` begins a comment.

    Raises `ShardplanError`: `unreadable-hosts`, `bad-host`, `repeated-host`, and `few-slots` for fewer than
    `per_machine` slots.
    """
    try:
        lines = read_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else problem.strerror or str(problem)
        summary = f"cannot read the host file: {reason}"
        raise ShardplanError(error("unreadable-hosts", summary, file=path)) from None
    hosts: list[str] = []
    faults: list[Diagnostic] = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        found = _SLOTS.fullmatch(entry)
        if not entry:
            continue
        if found is None or not _NAME.fullmatch(found["host"]):
            faults.append(_bad_host(entry, file=path, line=number))
            continue
        slots = found["colon"] or found["slots"]
        if slots is not None and int(slots) < per_machine:
            placed = f"the plan places {counted(per_machine, 'device')} on a machine"
            summary = f"host {found['host']} has {counted(int(slots), 'slot')}, {placed}"
            faults.append(error("few-slots", summary, file=path, line=number))
        hosts.append(found["host"])
    if faults:
        raise ShardplanError(*faults)
    return _checked([host for host, _ in itertools.groupby(hosts)], path)


def first_host(node_list: str) -> str:
    """The first machine of SLURM's node list. Raises `ShardplanError` (`bad-host`)."""
    return next(iter(host_names(node_list, "SLURM's node list")), "")


def _split(text: str) -> list[str]:
    """Entries between the commas that are not in brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]


def _expanded(part: str, where: str) -> list[str]:
    """`rack[1-2]n[01,03]` as the four names that it stands for, the last brackets varying fastest."""
    pieces = _BRACKETS.split(part)
    choices: list[list[str]] = []
    for position, piece in enumerate(pieces):
        choices.append(_numbers(piece, part, where) if position % 2 else [piece])
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > _MOST_HOSTS:
        raise ShardplanError(error("bad-host", f"{where}: '{part}' names {count:,} machines"))
    return ["".join(names) for names in itertools.product(*choices)]


def _numbers(text: str, part: str, where: str) -> list[str]:
    found: list[str] = []
    for entry in text.split(","):
        bounds = _RANGE.fullmatch(entry.strip())
        low, high = (bounds[1], bounds[2] or bounds[1]) if bounds else ("", "")
        if bounds is None or int(high) < int(low) or int(high) - int(low) >= _MOST_HOSTS:
            raise ShardplanError(_bad_host(part, where))
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def _checked(hosts: list[str], where: str) -> tuple[str, ...]:
    faults = [_bad_host(host, where) for host in hosts if not _NAME.fullmatch(host)]
    faults += [
        error("repeated-host", f"{where}: machine '{host}' is named {count} times", hint="name every machine once")
        for host, count in Counter(hosts).items()
        if count > 1
    ]
    if faults:
        raise ShardplanError(*faults[:8])
    return tuple(hosts)


def _bad_host(text: str, where: str = "", **place: object) -> Diagnostic:
    summary = f"{where}: '{text}' is no name of a machine" if where else f"'{text}' is no name of a machine"
    hint = "letters, digits, '.', '-' and '_', or an IPv4 address; node[01-04] stands for four"
    return error("bad-host", summary, hint=hint, **place)
