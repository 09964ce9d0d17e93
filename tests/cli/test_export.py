"""`shardplan export`: the table of formats, where text and files go, and what is refused."""

import json
import re
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from control_models import CONTROL_MODELS
from example_plans import example_plan
from jsonschema import Draft202012Validator
from small_models import proto_of

from shardplan.errors import error, warning
from shardplan.export import targets
from shardplan.export.files import write_file
from shardplan.export.targets import TARGETS, Target
from shardplan.export.types import Exported
from shardplan.plan.file import write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
HERE = "test_export_formats"


def names(plan):
    return Exported("".join(f"{operator.name}\n" for operator in plan.operators[:2]))


def half(plan):
    return Exported("half\n", (warning("not-said", "partial sums cannot be expressed"),))


def nothing(plan):
    return Exported("nothing\n", (warning("not-said", "a"), error("cannot-say", "segments cannot be expressed")))


def counted(plan, source):
    return Exported(f"{len(source.model.operators)} {source.path}\n")


def blob(plan, source, output):
    write_file(b"blob", output)
    return Exported(files=(output.name,))


@pytest.fixture
def formats(monkeypatch):
    import sys

    sys.modules[HERE] = sys.modules[__name__]
    made = tuple(
        Target(name, name, f"{HERE}:{name}", needs_model=name in ("counted", "blob"), writes=writes)
        for name, writes in
        [("names", "text"), ("half", "text"), ("nothing", "text"), ("counted", "text"), ("blob", "file")]
    )  # fmt: skip
    monkeypatch.setattr(targets, "TARGETS", made)
    yield
    del sys.modules[HERE]


@pytest.fixture
def two(folder: Path) -> str:
    write_plan(example_plan(model={**example_plan().model, "dims": {"batch": 32}}), "two.plan.json")
    return "two.plan.json"


def test_text_goes_to_standard_output(shardplan, formats, two):
    run = shardplan("export", two, "--to", "names")
    operators = example_plan().operators
    assert (run.code, run.err) == (0, "")
    assert run.out == f"{operators[0].name}\n{operators[1].name}\n"
    assert shardplan("export", two, "--to", "names", "-o", "-").out == run.out


def test_text_goes_to_a_file(shardplan, formats, two):
    text = shardplan("export", two, "--to", "names").out
    run = shardplan("export", two, "--to", "names", "-o", "made/names.txt")
    assert (run.code, run.out, run.err) == (0, "wrote made/names.txt\n", "")
    assert Path("made/names.txt").read_text() == text
    assert [path.name for path in Path("made").iterdir()] == ["names.txt"]


def test_what_is_left_out_is_said(shardplan, formats, two):
    run = shardplan("export", two, "--to", "half")
    assert (run.code, run.out) == (0, "half\n")
    assert run.err == "warning[not-said]: partial sums cannot be expressed\n"


def test_nothing_is_written_when_the_format_cannot_say_the_plan(shardplan, formats, two):
    run = shardplan("export", two, "--to", "nothing", "-o", "made.txt")
    assert (run.code, run.out) == (1, "")
    assert run.err == "warning[not-said]: a\nerror[cannot-say]: segments cannot be expressed\n"
    assert not Path("made.txt").exists()


def test_the_model_is_handed_on_with_its_file(shardplan, formats, two, mlp):
    run = shardplan("export", two, "mlp.onnx", "--to", "counted")
    assert (run.code, run.out, run.err) == (0, "3 mlp.onnx\n", "")


def test_the_model_is_by_default_the_one_that_the_plan_records(shardplan, formats, mlp):
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-q", "-o", "own.plan.json")
    run = shardplan("export", "own.plan.json", "--to", "counted")
    assert (run.code, run.out, run.err) == (0, "3 mlp.onnx\n", "")


def test_a_target_may_write_its_own_file(shardplan, formats, two, mlp):
    run = shardplan("export", two, "mlp.onnx", "--to", "blob", "-o", "made.bin")
    assert (run.code, run.out, run.err) == (0, "wrote made.bin\n", "")
    assert Path("made.bin").read_bytes() == b"blob"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--to", "name"),
            "error[unknown-format]: there is no export format 'name'\nhint: did you mean 'names'?\n",
        ),
        (
            ("--to", "zzz"),
            (
                "error[unknown-format]: there is no export format 'zzz'\n"
                "hint: the formats are blob, counted, half, names, nothing\n"
            ),
        ),
        (
            ("--to", "blob"),
            (
                "two.plan.json: error[no-model]: it does not record the file of its model\n"
                "hint: give it: shardplan export two.plan.json MODEL --to blob\n"
                "error[no-output]: the format 'blob' is a file\n"
                "hint: name it with --output\n"
            ),
        ),
        (
            ("--to", "names", "-o", "two.plan.json"),
            "two.plan.json: error[output-is-input]: the output is a file that is read\nhint: write elsewhere\n",
        ),
        (
            ("--to", "names", "-o", "."),
            ".: error[unwritable-output]: cannot write the export: it is a folder\nhint: name a file\n",
        ),
    ],
)
def test_bad_arguments(arguments, message, shardplan, formats, two):
    run = shardplan("export", two, *arguments)
    assert (run.code, run.out, run.err) == (2, "", message)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--to", "names"), 0),
        (("--to", "half", "-o", "half.txt"), 0),
        (("--to", "nothing"), 1),
        (("--to", "name"), 2),
        ((), 2),
        (("--to", "names", "-o", "-"), 2),
    ],
)
def test_json(arguments, code, shardplan, formats, two):
    run = shardplan("export", two, *arguments, "--json")
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert run.code == code
    assert (document["result"] is not None) == (code == 0)
    if arguments == ("--to", "names"):
        text = shardplan("export", two, "--to", "names").out
        assert document["result"] == {"format": "names", "output": None, "files": [], "text": text}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_line_of_the_table_leads_to_a_function(target):
    assert callable(target.load())
    assert target.summary
    assert not target.summary.endswith(".")
    assert target.needs_model or target.writes == "text"


