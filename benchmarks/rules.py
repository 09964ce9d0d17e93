"""Run every strategy that the rules allow, on every single-node test case of the onnx package, and print a table.

    python benchmarks/rules.py [--draws 2] [--jobs 2] [--only PATTERN] [--verbose]

Each case that ONNX's reference evaluator itself passes is stretched so that its dims divide, given new data in each
draw, and run on simulated meshes of 2, 3 and 2 x 2 devices with every option, every pair of options, of its rule. What
the devices make together must be what the whole operator makes. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from node_cases import NodeCase, collect, grown  # noqa: E402
from node_reference import PROBLEMS  # noqa: E402
from rule_mesh import execute, strategies  # noqa: E402

from shardplan.errors import ShardplanError  # noqa: E402
from shardplan.layout.mesh import Mesh  # noqa: E402
from shardplan.rules.table import TABLES, family_of  # noqa: E402

MESHES = ((4, Mesh.of(x=2)), (6, Mesh.of(x=3)), (4, Mesh.of(x=2, y=2)))
"""With the number that stretched dims are a multiple of."""


@dataclass
class Outcome:
    """What became of one case. `runs`: strategies executed, by mesh; `refused`: those that cannot be, by reason."""

    name: str
    kind: str
    skipped: str = ""
    stretched: bool = False
    runs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def prove(name: str, kind: str, case: NodeCase | str, draws: int) -> Outcome:
    """Every strategy on every mesh, with `draws` draws of data."""
    outcome = Outcome(name, kind, case if isinstance(case, str) else "")
    if isinstance(case, str):
        return outcome
    start = time.perf_counter()
    for seed in range(1, draws + 1):
        for unit in sorted({unit for unit, _ in MESHES}):
            larger = grown(case, seed, unit)
            outcome.stretched |= any(
                a is not None and b is not None and a.shape != b.shape
                for a, b in zip(larger.operands, case.operands, strict=True)
            )
            for mesh in (mesh for multiple, mesh in MESHES if multiple == unit):
                _prove_on(larger, mesh, seed, outcome)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _prove_on(case: NodeCase, mesh: Mesh, seed: int, outcome: Outcome) -> None:
    for strategy in strategies(case, mesh):
        split = "x".join(map(str, mesh.shape)) + " " + ", ".join(option.label for option in strategy)
        try:
            problem = execute(case, strategy, mesh, seed)
        except ShardplanError as refusal:
            outcome.refused[str(refusal).splitlines()[0].rpartition(": ")[2]] += 1
            continue
        except PROBLEMS as raised:
            problem = f"{type(raised).__name__}: {raised}"
        outcome.runs["x".join(map(str, mesh.shape))] += 1
        if problem:
            outcome.failures.append(f"{case.name} [{split}] draw {seed}: {problem}")


_CASES: list[tuple[str, str, NodeCase | str]] = []


def _prove_number(task: tuple[int, int]) -> Outcome:
    number, draws = task
    return prove(*_CASES[number], draws)


def print_table(outcomes: list[Outcome]) -> None:
    """One line per family, then what is not split, not run, and wrong."""
    families: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        families[family_of(outcome.kind)].append(outcome)
    meshes = ["x".join(map(str, mesh.shape)) for _, mesh in MESHES]
    header = ["family", "operators", "cases", "split", *meshes, "failures"]
    rows = [_row(family, families[family], meshes) for family in sorted(families)]
    rows.append(_row("all", outcomes, meshes))
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))


def _row(name: str, outcomes: list[Outcome], meshes: list[str]) -> list[str]:
    run = sum((outcome.runs for outcome in outcomes), Counter())
    split = sum(bool(outcome.runs or outcome.refused) for outcome in outcomes)
    failures = sum(len(outcome.failures) for outcome in outcomes)
    kinds = len({outcome.kind for outcome in outcomes})
    return [name, *map(str, (kinds, len(outcomes), split, *(run[mesh] for mesh in meshes), failures))]


def why_whole(kind: str) -> str:
    """Why the newest line of a kind of operators has no dim that can be split; `""` where some can."""
    lines = [entry for table in TABLES.values() for entry in table if kind in entry.kinds]
    return max(lines, key=lambda entry: entry.since).why if lines else "no rule is known"


def print_rest(outcomes: list[Outcome]) -> None:
    """Operators of which no case is split, with the reason; strategies and cases that were not run."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    whole: dict[str, list[str]] = defaultdict(list)
    for kind, found in sorted(by_kind.items()):
        if not any(outcome.runs or outcome.refused for outcome in found):
            reason = why_whole(kind) or next(
                (o.skipped for o in found if o.skipped), "no dim of the test cases divides"
            )
            whole[reason].append(kind)
    print("\noperators that nothing splits")
    for reason, kinds in sorted(whole.items()):
        print(f"  {reason}: {', '.join(kinds)}")
    skipped = Counter(outcome.skipped for outcome in outcomes if outcome.skipped)
    refused = sum((Counter({f"{o.kind}: {why}": n for why, n in o.refused.items()}) for o in outcomes), Counter())
    print("\ncases that are not run")
    for reason, count in sorted(skipped.items()):
        print(f"  {count:5}  {reason}")
    print("\nstrategies that are not run")
    for reason, count in sorted(refused.items()):
        print(f"  {count:5}  {reason}")


def main() -> int:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of test cases")
    parser.add_argument("--verbose", action="store_true", help="the ten slowest cases")
    options = parser.parse_args()
    start = time.perf_counter()
    _CASES.extend(found for found in collect() if fnmatch.fnmatch(found[0], options.only))
    tasks = [(number, options.draws) for number in range(len(_CASES))]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        outcomes = pool.map(_prove_number, tasks, chunksize=4)
    print_table(outcomes)
    print_rest(outcomes)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    print(f"\n{len(failures)} failures, {time.perf_counter() - start:.0f} s, {options.draws} draws")
    print("\n".join(failures))
    if options.verbose:
        for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds)[:10]:
            print(f"{outcome.seconds:6.1f} s  {outcome.name}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
