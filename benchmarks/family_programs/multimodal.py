"""Models of transformers of pictures and words together, of places in pictures and of series, as small as they can be.

Needs `transformers`; without it there are none. Those without a loss of their own are to make their first result small.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from family_programs.torchvision_names import declare

Program = tuple[nn.Module, tuple[Tensor, ...]]
Named = Mapping[str, Callable[[], Tensor]]


class Called(nn.Module):
    """A model that is called by name; its own loss, or the mean square of what it gives first."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *batch: Tensor) -> Tensor:
        made = self.model(**dict(zip(self.names, batch, strict=True)), **self.fixed)
        loss: Tensor | None = getattr(made, "loss", None)
        return made[0].square().mean() if loss is None else loss


def _of(
    config: str, model: str, sizes: Mapping[str, Any], batch: Named, fixed: Mapping[str, Any] | None = None
) -> Callable[[], Program]:
    def make() -> Program:
        declare()
        import transformers

        given = {key: value() if callable(value) else value for key, value in sizes.items()}
        held = getattr(transformers, config)(**given)
        held._attn_implementation = "eager"  # noqa: SLF001 - as `attn_implementation=` of from_pretrained
        made = getattr(transformers, model)(held)
        tensors = {name: draw() for name, draw in batch.items()}
        return Called(made, tuple(tensors), fixed or {}), tuple(tensors.values())

    return make


def _config(name: str, **sizes: Any) -> Callable[[], Any]:
    """A part of a configuration that is one itself."""

    def make() -> Any:
        import transformers

        return getattr(transformers, name)(**sizes)

    return make


def _words(length: int = 12, pictures: int = 0, first: int = 0) -> Callable[[], Tensor]:
    """Numbers of words, `pictures` of which from `first` on stand for patches."""

    def make() -> Tensor:
        ids = torch.randint(7, 64, (4, length))
        ids[:, first : first + pictures] = 3
        return ids

    return make


def _boxes(*shape: int, top: int = 32) -> Callable[[], Tensor]:
    return lambda: torch.randint(top, (*shape, 4)).sort(-1).values


def _picture(size: int = 32) -> Callable[[], Tensor]:
    return lambda: torch.randn(4, 3, size, size)


def _grid_of_patches() -> Program:
    """A model that is given the patches of pictures of any size, and how many there are in each direction."""
    declare()
    import transformers

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    turns = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    held = transformers.Qwen2_5_VLConfig(
        text_config={**_TEXT, **heads, "rope_parameters": turns},
        vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 4,
                       "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "out_hidden_size": 32,
                       "fullatt_block_indexes": [1]},
        image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6,
    )  # fmt: skip
    held._attn_implementation = "eager"  # noqa: SLF001 - as `attn_implementation=` of from_pretrained
    ids = torch.randint(7, 64, (2, 14))
    ids[:, 2:8] = torch.tensor([5, 3, 3, 3, 3, 6])
    batch = {
        "input_ids": ids, "pixel_values": torch.randn(32, 96), "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "mm_token_type_ids": (ids == 3).long(), "labels": ids.clone(),
    }  # fmt: skip
    made = transformers.Qwen2_5_VLForConditionalGeneration(held)
    return Called(made, tuple(batch), {}), tuple(batch.values())


def _masked_words() -> Program:
    """A diffusion model that reads from a mask how long each text is."""
    declare()
    from diffusers import Lumina2Transformer2DModel

    made = Lumina2Transformer2DModel(
        sample_size=8, in_channels=4, hidden_size=24, num_layers=1, num_refiner_layers=1, num_attention_heads=3,
        num_kv_heads=1, multiple_of=2, axes_dim_rope=(4, 2, 2), axes_lens=(32, 32, 32), cap_feat_dim=16,
    )  # fmt: skip
    batch = {
        "hidden_states": torch.randn(2, 4, 8, 8), "timestep": torch.rand(2),
        "encoder_hidden_states": torch.randn(2, 6, 16),
        "encoder_attention_mask": torch.arange(6) < torch.tensor([[6], [5]]),
    }  # fmt: skip
    return Called(made, tuple(batch), {"return_dict": False}), tuple(batch.values())


