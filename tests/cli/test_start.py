"""`solve --start PLAN`: what is said of a plan that the search starts from, and which files are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import changed_summary

import shardplan as package
from shardplan.errors import ShardplanError
from shardplan.plan.file import read_plan, write_plan
from shardplan.plan.format.digest import content_digest

SOLVE = ("solve", "mlp.onnx", "--dim", "batch=64", "--mesh", "2x2", "--no-advice")
PLAN = "plans/mlp.2x2.plan.json"


@pytest.fixture
def solved(shardplan, mlp):
    assert shardplan(*SOLVE).code == 0
    return read_plan(PLAN)


def test_what_is_taken_is_a_line_of_the_request(shardplan, solved):
    before = Path(PLAN).read_bytes()
    run = shardplan(*SOLVE, "--start", PLAN)
    lines = run.out.splitlines()
    assert lines[3] == f"start     {PLAN}: step {solved.summary.step_ns / 1e3:.1f} us here"
    assert lines[-2] == f"same as   {PLAN}"
    assert run.code == 0
    assert "start" not in run.err
    assert Path(PLAN).read_bytes() == before


def test_a_document_and_a_pipe_have_it_among_the_diagnostics(shardplan, solved):
    run = shardplan(*SOLVE, "--start", PLAN, "--json")
    (note,) = [one for one in json.loads(run.out)["diagnostics"] if one["severity"] == "note"]
    assert (note["code"], note["file"]) == ("start", PLAN)
    run = shardplan(*SOLVE, "--start", PLAN, "-o", "-")
    assert run.out == Path(PLAN).read_text()
    assert f"{PLAN}: note[start]: step " in run.err


def test_one_that_does_not_suit_is_a_note_and_the_search_goes_on(shardplan, solved):
    alone = shardplan(*SOLVE, "--mesh", "4x1", "-o", "alone.json")
    run = shardplan(*SOLVE, "--mesh", "4x1", "--start", PLAN, "-o", "other.json")
    assert (run.code, alone.code) == (0, 0)
    assert run.err.startswith(f"{PLAN}: note[no-start]: it is no start: it is for another mesh (machine=2 x gpu=2)\n")
    assert Path("other.json").read_bytes() == Path("alone.json").read_bytes()
    shardplan(*SOLVE, "--mesh", "4x1", "--microbatches", "4", "--mode", "inference", "--stages", "2", "-o", "st.json")
    run = shardplan(*SOLVE, "--start", "st.json", "-o", "other.json")
    assert "st.json: note[no-start]: it is no start: it is a pipeline of 2 stages\n" in run.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "a.json: error[unreadable-plan]: cannot read the plan: no such file or directory"),
        ("{}", "a.json: error[not-a-plan]"),
        ("no plan", "a.json: error[not-a-plan]"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text, said, shardplan, mlp):
    if text is not None:
        Path("a.json").write_text(text)
    run = shardplan(*SOLVE, "--start", "a.json")
    assert run.code == 2
    assert said in run.err
    assert not Path(PLAN).exists()


def test_a_forged_plan_gives_no_faster_one_and_an_illegal_one_is_refused(shardplan, solved):
    document = json.loads(Path(PLAN).read_text())
    document["summary"] |= dict.fromkeys(("step_us", "objective", "bound_us", "compute_us"), 0.001) | {
        "communication_us": 0.0
    }
    document["digest"] = content_digest(document)
    Path("forged.json").write_text(json.dumps(document))
    assert shardplan(*SOLVE, "--start", "forged.json", "-o", "again.json").code == 0
    assert Path("again.json").read_bytes() == Path(PLAN).read_bytes()

    up = next(row for row in document["parameters"] if row["name"] == "up.weight")
    up |= {"layout": "S(7)@gpu", "dims": [[], []]}
    document["digest"] = content_digest(document)
    Path("illegal.json").write_text(json.dumps(document))
    run = shardplan(*SOLVE, "--start", "illegal.json", "-o", "again.json")
    assert run.code == 2
    assert "illegal.json" in run.err
    assert "error[" in run.err


def test_a_pipeline_is_refused_by_the_names_of_both_options(shardplan, solved):
    run = shardplan(*SOLVE, "--start", PLAN, "--stages", "2", "-o", "other.json")
    assert (run.code, run.err) == (
        2,
        (
            "error[bad-argument]: --start goes with one mesh, and not with --stages\n"
            "hint: --stages PLAN.json cuts the model as that plan is cut\n"
        ),
    )
    Path("st.yaml").write_text('stages:\n  - runs: ["up"]\n    mesh: 1x2\n  - runs: ["*"]\n    mesh: 1x2\n')
    run = shardplan(*SOLVE, "--start", PLAN, "--constraints", "st.yaml", "-o", "other.json")
    assert run.code == 2
    assert f"{PLAN}: error[bad-argument]: --start goes with one mesh, and stages are fixed here\n" in run.err


def test_a_faster_plan_is_not_replaced_in_silence(shardplan, solved):
    faster = replace(solved, summary=changed_summary(solved.summary, step_ns=solved.summary.step_ns // 2))
    write_plan(faster, PLAN)
    run = shardplan(*SOLVE)
    said = f"it replaces a plan for the same with a step of {faster.summary.step_ns / 1e3:.1f} us: "
    assert run.out.splitlines()[-3:] == [
        f"wrote     {PLAN}",
        f"          {said}--start FILE makes none slower than that in FILE",
        f"next      shardplan show {PLAN}",
    ]
    slower = replace(solved, summary=changed_summary(solved.summary, step_ns=2 * solved.summary.step_ns))
    write_plan(slower, PLAN)
    assert "replaces" not in shardplan(*SOLVE).out
    write_plan(faster, PLAN)
    assert "replaces" not in shardplan(*SOLVE, "--microbatches", "2").out


def test_from_python_it_is_a_plan_or_its_file(mlp, solved, recwarn):
    asked = {"dims": {"batch": 64}, "effort": "quick"}
    plan = package.make_plan("mlp.onnx", "2x2", **asked, start=solved)
    assert plan.summary.step_ns <= solved.summary.step_ns
    assert package.make_plan("mlp.onnx", "2x2", **asked, start=Path(PLAN)) == plan
    assert not [one for one in recwarn if "start" in str(one.message)]
    with pytest.warns(UserWarning, match=r"start: note\[no-start\]: it is no start: it is for another mesh"):
        package.make_plan("mlp.onnx", "4x1", **asked, start=solved)
    with pytest.raises(ShardplanError, match="start is 7; a plan or its file is expected"):
        package.make_plan("mlp.onnx", "2x2", **asked, start=7)
