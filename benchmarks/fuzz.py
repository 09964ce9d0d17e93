"""Hand damaged and hostile inputs to the command for as long as one likes, and print a table of what came of them.

    python benchmarks/fuzz.py [--minutes 60] [--inputs N] [--jobs 2] [--only CLASS,…] [--held-out] [--keep DIR]

Every input is made from a class and a number, so any can be made again: `--only plans --first 1234 --inputs 1 -v`. An
answer is bad when the exit code is none that is documented, when there is a traceback, no word, more than 10 s of the
processor, more than 4 GiB, a control character, a line that CI would obey, or a document that cannot be read. Exit code
1 if any is.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

MEMORY = 4 << 30
PATIENCE = 240
"""Seconds without an answer after which a worker is ended: what it does cannot be interrupted from inside, or it waits
for a machine that is busy."""


def work(pipe: Connection, held_out: bool) -> None:
    """A worker: class and number in, faults and times out."""
    os.environ["SHARDPLAN_CHECK_PRICES"] = "1"
    from fuzz_classes import CLASSES, Workplace, made
    from fuzz_held_out import HELD_OUT
    from fuzz_run import answer

    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    os.chdir(folder)
    with Path(os.devnull).open("w") as nowhere:
        kept, sys.stdout = sys.stdout, nowhere
        place = Workplace(folder)
        sys.stdout = kept
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    pipe.send(str(folder))
    while (task := pipe.recv()) is not None:
        name, number = task
        commands = made(name, place, Random(f"{name}{number}"), HELD_OUT if held_out else CLASSES)
        pipe.send([(command, answer(command)) for command in commands])
    shutil.rmtree(folder)


class Worker:
    """A process, and what it is busy with since when."""

    def __init__(self, held_out: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, held_out))
        self.process.start()
        other.close()
        self.folder = self.pipe.recv()
        self.task: tuple[str, int] | None = None
        self.since = time.monotonic()

    def ask(self, task: tuple[str, int]) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


class Tally:
    """Counts per class, and the faults that differ."""

    def __init__(self, keep: Path | None, verbose: bool) -> None:
        self.inputs: collections.Counter[str] = collections.Counter()
        self.codes: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self.slowest: dict[str, float] = collections.defaultdict(float)
        self.faults: dict[tuple[str, str], list[tuple[str, int]]] = collections.defaultdict(list)
        self.keep, self.verbose = keep, verbose

    def add(self, task: tuple[str, int], answers: list, worker: Worker) -> None:
        name = task[0]
        self.inputs[name] += 1
        for command, found in answers:
            self.codes[name][found.code] += 1
            self.slowest[name] = max(self.slowest[name], found.seconds)
            if self.verbose:
                print(" ".join(command), "->", found.code, f"{found.seconds:.2f} s", found.fault)
                print(found.out[-3000:], found.said[-6000:])
            if found.fault:
                self.fault(task, found.fault, signature(found.said), worker, command)

    def fault(self, task: tuple[str, int], what: str, where: str, worker: Worker, command: list[str]) -> None:
        seen = self.faults[what, where]
        seen.append(task)
        if len(seen) == 1:
            print(f"{task[0]} {task[1]}: {what}: {where}\n    {' '.join(command)}", flush=True)
            if self.keep is not None:
                shutil.copytree(worker.folder, self.keep / f"{task[0]}-{task[1]}", dirs_exist_ok=True)

    def show(self) -> None:
        print(
            f"\n{'class':26}{'inputs':>9}{'runs':>9}{'planned':>9}{'refused':>9}{'other':>9}{'bad':>6}{'slowest':>10}"
        )
        for name, count in sorted(self.inputs.items()):
            codes = self.codes[name]
            runs, bad = sum(codes.values()), sum(task[0] == name for tasks in self.faults.values() for task in tasks)
            other = runs - codes[0] - codes[2]
            print(
                f"{name:26}{count:9,}{runs:9,}{codes[0]:9,}{codes[2]:9,}{other:9,}{bad:6,}{self.slowest[name]:8.1f} s"
            )
        for (what, where), tasks in sorted(self.faults.items(), key=lambda item: -len(item[1])):
            print(f"{len(tasks):6} {what}: {where}   {tasks[0][0]} {tasks[0][1]}")


def signature(said: str) -> str:
    """The innermost line of a traceback that is ours, and its last line."""
    places = re.findall(r'File ".*?(shardplan/[^"]+)", line (\d+)', said)
    lines = [line for line in said.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    last = re.sub(r"\d+", "N", lines[-1])[:100] if lines else ""
    return f"{places[-1][0]}:{places[-1][1]} {last}" if places else last


def run(options: argparse.Namespace, names: list[str], tally: Tally) -> None:
    workers = [Worker(options.held_out) for _ in range(options.jobs)]
    tasks = ((name, number) for number in range(options.first, sys.maxsize) for name in names)
    ends = time.monotonic() + options.minutes * 60
    left = options.inputs
    for worker in workers:
        worker.ask(next(tasks))
    while workers:
        ready = wait([worker.pipe for worker in workers], timeout=5)
        for place, worker in enumerate(workers):
            assert worker.task is not None
            late = time.monotonic() - worker.since > PATIENCE
            if worker.pipe not in ready and not late:
                continue
            try:
                tally.add(worker.task, worker.pipe.recv() if worker.pipe in ready else _lost("no answer"), worker)
            except (EOFError, ConnectionError):
                tally.fault(worker.task, "the process ended", "", worker, [])
                tally.inputs[worker.task[0]] += 1
                late = True
            left -= 1
            if late:
                worker.end()
                workers[place] = Worker(options.held_out)
            workers[place].task = None
        for worker in [worker for worker in workers if worker.task is None]:
            if left - len(workers) + 1 <= 0 or time.monotonic() > ends:
                worker.end()
                workers.remove(worker)
            else:
                worker.ask(next(tasks))


def _lost(what: str) -> list:
    from fuzz_run import Answer

    return [([], Answer(-1, "", "", PATIENCE, what))]


def main() -> int:
    from fuzz_classes import CLASSES
    from fuzz_held_out import HELD_OUT

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=sys.maxsize)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input of each class")
    parser.add_argument("--held-out", action="store_true", help="mutations that nothing was mended for")
    parser.add_argument("--keep", type=Path, help="folder for inputs with a bad answer")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(HELD_OUT if options.held_out else CLASSES)
    tally = Tally(options.keep, options.verbose)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        run(options, names, tally)
    tally.show()
    return bool(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
