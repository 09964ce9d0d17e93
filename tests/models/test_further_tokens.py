"""Modules that predict further tokens (multi-token prediction): parameters, names, plans, and where they lie in a
pipeline."""

from dataclasses import replace

import pytest
from published_configs import written

import shardplan
from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.graph.precision import narrowed
from shardplan.models.hugging_face import configured
from shardplan.models.named import NAMED, described
from shardplan.models.transformer import build
from shardplan.rules import model_rules
from shardplan.study.model_chunks import chunk_starts, layers_of

PLAIN = "layers=2,hidden=32,heads=4,vocab=64,seq=16,batch=4,mtp=2"
MIXED = (
    "layers=3,hidden=32,heads=4,vocab=64,seq=16,batch=4,experts=4,top_k=2,ffn=24,shared_ffn=16,dense_layers=1,"
    "dense_ffn=40,routing=dropless,mtp=1"
)
HYBRID = (
    "style=nemotron,layers=2,pattern=M*,mtp_pattern=*E,mtp=2,hidden=32,heads=4,kv_heads=2,vocab=64,"
    "seq=16,batch=4,state_heads=8,state_head_size=8,state_size=4,state_groups=4,experts=4,ffn=24,dense_ffn=40,"
    "shared_ffn=16,routing=dropless"
)


def weights(model):
    return {parameter.name: model.tensor(parameter.tensor).elements for parameter in model.parameters}


@pytest.mark.parametrize(
    ("name", "mtp", "billions", "published"),
    [
        ("deepseek-v3", 1, 682.64, 684.5),  # 671 + 14: its README, and the sum of its checkpoint
        ("glm-4.5", 1, 356.79, 358.34),
        ("nemotron-3-super", 2, 123.61, None),  # 120.7 without; its checkpoint has 123.6
    ],
)
def test_parameters_are_those_that_are_published(name, mtp, billions, published):
    """Checkpoints that say so keep embedding and output matrix once more for a module, which are the same weights."""
    spec = replace(NAMED[name], batch=1, seq=128, mtp=mtp)
    whole = sum(weights(build(spec)).values())
    assert whole / 1e9 == pytest.approx(billions, rel=1e-4)
    if published:
        assert (whole + 2 * spec.vocab * spec.hidden) / 1e9 == pytest.approx(published, rel=1e-4)


