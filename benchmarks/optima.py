"""The best plan beside published configurations: it must not be predicted slower, and what it does otherwise is told.

    python benchmarks/optima.py [--data FOLDER] [--rows N]

Of the sources of `runs` whose runs have no pipeline, a few rows evenly spread, priced with the best plan beside them as
`shardplan price` does it: on as many devices, for the same batch and trainer. A configuration that does not fit as it
is described may be faster than every plan that fits; it is marked. About two minutes of CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import runs

from shardplan.planning.parallelism import Parallelism
from shardplan.request import Request
from shardplan.study.price import Batch, PriceReport, price_as_asked

SOURCES = {"fsdp": 10, "vtrain-one-node": 4}
_FASTER = 0.10


def told_of(run: runs.TrainingRun) -> PriceReport:
    """A run as it was, and the best plan for it."""
    asked: dict[str, Any] = dict(run.asked)
    ways = Parallelism(
        asked.get("tp", 1), asked.get("pp", 1), asked.get("dp", 1), zero=asked.get("zero", 0),
    )  # fmt: skip
    request = Request(run.model, cluster=runs.cluster_of(run.profile))
    batch = Batch(asked["global_batch"], asked["micro_batch"])
    return price_as_asked(request, ways, batch, asked["recompute"])


def differences(told: PriceReport) -> Iterator[str]:
    """What the best plan does otherwise, in words."""
    assert told.best is not None
    ours, best = told.priced.plan, told.best
    counts = told.priced.microbatches, int(str(best.model.get("microbatches", 1)))
    if counts[0] != counts[1]:
        yield f"{counts[1]} microbatches, not {counts[0]}"
    weights = [{t.name: t.layout for t in plan.tensors if t.role == "parameter"} for plan in (ours, best)]
    pieces = [
        sum(t.bytes_per_device for t in plan.tensors if t.role == "parameter") / 2**30 for plan in (ours, best)
    ]  # fmt: skip
    if weights[0] != weights[1] and abs(pieces[1] - pieces[0]) > 0.01 * max(pieces):
        yield f"{pieces[1]:.1f} GiB of weights on a device, not {pieces[0]:.1f}"
    for name, told_as in (("compute_ns", "computes"), ("communication_ns", "waits for links")):
        before, after = (getattr(plan.summary, name) / 1e9 for plan in (ours, best))
        if abs(after - before) > 0.02 * ours.summary.step_ns / 1e9:
            yield f"{told_as} {after:.3g} s, not {before:.3g}"


def show(folder: Path, rows: int | None) -> None:
    """A line for each run, and how many optima are slower than what was published."""
    slower = counted = 0
    for source, most in SOURCES.items():
        found = [run for run in runs.runs_of(source, folder) if run.asked.get("pp", 1) == 1]
        wanted = rows or most
        for run in found[:: max(1, len(found) // wanted)][:wanted]:
            told = told_of(run)
            step = told.priced.plan.summary.step_ns
            fits = "" if told.priced.fits else "  (does not fit as described)"
            if told.best is None:
                print(f"  {run.case:64} {step / 1e9:9.3f}   nothing fits{fits}", flush=True)
                continue
            share = told.best.summary.step_ns / step - 1
            counted += 1
            slower += share > 0 and told.priced.fits
            why = ", ".join(differences(told)) if share < -_FASTER else ""
            print(f"  {run.case:64} {step / 1e9:9.3f} {share:+7.1%}  {why}{fits}", flush=True)
    if counted:
        print(f"{slower} of {counted} optima are slower than a published configuration that fits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=runs.DATA, help="folder of the sources' files")
    parser.add_argument("--rows", type=int, help="of every source at most so many")
    given = parser.parse_args()
    begun = time.process_time()
    show(given.data, given.rows)
    print(f"{time.process_time() - begun:.0f} s of CPU")


if __name__ == "__main__":
    main()
