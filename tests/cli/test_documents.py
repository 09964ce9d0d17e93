"""Every `--json` document satisfies the published schema, which names every key."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from example_plans import example_plan
from jsonschema import Draft202012Validator

from shardplan.plan.file import write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
PROFILE = "schema: 1\nextends: builtin:h100-dgx\nname: mine\n"
LOG = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n" + "".join(
    f"{2**power} 1 float sum -1 {10 + 2**power / 2e5} 1 1 0 {10 + 2**power / 2e5} 1 1 0\n" for power in range(10, 28)
)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2"), 0),
        (("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--memory-limit", "1 KiB"), 3),
        (("solve", "mlp.onnx", "--mesh", "2x"), 2),
        (("solve", "--mish"), 2),
        (("show", "two.plan.json"), 0),
        (("show", "mine.yaml"), 2),
        (("inspect", "mlp.onnx", "--dim", "batch=64"), 0),
        (("profiles",), 0),
        (("profiles", "list"), 0),
        (("profiles", "show", "h100-dgx"), 0),
        (("profiles", "check", "mine.yaml"), 0),
        (("profiles", "check", "two.plan.json"), 2),
        (("compare",), 2),
        (("timeline", "two.plan.json"), 0),
        (("timeline", "mine.yaml"), 2),
        (("calibrate", "step", "two.plan.json", "--measured-ms", "50"), 0),
        (("calibrate", "nccl", "all_reduce_perf.log", "--group", "1x2", "-o", "fitted.yaml"), 0),
        (("calibrate", "gemm", "mine.yaml", "-o", "fitted.yaml"), 2),
        (("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2", "-c", "generic", "--robust", "1"), 0),
    ],
)
def test_document(arguments, code, shardplan, mlp: Path):
    write_plan(example_plan(), "two.plan.json")
    Path("mine.yaml").write_text(PROFILE)
    Path("all_reduce_perf.log").write_text(LOG)
    run = shardplan(*arguments, "--json")
    document = json.loads(run.out)
    assert run.code == code
    VALIDATOR.validate(document)
    assert (document["result"] is not None) == (code in (0, 3))
    assert any(d["severity"] == "error" for d in document["diagnostics"]) == (code != 0)


def test_the_schema_is_one_and_can_refuse():
    Draft202012Validator.check_schema(SCHEMA)
    good = {"format_version": "1.0", "command": "profiles", "result": {"profiles": []}, "diagnostics": []}
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid({**good, "result": {"profile": {}}})
    assert not VALIDATOR.is_valid({**good, "result": []})
