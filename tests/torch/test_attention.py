"""`scaled_dot_product_attention` in every form that it may be called in."""

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from small_models import proto_of
from tensor_parallel import solved
from tiny_models import tiny_gpt
from torch_context import GRAPH
from torch_twins import FORMS

from shardplan.torch.rules_attention import attend

TINY = tiny_gpt()
EXACT = sorted(set(FORMS) - {"dropping"})


@pytest.fixture(scope="module")
def plan_of(tmp_path_factory):
    model = TINY.model(tmp_path_factory.mktemp("model"))
    return {
        "heads": forced_plan(model, "2x2", recipe="Megatron"),
        "inside": forced_plan(model, "2x2", seed=2),  # splits what the kernel needs whole
    }


@pytest.mark.parametrize(
    ("form", "split", "mode"),
    [
        *((form, "heads", "eager") for form in EXACT),
        ("allowing mask", "inside", "eager"),
        ("scaled", "inside", "eager"),
        ("scaled", "inside", "exported"),
    ],
)
def test_forms_are_all_the_same(four, plan_of, form, split, mode):
    for seen in four.run("torch_cases", "train", TINY, plan_of[split], mode, form, 1, False):
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert seen.record[1] == {}


@pytest.mark.parametrize(("split", "mode"), [("heads", "eager"), ("heads", "exported"), ("inside", "eager")])
def test_shares_are_dropped_alike_where_ranks_hold_the_same(four, plan_of, split, mode):
    """Were they not, ranks that hold the same values would drift apart, and see other logits."""
    (first, losses), *others = four.run("torch_cases", "dropping", TINY, plan_of[split], mode)
    assert losses[1] != losses[0]
    for logits, seen in others:
        assert torch.equal(logits, first)
        assert seen == losses


def test_what_is_left_is_scaled_and_parts_draw_their_own():
    """Queries of zeros see all keys alike, and values of ones show which they saw."""
    query, value = torch.zeros(1, 1, 64, 8), torch.eye(64)[None, None]

    def seen(part):
        torch.manual_seed(0)
        return attend(query, torch.zeros(1, 1, 64, 8), value, None, None, 1.0, 0.25, part)

    first = seen(0)
    assert torch.equal(first, seen(0))
    assert not torch.equal(first, seen(1))
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 64 / 0.75])
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("factor", ["s", "t"])
def test_causal_queries_and_keys_are_split(four, tmp_path, factor, mode):
    """With its queries, each rank attends to all keys up to the last of them; with its keys, ranks merge shares."""
    onnx.save(proto_of(GRAPH), tmp_path / "context.onnx")
    fixed = f"operators: {{Attention: {{gpu: {factor}}}}}"
    plan = solved(str(tmp_path / "context.onnx"), tmp_path, fixed, "-c", "generic")
    assert [operator.split for operator in plan.operators if operator.op_type == "Attention"] == [(factor,)]
    for result, gradient, extra in four.run("torch_context", "attended", plan, mode):
        assert result < 1e-6
        assert gradient < 1e-5
        assert extra == {}
