"""Output that nobody reads, that is closed or lacks characters; signals; files that are replaced. As real processes."""

import contextlib
import errno
import json
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from shutil import which

import pytest

from shardplan import processes
from shardplan.errors import ShardplanError
from shardplan.export.files import folder_in_place, write_file
from shardplan.plan.file import write_other, write_text
from shardplan.solve.budget import Budget
from shardplan.verbs import streams
from shardplan.whole_files import write_all, write_whole, written_beside

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, str(ROOT / "cli.py"))
SOLVE = ("solve", "mlp.onnx", "--dim", "batch=32", "-c", "generic", "--mesh", "2x2", "-o", "mlp.plan.json")


def run(*arguments, **settings):
    return subprocess.run([*COMMAND, *arguments], check=False, timeout=120, **settings)


@pytest.fixture
def plan(mlp, shardplan) -> Path:
    assert shardplan(*SOLVE).code == 0
    return Path("mlp.plan.json")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_changes_nothing(mlp, closed):
    done = run(*SOLVE, preexec_fn=lambda: os.close(closed), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stdout if closed == 1 else done.stderr) == (0, b"")
    text = Path("mlp.plan.json").read_bytes()
    assert text.startswith(b"{")
    assert text.endswith(b"}\n")
    same = run("diff", "mlp.plan.json", "mlp.plan.json", preexec_fn=lambda: os.close(closed))
    assert same.returncode == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_plan_is_written_though_nobody_reads_on(mlp, stream):
    reader, writer = os.pipe()
    os.close(reader)
    # an axis of 3 devices is worth a warning on standard error
    asked = tuple("1x3" if word == "2x2" else word for word in SOLVE)
    try:
        done = run(*asked, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer})
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert Path("mlp.plan.json").exists()


def test_all_that_the_package_writes_has_a_form_in_ascii():
    sources = (ROOT / "planner" / "shardplan").rglob("*.py")
    written = {character for path in sources for character in path.read_text(encoding="utf-8") if ord(character) > 127}
    assert {"→", "×", "−"} <= written
    assert "?" not in "".join(sorted(written)).encode("ascii", streams.DEGRADE).decode()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_there_are_none_of_are_written_otherwise(plan, shardplan, monkeypatch, encoding):
    settings = {"env": {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, "capture_output": True}
    sweep = ("sweep", "mlp.onnx", "--dim", "batch=32", "-c", "generic", "--mesh", "1x2,2x2", "-o", "s.json")
    monkeypatch.setattr("shardplan.study.engines.processors", lambda: 1)
    assert shardplan(*sweep).code == 0  # its points are not planned again
    for asked in (("show", str(plan)), sweep, SOLVE):
        done = run(*asked, **settings)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), asked
        assert asked != sweep or b" +---" in done.stdout


def test_a_plan_on_standard_output_is_utf_8_in_any_terminal(plan):
    piped = (*SOLVE[:-1], "-")
    settings = {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}, "capture_output": True}
    assert run(*piped, **settings).stdout == plan.read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_end_a_process_are_an_interrupt(mlp, number):
    os.mkfifo("slow.yaml")
    process = subprocess.Popen([*COMMAND, *SOLVE, "-c", "slow.yaml"], stderr=subprocess.PIPE, text=True)
    writer = Path("slow.yaml").open("w")  # noqa: SIM115 - opens when the command does, and keeps it waiting
    said = ""
    for _ in range(10):  # one that comes right before a system call is seen after that, as at any prompt
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, said = process.communicate(timeout=6)
            break
    writer.close()
    assert process.returncode == 130
    assert said.lstrip("\n") == "error[interrupted]: interrupted before there was a result\n"


def test_sigterm_asks_a_search_to_end_with_what_it_has():
    before = signal.signal(signal.SIGTERM, streams._as_interrupt)
    try:
        with Budget(None) as budget:
            signal.raise_signal(signal.SIGTERM)
            assert budget.interrupted
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_plan_that_is_replaced_keeps_its_permissions_and_its_link(tmp_path):
    target, link = tmp_path / "kept.plan.json", tmp_path / "link.plan.json"
    text = '{{"format_version": "1.0", "model": "{}"}}\n'
    write_text(text.format("old"), target)
    target.chmod(0o640)
    link.symlink_to(target)
    assert write_text(text.format("new"), link) is True
    assert target.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert "new" in target.read_text()
    mask = os.umask(0)
    os.umask(mask)
    write_text(text.format("new"), tmp_path / "fresh.plan.json")
    assert (tmp_path / "fresh.plan.json").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("before", [None, 0o444])
