"""The published table of exit codes: each of them comes from a real run, and no other does."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import unproven, write_mlp

from shardplan.cli import main
from shardplan.errors import LimitError, error
from shardplan.planning import chain
from shardplan.study import solve
from shardplan.verbs import session

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "cli.py")]
HERE = ("mlp.onnx", "--dim", "batch=64", "--mesh", "2x2")


def published() -> list[int]:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    section = text.partition("## Exit codes")[2].partition("\n## ")[0]
    return [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]


def test_one_table():
    """The documentation, the session's docstring, its constants and the help agree."""
    constants = sorted(value for name, value in vars(session).items() if name.startswith("EXIT_"))
    in_docstring = [int(code) for code in re.findall(r"^\| (\d+) +\|", session.__doc__ or "", re.MULTILINE)]
    assert published() == in_docstring == constants == [0, 1, 2, 3, 4, 70, 130, 141]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the model, two plans that differ, and one that is stale."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_mlp(Path("mlp.onnx"))
        assert main(("solve", *HERE, "-o", "one.json")) == 0
        assert main(("solve", *HERE, "-o", "two.json", "--mode", "inference")) == 0
        text = Path("one.json").read_text(encoding="utf-8")
        Path("stale.json").write_text(text.replace('"link_gbps": 450', '"link_gbps": 451'), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ("solve", *HERE, "-o", "new.json")),
        (0, ("diff", "one.json", "one.json")),
        (0, ("diff", "one.json", "two.json", "--exit-zero")),
        (0, ("diff", "one.json", "two.json", "--fail-if", "memory>+100 GiB")),
        (0, ("check", "one.json", "--model", "mlp.onnx", "--resolve")),
        (1, ("diff", "one.json", "two.json")),
        (1, ("check", "stale.json")),
        (2, ("solve", "absent.onnx", "--mesh", "2x2")),
        (2, ("solve", *HERE, "--mehs", "4")),
        (2, ("diff", "one.json", "absent.json")),
        (2, ("check", "one.json", "absent.json")),
        (2, ("explain", "one.json", "nobody", "--model", "mlp.onnx")),
        (3, ("solve", *HERE, "--memory-limit", "1 KiB")),
        (3, ("compare", *HERE, "--memory-limit", "1 KiB")),
        (3, ("evaluate", *HERE, "--pin", "up.weight=replicate", "--memory-limit", "1 KiB")),
    ],
)
def test_codes(code, arguments, shardplan, made, folder):
    shutil.copytree(made, folder, dirs_exist_ok=True)
    run = shardplan(*arguments)
    assert run.code == code, run.err
    near = unproven("new.json") if Path("new.json").exists() else ""
    assert bool(run.err.removeprefix(near)) == (code in (2, 3, 4) or arguments[-1] == "stale.json") or arguments[0] in (
        "compare",
        "evaluate",
    )


@pytest.mark.parametrize(
    ("code", "raised"), [(4, LimitError(error("limit", "the search was ended"))), (70, ZeroDivisionError())]
)
def test_a_limit_is_4_and_a_defect_is_70(code, raised, shardplan, mlp, monkeypatch):
    """The planner fails as told: real models are solved before any limit can strike, and we know of no defect."""

    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(solve, "plan_model", fail)
    assert shardplan("solve", *HERE).code == code


def test_an_interrupt_is_130(mlp):
    """A signal while the profile is read, before there is any plan."""
    fifo = Path("slow.yaml")
    os.mkfifo(fifo)
    command = [*COMMAND, "solve", *HERE, "-c", "slow.yaml"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with fifo.open("wb"):  # opens once the other side reads
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    assert "error[interrupted]" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "command",
    [
        ["profiles"],
        ["profiles", "--json"],
        ["profiles", "show", "absent", "--json"],
        ["profiles", "show", "generic", "--json", "--misspelt"],
    ],
)
def test_a_full_disk_is_no_defect(folder, command):
    with Path("/dev/full").open("w") as full:
        run = subprocess.run([*COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "error[unwritable-output]: cannot write all of the output: no space left on device"
    assert (run.returncode, run.stderr.splitlines()[-1]) == (2, said)


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
@pytest.mark.parametrize("command", [["profiles"], ["profiles", "show", "generic", "--json"]])
def test_a_disk_that_fills_up_is_noticed_without_buffers_too(folder, command):
    """`PYTHONUNBUFFERED`, as images of containers set it: the system takes what fits, and says how much that was."""
    import resource

    settings = {"env": {**os.environ, "PYTHONUNBUFFERED": "1"}, "stderr": subprocess.PIPE, "text": True}
    with Path("out").open("w") as out:
        few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))}
        run = subprocess.run([*COMMAND, *command], stdout=out, check=False, **settings, **few)
    said = "error[unwritable-output]: cannot write all of the output: file too large"
    assert (run.returncode, run.stderr.splitlines()[-1:]) == (2, [said])
    assert Path("out").stat().st_size == 100


@pytest.fixture
def stopped(monkeypatch):
    """From now on the user stops every search: it ends with what it has."""

    def stop() -> None:
        whole = chain.solve
        monkeypatch.setattr(
            chain, "solve", lambda *given, **named: replace(whole(*given, **named), outcome="interrupted")
        )

    return stop


@pytest.mark.parametrize(
    "command",
    [
        ("compare", *HERE),
        ("check", "plans/mlp.2x2.plan.json", "--model", "mlp.onnx", "--resolve"),
        ("explain", "plans/mlp.2x2.plan.json", "up.weight", "--model", "mlp.onnx"),
        ("explain", "plans/mlp.2x2.plan.json", "up.weight", "--model", "mlp.onnx", "--instead", "replicate"),
        ("evaluate", *HERE, "--pin", "up.weight=replicate"),
    ],
    ids=["compare", "check", "explain", "instead", "evaluate"],
)
def test_half_an_answer_is_none(shardplan, mlp, stopped, command):
    assert shardplan("solve", *HERE).code == 0
    stopped()
    run = shardplan(*command)
    assert (run.code, run.err.lstrip()) == (130, "error[interrupted]: interrupted before there was a result\n")


def test_that_nothing_fits_is_an_answer_without_remedies(shardplan, mlp, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for changes in ({"_first": stop}, {"REMEDIES_S": -1.0}):
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(f"shardplan.study.remedies.{name}", value)
            run = shardplan("solve", *HERE, "--memory-limit", "20 KiB")
        assert run.code == 3
        assert run.err.startswith("error[infeasible]: no plan fits in memory: every device is at least ")
        assert run.err.splitlines()[-1].startswith("hint: more --microbatches")


def test_a_reader_that_stops_reading_is_141(mlp):
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run([*COMMAND, "profiles"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert run.returncode == 141
