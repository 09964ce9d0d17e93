"""Vision: residual and dense convolutions, transformers over patches, windows, detection, diffusion, GANs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResNet(nn.Module):
    """Bottlenecks with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 8, 1))
        self.layer2 = nn.Sequential(Bottleneck(32, 16, 2), Bottleneck(64, 16, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(64, 12)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(pixels)), inplace=True))
        x = self.layer2(self.layer1(x))
        return functional.cross_entropy(self.fc(torch.flatten(self.avgpool(x), 1)), labels, label_smoothing=0.1)


class Bottleneck(nn.Module):
    def __init__(self, ins: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(ins, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or ins != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(ins, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class DenseNet(nn.Module):
    """Features are concatenated; squeeze and excitation at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 * (n + 1)) for n in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(8 * (n + 1), 8, 3, padding=1) for n in range(3))
        self.transition, self.down, self.up = nn.Conv2d(32, 16, 1), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(16, 8)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        features = [self.stem(pixels)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(torch.relu(norm(torch.cat(features, 1)))))
        x = functional.avg_pool2d(self.transition(torch.cat(features, 1)), 2)
        weight = torch.sigmoid(self.up(functional.silu(self.down(x.mean((2, 3), keepdim=True)))))
        return functional.cross_entropy(self.head((x * weight).mean((-2, -1))), labels)


class UNet(nn.Module):
    """Segmentation: skips, transposed convolutions, instance norms."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down1, self.down2 = _double(3, 8), _double(8, 16), _double(16, 32)
        self.up1, self.up2 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.dec1, self.dec2, self.out = _double(32, 16), _double(16, 8), nn.Conv2d(8, 5, 1)

    def forward(self, pixels: Tensor, mask: Tensor) -> Tensor:
        a = self.enter(pixels)
        b = self.down1(functional.max_pool2d(a, 2))
        c = self.down2(functional.max_pool2d(b, 2))
        x = self.dec1(torch.cat([b, self.up1(c)], 1))
        logits = self.out(self.dec2(torch.cat([a, self.up2(x)], 1)))
        dice = (logits.softmax(1) * functional.one_hot(mask, 5).permute(0, 3, 1, 2)).sum((0, 2, 3)).mean()
        return functional.cross_entropy(logits, mask) - 0.001 * dice


def _double(ins: int, outs: int) -> nn.Sequential:
    first = [nn.Conv2d(ins, outs, 3, padding=1), nn.InstanceNorm2d(outs, affine=True), nn.LeakyReLU(0.1, inplace=True)]
    return nn.Sequential(*first, nn.Conv2d(outs, outs, 3, padding=1), nn.GroupNorm(4, outs), nn.SiLU())


class ConvNext(nn.Module):
    """Depthwise convolutions, norms over channels last, a scale for each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16, eps=1e-6)
        self.depthwise = nn.ModuleList(nn.Conv2d(16, 16, 7, padding=3, groups=16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16, eps=1e-6) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(16, 64) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(64, 16) for _ in range(2))
        self.gamma = nn.ParameterList(nn.Parameter(0.1 * torch.ones(16)) for _ in range(2))
        self.head = nn.Linear(16, 8)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(pixels).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for conv, norm, wide, narrow, gamma in zip(
            self.depthwise, self.norms, self.wide, self.narrow, self.gamma, strict=True
        ):
            made = gamma * narrow(functional.gelu(wide(norm(conv(x).permute(0, 2, 3, 1)))))
            x = x + made.permute(0, 3, 1, 2)
        return functional.cross_entropy(self.head(x.mean([-2, -1])), labels)


class Vit(nn.Module):
    """Patches, a class token, learned positions, fused q, k, v."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls_token, self.pos_embed = (
            nn.Parameter(torch.randn(1, 1, 16)),
            nn.Parameter(torch.randn(1, 17, 16) * 0.02),
        )
        self.norm1, self.norm2, self.norm = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.fc1, self.fc2, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 8)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.patch(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        x = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return functional.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


class Swin(nn.Module):
    """Shifted windows with a table of relative positions, patch merging."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm1 = nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.randn(49, 4) * 0.1)
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None, :] + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])
        self.norm2, self.merge, self.head = nn.LayerNorm(64), nn.Linear(64, 32, bias=False), nn.Linear(32, 8)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.patch(pixels).permute(0, 2, 3, 1)
        for shift in (0, 2):
            x = x + self.attend(self.norm1(x), shift)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return functional.cross_entropy(self.head(self.merge(self.norm2(x)).mean((1, 2))), labels)

    def attend(self, x: Tensor, shift: int) -> Tensor:
        batch, height, width, dim = x.shape
        x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        x = x.view(batch, height // 4, 4, width // 4, 4, dim).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, dim)
        q, k, v = self.qkv(x).reshape(x.shape[0], 16, 3, 4, dim // 4).permute(2, 0, 3, 1, 4)
        scores = (q * (dim // 4) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(16, 16, 4).permute(2, 0, 1)
        x = self.proj(((scores + bias.unsqueeze(0)).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, dim))
        x = (
            x.view(batch, height // 4, width // 4, 4, 4, dim)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(batch, height, width, dim)
        )
        return torch.roll(x, (shift, shift), (1, 2)) if shift else x


class Detector(nn.Module):
    """As DETR: a backbone, an encoder-decoder of torch over flattened features, queries, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GroupNorm(4, 16), nn.ReLU())
        self.transformer = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
        self.query, self.row, self.col = (
            nn.Parameter(torch.randn(*shape) * 0.3) for shape in ((8, 16), (4, 8), (4, 8))
        )
        self.classes, self.boxes = nn.Linear(16, 6), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, pixels: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
        x = self.backbone(pixels)
        at = torch.cat([self.col.unsqueeze(0).repeat(4, 1, 1), self.row.unsqueeze(1).repeat(1, 4, 1)], -1).flatten(0, 1)
        memory = x.flatten(2).permute(0, 2, 1) + at.unsqueeze(0)
        found = self.transformer(memory, self.query.unsqueeze(0).expand(x.shape[0], -1, -1))
        wrong = functional.cross_entropy(self.classes(found).transpose(1, 2), labels)
        return wrong + functional.l1_loss(self.boxes(found).sigmoid(), boxes)


class Diffusion(nn.Module):
    """A denoiser: time embedded in sines, residual blocks with group norms, attention over pixels, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.time1, self.time2 = nn.Linear(16, 32), nn.Linear(32, 32)
        self.enter, self.norm1, self.conv1 = (
            nn.Conv2d(4, 16, 3, padding=1),
            nn.GroupNorm(4, 16),
            nn.Conv2d(16, 16, 3, 1, 1),
        )
        self.shift, self.norm2, self.conv2 = nn.Linear(32, 32), nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, 1, 1)
        self.down, self.norm3 = nn.Conv2d(16, 16, 3, 2, 1), nn.GroupNorm(8, 16)
        self.qkv, self.proj = nn.Conv1d(16, 48, 1), nn.Conv1d(16, 16, 1)
        self.up, self.out = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, noisy: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(8, device=step.device) * -0.5)
        angle = step[:, None] * rates[None]
        time = self.time2(functional.silu(self.time1(torch.cat([angle.sin(), angle.cos()], -1))))
        skip = x = self.enter(noisy)
        x = self.conv1(functional.silu(self.norm1(x)))
        scale, shift = self.shift(functional.silu(time))[:, :, None, None].chunk(2, 1)
        x = skip + self.conv2(functional.silu(self.norm2(x) * (1 + scale) + shift))
        x = self.down(x)
        batch, width, height, _ = x.shape
        q, k, v = self.qkv(self.norm3(x).view(batch, width, -1)).chunk(3, 1)
        attended = torch.einsum("bij,bcj->bci", torch.einsum("bci,bcj->bij", q, k * width**-0.5).softmax(-1), v)
        x = x + self.proj(attended).view(batch, width, height, -1)
        x = self.up(functional.interpolate(x, scale_factor=2, mode="nearest"))
        return functional.mse_loss(self.out(torch.cat([x, skip], 1)), noise)


class Discriminator(nn.Module):
    """Of a GAN: spectral norms by hand, a minibatch standard deviation, a hinge for real and generated images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv2d(3, 8, 4, 2, 1),
            nn.Conv2d(8, 16, 4, 2, 1),
            nn.Conv2d(17, 16, 3, 1, 1),
        )
        self.norm, self.score = nn.BatchNorm2d(16), nn.Linear(16 * 16, 1)

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        return functional.relu(1 - self.judge(real)).mean() + functional.relu(1 + self.judge(fake)).mean()

    def judge(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.conv1(x), 0.2)
        x = functional.leaky_relu(self.norm(self.conv2(x)), 0.2)
        spread = x.std(0, unbiased=False).mean().expand(x.shape[0], 1, *x.shape[2:])
        x = functional.leaky_relu(self.conv3(torch.cat([x, spread], 1)), 0.2)
        return self.score(x.flatten(1)).squeeze(-1)


def _images(count: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 16, 16), torch.randint(5, (count,))


VISION = {
    "resnet": lambda: (ResNet(), (torch.randn(4, 3, 32, 32), torch.randint(5, (4,)))),
    "densenet": lambda: (DenseNet(), _images()),
    "unet": lambda: (UNet(), (torch.randn(4, 3, 16, 16), torch.randint(5, (4, 16, 16)))),
    "convnext": lambda: (ConvNext(), _images()),
    "vit": lambda: (Vit(), _images()),
    "swin": lambda: (Swin(), _images()),
    "detr": lambda: (Detector(), (_images()[0], torch.randint(6, (4, 8)), torch.rand(4, 8, 4))),
    "diffusion": lambda: (Diffusion(), (torch.randn(4, 4, 8, 8), torch.rand(4) * 9, torch.randn(4, 4, 8, 8))),
    "gan": lambda: (Discriminator(), (torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16))),
}
