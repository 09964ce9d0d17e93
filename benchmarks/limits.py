"""What the limits of every runtime cost: `solve --for FORMAT` beside the free optimum.

    python benchmarks/limits.py 4x8 tests/models/gpt2_small.onnx tests/models/llama3_8b.onnx mixtral.onnx

A row per format, a column per model: the step of the best plan that the format can express, and by how much it is
slower than the best plan there is. Every plan is exported; a refusal ends the benchmark with 1. CPU seconds are those
of this process for the whole column.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from shardplan import make_plan
from shardplan.errors import Diagnostic, InfeasibleError
from shardplan.export.targets import find_target
from shardplan.export.types import Source
from shardplan.plan.types import Plan
from shardplan.request import TARGETS
from shardplan.study.instance import load_model
from shardplan.units import duration


def _refused(plan: Plan, target: str, model: str) -> tuple[Diagnostic, ...]:
    found = find_target(target)
    given = [Source(load_model(model, {}), None)] if found.needs_model else []
    return found.load()(plan, *given).refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mesh")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--mode", default="training")
    parser.add_argument("--memory-limit", default=None)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    refused = 0
    for model in asked.models:
        print(f"\n{model}, {asked.mode}, {asked.mesh}\n")
        print("| format | step | slower than free | gap | CPU s |\n|---|--:|--:|--:|--:|")
        free = 0
        for target in TARGETS:
            before = time.process_time()
            try:
                plan = make_plan(model, asked.mesh, mode=asked.mode, target=target, memory_limit=asked.memory_limit)
            except InfeasibleError as none:
                print(f"| {target or 'free'} | {none.diagnostics[0].summary} | | | |", flush=True)
                continue
            step, spent = plan.summary.step_ns, time.process_time() - before
            free = free or step
            found = [each for each in _refused(plan, target, model) if each.severity == "error"] if target else []
            refused += len(found)
            slower = f"{step / free - 1:.1%}" if target else ""
            said = f"REFUSED: {found[0].summary}" if found else duration(step)
            print(f"| {target or 'free'} | {said} | {slower} | {plan.summary.gap:.1%} | {spent:.1f} |", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
