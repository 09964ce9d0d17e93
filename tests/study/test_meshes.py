"""Logical meshes: which there are, that all are tried, and that the best plan is the one a solve on that mesh gives."""

import json
import math
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from small_models import small_model

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.models import TransformerSpec, build
from shardplan.planning import plan_model
from shardplan.planning.for_runtime import RuntimePlans
from shardplan.request import Request
from shardplan.study import meshes
from shardplan.study.instance import read
from shardplan.study.meshes import best_of, logical_meshes, ordered_factorisations, try_meshes
from shardplan.study.solve import solve
from shardplan.study.target_limits import limits_of

OPTIONS = PlanOptions(effort="quick")
PROFILE = load_profile("generic")
SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))


def meshes_over(devices, profile=PROFILE):
    return logical_meshes(profile_from_resolved(make_cluster(profile, devices).resolved))


@given(st.integers(2, 64))
def test_every_ordered_factorisation_once(size):
    found = list(ordered_factorisations(size))
    assert all(math.prod(sizes) == size and min(sizes) > 1 for sizes in found)
    assert len(set(found)) == len(found)
    rest = (len(list(ordered_factorisations(size // first))) for first in range(2, size) if size % first == 0)
    assert len(found) == 1 + sum(rest)


def test_factorisations_of_eight():
    assert sorted(ordered_factorisations(8)) == [(2, 2, 2), (2, 4), (4, 2), (8,)]


def test_the_meshes_of_4x8_keep_their_links():
    profile = load_profile("h100-dgx")
    names = meshes_over("4x8", profile)
    assert len(names) == len(set(names)) == 8
    assert names[0] == "machine=4,gpu=8"
    assert names[-1] == "machine0=2,machine1=2,gpu0=2,gpu1=2,gpu2=2"
    for text in names:
        cluster = make_cluster(profile, text)
        across = [a.size for a, level in zip(cluster.mesh.axes, cluster.axis_levels, strict=True) if level == 1]
        assert (math.prod(across), cluster.mesh.size) == (4, 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_model("mlp", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def trials(model):
    return try_meshes(model, PROFILE, OPTIONS, meshes_over("2x4"))


def test_each_plan_is_that_of_a_solve_on_its_mesh(model, trials):
    assert len(trials) == 2
    for trial in trials:
        assert trial.plan == plan_model(model, make_cluster(PROFILE, trial.text), OPTIONS)
        assert trial.plan.summary.step_bound_ns == trial.bound_ns <= trial.step_ns
    assert best_of(trials).step_ns == min(trial.step_ns for trial in trials)


def test_two_processes_find_the_same(model, trials):
    heard = []
    meshes = meshes_over("2x4")
    assert try_meshes(model, PROFILE, OPTIONS, meshes, processes=2, on_done=heard.append) == trials
    assert sorted(trial.text for trial in heard) == sorted(meshes)


def test_too_many_axes_are_bounded_not_solved(model, monkeypatch):
    monkeypatch.setattr("shardplan.study.meshes.MOST_AXES", 2)
    *_, deep = try_meshes(model, PROFILE, OPTIONS, meshes_over("2x4"))
    assert (deep.text, deep.plan) == ("machine=2,gpu0=2,gpu1=2", None)
    assert deep.reason == "not solved: more than 2 axes"
    assert 0 < deep.bound_ns <= plan_model(model, make_cluster(PROFILE, deep.text), OPTIONS).summary.step_ns


def test_a_time_limit_is_that_of_all_meshes_together(model, monkeypatch):
    given = []

    def noted(asked, cluster, options, **others):
        given.append(options.time_limit)
        return plan_model(asked, cluster, options, **others)

    monkeypatch.setattr(meshes, "plan_model", noted)
    limited = PlanOptions(effort="quick", time_limit=8.0)
    assert len(try_meshes(model, PROFILE, limited, meshes_over("2x4"))) == 2
    assert given[0] <= 4.0
    assert given[1] <= 8.0


def test_constraints_that_name_an_axis_leave_the_meshes_that_have_it(model):
    options = PlanOptions(effort="quick", constraints=(parse_pin("w1=[gpu0, null]"),))
    trials = try_meshes(model, PROFILE, options, meshes_over("2x4"))
    assert [trial.plan is None for trial in trials] == [True, False]
    assert "no axis" in trials[0].reason


def test_an_interrupt_keeps_the_best_plan_of_the_meshes_that_are_done(model, monkeypatch):
    whole, calls = meshes._try, []

    def stopped(*asked):
        calls.append(asked)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*asked)

    monkeypatch.setattr(meshes, "_try", stopped)
    instance = read(Request(model, "auto", cluster="generic", devices="4x4"))
    found = solve(instance)
    assert found.plan.summary.outcome == "interrupted"
    assert [trial.plan is None for trial in found.trials].count(False) == 2
    reasons = sorted(trial.reason for trial in found.trials if trial.plan is None)
    assert reasons == ["interrupted", "interrupted"]
    calls[:] = [None, None]
    with pytest.raises(KeyboardInterrupt):
        solve(instance)


def test_limits_of_a_runtime_are_told_of_the_mesh_that_was_chosen(monkeypatch):
    model = "transformer:llama3-8b,layers=1,batch=4,seq=512"
    asked = read(Request(model, "auto", devices="1x4", target="tp-plan", effort="quick"))
    found = solve(asked)
    free = plan_model(asked.model, found.cluster, OPTIONS)
    monkeypatch.setattr(meshes, "_try", lambda *_: pytest.fail("other meshes are planned"))
    limits = limits_of(asked, found)
    assert (limits.step_ns, limits.free_ns) == (found.plan.summary.step_ns, free.summary.step_ns)
    assert limits.slower > 0.2


def test_devices_are_given_whole(model):
    with pytest.raises(ShardplanError) as problem:
        solve(read(Request(model, "auto", cluster="h100-dgx", devices="4x2x4")))
    assert str(problem.value) == (
        "error[bad-devices]: --devices '4x2x4' cuts one kind of link in several axes\n"
        "hint: give one size per kind of link, such as 4x8"
    )


MLP = ("solve", "mlp.onnx", "--dim", "batch=64", "-c", "generic", "--mesh", "auto")


def test_the_verb_prints_a_table_and_writes_the_best(shardplan, mlp: Path):
    run = shardplan(*MLP, "--devices", "2x4")
    assert run.code == 0
    table = [line.split() for line in run.out.splitlines() if line.startswith("machine")]
    assert [row[0] for row in table] == ["machine=2,gpu=4", "machine=2,gpu0=2,gpu1=2"]
    assert sum(line.endswith("  best") for line in run.out.splitlines()) == 1
    assert json.loads(Path("plans/mlp.2x4.auto.plan.json").read_text())["mesh"]["devices"] == 8


def test_the_document_of_the_verb(shardplan, mlp: Path):
    run = shardplan(*MLP, "--devices", "2x4", "--json")
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    meshes = document["result"]["meshes"]
    assert len(meshes) == 2
    assert document["result"]["summary"]["step_us"] == min(row["step_us"] for row in meshes if row["step_us"])


def test_nothing_fits_on_any(shardplan, mlp: Path):
    run = shardplan(*MLP, "--devices", "2x2", "--memory-limit", "1 KiB", "--json")
    document = json.loads(run.out)
    assert (run.code, document["result"]["plan"]) == (3, None)
    assert {row["reason"] for row in document["result"]["meshes"]} == {"does not fit in memory"}


def test_devices_need_an_automatic_mesh(shardplan, mlp: Path):
    run = shardplan("solve", "mlp.onnx", "--mesh", "2x2", "--devices", "2x2")
    assert run.code == 2
    assert "--devices goes with --mesh auto; otherwise --mesh says which devices there are" in run.err


def test_for_a_runtime_what_one_mesh_says_is_searched_once(monkeypatch):
    searched, among_all = [], RuntimePlans.among_all

    def counted(self, roles, *rest):
        searched.append((self.answers.instance.cluster.mesh, roles))
        return among_all(self, roles, *rest)

    monkeypatch.setattr(RuntimePlans, "among_all", counted)
    model = build(TransformerSpec(layers=1, hidden=64, heads=4, vocab=256, seq=32, batch=8, style="gpt"))
    options = PlanOptions(target="megatron", effort="quick")
    trials = try_meshes(model, PROFILE, options, meshes_over("1x4"), processes=2)
    assert len(searched) == len(set(searched))
    best = best_of(trials)
    for trial in trials:
        if trial.plan is None:
            assert trial.reason == meshes.NO_FASTER
            assert trial.bound_ns <= best.step_ns
