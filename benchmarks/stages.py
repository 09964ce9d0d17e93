"""Pipelines found beside published ones: `python benchmarks/stages.py [ROW...]`.

For every row: our stages, their predicted step and its proven bound; the published stages (how many, and how many
devices each), planned as well as they can be on the same profile; and the throughput that was published. Sources:
Korthikanti et al. 2022 (sequence parallelism, selective recomputation) and Zheng et al. 2022 (Alpa, its benchmark
suites: the stages it found).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError
from shardplan.graph.options import PlanOptions, Remat
from shardplan.models.named import described
from shardplan.stages.pipeline import StagedPlans, Stager
from shardplan.stages.schedule import Schedule
from shardplan.units import duration

_NANOSECONDS = 1e9


@dataclass(frozen=True)
class Row:
    """`published`: devices of each stage; `flops`: of a step, by the formula of the source; `per_device`: FLOP/s that
    were measured, 0 where they were not."""

    model: str
    profile: str
    mesh: str
    batch: int
    microbatches: int
    remat: Remat
    published: tuple[int, ...]
    per_device: float
    hidden: int
    layers: int
    seq: int
    vocab: int

    @property
    def step_s(self) -> float:
        """Seconds of a step at the published throughput."""
        devices = sum(self.published)
        wide = 1 + self.seq / (6 * self.hidden) + self.vocab / (16 * self.layers * self.hidden)
        flops = 96 * self.batch * self.seq * self.layers * self.hidden**2 * wide
        return flops / devices / self.per_device if self.per_device else 0.0


ROWS = {
    "alpa-1.3b": Row("alpa-1.3b", "v100-p3-16xl", "1x4", 1024, 64, "full", (2, 2), 0, 2048, 24, 1024, 51200),
    "alpa-2.6b": Row("alpa-2.6b", "v100-p3-16xl", "1x8", 1024, 64, "full", (2, 2, 4), 57.5e12, 2560, 32, 1024, 51200),
    "alpa-6.7b": Row("alpa-6.7b", "v100-p3-16xl", "2x8", 1024, 64, "full", (8, 8), 58e12, 4096, 32, 1024, 51200),
    "alpa-15b": Row("alpa-15b", "v100-p3-16xl", "4x8", 1024, 64, "full", (8,) * 4, 59e12, 5120, 48, 1024, 51200),
    "gpt-22b": Row("gpt-22b", "a100-dgx", "1x8", 4, 1, "selective", (8,), 0, 6144, 48, 2048, 51200),
    "gpt-175b": Row("gpt-175b", "a100-dgx", "8x8", 64, 64, "selective", (8,) * 8, 0, 12288, 96, 2048, 51200),
}
MEASURED_S = {"gpt-22b": 1.10, "gpt-175b": 13.75}


def planned(row: Row, *, as_published: bool) -> StagedPlans | None:
    """The best stages, or the best with as many stages of as many devices as were published."""
    model = described(f"transformer:{row.model},batch={row.batch}")
    cluster = make_cluster(load_profile(row.profile), row.mesh)
    options = PlanOptions(microbatches=row.microbatches, remat=row.remat)
    stages = len(row.published) if as_published else None
    sizes = frozenset(row.published) if as_published else None
    try:
        return Stager(model, cluster, options, Schedule("1f1b"), stages, sizes).solve()
    except InfeasibleError:
        return None


def shape(found: StagedPlans | None) -> str:
    """`8+8`, each with its logical mesh: what its weights are split by is in `show`."""
    if found is None:
        return "does not fit"
    return "+".join(str(part.size) for part in found.parts)


def main(names: list[str]) -> None:
    """Print the table."""
    head = f"{'model':10} {'devices':>7} {'ours':16} {'step':>9} {'at least':>9}"
    print(f"{head} {'published':16} {'planned so':>10} {'measured':>9}")
    for name in names or list(ROWS):
        row, started = ROWS[name], time.monotonic()
        ours, theirs = planned(row, as_published=False), planned(row, as_published=True)
        steps = [duration(found.step_ns) if found else "-" for found in (ours, theirs)]
        bound = duration(ours.bound_ns) if ours else "-"
        measured = MEASURED_S.get(name, row.step_s)
        shown = duration(measured * _NANOSECONDS) if measured else "-"
        print(
            f"{name:10} {sum(row.published):>7} {shape(ours):16} {steps[0]:>9} {bound:>9} "
            f"{'+'.join(map(str, row.published)):16} {steps[1]:>10} {shown:>9}   ({time.monotonic() - started:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
