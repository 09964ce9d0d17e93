"""Recurrence: LSTM, GRU, selective scans, linear attention, in loops of Python over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LstmLm(nn.Module):
    """Two layers of nn.LSTM, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(32, 16), nn.LSTM(16, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 32)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, _ = self.lstm(self.table(ids))
        return functional.cross_entropy(self.head(x).view(-1, 32), labels.view(-1))


class GruSeq2Seq(nn.Module):
    """A bidirectional encoder, a cell that is stepped in Python, additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.encoder, self.cell = nn.GRU(16, 8, batch_first=True, bidirectional=True), nn.GRUCell(32, 16)
        self.query, self.key, self.score = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 1)
        self.head = nn.Linear(32, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        memory, last = self.encoder(self.table(ids))
        state = torch.cat([last[0], last[1]], -1)
        keys, given, found = self.key(memory), self.table(labels), []
        context = memory.mean(1)
        for step in range(labels.shape[1] - 1):
            state = self.cell(torch.cat([given[:, step], context], -1), state)
            scores = self.score(torch.tanh(self.query(state).unsqueeze(1) + keys)).squeeze(-1)
            context = torch.bmm(scores.softmax(-1).unsqueeze(1), memory).squeeze(1)
            found.append(self.head(torch.cat([state, context], -1)))
        return functional.cross_entropy(torch.stack(found, 1).flatten(0, 1), labels[:, 1:].flatten())


class Mamba(nn.Module):
    """A selective scan over time, a causal depthwise convolution whose weight is used outside of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.in_proj, self.conv1d = nn.Linear(16, 64, bias=False), nn.Conv1d(32, 32, 4, groups=32, padding=3)
        self.x_proj, self.dt_proj = nn.Linear(32, 2 + 8, bias=False), nn.Linear(2, 32)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, 5).float()).repeat(32, 1))
        self.D, self.out_proj, self.head = (
            nn.Parameter(torch.ones(32)),
            nn.Linear(32, 16, bias=False),
            nn.Linear(16, 32),
        )

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        u, gate = self.in_proj(self.norm(x)).transpose(1, 2).chunk(2, 1)
        length = u.shape[-1]
        u = functional.silu(
            functional.conv1d(u, self.conv1d.weight, self.conv1d.bias, padding=3, groups=32)[..., :length]
        )
        steps, b, c = torch.split(self.x_proj(u.transpose(1, 2)), [2, 4, 4], -1)
        delta = functional.softplus(self.dt_proj(steps)).transpose(1, 2)
        a = -torch.exp(self.A_log.float())
        decay = torch.exp(a[None, :, None, :] * delta[:, :, :, None])
        fed = delta[:, :, :, None] * b[:, None, :, :] * u[:, :, :, None]
        state, outs = torch.zeros_like(fed[:, :, 0]), []
        for step in range(length):
            state = decay[:, :, step, :] * state + fed[:, :, step, :]
            outs.append(torch.matmul(state, c[:, step, :].unsqueeze(-1))[:, :, 0])
        y = (torch.stack(outs, -1) + u * self.D[None, :, None]) * functional.silu(gate)
        return functional.cross_entropy(self.head(x + self.out_proj(y.transpose(1, 2))).view(-1, 32), labels.view(-1))


