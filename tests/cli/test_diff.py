"""`shardplan diff`: text at a fixed width, Markdown, annotations, JSON, and when it fails."""

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from example_plans import changed_summary, example_plan, example_summary
from jsonschema import Draft202012Validator

from shardplan.layout.layout import Layout
from shardplan.layout.placement import R
from shardplan.plan.diff import diff_plans
from shardplan.plan.file import read_plan, write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def plans(folder: Path) -> Path:
    """`old.plan.json`, and `new.plan.json` with the embedding and one weight of every layer replicated."""
    old = example_plan()
    names = {t.checkpoint for t in old.tensors if "down" in t.checkpoint or "embed" in t.checkpoint}
    whole = Layout.of(R, R)
    tensors = tuple(
        replace(t, layout=whole, served=whole, bytes_per_device=4 * t.bytes_per_device) if t.checkpoint in names else t
        for t in old.tensors
    )
    model = {**old.model, "optimizer": "sgd"}
    write_plan(old, "old.plan.json")
    write_plan(example_plan(tensors=tensors, model=model, summary=example_summary(step_ns=43_000_000)), "new.plan.json")
    return folder


def test_text(shardplan, plans, monkeypatch):
    run = shardplan("diff", "old.plan.json", "new.plan.json")
    assert (run.code, run.err) == (1, "")
    assert run.out == (Path(__file__).parent / "golden" / "diff.txt").read_text(encoding="utf-8")


EVIL = "\x1b[31m\n::error file=a,line=1::pwned\r\u202e|`<img src=x onerror=alert(1)>"
TOLD = r"\x1b[31m\n::error file=a,line=1::pwned\r\u202e"


@pytest.mark.parametrize("form", ["markdown", "github"])
def test_names_and_constraints_start_no_line_and_leave_no_cell(form, shardplan, plans):
    plan = read_plan("new.plan.json")
    tensors = (replace(plan.tensors[0], checkpoint=f"a.{EVIL}.weight", name="evil"), *plan.tensors[1:])
    write_plan(replace(plan, tensors=tensors, model={**plan.model, "constraints": [f"x: {EVIL}"]}), "new.plan.json")
    out = shardplan("diff", "old.plan.json", "new.plan.json", "--format", form).out
    assert not [line for line in out.splitlines() if line.startswith("::error")]
    assert {one for one in out if not one.isprintable()} == {"\n"}
    if form == "github":
        assert f"constraint added: x: {TOLD}|`<img src=x onerror=alert(1)>" in out
        return
    prose = TOLD.replace("\\", "\\\\").replace("[", "\\[")
    assert f"constraint added: x: {prose}\\|\\`&lt;img src=x onerror=alert(1)\\>" in out
    assert f"| `a.{TOLD}\\x7c'<img src=x onerror=alert(1)>.weight` |" in out


def test_markdown(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "new.plan.json", "--format", "markdown")
    assert run.code == 1
    assert run.out == (Path(__file__).parent / "golden" / "diff.md").read_text(encoding="utf-8")


def test_github(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "new.plan.json", "--format", "github")
    assert run.code == 1
    assert run.out == (
        "::warning file=new.plan.json,title=plan changed::step 41.2 ms → 43 ms (+4.3 %25)   compute 33.1 ms (same)   "
        "exposed communication 8.13 ms → 9.90 ms (+21.7 %25)%0Amemory 28.1 GiB (same)%0A"
        "cause: optimizer adam-mixed → sgd\n"
    )


def test_json(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "new.plan.json", "--json")
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert run.code == 1
    assert shardplan("diff", "old.plan.json", "new.plan.json", "--format", "json").out == run.out
    result = document["result"]
    assert (result["same"], result["causes"]) == (False, ["optimizer adam-mixed → sgd"])
    assert result["effects"]["step_us"]["after"] == 43_000.0
    assert {change["change"] for change in result["changes"]} == {"changed"}
    named = {
        axis: {name: (share["before"], share["after"]) for name, share in found.items()}
        for axis, found in result["parameters"].items()
    }
    assert named == {
        "machine": {
            "ZeRO-3": pytest.approx((0.710, 0.145), abs=1e-3),
            "data parallel": pytest.approx((0.290, 0.855), abs=1e-3),
        }
    }


