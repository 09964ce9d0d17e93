"""Checkpoint names by style, as in the reference implementations of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class DeltaNames:
    """Modules of a gated delta rule, below `module`. `made`: what each makes, letter by letter: queries, keys, values,
    the output's gate z, the share b that is written, the decay a; more than one module: one after the other, through a
    latent. `by_group`: what a module makes is ordered by heads of keys first. `decay`: where the weights of the decay
    are; `gate`: the activation of the output's gate."""

    module: str
    made: tuple[tuple[tuple[str, ...], str], ...]
    by_group: bool = False
    convolution: str = "conv1d"
    norm: str = "norm"
    out: str = "out_proj"
    decay: str = ""
    gate: Literal["silu", "sigmoid"] = "silu"


_DELTA: Final = DeltaNames(
    "linear_attn", ((("in_proj_qkv",), "qkv"), (("in_proj_z",), "z"), (("in_proj_b",), "b"), (("in_proj_a",), "a"))
)


@dataclass(frozen=True, slots=True)
class Names:
    """Module paths; those of a layer are below `layer` + its number. `transposed`: checkpoints hold linear weights as
    (out, in). `qkv`: names of the query, key and value projections, or of the one that makes all three; `mlp`: of gate
    (where there is one), up and down, or of the one that makes gate and up, and down. `latent`: of the projections to
    and from the size in which tokens come to experts. `mixer_norms`: of the norms in layers whose mixer is no
    attention, if others than `norms`. `gate`: of what gates attention, `""` where the
    matrix of queries makes it too. `embed_norm`: of the norm of embeddings, `""` for none;
    `embed_in`, `embed_out`: of what brings them to the hidden size and back; `final_norm`: `""` for none. `further`: of
    layers that predict further tokens, if their numbers do not go on from those of `layer`; `further_norm`: of the norm
    behind the last of them. `convolution`: of a short one in attention's place."""

    layer: str
    transposed: bool
    embed: str
    positions: str
    attention: str
    qkv: tuple[str, ...]
    out: str
    norms: tuple[str, str]
    mlp: tuple[str, ...]
    final_norm: str
    head: str
    router: str
    experts: str
    shared: str = "mlp.shared_experts"
    post_norms: tuple[str, str] = ("post_attention_norm", "post_mlp_norm")
    head_norms: tuple[str, str] = ("q_norm", "k_norm")
    state_space: str = "mamba"
    latent: tuple[str, str] = ("mlp.fc1_latent_proj", "mlp.fc2_latent_proj")
    gate: str = ""
    mixer_norms: tuple[str, str] | None = None
    embed_norm: str = ""
    embed_in: str = "model.project_in"
    embed_out: str = "model.project_out"
    further: str = ""
    further_norm: str = "shared_head.norm"
    delta: DeltaNames = _DELTA
    convolution: str = "conv"


_LLAMA: Final = Names(
    layer="model.layers", transposed=True, embed="model.embed_tokens", positions="", attention="self_attn",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.o_proj",
    norms=("input_layernorm", "post_attention_layernorm"), mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    final_norm="model.norm", head="lm_head", router="mlp.gate", experts="mlp.experts",
)  # fmt: skip
_GPT: Final = Names(
    layer="transformer.h", transposed=False, embed="transformer.wte", positions="transformer.wpe",
    attention="attn", qkv=("attn.c_attn",), out="attn.c_proj", norms=("ln_1", "ln_2"),
    mlp=("mlp.c_fc", "mlp.c_proj"), final_norm="transformer.ln_f", head="lm_head", router="mlp.router",
    experts="mlp.experts",
)  # fmt: skip
_FALCON: Final = replace(
    _GPT, transposed=True, positions="", embed="transformer.word_embeddings", attention="self_attention",
    qkv=("self_attention.query_key_value",), out="self_attention.dense",
    norms=("input_layernorm", "post_attention_layernorm"), mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
)  # fmt: skip
_BERT: Final = Names(
        layer="bert.encoder.layer", transposed=True, embed="bert.embeddings.word_embeddings",
        positions="bert.embeddings.position_embeddings", attention="attention.self",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"), out="attention.output.dense",
        norms=("attention.output.LayerNorm", "output.LayerNorm"), mlp=("intermediate.dense", "output.dense"),
        final_norm="bert.embeddings.LayerNorm", head="cls.predictions.decoder", router="mlp.router",
        experts="mlp.experts",
    )  # fmt: skip
