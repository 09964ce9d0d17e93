"""What `shardplan price` says of the rows of `fidelity.py`, each priced with its published configuration.

    python benchmarks/price.py [--only TABLE]

Times: every run of that benchmark's tables, in the unit of its source, by `price` and by the driver of `fidelity.py`,
which divides layers instead of planning stages; memory of a device beside it, and whether that fits. Memory: state of
ZeRO, and activations of a layer, which are the difference of models of three and of two layers. Minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]

import fidelity  # noqa: E402
from rows import Row, within  # noqa: E402
from simulate import Prediction, Run, spec_of  # noqa: E402

import shardplan  # noqa: E402
from shardplan.errors import ShardplanError  # noqa: E402
from shardplan.models import build  # noqa: E402
from shardplan.study.price import PricedConfiguration  # noqa: E402

TIMES = ("korthikanti-time", "megatron-a100", "megatron-h100", "llama-405b", "llm-foundry", "torchtitan")
GIB, MIB = 2**30, 2**20


def priced(run: Run) -> PricedConfiguration:
    """A published run, as a user would price it."""
    zero = 3 if run.sharded else 1 if run.distributed_optimizer else 0
    sequence = run.sequence and run.tensor > 1
    return shardplan.price(
        build(replace(run.spec, batch=run.batch)), cluster=run.profile, tp=run.tensor, pp=run.pipeline, dp=run.data,
        cp=run.context, vp=run.interleave, zero=zero, sequence_parallel=sequence, micro_batch=run.microbatch,
        recompute=run.remat, fused_loss=run.fused_loss,
    )  # fmt: skip


def both_ways(name: str) -> Iterator[tuple[Row, Row, list[str]]]:
    """Every row of a table of `fidelity.py`: by its driver, by `price`, and what `price` says of memory."""
    driver, told = fidelity.predict, []

    def by_price(run: Run) -> Prediction:
        try:
            found = priced(run)
        except ShardplanError as refused:
            told.append(str(refused).splitlines()[0])
            return Prediction(float("nan"), 0.0, 0.0, 0.0)
        told.append(f"{found.peak.total / GIB:.1f} GiB{'' if found.fits else ', does not fit'}")
        return Prediction(found.plan.summary.step_ns / 1e9, 0.0, 0.0, 0.0)

    theirs = list(fidelity.TABLES[name]())
    fidelity.predict = by_price
    try:
        rows = fidelity.TABLES[name]()
        for expected in theirs:
            told.clear()
            yield expected, next(rows), list(told)
    finally:
        fidelity.predict = driver


def memory() -> Iterator[Row]:
    """Memory that is stated without a time: ZeRO's state of 7.5B parameters on 64 GPUs, GB; activations of one layer on
    eight GPUs, MiB."""
    model = build(spec_of("gpt-7.5b", seq=128, batch=64))
    scale = 7.5e9 / sum(model.tensor(p.tensor).elements for p in model.parameters) / 1e9
    for zero, wanted in ((0, 120.0), (1, 31.4), (3, 1.88)):
        peak = shardplan.price(model, cluster="a100-dgx", dp=64, zero=zero, grad_dtype="bf16").peak
        held = peak.parameters + peak.optimizer + peak.gradients
        yield within(f"gpt-7.5b, state, --dp 64 --zero {zero}", held * scale, wanted, 0.01)
    forms = ((False, "none"), (True, "none"), (False, "selective"), (True, "selective"))
    for name, (batch, *published) in fidelity.LAYER_ACTIVATIONS.items():
        for (sequence, remat), wanted in zip(forms, published, strict=True):
            held = []
            for layers in (2, 3):
                spec = spec_of(name, layers=layers, dropout=True, attention="decomposed", batch=batch)
                options = {"tp": 8, "sequence_parallel": sequence, "micro_batch": batch, "recompute": remat}
                held.append(shardplan.price(build(spec), cluster="a100-dgx", **options).peak.activations)
            flags = f"--tp 8{' --sequence-parallel' * sequence}{' --recompute selective' * (remat != 'none')}"
            yield within(f"{name}, a layer, {flags}", (held[1] - held[0]) / MIB, wanted, 0.10)


def main() -> None:
    """A table for each table of `fidelity.py`, and one of memory alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=(*TIMES, "memory"), action="append")
    chosen = parser.parse_args().only or (*TIMES, "memory")
    for name in (name for name in TIMES if name in chosen):
        begun = time.process_time()
        print(f"{name}: {' '.join((fidelity.TABLES[name].__doc__ or '').split())}")
        print(f"  {'':28} {'published':>9} {'price':>9} {'':>7} {'driver':>9} {'':>7}  memory of a device")
        for driver, price, told in both_ways(name):
            off = [f"{one.ours:9.2f} {one.ours / one.published - 1:+7.1%}" for one in (price, driver)]
            print(f"  {price.case:28} {price.published:9.2f} {off[0]} {off[1]}  {'; '.join(told)}", flush=True)
        print(f"  {time.process_time() - begun:.0f} s\n", flush=True)
    if "memory" in chosen:
        print(f"memory: {' '.join((memory.__doc__ or '').split())}")
        for row in memory():
            print(
                f"  {row.case:58} {row.published:8.2f} {row.ours:8.2f} {row.ours / row.published - 1:+7.1%}", flush=True
            )


if __name__ == "__main__":
    main()