def test_what_a_library_writes_has_the_permissions_of_what_it_replaces(tmp_path, before):
    """Though it may put a file of its own there, as safetensors does, which only its owner may read."""
    path, own = tmp_path / "model.safetensors", tmp_path / "own"
    if before is not None:
        path.touch(before)
    with written_beside(path) as beside:
        own.touch(0o600)
        own.write_text("new")
        own.replace(beside)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == (0o666 & ~mask if before is None else before)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.read_text() == "new"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_nothing_is_left_of_a_plan_that_cannot_be_written(tmp_path, monkeypatch, call):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "a.plan.json"
    write_text('{"format_version": "1.0", "model": "old"}\n', target)
    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(
        ShardplanError, match=r"error\[unwritable-output\]: cannot write the plan: no space left on device"
    ):
        write_text('{"format_version": "1.0", "model": "new"}\n', target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.plan.json"]
    assert "old" in target.read_text()


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    """As a device, whose name would be that of a file from then on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_WRONLY)))  # for whoever would read it
    writer.start()
    with pytest.raises(OSError, match="it is not a regular file"):
        write_whole(pipe, b"data")
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    writer.join(20)
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="it is a folder"):
        write_whole(tmp_path, b"data")
    assert sorted(tmp_path.iterdir()) == [pipe]


WRITERS = {
    "export": lambda path, n: write_file(b"%d" % n, path),
    "plan": lambda path, n: write_text(f'{{"format_version": "1.0", "model": "{n}"}}\n', path),
    "graph": lambda path, n: write_other(f"<?xml {n}?>", path, "graph"),
}


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_every_writer_keeps_permissions_and_forces_what_it_wrote_to_the_disk(tmp_path, monkeypatch, kind):
    path, forced = tmp_path / "made", []
    WRITERS[kind](path, 1)
    path.chmod(0o640)
    before = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (forced.append(os.fstat(file).st_ino), before(file))[1])
    WRITERS[kind](path, 2)
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_ino in forced
    assert tmp_path.stat().st_ino in forced
    assert [file.name for file in tmp_path.iterdir()] == ["made"]


def test_a_folder_of_an_export_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    forced = []
    before = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (forced.append(os.fstat(file).st_ino), before(file))[1])
    with folder_in_place(tmp_path / "out", "mark") as folder:
        (folder / "rank-0").mkdir()
        (folder / "rank-0" / "mark").write_text("x")
    assert {(tmp_path / "out" / "rank-0" / "mark").stat().st_ino, tmp_path.stat().st_ino} <= set(forced)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_an_export_that_cannot_be_replaced_is_still_there(tmp_path, monkeypatch, stop):
    """Ctrl-C between the two renames."""
    with folder_in_place(tmp_path / "out", "mark") as folder:
        (folder / "mark").write_text("old")
    rename = Path.replace

    def stopped(path: Path, target: Path) -> Path:
        done = rename(path, target)
        if str(target).endswith(".old"):
            raise stop
        return done

    monkeypatch.setattr(Path, "replace", stopped)
    with (
        pytest.raises((KeyboardInterrupt, ShardplanError)) as raised,
        folder_in_place(tmp_path / "out", "mark") as folder,
    ):
        (folder / "mark").write_text("new")
    said = f"{tmp_path}/out: error[unwritable-output]: cannot write the export: input/output error"
    assert str(raised.value) == ("" if isinstance(stop, KeyboardInterrupt) else said)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "mark").read_text() == "old"


def test_of_several_files_all_or_none_are_written(tmp_path, monkeypatch):
    """Through links too, to files and folders that are not there yet; whatever stops it."""
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "made" / "target")
    (tmp_path / "folder").mkdir()
    names = [str(tmp_path / name) for name in ("link", "kept", "new/file", "folder")]

    def as_before() -> None:
        assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "kept", "link"]
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "kept").read_text() == "old"

    with pytest.raises(OSError, match="directory") as raised:
        write_all(dict.fromkeys(names, b"new"))
    assert raised.value.filename == names[-1]
    as_before()
    force = os.fsync
    calls = iter(range(100))

    def stopped(file: int) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        force(file)

    monkeypatch.setattr(os, "fsync", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_all(dict.fromkeys(names[:3], b"new"))
    as_before()
    assert write_all(dict.fromkeys(names[:3], b"new")) == tuple(names[:3])
    assert (tmp_path / "made" / "target").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


def test_a_sweep_that_cannot_be_written_is_refused_before_it_begins(shardplan, mlp):
    asked = ("sweep", "mlp.onnx", "--dim", "batch=32", "-c", "generic", "--mesh", "2")
    run_ = shardplan(*asked, "-o", "/proc/none/sweep.json")
    assert run_.code == 2
    assert run_.err.startswith("/proc/none/sweep.json: error[unwritable-output]: cannot write the sweep: ")
    run_ = shardplan(*asked, "--plot", "/proc/none/sweep.png")
    assert run_.code == 2
    assert run_.err.startswith("/proc/none/sweep.png: error[unwritable-output]: cannot write the picture: ")


WORKERS = """
import sys, time
sys.path.insert(0, {planner!r})
from shardplan.processes import run_all
from {module} import nap
if __name__ == "__main__":
    print("begun", flush=True)
    for _ in run_all(nap, {folder!r}, [0, 1, 2, 3], 2):
        pass
"""
NAP = """
import os, pathlib, time
def nap(folder, item):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(120)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_asked(tmp_path, number):
    (tmp_path / "pids").mkdir()
    (tmp_path / "naps.py").write_text(NAP)
    script = tmp_path / "asks.py"
    filled = {"planner": str(ROOT / "planner"), "module": "naps", "folder": str(tmp_path / "pids")}
    script.write_text(WORKERS.format(**filled))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    workers = _within(60, lambda: len(list((tmp_path / "pids").iterdir())) == 2) and list((tmp_path / "pids").iterdir())
    process.send_signal(number)
    process.wait(30)
    assert _within(30, lambda: not any(Path("/proc", worker.name, "exe").exists() for worker in workers))


def test_run_all_gives_every_result_once():
    assert list(processes.run_all(pow, 2, [1, 2, 3], 1)) == [2, 4, 8]
    assert sorted(processes.run_all(pow, 2, [1, 2, 3], 2)) == [2, 4, 8]


def test_a_worker_that_is_lost_is_told():
    with pytest.raises(ShardplanError, match=r"error\[lost-worker\]: .* memory ran out"):
        list(processes.run_all(operator.call, os._exit, [9, 9], 2))


@pytest.mark.skipif(which("taskset") is None, reason="a command of Linux")
def test_processors_are_those_that_a_process_may_use():
    told = "from shardplan.processes import processors; print(processors())"
    run = subprocess.run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", told],
        env={**os.environ, "PYTHONPATH": str(ROOT / "planner")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "1\n"


def _within(seconds, holds):
    ends = time.monotonic() + seconds
    while not holds() and time.monotonic() < ends:
        time.sleep(0.05)
    return holds()


COMPARED = ("compare", "transformer:hidden=256,layers=2,heads=8,vocab=1024,batch=8,seq=128", "--mesh", "2x4")
SLOW = """
import sys, time
sys.path.insert(0, {planner!r})
from pathlib import Path
import shardplan.{module} as module
function = module.{function}

def slow(*given, **named):
    done = Path("done")
    count = int(done.read_text()) if done.exists() else 0
    if count == {after}:
        Path("begun").touch()
        time.sleep(60)
    found = function(*given, **named)
    done.write_text(str(count + 1))
    return found

module.{function} = slow
import shardplan.study.engines
shardplan.study.engines.processors = lambda: 1
shardplan.study.engines.plan_point = getattr(module, "plan_point", None)
from shardplan.cli import main
sys.exit(main())
"""


def interrupted(arguments, number, **slow):
    """A command whose function `slow` sleeps after so many calls, where it gets a signal."""
    Path("slow.py").write_text(SLOW.format(planner=str(ROOT / "planner"), **slow))
    with subprocess.Popen(
        [sys.executable, "slow.py", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert _within(100, Path("begun").exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, ()), (signal.SIGINT, ("--json",))])
def test_an_interrupted_comparison_has_the_plans_that_are_known(folder, number, form):
    slow = {"module": "study.compare", "function": "_contend", "after": 2}
    code, out, err = interrupted((*COMPARED, *form), number, **slow)
    assert code == 130
    assert err.lstrip("\n") == "warning[interrupted]: interrupted: 2 of 5 plans were computed\n"
    if form:
        plans = json.loads(out)["result"]["plans"]
        assert [one.get("computed", True) for one in plans] == [True, True, False, False, False]
        assert all(one["step_us"] for one in plans[:2])
    else:
        rows = out.splitlines()[-6:-1]
        assert [row.endswith("not computed: interrupted") for row in rows] == [False, False, True, True, True]


def test_a_comparison_that_is_interrupted_at_once_has_nothing(folder):
    code, out, err = interrupted(COMPARED, signal.SIGTERM, module="study.compare", function="_contend", after=0)
    assert code == 130
    assert "not computed" not in out
    assert err.lstrip("\n") == "error[interrupted]: interrupted before there was a result\n"


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_sweep_has_the_points_that_are_planned(mlp, kept):
    asked = ("sweep", "mlp.onnx", "--dim", "batch=32", "-c", "generic", "--mesh", "1x2,2x2,2x4")
    output = ("-o", "s.json") if kept else ()
    slow = {"module": "study.sweep", "function": "plan_point", "after": 2}
    code, out, err = interrupted((*asked, *output), signal.SIGTERM, **slow)
    assert code == 130
    assert "2 plans are Pareto-optimal" in out or "of 2 plans" in out
    said = "s.json holds 2 of 3 points; the same command goes on" if kept else "2 of 3 points were planned"
    assert err.lstrip("\n") == f"warning[interrupted]: interrupted: {said}\n"


@pytest.mark.parametrize(
    ("module", "function", "option"),
    [("study.sensitivity", "robustness", ("--robust", "2")), ("advice.advise", "advise", ("--advice",))],
)
def test_a_plan_that_is_written_is_said_to_be_when_what_follows_is_interrupted(mlp, module, function, option):
    slow = {"module": module, "function": function, "after": 0}
    code, out, err = interrupted((*SOLVE, *option, "--json"), signal.SIGTERM, **slow)
    assert code == 130
    said = "mlp.plan.json is written; what else was asked about it is not computed"
    assert f"warning[interrupted]: interrupted: {said}\n" in err
    assert json.loads(out)["result"]["plan"] == "mlp.plan.json"
