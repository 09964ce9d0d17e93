"""Text: encoder-decoders, two towers, experts, latent attention, multi-query attention, masked language models."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class T5(nn.Module):
    """Encoder and decoder with buckets of relative positions, root-mean-square norms, a tied and scaled head."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(32, 16)
        self.relative = nn.Embedding(8, 4)
        self.encoder = nn.ModuleList([Attend(16), Gated(16)])
        self.decoder = nn.ModuleList([Attend(16), Attend(16), Gated(16)])
        self.lm_head = nn.Linear(16, 32, bias=False)
        self.lm_head.weight = self.shared.weight

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        attend, gated = self.encoder
        bias = self.positions(ids.shape[1], ids.shape[1], ids.device)
        hidden = (1.0 - mask[:, None, None, :].to(self.shared.weight.dtype)) * -1e4
        x = gated(attend(self.shared(ids), None, bias + hidden))
        own, cross, gated = self.decoder
        given = labels.new_zeros(labels.shape)
        given[..., 1:] = labels[..., :-1].clone()
        length = labels.shape[1]
        causal = torch.full((length, length), -1e4, device=ids.device).triu(1)
        y = own(self.shared(given), None, self.positions(length, length, ids.device) + causal)
        logits = self.lm_head(gated(cross(y, x, hidden)) * 16**-0.5)
        return functional.cross_entropy(logits.view(-1, 32), labels.view(-1), ignore_index=0)

    def positions(self, rows: int, columns: int, device: torch.device) -> Tensor:
        apart = torch.arange(columns, device=device)[None] - torch.arange(rows, device=device)[:, None]
        return self.relative(apart.abs().clamp(max=7)).permute(2, 0, 1).unsqueeze(0)


class Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attend(nn.Module):
    """Four heads, to itself or to another sequence, with a bias of scores."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, Rms(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor | None, bias: Tensor | None) -> Tensor:
        at = self.norm(x)
        source = at if other is None else other
        q, k, v = (
            each(given).view(given.shape[0], -1, self.heads, given.shape[-1] // self.heads).transpose(1, 2)
            for each, given in ((self.q, at), (self.k, source), (self.v, source))
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is not None:
            scores += bias
        made = torch.matmul(functional.softmax(scores.float(), dim=-1).type_as(scores), v)
        return x + self.o(made.transpose(1, 2).contiguous().view(x.shape))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wi_0, self.wi_1 = Rms(width), nn.Linear(width, 32, bias=False), nn.Linear(width, 32, bias=False)
        self.wo = nn.Linear(32, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        at = self.norm(x)
        return x + self.wo(functional.gelu(self.wi_0(at), approximate="tanh") * self.wi_1(at))


class Bart(nn.Module):
    """torch's encoder and decoder layers, positions with an offset, tokens shifted right, a final bias."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.positions = nn.Embedding(32, 16, padding_idx=1), nn.Embedding(18, 16)
        self.embed_norm = nn.LayerNorm(16)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True), 2, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True), 2)
        self.register_buffer("final_bias", torch.zeros(1, 32))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        memory = self.encoder(self.embed(ids), src_key_padding_mask=ids.eq(1))
        shifted = torch.cat([torch.full_like(labels[:, :1], 2), labels[:, :-1]], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(labels.shape[1], dtype=memory.dtype)
        made = self.decoder(self.embed(shifted), memory, tgt_mask=mask)
        logits = functional.linear(made, self.shared.weight) + self.final_bias
        return functional.cross_entropy(logits.reshape(-1, 32), labels.reshape(-1))

    def embed(self, ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1], device=ids.device) + 2
        return self.embed_norm(self.shared(ids) * math.sqrt(16) + self.positions(at))


