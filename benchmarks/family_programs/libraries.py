"""Models of Hugging Face's transformers, by model type, as small as their configurations allow, with their own loss.

Needs `transformers`; without it there are none. A configuration is the type's own with the sizes below where it has
such a key, without dropout. `python benchmarks/families.py --library` runs them all.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from family_programs.torchvision_names import declare

VOCAB, BATCH, SEQ, IMAGE = 64, 4, 16, 32
_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size", "decoder_vocab_size"), VOCAB),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim",
                     "attention_hidden_size", "model_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "ffn_hidden_size",
                     "hidden_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "d_inner", "n_inner",
                     "feed_forward_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_layers",
                     "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
                     "num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_source_positions"), 64),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id"), 1),
    **dict.fromkeys(("image_size",), IMAGE), "patch_size": 8, "rotary_dim": 8, "sliding_window": 8,
    "num_mel_bins": 16, "state_size": 8, "ssm_state_size": 8, "mamba_d_state": 8, "conv_dim": (16, 16),
    "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False, "layerdrop": 0.0, "chunk_size": 8,
    "decoder_layerdrop": 0.0, "encoder_layerdrop": 0.0, "use_cache": False, "depths": [1, 1, 1, 1], "embedding_dim": 32,
    "norm_num_groups": 2,
    "global_attn_every_n_layers": 2, "local_attention": 8, "ctc_loss_reduction": "mean", "mamba_headdim": 16,
}  # fmt: skip
_SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "patch_size": 4, "window_size": 4}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "deepseek_v2": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "deepseek_v3": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "youtu": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "minicpm3": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "kimi_linear": {"num_experts_per_token": 2, "num_experts": 4, "linear_head_dim": 8, "linear_num_heads": 4},
    "deepseek_v32": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "glm4_moe_lite": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "axk1": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
    "gemma4_text": {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8},
    "mamba2": {"head_dim": 16, "num_heads": 4, "n_groups": 1},
    "swin": _SWIN,
    "swinv2": _SWIN,
    "convnext": {"patch_size": 2},
    "convnextv2": {"patch_size": 2},
    "perceiver": {"max_position_embeddings": 16, "num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2,
                  "num_blocks": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "d_model": 32},
    "longcat_flash": {"qk_rope_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4, "num_layers": 1,
                      "num_hidden_layers": 2, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_topk": 2},
    "dots1": {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_k": 2, "moe_layer_start_index": 0},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "donut-swin": _SWIN,
    "xlm": {"emb_dim": 32, "n_words": VOCAB},
    "flaubert": {"emb_dim": 32, "n_words": VOCAB},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 32},
    "roc_bert": {"pronunciation_vocab_size": 16, "shape_vocab_size": 16},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "mamba_dt_rank": 4, "layers_block_type": ["mamba", "hybrid"] * 2,
              "attention_hidden_size": 64, "attention_head_dim": 16, "mamba_d_state": 8},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_headdim": 16,
               "n_mamba_heads": 4, "mamba_ngroups": 1, "attention_head_dim": 16, "num_mem_blocks": 1,
               "use_shared_attention_adapter": False, "attention_hidden_size": 64, "head_dim": 16},
    "mobilevitv2": {"patch_size": 2, "output_stride": 8},
    "hiera": {"image_size": [IMAGE, IMAGE]},
    "longformer": {"attention_window": [4, 4]},
    "big_bird": {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "reformer": {"attn_layers": ["local", "local"], "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16],
                 "local_attn_chunk_length": 4, "is_decoder": True, "attention_head_size": 8, "feed_forward_size": 64},
}  # fmt: skip
_RANDOM_IN_TRAINING = frozenset(("phimoe",))
"""Types that draw experts at random while they train: they run as in evaluation, with gradients."""
_TEXT, _SPEECH, _VISION = "CausalLM", "CTC", "ImageClassification"
_KINDS = {"MaskedLM": _TEXT, _TEXT: _TEXT, "Seq2SeqLM": _TEXT, _VISION: _VISION, _SPEECH: _SPEECH}
_TYPES: Mapping[str, tuple[str, ...]] = {
    "CausalLM": (
        "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "falcon", "bloom",
        "gpt2", "gpt_neo", "gpt_neox", "gptj", "codegen", "opt", "mpt", "stablelm", "starcoder2", "gpt_bigcode",
        "cohere", "cohere2", "olmo", "olmo2", "granite", "glm", "nemotron", "persimmon", "mixtral",
        "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "mamba", "mamba2", "falcon_mamba", "rwkv",
        "recurrent_gemma", "biogpt", "ctrl", "smollm3", "exaone4", "helium", "ernie4_5",
        "seed_oss", "gpt_oss", "arcee", "jamba", "bamba", "granitemoe", "glm4_moe", "lfm2", "xglm",
        "diffllama", "apertus", "jetmoe",
        "phimoe", "bitnet", "doge", "dots1", "ernie4_5_moe", "exaone", "falcon_h1", "flex_olmo", "glm4",
        "gpt_neox_japanese", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe",
        "llama4_text", "longcat_flash", "minimax", "minimax_m2", "modernbert-decoder", "moshi", "nanochat",
        "nemotron_h", "olmo3", "openai-gpt", "qwen3_5_text", "qwen3_next", "reformer", "rembert", "roc_bert", "trocr",
        "xlm", "xlnet", "xlstm", "xmod", "zamba", "zamba2", "vaultgemma", "bert-generation",
        "afmoe", "cwm", "exaone_moe", "gemma4_text", "granite_swa", "hrm_text", "internlm3", "jais2", "kimi_linear",
        "minicpm3", "ministral", "ministral3", "olmo_hybrid", "solar_open", "youtu",
        "cohere2_moe", "cpmant", "deepseek_v32", "glm4_moe_lite", "hy_v3", "laguna", "mimo_v2_flash",
        "qwen3_5_moe_text", "sarvam_moe", "inkling_text", "lfm3", "flint", "axk1", "mellum",
    ),
    "MaskedLM": (
        "bert", "roberta", "albert", "distilbert", "electra", "deberta", "deberta-v2", "modernbert", "mobilebert",
        "squeezebert", "convbert", "mpnet", "fnet", "roformer", "camembert", "layoutlm", "nystromformer",
        "xlm-roberta", "megatron-bert", "esm", "ibert", "big_bird", "data2vec-text", "ernie", "eurobert", "flaubert",
        "funnel", "longformer", "luke", "mra", "nomic_bert", "perceiver", "roberta-prelayernorm", "tapas", "yoso",
        "gte", "jina_embeddings_v3", "xlm-roberta-xl", "ultrabert",
    ),
    "Seq2SeqLM": (
        "t5", "mt5", "bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100", "plbart", "switch_transformers",
        "longt5", "umt5", "prophetnet", "bigbird_pegasus", "blenderbot-small", "fsmt", "led", "mvp", "nllb-moe",
        "pegasus_x",
    ),
    "ImageClassification": (
        "vit", "beit", "dinov2", "swin", "swinv2", "convnext", "convnextv2", "resnet", "mobilenet_v2",
        "mobilevit", "segformer", "poolformer", "regnet", "pvt", "cvt", "focalnet", "bit", "data2vec-vision",
        "dinov2_with_registers", "donut-swin", "hiera", "ijepa", "mobilenet_v1",
        "mobilevitv2", "pvt_v2", "swiftformer", "textnet", "vit_msn", "hgnet_v2",
    ),
    "CTC": ("wav2vec2", "hubert", "wavlm", "unispeech", "data2vec-audio", "sew", "unispeech-sat", "wav2vec2-conformer"),
}  # fmt: skip


class Labelled(nn.Module):
    """A model that computes its loss itself: arguments by place, the loss alone out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *batch: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, batch, strict=True))).loss