class Rwkv(nn.Module):
    """Tokens mixed with the one before, a numerically guarded scan, outputs written into a tensor step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.shift = nn.Embedding(32, 16), nn.LayerNorm(16), nn.ZeroPad2d((0, 0, 1, -1))
        self.mix_k, self.mix_v, self.mix_r = (nn.Parameter(torch.rand(1, 1, 16)) for _ in range(3))
        self.decay, self.first = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))
        self.key, self.value, self.receptance, self.output = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.head = nn.Linear(16, 32, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        at = self.norm(x)
        before = self.shift(at)
        k = self.key(at * self.mix_k + before * (1 - self.mix_k))
        v = self.value(at * self.mix_v + before * (1 - self.mix_v))
        r = torch.sigmoid(self.receptance(at * self.mix_r + before * (1 - self.mix_r)))
        made = self.output(r * self.scan(k, v))
        return functional.cross_entropy(self.head(x + made).view(-1, 32), labels.view(-1))

    def scan(self, keys: Tensor, values: Tensor) -> Tensor:
        top, under = torch.zeros_like(keys[:, 0]), torch.zeros_like(keys[:, 0])
        most = torch.zeros_like(keys[:, 0]) - 1e38
        decay, made = -torch.exp(self.decay), torch.zeros_like(keys)
        for step in range(keys.shape[1]):
            k, v = keys[:, step], values[:, step]
            high = torch.maximum(most, k + self.first)
            old, new = torch.exp(most - high), torch.exp(k + self.first - high)
            made[:, step] = (old * top + new * v) / (old * under + new)
            high = torch.maximum(most + decay, k)
            old, new = torch.exp(most + decay - high), torch.exp(k - high)
            top, under, most = old * top + new * v, old * under + new, high
        return made


class Ssd(nn.Module):
    """As Mamba2: chunks, cumulative sums of decays, products within and between chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.in_proj, self.norm = nn.Linear(16, 32 + 8 + 8 + 4, bias=False), nn.RMSNorm(32)
        self.A_log, self.out_proj, self.head = nn.Parameter(torch.rand(4)), nn.Linear(32, 16), nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        batch, length, _ = x.shape
        u, b, c, dt = torch.split(self.in_proj(x), [32, 8, 8, 4], -1)
        dt = functional.softplus(dt)
        rates = (-torch.exp(self.A_log) * dt).view(batch, 2, length // 2, 4).permute(0, 3, 1, 2)
        u = (u.view(batch, length, 4, 8) * dt[..., None]).view(batch, 2, length // 2, 4, 8)
        b, c = b.view(batch, 2, length // 2, 8), c.view(batch, 2, length // 2, 8)
        summed = torch.cumsum(rates, -1)
        within = torch.exp(segments(rates))
        near = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, within, u)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(summed[..., -1:] - summed), u)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        across = torch.exp(segments(functional.pad(summed[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
        far = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, torch.exp(summed))
        y = self.norm((near + far).reshape(batch, length, 32))
        return functional.cross_entropy(self.head(x + self.out_proj(y)).view(-1, 32), labels.view(-1))


def segments(x: Tensor) -> Tensor:
    """Sums of x over every span, below the diagonal."""
    size = x.size(-1)
    x = x[..., None].expand(*x.size(), size)
    x = x.masked_fill(~torch.ones(size, size, dtype=torch.bool, device=x.device).tril(-1), 0)
    summed = torch.cumsum(x, -2)
    return summed.masked_fill(~torch.ones(size, size, dtype=torch.bool, device=x.device).tril(), -torch.inf)


class Retention(nn.Module):
    """Linear attention with a decay for each head, a group norm over heads, a swish gate."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 16), nn.GroupNorm(4, 16)
        self.qkvg, self.out, self.head = nn.Linear(16, 64), nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        batch, length, _ = x.shape
        q, k, v, gate = self.qkvg(x).chunk(4, -1)
        q, k, v = (each.view(batch, length, 4, 4).transpose(1, 2) for each in (q, k, v))
        rates = 1 - 2.0 ** (-2 - torch.arange(4, dtype=x.dtype, device=x.device))
        apart = torch.arange(length, device=x.device)[:, None] - torch.arange(length, device=x.device)[None]
        decay = torch.where(apart >= 0, rates[:, None, None] ** apart.clamp(min=0), 0.0)
        made = torch.matmul(torch.matmul(q, k.mT) * decay, v).transpose(1, 2).reshape(-1, 16)
        made = self.norm(made).view(batch, length, 16) * functional.silu(gate)
        return functional.cross_entropy(self.head(x + self.out(made)).view(-1, 32), labels.view(-1))


def _text() -> tuple[Tensor, Tensor]:
    return torch.randint(32, (4, 8)), torch.randint(32, (4, 8))


SEQUENCES = {
    "lstm": lambda: (LstmLm(), _text()),
    "gru seq2seq": lambda: (GruSeq2Seq(), _text()),
    "mamba": lambda: (Mamba(), _text()),
    "mamba2": lambda: (Ssd(), _text()),
    "rwkv": lambda: (Rwkv(), _text()),
    "retention": lambda: (Retention(), _text()),
}
