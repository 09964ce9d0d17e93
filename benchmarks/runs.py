"""Published training runs beside what `shardplan price` says of their configurations, source by source.

    python benchmarks/runs.py [--data FOLDER] [--rows N] [--only SOURCE] [--each] [--before] [--memory]

A row is one run: model, machine, configuration, milliseconds of a step. Rows come from the files of a folder (each
source has its own columns, see `SOURCES`); one that is absent is named and left out. The step compared is the one that
users are shown. Where a source states the memory that an allocator had reserved at the peak, it stands beside what
`price` says of that; `--memory` prices those rows alone, all of them. `--before`: beside it the same configuration
priced on the profile without its `training` constants. `--rows`: of every source at most so many, evenly spread; 0 for
all. Without it as many as `SOURCES` says, in all some five minutes of CPU.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "benchmarks")]

from run_table import CLUSTERS, FURTHER, SPLITS, Columns, TrainingRun, published  # noqa: E402

import shardplan  # noqa: E402
from shardplan.cluster.mesh import make_cluster  # noqa: E402
from shardplan.cluster.profile import load_profile, profile_from_text  # noqa: E402
from shardplan.cluster.types import Cluster, Training  # noqa: E402
from shardplan.errors import ShardplanError  # noqa: E402

DATA = ROOT.parent / "shared" / "measured"
_OWN = ROOT / "benchmarks" / "measured"
GIB = 2**30
_APART = 0.05
"""Measured steps that differ by less say nothing about an order."""


@dataclass(frozen=True)
class Compared:
    """A run with its predicted step `ours` as users see it, and `before` on the profile without what trainers add;
    `held_gib` and `reserved_gib`: memory at the peak of the fullest device, and what an allocator reserves for it."""

    run: TrainingRun
    ours_s: float
    before_s: float | None = None
    held_gib: float = 0.0
    reserved_gib: float = 0.0

    def off(self, side: str = "ours_s") -> float:
        return float(getattr(self, side)) / self.run.measured_s - 1

    @property
    def memory_off(self) -> float:
        """Of a run whose memory is published."""
        return self.reserved_gib / self.run.memory_gib - 1

    @property
    def memory(self) -> str:
        """A line on memory: published, held, reserved."""
        told = f"{self.held_gib:9.1f} {self.reserved_gib:9.1f} {self.memory_off:+7.1%}"
        return f"  {self.run.case:72} {self.run.memory_gib:9.1f} {told}"

    def __str__(self) -> str:
        sides = ["ours_s"] if self.before_s is None else ["before_s", "ours_s"]
        told = " ".join(f"{getattr(self, side):9.3f} {self.off(side):+7.1%}" for side in sides)
        return f"  {self.run.case:72} {self.run.measured_s:9.3f} {told}"


def vtrain(source: str, remat: str, cluster: str) -> Callable[[Columns], TrainingRun]:
    """GPT on A100 by Megatron-DeepSpeed, a fork of Megatron-LM (vTrain, data/README.md): unfused attention, dropout."""

    def read(row: Columns) -> TrainingRun:
        sizes = ",".join(f"{name}={row[name]}" for name in ("layers", "hidden", "heads", "seq"))
        ways = {name: int(row[name]) for name in ("tp", "pp", "dp", "global_batch", "micro_batch")}
        case = " ".join(f"{name}{row[name]}" for name in ("tp", "pp", "dp"))
        return TrainingRun(
            source,
            f"h{row['hidden']} L{row['layers']} {case} mb{row['micro_batch']} gb{row['global_batch']}",
            f"{row['hidden']} {row['layers']} {row['gpus']} {row['global_batch']}",
            f"transformer:style=gpt,{sizes},vocab=51200,attention=decomposed,dropout=true",
            cluster,
            {**ways, "recompute": remat},
            float(row["iteration_ms"]) / 1e3,
        )

    return read


_FSDP_LOOK = {
    "llama2-13b": "style=llama,ffn=13824", "llama2-70b": "style=llama,kv_heads=8,ffn=28672",
    "llama3-8b": "style=llama,kv_heads=8,ffn=14336", "llama3-70b": "style=llama,kv_heads=8,ffn=28672",
}  # fmt: skip
_FSDP_PROFILE = {"a100-80": "a100-dgx", "a100-40": "a100-40", "h100-80": "h100-dgx", "h100-96": "h100-500w"}


def fsdp(row: Columns, source: str = "fsdp") -> TrainingRun:
    """MPT of llm-foundry (a GPT without dropout) and Llama of torchtitan, fully sharded."""
    sizes = ",".join(f"{name}={row[name]}" for name in ("layers", "hidden", "heads", "seq", "vocab"))
    gpus, micro, rounds = (int(row[name]) for name in ("gpus", "micro_batch", "accumulation"))
    step = micro * rounds * int(row["seq"]) / float(row["tokens_per_s_per_gpu"])
    case = f"{row['model']} {gpus} {row['gpu']} mb{micro} x{rounds} seq{row['seq']} {row['remat']}"
    asked = {"dp": gpus, "zero": 3, "micro_batch": micro, "global_batch": gpus * micro * rounds}
    look = _FSDP_LOOK.get(row["model"], "style=gpt")
    by_operator = row["remat"] == "selective" and row["source"].startswith("torchtitan")
    return TrainingRun(
        source, case, case, f"transformer:{look},{sizes}", _FSDP_PROFILE[row["gpu"]],
        {**asked, "recompute": "alternate" if by_operator else row["remat"]}, step, split=row.get("split", "fitted"),
    )  # fmt: skip


_BRIDGE = {
    "LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3-405b", "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b", "DeepSeekV3": "deepseek-v3",
    "Nemotron_3_Nano": "nemotron-3-nano", "Nemotron_3_Super": "nemotron-3-super",
    "GPT OSS 120B": "gpt-oss-120b",
}  # fmt: skip
_BRIDGE_PROFILE = {"DGX-H100": "h100-dgx", "DGX-B200": "b200-dgx"}
_FINE_TUNING_GPUS = 32
"""Rows of Llama 3 70B on so few are of fine-tuning, on 8 of them of adapters, which are other models."""


_BESIDE = {("DeepSeekV3", "DGX-B200", "32"), ("Qwen3_235B_a22B", "DGX-H100", "32")}
"""Model, machine, ways of experts of recipes that exchange tokens beside compute (`moe_a2a_overlap` of
Megatron-Bridge's `workload_base_configs.py`)."""


def bridge(row: Columns) -> TrainingRun | None:
    """Megatron-Bridge's performance pages: a distributed optimizer, sequence parallel beside tensor parallelism."""
    ways = {name: int(row[name]) if row[name].isdigit() else 1 for name in ("tp", "pp", "cp", "vp", "ep")}
    gpus, micro, rows = int(row["gpus"]), int(row["micro_batch"]), int(row["global_batch"])
    tuning = row["model"] == "LLAMA3_70B" and gpus <= _FINE_TUNING_GPUS
    if row["model"] not in _BRIDGE or tuning:
        return None
    ways["dp"] = gpus // (ways["tp"] * ways["pp"] * ways["cp"])
    if ways["tp"] > 1 and ways["ep"] > 1:  # Megatron-Bridge's recipes keep experts whole
        ways["etp"] = 1
    case = " ".join(
        [row["model"], row["system"], f"x{gpus}", *(f"{name}{each}" for name, each in ways.items()), f"mb{micro}"]
    )
    precision, name = "" if row["precision"] == "BF16" else row["precision"].lower(), _BRIDGE[row["model"]]
    return TrainingRun(
        "bridge-fp8" if precision else "bridge-bf16",
        f"{case} {row['precision']} {row['release'].split()[0]}",
        case,
        f"transformer:{name},seq={row['seq']},mtp={FURTHER.get(name, 0)}",
        _BRIDGE_PROFILE[row["system"]],
        {**ways, "zero": 1, "sequence_parallel": ways["tp"] > 1, "micro_batch": micro, "global_batch": rows,
         "precision": precision, "overlap_exchange": (row["model"], row["system"], row["ep"]) in _BESIDE},
        rows * int(row["seq"]) / gpus / float(row["tokens_per_s_per_gpu"]),
    )  # fmt: skip


def _of(precision: bool) -> Callable[[Columns], TrainingRun | None]:
    """The rows with or without products in narrow types."""

    def read(row: Columns) -> TrainingRun | None:
        return bridge(row) if precision == (row["precision"] != "BF16") else None

    return read


Reader = Callable[[Columns], TrainingRun | None]
SOURCES: dict[str, tuple[str, Reader, int]] = {
    "vtrain-one-node": ("vtrain_one_node_a100.csv", vtrain("vtrain-one-node", "none", "a100-dgx"), 10),
    "vtrain-many-nodes": ("vtrain_many_nodes_a100.csv", vtrain("vtrain-many-nodes", "full", "a100-800"), 4),
    "fsdp": ("fsdp_runs.csv", fsdp, 4),
    "llm-foundry": ("llm_foundry.csv", lambda row: fsdp(row, "llm-foundry"), 4),
    "bridge-bf16": ("megatron_bridge.csv", _of(precision=False), 2),
    "bridge-fp8": ("megatron_bridge.csv", _of(precision=True), 2),
    **{name: ("training_runs.csv", published(name), most) for name, most in SPLITS.items()},
}
"""Source -> its file, how one of its rows is read, and how many are taken where nobody says (0: all)."""


def file_of(source: str, folder: Path) -> Path | None:
    """The file of a source in `folder` or among those of the project; None where it is absent."""
    name = SOURCES[source][0]
    return next((path for path in (folder / name, _OWN / name) if path.exists()), None)


def runs_of(source: str, folder: Path, most: int = 0) -> list[TrainingRun]:
    """The runs of a source in `folder` or among those of the project, none where its file is absent; at most so many,
    evenly spread."""
    path, read = file_of(source, folder), SOURCES[source][1]
    if path is None:
        return []
    with path.open(encoding="utf-8") as file:
        found = [run for row in csv.DictReader(file) if (run := read(row)) is not None]
    return found if not most or len(found) <= most else [found[place * len(found) // most] for place in range(most)]


def compared(run: TrainingRun, *, before: bool = False) -> Compared:
    """A run and its predictions. Raises `ShardplanError` for a configuration that cannot be priced."""
    whole = cluster_of(run.profile)
    step_s, held, reserved = _priced(run, whole)
    before_s = _priced(run, replace(whole, training=Training()))[0] if before else None
    return Compared(run, step_s, before_s, held / GIB, reserved / GIB)


@cache
def cluster_of(name: str) -> Cluster:
    """One of `CLUSTERS`, or a shipped profile."""
    return make_cluster(profile_from_text(CLUSTERS[name], name) if name in CLUSTERS else load_profile(name))


_PRICED: dict[tuple[object, ...], tuple[float, int, int]] = {}


def _priced(run: TrainingRun, cluster: Cluster) -> tuple[float, int, int]:
    """Seconds of a step, and bytes held and reserved at the peak. Equal configurations, published again with each
    release, are priced once."""
    key = (run.model, run.profile, tuple(sorted(run.asked.items())), cluster.training == Training())
    if key not in _PRICED:
        priced = shardplan.price(run.model, cluster=cluster, **run.asked)  # type: ignore[arg-type]
        _PRICED[key] = priced.plan.summary.step_ns / 1e9, priced.peak.total, priced.reserved_bytes
    return _PRICED[key]


def apart(rows: Sequence[Compared]) -> Iterator[tuple[Compared, Compared]]:
    """The pairs of alternatives that were measured more than 5 % apart, the faster first."""
    for group in by_choice(rows):
        for pair in itertools.combinations(group, 2):
            fast, slow = sorted(pair, key=lambda row: row.run.measured_s)
            if slow.run.measured_s > fast.run.measured_s * (1 + _APART):
                yield fast, slow


def in_order(rows: Sequence[Compared], side: str) -> tuple[int, int]:
    """Of the pairs that are `apart`: how many are predicted in that order, and how many there are."""
    found = [getattr(slow, side) > getattr(fast, side) for fast, slow in apart(rows)]
    return sum(found), len(found)


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
    """A line, and where it was asked for one of before; of a source with rows of either split, one for each."""
    splits = sorted({row.run.split for row in rows})
    for split in splits if len(splits) > 1 else ():
        report(f"  {split}", [row for row in rows if row.run.split == split])
    for side in ("before_s", "ours_s"):
        if rows[0].before_s is None and side == "before_s":
            continue
        off = [abs(row.off(side)) for row in rows]
        same, pairs = in_order(rows, side)
        regret = regrets(rows, side)
        told = f"regret mean {mean(regret):.1%}, most {max(regret):.1%} of {len(regret)}" if regret else "no choices"
        close = sum(share <= 0.10 for share in off)
        share = f" ({same / pairs:.0%})" if pairs else ""
        print(
            f"{source:18} {'before' if side == 'before_s' else 'after':6} {len(rows):4} rows: mean {mean(off):6.1%} "
            f"median {median(off):6.1%}, {close / len(off):4.0%} within 10 %, {same} of {pairs} pairs in order{share}, "
            f"{told}"
        )


def report_memory(rows: Sequence[Compared]) -> None:
    """A table of the runs whose peak is published."""
    print(f"  {'GiB of a device':72} {'published':>9} {'held':>9} {'reserved':>9}")
    print(*(row.memory for row in rows), sep="\n")
    off = [abs(row.memory_off) for row in rows]
    print(f"  {len(off)} rows: mean {mean(off):.1%} median {median(off):.1%}, most {max(off):.1%}")


@dataclass(frozen=True)
class Shown:
    """What is printed of every source: a line for each run; the profile without `training` too; memory alone."""

    each: bool = False
    before: bool = False
    memory: bool = False


def show(folder: Path, sources: Sequence[str], most: int | None = None, shown: Shown = Shown()) -> None:
    """Every source that is in `folder`, and what its runs come to. One that is not there is told of."""
    for source in sources:
        if file_of(source, folder) is None:
            print(
                f"{source:18} left out: no {SOURCES[source][0]} in {folder} (--data FOLDER says where it is)",
                flush=True,
            )
            continue
        begun, found = time.process_time(), list[Compared]()
        for run in runs_of(source, folder, SOURCES[source][2] if most is None else most):
            if shown.memory and not run.memory_gib:
                continue
            try:
                found.append(compared(run, before=shown.before))
            except ShardplanError as problem:
                print(f"  {run.case}: {problem.diagnostics[0].summary}")
                continue
            if shown.each:
                print(found[-1], flush=True)
        if found and not shown.memory:
            report(source, found)
        if stated := [row for row in found if row.run.memory_gib]:
            report_memory(stated)
        if found:
            print(f"{'':18} {time.process_time() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the sources' files")
    parser.add_argument("--only", choices=SOURCES, action="append")
    parser.add_argument("--rows", type=int, help="of every source at most so many; 0 for all")
    parser.add_argument("--each", action="store_true", help="a line for every run")
    parser.add_argument("--before", action="store_true", help="the profile without `training` as well")
    parser.add_argument("--memory", action="store_true", help="memory alone, of all rows that state it")
    given = parser.parse_args()
    most = 0 if given.memory and given.rows is None else given.rows
    shown = Shown(given.each, given.before, given.memory)
    show(given.data, given.only or tuple(SOURCES), most, shown)


if __name__ == "__main__":
    main()
