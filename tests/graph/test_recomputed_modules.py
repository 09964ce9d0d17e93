"""Parts of layers that trainers recompute by name."""

from pathlib import Path

import pytest

import shardplan
from shardplan.errors import ShardplanError
from shardplan.graph.flow import trace
from shardplan.graph.recomputed_modules import MODULES, check_modules, recomputed_modules
from shardplan.rules import model_rules
from shardplan.study.instance import load_model
from shardplan.study.recompute import Recomputation, recompute_of

SIZES = "layers=3,hidden=64,heads=4,ffn=96,vocab=128,seq=32,batch=8"
LATENT = (
    f"transformer:{SIZES},experts=4,top_k=2,routing=dropless,shared_ffn=80,head_size=24,kv_rank=32,q_rank=40,"
    "rope_size=8,value_size=16"
)
DENSE = f"transformer:{SIZES}"


def operators_of(text, name):
    """Short names of the operators of each segment in the first layer, and where they are run again."""
    model = load_model(text, {})
    rules = model_rules(model)
    found = recomputed_modules(model, rules, trace(model, rules, training=True), (name,))
    first = [one for one in found if all(".layers.0." in model.operators[index].name for index in one.operators)]
    return [
        ([short(model.operators[index].name) for index in sorted(one.operators)], short(model.operators[one.last].name))
        for one in first
    ]


def short(name):
    return name.removeprefix("model.layers.0.")


def test_norms_are_made_again_for_the_products_that_read_them():
    assert operators_of(DENSE, "layernorm") == [
        (["input_layernorm.RMSNormalization"], "self_attn.v_proj.MatMul"),
        (["post_attention_layernorm.RMSNormalization"], "mlp.up_proj.MatMul"),
    ]


def test_an_mlp_is_run_again_as_a_whole():
    ((names, last),) = operators_of(DENSE, "mlp")
    assert names == ["mlp.gate_proj.MatMul", "mlp.up_proj.MatMul", "mlp.Sigmoid", "mlp.Mul", "mlp.Mul_2",
                     "mlp.down_proj.MatMul"]  # fmt: skip
    assert last == "mlp.down_proj.MatMul"


def test_a_mixture_is_no_mlp_and_has_parts():
    assert operators_of(LATENT, "mlp") == []
    ((whole, _),) = operators_of(LATENT, "moe")
    ((acts, reader),) = operators_of(LATENT, "moe_act")
    ((shared, _),) = operators_of(LATENT, "shared_experts")
    assert acts == ["mlp.experts.Sigmoid", "mlp.experts.Mul", "mlp.experts.Mul_2"]
    assert reader == "mlp.experts.Einsum_3"
    assert [name.split(".")[-2] for name in shared if "MatMul" in name] == ["gate_proj", "up_proj", "down_proj"]
    assert all(name.startswith("mlp.shared_experts.") for name in shared)
    assert {*acts, *shared} < set(whole)
    assert "mlp.gate.TopK" in whole


def test_queries_keys_and_values_are_made_again_from_latents():
    ((names, reader),) = operators_of(LATENT, "mla_up_proj")
    products = [name.split(".")[-2] for name in names if "MatMul" in name]
    assert products == ["q_b_proj", "kv_b_proj"]
    assert reader == "self_attn.Attention"
    assert "self_attn.Expand" in names, "the part of the keys that all heads share waits once, not for each head"
    assert not [name for name in names if "layernorm" in name]


@pytest.mark.parametrize("style", ["gpt", "bert", "olmo2", "gemma,post_norm=true", "phi3", "llama,mixers=M*"])
def test_styles_have_norms_and_mlps(style):
    text = f"transformer:{SIZES},style={style}".replace("layers=3", "layers=4")
    model = load_model(text, {})
    check_modules(model, model_rules(model), ("layernorm", "mlp"))


def test_what_no_layer_has_is_refused():
    model = load_model(DENSE, {})
    check_modules(model, model_rules(model), ("mlp", "layernorm"))
    with pytest.raises(ShardplanError) as caught:
        check_modules(model, model_rules(model), ("mlp", "moe", "mla_up_proj"))
    assert "no repeated layer of this model has mla_up_proj or moe, which is to be recomputed" in str(caught.value)


def test_words():
    assert recompute_of("moe_act,layernorm") == Recomputation("selective", modules=("layernorm", "moe_act"))
    assert recompute_of("mlp core_attn") == Recomputation("selective", modules=("core_attn", "mlp"))


def priced(recompute, model=LATENT, **ways):
    """Bytes of activations, and microseconds of compute."""
    found = shardplan.price(model, recompute=recompute, dp=2, micro_batch=4, global_batch=8, **ways)
    return found.peak.activations, found.spent.compute_ns


def test_a_dropped_norm_saves_its_result():
    """In each layer two values of 4 rows, 32 tokens and 64 numbers of 2 bytes; the last layer's are read at once."""
    before, after = priced("none", DENSE)[0], priced("layernorm", DENSE)[0]
    assert before - after in {count * 4 * 32 * 64 * 2 for count in (4, 5, 6)}


@pytest.mark.parametrize("name", MODULES)
def test_time_for_memory(name):
    model = DENSE if name == "mlp" else LATENT
    (memory, time), (less, longer) = priced("none", model), priced(name, model)
    assert less < memory
    assert longer > time


def test_norms_of_an_export_are_dropped_with_their_views():
    """Exporters reshape them; 12 layers have two of 2 rows, 1024 tokens and 768 numbers of 4 bytes."""
    model = Path(__file__).parents[1] / "models" / "gpt2_small.onnx"
    found = [
        shardplan.price(model, dp=4, micro_batch=2, recompute=name).peak.activations for name in ("none", "layernorm")
    ]
    assert found[0] - found[1] == 24 * 2 * 1024 * 768 * 4


def test_a_larger_module_saves_more():
    parts, whole = priced("moe_act,shared_experts"), priced("moe,moe_act")
    assert whole[0] < parts[0]
    assert whole[1] > parts[1]
    assert priced("moe") == priced("moe,moe_act")
