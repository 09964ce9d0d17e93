"""Recomputation of some layers: `shardplan.study.recompute`, and `price` with it."""

from itertools import pairwise

import pytest

import shardplan
from shardplan.errors import ShardplanError
from shardplan.graph.options import Layers, PlanOptions
from shardplan.graph.recomputed_layers import blocks, chosen_layers, layers_of, recomputed_share
from shardplan.pipeline.cut_points import chain_at, part_of
from shardplan.study.instance import load_model
from shardplan.study.model_chunks import chunk_starts
from shardplan.study.recompute import Recomputation, recompute_of

COUNT = 4
MODEL = f"transformer:style=llama,layers={COUNT},hidden=256,heads=4,vocab=512,seq=512"
ALTERNATING = "transformer:style=llama,layers=6,hidden=256,heads=8,vocab=512,seq=64,experts=4,top_k=2,moe_every=2"
TWO_KINDS = ALTERNATING.replace("moe_every=2", "dense_layers=2,dense_ffn=128")
WAYS = [{"dp": 2, "zero": 3}, {"tp": 2, "pp": 2, "dp": 1, "micro_batch": 2}]


def priced(scheme, **ways):
    return shardplan.price(MODEL, recompute=scheme, global_batch=16, micro_batch=ways.pop("micro_batch", 8), **ways)


def both(scheme, **ways):
    """Bytes of activations of the fullest device, and the step."""
    found = priced(scheme, **ways)
    return found.peak.total, found.plan.summary.step_ns


@pytest.fixture(scope="module", params=WAYS, ids=lambda ways: " ".join(f"{key}={value}" for key, value in ways.items()))
def block(request):
    """By number of recomputed layers of a stage: memory and time. The last has one more than there are."""
    ways = request.param
    own = COUNT // ways.get("pp", 1)
    return ways, [both(f"block:{number}", **ways) for number in range(own + 2)]


def test_more_recomputed_layers_take_more_time_and_less_memory(block):
    _, found = block
    for (memory, step), (less, longer) in pairwise(found[:-2]):
        assert less < memory
        assert longer > step
    (memory, step), (last, longest) = found[-3:-1]
    assert longest > step  # without a pipeline the last layer's activations are read at once, and save nothing
    assert last <= memory * 1.05


def test_no_layers_are_none_and_all_layers_are_full(block):
    ways, found = block
    assert found[0] == both("none", **ways)
    assert found[-1] == found[-2] == both("full", **ways)


def test_each_nth_layer_is_between_all_and_none(block):
    ways, found = block
    assert both("every:1", **ways) == found[-1]
    assert both("every:100", **ways) == found[0]
    step = both("every:2", **ways)[1]
    assert found[-1][1] > step > found[0][1]
    assert step == pytest.approx(found[1 if "pp" in ways else 2][1], rel=2e-3)  # as many layers as in a block


def test_longer_chunks_save_fewer_borders_and_hold_more_layers():
    ways = WAYS[0]
    single, pairs, whole = (both(f"uniform:{number}", **ways) for number in (1, 2, COUNT))
    assert single == both("full", **ways)
    assert single[0] < pairs[0] < whole[0]  # a second layer holds more than two borders
    assert pairs[1] == pytest.approx(single[1], rel=2e-3)
    assert whole[1] == pytest.approx(single[1], rel=2e-3)


@pytest.mark.parametrize(
    ("described", "kinds"), [(MODEL.replace("layers=4", "layers=6"), 1), (ALTERNATING, 1), (TWO_KINDS, 2)]
)
def test_layers_are_counted_one_by_one(described, kinds):
    """Also where each second layer is a mixture of experts, and the block that repeats has two of them."""
    model = load_model(described, {"batch": 4})
    assert len(model.blocks) == kinds
    layers = layers_of(model)
    assert len(layers) == 6
    assert frozenset().union(*(each.operators for each in layers)) == frozenset().union(
        *(each.operators for each in blocks(model))
    )
    assert sum(len(each.operators) for each in layers) == sum(len(each.operators) for each in blocks(model))
    assert all(max(first.operators) < min(then.operators) for first, then in pairwise(layers))
    assert chosen_layers(model, Layers("block", 2)) == layers[:2]
    assert chosen_layers(model, Layers("every", 2)) == layers[1::2]
    assert [each.last for each in chosen_layers(model, Layers("uniform", 4))] == [layers[3].last, layers[5].last]
    assert recomputed_share(model, PlanOptions(remat="full", full_layers=Layers("every", 2))) == 0.5


def test_a_stage_counts_its_own_layers():
    model = load_model(MODEL, {"batch": 4})
    chain = chain_at(model, chunk_starts(model, 2))
    for place in range(2):
        own = part_of(chain, place, place + 1, "stage")
        assert len(layers_of(own)) == 2
        assert len(chosen_layers(own, Layers("block", 1))) == 1


def test_a_plan_says_by_operator_what_is_recomputed(tmp_path):
    plan = priced("every:2", dp=2).plan
    again = {operator.name.split("/")[0] for operator in plan.operators if operator.recomputed_before}
    assert plan.model["remat"] == "auto"
    assert again
    shardplan.save(plan, tmp_path / "p.json")
    assert shardplan.load(tmp_path / "p.json").operators == plan.operators


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("none", ("none", None)), ("selective", ("selective", None)), ("core_attn", ("selective", None)),
        ("alternate", ("alternate", None)), ("op", ("alternate", None)), ("full", ("full", None)),
        ("block:0", ("none", None)), ("block:1", ("full", Layers("block", 1))), ("every:1", ("full", None)),
        ("every:2", ("full", Layers("every", 2))), ("uniform:1", ("full", None)),
        ("uniform:4", ("full", Layers("uniform", 4))),
    ],
)  # fmt: skip
def test_schemes(text, meant):
    assert recompute_of(text) == Recomputation(*meant)


@pytest.mark.parametrize(
    "text", ["", "auto", "mlp,full", "moe_experts", "minimal", "block", "block:", "block:-1", "every:0",
             "uniform:0", "block:²", "every:" + "9" * 5000, "full:2", "selective:2", ","],
)  # fmt: skip
def test_other_schemes_are_refused(text):
    with pytest.raises(ShardplanError) as caught:
        recompute_of(text)
    (told,) = caught.value.diagnostics
    assert told.code == "bad-argument"
    assert told.hint == (
        "none, selective (or core_attn), alternate (or op), full, block:N, every:N, uniform:N, or modules of layers "
        "with commas between: core_attn, layernorm, moe_act, mla_up_proj, shared_experts, mlp, moe; docs/price.md "
        "lists what trainers call them"
    )
