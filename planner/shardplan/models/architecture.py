"""What the keys of a Hugging Face `config.json` mean: the form of a row, and what many rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

GELU: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python", "gelu_fast")


@dataclass(frozen=True)
class Architecture:
    """What the keys of a `model_type` mean. `sizes`: field of `TransformerSpec` -> key, or keys with | between; `sums`,
    `products`: fields that several keys make together; `given`: fields that all of this kind have; `only`: key -> the
    values that are supported, the first of which is meant where the key is missing; `optional`: sizes that may be
    missing; `flags`: field -> key that turns it on; `assumed`: key -> what transformers takes where it is missing;
    `within`: longest sequence, a key, that attention in chunks sees as a whole; `tied`: whether the output matrix is
    the embedding where no key says so; `cases`: key -> the fields that its values come to, true and false standing for
    all others; `windowed`: which layers have a sliding window where no list says it; `routed`, `unrouted`: keys that
    list layers with experts, and without; `mixer`: the letter of `TransformerSpec.mixers` of layers that are not
    attention, which configurations list in many ways; `adjusted`: the MLP's inner size is two thirds of what its key
    says, and rounded (LFM2); `spare`: rows that a table of positions has beyond the longest sequence; `same`: keys that
    must be equal; `instead`: key -> the row that holds where it is true.

    Factors by which values are multiplied (Granite, Gemma's embedding), caps of scores, parts of heads that are not
    rotated and rotations that some layers lack change no matrix product, and are left out."""

    style: str
    sizes: Mapping[str, str]
    activations: tuple[str, ...]
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    tied: bool = False
    positions: str = "max_position_embeddings"
    activation: str = "hidden_act"
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    within: str = ""
    cases: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)
    windowed: Literal["all", "after max_window_layers", "every second before max_window_layers"] = "all"
    routed: str = ""
    unrouted: str = ""
    spare: int = 0
    same: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, Architecture] = field(default_factory=dict)
    mixer: str = ""
    adjusted: bool = False


ENCODER: Final = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip
DECODER: Final = {**ENCODER, "kv_heads": "num_key_value_heads", "head_size": "head_dim"}
ROUTED: Final = {
    **DECODER, "ffn": "moe_intermediate_size", "experts": "num_experts|num_local_experts",
    "top_k": "num_experts_per_tok",
}  # fmt: skip
PLAIN: Final = {"attention_bias": (False,), "mlp_bias": (False,)}
BIASES: Final = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
ALL_BIASES: Final = {**BIASES, "mlp_bias": "mlp_bias"}
QWEN: Final = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
MAYBE: Final = ("kv_heads", "head_size")
GPT2: Final = {
    "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "ffn": "n_inner", "vocab": "vocab_size",
}  # fmt: skip


AFTER_DENSE: Final = {
    **ENCODER, "ffn": "moe_intermediate_size", "experts": "n_routed_experts", "top_k": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace", "dense_ffn": "intermediate_size",
}  # fmt: skip


def decoder(**more: Any) -> Architecture:
    """A plain decoder: gated MLPs, rotated positions."""
    return Architecture(**{
        "style": "llama", "sizes": DECODER, "activations": ("silu",), "optional": MAYBE, "flags": ALL_BIASES, **more,
    })  # fmt: skip


def qwen_experts(windowed: str, **more: Any) -> Architecture:
    """A decoder with experts as Qwen names their sizes."""
    sizes = {
        **ROUTED, "dense_ffn": "intermediate_size", "moe_every": "decoder_sparse_step",
        "shared_ffn": "shared_expert_intermediate_size",
    }  # fmt: skip
    return decoder(**{
        "sizes": sizes, "optional": (*MAYBE, "dense_ffn", "moe_every", "shared_ffn"), "unrouted": "mlp_only_layers",
        "flags": BIASES, "assumed": QWEN, "windowed": windowed, **more,
    })  # fmt: skip


def ungated(style: str, sizes: Mapping[str, str], **more: Any) -> Architecture:
    """A decoder whose MLPs have no gates."""
    return Architecture(style, sizes, **{"activations": GELU, "optional": ("ffn", *MAYBE), **more})
