"""Audio: convolutions over time with normalised weights, masks of spans, dilated gates, vocoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


class Wav2Vec(nn.Module):
    """A convolutional front, masked spans replaced by a vector, a convolution for positions with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(1, 16, 10, 5, bias=False), nn.GroupNorm(16, 16)
        self.conv2, self.norm = nn.Conv1d(16, 16, 3, 2, bias=False), nn.LayerNorm(16)
        self.masked = nn.Parameter(torch.rand(16))
        self.position = weight_norm(nn.Conv1d(16, 16, 4, padding=2, groups=4), name="weight", dim=2)
        self.encoder = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, wave: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = functional.gelu(self.norm1(self.conv1(wave.unsqueeze(1))))
        x = self.norm(functional.gelu(self.conv2(x)).transpose(1, 2))
        x = torch.where(mask.unsqueeze(-1), self.masked, x)
        x = x + functional.gelu(self.position(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        logits = self.head(self.encoder(x))
        lost = -functional.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return (lost * mask).sum() / mask.sum()


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, skips that are summed, weight norm everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(1, 16, 1))
        self.gates = nn.ModuleList(weight_norm(nn.Conv1d(16, 32, 2, dilation=2**n)) for n in range(3))
        self.skips = nn.ModuleList(weight_norm(nn.Conv1d(16, 32, 1)) for _ in range(3))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 8, 1))

    def forward(self, wave: Tensor, labels: Tensor) -> Tensor:
        x, total = self.enter(wave.unsqueeze(1)), None
        for number, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            left, right = gate(functional.pad(x, (2**number, 0))).chunk(2, 1)
            made, kept = skip(torch.tanh(left) * torch.sigmoid(right)).chunk(2, 1)
            x = (x + made) * 0.5**0.5
            total = kept if total is None else total + kept
        return functional.cross_entropy(self.out(total), labels)


class Vocoder(nn.Module):
    """Transposed convolutions up to samples, averages over receptive fields, a loss of spectra by convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up = (
            weight_norm(nn.Conv1d(8, 16, 7, padding=3)),
            weight_norm(nn.ConvTranspose1d(16, 8, 8, 4, 2)),
        )
        self.fields = nn.ModuleList(weight_norm(nn.Conv1d(8, 8, k, padding=k // 2)) for k in (3, 5))
        self.out = weight_norm(nn.Conv1d(8, 1, 7, padding=3))
        grid = torch.arange(8)[:, None] * torch.arange(8)[None] * (2 * torch.pi / 8)
        self.register_buffer("waves", torch.cat([grid.cos(), grid.sin()])[:, None])

    def forward(self, mel: Tensor, wave: Tensor) -> Tensor:
        x = self.up(functional.leaky_relu(self.enter(mel), 0.1))
        total = 0
        for field in self.fields:
            total = total + field(functional.leaky_relu(x, 0.1))
        made = torch.tanh(self.out(total / len(self.fields)))
        ours, theirs = (
            functional.conv1d(each, self.waves.to(each.dtype), stride=4) for each in (made, wave.unsqueeze(1))
        )
        return functional.l1_loss(ours.square(), theirs.square()) + functional.l1_loss(made.squeeze(1), wave)


class Conformer(nn.Module):
    """Half feed-forwards, attention, a gated depthwise convolution with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Conv2d(1, 4, 3, 2, 1)
        self.enter, self.norms = nn.Linear(16, 16), nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.point1, self.depth, self.norm = (
            nn.Conv1d(16, 32, 1),
            nn.Conv1d(16, 16, 3, padding=1, groups=16),
            nn.BatchNorm1d(16),
        )
        self.point2, self.head = nn.Conv1d(16, 16, 1), nn.Linear(16, 12)

    def forward(self, mel: Tensor, labels: Tensor) -> Tensor:
        x = functional.relu(self.sub(mel.unsqueeze(1)))
        batch, channels, time, bands = x.shape
        x = self.enter(x.transpose(1, 2).contiguous().view(batch, time, channels * bands))
        x = x + 0.5 * self.feed(self.norms[0](x))
        at = self.norms[1](x)
        x = x + self.attention(at, at, at, need_weights=False)[0]
        made = functional.glu(self.point1(self.norms[2](x).transpose(1, 2)), 1)
        x = x + self.point2(functional.silu(self.norm(self.depth(made)))).transpose(1, 2)
        return functional.cross_entropy(self.head(self.norms[3](x)).transpose(1, 2), labels)


AUDIO = {
    "wav2vec2": lambda: (Wav2Vec(), (torch.randn(4, 90), torch.rand(4, 8) < 0.5, torch.randint(12, (4, 8)))),
    "wavenet": lambda: (WaveNet(), (torch.randn(4, 16), torch.randint(8, (4, 16)))),
    "vocoder": lambda: (Vocoder(), (torch.randn(4, 8, 8), torch.rand(4, 32))),
    "conformer": lambda: (Conformer(), (torch.randn(4, 16, 8), torch.randint(12, (4, 8)))),
}
