"""A search that starts from a known plan: never slower than its decisions are here, and never without an answer."""

import math
import random
import signal
from dataclasses import replace

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.models import described
from shardplan.plan.format.encode import dumps
from shardplan.planning import Planner, PlanOptions, plan_model
from shardplan.planning.recipes import RECIPES
from shardplan.planning.start_plan import StartPlan
from shardplan.study.evaluate import evaluate_plan
from shardplan.study.meshes import INTERRUPTED, best_of, try_meshes

MODEL = "transformer:hidden=256,layers=2,heads=8,ffn=1024,vocab=1024,batch=8,seq=128"
QUICK = PlanOptions(effort="quick")


def on(mesh, profile="h100-dgx"):
    return make_cluster(load_profile(profile), mesh)


def started(model, cluster, options, plan, **how):
    """The plan of a search that starts from another one, and the notes on it."""
    heard = []
    start = None if plan is None else StartPlan(plan, "a.plan.json")
    found = plan_model(model, cluster, options, on_warning=heard.append, start=start, **how)
    return found, [str(one) for one in heard if one.severity == "note"]


def started_alone(model, cluster, options, plan):
    """The start as a plan, without a search, and the notes on it."""
    heard = []
    planner = Planner(model, cluster, options, on_warning=heard.append, start=StartPlan(plan, "a.plan.json"))
    return planner.started(), [str(one) for one in heard if one.severity == "note"]


def random_sizes(draw):
    heads, size = draw.choice((2, 4)), draw.choice((16, 32))
    sizes = {
        "layers": 1,
        "heads": heads,
        "head_size": size,
        "hidden": heads * size,
        "vocab": draw.choice((509, 1000)),
        "seq": draw.choice((64, 128)),
        "batch": draw.choice((1, 4, 12)),
        "style": draw.choice(("gpt", "llama")),
    }
    return "transformer:" + ",".join(f"{name}={value}" for name, value in sizes.items())


@pytest.fixture(scope="module")
def model():
    return described(MODEL)


@pytest.fixture(scope="module")
def cluster():
    return on("2x4")


@pytest.fixture(scope="module")
def best(model, cluster):
    return plan_model(model, cluster, PlanOptions())


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_slower_than_its_start(seed):
    draw = random.Random(seed)
    model, cluster = described(random_sizes(draw)), on(draw.choice(("2x2", "2x4")), "generic")
    mode = draw.choice(("training", "inference"))
    options = PlanOptions(mode=mode, effort="quick")
    planner = Planner(model, cluster, options, reasons=False)
    alone = planner.plan()
    start = planner.plan(draw.choice(list(RECIPES.values())))
    found, _ = started(model, cluster, options, start)
    here = evaluate_plan(model, cluster, options, start, "a.plan.json").plan
    assert found.summary.step_ns <= min(here.summary.step_ns, alone.summary.step_ns)
    assert found.summary.bound_ns <= found.summary.step_ns


def test_a_better_plan_than_the_search_finds_is_kept(model, cluster, best, monkeypatch):
    monkeypatch.setattr("shardplan.planning.constants.SEARCH_WORK", dict.fromkeys(("quick", "thorough"), 1e-3))
    alone = plan_model(model, cluster, PlanOptions())
    assert alone.summary.step_ns > best.summary.step_ns
    found, notes = started(model, cluster, PlanOptions(), best)
    assert found.summary.step_ns <= best.summary.step_ns
    assert found.summary.reproducible
    assert notes == [f"a.plan.json: note[start]: step {best.summary.step_ns / 1e3:.3g} us here"]
    assert dumps(found) == dumps(started(model, cluster, PlanOptions(), best)[0])


def test_its_own_plan_is_an_idle_start(model, cluster, best):
    assert dumps(started(model, cluster, PlanOptions(), best)[0]) == dumps(best)


def test_numbers_of_the_start_do_not_count(model, cluster, best):
    forged = replace(best, summary=replace(best.summary, step_ns=1, bound_ns=1))
    assert dumps(started(model, cluster, QUICK, forged)[0]) == dumps(started(model, cluster, QUICK, best)[0])


def test_decisions_that_a_pin_contradicts_are_left_to_the_search(model, cluster, best):
    weight = next(one for one in best.tensors if one.checkpoint.endswith("up_proj.weight"))
    spec = "replicate" if any(one.is_shard for one in weight.layout.placements) else "[null, gpu]"
    pinned = replace(QUICK, constraints=(parse_pin(f"{weight.checkpoint}={spec}"),))
    found, (note,) = started(model, cluster, pinned, best)
    assert note.endswith(
        "us here, with its splits of operators alone: as a whole it contradicts what is asked for here"
    )
    assert found.summary.step_ns <= plan_model(model, cluster, pinned).summary.step_ns