def test_which_memory_changed(shardplan, plans):
    whole = read_plan("new.plan.json")
    memory = replace(whole.summary.memory, optimizer=whole.summary.memory.optimizer - 2**31, activations=2**30)
    write_plan(replace(whole, summary=replace(whole.summary, memory=memory)), "less.plan.json")
    run = shardplan("diff", "new.plan.json", "less.plan.json")
    assert "\nmemory 28.1 GiB → 7.57 GiB (−73.1 %): activations −18.6 GiB, optimizer −2 GiB\n" in run.out
    document = json.loads(shardplan("diff", "new.plan.json", "less.plan.json", "--json").out)
    Draft202012Validator(SCHEMA).validate(document)
    assert document["result"]["memory"]["activations"]["after"] == 2**30


def test_as_many_digits_as_tell_two_numbers_apart(shardplan, folder):
    """A pull request that is told of 137 us and 137 us has been told of nothing."""
    for name, step_ns, activations in (("old", 137_080, 21_000_000_000), ("new", 137_310, 20_950_000_000)):
        before = example_summary(step_ns=step_ns)
        summary = replace(before, memory=replace(before.memory, activations=activations))
        write_plan(example_plan(summary=summary), f"{name}.plan.json")
    lines = ["step 137.1 us → 137.3 us (+0.2 %", "memory 28.13 GiB → 28.08 GiB (−0.2 %"]
    for form in ("text", "markdown", "github"):
        run = shardplan("diff", "old.plan.json", "new.plan.json", "--format", form)
        assert [line for line in lines if line in run.out] == lines, run.out


def test_growth_from_nothing_and_by_a_factor(shardplan, plans):
    """Of nothing there is no percentage, and a gate in percent sees whatever comes to it."""
    whole = read_plan("new.plan.json")
    step_ns = whole.summary.step_ns // 12
    old = changed_summary(whole.summary, step_ns=step_ns, compute_ns=step_ns)
    write_plan(replace(whole, summary=old), "none.plan.json")
    run = shardplan("diff", "none.plan.json", "new.plan.json")
    assert re.search(
        r"^step \S+ \S+ → \S+ \S+ \(×12\)   .*   exposed communication 0 ns → \S+ \S+$", run.out, re.MULTILINE
    )
    assert shardplan("diff", "none.plan.json", "new.plan.json", "--fail-if", "communication>+5%").code == 1
    assert shardplan("diff", "new.plan.json", "none.plan.json", "--fail-if", "communication>+5%").code == 0


def test_the_same(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "old.plan.json")
    assert (run.code, run.out, run.err) == (0, "the plans say the same\n", "")
    markdown = shardplan("diff", "old.plan.json", "old.plan.json", "--format", "markdown")
    assert markdown.out == "<!-- shardplan diff: old.plan.json -->\n**`old.plan.json`** unchanged\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--exit-zero",), 0),
        (("--fail-if", "step>+2%"), 1),
        (("--fail-if", "step > 5 %"), 0),
        (("--fail-if", "step>+1 ms"), 1),
        (("--fail-if", "step>2 ms"), 0),
        (("--fail-if", "memory>+0%"), 0),
        (("--fail-if", "memory>-1 GiB"), 1),
        (("--fail-if", "step>0"), 1),
        (("--fail-if", "memory>+0"), 0),
        (("--fail-if", "step>+2%", "--exit-zero"), 0),
        (("--fail-if", "step>+2%", "--fail-if", "memory>+50%"), 1),
        (("--fail-if", "memory>+50%", "--fail-if", "step>+2%"), 1),
        (("--fail-if", "memory>+50%", "--fail-if", "step>+50%"), 0),
    ],
)
def test_exit_codes(options, code, shardplan, plans):
    assert shardplan("diff", "old.plan.json", "new.plan.json", *options).code == code


def test_bad_conditions_and_files_are_said_together(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "absent.plan.json", "--fail-if", "speed<1")
    assert run.code == 2
    assert run.err == (
        "error[bad-condition]: --fail-if 'speed<1' is no condition\n"
        "hint: write for example 'step>+2%', 'step>+1 ms' or 'memory>+1 GiB'\n"
        "absent.plan.json: error[unreadable-plan]: cannot read the plan: no such file or directory\n"
    )


