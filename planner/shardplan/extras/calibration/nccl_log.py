"""Parser of logs of nccl-tests and rccl-tests, all versions since 2.0: measurements, devices and machines.

A table begins with its header, which names the columns (`redop`, `root` and the error column come and go between
versions). Before it stand the ranks with their hosts, and since 2.16 the name of the test; where that is missing it is
taken from the name of the log or of the program that is shown being started. Sizes are those of nccl-tests: of
all-gather the gathered output, of reduce-scatter, all-reduce and all-to-all what one rank puts in.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.units import US_PER_S, whole_number

COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "permute",
}  # fmt: skip
_TEST = re.compile(r"(all_reduce|all_gather|reduce_scatter|all_?to_?all|sendrecv)(?:_perf)?", re.IGNORECASE)
_PROGRAM = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\b(?:\s+Group\s+(\d{1,9}))?.*?\bon\s+(\S+)\s+device", re.IGNORECASE)
_HEADER = re.compile(r"#\s*size\s+count\b.*\btime\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Measurement:
    """`points`: (payload bytes, seconds) by rising payload, of groups of `per_node` devices in each of `nodes`
    machines. `siblings`: how many such groups ran at once."""

    collective: str
    nodes: int
    per_node: int
    points: tuple[tuple[float, float], ...]
    siblings: int = 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


@dataclass
class _Log:
    """What is known while a log is read line by line."""

    file: str
    collective: str
    group: tuple[int, int] | None
    columns: list[str] = field(default_factory=list)
    hosts: dict[int, tuple[int, str]] = field(default_factory=dict)
    points: dict[tuple[str, int, int, int], dict[float, list[float]]] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


def read_logs(texts: Iterable[tuple[str, str]], group: tuple[int, int] | None = None) -> list[Measurement]:
    """The measurements in logs, given as (file name, text); several runs of one kind are taken together.

    `group`: machines and devices per machine, for logs that do not list their ranks. Raises `ShardplanError` for logs
    without a table, without a known collective or without ranks, and for those in which the test found wrong values.
    """
    points: dict[tuple[str, int, int, int], dict[float, list[float]]] = {}
    problems: list[Diagnostic] = []
    for file, text in texts:
        log = _read(file, text, group)
        problems += log.problems
        for key, sizes in log.points.items():
            for size, seconds in sizes.items():
                points.setdefault(key, {}).setdefault(size, []).extend(seconds)
    if problems:
        raise ShardplanError(*problems)
    return [
        Measurement(kind, nodes, per_node, _medians(sizes), siblings)
        for (kind, nodes, per_node, siblings), sizes in sorted(points.items())
    ]


def _medians(sizes: dict[float, list[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((size, statistics.median(seconds)) for size, seconds in sorted(sizes.items()))


def _read(file: str, text: str, group: tuple[int, int] | None) -> _Log:
    named = _TEST.search(file.replace("-", "_"))
    log = _Log(file, _collective(named[1]) if named else "", group)
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        # launchers write the rank of the process before every line: `[1,0]<stdout>:`, `0: `
        stripped = re.sub(r"^(\[\d+,\d+\]<std(?:out|err)>:|\d+:)\s*", "", stripped)
        if stripped.startswith("#") or not stripped[:1].isdecimal():
            _read_comment(log, stripped)
        elif log.columns:
            _read_row(log, stripped.split(), number)
    if not log.points and not log.problems:
        hint = "run nccl-tests and keep all it prints, comments included"
        log.problems.append(error("no-measurements", "there is no table of nccl-tests in it", file=file, hint=hint))
    return log


def _collective(word: str) -> str:
    return COLLECTIVES[word.lower().replace("_", "") if "to" in word.lower() else word.lower()]


def _read_comment(log: _Log, line: str) -> None:
    if program := _PROGRAM.search(line):
        log.collective = _collective(program[1])
    if rank := _RANK.search(line):
        if log.columns:  # ranks after a table: another run begins
            log.columns, log.hosts = [], {}
        log.hosts[int(rank[1])] = (int(rank[2] or 0), rank[3])
    elif _HEADER.search(line):
        log.columns = line.lstrip("# ").lower().split()


def _read_row(log: _Log, words: Sequence[str], number: int) -> None:
    times = [place for place, name in enumerate(log.columns) if name == "time"]
    if len(words) < len(log.columns) or (size_bytes := whole_number(words[0])) is None:
        return
    key = _key(log, number)
    try:
        seconds = [float(words[place]) / US_PER_S for place in times]
    except ValueError:
        log.problems.append(error("bad-row", "a time in this row is no number", file=log.file, line=number))
        return
    if any(_is_wrong(words[place]) for place, name in enumerate(log.columns) if name == "#wrong"):
        if not any(problem.code == "wrong-results" for problem in log.problems):
            summary = "the test counted wrong values, so its times mean nothing"
            hint = "find out what is wrong with the machine, and measure again"
            log.problems.append(error("wrong-results", summary, file=log.file, line=number, hint=hint))
        return
    if key and size_bytes > 0:
        times_s = [s for s in seconds if 0 < s < math.inf]
        if times_s:
            log.points.setdefault(key, {}).setdefault(float(size_bytes), []).extend(times_s)


def _is_wrong(count: str) -> bool:
    """Whether a column `#wrong` counts any, as `%5g` writes numbers (a million is `1e+06`); `N/A` where nothing was
    checked."""
    try:
        return float(count) > 0
    except ValueError:
        return False


def _key(log: _Log, number: int) -> tuple[str, int, int, int] | None:
    """Collective, machines, devices per machine and number of groups of the run that a row belongs to."""
    if any(problem.code in ("unknown-collective", "unknown-group") for problem in log.problems):
        return None
    if not log.collective:
        hint = "name the log after the test, such as all_reduce_perf.log"
        summary = "it does not say which collective was measured"
        log.problems.append(error("unknown-collective", summary, file=log.file, line=number, hint=hint))
        return None
    if not log.hosts:
        if log.group is None:
            hint = "say on what it ran: --group MACHINESxDEVICES"
            summary = "it does not list the ranks"
            log.problems.append(error("unknown-group", summary, file=log.file, line=number, hint=hint))
            return None
        return log.collective, *log.group, 1
    groups = {group for group, _ in log.hosts.values()}
    hosts = [host for group, host in log.hosts.values() if group == min(groups)]
    nodes = len(set(hosts))
    if len(hosts) % nodes:
        summary = f"{len(hosts)} ranks on {nodes} machines are not as many on each"
        log.problems.append(error("unknown-group", summary, file=log.file, line=number))
        return None
    return log.collective, nodes, len(hosts) // nodes, len(groups)
