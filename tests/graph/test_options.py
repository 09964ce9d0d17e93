"""Mode, recomputation, microbatches and memory limits act on plans as they should."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from step_problems import base_problem, step_problem

from shardplan.cli import main
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import training_obstacles
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.read import read_model
from shardplan.models import described
from shardplan.planning import Planner, plan_model
from shardplan.planning.instance import many_axes, refuse_too_many_axes
from shardplan.rules import model_rules
from shardplan.solve import solve

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def gpt2():
    return read_model(MODELS / "gpt2_small.onnx")


@pytest.fixture(scope="module")
def cluster():
    return make_cluster(load_profile("h100-dgx"), "2x4")


def test_the_limit_is_what_is_asked_for_or_what_a_device_has(cluster):
    assert PlanOptions().limit_bytes_on(cluster.device) == cluster.device.usable_bytes
    assert PlanOptions(memory_limit_bytes=0).limit_bytes_on(cluster.device) == 0


@pytest.fixture(scope="module")
def plan(cluster):
    """`plan(mode="inference")`: two blocks of GPT-2 small as asked; what is asked again is not planned again."""
    model = described("transformer:style=gpt,layers=2,hidden=768,heads=12,vocab=50257,seq=1024,batch=8,dtype=float")
    planned = functools.cache(lambda options: plan_model(model, cluster, options))
    return lambda **options: planned(PlanOptions(effort="quick", **options))


def test_inference_has_no_backward_and_no_optimizer(plan):
    served = plan(mode="inference").summary
    trained = plan().summary
    assert served.memory.gradients == served.memory.optimizer == 0
    assert served.step_ns < trained.step_ns / 2
    assert not [move for move in plan(mode="inference").moves if move.phase == "backward"]


def test_full_recomputation_trades_time_for_activations(plan):
    saved, recomputed = plan().summary, plan(remat="full").summary
    assert recomputed.step_ns > saved.step_ns
    assert recomputed.memory.activations < 0.5 * saved.memory.activations


def test_microbatches_need_less_memory_and_more_time(plan):
    one, four = plan().summary, plan(microbatches=4).summary
    assert four.memory.activations < 0.5 * one.memory.activations
    assert four.step_ns > one.step_ns


def test_microbatches_divide_the_batch(plan):
    with pytest.raises(ShardplanError) as caught:
        plan(microbatches=3)
    assert str(caught.value) == (
        "error[microbatches]: dim 0 of input 'input_ids' is 8 and cannot be cut into 3 microbatches\n"
        "hint: --microbatches takes a divisor of the batch: 1, 2, 4, 8"
    )


@pytest.mark.parametrize("optimizer", ["adam-mixed", "adam-fp32", "sgd", "none"])
def test_optimizers_differ_in_state(cluster, optimizer):
    """State by bytes of 16-bit weights: docs/cost-model.md."""
    model = described("transformer:gpt-1.7b,layers=1,batch=8")
    memory = plan_model(model, cluster, PlanOptions(effort="quick", optimizer=optimizer)).summary.memory
    expected = {"adam-mixed": 6, "adam-fp32": 4, "sgd": 1, "none": 0}[optimizer]
    assert memory.optimizer == pytest.approx(expected * memory.parameters, rel=0.01)


def test_wide_weights_are_their_own_master_copy(plan):
    memory = plan().summary.memory
    assert memory.optimizer == pytest.approx(2 * memory.parameters, rel=0.01)


def test_a_tighter_limit_is_kept_and_costs_a_little_time(cluster):
    model = described("transformer:style=gpt,layers=2,hidden=256,heads=8,vocab=2048,seq=128,batch=8")
    free = plan_model(model, cluster, PlanOptions(effort="quick")).summary
    limit = int(free.memory.total * 0.9)
    tight = plan_model(model, cluster, PlanOptions(effort="quick", memory_limit_bytes=limit)).summary
    assert tight.memory.total <= limit
    assert 0.995 * free.step_ns <= tight.step_ns <= 1.1 * free.step_ns
    assert free.step_bound_ns <= tight.step_ns


def test_no_plan_fits_in_a_tenth(plan):
    with pytest.raises(InfeasibleError) as caught:
        plan(memory_limit_bytes=100_000_000)
    assert caught.value.exit_code == 3


def test_unpresolved_optimum_is_the_same():
    model = read_model(MODELS / "lstm_lm.onnx")
    cluster = make_cluster(load_profile("generic"), "2")
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    for problem_of in (base_problem, step_problem):
        problem = problem_of(built, cluster.device.usable_bytes)
        assert solve(problem, presolve=False).cost == pytest.approx(solve(problem).cost, rel=1e-9)  # ties


def test_quantised_weights_cannot_be_trained(gpt2):
    assert not training_obstacles(gpt2)
    frozen = replace(gpt2, parameters=tuple(replace(p, trainable=False) for p in gpt2.parameters))
    [obstacle] = training_obstacles(frozen)
    assert obstacle.summary == "'gpt2_small' has no float weights to train"
    assert obstacle.hint == "plan it for serving: --mode inference"


def test_four_axes_come_with_a_warning():
    heard = []
    cluster = make_cluster(load_profile("generic"), "1x2x2x2")
    Planner(read_model(MODELS / "lstm_lm.onnx"), cluster, PlanOptions(effort="quick"), on_warning=heard.append)
    assert heard == []
    [warning] = many_axes(Mesh.of(a=2, b=2, c=2, d=2))
    assert warning.summary == (
        "4 mesh axes: the plan starts from that of a coarser mesh and is improved two axes at a time"
    )
    assert warning.hint == (
        "the lower bound is what the model computes, cut evenly: the gap says little of how good the plan is"
    )


SEVEN_AXES = """\
error[too-many-axes]: 7 mesh axes of more than one device; a plan is searched on at most 6
hint: merge axes over one link: --mesh machine=16,gpu=8 has the same devices
"""


@pytest.mark.parametrize("more", [(), ("--stages", "2"), ("--for", "jax")])
def test_a_mesh_of_seven_axes_is_refused(tmp_path, monkeypatch, capsys, more):
    monkeypatch.chdir(tmp_path)
    model = str(MODELS / "lstm_lm.onnx")
    code = main(["solve", model, "--mesh", "2x2x2x2x2x2x2", "-o", "x.plan.json", "--quiet", *more])
    assert (code, capsys.readouterr().err, list(tmp_path.iterdir())) == (2, SEVEN_AXES, [])


def test_axes_of_one_device_do_not_count():
    refuse_too_many_axes(make_cluster(load_profile("generic"), "1x2x1x2x2x2x1"))
