"""Checkpoint names by style, as in the reference implementations of Llama, GPT-2, BERT and Nemotron-H."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Names:
    """Module paths; those of a layer are below `layer` + its number. `transposed`: checkpoints hold linear weights as
    (out, in). `qkv`: names of the query, key and value projections, or of the one that makes all three. `latent`: of
    the projections to and from the size in which tokens come to experts."""

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
    state_space: str = "mamba"
    latent: tuple[str, str] = ("mlp.fc1_latent_proj", "mlp.fc2_latent_proj")


NAMES: Final[dict[str, Names]] = {
    "llama": Names(
        layer="model.layers", transposed=True, embed="model.embed_tokens", positions="", attention="self_attn",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), out="self_attn.o_proj",
        norms=("input_layernorm", "post_attention_layernorm"), mlp=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        final_norm="model.norm", head="lm_head", router="mlp.gate", experts="mlp.experts",
    ),
    "gpt": Names(
        layer="transformer.h", transposed=False, embed="transformer.wte", positions="transformer.wpe",
        attention="attn", qkv=("attn.c_attn",), out="attn.c_proj", norms=("ln_1", "ln_2"),
        mlp=("mlp.c_fc", "mlp.c_proj"), final_norm="transformer.ln_f", head="lm_head", router="mlp.router",
        experts="mlp.experts",
    ),
    "bert": Names(
        layer="bert.encoder.layer", transposed=True, embed="bert.embeddings.word_embeddings",
        positions="bert.embeddings.position_embeddings", attention="attention.self",
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"), out="attention.output.dense",
        norms=("attention.output.LayerNorm", "output.LayerNorm"), mlp=("intermediate.dense", "output.dense"),
        final_norm="bert.embeddings.LayerNorm", head="cls.predictions.decoder", router="mlp.router",
        experts="mlp.experts",
    ),
    "nemotron": Names(
        layer="backbone.layers", transposed=True, embed="backbone.embeddings", positions="", attention="mixer",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"), out="mixer.o_proj", norms=("norm", "norm"),
        mlp=("mixer.up_proj", "mixer.down_proj"), final_norm="backbone.norm_f", head="lm_head", router="mixer.gate",
        experts="mixer.experts", shared="mixer.shared_experts", state_space="mixer",
        latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
    ),
}  # fmt: skip