class Clip(nn.Module):
    """Two towers, the row of the last token, normalised features, a learned temperature, losses both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(32, 16), nn.Parameter(torch.randn(8, 16) * 0.1)
        self.text, self.text_norm, self.text_out = Attend(16), nn.LayerNorm(16), nn.Parameter(torch.randn(16, 8) * 0.2)
        self.patch, self.cls = nn.Conv2d(3, 16, 4, 4, bias=False), nn.Parameter(torch.randn(16))
        self.image, self.image_norm, self.image_out = Attend(16), nn.LayerNorm(16), nn.Linear(16, 8, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        x = self.text_norm(self.text(self.token(ids) + self.position, None, None))
        last = x[torch.arange(x.shape[0], device=x.device), ids.argmax(-1)] @ self.text_out
        patches = self.patch(pixels).flatten(2).transpose(1, 2)
        first = self.cls.expand(patches.shape[0], 1, -1)
        image = self.image_out(self.image_norm(self.image(torch.cat([first, patches], 1), None, None)[:, 0, :]))
        last = last / last.norm(dim=-1, keepdim=True)
        image = image / image.norm(p=2, dim=-1, keepdim=True)
        logits = self.logit_scale.exp() * last @ image.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.t(), labels)) / 2


class Moe(nn.Module):
    """Two of four experts for each token, every expert computing all of them; losses of balance."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.attend, self.norm = nn.Embedding(32, 16), Attend(16), Rms(16)
        self.router = nn.Linear(16, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)
        self.head = nn.Linear(16, 32, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.attend(self.table(ids), None, None)
        flat = self.norm(x).reshape(-1, 16)
        odds = functional.softmax(self.router(flat), 1)
        top, chosen = torch.topk(odds, 2, -1)
        top = top / top.sum(-1, keepdim=True)
        weights = torch.zeros_like(odds).scatter_(1, chosen, top)
        made = torch.bmm(functional.silu(torch.bmm(flat.expand(4, -1, -1), self.up)), self.down)
        x = x + (made * weights.t().unsqueeze(-1)).sum(0).view(x.shape)
        share = functional.one_hot(chosen, 4).to(odds.dtype).mean((0, 1))
        balance = 4 * (share * odds.mean(0)).sum()
        return functional.cross_entropy(self.head(x).transpose(1, 2), labels) + 0.01 * balance


class LoopedMoe(nn.Module):
    """Experts in a list, each masked by whether it was chosen: no shape depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gate = nn.Embedding(32, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
        self.head = nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        scores = self.gate(x)
        kept = scores >= scores.topk(2, -1).values[..., -1:]
        odds = scores.masked_fill(~kept, float("-inf")).softmax(-1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            made += odds[..., number, None] * expert(x)
        return functional.cross_entropy(self.head(x + made).view(-1, 32), labels.view(-1))


class Latent(nn.Module):
    """As DeepSeek's: keys and values through a narrow latent, rotary parts apart, one rotary key for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 16), Rms(16)
        self.q_a, self.q_norm, self.q_b = nn.Linear(16, 8, bias=False), Rms(8), nn.Linear(8, 4 * 12, bias=False)
        self.kv_a, self.kv_norm, self.kv_b = nn.Linear(16, 8 + 4, bias=False), Rms(8), nn.Linear(8, 4 * 16, bias=False)
        self.o, self.head = nn.Linear(4 * 8, 16, bias=False), nn.Linear(16, 32, bias=False)
        self.register_buffer("rates", 1.0 / 100 ** (torch.arange(0, 4, 2).float() / 4), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        batch, length, _ = x.shape
        at = self.norm(x)
        q = self.q_b(self.q_norm(self.q_a(at))).view(batch, length, 4, 12).transpose(1, 2)
        q_plain, q_turned = torch.split(q, [8, 4], -1)
        latent, k_turned = torch.split(self.kv_a(at), [8, 4], -1)
        k_turned = k_turned.view(batch, 1, length, 4)
        keys, values = self.kv_b(self.kv_norm(latent)).view(batch, length, 4, 16).transpose(1, 2).split([8, 8], -1)
        cos, sin = self.angles(length, x)
        q_turned, k_turned = turn(q_turned, cos, sin), turn(k_turned, cos, sin)
        k = k_turned.new_empty(batch, 4, length, 12)
        k[..., :8] = keys
        k[..., 8:] = k_turned
        q = torch.cat([q_plain, q_turned], -1)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = (torch.matmul(q, k.transpose(2, 3)) * 12**-0.5).masked_fill(~mask, torch.finfo(x.dtype).min)
        made = torch.matmul(scores.softmax(-1), values).transpose(1, 2).reshape(batch, length, -1)
        return functional.cross_entropy(self.head(x + self.o(made)).view(-1, 32), labels.view(-1))

    def angles(self, length: int, x: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.outer(torch.arange(length, device=x.device, dtype=x.dtype), self.rates.to(x.dtype))
        both = torch.cat([angle, angle], -1)
        return both.cos(), both.sin()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Deberta(nn.Module):
    """Disentangled positions: scores of content with positions are gathered by how far apart tokens are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 16, padding_idx=0), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.relative, self.place = nn.Embedding(16, 16), nn.Linear(16, 16, bias=False)
        self.head = nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.table(ids))
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, 4, 4).transpose(1, 2) for each in (self.q, self.k, self.v))
        place = self.place(self.relative.weight).view(1, 16, 4, 4).transpose(1, 2)
        apart = torch.arange(length, device=x.device)[:, None] - torch.arange(length, device=x.device)[None] + 8
        index = apart.clamp(0, 15).expand(batch, 4, length, length)
        scores = q @ k.transpose(-1, -2) + torch.gather(q @ place.transpose(-1, -2), -1, index)
        x = x + self.o((scores / math.sqrt(12)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


class MultiQuery(nn.Module):
    """As Falcon's and PaLM's: one key and value head, attention and MLP side by side, ALiBi, logits capped."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16, bias=False)
        self.fused, self.out = nn.Linear(16, 16 + 8 + 64, bias=False), nn.Linear(16 + 32, 16, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        batch, length, _ = x.shape
        q, k, v, wide = self.fused(self.norm(x)).split([16, 4, 4, 64], -1)
        q = q.view(batch, length, 4, 4).transpose(1, 2)
        slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=x.dtype, device=x.device)
        apart = torch.arange(length, device=x.device)[None] - torch.arange(length, device=x.device)[:, None]
        bias = slopes[:, None, None] * apart + torch.zeros_like(apart, dtype=x.dtype).masked_fill(apart > 0, -1e4)
        made = functional.scaled_dot_product_attention(
            q, k.unsqueeze(1).expand_as(q), v.unsqueeze(1).expand_as(q), bias
        )
        gate, up = wide.chunk(2, -1)
        x = x + self.out(torch.cat([made.transpose(1, 2).reshape(x.shape), functional.silu(gate) * up], -1))
        logits = functional.linear(x, self.table.weight)
        logits = 5 * torch.tanh(logits / 5)
        shifted, wanted = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        lost = functional.cross_entropy(shifted.view(-1, 32), wanted.view(-1), reduction="none").view(batch, -1)
        weight = (wanted != 0).to(lost.dtype)
        return (lost * weight).sum() / weight.sum() + 1e-3 * logits.logsumexp(-1).pow(2).mean()


def _text(low: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randint(low, 32, (4, 8)), torch.randint(low, 32, (4, 8))


def _masked() -> tuple[Tensor, Tensor, Tensor]:
    ids, labels = _text()
    return ids, (torch.arange(8)[None] < torch.tensor([8, 6, 7, 5])[:, None]).long(), labels


TEXT = {
    "t5": lambda: (T5(), _masked()),
    "bart": lambda: (Bart(), _text()),
    "clip": lambda: (Clip(), (_text()[0], torch.randn(4, 3, 16, 16))),
    "moe": lambda: (Moe(), _text()),
    "moe list": lambda: (LoopedMoe(), _text()),
    "mla": lambda: (Latent(), _text()),
    "deberta": lambda: (Deberta(), _text()),
    "multi-query": lambda: (MultiQuery(), _text(0)),
}
