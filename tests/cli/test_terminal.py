"""What a person sees on a terminal of 110 columns, on real models: every kind of answer, whole.

`REMAKE_GOLDEN=1 pytest tests/cli/test_terminal.py` writes the expected texts anew; read what changed before you commit.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from rich.console import Console

import shardplan.render.console as console_module
from shardplan.cli import main

GOLDEN = Path(__file__).parent / "golden" / "terminal"
MODELS = Path(__file__).parents[1] / "models"
WIDTH = 110
FIRST = ("solve", "llama3_8b.onnx", "--mesh", "1x8")
SLOW_LINKS = "schema: 1\nextends: builtin:h100-dgx\nname: h100-dgx\nlevels: {up: {link_gbps: 50}}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The models, and plans of them, in one working directory for all tests."""
    folder = tmp_path_factory.mktemp("terminal")
    for name in ("llama3_8b", "gpt2_small", "lstm_lm"):
        (folder / f"{name}.onnx").write_bytes((MODELS / f"{name}.onnx").read_bytes())
    (folder / "slow.yaml").write_text(SLOW_LINKS)
    return folder


@pytest.fixture(scope="module")
def first_use(folder: Path) -> str:
    """What solving a model for the first time shows; its plan is in `plans/`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sit_at_a_terminal(patch, folder)
        code = main(FIRST)
    return shown(FIRST, out.getvalue(), err.getvalue(), code)


@pytest.fixture(scope="module")
def solved(folder: Path, first_use: str) -> Path:
    """`plans/` with a plan of each model."""
    with contextlib.chdir(folder):
        assert main(["solve", "gpt2_small.onnx", "--mesh", "1x4", "-q", "--no-advice"]) == 0
    return folder / "plans"


@pytest.fixture
def terminal(folder: Path, monkeypatch, capfd) -> Callable[..., str]:
    """Run a command as on a terminal without colours; its prompt, standard output and error, and exit code."""
    sit_at_a_terminal(monkeypatch, folder)

    def run(*arguments: str) -> str:
        capfd.readouterr()
        code = main(arguments)
        return shown(arguments, *capfd.readouterr(), code)

    return run


def sit_at_a_terminal(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.chdir(folder)
    for name in [*os.environ]:
        if name.startswith("SHARDPLAN_") or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            patch.delenv(name)

    def wide(*_: object, **__: object) -> Console:
        return Console(file=sys.stdout, width=WIDTH, highlight=False, markup=False, emoji=False, no_color=True)

    patch.setattr(console_module, "make_console", wide)


def shown(arguments: Sequence[str], out: str, err: str, code: int) -> str:
    command = " ".join(f"'{word}'" if set(word) & set(" *[]") else word for word in arguments)
    lines = [f"$ shardplan {command}", out.rstrip("\n"), err.rstrip("\n")]
    lines += [f"exit {code}"] if code else []
    return "\n".join(line for line in lines if line) + "\n"


def expect(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("REMAKE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_first_use(first_use):
    expect("solve", first_use)


def test_nothing_fits(terminal):
    expect("infeasible", terminal("solve", "lstm_lm.onnx", "--mesh", "1x8", "--memory-limit", "1500 MiB"))


def test_explain(terminal, solved):
    """One tensor of an 8B model in less than 5 s: every alternative is another solve."""
    started = time.process_time()
    text = terminal(
        "explain", "plans/llama3_8b.1x8.plan.json", "--model", "llama3_8b.onnx", "model.layers.*.mlp.down_proj.weight"
    )
    assert time.process_time() - started < 5
    expect("explain", text)


def test_explain_everything(terminal, solved):
    expect("explain_everything", terminal("explain", "plans/llama3_8b.1x8.plan.json"))


def test_diff(terminal, solved):
    """A profile whose links became faster."""
    terminal("solve", "gpt2_small.onnx", "--mesh", "1x4", "-c", "slow.yaml", "-o", "old.json", "--no-advice")
    started = time.process_time()
    text = terminal("diff", "old.json", "plans/gpt2_small.1x4.plan.json")
    assert time.process_time() - started < 1
    expect("diff", text)
    expect("diff_markdown", terminal("diff", "old.json", "plans/gpt2_small.1x4.plan.json", "--format", "markdown"))
    expect("diff_github", terminal("diff", "old.json", "plans/gpt2_small.1x4.plan.json", "--format", "github"))


def test_check(terminal, solved, folder: Path):
    """A layer was added to one of two models since their plans were made."""
    plans = ("plans/gpt2_small.1x4.plan.json", "plans/llama3_8b.1x8.plan.json")
    model = onnx.load(MODELS / "gpt2_small.onnx", load_external_data=False)
    for node in model.graph.node:
        if "h.11." in "".join(entry.value for entry in node.metadata_props):
            node.name = f"new_{node.name}"
    (folder / "changed").mkdir(exist_ok=True)
    (folder / "changed" / "gpt2_small.onnx").write_bytes(model.SerializeToString())
    models = ("--model", "changed/gpt2_small.onnx", "--model", "llama3_8b.onnx")
    expect("check", terminal("check", *plans, *models))


def test_compare(terminal):
    expect("compare", terminal("compare", "gpt2_small.onnx", "--mesh", "1x4"))


def test_evaluate(terminal, solved):
    expect(
        "evaluate",
        terminal("evaluate", "gpt2_small.onnx", "--fix", "plans/gpt2_small.1x4.plan.json", "--cost-model", "alpa"),
    )


def test_show(terminal, solved):
    expect("show", terminal("show", "plans/llama3_8b.1x8.plan.json"))


def test_inspect(terminal):
    expect("inspect", terminal("inspect", "gpt2_small.onnx"))


def test_tables_fit_the_terminal():
    """What rich lays out is folded to the width; messages and lines for machines are as long as they are."""
    for name in ("solve", "compare", "explain", "explain_everything", "diff", "evaluate", "show", "inspect"):
        lines = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines[1:] if len(line) > WIDTH], name
