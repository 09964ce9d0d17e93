"""Every `--json` document of every verb satisfies the published schema, which names every key."""

import json
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from command_line import write_mlp
from example_plans import example_plan
from jsonschema import Draft202012Validator
from safetensors_files import write_safetensors

from shardplan.cli import cli, main
from shardplan.plan.file import write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
PROFILE = "schema: 1\nextends: builtin:h100-dgx\nname: mine\n"
TRACE = json.dumps(
    [
        {"ph": "X", "cat": category, "name": "aten::mm", "dur": 2000, "args": {"External id": number, **sizes}}
        for number in range(3)
        for category, sizes in (
            ("cpu_op", {"Input Dims": [[4096, 4096]] * 2, "Input type": ["c10::BFloat16"] * 2}),
            ("kernel", {}),
        )
    ]
)
LOG = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n" + "".join(
    f"{2**power} 1 float sum -1 {10 + 2**power / 2e5} 1 1 0 {10 + 2**power / 2e5} 1 1 0\n" for power in range(10, 28)
)
MODEL = ("mlp.onnx", "--dim", "batch=64")
HERE = (*MODEL, "--mesh", "2x2")
CASES = [
    (("solve", *HERE, "-o", "x.json"), 0),
    (("solve", *HERE, "--memory-limit", "1 KiB"), 3),
    (("solve", *MODEL, "--mesh", "2x"), 2),
    (("solve", "--mish"), 2),
    (("solve", *MODEL, "--mesh", "2", "-c", "generic", "--robust", "1", "-o", "x.json"), 0),
    (("solve", *MODEL, "--mesh", "2", "--cost-model", "slapo", "--mode", "inference", "-o", "x.json"), 0),
    (("show", "one.json"), 0),
    (("show", "mine.yaml"), 2),
    (("show", "one.json", "--format", "dot"), 2),
    (("explain", "one.json"), 0),
    (("explain", "one.json", "up.weight", "--model", "mlp.onnx"), 0),
    (("explain", "one.json", "up", "--model", "mlp.onnx"), 0),
    (("explain", "one.json", "upp", "--model", "mlp.onnx"), 2),
    (("diff", "one.json", "two.json"), 1),
    (("diff", "one.json", "one.json"), 0),
    (("diff", "one.json", "mine.yaml"), 2),
    (("check", "one.json", "one.json"), 0),
    (("check", "one.json", "two.json"), 1),
    (("check", "one.json", "--model", "mlp.onnx", "--resolve"), 0),
    (("check", "one.json", "--model", "changed.onnx"), 1),
    (("check", "mine.yaml"), 2),
    (("compare", *HERE), 0),
    (("compare",), 2),
    (("price", *MODEL, "--dp", "2", "--no-best"), 0),
    (("price", *MODEL, "--dp", "2", "--no-best", "--robust", "2"), 0),
    (("price", *MODEL, "--memory-limit", "1 KiB", "--no-best"), 1),
    (("price", *MODEL, "--tp", "0"), 2),
    (("launch-env", "one.json", "--for", "srun"), 0),
    (("launch-env", "one.json", "--for", "mpirun"), 2),
    (("launch", "one.json", "absent.py", "--one-machine"), 1),
    (("launch", "one.json"), 2),
    (("evaluate", "mlp.onnx", "--fix", "one.json"), 0),
    (("evaluate", "mlp.onnx", "--fix", "one.json", "--memory-limit", "1 KiB"), 3),
    (("evaluate", *HERE, "--pin", "up={gpu: n}", "--cost-model", "alpa"), 0),
    (("evaluate", "mlp.onnx"), 2),
    (("verify", "mlp.onnx", "one.json"), 0),
    (("verify", "changed.onnx", "one.json"), 2),
    (("export", "one.json", "--to", "jax"), 0),
    (("export", "one.json", "--to", "nothing"), 2),
    (("split", "m.safetensors", "one.json", "-o", "ranks"), 0),
    (("sweep", "mlp.onnx", "--dim", "batch=64", "-c", "generic", "--mesh", "2"), 0),
    (("split", "absent.safetensors", "one.json", "-o", "ranks"), 2),
    (("sweep", *MODEL, "--mesh", "2x2,1x4", "-c", "generic"), 0),
    (("sweep", *MODEL, "--mesh", "2x2", "--memory-limit", "1 KiB"), 3),
    (("sweep", "absent.onnx"), 2),
    (("inspect", *MODEL), 0),
    (("inspect", "absent.onnx"), 2),
    (("init", "--machines", "2"), 0),
    (("init", "--like", "nothing"), 2),
    (("profiles",), 0),
    (("profiles", "list"), 0),
    (("profiles", "show", "h100-dgx"), 0),
    (("profiles", "check", "mine.yaml"), 0),
    (("profiles", "check", "two.json"), 2),
    (("profiles", "detect", "--from", "gpus.csv", "-o", "found.yaml"), 0),
    (("profiles", "detect", "--from", "mine.yaml"), 2),
    (("timeline", "two.json"), 0),
    (("timeline", "mine.yaml"), 2),
    (("calibrate", "step", "two.json", "--measured-ms", "50"), 0),
    (("calibrate", "nccl", "all_reduce_perf.log", "--group", "1x2", "-o", "fitted.yaml"), 0),
    (("calibrate", "gemm", "mine.yaml", "-o", "fitted.yaml"), 2),
    (("calibrate", "attention", "mine.yaml", "-o", "fitted.yaml"), 2),
    (("calibrate", "trace", "run.json", "-o", "traced.yaml"), 0),
    (("calibrate", "trace", "mine.yaml", "-o", "traced.yaml"), 2),
    (("solve-problem", "problem.json"), 0),
    (("solve-problem", "mine.yaml"), 2),
    (("evaluate-problem", "problem.json", "choices.json"), 0),
    (("evaluate-problem", "problem.json", "mine.yaml"), 2),
]
ANSWERS = (0, 1, 3)
"""Exit codes of runs that have an answer: `result` is not null then."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the files that the cases name."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _make()
    return folder


def _make() -> None:
    write_mlp(Path("mlp.onnx"))
    assert main(("solve", *HERE, "-o", "one.json")) == 0
    write_plan(example_plan(), "two.json")
    Path("mine.yaml").write_text(PROFILE)
    Path("all_reduce_perf.log").write_text(LOG)
    Path("run.json").write_text(TRACE)
    Path("gpus.csv").write_text("name, memory.total [MiB]\n" + 8 * "NVIDIA H100 80GB HBM3, 81559 MiB\n")
    shutil.copy(Path(__file__).parents[1] / "solve" / "example.json", "problem.json")
    assert main(("solve-problem", "problem.json", "-o", "choices.json")) == 0
    weights = {"up.weight": (64, 256), "down.weight": (256, 64)}
    write_safetensors(Path("m.safetensors"), {n: np.zeros(shape, np.float32) for n, shape in weights.items()})
    changed = onnx.load("mlp.onnx", load_external_data=False)
    changed.graph.node[1].op_type = "Gelu"
    Path("changed.onnx").write_bytes(changed.SerializeToString())


@pytest.fixture
def inputs(made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All the files that the cases name, in the working directory of a machine of one core."""
    monkeypatch.setattr("shardplan.study.engines.processors", lambda: 1)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize(
    ("arguments", "code"), CASES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_document(arguments, code, shardplan, inputs: Path):
    run = shardplan(*arguments, "--json")
    assert run.code == code, run.err
    document = json.loads(run.out)
    VALIDATOR.validate(document)
    assert document["command"] == " ".join(verb_of(arguments))
    assert (document["result"] is not None) == (code in ANSWERS or arguments[0] == "check")
    if code in (2, 3) and document["command"] not in ("evaluate", "sweep"):
        assert any(diagnostic["severity"] == "error" for diagnostic in document["diagnostics"])


def verb_of(arguments: tuple[str, ...]) -> list[str]:
    """`["calibrate", "nccl"]`: the words of a command line that name its verb; `profiles list` is `profiles`."""
    command, words = cli, []
    for word in arguments:
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        command = command.commands[word]
        words.append(word)
    return words[:1] if words[1:] == ["list"] else words


def every_verb(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_verb(command, (*path, name))
        elif name != "list":
            yield " ".join((*path, name))


def test_every_verb_has_a_schema_and_is_tried():
    """A new verb comes with both."""
    described = {branch["if"]["properties"]["command"]["const"] for branch in SCHEMA["allOf"]}
    tried = {" ".join(verb_of(arguments)) for arguments, code in CASES if code in ANSWERS}
    verbs = {*every_verb(), "profiles"}
    assert verbs == described
    assert verbs - {"calibrate gemm", "calibrate attention"} <= tried
    assert {name for name in SCHEMA["$defs"] if name not in ("summary", "diagnostic")} == described


def test_every_verb_says_so_when_nothing_is_given(shardplan, inputs: Path):
    """Except those that need nothing: bad usage is one document too."""
    for verb in sorted({*every_verb()} - {"profiles", "init"}):
        run = shardplan(*verb.split(), "--json")
        document = json.loads(run.out)
        VALIDATOR.validate(document)
        assert (run.code, document["result"]) == (2, None), verb
        assert document["command"].split()[0] == verb.split()[0]


def test_the_schema_is_one_and_can_refuse():
    Draft202012Validator.check_schema(SCHEMA)
    good = {"format_version": "1.0", "command": "profiles", "result": {"profiles": []}, "diagnostics": []}
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid({**good, "result": {"profile": {}}})
    assert not VALIDATOR.is_valid({**good, "result": []})