def test_no_text_is_no_condition(shardplan, plans):
    run = shardplan("diff", "old.plan.json", "new.plan.json", "--fail-if", "")
    assert run.code == 2
    assert run.err == (
        "error[bad-condition]: --fail-if '' is no condition\n"
        "hint: write for example 'step>+2%', 'step>+1 ms' or 'memory>+1 GiB'\n"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("absent.onnx", "absent.onnx: error[no-such-file]: there is no such file"),
        ("empty", "empty: error[not-a-file]: this is a directory"),
        ("text.onnx", "text.onnx: error[not-onnx]: this is not an ONNX model"),
        ("other.onnx", "error[stale-plan]: none of the plans was made for the model 'other.onnx'"),
    ],
)
def test_a_model_that_is_given_must_be_the_model_of_a_plan(given, said, shardplan, mlp: Path):
    shardplan("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2", "-q", "-o", "mlp.plan.json")
    shardplan("solve", "mlp.onnx", "--dim", "batch=32", "--mesh", "2", "-q", "-o", "less.plan.json")
    Path("empty").mkdir()
    Path("text.onnx").write_text("no model")
    model = onnx.load("mlp.onnx", load_external_data=False)
    del model.graph.node[1]
    model.graph.node[1].input[0] = "hidden"
    onnx.save(model, "other.onnx")
    run = shardplan("diff", "mlp.plan.json", "less.plan.json", "--model", given)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(said)
    both = shardplan("diff", "mlp.plan.json", "less.plan.json", "--model", "mlp.onnx")
    assert (both.code, both.err) == (1, "")


@pytest.mark.parametrize(
    ("condition", "amount", "hint"),
    [
        ("step>+5", "5", "write 'step>+5%', 'step>+5 us' or 'step>+5 ms'"),
        ("compute > 1e3", "1e3", "write 'compute>+1e3%', 'compute>+1e3 us' or 'compute>+1e3 ms'"),
        ("memory>-5.", "-5.", "write 'memory>-5.%', 'memory>-5. MiB' or 'memory>-5. GiB'"),
    ],
)
def test_a_limit_without_a_unit_is_refused(condition, amount, hint, shardplan, plans):
    run = shardplan("diff", "old.plan.json", "new.plan.json", "--fail-if", condition)
    assert (run.code, run.out) == (2, "")
    assert run.err == f"error[bad-condition]: --fail-if '{condition}': {amount} has no unit\nhint: {hint}\n"


def test_plans_at_different_prices_are_not_subtracted(shardplan, mlp: Path):
    asked = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2", "--mode", "inference", "-q")
    shardplan(*asked, "-o", "ours.json")
    shardplan(*asked, "-o", "theirs.json", "--cost-model", "slapo", "--memory-limit", "40 GiB")
    said = shardplan("diff", "ours.json", "theirs.json").out
    assert " elements   compute " in said
    assert "%" not in said.splitlines()[-5]
    assert said.endswith("cause: cost model shardplan → slapo\ncause: memory limit 67.1 GiB → 40 GiB\n")
    same = shardplan("diff", "theirs.json", "theirs.json")
    assert (same.code, same.out) == (0, "the plans say the same\n")


def test_results_and_operators_go_by_their_modules():
    old = example_plan()
    operators = tuple(
        replace(operator, split=tuple("-" for _ in operator.split)) if "down" in operator.module else operator
        for operator in old.operators
    )
    changes = diff_plans(old, example_plan(operators=operators)).changes
    assert [change.name for change in changes if change.kind == "operator"] == ["layers.*.mlp.down (MatMul)"]


def test_a_name_that_would_end_an_annotation_is_escaped(shardplan, plans):
    write_plan(example_plan(), "100%, a:b.json")
    run = shardplan("diff", "old.plan.json", "100%, a:b.json", "--format", "github")
    assert run.out.startswith("::notice file=100%25%2C a%3Ab.json,title=plan unchanged::")