def test_the_formats_are_in_the_help(shardplan):
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    out = shardplan("export", "--help").out
    said = " ".join(out.split())
    assert all(f"{target.name} {target.summary}" in said for target in TARGETS)
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_plan_becomes_programs_and_annotations(shardplan, mlp):
    assert shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-o", "mlp.plan.json").code == 0
    run = shardplan("export", "mlp.plan.json", "mlp.onnx", "--to", "onnx-spmd", "-o", "ranks")
    assert (run.code, run.out, run.err) == (0, "wrote ranks (13 files)\n", "")
    program = onnx.load("ranks/rank-2/program.onnx")
    onnx.checker.check_model(program, full_check=True)
    assert [entry.name for entry in program.graph.input] == ["x", "up.weight", "down.weight"]
    run = shardplan("export", "mlp.plan.json", "mlp.onnx", "--to", "onnx", "-o", "annotated.onnx")
    assert (run.code, run.out) == (0, "wrote annotated.onnx\n")
    annotated = onnx.load("annotated.onnx", load_external_data=False)
    assert [entry.name for entry in annotated.configuration] == ["mesh_machine2_gpu2"]
    assert shardplan("export", "mlp.plan.json", "mlp.onnx", "--to", "onnx", "-o", "mlp.onnx").code == 2
    run = shardplan("export", "mlp.plan.json", "transformer:llama3-8b", "--to", "onnx", "-o", "annotated.onnx")
    assert run.code == 2


def test_an_operator_without_a_form_is_a_refusal(shardplan, folder):
    """As whatever else a format cannot express: exit code 1, and nothing is written."""
    Path("loop.onnx").write_bytes(proto_of(CONTROL_MODELS["counted"]).SerializeToString())
    assert shardplan("solve", "loop.onnx", "--mesh", "1x2", "-o", "loop.plan.json").code == 0
    run = shardplan("export", "loop.plan.json", "loop.onnx", "--to", "onnx-spmd", "-o", "ranks")
    assert (run.code, run.out) == (1, "")
    said = r"error\[cannot-export\]: loop '\S+' cannot be exported: control flow is not written\n"
    assert re.fullmatch(said, run.err)
    assert not Path("ranks").exists()


@pytest.mark.parametrize("target", [target.name for target in TARGETS if target.writes == "text"])
def test_a_file_is_replaced_by_an_export_of_the_same_format_alone(target, shardplan, mlp):
    """What else is there is left as it is, an export to another format too."""
    Path("precious.txt").write_text("hello\n")
    model = "transformer:llama3-8b,layers=1,hidden=256,heads=4,kv_heads=4,ffn=512,vocab=512,batch=8,seq=64"
    said = ("--for", target) if target != "shard-info" else ()
    run = shardplan("solve", model, *said, "--mesh", "1x2", "--effort", "quick", "-q", "-o", "said.plan.json")
    assert run.code == 0, run.err
    text = shardplan("export", "said.plan.json", "--to", target).out
    for _ in range(2):
        assert shardplan("export", "said.plan.json", "--to", target, "-o", "made").code == 0
        assert Path("made").read_text() == text
        Path("made").write_text(f"{text}# of another plan\n")
    other = "megatron" if target != "megatron" else "maxtext"
    for output, name in (("precious.txt", target), ("made", other)):
        kept = Path(output).read_text()
        run = shardplan("export", "said.plan.json", "--to", name, "-o", output)
        assert (run.code, run.out) == (2, "")
        assert run.err == (
            f"{output}: error[output-not-an-export]: this file exists and is no export to {name}; it is left as it is\n"
            "hint: write elsewhere with --output, or remove the file\n"
        )
        assert Path(output).read_text() == kept


def test_no_export_replaces_a_model(shardplan, mlp):
    """Neither the one that the plan records, by any way, nor another that has no annotations."""
    assert shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "-q", "-o", "mlp.plan.json").code == 0
    before = Path("mlp.onnx").read_bytes()
    Path("other.onnx").write_bytes(before)
    Path("notes.onnx").write_text("hello\n")
    taken = "mlp.onnx: error[output-is-input]: the output is a file that is read\nhint: write elsewhere\n"
    for arguments in (("--to", "shard-info"), ("other.onnx", "--to", "onnx")):
        run = shardplan("export", "mlp.plan.json", *arguments, "-o", "mlp.onnx")
        assert (run.code, run.out, run.err) == (2, "", taken)
    for output in ("other.onnx", "notes.onnx"):
        run = shardplan("export", "mlp.plan.json", "--to", "onnx", "-o", output)
        assert (run.code, run.out) == (2, "")
        assert f"{output}: error[output-not-an-export]: this file exists and is no export to onnx; it is" in run.err
    assert Path("mlp.onnx").read_bytes() == Path("other.onnx").read_bytes() == before
    for _ in range(2):
        assert shardplan("export", "mlp.plan.json", "--to", "onnx", "-o", "annotated.onnx").code == 0
