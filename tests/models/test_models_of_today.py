"""Descriptions of mixtures by index, latent attention and windows: sizes, values, and what they cost."""

from dataclasses import replace

import pytest
from published_configs import written

import shardplan
from shardplan.cli import main
from shardplan.errors import ShardplanError
from shardplan.models import NAMED, build, configured, described
from shardplan.plan.file import read_plan

ROUTED = "layers=2,hidden=32,heads=4,vocab=64,seq=16,batch=4,experts=4,ffn=48,routing=dropless,skew=1.5"
SHARED = f"{ROUTED},shared_ffn=24,shared_gate=true,dense_layers=1,dense_ffn=40"
LATENT = (
    "layers=1,hidden=32,heads=4,vocab=64,seq=16,batch=4,head_size=24,q_rank=16,kv_rank=12,rope_size=8,value_size=16"
)
WINDOWS = "layers=2,hidden=32,heads=4,vocab=64,seq=16,batch=4,window=4,window_every=2,post_norm=true"
HYBRID = (
    "style=nemotron,layers=4,pattern=ME*-,hidden=32,heads=4,kv_heads=2,vocab=64,seq=16,batch=4,state_heads=8,"
    "state_head_size=8,state_size=4,state_groups=4,experts=4,ffn=24,dense_ffn=40,shared_ffn=16,expert_latent=16,"
    "routing=dropless"
)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("deepseek-v3", 671.0, 37.6),
        ("qwen3-30b-a3b", 30.5, 3.35),
        ("gemma3-27b", 27.0, 27.0),
        ("nemotron-3-nano", 31.6, 3.58),
    ],
)
def test_named_models_have_as_many_parameters_as_published(name, billions, active):
    spec = NAMED[name]
    model = build(replace(spec, batch=1, seq=128))
    sizes = [model.tensor(parameter.tensor) for parameter in model.parameters]
    experts = sum(tensor.elements for tensor in sizes if len(tensor.shape) == 3)
    whole = sum(tensor.elements for tensor in sizes)
    used = whole - experts + (experts * spec.top_k // spec.experts if spec.experts else 0)
    assert whole / 1e9 == pytest.approx(billions, rel=0.002)
    assert used / 1e9 == pytest.approx(active, rel=0.005)


def test_a_named_mixture_is_what_its_published_configuration_is(tmp_path):
    """GShard's masks drop tokens and multiply by zeros; no published mixture is trained so."""
    assert {name: spec.routing for name, spec in NAMED.items() if spec.experts and spec.routing != "dropless"} == {}
    keys = {
        "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    assert configured(written(tmp_path, keys), {"seq": 4096}).operators == build(NAMED["mixtral-8x7b"]).operators
    masked = described("transformer:mixtral-8x7b,routing=capacity")
    assert "bsec,bsh->ebch" in {one.attributes.get("equation") for one in masked.operators}


@pytest.mark.parametrize("text", [ROUTED, SHARED, LATENT, WINDOWS, ROUTED.replace("dropless", "capacity")])
def test_plans_of_them_compute_what_the_model_does(text, tmp_path, capsys):
    plan = tmp_path / "own.plan.json"
    model = f"transformer:{text},dtype=float"
    assert main(["solve", model, "--mesh", "2x2", "-o", str(plan)]) == 0
    assert main(["verify", model, str(plan)]) == 0, capsys.readouterr()


def test_heads_of_a_state_space_are_split_and_it_computes_the_same(tmp_path, capsys):
    """One weight makes gate, value, keys, queries and steps; every device has its part of each."""
    plan = tmp_path / "own.plan.json"
    model = f"transformer:{HYBRID},dtype=float"
    asked = tmp_path / "by_heads.yaml"
    asked.write_text(
        "parameters: {'*.in_proj.weight': 'S(0;2x64,2x16,8)@gpu'}\n"
        "operators: {'*.mixer.LinearAttention': {gpu: h}, '*.out_proj': {gpu: k}}\n"
    )
    assert main(["solve", model, "--mesh", "2x2", "-o", str(plan), "--constraints", str(asked), "--no-advice"]) == 0
    assert main(["verify", model, str(plan)]) == 0, capsys.readouterr()
    held = {row["name"]: row["layout"] for row in read_plan(plan).records("parameters")}
    assert held["backbone.layers.0.mixer.out_proj.weight"] == "S(1)@gpu"


def test_by_index_nothing_is_multiplied_by_masks():
    wide = "transformer:layers=1,hidden=64,heads=4,vocab=64,seq=1024,experts=32,ffn=32,batch=4"
    seconds = [
        shardplan.price(f"{wide},routing={routing}", cluster="h100-dgx", dp=4).spent.compute_ns
        for routing in ("capacity", "dropless")
    ]
    assert seconds[1] < seconds[0]


def test_spread_experts_are_sent_their_tokens():
    found = shardplan.price(f"transformer:{ROUTED}", cluster="h100-dgx", dp=4, ep=4)
    kinds = {step.collective.kind for move in found.plan.moves for step in move.steps}
    assert "all_to_all" in kinds


def test_what_an_expert_takes_grows_with_the_skew():
    for skew, slots in (("1", 8), ("2", 16)):
        model = described(f"transformer:{ROUTED.replace('1.5', skew)}")
        assert (4, 4, slots, 32) in {tensor.shape for tensor in model.tensors.values()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("q_rank=8", "q_rank, rope_size and value_size are of latent attention"),
        ("kv_rank=8,rope_size=0", "rope_size is 0, it must be even and less than head_size"),
        ("shared_ffn=8", "are of mixtures of experts"),
        ("window=8,attention=decomposed", "windows are of fused causal attention"),
        ("experts=4,skew=0.5", "skew is 0.5, it must be at least 1"),
        ("pattern=MXM", "pattern has 'X'; its letters are M (state space), * (attention), - (MLP) and E (experts)"),
        ("pattern=ME", "pattern has layers of experts (E)"),
        ("pattern=M*,state_heads=6,state_groups=4", "state_heads (6) is no multiple of state_groups (4)"),
        ("pattern=M*,style=bert", "layers of a pattern are normalised before, and only there"),
        ("state_heads=8", "state_heads is of state spaces"),
        ("window=8,window_pattern=WS", "window_pattern has 'S'; its letters are W (the window) and F (all)"),
        ("window_pattern=WF", "window_pattern is of windows, without window_every"),
        ("experts=4,moe_pattern=DM", "moe_pattern has 'M'; its letters are D (dense) and E (experts)"),
        ("experts=4,moe_pattern=DE,moe_every=2", "moe_pattern is of experts, without dense_layers and moe_every"),
        ("parallel_norms=3", "parallel_norms is 1 or 2, of styles that normalise first"),
        ("parallel_norms=1,style=olmo2", "parallel_norms is 1 or 2, of styles that normalise first"),
        ("parallel_norms=1,post_norm=true", "post_norm is of styles with RMSNormalization, without parallel_norms"),
        ("qk_norm=true,qk_norm_whole=true", "queries and keys are normalised by head or over all heads"),
        ("style=opt,out_bias=true", "style opt has all biases"),
        ("style=gpt,qk_norm=true", "qk_norm is of styles whose positions are rotated, not gpt"),
        ("activation=relu2", "MLPs of style llama have no activation 'relu2'"),
        ("routing=random", "routing is 'random', it must be one of capacity, dropless"),
        ("mtp=1,style=bert", "mtp is of causal styles that normalise first, with logits"),
        ("mtp=1,logits=false", "mtp is of causal styles that normalise first, with logits"),
        ("mtp=5000", "mtp is 5000, it must be at most 4096"),
        ("mtp_pattern=*E", "mtp_pattern is of models with a pattern"),
        ("pattern=M*,mtp=1", "nothing says what layers predict further tokens beside a pattern"),
        ("pattern=M*,mtp_pattern=X", "mtp_pattern has 'X'; its letters are M"),
        ("pattern=M*,mtp_pattern=*E,mtp=1", "pattern has layers of experts (E)"),
    ],
)
def test_what_cannot_be(text, said):
    with pytest.raises(ShardplanError) as caught:
        described(f"transformer:{text}")
    assert said in str(caught.value)
