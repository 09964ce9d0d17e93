"""Plan models in many ways, run every plan on simulated devices, and print what was compared.

    python benchmarks/models.py FOLDER [--only PATTERN] [--mesh 2x2 --mesh 2x2x2] [--jobs 2]

Models: the ONNX files in FOLDER, and the networks of the onnx package. Each is planned on every mesh as the fastest
plan, with a cheap and a dear net, with little memory, as Megatron, as Megatron with sequence parallelism, as ZeRO-3,
and at random; scaled down with the same strategies it is run in double precision, and every value compared with the
model run whole. One line for each model and mesh: how many plans there were and how many of them differ, how many
operators were run and values compared, bytes that collectives moved (all devices together; of a permute the device that
sends most is held to the price), the largest relative difference, processor seconds to plan and to run, and what went
wrong. A form that is missing has no plan on the mesh; of little memory it is missing where the fastest plan is the
thriftiest already. Exit code 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from plan_forms import FORMS, decisions_of, plans_of  # noqa: E402

from shardplan.errors import ShardplanError  # noqa: E402
from shardplan.graph.options import PlanOptions  # noqa: E402
from shardplan.model.read import read_model  # noqa: E402
from shardplan.model.types import Model  # noqa: E402
from shardplan.program.machine.verify import verify_plan  # noqa: E402
from shardplan.program.shrink.shrink import shrink  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
DIMS = {"llama3_8b_dyn": {"batch": 8, "seq": 2048}, "gpt2_small_dyn": {"batch": 8, "seq": 1024}}
BLOCKS = {"sd15_unet": ("down_blocks.1", "mid_block", "up_blocks.2")}
"""What is planned of a model on three axes, each for itself: to prove plans of the whole optimal takes minutes."""
INFERENCE_ONLY = ("light_*", "*_decode")


Task = tuple[Path, str, str]
"""A file, a mesh, and the block of the model that is planned, `""` for all of it."""


@dataclass
class Outcome:
    """What became of one model on one mesh."""

    model: str
    mesh: str
    plans: int = 0
    decisions: set[int] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    operators: int = 0
    values: int = 0
    moved_bytes: int = 0
    worst: float = 0.0
    planned_s: float = 0.0
    run_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def examine(task: Task) -> Outcome:
    """All plans of one model, or of a block of it, on one mesh."""
    path, mesh, block = task
    began = time.process_time()
    outcome = Outcome(f"{path.stem}:{block}" if block else path.stem, mesh)
    try:
        model = read_model(path, DIMS.get(path.stem, {}))
        model = cut_out(model, block) if block else model
        inference = any(fnmatch.fnmatch(path.stem, pattern) for pattern in INFERENCE_ONLY)
        options = PlanOptions(mode="inference" if inference else "training")
        for form, plan in plans_of(model, mesh, options):
            if plan is None:
                outcome.absent.append(form)
                continue
            outcome.plans += 1
            outcome.decisions.add(decisions_of(plan))
            started = time.process_time()
            run(outcome, form, model, plan)
            outcome.run_s += time.process_time() - started
    except Exception as problem:  # noqa: BLE001 - a benchmark tells and goes on
        outcome.problems.append(f"{type(problem).__name__}: {problem} {traceback.format_exc(limit=-2)}")
    outcome.planned_s = time.process_time() - began - outcome.run_s
    return outcome


def cut_out(model: Model, block: str) -> Model:
    """The operators of a module; what others make for them is an input."""
    operators = tuple(operator for operator in model.operators if f"{operator.module}.".startswith(f"{block}."))
    made = {name for operator in operators for name in operator.outputs if name}
    around = made | {name for operator in operators for name in operator.inputs if name}
    before = {name for operator in model.operators for name in operator.outputs} - made
    inside = {name for operator in operators for name in operator.inputs}
    tensors = {name: model.tensors[name] for name in model.tensors if name in around}
    fed = [name for name in tensors if name in before]
    return replace(
        model,
        name=block,
        operators=operators,
        tensors=tensors | {name: replace(tensors[name], role="input") for name in fed},
        parameters=tuple(parameter for parameter in model.parameters if parameter.tensor in around),
        inputs=(*(name for name in model.inputs if name in around), *fed),
        outputs=tuple(name for name in tensors if name in made - inside),
        constants={name: array for name, array in model.constants.items() if name in around},
        blocks=(),
        fed=frozenset(fed),
    )


def run(outcome: Outcome, form: str, model, plan) -> None:
    """Run the scaled-down model's plan, and add to `outcome` what was found."""
    try:
        report = verify_plan(*shrink(model, plan))
    except ShardplanError as problem:
        if problem.diagnostics[0].code == "too-large":  # what the plan cuts cannot become small
            outcome.absent.append(f"{form} (too large to run)")
        else:
            outcome.problems.append(f"{form}: {problem}")
        return
    except (ValueError, AssertionError, KeyError, IndexError) as problem:
        outcome.problems.append(f"{form}: {type(problem).__name__}: {problem}")
        return
    if report.mismatch is not None:
        outcome.problems.append(f"{form}: {report.mismatch}")
    outcome.problems += [f"{form}: {text}" for text in report.mispriced[:2]]
    outcome.operators += report.operators
    outcome.values += report.values
    outcome.moved_bytes += report.moved_bytes.total()
    outcome.worst = max(outcome.worst, report.worst)


def outcomes(tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    """In the order of `tasks`."""
    if jobs == 1:
        yield from map(examine, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(examine, tasks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="pattern of model names")
    parser.add_argument("--mesh", action="append", help="default: 2x2 and 2x2x2")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    paths = [*sorted(given.folder.glob("*.onnx")), *sorted(LIGHT.glob("light_*.onnx"))]
    meshes = given.mesh or ["2x2", "2x2x2"]
    tasks = [
        (path, mesh, block)
        for path in paths
        if fnmatch.fnmatch(path.stem, given.only)
        for mesh in meshes
        for block in (BLOCKS.get(path.stem, ("",)) if mesh.count("x") > 1 else ("",))
    ]
    print(f"forms: {', '.join(FORMS)}\n")
    print(f"{'model':26} {'mesh':6} {'plans':>5} {'differ':>6} {'operators':>9}", end="")
    print(f" {'values':>8} {'moved':>12} {'worst':>8} {'plan s':>6} {'run s':>6}")
    failed = 0
    for found in outcomes(tasks, given.jobs):
        failed += bool(found.problems)
        print(
            f"{found.model:26} {found.mesh:6} {found.plans:5} {len(found.decisions):6} {found.operators:9,} "
            f"{found.values:8,} {found.moved_bytes:12,} {found.worst:8.1e} {found.planned_s:6.1f} {found.run_s:6.1f}"
            + (f"  no {', '.join(found.absent)}" if found.absent else ""),
            flush=True,
        )
        for problem in found.problems:
            print(f"    {problem}")
    print(f"\n{failed} of {len(tasks)} with something wrong" if failed else "\nall values equal, all bytes as priced")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
