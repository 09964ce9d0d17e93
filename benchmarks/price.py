"""What `shardplan price` says of published configurations, beside what was measured: `python benchmarks/price.py`.

The rows of `fidelity.py` that state a whole configuration (Megatron-LM's and Llama 3's), priced as a user would, with
the driver of that benchmark, which divides layers instead of planning stages, beside it. Seconds of a step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]

from dataclasses import replace  # noqa: E402

from fidelity import model_flops  # noqa: E402
from simulate import Run, predict, spec_of  # noqa: E402

import shardplan  # noqa: E402
from shardplan.models import build  # noqa: E402


def _runs() -> list[tuple[str, Run, float]]:
    gpt = {
        name: spec_of(name, dropout=True, attention="decomposed")
        for name in ("gpt-22b", "gpt-175b", "gpt-530b", "gpt-1t")
    }
    rows = [
        ("gpt-22b", Run(gpt["gpt-22b"], "a100-dgx", 8, 4, 4, 8), 1.10),
        ("gpt-175b", Run(gpt["gpt-175b"], "a100-dgx", 64, 64, 1, 8, 8, 3), 13.75),
        ("gpt-530b", Run(gpt["gpt-530b"], "a100-dgx", 280, 280, 1, 8, 35, 3), 37.83),
        ("gpt-1t", Run(gpt["gpt-1t"], "a100-dgx", 512, 512, 1, 8, 64, 1), 71.49),
    ]
    found = [(name, replace(run, remat="selective", sequence=True), wanted) for name, run, wanted in rows]
    for gpus, tflops in ((8192, 430), (16384, 400)):
        spec = spec_of("llama3-405b", seq=8192)
        run = Run(spec, "h100-dgx", gpus, 2048, 1, 8, 16, 4, sequence=True)
        found.append((f"llama3-405b, {gpus}", run, model_flops(spec, 2048) / gpus / tflops / 1e12))
    return found


def main() -> None:
    """A line for each run."""
    print(f"{'run':20} {'measured':>9} {'price':>9} {'':>7} {'driver':>9} {'':>7} {'memory':>9} {'CPU s':>6}")
    for name, run, wanted in _runs():
        begun = time.process_time()
        priced = shardplan.price(
            build(replace(run.spec, batch=run.batch)), cluster=run.profile, tp=run.tensor, pp=run.pipeline, dp=run.data,
            vp=run.interleave, sequence_parallel=run.sequence, micro_batch=run.microbatch, recompute=run.remat,
        )  # fmt: skip
        ours, spent = priced.plan.summary.step_ns / 1e9, time.process_time() - begun
        theirs = predict(run).step_s
        print(
            f"{name:20} {wanted:9.2f} {ours:9.2f} {ours / wanted - 1:+7.1%} {theirs:9.2f} {theirs / wanted - 1:+7.1%} "
            f"{priced.peak.total / 2**30:5.1f} GiB {spent:6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