_OPT: Final = replace(
        _LLAMA, layer="model.decoder.layers", embed="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions", out="self_attn.out_proj",
        norms=("self_attn_layer_norm", "final_layer_norm"), mlp=("fc1", "fc2"),
        final_norm="model.decoder.final_layer_norm", embed_in="model.decoder.project_in",
        embed_out="model.decoder.project_out",
    )  # fmt: skip
NAMES: Final[dict[str, Names]] = {
    "llama": _LLAMA,
    "gpt": _GPT,
    "bert": _BERT,
    "nemotron": Names(
        layer="backbone.layers", transposed=True, embed="backbone.embeddings", positions="", attention="mixer",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"), out="mixer.o_proj", norms=("norm", "norm"),
        mlp=("mixer.up_proj", "mixer.down_proj"), final_norm="backbone.norm_f", head="lm_head", router="mixer.gate",
        experts="mixer.experts", shared="mixer.shared_experts", state_space="mixer",
        latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"), further="mtp.layers", further_norm="final_layernorm",
    ),
    "phi3": replace(_LLAMA, qkv=("self_attn.qkv_proj",), mlp=("mlp.gate_up_proj", "mlp.down_proj")),
    "olmo2": replace(_LLAMA, norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "olmo_hybrid": replace(
        _LLAMA, norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        mixer_norms=("input_layernorm", "post_attention_layernorm"),
        delta=DeltaNames(
            "linear_attn",
            ((("q_proj",), "q"), (("k_proj",), "k"), (("v_proj",), "v"), (("a_proj",), "a"), (("b_proj",), "b"),
             (("g_proj",), "z")),
            norm="o_norm", out="o_proj",
        ),
    ),
    "minimax": _LLAMA,
    "glm": replace(
        _LLAMA, mlp=("mlp.gate_up_proj", "mlp.down_proj"),
        post_norms=("post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "gemma": replace(
        _LLAMA, norms=("input_layernorm", "pre_feedforward_layernorm"),
        post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "hunyuan": replace(
        _LLAMA, head_norms=("query_layernorm", "key_layernorm"), router="mlp.gate.wg", shared="mlp.shared_mlp",
    ),
    "arcee": replace(_LLAMA, mlp=("mlp.up_proj", "mlp.down_proj")),
    "apertus": replace(
        _LLAMA, mlp=("mlp.up_proj", "mlp.down_proj"), norms=("attention_layernorm", "feedforward_layernorm"),
    ),
    "dbrx": replace(
        _LLAMA, layer="transformer.blocks", embed="transformer.wte", attention="norm_attn_norm.attn",
        qkv=("norm_attn_norm.attn.Wqkv",), out="norm_attn_norm.attn.out_proj",
        norms=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"), final_norm="transformer.norm_f",
        router="ffn.router.layer", experts="ffn.experts.mlp",
    ),
    "afmoe": replace(
        _LLAMA, norms=("input_layernorm", "pre_mlp_layernorm"), router="mlp.router.gate", gate="self_attn.gate_proj",
        post_norms=("post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "bigcode": replace(_GPT, transposed=True),
    "bloom": replace(
        _FALCON, embed_norm="transformer.word_embeddings_layernorm",
    ),
    "neox": replace(
        _FALCON, layer="gpt_neox.layers", embed="gpt_neox.embed_in", attention="attention",
        qkv=("attention.query_key_value",), out="attention.dense", final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
    ),
    "opt": _OPT,
    "opt_post": replace(_OPT, final_norm=""),
    "mpt": replace(
        _GPT, layer="transformer.blocks", transposed=True, positions="", qkv=("attn.Wqkv",), out="attn.out_proj",
        norms=("norm_1", "norm_2"), mlp=("ffn.up_proj", "ffn.down_proj"), final_norm="transformer.norm_f",
    ),
    "olmo": _LLAMA,
    "nanochat": replace(_LLAMA, mlp=("mlp.fc1", "mlp.fc2"), embed_norm="model.embed_norm"),
    "gpt_neo": replace(
        _GPT, transposed=True, attention="attn.attention",
        qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"), out="attn.attention.out_proj",
    ),
    "biogpt": replace(
        _OPT, layer="biogpt.layers", embed="biogpt.embed_tokens", positions="biogpt.embed_positions",
        final_norm="biogpt.layer_norm",
    ),
    "xglm": replace(
        _OPT, layer="model.layers", embed="model.embed_tokens", positions="", final_norm="model.layer_norm",
    ),
    "roberta": replace(
        _BERT, layer="roberta.encoder.layer", embed="roberta.embeddings.word_embeddings",
        positions="roberta.embeddings.position_embeddings", final_norm="roberta.embeddings.LayerNorm",
        head="lm_head.decoder",
    ),
    "nemotron4": replace(_LLAMA, mlp=("mlp.up_proj", "mlp.down_proj")),
    "starcoder2": replace(_LLAMA, mlp=("mlp.c_fc", "mlp.c_proj")),
    "stablelm": _LLAMA,
    "cohere": _LLAMA,
    "phi": replace(
        _LLAMA, out="self_attn.dense", mlp=("mlp.fc1", "mlp.fc2"), final_norm="model.final_layernorm",
    ),
    "gptj": replace(
        _GPT, transposed=True, positions="", qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"), out="attn.out_proj",
        mlp=("mlp.fc_in", "mlp.fc_out"),
    ),
    "codegen": replace(
        _GPT, transposed=True, positions="", qkv=("attn.qkv_proj",), out="attn.out_proj",
        mlp=("mlp.fc_in", "mlp.fc_out"),
    ),
    "falcon": _FALCON,
    "falcon_rw": _FALCON,
    "qwen3_next": replace(
        _LLAMA, shared="mlp.shared_expert",
        delta=DeltaNames("linear_attn", ((("in_proj_qkvz",), "qkvz"), (("in_proj_ba",), "ba")), by_group=True),
    ),
    "kimi": replace(
        _LLAMA,
        delta=DeltaNames(
            "self_attn",
            ((("q_proj",), "q"), (("k_proj",), "k"), (("v_proj",), "v"), (("b_proj",), "b"),
             (("forget_gate.f_a_proj", "forget_gate.f_b_proj"), "a"), (("g_a_proj", "g_b_proj"), "z")),
            norm="o_norm", out="o_proj", decay="forget_gate", gate="sigmoid",
        ),
    ),
    "bamba": replace(
        _LLAMA, norms=("input_layernorm", "pre_ff_layernorm"), final_norm="model.final_layernorm",
        mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
    ),
    "granite_hybrid": replace(
        _LLAMA, shared="shared_mlp", mlp=("shared_mlp.input_linear", "shared_mlp.output_linear"),
        router="block_sparse_moe.router", experts="block_sparse_moe.experts",
    ),
    "lfm2": replace(
        _LLAMA, out="self_attn.out_proj", norms=("operator_norm", "ffn_norm"), final_norm="model.embedding_norm",
        mlp=("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"), head_norms=("q_layernorm", "k_layernorm"),
        router="feed_forward.gate", experts="feed_forward.experts",
    ),
    "large_falcon": replace(_FALCON, norms=("ln_attn", "ln_mlp")),
}  # fmt: skip
