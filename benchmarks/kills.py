"""Kill processes that write plans, sweeps, splits and exports, at any moment, and look at what they leave behind.

    python benchmarks/kills.py [--kills 1000] [--seed 0]

Each command is first run to its end. Then, again and again, a process runs it over what is there and is killed, by
SIGKILL or SIGTERM, after a random part of that time. Every file must then be whole: the old bytes or the new ones. At
last the command runs to its end again, over all that was left, and must give the bytes of the first run. Exit code 1 if
anything is otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

from fuzz_classes import ON, Workplace  # noqa: E402

from shardplan.cli import main  # noqa: E402
from shardplan.verbs.streams import prepare  # noqa: E402


def commands(place: Workplace) -> dict[str, tuple[list[str], Path]]:
    """By name: the command, and the file or folder that it writes."""
    mlp, plan, out = place.path("mlp.onnx"), place.path("training.plan.json"), place.folder
    return {
        "solve": (["solve", mlp, *ON, "-o", str(out / "k.plan.json")], out / "k.plan.json"),
        "sweep": (["sweep", mlp, "-c", "generic", "-m", "1x2,2x1", "-o", str(out / "k.sweep")], out / "k.sweep"),
        "split": (["split", place.path("one.safetensors"), plan, "-o", str(out / "k.ranks")], out / "k.ranks"),
        "export": (["export", plan, mlp, "--to", "onnx-spmd", "-o", str(out / "k.spmd")], out / "k.spmd"),
    }


def content(path: Path) -> dict[str, bytes]:
    """Files and their bytes, without those that are unfinished and say so."""
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in files
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(".part")
    }


def run(command: list[str], seconds: float | None = None, number: int = signal.SIGKILL) -> int:
    """The exit status of a process that runs the command and is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        code = 130
        try:
            with (
                Path(os.devnull).open("w") as nowhere,
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                prepare()
                code = main(command)
        finally:  # whatever interrupts it, nothing of the parent's runs here
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def prepare_again(name: str, made: Path, rng: random.Random) -> None:
    """Often what was made is gone, older or other than what will be made, so that there is something to do."""
    if name == "split":
        os.utime(made.parent / "one.safetensors")
    elif rng.random() < 0.7 and made.is_file():
        if name == "sweep":
            made.unlink()
        else:
            made.write_bytes(b'{"format_version": "1.0", "model": "old"}\n')


def is_json(data: bytes) -> bool:
    """A plan that was not searched to the end, or a sweep of some points: documents that are whole all the same."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return data.endswith(b"}\n")


def kill_often(name: str, command: list[str], made: Path, kills: int, rng: random.Random) -> list[str]:
    """What is wrong after so many kills."""
    started = time.monotonic()
    if (code := run(command)) != 0:
        return [f"{name} ended with {code}"]
    took, whole, faults = time.monotonic() - started, content(made), []
    killed = 0
    for _ in range(kills):
        prepare_again(name, made, rng)
        before = content(made)
        killed += run(command, rng.uniform(0, took), rng.choice((signal.SIGKILL, signal.SIGTERM))) != 0
        after = content(made)
        torn = [
            file for file, data in after.items() if data not in (before.get(file), whole[file]) and not is_json(data)
        ]
        lost = [file for file in before if file not in after and made.is_file()]
        faults += [f"{name}: {file} is torn" for file in torn] + [f"{name}: {file} is lost" for file in lost]
    code = run(command)
    if code != 0 or content(made) != whole:
        faults.append(f"{name}: after {killed} kills the command ends with {code} and other bytes")
    if left := [file.name for file in made.parent.glob(".*.tmp*")]:
        print(f"{name:8} leaves {len(left)} unfinished files behind, which say so in their names")
    print(
        f"{name:8} {kills} runs of up to {took:.2f} s, {killed} killed before their end: {len(faults)} faults",
        flush=True,
    )
    return faults


def main_() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            place = Workplace(Path(folder))
        rng, jobs = random.Random(options.seed), commands(place)
        share = -(-options.kills // len(jobs))
        faults = [
            fault for name, (command, made) in jobs.items() for fault in kill_often(name, command, made, share, rng)
        ]
    print(*faults, sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main_())
