"""Published training runs beside what `shardplan price` says of their configurations, source by source.

    python benchmarks/runs.py [--data FOLDER] [--rows N] [--only SOURCE]

A row is one run: model, machine, configuration, milliseconds of a step. Rows come from the files of a folder (each
source has its own columns, see `SOURCES`); a source that is absent is skipped. The step compared is the one that users
are shown. `before` is the same configuration priced on the profile without its `training` constants. `--rows`: of every
source at most so many, evenly spread; 0 for all.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "benchmarks")]

import shardplan  # noqa: E402
from shardplan.cluster.mesh import make_cluster  # noqa: E402
from shardplan.cluster.profile import load_profile  # noqa: E402
from shardplan.cluster.types import Cluster, Training  # noqa: E402
from shardplan.errors import ShardplanError  # noqa: E402

Columns = Mapping[str, str]
DATA = ROOT.parent / "shared" / "measured"
ROWS = 16
"""Of every source, where nobody says how many: about a minute for each."""
_APART = 0.05
"""Measured steps that differ by less say nothing about an order."""


@dataclass(frozen=True)
class TrainingRun:
    """One published run. `model`: MODEL of the command line; `asked`: what `shardplan.price` is told besides; `choice`:
    runs of one are alternatives for the same model, devices and batch."""

    source: str
    case: str
    choice: str
    model: str
    profile: str
    asked: Mapping[str, int | str]
    measured_s: float


@dataclass(frozen=True)
class Compared:
    """A run with its predicted steps: `before` on the profile without what trainers add, `ours` as users see it."""

    run: TrainingRun
    before_s: float
    ours_s: float

    def off(self, side: str = "ours_s") -> float:
        return float(getattr(self, side)) / self.run.measured_s - 1

    def __str__(self) -> str:
        before, ours = (f"{getattr(self, side):9.3f} {self.off(side):+7.1%}" for side in ("before_s", "ours_s"))
        return f"  {self.run.case:58} {self.run.measured_s:9.3f} {before} {ours}"


def vtrain(source: str, remat: str) -> Callable[[Columns], TrainingRun]:
    """GPT on A100 by Megatron-LM of 2022: unfused attention, dropout."""

    def read(row: Columns) -> TrainingRun:
        sizes = ",".join(f"{name}={row[name]}" for name in ("layers", "hidden", "heads", "seq"))
        ways = {name: int(row[name]) for name in ("tp", "pp", "dp", "global_batch", "micro_batch")}
        case = " ".join(f"{name}{row[name]}" for name in ("tp", "pp", "dp"))
        return TrainingRun(
            source,
            f"h{row['hidden']} L{row['layers']} {case} mb{row['micro_batch']} gb{row['global_batch']}",
            f"{row['hidden']} {row['layers']} {row['gpus']} {row['global_batch']}",
            f"transformer:style=gpt,{sizes},vocab=51200,attention=decomposed,dropout=true",
            "a100-dgx",
            {**ways, "recompute": remat},
            float(row["iteration_ms"]) / 1e3,
        )

    return read


_FSDP_LOOK = {
    "llama2-13b": "style=llama,ffn=13824", "llama2-70b": "style=llama,kv_heads=8,ffn=28672",
    "llama3-8b": "style=llama,kv_heads=8,ffn=14336", "llama3-70b": "style=llama,kv_heads=8,ffn=28672",
}  # fmt: skip
_FSDP_PROFILE = {"a100-80": "a100-dgx", "a100-40": "a100-p4d", "h100-80": "h100-dgx", "h100-96": "h100-dgx"}


def fsdp(row: Columns) -> TrainingRun:
    """MPT of llm-foundry (a GPT without dropout) and Llama of torchtitan, fully sharded."""
    sizes = ",".join(f"{name}={row[name]}" for name in ("layers", "hidden", "heads", "seq", "vocab"))
    gpus, micro, rounds = (int(row[name]) for name in ("gpus", "micro_batch", "accumulation"))
    step = micro * rounds * int(row["seq"]) / float(row["tokens_per_s_per_gpu"])
    case = f"{row['model']} {gpus} {row['gpu']} mb{micro} x{rounds} seq{row['seq']} {row['remat']}"
    asked = {"dp": gpus, "zero": 3, "micro_batch": micro, "global_batch": gpus * micro * rounds}
    look = _FSDP_LOOK.get(row["model"], "style=gpt")
    return TrainingRun(
        "fsdp", case, case, f"transformer:{look},{sizes}", _FSDP_PROFILE[row["gpu"]],
        {**asked, "recompute": row["remat"]}, step,
    )  # fmt: skip


SOURCES: dict[str, tuple[str, Callable[[Columns], TrainingRun]]] = {
    "vtrain-one-node": ("vtrain_one_node_a100.csv", vtrain("vtrain-one-node", "none")),
    "vtrain-many-nodes": ("vtrain_many_nodes_a100.csv", vtrain("vtrain-many-nodes", "full")),
    "fsdp": ("fsdp_runs.csv", fsdp),
}
"""Source -> its file and how one of its rows is read."""


def runs_of(source: str, folder: Path, most: int = 0) -> list[TrainingRun]:
    """The runs of a source in `folder`, none where its file is absent; at most so many, evenly spread."""
    name, read = SOURCES[source]
    if not (folder / name).exists():
        return []
    with (folder / name).open(encoding="utf-8") as file:
        found = [read(row) for row in csv.DictReader(file)]
    return found if not most or len(found) <= most else [found[place * len(found) // most] for place in range(most)]


def compared(run: TrainingRun) -> Compared:
    """Both predictions of a run. Raises `ShardplanError` for a configuration that cannot be priced."""
    whole = make_cluster(load_profile(run.profile))
    seconds = [_step(run, cluster) for cluster in (replace(whole, training=Training()), whole)]
    return Compared(run, *seconds)


def _step(run: TrainingRun, cluster: Cluster) -> float:
    priced = shardplan.price(run.model, cluster=cluster, **run.asked)  # type: ignore[arg-type]
    return priced.plan.summary.step_ns / 1e9


def in_order(rows: Sequence[Compared], side: str) -> tuple[int, int]:
    """Of the pairs of alternatives that were measured more than 5 % apart: how many are predicted in that order."""
    same = pairs = 0
    for one, other in _alternatives(rows):
        fast, slow = sorted((one, other), key=lambda row: row.run.measured_s)
        if slow.run.measured_s > fast.run.measured_s * (1 + _APART):
            pairs += 1
            same += getattr(slow, side) > getattr(fast, side)
    return same, pairs


def _alternatives(rows: Sequence[Compared]) -> Iterator[tuple[Compared, Compared]]:
    for group in by_choice(rows):
        yield from itertools.combinations(group, 2)


def by_choice(rows: Sequence[Compared]) -> list[list[Compared]]:
    """Runs that are alternatives to each other."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(row.run.choice, []).append(row)
    return [groups[key] for key in sorted(groups)]