def test_a_module_has_the_names_of_checkpoints():
    found = weights(described(f"transformer:{MIXED}"))
    own = {name.removeprefix("model.layers.3.") for name in found if name.startswith("model.layers.3.")}
    assert {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"} <= own
    like = {name.removeprefix("model.layers.2.") for name in found if name.startswith("model.layers.2.")}
    assert own - like == {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"}
    assert found["model.layers.3.eh_proj.weight"] == 2 * 32 * 32


def test_every_module_reads_the_one_before_and_the_token_that_it_predicted():
    model = described(f"transformer:{PLAIN}")
    assert model.inputs == ("input_ids", "position_ids", "input_ids_1", "input_ids_2")
    assert [model.tensor(name).shape for name in model.outputs] == [(4, 16, 64)] * 3
    makers = {operator.outputs[0]: operator for operator in model.operators}
    joined = [
        operator for operator in model.operators if operator.module.endswith("eh_proj") and "Concat" in operator.op_type
    ]
    assert len(joined) == 2
    for depth, operator in enumerate(joined, start=1):
        embedded, hidden = (makers[name].inputs[0] for name in operator.inputs)
        assert makers[embedded].inputs == ("model.embed_tokens.weight", f"input_ids_{depth}")
        assert makers[hidden].module == ("model.norm" if depth == 1 else "model.layers.2.shared_head.norm")


def test_a_module_that_is_shared_has_its_weights_once():
    shared, own = (described(f"transformer:{HYBRID},mtp_shared={text}") for text in ("true", "false"))
    assert len(shared.operators) == len(own.operators)
    again = {name for name in weights(own) if name.startswith(("mtp.layers.2.", "mtp.layers.3."))}
    assert weights(own).keys() - again == weights(shared).keys()
    assert {"mtp.layers.0.eh_proj.weight", "mtp.layers.1.final_layernorm.weight"} <= weights(shared).keys()


@pytest.mark.parametrize("text", [PLAIN, MIXED, f"{HYBRID},mtp_shared=true", PLAIN.replace("mtp=2", "mtp=1,style=gpt")])
def test_plans_of_them_compute_what_the_model_does(text, tmp_path, capsys):
    plan, model = tmp_path / "own.plan.json", f"transformer:{text},dtype=float"
    assert main(["solve", model, "--mesh", "2x2", "-o", str(plan), "--no-advice", "--effort", "quick"]) == 0
    assert main(["verify", model, str(plan)]) == 0, capsys.readouterr()


SMALL = {
    "model_type": "deepseek_v3", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "kv_lora_rank": 16,
    "max_position_embeddings": 4096, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "vocab_size": 128, "tie_word_embeddings": False,
}  # fmt: skip
HYBRID_CONFIG = {
    "model_type": "nemotron_h", "head_dim": 8, "hidden_size": 32, "hybrid_override_pattern": "M*E",
    "intermediate_size": 16, "mamba_head_dim": 8, "mamba_num_heads": 8, "mlp_hidden_act": "relu2", "n_groups": 4,
    "conv_kernel": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "ssm_state_size": 4, "vocab_size": 64,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 16, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_configuration_has_them_where_they_are_asked_for(tmp_path):
    path = written(tmp_path, SMALL)
    without, one, none = (configured(path, {"seq": 16, **dims}) for dims in ({}, {"mtp": 1}, {"mtp": 0}))
    assert [(told.code, told.hint) for told in without.warnings] == [
        ("further-tokens", "--dim mtp=1 takes one in, as Megatron trains it, --dim mtp=0 none, as transformers has it")
    ]
    assert (one.warnings, none.warnings) == ((), ())
    assert weights(none) == weights(without)
    assert len(one.outputs) == 2
    assert sum(name.startswith("model.layers.2.") for name in weights(one)) > 10


@pytest.mark.parametrize(
    "kind", [{"mtp_hybrid_override_pattern": "*E"}, {"mtp_layers_block_type": ["attention", "moe"]}]
)
def test_one_module_of_a_hybrid_is_run_for_every_token(tmp_path, kind):
    path = written(tmp_path, {**HYBRID_CONFIG, **kind})
    once, twice = (configured(path, {"seq": 16, "mtp": times}) for times in (1, 2))
    assert weights(once) == weights(twice)
    assert (len(once.outputs), len(twice.outputs)) == (2, 3)
    assert "mtp.layers.1.mixer.shared_experts.down_proj.weight" in weights(once)


@pytest.mark.parametrize(
    ("config", "mtp", "said"),
    [
        ({**SMALL, "num_nextn_predict_layers": 0}, 1, "there is no num_nextn_predict_layers, so that not 1 further"),
        ({**SMALL, "num_nextn_predict_layers": 2}, 3, "num_nextn_predict_layers is 2, so that not 3 further tokens"),
        (HYBRID_CONFIG, 1, "there is no mtp_hybrid_override_pattern of the letters M, *, - and E"),
    ],
)
def test_a_configuration_that_does_not_say_them_is_refused(tmp_path, config, mtp, said):
    with pytest.raises(ShardplanError) as caught:
        configured(written(tmp_path, config), {"seq": 16, "mtp": mtp})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "chunks", "expected"),
    [
        (61, 16, [*[4] * 15, 1]),
        (61, 8, [*[8] * 7, 5]),
        (61, 32, [1, *[2] * 30, 0]),
        (7, 2, [5, 2]),
    ],
)
def test_the_last_stage_has_fewer_layers(layers, chunks, expected):
    """DeepSeek-V3 in Megatron-Bridge: `Et*4|(tttt|)*14tmL`, and `Et|(tt|)*30mL`."""
    assert layers_of(layers, chunks, 1) == expected


def test_a_stage_may_have_the_module_alone():
    model = build(replace(NAMED["deepseek-v3"], batch=1, seq=128, mtp=1))
    assert model.operators[chunk_starts(model, 32)[-1]].module == "model.norm"


def test_a_pipeline_has_the_module_and_its_loss_in_the_last_stage():
    sizes = "transformer:layers=6,hidden=64,heads=4,vocab=64,seq=32"
    asked = {"cluster": "h100-dgx", "pp": 2, "global_batch": 8, "micro_batch": 1}
    without, found = (shardplan.price(f"{sizes}{more}", **asked) for more in ("", ",mtp=1"))
    last = [stage.plan.summary.compute_ns for stage in found.plan.pipeline.stages][-1]
    assert last > [stage.plan.summary.compute_ns for stage in without.plan.pipeline.stages][-1]
    assert found.memory[1].parameters > without.memory[1].parameters


def test_products_of_layers_like_no_other_are_narrow_too():
    """The only dense layer of a mixture, and a module that predicts further tokens; not those that have a place of
    their own (Nemotron 3 keeps them in 16 bits), nor the output matrix."""
    for spec, inside, outside in (
        (replace(NAMED["kimi-k2"], layers=4), "model.layers.0.mlp.", "lm_head"),
        (replace(NAMED["deepseek-v3"], layers=5, mtp=1), "model.layers.5.eh_proj", "lm_head"),
        (replace(NAMED["nemotron-3-super"], layers=16, mtp=1), "backbone.layers.7.", "mtp.layers"),
    ):
        model = build(replace(spec, batch=1, seq=128))
        found = {model.operators[index].module for index in narrowed(model, model_rules(model), "fp8")}
        assert any(module.startswith(inside) for module in found), inside
        assert not any(module.startswith(outside) for module in found), outside
