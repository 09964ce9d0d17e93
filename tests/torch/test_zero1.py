"""Plans whose optimizer state is sharded apart from the weights (ZeRO-1): parameters are kept where their state is."""

import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from forced_plans import forced_plan
from safetensors.numpy import save_file
from tiny_models import Sizes, tiny_gpt

from shardplan.graph.options import PlanOptions
from shardplan.layout.legal import local_shape
from shardplan.loading.assign import assign
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.split import split

TINY = tiny_gpt(Sizes(batch=8))


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    model = TINY.model(tmp_path_factory.mktemp("model"))
    return lambda micro: forced_plan(
        model, "2x2", PlanOptions(shard_optimizer=True, microbatches=micro), recipe="ZeRO-1"
    )


@pytest.mark.parametrize("mode", ["eager", "exported"])
def test_trains_as_one_process_and_sends_what_the_plan_says(four, plan_of, mode):
    for seen in four.run("torch_cases", "train", TINY, plan_of(1), mode, False, 2, True, True):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert any(phase == "update" and kind == "all_gather" for phase, kind, _ in seen.actual)
        assert seen.differences == {}


def test_new_weights_come_once_for_all_microbatches(four, plan_of):
    for seen in four.run("torch_cases", "accumulate", TINY, plan_of(2)):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {}


def test_a_process_holds_and_reads_what_its_optimizer_updates(four, plan_of, tmp_path):
    plan = plan_of(1)
    checkpoint = tmp_path / "model.safetensors"
    save_file(dict(TINY.weights), checkpoint)
    parameters = [tensor for tensor in plan.tensors if tensor.role == "parameter"]
    held = sum(math.prod(local_shape((t.optimizer or t.layout).forward, plan.mesh, t.shape)) for t in parameters)
    assert held < sum(math.prod(tensor.shape) for tensor in parameters) / 2
    split(assign(plan, open_checkpoint(checkpoint)), tmp_path / "split")
    for path in (checkpoint, tmp_path / "split"):
        for elements, weight_error, loss_error in four.run("torch_cases", "load", TINY, plan, str(path)):
            assert elements == held
            assert weight_error == 0
            assert loss_error < 1e-6
