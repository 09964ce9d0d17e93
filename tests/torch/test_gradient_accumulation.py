"""Plans of several microbatches: gradients add up to those of the whole batch; what is sent is what the plan says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from small_models import proto_of
from tiny_models import Sizes, tiny_gpt, tiny_llama, tiny_moe

from shardplan.errors import ShardplanError
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.layout.placement import R, S
from shardplan.model.read import read_model
from shardplan.torch.microbatch_plan import batch_dims, fewest_rows, one_microbatch, with_rows
from shardplan.torch.microbatches import Microbatches

TWO = PlanOptions(microbatches=2)
TINIES = {"gpt": tiny_gpt(Sizes(batch=8)), "moe": tiny_moe()}


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    models = {name: tiny.model(tmp_path_factory.mktemp(name)) for name, tiny in TINIES.items()}
    return lambda name, recipe: forced_plan(models[name], "2x2", TWO, recipe=recipe)


@pytest.mark.parametrize(
    ("name", "recipe", "mode"),
    [
        ("gpt", "data parallel", "eager"),
        ("gpt", "ZeRO-3", "eager"),
        ("gpt", "Megatron + sequence", "exported"),
        ("moe", "Megatron", "eager"),
    ],
)
def test_gradients_add_up_and_are_reduced_as_often_as_planned(four, plan_of, name, recipe, mode):
    for seen in four.run("torch_cases", "accumulate", TINIES[name], plan_of(name, recipe), mode):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.differences == {}


@pytest.mark.parametrize("make", [tiny_gpt, tiny_llama, tiny_moe])
def test_shapes_of_a_microbatch_are_those_of_the_model_exported_with_its_rows(tmp_path, make):
    large = forced_plan(make(Sizes(batch=8, kv_heads=2)).model(tmp_path), "2x2", TWO)
    small = forced_plan(make(Sizes(batch=4, kv_heads=2)).model(tmp_path), "2x2")
    shapes = {tensor.name: tensor.shape for tensor in small.tensors}
    assert {tensor.name: tensor.shape for tensor in one_microbatch(large).tensors} == shapes
    assert set(batch_dims(large)) == {tensor.name for tensor in large.tensors if tensor.shape != shapes[tensor.name]}


def test_a_plan_of_one_microbatch_is_left_alone(tmp_path):
    plan = forced_plan(tiny_gpt().model(tmp_path), "2x2")
    assert one_microbatch(plan) is plan


MERGED = """
net (float[8,4,6,2] x, float[8,6,2] other) => (float[32,6,4] y, float[16,6,4] both)
<float[2,4] weight, int64[3] merged = {32,6,2}> {
  rows = Reshape (x, merged)
  y = MatMul (rows, weight)
  pair = Concat <axis = 0> (other, other)
  both = MatMul (pair, weight)
}"""


def test_segments_of_a_dim_with_the_rows_in_it_become_fewer_or_shorter(tmp_path):
    """Fewer where each consists of the heads of a row, shorter where each consists of rows."""
    onnx.save(proto_of(MERGED), tmp_path / "net.onnx")
    plan = forced_plan(read_model(tmp_path / "net.onnx"), "1x2", recipe="data parallel")

    def of(heads, pair):
        return {"rows": Layout.of(R, S(0, heads)), "pair": Layout.of(R, S(0, pair))}

    split = of((4,) * 8, (8, 8))
    plan = replace(
        plan,
        tensors=tuple(replace(each, layout=split.get(each.name, each.layout)) for each in plan.tensors),
        operators=tuple(replace(each, reads=(split.get(each.inputs[0]), *each.reads[1:])) for each in plan.operators),
        model={**plan.model, "microbatches": 2},
    )
    for small in (one_microbatch(plan), with_rows(plan, {"x": 4, "other": 4})):
        wanted = of((4,) * 4, (4, 4))
        assert {each.name: each.layout for each in small.tensors if each.name in wanted} == wanted
        assert [each.reads[0] for each in small.operators] == [wanted.get(each.inputs[0]) for each in small.operators]
    assert with_rows(plan, {"x": 3, "other": 3}) is None
    assert fewest_rows(plan, "x", ["x", "other"]) == 2


def test_too_few_rows_are_refused(tmp_path):
    """The planner makes no such plan; one may come from elsewhere."""
    plan = forced_plan(tiny_gpt().model(tmp_path), "2x2", recipe="data parallel", bucket_bytes=0.0)
    plan = replace(plan, model={**plan.model, "microbatches": 2})
    with pytest.raises(ShardplanError) as caught:
        one_microbatch(plan)
    assert str(caught.value) == (
        "error[small-microbatch]: one of 2 microbatches has too few rows to be sharded as the plan says\n"
        "  input_ids [2, 16] as S(0)@machine,gpu\n"
        "  gather_0 [2, 16, 32] as S(0)@machine,gpu\n"
        "hint: solve with fewer --microbatches, or for a larger batch"
    )


TEXTS = {
    "whole batch": "error[wrong-shape]: input 'input_ids' has shape [8, 16], each of the plan's 2 microbatches has "
    "[4, 16]\nhint: cut the batch of a step: for part in shardplan.torch.microbatches(model, batch)",
    "targets": "error[uneven-batch]: 'targets' has shape [6, 16]; its dim 0 cannot be cut into 8 equal parts\n"
    "hint: give it one row for each sample of the batch",
}


@pytest.mark.parametrize("what", TEXTS)
def test_refusal(four, plan_of, what):
    assert four.run("torch_cases", "refused", TINIES["gpt"], plan_of("gpt", "data parallel"), what) == [TEXTS[what]] * 4


def test_an_input_of_one_row_is_that_of_every_microbatch(plan_of):
    """Such as a mask."""
    accumulator = SimpleNamespace(reset=lambda: None, begin_microbatch=lambda *_: None)
    applied = SimpleNamespace(execution=SimpleNamespace(accumulator=accumulator), plan=plan_of("gpt", "data parallel"))
    mask = torch.ones(1, 1, 16, 16)
    assert [part["mask"].shape for part in Microbatches(applied, {"mask": mask})] == [mask.shape] * 2
