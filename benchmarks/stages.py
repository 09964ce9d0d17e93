"""Pipelines found beside published ones: `python benchmarks/stages.py [ROW ...]`; all rows take six minutes of a core.

For every row: our stages (devices of each) and how their weights are split, their predicted step and the proven bound;
the published stages, planned as well as they can be on the same profile; the published configuration itself, tensor
and data parallelism included, where the source tells it, without regard to memory; and what was measured. All are
predicted with 1F1B. Ours is to be no slower than the published stages, which are among what is searched; where it is,
that is said. Sources: Narayanan 2021 and Korthikanti 2022 (Megatron-LM), Alpa (Zheng 2022; microbatches and stages as
in its benchmark suites; PFLOP/s of all devices, digitised), Llama 3 (SC'24).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))

from simulate import Run, predict, spec_of
from wresnet import wide_resnet

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError, LimitError
from shardplan.graph.options import PlanOptions, Remat
from shardplan.model.types import Model
from shardplan.models.named import described
from shardplan.pipeline.result import PipelineResult
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.solver import PipelineSolver
from shardplan.plan.types import Plan
from shardplan.render.recipes import Recognizer
from shardplan.units import NS_PER_S, duration

_SECONDS = 600.0
"""Of a row: where memory is nearly full, the best plans of stages take long to prove; what is found by then counts."""
_SHORT = {
    "Megatron column": "TP", "Megatron row": "TP", "vocabulary parallel": "TP", "data parallel": "DP",
    "sequence parallel": "SP", "spatial parallel": "spatial", "expert parallel": "EP", "replicated": "R",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`model`: a description, or (layers, channels, width) of a wide ResNet. `published`: devices of each stage, empty
    where only the configuration is known; `run`: that configuration. `measured`: as the source has it. `sizes`: devices
    that a stage of ours may have; any part of the cluster where none are named."""

    model: str | tuple[int, int, int]
    profile: str
    mesh: str
    batch: int
    microbatches: int
    remat: Remat
    published: tuple[int, ...]
    run: Run | None = None
    measured: str = ""
    sizes: tuple[int, ...] = ()

    def built(self, name: str) -> Model:
        if isinstance(self.model, str):
            return described(f"transformer:{self.model},batch={self.batch}")
        return wide_resnet(name, *self.model, self.batch)


def _alpa(model: str, mesh: str, micro: int, stages: tuple[int, ...], measured: str = "") -> Row:
    text = f"{model},dtype=float16,attention=decomposed"
    return Row(text, "v100-p3-16xl", mesh, 1024, micro, "full", stages, measured=measured)


def _moe(layers: int, hidden: int, experts: int, mesh: str, micro: int, stages: tuple[int, ...], found: str) -> Row:
    sizes = f"layers={layers},hidden={hidden},heads=16,experts={experts},vocab=32000,seq=1024,capacity=1,style=gpt"
    return _alpa(sizes, mesh, micro, stages, found)


def _resnet(sizes: tuple[int, int, int], mesh: str, micro: int, stages: tuple[int, ...], measured: str = "") -> Row:
    return Row(sizes, "v100-p3-16xl", mesh, 1536, micro, "full", stages, measured=measured)


def _megatron(name: str, gpus: int, batch: int, micro: int, stages: int, measured: str) -> Row:
    spec = spec_of(name, dropout=True, attention="decomposed")
    run = Run(spec, "a100-dgx", gpus, batch, micro, 8, stages, remat="selective", sequence=True)
    text = f"{name},dropout=true,attention=decomposed"
    few = {512: (8, 16, 32)}.get(gpus, ())
    return Row(
        text, "a100-dgx", f"{gpus // 8}x8", batch, batch // micro, "selective", (8,) * stages, run, measured, few
    )


