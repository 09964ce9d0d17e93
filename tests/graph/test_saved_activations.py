"""What backward finds saved, held against the published account of a transformer layer, from its graph."""

import numpy as np

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.build import build_cost_graph
from shardplan.graph.flow import trace
from shardplan.graph.fusion import fuse
from shardplan.graph.options import PlanOptions
from shardplan.graph.remat import recompute
from shardplan.models import transformer
from shardplan.rules import model_rules

GPT = {"style": "gpt", "layers": 3, "hidden": 256, "heads": 8, "vocab": 512, "seq": 128, "batch": 2}


def layer_bytes(model, *, remat="none", layer=1):
    """Bytes saved of the values made in one layer, unsharded."""
    rules = model_rules(model)
    flow = trace(model, rules, training=True)
    fusion = fuse(model, rules, flow)
    saved = recompute(model, rules, flow, fusion, PlanOptions(remat=remat)).saved
    made = {name for index in model.blocks[0].copies[layer] for name in model.operators[index].outputs}
    return sum(model.tensor(name).size_bytes for name in saved & made)


def test_a_layer_saves_what_korthikanti_counts():
    """Reducing Activation Recomputation, equation 1: s b h (34 + 5 a s / h) bytes; selective: s b h 34."""
    model = transformer(**GPT, dropout=True, attention="decomposed")
    s, b, h, a = 128, 2, 256, 8
    assert layer_bytes(model) == s * b * h * (34 + 5 * a * s // h)
    assert layer_bytes(model, remat="selective") == s * b * h * 34


def test_alternate_saves_attention_every_other_product_and_the_border():
    """Of q, k, v, o, gate, up and down: the first, third, fifth and seventh, what attention makes, and what the layer
    hands on."""
    model = transformer(style="llama", layers=3, hidden=256, heads=8, kv_heads=2, ffn=704, vocab=512, seq=128, batch=2)
    elements = 256 + 64 + 704 + 256 + 256 + 256
    assert layer_bytes(model, remat="alternate") == 2 * 128 * 2 * elements
    assert layer_bytes(model, remat="full") == 2 * 128 * 2 * 256


def test_fused_attention_saves_no_scores():
    """As the selective row, and the output once more: the fused backward reads it beside the projection's."""
    model = transformer(**GPT, dropout=True)
    assert layer_bytes(model) == 128 * 2 * 256 * 34


def test_queries_keys_and_values_of_one_projection_count_each():
    model = transformer(**GPT)
    rules = model_rules(model)
    flow = trace(model, rules, training=True)
    attention = next(operator for operator in model.operators if operator.op_type == "Attention")
    assert set(attention.inputs) <= flow.saved


def test_kernels_wait_for_nothing_that_waits_for_them():
    """Groups of elementwise operators, contracted, leave a graph without cycles."""
    model = transformer(**GPT, dropout=True, attention="decomposed")
    rules = model_rules(model)
    flow = trace(model, rules, training=True)
    fusion = fuse(model, rules, flow)
    group = list(range(len(model.operators)))
    for index, operator in enumerate(model.operators):
        for name in operator.inputs:
            if name in fusion.inner:
                first = group[flow.makers[name][0]]
                group = [first if g == group[index] else g for g in group]
    edges = {
        (group[flow.makers[name][0]], group[index])
        for index, operator in enumerate(model.operators)
        for name in operator.inputs
        if name in flow.makers and group[flow.makers[name][0]] != group[index]
    }
    waiting, left = set(group), set(edges)
    while ready := {g for g in waiting if not any(after == g for _, after in left)}:
        waiting -= ready
        left = {(before, after) for before, after in left if before in waiting}
    assert not waiting
    assert any("LayerNormalization" in name for name in flow.makers if name not in fusion.inner)


def test_the_residual_stream_is_written_to_memory():
    model = transformer(**GPT)
    rules = model_rules(model)
    fusion = fuse(model, rules, trace(model, rules, training=True))
    sums = [o.outputs[0] for o in model.operators if o.op_type == "Add" and o.module.count(".") == 2]
    assert len(sums) == 2 * GPT["layers"]
    assert not fusion.inner.intersection(sums[:-1])  # the last one is read by the final norm alone


def test_a_dropout_mask_stays_as_it_was_made():
    """Nobody reads it but its own backward, which has no use for it in any other layout."""
    model = transformer(**GPT, dropout=True)
    cluster = make_cluster(load_profile("generic"), "2x2")
    built = build_cost_graph(model, model_rules(model), cluster, PlanOptions())
    operator = next(o for o in model.operators if o.op_type == "Dropout" and o.module == "transformer.h.1")
    mask = operator.outputs[1]
    (data,) = built.graph.get_edge_data(("operator", operator.name), ("kept", mask)).values()
    strategies = built.graph.nodes["operator", operator.name]["space"].strategies
    made, kept = strategies.makes[1][0], built.kept[mask].forward
    allowed = ~data["priced"].closed
    assert np.array_equal(allowed, made[:, None] == kept[None, :])
    assert allowed.any(axis=1).all()