def regrets(rows: Sequence[Compared], side: str) -> list[float]:
    """Of every choice between several: how much longer the one predicted fastest took than the fastest."""
    found = []
    for group in by_choice(rows):
        if len(group) > 1:
            chosen = min(group, key=lambda row: getattr(row, side))
            found.append(chosen.run.measured_s / min(row.run.measured_s for row in group) - 1)
    return found


def report(source: str, rows: Sequence[Compared]) -> None:
    """A line before and a line after."""
    for side in ("before_s", "ours_s"):
        off = [abs(row.off(side)) for row in rows]
        same, pairs = in_order(rows, side)
        regret = regrets(rows, side)
        told = f"regret mean {mean(regret):.1%}, most {max(regret):.1%} of {len(regret)}" if regret else "no choices"
        close = sum(share <= 0.10 for share in off)
        print(
            f"{source:18} {'before' if side == 'before_s' else 'after':6} {len(rows):4} rows: mean {mean(off):6.1%} "
            f"median {median(off):6.1%}, {close / len(off):4.0%} within 10 %, {same} of {pairs} pairs in order, {told}"
        )


def show(folder: Path, sources: Sequence[str] = (), most: int = 0, *, each: bool = False) -> None:
    """Every source that is in `folder`: a line for each run where `each`, and what they come to."""
    for source in sources or SOURCES:
        begun, found = time.process_time(), list[Compared]()
        for run in runs_of(source, folder, most):
            try:
                found.append(compared(run))
            except ShardplanError as problem:
                print(f"  {run.case}: {problem}")
                continue
            if each:
                print(found[-1], flush=True)
        if found:
            report(source, found)
            print(f"{'':18} {time.process_time() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the sources' files")
    parser.add_argument("--only", choices=SOURCES, action="append")
    parser.add_argument("--rows", type=int, default=ROWS, help="of every source at most so many; 0 for all")
    parser.add_argument("--each", action="store_true", help="a line for every run")
    given = parser.parse_args()
    show(given.data, given.only or (), given.rows, each=given.each)


if __name__ == "__main__":
    main()
