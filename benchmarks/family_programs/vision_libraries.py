"""Models of timm, torchvision and diffusers, as small as they can be made, each with a loss.

Needs those libraries; without one there are none of its models. `python benchmarks/families.py --library` runs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.torchvision_names import declare

BATCH, CLASSES = 4, 8
Program = tuple[nn.Module, tuple[Tensor, ...]]


class Classified(nn.Module):
    """A model of images under cross entropy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.model(pixels), labels)


class Denoised(nn.Module):
    """A model of diffusion under the error of what it says of the noise. `extra`: what it is given beside."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, sample: Tensor, noise: Tensor, *extra: Tensor) -> Tensor:
        made = self.model(sample, **dict(zip(self.names, extra, strict=True)), **self.fixed, return_dict=False)[0]
        return f.mse_loss(made[:, : noise.shape[1]], noise)


class Controlled(nn.Module):
    """A control net whose residuals go into a denoiser."""

    def __init__(self, control: nn.Module, unet: nn.Module) -> None:
        super().__init__()
        self.control, self.unet = control, unet
        with torch.no_grad():  # its last layers begin at zero
            for parameter in control.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))

    def forward(self, sample: Tensor, noise: Tensor, times: Tensor, words: Tensor, picture: Tensor) -> Tensor:
        down, middle = self.control(sample, times, words, picture, return_dict=False)
        given = {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
        return f.mse_loss(self.unet(sample, times, words, **given, return_dict=False)[0], noise)


def _still(model: nn.Module) -> nn.Module:
    """Without dropout, whose numbers no two runs share."""
    for module in model.modules():
        for name in ("p", "drop_prob", "drop_rate", "dropout_prob", "stochastic_depth_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def _images(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 3, size, size), torch.randint(CLASSES, (BATCH,))


def _timm(name: str, size: int = 32, **given: Any) -> Callable[[], Program]:
    def make() -> Program:
        declare()
        import timm

        return Classified(_still(timm.create_model(name, num_classes=CLASSES, **given))), _images(size)

    return make


def _timm_mixer(block: str, inner: str, ratio: Any) -> Callable[[], Program]:
    """A mixer made of its class: names of timm's table take no sizes."""

    def make() -> Program:
        declare()
        from timm.models import mlp_mixer

        layers = {"block_layer": getattr(mlp_mixer, block), "mlp_layer": getattr(mlp_mixer, inner)}
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2, "mlp_ratio": ratio}
        return Classified(_still(mlp_mixer.MlpMixer(num_classes=CLASSES, **sizes, **layers))), _images(32)

    return make


_FLAT: Mapping[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 2}
TIMM = {
    "timm efficientnet": _timm("efficientnet_b0", 64),
    "timm cait": _timm("cait_xxs24_224", **_FLAT, num_heads=4),
    "timm xcit": _timm("xcit_nano_12_p16_224", **_FLAT, num_heads=4, cls_attn_layers=1),
    "timm eva": _timm("eva02_tiny_patch14_224", 28, img_size=28, embed_dim=32, depth=2, num_heads=4),
    "timm ghostnet": _timm("ghostnet_050", 64),
    "timm mobilenetv4": _timm("mobilenetv4_conv_small_050", 64),
    "timm convnext": _timm("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 16, 32, 32)),
    "timm beit": _timm("beit_base_patch16_224", **_FLAT, patch_size=8, num_heads=4),
    "timm deit3": _timm("deit3_small_patch16_224", **_FLAT, patch_size=8, num_heads=4),
    "timm maxvit": _timm("maxvit_rmlp_pico_rw_256", 64, img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1)),
    "timm fastvit": _timm("fastvit_t8", 64, layers=(1, 1, 1, 1), embed_dims=(8, 16, 32, 32)),
    "timm mixer": _timm_mixer("MixerBlock", "Mlp", (0.5, 4.0)),
    "timm gmlp": _timm_mixer("SpatialGatingBlock", "GatedMlp", 4),
    "timm twins": _timm("twins_svt_small", img_size=32, depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32),
                        num_heads=(2, 2, 2, 2), mlp_ratios=(2, 2, 2, 2), sr_ratios=(2, 2, 1, 1), wss=(2, 2, 1, 1)),
    "timm levit": _timm("levit_128s", 64, img_size=64, embed_dim=(32, 32, 64), depth=(1, 1, 1), num_heads=(2, 2, 4)),
    "timm nfnet": _timm("nfnet_l0", 32),
    "timm edgenext": _timm("edgenext_xx_small", 64, depths=(1, 1, 1, 1), dims=(8, 16, 32, 32)),
    "timm vit": _timm("vit_tiny_patch16_224", **_FLAT, patch_size=8, num_heads=4),
    "timm swin": _timm("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2),
                       num_heads=(2, 4)),
    "timm efficientnetv2": _timm("efficientnetv2_rw_t", 32),
    "timm regnet": _timm("regnety_002", 32),
    "timm hiera": _timm("hiera_tiny_224", 64, img_size=(64, 64), embed_dim=16, stages=(1, 1, 1, 1)),
    "timm davit": _timm("davit_tiny", 64, depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32), num_heads=(2, 2, 4, 4),
                        window_size=2),
    "timm mambaout": _timm("mambaout_femto", 64, depths=(1, 1, 1, 1), dims=(8, 16, 32, 32)),
    "timm coatnet": _timm("coatnet_nano_rw_224", 64, img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1),
                          stem_width=16),
    "timm repvit": _timm("repvit_m0_9", 32),
}  # fmt: skip