def rows() -> dict[str, Row]:
    """All rows by name."""
    llama = Run(spec_of("llama3-8b", seq=8192), "h100-dgx", 8, 8, 1, sharded=True, remat="selective")
    largest = Run(spec_of("llama3-405b", seq=8192), "h100-dgx", 8192, 2048, 1, 8, 16, sequence=True)
    big = Run(spec_of("llama3-70b", seq=8192), "h100-dgx", 256, 512, 2, 8, remat="full")
    return {
        "gpt-1.3b": _alpa("alpa-1.3b", "1x4", 128, (2, 2)),
        "gpt-2.6b": _alpa("alpa-2.6b", "1x8", 128, (2, 2, 4), "0.46 PF"),
        "gpt-6.7b": _alpa("alpa-6.7b", "2x8", 64, (8, 8), "0.93 PF"),
        "gpt-15b": _alpa("alpa-15b", "4x8", 128, (8,) * 4, "1.89 PF"),
        "gpt-39b": _alpa("alpa-39b", "8x8", 1024, (4,) * 16, "3.63 PF"),
        "moe-1.3b": _moe(16, 768, 16, "1x4", 32, (2, 2), ""),
        "moe-2.4b": _moe(16, 1024, 16, "1x8", 32, (4, 4), "0.34 PF"),
        "moe-10b": _moe(16, 1536, 32, "2x8", 16, (8, 8), "0.71 PF"),
        "moe-27b": _moe(16, 2048, 48, "4x8", 128, (4,) * 8, "1.22 PF"),
        "wrn-1b": _resnet((50, 320, 2), "1x4", 24, (4,)),
        "wrn-2b": _resnet((50, 448, 2), "1x8", 24, (4, 4), "0.059 PF"),
        "wrn-4b": _resnet((50, 640, 2), "2x8", 32, (4, 4, 8), "0.105 PF"),
        "wrn-6.8b": _resnet((50, 320, 16), "4x8", 32, (8,) * 4, "0.208 PF"),
        "megatron-22b": _megatron("gpt-22b", 8, 4, 4, 1, "1.10 s"),
        "megatron-175b": _megatron("gpt-175b", 64, 64, 1, 8, "13.75 s (interleaved)"),
        "megatron-530b": _megatron("gpt-530b", 280, 280, 1, 35, "37.83 s (interleaved)"),
        "megatron-1t": _megatron("gpt-1t", 512, 512, 1, 64, "71.49 s"),
        "llama-8b": Row("llama3-8b,seq=8192", "h100-dgx", "1x8", 8, 1, "selective", (8,), llama, "1.42 s"),
        "llama-405b": Row(
            "llama3-405b,seq=8192", "h100-dgx", "1024x8", 2048, 32, "none", (512,) * 16, largest, "430 TF",
            (256, 512, 1024, 2048),
        ),
        "llama-70b": Row("llama3-70b,seq=8192", "h100-dgx", "32x8", 512, 8, "full", (256,), big, ""),
    }  # fmt: skip


def planned(name: str, row: Row, *, as_published: bool) -> PipelineResult | None:
    """The best stages, or the best with as many stages of as many devices as were published; None where none fits."""
    cluster = make_cluster(load_profile(row.profile), row.mesh)
    options = PlanOptions(microbatches=row.microbatches, remat=row.remat, time_limit=_SECONDS)
    stages = len(row.published) if as_published else None
    sizes = frozenset(row.published if as_published else row.sizes) or None
    try:
        return PipelineSolver(row.built(name), cluster, options, Schedule("1f1b"), stages, sizes).solve()
    except (InfeasibleError, LimitError):
        return None


def shape(found: PipelineResult) -> str:
    """`8+8`, or `4, 7 x 8, 4` where many are alike: devices of each stage."""
    return _shape([part.size for part in found.parts])


def _shape(sizes: Sequence[int]) -> str:
    if len(sizes) <= 3:
        return "+".join(map(str, sizes))
    runs = [(size, len(list(alike))) for size, alike in itertools.groupby(sizes)]
    return ", ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in runs)


def splits(found: PipelineResult) -> str:
    """What most of the weights' elements are split by, along every mesh axis on which they are split."""
    by_axis: dict[str, Counter[str]] = {}
    for plan in found.plans:
        for axis, recipe, elements in _recipes(plan):
            by_axis.setdefault(axis, Counter())[_SHORT.get(recipe, recipe)] += elements
    shares = {axis: (count.most_common(1)[0], sum(count.values())) for axis, count in by_axis.items()}
    return ", ".join(f"{axis} {name} {100 * most / total:.0f} %" for axis, ((name, most), total) in shares.items())


def _recipes(plan: Plan) -> Iterator[tuple[str, str, int]]:
    names = Recognizer(plan)
    for tensor in plan.tensors:
        if tensor.role == "parameter":
            elements = 1
            for size in tensor.shape:
                elements *= size
            for axis, recipe in zip(plan.mesh.axes, names.recipe(tensor), strict=True):
                if axis.size > 1:
                    yield axis.name, recipe.split(" + ")[0], elements


def main() -> None:
    """Print the table."""
    table = rows()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*table, []], help="rows; all when none is named")
    for name in parser.parse_args().names or list(table):
        row, started = table[name], time.process_time()
        ours = planned(name, row, as_published=False)
        alike = ours is not None and tuple(part.size for part in ours.parts) == row.published
        theirs = ours if alike else planned(name, row, as_published=True)
        steps = [duration(found.step_ns) if found else "does not fit" for found in (ours, theirs)]
        given = _shape(row.published)
        exact = duration(predict(row.run).step_s * NS_PER_S) if row.run else "-"
        print(f"{name}: {time.process_time() - started:.0f} s of one core")
        if not ours:
            print("  ours       does not fit")
        else:
            print(f"  ours       {shape(ours):12} {steps[0]:>12}, at least {duration(ours.bound_ns)}; {splits(ours)}")
        print(f"  published  {given:12} {steps[1]:>12}, as configured {exact}, measured {row.measured or '-'}")
        if ours and theirs and theirs.step_ns < ours.step_ns * (1 - 1e-3):
            print("  the published stages are faster")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
