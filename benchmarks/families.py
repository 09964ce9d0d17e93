"""Plain torch programs of many families under plans: `python benchmarks/families.py [NAME ...] [--exported]`.

Every program of `family_programs` is planned by `shardplan.torch` on 2x2 in several ways and trained for two steps by
four gloo processes, each with a `PYTHONHASHSEED` of its own, beside one process, in double and in single precision.
Losses, gradients, parameters and buffers are compared. `--library` takes the models of other libraries in place of our
own.

A line for each: `exact`; `rounded` where the error is more than that, and no more than what a change of all parameters
in the last digit does to one process; either with `more sent` where only `strict=False` takes it, with what `strict`
said; `not made` where the library refuses the sizes; `no numbers` where one process gives NaN; `refused`, `crashed`,
`hung` or `WRONG`, with why.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from family_ranks import made  # noqa: E402
from forced_plans import cluster_of, forced_plan  # noqa: E402
from plan_forms import plans_of  # noqa: E402
from torch_ranks import Ranks  # noqa: E402

import shardplan.torch  # noqa: E402
from shardplan.errors import InfeasibleError, ShardplanError  # noqa: E402
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions  # noqa: E402
from shardplan.model.types import Model  # noqa: E402
from shardplan.plan.types import Plan  # noqa: E402
from shardplan.torch.planning.plan import read_module  # noqa: E402

MESH, FORMS = "2x2", ("optimum", "all sharded", "tight memory", "random 1", "random 2")
DOUBLE, PARTLY, SINGLE = 1e-10, 1e-6, 2e-4
"""The largest error of what is called exact: of a program in double precision, of one that computes parts in single,
and of one in single precision."""
ROUNDINGS = 20
"""What is called rounded is further off, but no more than so many times as far as one process is from itself when its
parameters are changed in the last digit."""
RIGHT = ("exact", "rounded")
MODES = ("eager", "exported")
SECONDS, COMPILED_SECONDS, START_SECONDS = 90.0, 600.0, 600.0
"""How long processes may take for one program, run as it is and compiled; and to start, which on a busy machine is
longer."""


def plan_of(model: Model, form: str) -> Plan | None:
    """The plan of a form; None where there is none."""
    if form.startswith("random"):
        return forced_plan(model, MESH, seed=int(form[7:]), limit_bytes=UNLIMITED_BYTES, exposed=0.02)
    if form == "all sharded":
        try:
            return shardplan.make_plan(model, MESH, cluster=cluster_of(MESH), pins=list(_pins(model)), time_limit=40)
        except InfeasibleError:
            return None
    wanted = "best" if form == "optimum" else form
    return dict(plans_of(model, MESH, PlanOptions(), (wanted,)))[wanted]


def _pins(model: Model) -> Iterator[str]:
    """Every weight over both axes, in two of its dims where it can be, else in one, else over one axis."""
    for parameter in model.parameters:
        shape = model.tensors[parameter.tensor].shape
        shape = [shape[parameter.perm.index(dim)] for dim in range(len(shape))] if parameter.perm else list(shape)
        even = [dim for dim, size in enumerate(shape) if size % 2 == 0]
        spec: list[str] = ["null"] * len(shape)
        if len(even) > 1:
            spec[even[0]], spec[even[1]] = "machine", "gpu"
        elif even:
            spec[even[0]] = "[machine, gpu]" if shape[even[0]] % 4 == 0 else "gpu"
        if even and parameter.trainable:
            yield f"{parameter.name}=[{', '.join(spec)}]"


class Processes:
    """Four ranks, started again when they do not answer."""

    def __init__(self) -> None:
        self.ranks: Ranks | None = None

    def run(self, *args: object) -> tuple[str, str]:
        """What all ranks say, as one."""
        if self.ranks is None:
            folder = Path(tempfile.mkdtemp())
            self.ranks = Ranks(4, folder, ("family_ranks",), hash_seeds=random.sample(range(1 << 20), 4))
            self.ranks.run("family_ranks", "ready", timeout=START_SECONDS)
        try:
            answers = self.ranks.run(
                "family_ranks", "train", *args, timeout=SECONDS if args[2] in MODES else COMPILED_SECONDS
            )
        except TimeoutError:
            self.stop(kill=True)
            return "hung", "processes wait for one another"
        except AssertionError as problem:
            self.stop(kill=True)
            return "crashed", str(problem).strip().splitlines()[-1]
        kinds = {kind for kind, _ in answers}
        if kinds != {"ran"}:
            if kinds != {"refused"}:
                self.stop(kill=True)  # something may still be on its way
            kind, why = next((kind, why) for kind, why in answers if kind != "ran")
            return (kind if len(kinds) == 1 else "crashed"), why
        worst = {key: max(errors[key] for _, errors in answers) for key in answers[0][1]}
        is_double, own, single = args[-1] == torch.float64, worst.pop("own"), worst.pop("single")
        allowed = (PARTLY if single else DOUBLE) if is_double else SINGLE
        note = " (single precision inside)" if single and is_double else ""
        if own == float("inf"):
            return "no numbers", "one process gives NaN, too"
        wrong = {key: value for key, value in worst.items() if not value < allowed}
        said = ", ".join(f"{key} {value:.1e}" for key, value in wrong.items()) + note
        if not wrong:
            return "exact", f"{max(worst.values()):.0e}{note}"
        if all(value < ROUNDINGS * own for value in wrong.values()):
            return "rounded", f"{said}; one process is {own:.1e} from itself"
        return "WRONG", said

    def stop(self, *, kill: bool = False) -> None:
        if self.ranks is None:
            return
        if kill:
            for nursery in self.ranks.nurseries:
                for child in _children(nursery.pid):
                    _kill(child)
                nursery.kill()
        self.ranks.close()
        self.ranks = None


def _children(pid: int | None) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def _kill(pid: int) -> None:
    import contextlib
    import os
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def judged(processes: Processes, name: str, plan: Plan, mode: str, device: str) -> tuple[str, str]:
    """How a program fares under a plan: in double precision, and where that is right in single, too."""
    kind, why = processes.run(name, plan, mode, device, True, torch.float64)
    strict = kind != "refused"
    found, said = (kind, why) if strict else processes.run(name, plan, mode, device, False, torch.float64)
    if found not in RIGHT:
        return found, said
    single, error = processes.run(name, plan, mode, device, strict, torch.float32)
    if single not in RIGHT:
        return f"{single} in single", error
    both = "rounded" if "rounded" in (found, single) else "exact"
    return (both, f"{said}, {error} in single") if strict else (f"{both}, more sent", f"{said}, {error}; {why}")


def main() -> None:
    """A line for each program and plan, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--exported", action="store_true", help="parallelize_exported in place of parallelize")
    parser.add_argument("--backend", help="compile the graph by this backend (inductor)")
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--device", default="cpu", help="cuda: all four processes on the one GPU there is, over gloo")
    parser.add_argument("--library", action="store_true", help="the models of transformers, in place of our own")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from family_programs import LIBRARIES, OWN

    processes, counts = Processes(), Counter[str]()
    try:
        for name in given.names or (LIBRARIES if given.library else OWN):
            begun = time.monotonic()
            mode = given.backend or ("exported" if given.exported else "eager")
            for form, kind, why in _rows(processes, name, given.forms, mode, given.device):
                counts[kind] += 1
                print(f"{name:16} {form:14} {kind:17} {time.monotonic() - begun:4.0f} s  {why[:400]}", flush=True)
                begun = time.monotonic()
    finally:
        processes.stop()
    print(", ".join(f"{number} {kind}" for kind, number in counts.most_common()))


def _rows(processes: Processes, name: str, forms: list[str], mode: str, device: str) -> Iterator[tuple[str, str, str]]:
    try:
        model, batch = made(name, torch.float32)
    except Exception as problem:  # noqa: BLE001 - a library that changed; the others are run
        yield "", "not made", f"{type(problem).__name__}: {problem}".splitlines()[0]
        return
    try:
        read = read_module(model, batch, name=name)
    except ShardplanError as problem:
        yield "", "not exported", str(problem)
        return
    for form in forms:
        try:
            plan = plan_of(read, form)
        except ShardplanError as problem:
            yield form, "not planned", str(problem.diagnostics[0])
            continue
        yield form, *(judged(processes, name, plan, mode, device) if plan else ("no such plan", ""))


if __name__ == "__main__":
    main()
