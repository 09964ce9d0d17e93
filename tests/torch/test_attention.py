"""`scaled_dot_product_attention` in every form that it may be called in."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import onnx
import torch
from forced_plans import forced_plan
from small_models import proto_of
from tensor_parallel import solved
from tiny_models import Sizes, tiny_gpt
from torch.nn import functional
from torch_context import GRAPH
from torch_twins import FORMS

from shardplan.torch.rules import attention
from shardplan.torch.rules.attention import attention_kernel

TINY = tiny_gpt(Sizes(layers=1))
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
        return attention_kernel(query, torch.zeros(1, 1, 64, 8), value, None, None, 1.0, 0.25, part)

    first = seen(0)
    assert torch.equal(first, seen(0))
    assert not torch.equal(first, seen(1))
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 64 / 0.75])
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("first", "keys", "told"), [(0, 24, "NoneType"), (8, 24, "CausalBias"), (16, 24, "CausalBias")]
)
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_a_part_of_causal_queries_takes_no_mask(monkeypatch, first, keys, told, rate):
    """Torch is told in a word which keys they see; it is given no others."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (8, keys, keys))
    calls, kernel = [], functional.scaled_dot_product_attention

    def watched(query, key, value, mask=None, rate=0.0, is_causal=False, **options):
        calls.append((key.shape[-2], value.shape[-2], type(mask).__name__, is_causal))
        return kernel(query, key, value, mask, rate, is_causal, **options)

    monkeypatch.setattr(attention, "functional", SimpleNamespace(scaled_dot_product_attention=watched))
    made = attention_kernel(query, key, value, None, first, 0.3, rate, 0)
    assert calls == [(first + 8, first + 8, told, told == "NoneType")]
    if rate:
        assert torch.isfinite(made).all()
        return
    mask = torch.ones(8, keys, dtype=torch.bool).tril(first)
    expected = kernel(query, key, value, mask, scale=0.3)
    assert torch.allclose(made, expected, atol=1e-6)
    scale = torch.linspace(1, 2, made.numel()).view(made.shape)
    ours, theirs = (torch.autograd.grad((one * scale).sum(), (query, key, value)) for one in (made, expected))
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("first", [0, 4, 8])
def test_causal_queries_may_be_more_than_keys(first):
    """Torch's causality begins with the first key whatever the lengths; the last queries see all keys."""
    query, key, value = (torch.randn(1, 2, length, 8) for length in (4, 6, 6))
    mask = torch.ones(4, 6, dtype=torch.bool).tril(first)
    expected = functional.scaled_dot_product_attention(query, key, value, mask, scale=0.3)
    assert torch.allclose(attention_kernel(query, key, value, None, first, 0.3, 0.0, 0), expected, atol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "exported"])
@pytest.mark.parametrize("factor", ["s", "t"])
def test_causal_queries_and_keys_are_split(four, tmp_path, factor, mode):
    """With its queries, each rank attends to all keys up to the last of them; with its keys, ranks merge shares."""
    onnx.save(proto_of(GRAPH), tmp_path / "context.onnx")
    fixed = f"operators: {{Attention: {{gpu: {factor}}}}}"
    plan = solved(str(tmp_path / "context.onnx"), tmp_path, fixed, "-c", "generic")
    assert [operator.split for operator in plan.operators if operator.op_type == "Attention"] == [(factor,)]
    for result, gradient, extra in four.run("torch_context", "attended", plan, mode):
        assert result < 1e-12
        assert gradient < 1e-12
        assert extra == {}