_NONE: Mapping[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WIDE: Mapping[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_TEXT: Mapping[str, Any] = {**_WIDE, "vocab_size": 64}
_EYES: Mapping[str, Any] = {**_WIDE, "image_size": 16, "patch_size": 8}
_PARTS = ["stage1", "stage2", "stage3", "stage4"]
_ALL: dict[str, Callable[[], Program]] = {
    "hf llava": _of(
        "LlavaConfig", "LlavaForConditionalGeneration",
        {"vision_config": {"model_type": "clip_vision_model", **_EYES, "projection_dim": 32}, "image_token_index": 3,
         "text_config": {"model_type": "llama", **_TEXT, "num_key_value_heads": 2}, "image_seq_length": 4},
        {"input_ids": _words(12, 4, 3), "pixel_values": _picture(16), "labels": _words(12)},
    ),
    "hf paligemma": _of(
        "PaliGemmaConfig", "PaliGemmaForConditionalGeneration",
        {"vision_config": {"model_type": "siglip_vision_model", **_EYES, "vision_use_head": False},
         "text_config": {"model_type": "gemma", **_TEXT, "num_key_value_heads": 2, "head_dim": 8,
         "num_image_tokens": 4}, "image_token_index": 3, "projection_dim": 32, "hidden_size": 32},
        {"input_ids": _words(12, 4), "pixel_values": _picture(16), "labels": _words(12),
         "token_type_ids": lambda: torch.zeros(4, 12, dtype=torch.long)},
    ),
    "hf detr": _of(
        "DetrConfig", "DetrModel",
        {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": 32,
         "backbone_config": _config("ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
         out_features=["stage2"], layer_type="basic"), "num_queries": 6,
         **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
         **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
         **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
         **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)},
        {"pixel_values": _picture()},
    ),
    "hf layoutlmv3": _of(
        "LayoutLMv3Config", "LayoutLMv3Model",
        {**_TEXT, **_NONE, "input_size": 32, "patch_size": 8, "max_2d_position_embeddings": 64, "coordinate_size": 6,
         "shape_size": 4, "max_position_embeddings": 64},
        {"input_ids": _words(8), "bbox": _boxes(4, 8), "pixel_values": _picture()},
    ),
    "hf udop": _of(
        "UdopConfig", "UdopForConditionalGeneration",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
         "num_heads": 4, "dropout_rate": 0.0, "image_size": 32, "patch_size": 8, "pad_token_id": 1,
         "max_2d_position_embeddings": 64, "decoder_start_token_id": 1},
        {"input_ids": _words(8), "bbox": lambda: torch.rand(4, 8, 4).sort(-1).values, "pixel_values": _picture(),
         "labels": _words(6)},
    ),
    "hf dpt": _of(
        "DPTConfig", "DPTForDepthEstimation",
        {**_WIDE, **_NONE, "num_hidden_layers": 4, "image_size": 32, "patch_size": 8,
         "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8},
        {"pixel_values": _picture()},
    ),
    "hf musicgen": _of(
        "MusicgenDecoderConfig", "MusicgenForCausalLM",
        {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
         "num_codebooks": 2, "dropout": 0.0, "pad_token_id": 15, "bos_token_id": 15, "max_position_embeddings": 64},
        {"input_ids": lambda: torch.randint(14, (8, 10))},
    ),
    "hf parakeet": _of(
        "ParakeetEncoderConfig", "ParakeetEncoder",
        {**_WIDE, "num_mel_bins": 16, "subsampling_conv_channels": 8, "max_position_embeddings": 64, **dict.fromkeys(
         ("dropout", "layerdrop", "activation_dropout", "attention_dropout", "dropout_positions"), 0.0)},
        {"input_features": lambda: torch.randn(4, 32, 16)},
    ),
    "hf dinov3": _of(
        "DINOv3ViTConfig", "DINOv3ViTModel", {**_EYES, "image_size": 32, "num_register_tokens": 2},
        {"pixel_values": _picture()},
    ),
    "hf upernet": _of(
        "UperNetConfig", "UperNetForSemanticSegmentation",
        {"backbone_config": _config("ConvNextConfig", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
         out_features=_PARTS), "hidden_size": 16, "auxiliary_in_channels": 16, "auxiliary_channels": 8,
         "num_labels": 4, "pool_scales": [1, 2]},
        {"pixel_values": _picture(64), "labels": lambda: torch.randint(4, (4, 64, 64))},
    ),
    "hf groupvit": _of(
        "GroupViTConfig", "GroupViTModel",
        {"text_config": {**_TEXT, "num_hidden_layers": 1, "max_position_embeddings": 16}, "vision_config":
         {"hidden_size": 32, "depths": [1, 1, 1], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 4],
         "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "intermediate_size": 64},
         "projection_dim": 16, "projection_intermediate_dim": 32},
        {"input_ids": _words(8), "pixel_values": _picture()}, {"return_loss": True},
    ),
    "hf blip2": _of(
        "Blip2Config", "Blip2ForConditionalGeneration",
        {"vision_config": {**_EYES, "num_hidden_layers": 1}, "qformer_config": {**_TEXT, **_NONE,
         "encoder_hidden_size": 32}, "text_config": {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 4, "ffn_dim": 64, "vocab_size": 64, "word_embed_proj_dim": 32, "dropout": 0.0,
         "max_position_embeddings": 64}, "num_query_tokens": 4, "image_token_index": 3},
        {"pixel_values": _picture(16), "input_ids": _words(12, 4), "labels": _words(12)},
    ),
    "hf vilt": _of(
        "ViltConfig", "ViltModel",
        {**_TEXT, **_NONE, "image_size": 32, "patch_size": 8, "max_position_embeddings": 16},
        {"input_ids": _words(8), "pixel_values": _picture(),
         "pixel_mask": lambda: torch.ones(4, 32, 32, dtype=torch.long)},
    ),
    "hf vilt mlm": _of(
        "ViltConfig", "ViltForMaskedLM",
        {**_TEXT, **_NONE, "image_size": 32, "patch_size": 8, "max_position_embeddings": 16},
        {"input_ids": _words(8), "pixel_values": _picture(), "labels": _words(8)},
    ),
    "hf qwen2.5 vl": _grid_of_patches,
    "hf yolos": _of(
        "YolosConfig", "YolosModel", {**_WIDE, **_NONE, "image_size": [32, 32], "patch_size": 8,
        "num_detection_tokens": 6}, {"pixel_values": _picture()},
    ),
}  # fmt: skip
if importlib.util.find_spec("diffusers"):
    _ALL["lumina 2"] = _masked_words
MULTIMODAL = _ALL if importlib.util.find_spec("transformers") else {}
