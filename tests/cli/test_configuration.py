"""Settings in `shardplan.toml` and `pyproject.toml`: which win, where they come from, and what is wrong with them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardplan import text_files
from shardplan.cli import cli

SOLVE = ("solve", "mlp.onnx")


def source(run, name: str) -> str:
    """What `-v` says of an option: its value and where that comes from."""
    return re.search(rf"^{name}\s+(.*)$", run.err, re.MULTILINE)[1]


@pytest.mark.parametrize(
    ("file", "head"), [("pyproject.toml", "[tool.shardplan]\n"), ("shardplan.toml", "")], ids=["pyproject", "own"]
)
def test_settings_are_defaults(file, head, shardplan, mlp):
    Path(file).write_text(f'{head}mesh = "2x2"\ncluster = "a100-dgx"\ndim = ["batch=64"]\n')
    run = shardplan(*SOLVE, "-v")
    assert run.code == 0
    assert source(run, "cluster") == "a100-dgx  (configuration)"
    assert source(run, "dim") == "batch=64  (configuration)"
    assert source(run, "seed") == "0  (default)"
    assert Path("plans/mlp.2x2.plan.json").exists()


def test_the_environment_and_the_command_line_win(shardplan, mlp, monkeypatch):
    Path("shardplan.toml").write_text('mesh = "2x2"\nmode = "inference"\ndim = ["batch=64"]\n')
    monkeypatch.setenv("SHARDPLAN_MODE", "training")
    run = shardplan(*SOLVE, "--mesh", "2x4", "-v")
    assert source(run, "mode") == "training  (environment)"
    assert source(run, "mesh") == "2x4  (command line)"


def test_a_table_holds_for_its_verb_alone(shardplan, mlp):
    Path("shardplan.toml").write_text(
        'dim = ["batch=64"]\nmesh = "2x2"\n[solve]\nmesh = "4x4"\nrequire-optimal = true\n'
    )
    run = shardplan(*SOLVE, "-v")
    assert (source(run, "mesh"), source(run, "require-optimal")) == ("4x4  (configuration)", "True  (configuration)")
    assert source(shardplan("compare", "mlp.onnx", "-v"), "mesh") == "2x2  (configuration)"


def test_own_file_comes_before_pyproject(shardplan, mlp):
    Path("pyproject.toml").write_text('[tool.shardplan]\nmesh = "4x4"\n')
    Path("shardplan.toml").write_text('mesh = "2x2"\ndim = ["batch=64"]\n')
    assert source(shardplan(*SOLVE, "-v"), "mesh") == "2x2  (configuration)"


def test_faults(shardplan, mlp):
    Path("shardplan.toml").write_text('mash = "2x2"\n[solve]\nmemorylimit = 1\n')
    run = shardplan(*SOLVE)
    assert (run.code, run.out) == (2, "")
    assert run.err == (
        "shardplan.toml: error[unknown-key]: no option is called 'mash'\nhint: did you mean 'mesh'?\n"
        "shardplan.toml: error[unknown-key]: no option is called 'memorylimit'\nhint: did you mean 'memory-limit'?\n"
    )
    Path("shardplan.toml").write_text("mesh = 2x2\n")
    assert shardplan(*SOLVE).err.startswith("shardplan.toml: error[bad-configuration]: not valid TOML: ")


def test_a_wrong_value_is_looked_for_where_it_stands(shardplan, mlp):
    Path("shardplan.toml").write_text('[solve]\ntime-limit = "long"\n')
    run = shardplan(*SOLVE)
    assert run.code == 2
    assert run.err.startswith(
        "error[bad-argument]: --time-limit is 'long'; a number of seconds above 0 is expected\n"
        "hint: it is set in shardplan.toml, or [tool.shardplan] of pyproject.toml\n"
    )
    assert "shardplan.toml" not in shardplan(*SOLVE, "--time-limit", "long").err


def test_help_is_there_whatever_the_settings_are(shardplan, folder):
    Path("pyproject.toml").write_text("[tool.shardplan\n")
    assert shardplan("--version").code == shardplan("solve", "--help").code == 0
    assert shardplan("profiles").code == 2


def test_other_projects_are_none_of_ours(shardplan, mlp):
    Path("pyproject.toml").write_text("[tool.other]\nmesh = 1\n")
    assert shardplan(*SOLVE, "--dim", "batch=64", "--mesh", "2x2").code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_what_the_documents_say(shell, folder):
    root = Path(__file__).resolve().parents[2]
    code = "import sys; from shardplan.cli import main; sys.argv[0] = 'shardplan'; raise SystemExit(main())"
    env = {**os.environ, "PYTHONPATH": str(root / "planner"), "_SHARDPLAN_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "_SHARDPLAN_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("shardplan solve m.onnx --cluster h1", ["plain,h100-dgx", "file,h1"]),
        ("shardplan sweep m.onnx -c a100-dgx,h2", ["plain,a100-dgx,h200-dgx"]),
        ("shardplan profiles show v", ["plain,v100-p3-16xl", "file,v"]),
        ("shardplan export p.json --to tp", ["plain,tp-plan", "plain,tp-plan-portable"]),
        ("shardplan expl", ["plain,explain"]),
        ("shardplan explain p.json --ins", ["plain,--instead"]),
    ],
)
def test_what_a_shell_offers(words, offered, folder):
    root = Path(__file__).resolve().parents[2]
    code = "import sys; from shardplan.cli import main; sys.argv[0] = 'shardplan'; raise SystemExit(main())"
    asked = {"_SHARDPLAN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    env = {**os.environ, "PYTHONPATH": str(root / "planner"), **asked}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (offered, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [("x = " + "[" * 5000, "it is nested too deeply"), ('cluster = "a\\u0000"', "a value holds a zero byte")],
)
def test_settings_that_nobody_wrote(text, why, shardplan, mlp):
    Path("shardplan.toml").write_text(text)
    run = shardplan(*SOLVE)
    assert (run.code, run.err) == (2, f"shardplan.toml: error[bad-configuration]: {why}\n")


def test_what_may_be_repeated_may_be_given_once(shardplan, mlp):
    Path("shardplan.toml").write_text('cluster = "a100-dgx"\ndim = "batch=64"\n')
    assert source(shardplan("sweep", "mlp.onnx", "-v"), "cluster") == "a100-dgx  (configuration)"
    assert source(shardplan(*SOLVE, "-v"), "dim") == "batch=64  (configuration)"


def test_a_file_of_settings_without_an_end(shardplan, mlp, monkeypatch):
    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 20)
    with Path("shardplan.toml").open("wb") as file:
        file.truncate(1 << 34)
    run = shardplan(*SOLVE)
    said = "cannot read it: it is larger than 1 MiB, which no document of its kind is"
    assert (run.code, run.err) == (2, f"shardplan.toml: error[bad-configuration]: {said}\n")


def test_the_mark_of_editors_is_no_part_of_settings(shardplan, mlp):
    Path("shardplan.toml").write_text("\ufeffmesh = '1x2'\r\n", encoding="utf-8")
    assert "machine=1 (" in shardplan("solve", "mlp.onnx", "--dim", "batch=32").out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("require-optimal = 0", "require-optimal is 0; true or false is expected"),
        ("presolve = 0", "presolve is 0; true or false is expected"),
        ("uneven = 1979-05-27", "uneven is 1979-05-27; true or false is expected"),
        ("shard-optimizer = {a = 1}", 'shard-optimizer is {"a": 1}; true or false is expected'),
        ("require-optimal = []", "require-optimal is []; true or false is expected"),
        ("require-optimal = 0.5", "require-optimal is 0.5; true or false is expected"),
        ("robust = [3]", "robust is [3]; a whole number is expected"),
        ("robust = 1.5", "robust is 1.5; a whole number is expected"),
        ("robust = true", "robust is true; a whole number is expected"),
        ('output = ["a.json"]', 'output is ["a.json"]; text is expected'),
        ("constraints = 4", "constraints is 4; text is expected"),
        ("pin = [[1]]", "pin is [1]; text is expected"),
    ],
)
def test_a_value_of_a_type_that_an_option_does_not_take(line, said, shardplan, mlp):
    Path("shardplan.toml").write_text(f"[solve]\n{line}\n")
    run = shardplan(*SOLVE)
    assert (run.code, run.out, run.err) == (2, "", f"shardplan.toml: error[bad-argument]: {said}\n")


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_no_type_of_value_is_a_defect_for_any_option(verb, shardplan, mlp):
    names = {flag[2:] for one in cli.commands[verb].params for flag in one.opts if flag.startswith("--")} - {"help"}
    for name in sorted(names):
        for value in ("[1]", "{a = 1}", "1979-05-27", "[[1]]"):
            Path("shardplan.toml").write_text(f"[{verb}]\n{name} = {value}\n")
            run = shardplan(verb, "absent.onnx")
            assert run.code == 2, (name, value, run.err)


def test_settings_as_they_were_taken_before(shardplan, mlp):
    Path("shardplan.toml").write_text('dim = "batch=64"\nstrict = "yes"\nmicrobatches = 2\n[solve]\nrobust = "0"\n')
    assert source(shardplan(*SOLVE, "-v"), "strict") == "True  (configuration)"
    assert source(shardplan("sweep", "mlp.onnx", "--mesh", "2", "-v"), "microbatches") == "2  (configuration)"


def test_where_a_wrong_value_comes_from(shardplan, mlp, monkeypatch):
    Path("shardplan.toml").write_text('mesh = ""\n')
    run = shardplan(*SOLVE)
    assert run.code == 2
    assert run.err == (
        "error[usage]: Invalid value for '-m' / '--mesh': the text is empty\n"
        "hint: it is set in shardplan.toml, or [tool.shardplan] of pyproject.toml\n"
    )
    Path("shardplan.toml").unlink()
    monkeypatch.setenv("SHARDPLAN_MICROBATCHES", "x")
    assert shardplan(*SOLVE, "--dim", "batch=64").err == (
        "error[bad-argument]: --microbatches is 'x'; a whole number of at least 1 is expected\n"
        "hint: it is set in the environment, as SHARDPLAN_MICROBATCHES\n"
    )
    monkeypatch.setenv("SHARDPLAN_ROBUST", "nan")
    assert shardplan(*SOLVE).err == (
        "error[usage]: Invalid value for '--robust': 'nan' is not a valid whole number\n"
        "hint: it is set in the environment, as SHARDPLAN_ROBUST\n"
    )
