"""Models of timm and diffusers of other kinds than those of `vision_libraries`: relative positions, halos, lambdas,
LSTMs over rows, split attention, standardised kernels, waves, latents of one dim, experts.

Needs those libraries; without one there are none of its models. `python benchmarks/families.py --library` runs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from family_programs.torchvision_names import declare
from family_programs.vision_libraries import (
    _FLAT,
    _FOUND,
    _TIMES,
    BATCH,
    CLASSES,
    Classified,
    Denoised,
    Program,
    _diffusers,
    _images,
    _latents,
    _still,
    _timm,
)


def _of_class(module: str, name: str, size: int = 32, **given: Any) -> Callable[[], Program]:
    """A model made of its class: names of timm's table take no sizes."""

    def make() -> Program:
        declare()
        kind = getattr(importlib.import_module(f"timm.models.{module}"), name)
        return Classified(_still(kind(num_classes=CLASSES, **given))), _images(size)

    return make


class Attended(nn.Module):
    """Layers of attention over images between two convolutions."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16)
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(16, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        h = self.norm(self.stem(pixels))
        for layer in self.layers:
            h = h + layer(h)
        return self.head(h.mean((2, 3)))


def _of_layers(*names: str, **given: Any) -> Callable[[], Program]:
    def make() -> Program:
        declare()

        found = (name.rpartition(".") for name in names)
        kinds = [getattr(importlib.import_module(f"timm.layers.{module}"), name) for module, _, name in found]
        layers = [kind(16, **given) for kind in kinds]
        return Classified(_still(Attended(*layers))), _images(32)

    return make


def _configured(**given: Any) -> Callable[[], Program]:
    def make() -> Program:
        declare()
        from timm.models import mvitv2

        model = mvitv2.MultiScaleVit(mvitv2.MultiScaleVitCfg(**given), img_size=32, num_classes=CLASSES)
        return Classified(_still(model)), _images(32)

    return make


def _with(name: str, fixed: Mapping[str, Any], batch: Callable[[], Any], names: tuple[str, ...], **given: Any) -> Any:
    """A model of diffusion that is given numbers beside tensors."""

    def make() -> Program:
        declare()
        import diffusers

        return Denoised(_still(getattr(diffusers, name)(**given)), names, **fixed), batch()

    return make


_FOUR: Mapping[str, Any] = {"depths": (1, 1, 1, 1)}
_NARROW = (8, 16, 32, 32)
TIMM = {
    "timm nest": _of_class("nest", "Nest", img_size=32, embed_dims=(16, 32), num_heads=(2, 4), depths=(1, 1),
                           num_levels=2),
    "timm focalnet": _of_class("focalnet", "FocalNet", 64, **_FOUR, embed_dim=8),
    "timm gcvit": _of_class("gcvit", "GlobalContextVit", 64, img_size=64, **_FOUR, embed_dim=8, num_heads=(2, 2, 4, 4),
                            window_size=(2, 2, 2, 2), window_ratio=None),
    "timm mvitv2": _configured(embed_dim=(16, 32), depths=(1, 1), num_heads=(2, 4), stride_q=((1, 1), (2, 2))),
    "timm volo": _of_class("volo", "VOLO", 32, img_size=32, layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32),
                           num_heads=(2, 4, 4, 4), stem_hidden_dim=16),
    "timm caformer": _of_class("metaformer", "MetaFormer", 64, **_FOUR, dims=_NARROW),
    "timm convmixer": _of_class("convmixer", "ConvMixer", 32, dim=32, depth=2, kernel_size=3, patch_size=4),
    "timm lambda": _of_layers("lambda_layer.LambdaLayer", num_heads=4, dim_head=4, r=3),
    "timm halos": _of_layers("halo_attn.HaloAttn", num_heads=4, dim_head=4, block_size=4, halo_size=1),
    "timm bottleneck": _of_layers("bottleneck_attn.BottleneckAttn", feat_size=(8, 8), num_heads=4, dim_head=4),
    "timm channel attentions": _of_layers("eca.EcaModule", "cbam.CbamModule",
                                          "global_context.GlobalContext", "split_attn.SplitAttn",
                                          "selective_kernel.SelectiveKernel"),
    "timm visformer": _timm("visformer_tiny", 32, img_size=32, init_channels=8, embed_dim=32, depth=(1, 1, 1),
                            num_heads=4),
    "timm pit": _timm("pit_ti_224", 32, img_size=32, patch_size=8, stride=4, base_dims=(8, 8), depth=(1, 1),
                      heads=(2, 4)),
    "timm tnt": _timm("tnt_s_patch16_224", 32, img_size=32, embed_dim=32, inner_dim=8, depth=2, num_heads_outer=4,
                      num_heads_inner=2),
    "timm convit": _timm("convit_tiny", 32, img_size=32, patch_size=8, embed_dim=32, depth=2, local_up_to_layer=1,
                         num_heads=4),
    "timm crossvit": _timm("crossvit_9_240", 32, img_size=32, img_scale=(1.0, 1.0), patch_size=(8, 16),
                           embed_dim=(16, 32), depth=((1, 1, 0),), num_heads=(4, 4), mlp_ratio=(2, 2, 1)),
    "timm sequencer": _timm("sequencer2d_s", 32, img_size=32, layers=(1, 1), patch_sizes=(8, 2), embed_dims=(16, 32),
                            hidden_sizes=(8, 8), mlp_ratios=(2.0, 2.0)),
    "timm inception_next": _timm("inception_next_atto", 32, **_FOUR, dims=(16, 32, 32, 32)),
    "timm swinv2": _timm("swinv2_tiny_window8_256", 32, img_size=32, window_size=4, embed_dim=16, depths=(2, 2),
                         num_heads=(2, 4)),
    "timm swinv2_cr": _timm("swinv2_cr_tiny_ns_224", 32, img_size=32, window_size=4, embed_dim=16, depths=(2, 2),
                            num_heads=(2, 4)),
    "timm relpos": _timm("vit_relpos_small_patch16_224", 32, **_FLAT, patch_size=8, num_heads=4),
    "timm parallel": _timm("vit_small_patch16_36x1_224", 32, **_FLAT, patch_size=8, num_heads=4),
    "timm resnetv2": _timm("resnetv2_50", 32, layers=(1, 1, 1, 1), channels=(16, 32, 32, 64), stem_chs=8),
    "timm rexnet": _timm("rexnet_100", 32),
    "timm starnet": _timm("starnet_s050", 32),
    "timm mobilevit": _timm("mobilevit_xxs", 64),
    "timm naflexvit": _timm("naflexvit_base_patch16_gap", 32, embed_dim=32, depth=2, num_heads=4, patch_size=8),

}  # fmt: skip

_WORDS = torch.Size((BATCH, 6, 16))
_MOVING: Mapping[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1}
DIFFUSERS = {
    "diffusers unet1d": _diffusers(
        "UNet1DModel", lambda: (torch.randn(4, 4, 16), torch.randn(4, 4, 16), _TIMES), ("timestep",), sample_size=16,
        in_channels=4, out_channels=4, extra_in_channels=32, time_embedding_type="fourier",
        use_timestep_embedding=False, block_out_channels=(16, 32), down_block_types=("DownBlock1DNoSkip",
        "DownBlock1D"), layers_per_block=1, up_block_types=("UpBlock1D", "UpBlock1DNoSkip"), norm_num_groups=4,
        flip_sin_to_cos=True,
    ),
    "diffusers ltx": _with(
        "LTXVideoTransformer3DModel", {"num_frames": 1, "height": 4, "width": 4}, lambda: (torch.randn(4, 16, 8),
        torch.randn(4, 16, 8), torch.randn(_WORDS), _TIMES, torch.ones(4, 6)), ("encoder_hidden_states", "timestep",
        "encoder_attention_mask"), in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8,
        cross_attention_dim=32, num_layers=2, caption_channels=16,
    ),
    "diffusers qwen image": _with(
        "QwenImageTransformer2DModel", {"img_shapes": [(1, 4, 4)] * 4}, lambda: (torch.randn(4, 16, 16),
        torch.randn(4, 16, 16), torch.randn(_WORDS), torch.ones(4, 6).bool(), torch.rand(4)),
        ("encoder_hidden_states", "encoder_hidden_states_mask", "timestep"), patch_size=2, in_channels=16,
        out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=16,
        axes_dims_rope=(2, 2, 4),
    ),
    "diffusers dc vae": _diffusers(
        "AutoencoderDC", lambda: (torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)), (), latent_channels=4,
        attention_head_dim=8, encoder_block_types=("ResBlock", "EfficientViTBlock"), decoder_block_types=("ResBlock",
        "EfficientViTBlock"), encoder_block_out_channels=(8, 16), decoder_block_out_channels=(8, 16),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1), encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)), decoder_norm_types="rms_norm", decoder_act_fns="silu",
    ),
    "diffusers oobleck": _diffusers(
        "AutoencoderOobleck", lambda: (torch.randn(4, 2, 64), torch.randn(4, 2, 64)), (), encoder_hidden_size=8,
        downsampling_ratios=[2, 4], channel_multiples=[1, 2], decoder_channels=8, decoder_input_channels=4,
        audio_channels=2,
    ),
    "diffusers lumina2": _diffusers(
        "Lumina2Transformer2DModel", lambda: _latents(4, _TIMES, torch.randn(_WORDS), torch.ones(4, 6).bool()),
        ("timestep", "encoder_hidden_states", "encoder_attention_mask"), sample_size=8, patch_size=2, in_channels=4,
        hidden_size=32, num_layers=1, num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=16,
        scaling_factor=1.0, axes_dim_rope=(4, 2, 2), axes_lens=(64, 16, 16), cap_feat_dim=16,
    ),
    "diffusers mochi": _diffusers(
        "MochiTransformer3DModel", lambda: (torch.randn(4, 4, 2, 8, 8), torch.randn(4, 4, 2, 8, 8),
        torch.randn(_WORDS), _TIMES, torch.ones(4, 6).bool()), ("encoder_hidden_states", "timestep",
        "encoder_attention_mask"), patch_size=2, num_attention_heads=4, attention_head_dim=8, num_layers=2,
        pooled_projection_dim=16, in_channels=4, text_embed_dim=16, time_embed_dim=8, max_sequence_length=16,
    ),
    "diffusers cogview4": _diffusers(
        "CogView4Transformer2DModel", lambda: _latents(4, torch.randn(_WORDS), _TIMES, *(torch.full((4, 2), each)
        for each in (64.0, 64.0, 0.0))), ("encoder_hidden_states", "timestep", "original_size", "target_size",
        "crop_coords"), patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, text_embed_dim=16, time_embed_dim=8, condition_dim=4, sample_size=8,
        rope_axes_dim=(8, 8),
    ),
    "diffusers stable audio": _diffusers(
        "StableAudioDiTModel", lambda: (torch.randn(4, 4, 16), torch.randn(4, 4, 16), torch.rand(4),
        torch.randn(_WORDS), torch.randn(4, 1, 16)), ("timestep", "encoder_hidden_states", "global_hidden_states"),
        sample_size=16, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=16, time_proj_dim=8,
        global_states_input_dim=16, cross_attention_input_dim=16,
    ),
    "diffusers spatio temporal": _diffusers(
        "UNetSpatioTemporalConditionModel", lambda: (torch.randn(4, 2, 4, 8, 8), torch.randn(4, 2, 4, 8, 8), _TIMES,
        torch.randn(4, 1, 16), torch.rand(4, 3)), ("timestep", "encoder_hidden_states", "added_time_ids"),
        sample_size=8, in_channels=4, out_channels=4, down_block_types=("CrossAttnDownBlockSpatioTemporal",
        "DownBlockSpatioTemporal"), up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=16, num_attention_heads=(2, 4), projection_class_embeddings_input_dim=24,
        addition_time_embed_dim=8, block_out_channels=(32, 64), layers_per_block=1, num_frames=2,
    ),
    "diffusers chroma": _diffusers(
        "ChromaTransformer2DModel", lambda: (torch.randn(4, 16, 4), torch.randn(4, 16, 4), torch.randn(_WORDS),
        torch.rand(4), torch.zeros(16, 3), torch.zeros(6, 3)), ("encoder_hidden_states", "timestep", "img_ids",
        "txt_ids"), patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=16, axes_dims_rope=(2, 2, 4), approximator_hidden_dim=16,
        approximator_layers=1, approximator_num_channels=8,
    ),
    "diffusers latte": _diffusers(
        "LatteTransformer3DModel", lambda: (torch.randn(4, 4, 2, 8, 8), torch.randn(4, 4, 2, 8, 8), _TIMES,
        torch.randn(_WORDS)), ("timestep", "encoder_hidden_states"), num_attention_heads=4, attention_head_dim=8,
        in_channels=4, out_channels=4, num_layers=1, cross_attention_dim=32, sample_size=8, patch_size=2,
        caption_channels=16, norm_type="ada_norm_single", video_length=2,
    ),
    "diffusers temporal vae": _diffusers(
        "AutoencoderKLWan", lambda: (torch.randn(4, 3, 5, 16, 16), torch.randn(4, 3, 5, 16, 16)), (), base_dim=8,
        z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[True], latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ),
}  # fmt: skip

VISION_UNLISTED: dict[str, Callable[[], Program]] = {
    **(TIMM if "timm" in _FOUND else {}),
    **(DIFFUSERS if "diffusers" in _FOUND else {}),
}
