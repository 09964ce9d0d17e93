"""How fast the command answers, and what it must not load to do so."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("onnx", "networkx", "highspy", "numpy", "rich", "torch", "jax")


def python(code: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.insert(0, {str(ROOT / 'planner')!r}); "
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)


def loaded_by(code: str) -> set[str]:
    run = python(f"{code}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_the_command_line_loads_nothing_heavy():
    assert loaded_by("import shardplan.cli") == set()


def test_reading_a_plan_file_loads_nothing_heavy():
    assert loaded_by("import shardplan.plan.file") == set()


def test_the_test_above_can_fail():
    assert loaded_by("import shardplan.graph.build") >= {"numpy", "networkx"}


@pytest.mark.parametrize("arguments", [["--help"], ["solve", "--help"], ["--version"]])
def test_help_answers_at_once(arguments: list[str]):
    """At most 0.25 s, of which the interpreter alone takes a part; the best of a few runs on a busy machine."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        run = subprocess.run([sys.executable, ROOT / "cli.py", *arguments], capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - started)
        assert (run.returncode, run.stderr) == (0, "")
        if seconds[-1] <= 0.25:
            break
    assert min(seconds) <= 0.25


def test_launcher_and_module_are_the_same_command():
    launcher = subprocess.run([sys.executable, ROOT / "cli.py", "--help"], capture_output=True, text=True, check=True)
    module = python("import runpy; sys.argv = ['x', '--help']; runpy.run_module('shardplan', run_name='__main__')")
    assert launcher.stdout == module.stdout
    assert launcher.stdout.startswith("Usage: shardplan [OPTIONS] COMMAND")
