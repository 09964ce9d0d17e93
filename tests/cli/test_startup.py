"""How fast the command answers, and what it must not load to do so."""

import importlib.util
import resource
import subprocess
import sys
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


def test_importing_the_adapter_for_torch_leaves_its_compiler_alone():
    """Which takes torch longer to import than all that plans, checks and loads. An export imports it later, and it then
    finds torch's own functions."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    run = python(
        "import torch; own = torch._foreach_lerp; import shardplan.torch; print('torch._dynamo' in sys.modules)\n"
        "from shardplan.torch.plain_forms import in_plain_forms\n"
        "with in_plain_forms(): from torch._dynamo.variables.torch import ops_consuming_unbacked_scalars as known\n"
        "print(own in known)"
    )
    assert (run.returncode, run.stdout) == (0, "False\nTrue\n"), run.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["solve", "--help"], ["--version"]])
def test_help_answers_at_once(arguments: list[str]):
    """At most 0.25 s of processor time, the interpreter's own included; the best of a few runs on a busy machine."""
    seconds = []
    for _ in range(5):
        before = _seconds_of_children()
        run = subprocess.run([sys.executable, ROOT / "cli.py", *arguments], capture_output=True, text=True, check=False)
        seconds.append(_seconds_of_children() - before)
        assert (run.returncode, run.stderr) == (0, "")
        if seconds[-1] <= 0.25:
            break
    assert min(seconds) <= 0.25


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_launcher_and_module_are_the_same_command():
    launcher = subprocess.run([sys.executable, ROOT / "cli.py", "--help"], capture_output=True, text=True, check=True)
    module = python("import runpy; sys.argv = ['x', '--help']; runpy.run_module('shardplan', run_name='__main__')")
    assert launcher.stdout == module.stdout
    assert launcher.stdout.startswith("Usage: shardplan [OPTIONS] COMMAND")