def test_a_start_that_does_not_fit_says_so(model, cluster, best):
    tight = replace(QUICK, memory_limit_bytes=best.summary.memory.total // 4)
    found, (note,) = started(model, cluster, tight, best)
    assert "it does not fit in the memory limit (" in note
    assert found.summary.memory.total <= tight.memory_limit_bytes


@pytest.mark.parametrize(
    ("mesh", "options", "said"),
    [
        ("4x2", QUICK, "it is for another mesh (machine=2 x gpu=4)"),
        ("2x4", replace(QUICK, mode="inference"), "it is for training"),
    ],
)
def test_a_plan_that_does_not_suit_is_a_note(mesh, options, said, model, best):
    found, notes = started(model, on(mesh), options, best)
    assert notes == [f"a.plan.json: note[no-start]: it is no start: {said}"]
    assert dumps(found) == dumps(plan_model(model, on(mesh), options))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (MODEL.replace("batch=8", "batch=16"), ""),
        (MODEL.replace("layers=2", "layers=3"), " of 78 operators split as there"),
        (MODEL.replace("hidden=256", "hidden=264").replace("heads=8", "heads=6"), ""),
        (MODEL.replace("batch=8", "batch=7"), " of 53 operators split as there"),
    ],
)
def test_a_model_of_other_sizes_takes_what_is_valid(sizes, said, cluster, best):
    model = described(sizes)
    found, (note,) = started(model, cluster, QUICK, best)
    assert note.startswith("a.plan.json: note[start]: step ")
    assert note.endswith(said or "us here")
    assert found.summary.step_ns <= plan_model(model, cluster, QUICK).summary.step_ns


def test_many_axes_take_a_plan_whose_layouts_are_legal(monkeypatch):
    monkeypatch.setattr("shardplan.planning.constants.SEARCH_WORK", {"quick": 1e-3})
    sizes, cluster = MODEL.replace("layers=2", "layers=1"), on("2x2x2x2")
    plan = plan_model(described(sizes), cluster, QUICK)
    found, _ = started_alone(described(sizes), cluster, QUICK, plan)
    assert found.summary.step_ns <= plan.summary.step_ns
    odd = described(sizes.replace("batch=8", "batch=6"))
    said = "it is for a model with other operators or sizes, and this mesh has more than 3 axes"
    assert started_alone(odd, cluster, QUICK, plan) == (None, [f"a.plan.json: note[no-start]: it is no start: {said}"])


def test_a_runtime_starts_from_a_plan_that_it_can_express(model, cluster):
    options = replace(QUICK, target="tp-plan")
    plan = plan_model(model, cluster, options)
    found, notes = started(model, cluster, options, plan)
    assert found.summary.step_ns <= plan.summary.step_ns
    assert notes == [f"a.plan.json: note[start]: step {plan.summary.step_ns / 1e3:.3g} us here"]
    recipe = Planner(model, cluster, QUICK).plan(RECIPES["ZeRO-3"])
    found, notes = started_alone(model, cluster, options, recipe)
    assert "it is none that tp-plan can express" in notes[0]


def test_ctrl_c_and_no_time_leave_at_least_the_start(model, cluster, best):
    told = []

    def hurry(standing):
        told.append(standing)
        if math.isfinite(standing.best) and sum(math.isfinite(one.best) for one in told) == 1:
            signal.raise_signal(signal.SIGINT)

    found, _ = started(model, cluster, PlanOptions(), best, on_progress=hurry)
    assert found.summary.outcome == "interrupted"
    assert found.summary.bound_ns <= found.summary.step_ns <= best.summary.step_ns
    found, _ = started(model, cluster, PlanOptions(time_limit=1e-6), best)
    assert found.summary.step_ns <= best.summary.step_ns


def test_of_all_meshes_that_of_the_start_has_a_plan_before_any_is_searched(model, best):
    profile, meshes = load_profile("h100-dgx"), ("machine=2,gpu=4", "machine=2,gpu0=2,gpu1=2")
    heard = []
    start = StartPlan(best, "a.plan.json")

    def hurry(_):
        if not told:
            told.append(True)
            signal.raise_signal(signal.SIGINT)

    told = []
    trials = try_meshes(model, profile, QUICK, meshes, on_progress=hurry, start=start, on_warning=heard.append)
    assert best_of(trials).step_ns <= best.summary.step_ns
    assert any(trial.reason == INTERRUPTED for trial in trials)
    assert [one.code for one in heard] == ["start"]
    trials = try_meshes(model, profile, QUICK, meshes, start=start, on_warning=heard.append)
    assert best_of(trials).step_ns <= best.summary.step_ns
    assert not any(trial.reason for trial in trials)