def _torchvision(name: str, size: int = 32, **given: Any) -> Callable[[], Program]:
    def make() -> Program:
        declare()
        import torchvision.models

        return Classified(_still(getattr(torchvision.models, name)(num_classes=CLASSES, **given))), _images(size)

    return make


TORCHVISION = {
    "tv mobilenet_v3": _torchvision("mobilenet_v3_small"),
    "tv shufflenet_v2": _torchvision("shufflenet_v2_x0_5", 64),
    "tv squeezenet": _torchvision("squeezenet1_1", 64),
    "tv vit": _torchvision("VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32,
                           mlp_dim=64),
    "tv swin": _torchvision("SwinTransformer", patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                            window_size=[4, 4]),
    "tv densenet": _torchvision("DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=16),
    "tv maxvit": _torchvision("MaxVit", 64, input_size=(64, 64), stem_channels=8, partition_size=2,
                              block_channels=[8, 16], block_layers=[1, 1], head_dim=4, stochastic_depth_prob=0.0),
    "tv resnet": _torchvision("resnet18", width_per_group=64),
}  # fmt: skip


def _diffusers(name: str, batch: Callable[[], tuple[Tensor, ...]], names: tuple[str, ...], **given: Any) -> Any:
    def make() -> Program:
        declare()
        import diffusers

        return Denoised(_still(getattr(diffusers, name)(**given)), names), batch()

    return make


def _control() -> Program:
    """A control net beside a frozen UNet, which it feeds by a list of tensors."""
    model, batch = DIFFUSERS["diffusers sd unet"]()
    import diffusers

    net = diffusers.ControlNetModel.from_unet(model.model, conditioning_embedding_out_channels=(16, 16))
    return Controlled(_still(net), model.model.requires_grad_(False)), (*batch, torch.randn(BATCH, 3, 16, 16))


def _adapted_unet() -> Program:
    """A frozen UNet with LoRA by diffusers' own call, on attention and a convolution."""
    model, batch = DIFFUSERS["diffusers sd unet"]()
    import peft

    model.model.requires_grad_(False)
    targets = ["to_q", "to_k", "to_v", "to_out.0", "conv1"]
    model.model.add_adapter(peft.LoraConfig(r=4, lora_alpha=4, init_lora_weights=False, target_modules=targets))
    return model, batch


def _latents(channels: int, *extra: Tensor) -> tuple[Tensor, ...]:
    return torch.randn(BATCH, channels, 8, 8), torch.randn(BATCH, channels, 8, 8), *extra


_TIMES = torch.tensor([1, 5, 9, 3])
_BLOCKS: Mapping[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
DIFFUSERS = {
    "diffusers unet": _diffusers(
        "UNet2DModel", lambda: _latents(4, _TIMES), ("timestep",), sample_size=8, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8, **_BLOCKS,
    ),
    "diffusers sd unet": _diffusers(
        "UNet2DConditionModel", lambda: _latents(4, _TIMES, torch.randn(BATCH, 6, 16)),
        ("timestep", "encoder_hidden_states"), sample_size=8, in_channels=4, out_channels=4, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4, **_BLOCKS,
    ),
    "diffusers dit": _diffusers(
        "DiTTransformer2DModel", lambda: _latents(4, _TIMES, torch.tensor([0, 3, 2, 1])), ("timestep", "class_labels"),
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=8, norm_num_groups=4,
    ),
    "diffusers sd3": _diffusers(
        "SD3Transformer2DModel", lambda: _latents(4, torch.randn(BATCH, 6, 16), torch.randn(BATCH, 12), _TIMES),
        ("encoder_hidden_states", "pooled_projections", "timestep"), sample_size=8, patch_size=2, in_channels=4,
        num_layers=2, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=16, caption_projection_dim=32,
        pooled_projection_dim=12, out_channels=4,
    ),
    "diffusers pixart": _diffusers(
        "PixArtTransformer2DModel", lambda: _latents(4, torch.randn(BATCH, 6, 16), _TIMES),
        ("encoder_hidden_states", "timestep"), num_attention_heads=4, attention_head_dim=8, in_channels=4,
        out_channels=8, num_layers=2, cross_attention_dim=32, sample_size=8, caption_channels=16,
        use_additional_conditions=False,
    ),
    "diffusers vae": _diffusers(
        "AutoencoderKL", lambda: (torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)), (), latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=16,
        **_BLOCKS,
    ),
    "diffusers flux": _diffusers(
        "FluxTransformer2DModel", lambda: (torch.randn(4, 16, 4), torch.randn(4, 16, 4), torch.randn(4, 6, 16),
        torch.randn(4, 12), torch.rand(4), torch.zeros(16, 3), torch.zeros(6, 3)),
        ("encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids"), patch_size=1, in_channels=4,
        num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=16,
        pooled_projection_dim=12, guidance_embeds=False, axes_dims_rope=(2, 2, 4),
    ),
    "diffusers unet3d": _diffusers(
        "UNet3DConditionModel",
        lambda: (torch.randn(4, 4, 2, 8, 8), torch.randn(4, 4, 2, 8, 8), _TIMES, torch.randn(4, 6, 16)),
        ("timestep", "encoder_hidden_states"), sample_size=8, in_channels=4, out_channels=4, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        attention_head_dim=4, **_BLOCKS,
    ),
    "diffusers vq": _diffusers(
        "VQModel", lambda: (torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)), (), latent_channels=4,
        num_vq_embeddings=16, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=16, **_BLOCKS,
    ),
    "diffusers prior": _diffusers(
        "PriorTransformer", lambda: (torch.randn(4, 16), torch.randn(4, 16), _TIMES, torch.randn(4, 16),
        torch.randn(4, 5, 16)), ("timestep", "proj_embedding", "encoder_hidden_states"), num_attention_heads=4,
        attention_head_dim=8, num_layers=2, embedding_dim=16, num_embeddings=5, additional_embeddings=4,
    ),
    "diffusers aura flow": _diffusers(
        "AuraFlowTransformer2DModel", lambda: _latents(4, torch.randn(BATCH, 6, 16), torch.rand(BATCH)),
        ("encoder_hidden_states", "timestep"), sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1,
        num_single_dit_layers=1, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=16,
        caption_projection_dim=32, out_channels=4, pos_embed_max_size=64,
    ),
    "diffusers sana": _diffusers(
        "SanaTransformer2DModel", lambda: _latents(4, torch.randn(BATCH, 6, 16), _TIMES),
        ("encoder_hidden_states", "timestep"), in_channels=4, out_channels=4, num_layers=2, num_attention_heads=4,
        attention_head_dim=8, num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32,
        caption_channels=16, sample_size=8, patch_size=1,
    ),
    "diffusers video": _diffusers(
        "CogVideoXTransformer3DModel", lambda: (torch.randn(4, 2, 4, 8, 8), torch.randn(4, 2, 4, 8, 8),
        torch.randn(4, 6, 16), _TIMES), ("encoder_hidden_states", "timestep"), num_attention_heads=4,
        attention_head_dim=8, in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=16, num_layers=2,
        sample_width=8, sample_height=8, sample_frames=5, patch_size=2, temporal_compression_ratio=4,
        max_text_seq_length=6,
    ),
    "diffusers wan": _diffusers(
        "WanTransformer3DModel", lambda: (torch.randn(4, 4, 2, 8, 8), torch.randn(4, 4, 2, 8, 8), _TIMES,
        torch.randn(4, 6, 16)), ("timestep", "encoder_hidden_states"), patch_size=(1, 2, 2), num_attention_heads=4,
        attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=16, ffn_dim=32, num_layers=2,
        cross_attn_norm=True, rope_max_seq_len=32,
    ),
    "diffusers control": _control,
    "diffusers lora": _adapted_unet,
}  # fmt: skip

_FOUND = {name for name in ("timm", "torchvision", "diffusers") if importlib.util.find_spec(name)}
VISION_LIBRARIES: dict[str, Callable[[], Program]] = {
    **(TIMM if "timm" in _FOUND else {}),
    **(TORCHVISION if "torchvision" in _FOUND else {}),
    **(DIFFUSERS if "diffusers" in _FOUND else {}),
}