def _program(kind: str, model_type: str, experts: str = "batched_mm") -> tuple[nn.Module, tuple[Tensor, ...]]:
    declare()
    import transformers

    given = transformers.AutoConfig.for_model(model_type)
    config = type(given)(**{**_small(given.to_dict()), **_OWN.get(model_type, {})})
    for key in list(config.to_dict()):
        if "drop" in key and isinstance(getattr(config, key), (float, list, tuple)):
            setattr(config, key, 0.0 if isinstance(getattr(config, key), float) else [0.0] * len(getattr(config, key)))
    if getattr(config, "decoder_start_token_id", 1) is None or kind == "Seq2SeqLM":
        config.decoder_start_token_id = 1
    config._attn_implementation = "eager"  # noqa: SLF001 - as `attn_implementation=` of from_pretrained
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    with contextlib.suppress(Exception):
        model.set_experts_implementation(experts)
    if model_type in _RANDOM_IN_TRAINING:
        model.eval()
    return Labelled(model, *_batch(kind)[:1]), _batch(kind)[1]


def _small(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes for those keys that a configuration has; lists of layers keep as many entries as there are layers."""
    found = {key: value for key, value in _SIZES.items() if key in keys and _alike(keys[key], value)}
    for key in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if keys.get(key):
            found[key] = list(keys[key])[:1] + list(keys[key])[-1:]
    return found


def _alike(usual: Any, given: Any) -> bool:
    return usual is None or isinstance(usual, (list, tuple)) == isinstance(given, (list, tuple))


def _batch(kind: str) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    ids = torch.randint(2, VOCAB, (BATCH, SEQ))
    if _KINDS[kind] == _TEXT:
        return ("input_ids", "labels"), (ids, torch.randint(2, VOCAB, (BATCH, SEQ)))
    if kind == _VISION:
        return ("pixel_values", "labels"), (torch.randn(BATCH, 3, IMAGE, IMAGE), torch.randint(2, (BATCH,)))
    return ("input_values", "labels"), (torch.randn(BATCH, 800), torch.randint(2, VOCAB, (BATCH, 4)))


def _of(kind: str, model_type: str) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    return lambda: _program(kind, model_type)


class Squared(nn.Module):
    """A model without a loss of its own: what it returns first is to rise from -1 to 1."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *batch: Tensor) -> Tensor:
        made = self.model(**dict(zip(self.names, batch, strict=True)))[0]
        goal = torch.linspace(-1, 1, made.numel(), dtype=made.dtype, device=made.device)
        return (made - goal.view(made.shape)).square().mean()


class Contrasted(nn.Module):
    """A model of two towers under its own loss of pairs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *batch: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, batch, strict=True)), return_loss=True).loss


_IDS = (BATCH, SEQ)
_MEL = (BATCH, 16, 32)
_SAM = {"output_channels": 16, "global_attn_indexes": [1], "window_size": 2, "mlp_dim": 64, "num_pos_feats": 8}
_SERIES = {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 7], "num_time_features": 1}
_PAST = {"past_values": (BATCH, 23), "past_time_features": (BATCH, 23, 1), "past_observed_mask": (BATCH, 23),
         "future_values": (BATCH, 8), "future_time_features": (BATCH, 8, 1)}  # fmt: skip
_WHOLE: Mapping[str, tuple[str, type[nn.Module], Mapping[str, Any], Mapping[str, Any]]] = {
    "whisper": ("WhisperForConditionalGeneration", Labelled, {"max_source_positions": 16, "max_target_positions": 32},
                {"input_features": _MEL, "labels": _IDS}),
    "clip": ("CLIPModel", Contrasted, {}, {"input_ids": _IDS, "pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "siglip": ("SiglipModel", Contrasted, {}, {"input_ids": _IDS, "pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "sam": ("SamVisionModel", Squared, _SAM, {"pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "wav2vec2-bert": ("Wav2Vec2BertModel", Squared,
                      {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 3},
                      {"input_features": (BATCH, 24, 16)}),
    "wav2vec2": ("Wav2Vec2Model", Squared, {}, {"input_values": (BATCH, 800)}),
    "moonshine": ("MoonshineForConditionalGeneration", Labelled, {}, {"input_values": (BATCH, 2000), "labels": _IDS}),
    "vitdet": ("VitDetModel", Squared, {"window_size": 2, "window_block_indices": [0]},
               {"pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "timesformer": ("TimesformerModel", Squared, {"num_frames": 2}, {"pixel_values": (BATCH, 2, 3, IMAGE, IMAGE)}),
    "videomae": ("VideoMAEModel", Squared, {"num_frames": 2}, {"pixel_values": (BATCH, 2, 3, IMAGE, IMAGE)}),
    "patchtst": ("PatchTSTForPrediction", Labelled, {"num_input_channels": 2, "context_length": 32,
                 "prediction_length": 8, "patch_length": 8, "patch_stride": 8},
                 {"past_values": (BATCH, 32, 2), "future_values": (BATCH, 8, 2)}),
    "blip": ("BlipModel", Contrasted, {}, {"input_ids": _IDS, "pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "imagegpt": ("ImageGPTForCausalImageModeling", Labelled, {}, {"input_ids": _IDS, "labels": _IDS}),
    "git": ("GitForCausalLM", Labelled, {},
            {"input_ids": _IDS, "pixel_values": (BATCH, 3, IMAGE, IMAGE), "labels": _IDS}),
    "clipseg": ("CLIPSegModel", Contrasted, {}, {"input_ids": _IDS, "pixel_values": (BATCH, 3, IMAGE, IMAGE)}),
    "ast": ("ASTModel", Squared, {"max_length": 32, "patch_size": 8, "frequency_stride": 8, "time_stride": 8},
            {"input_values": (BATCH, 32, 16)}),
    "speech_to_text": ("Speech2TextForConditionalGeneration", Labelled,
                       {"input_feat_per_channel": 16, "conv_channels": 32},
                       {"input_features": (BATCH, 32, 16), "labels": _IDS}),
    "time_series_transformer": ("TimeSeriesTransformerModel", Squared, _SERIES, _PAST),
    "informer": ("InformerModel", Squared, {**_SERIES, "attention_type": "full"}, _PAST),
    "autoformer": ("AutoformerModel", Squared, {**_SERIES, "moving_average": 5}, _PAST),
    "patchtsmixer": ("PatchTSMixerForPrediction", Labelled, {"num_input_channels": 2, "context_length": 32,
                     "prediction_length": 8, "patch_length": 8, "patch_stride": 8},
                     {"past_values": (BATCH, 32, 2), "future_values": (BATCH, 8, 2)}),
    "vivit": ("VivitModel", Squared, {"num_frames": 2, "tubelet_size": [2, 8, 8]},
              {"pixel_values": (BATCH, 2, 3, IMAGE, IMAGE)}),
}  # fmt: skip
"""Models that are made as a whole: their class, what gives the loss, sizes of their own, shapes of arguments."""


def _whole(model_type: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    declare()
    import transformers

    kind, under, sizes, arguments = _WHOLE[model_type]
    model_class = getattr(transformers, kind)
    config = _shrunk(model_class.config_class(), sizes)
    batch = [
        torch.ones(shape)
        if name.endswith("_mask")
        else torch.randint(2, VOCAB, shape)
        if name in {"input_ids", "labels"}
        else torch.randn(shape)
        for name, shape in arguments.items()
    ]
    return under(model_class(config), tuple(arguments)), tuple(batch)


def _shrunk(given: Any, sizes: Mapping[str, Any]) -> Any:
    """A configuration, and those in it, with small sizes and without dropout."""
    keys = given.to_dict()
    inner = {name: _shrunk(getattr(given, name), {}) for name in keys if hasattr(getattr(given, name, None), "to_dict")}
    made = type(given)(**{**_small(keys), **sizes, **inner})
    for key in made.to_dict():
        if "drop" in key and isinstance(getattr(made, key), float):
            setattr(made, key, 0.0)
    made._attn_implementation = "eager"  # noqa: SLF001 - as above
    return made


LIBRARIES = (
    {
        **{f"hf {model_type}": _of(kind, model_type) for kind, types in _TYPES.items() for model_type in types},
        **{f"hf {model_type}": functools.partial(_whole, model_type) for model_type in _WHOLE},
        **{
            f"hf {model_type} {experts}": functools.partial(_program, _TEXT, model_type, experts)
            for model_type in ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")
            for experts in ("eager", "grouped_mm")
        },
    }
    if importlib.util.find_spec("transformers")
    else {}
)
