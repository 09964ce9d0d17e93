"""The report as data: what it says is the plan, all of it, once; and names in it are harmless."""

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Run
from evil_plans import EVIL, evil_plan
from small_models import proto_of

from shardplan.api import make_plan
from shardplan.plan.diff import diff_plans
from shardplan.plan.file import read_plan
from shardplan.plan.types import Plan
from shardplan.plan.views.lifetimes import spans
from shardplan.plan.views.timeline import scheduled_tasks
from shardplan.render.diff import effects
from shardplan.reports.notebook import report
from shardplan.reports.page import page
from shardplan.reports.plan import plan_report, summary_bar
from shardplan.reports.schedule import critical_path
from shardplan.reports.studies import diff_report

PLANS = Path(__file__).parents[2] / "plans"


@pytest.fixture(scope="module", params=["gpt2_small.4x4", "llama3_8b.4x8"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return read_plan(PLANS / f"{request.param}.plan.json")


def test_every_operator_is_in_one_copy_of_one_segment(plan: Plan) -> None:
    found = plan_report(plan)
    names = found["names"]
    told = [
        names[number]
        for segment in found["model"]["segments"]
        for number in (
            *(operator[0] for operator in segment["operators"]),
            *(one for copy in segment["names"] for one in copy),
        )
    ]
    assert sorted(told) == sorted(operator.name for operator in plan.operators)


def test_the_parts_of_a_step_are_the_step(plan: Plan) -> None:
    summary = summary_bar(plan)
    assert sum(part for _, part, _ in summary["parts"]) == pytest.approx(plan.summary.step_ns, rel=1e-3)
    assert sum(size for _, size in summary["memory"]) == summary["held"] == plan.summary.memory.total


def test_a_model_without_operators_has_a_report(tmp_path: Path) -> None:
    """It returns an input as it is: a value is held, and there is no moment at which."""
    path = tmp_path / "same.onnx"
    path.write_bytes(proto_of("g (float[4] x) => (float[4] x) {}").SerializeToString())
    made = make_plan(path, "2x2", mode="inference", effort="quick")
    assert made.operators == ()
    found = plan_report(made)["memory"]
    assert (found["points"], found["peak"], found["rest"]) == ([], 0, made.summary.memory.total)
    assert list(spans(made)) == []


def test_a_view_of_a_weight_is_not_a_value_that_is_held() -> None:
    described = "transformer:style=gpt,layers=1,hidden=64,heads=4,vocab=4096,seq=1,batch=1"
    for mode in ("training", "inference"):
        made = make_plan(described, "1", mode=mode, effort="quick")
        shown = [tensor for _, _, tensor, gradient in spans(made) if not gradient]
        assert max(tensor.bytes_per_device for tensor in shown) < 2 * 4096 * 64


def test_what_is_rematerialised_is_said() -> None:
    made = make_plan(
        "transformer:layers=2,hidden=64,heads=4,vocab=64,seq=32,batch=4", "2", remat="full", effort="quick"
    )
    found = plan_report(made)
    assert re.fullmatch(r"full: [\d.]+ us, [\d.]+ KiB not saved", dict(found["facts"])["rematerialisation"])
    names = found["names"]
    operators = [operator for segment in found["model"]["segments"] for operator in segment["operators"]]
    told = {names[edge[0]] for operator in operators for edge in operator[9] if names[edge[1]] == "rematerialised"}
    assert told == {tensor.name for tensor in made.tensors if tensor.recomputed} != set()


def test_what_is_not_proven_optimal_is_called_so_nowhere(plan: Plan) -> None:
    bound = plan.summary.step_ns - 1
    near = replace(plan, summary=replace(plan.summary, outcome="feasible", bound_ns=bound, step_bound_ns=bound))
    assert summary_bar(near)["proof"].startswith("optimality gap <0.1 % ")
    proven = replace(near, summary=replace(near.summary, outcome="optimal"))
    assert summary_bar(proven)["proof"].startswith("optimal: ")


def test_the_critical_path_takes_as_long_as_the_step_and_its_tasks_follow_each_other(plan: Plan) -> None:
    made, _ = scheduled_tasks(plan)
    path = sorted(critical_path(made), key=lambda number: made.starts[number])
    assert sum(made.ends[number] - made.starts[number] for number in path) == pytest.approx(made.seconds)
    for before, after in itertools.pairwise(path):
        assert made.ends[before] == pytest.approx(made.starts[after], abs=1e-9)


def test_times_and_bytes_of_segments_and_tables_are_those_of_the_plan(plan: Plan) -> None:
    found = plan_report(plan)
    compute = sum(segment["compute"] for segment in found["model"]["segments"])
    assert compute == sum(operator.compute_ns for operator in plan.operators)
    kept = sum(tensor.bytes_per_device for tensor in plan.tensors if tensor.role == "parameter")
    assert sum(row[6] for row in found["parameters"]) == kept
    assert sum(row[9] for row in found["moves"]) == sum(move.time_ns for move in plan.moves)


def test_memory_over_time_never_exceeds_the_peak_of_the_plan(plan: Plan) -> None:
    memory = plan_report(plan)["memory"]
    assert memory["points"]
    assert memory["peak"] + memory["rest"] == plan.summary.memory.total
    for _, held, passing in memory["points"]:
        assert held >= 0
        assert passing >= 0
        assert memory["state"] + held + passing <= memory["peak"]
    assert [at for at, _, _ in memory["points"]] == sorted(at for at, _, _ in memory["points"])


def test_equal_plans_give_equal_bytes(plan: Plan) -> None:
    assert page(plan_report(plan)) == page(plan_report(plan))


def test_copies_that_are_decided_otherwise_are_a_segment_of_their_own() -> None:
    plan = read_plan(PLANS / "gpt2_small.4x4.plan.json")
    labels = {segment["label"]: segment["count"] for segment in plan_report(plan)["model"]["segments"]}
    assert labels["transformer.h.{0-5}"] == 6
    assert labels["transformer.h.11"] == 1


def test_names_neither_end_the_document_nor_begin_an_element() -> None:
    html = page(plan_report(evil_plan(), EVIL))
    assert html.count("<script") == 2
    assert html.count("</script") == 2
    assert "<img" not in html
    assert "\u202e" not in html
    document = re.search(r'id="document">(.*?)</script>', html, re.DOTALL)[1]
    assert EVIL.replace("\u202e", "\\u202e") in json.loads(document)["warnings"]


def test_a_report_needs_no_network(plan: Plan) -> None:
    html = page(plan_report(plan))
    assert "default-src 'none'" in html
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)[^\s\"']+", html) == []


def test_a_notebook_shows_the_page_in_a_frame_and_saves_it(tmp_path: Path) -> None:
    made = report(read_plan(PLANS / "gpt2_small.4x4.plan.json"))
    assert made._repr_html_().startswith("<iframe srcdoc=")
    assert "<script" not in made._repr_html_()
    made.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == made.html


def test_show_writes_a_report_over_a_report_and_over_nothing_else(
    shardplan: Callable[..., Run], tmp_path: Path
) -> None:
    plan, target = str(PLANS / "gpt2_small.4x4.plan.json"), tmp_path / "a.html"
    assert shardplan("show", plan, "--html", str(target)).code == 0
    assert shardplan("show", plan, "--html", str(target)).code == 0
    assert target.read_text() == page(plan_report(read_plan(plan), plan))
    target.write_text("mine")
    refused = shardplan("show", plan, "--html", str(target))
    assert refused.code == 2
    assert "error[output-not-a-report]: this file exists and is not a report; it is left as it is" in refused.err
    assert "hint: write elsewhere with --html, or remove the file" in refused.err
    assert target.read_text() == "mine"


def test_a_report_is_not_written_over_what_is_read(shardplan: Callable[..., Run], tmp_path: Path) -> None:
    copy, text = tmp_path / "a.plan.json", (PLANS / "gpt2_small.4x4.plan.json").read_bytes()
    copy.write_bytes(text)
    refused = shardplan("show", str(copy), "--html", str(copy))
    assert refused.code == 2
    assert "error[same-output]: the report would replace what this command reads, or writes besides" in refused.err
    assert "hint: give --html a name of its own" in refused.err
    assert copy.read_bytes() == text


def test_every_study_writes_its_report(shardplan: Callable[..., Run], mlp: Path) -> None:
    model = str(mlp)
    asked = (
        ("solve", model, "--mesh", "2x2", "-o", "a.plan.json"),
        ("solve", model, "--mesh", "auto", "--devices", "1x4", "-o", "b.plan.json"),
        ("compare", model, "--mesh", "2x2"),
        ("sweep", model, "--mesh", "1x2,2x2"),
        ("diff", "a.plan.json", "b.plan.json", "--exit-zero"),
    )
    kinds = []
    for number, words in enumerate(asked):
        ran = shardplan(*words, *(("--dim", "batch=64") if words[0] != "diff" else ()), "--html", f"{number}.html")
        assert ran.code == 0, ran.err
        assert f"report    {number}.html" in ran.err
        kinds.append(re.search(r'"kind":"(\w+)"', Path(f"{number}.html").read_text())[1])
    assert kinds == ["plan", "plan", "comparison", "sweep", "diff"]
    assert '"tried":[["' in Path("1.html").read_text()


def test_why_needs_a_model_and_then_says_what_else_there_was(shardplan: Callable[..., Run], mlp: Path) -> None:
    shardplan(
        "solve",
        str(mlp),
        "--mesh",
        "2x2",
        "--dim",
        "batch=64",
        "-o",
        "a.plan.json",
        "--pin",
        "up.weight=[gpu, null]",
        "-q",
    )
    refused = shardplan("show", "a.plan.json", "--why", "1")
    assert refused.code == 2
    assert "--why N goes with --html or --format html" in refused.err
    assert shardplan("show", "a.plan.json", "--html", "a.html", "--why", "1", "--model", str(mlp), "-q").code == 0
    document = json.loads(re.search(r'id="document">(.*?)</script>', Path("a.html").read_text(), re.DOTALL)[1])
    told = {row[0]: row[7] for row in document["parameters"]}
    assert all(told.values()), "of one the largest, and of the other, which is moved"
    assert all(cost is None or isinstance(cost, int) for row in told.values() for _, cost, *_ in row)
    assert any(row[11] for row in document["moves"])


def test_a_link_that_devices_share_says_what_each_gets():
    """V100 machines: 25 Gbit/s for eight devices."""
    model = "transformer:layers=1,hidden=256,heads=4,vocab=512,seq=128,batch=16"
    axes = plan_report(make_plan(model, "2x8", cluster="v100-p3-16xl", effort="quick"))["mesh"]["axes"]
    assert [axis["shared"] for axis in axes] == [(8, 25e9 / 8 / 8), None]


def test_the_step_of_a_pipeline_is_split_as_its_slowest_stage_spends_it():
    model = "transformer:layers=2,hidden=256,heads=4,vocab=512,seq=128,batch=8"
    plan = make_plan(model, "2x2", stages="2", microbatches=4, effort="quick")
    summary = plan_report(plan)["summary"]
    slowest = max((stage.plan.summary for stage in plan.pipeline.stages), key=lambda one: one.step_ns)
    parts = {name: ns for name, ns, _ in summary["parts"]}
    assert sum(parts.values()) == summary["step"]
    assert parts["compute"] == slowest.compute_ns
    one = make_plan(model, "2x2", effort="quick")
    told = {name: after for name, _, after in diff_report(one, plan, ("a", "b"), diff_plans(one, plan))["effects"]}
    assert told["compute"] == parts["compute"]
    assert told["compute"] + told["exposed communication"] + told["bubble"] == told["step"]
    assert "bubble 0 ns → " in effects(diff_plans(one, plan))[0]
    assert "bubble" not in effects(diff_plans(one, one))[0]
