"""Programs of sequences: recurrences, routed tokens, attention in forms of their own, losses over labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, marked_words


class TimeMix(nn.Module):
    """As RWKV 7: tokens mixed with the last one by `lerp`, a state of rank-one updates in a loop, a group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.mix = nn.Parameter(torch.rand(5, 16))
        self.r, self.k, self.v, self.g = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.w0, self.w1, self.w2 = nn.Parameter(torch.randn(16)), nn.Linear(16, 4, False), nn.Linear(4, 16, False)
        self.bonus = nn.Parameter(torch.randn(4, 4))
        self.norm, self.group, self.head = nn.LayerNorm(16), nn.GroupNorm(4, 16, eps=64e-5), nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        b, t, c = x.shape
        last = f.pad(x, (0, 0, 1, -1))
        mixed = [torch.lerp(x, last, each) for each in self.mix.unbind(0)]
        r, k, v = (each(one).view(b, t, 4, 4) for each, one in zip((self.r, self.k, self.v), mixed, strict=False))
        gate = torch.sigmoid(self.g(mixed[3]))
        decay = torch.exp(-torch.exp(self.w0 + self.w2(torch.tanh(self.w1(mixed[4]))))).view(b, t, 4, 4)
        k = f.normalize(k, dim=-1)
        state, made = x.new_zeros(b, 4, 4, 4), torch.empty(b, t, 4, 4, dtype=x.dtype, device=x.device)
        for step in range(t):
            pair = k[:, step].unsqueeze(-1) @ v[:, step].unsqueeze(-2)
            made[:, step] = torch.einsum("bhk,bhkv->bhv", r[:, step], state + self.bonus[..., None] * pair)
            state = state * decay[:, step, :, :, None] + pair
        y = self.group(made.flatten(2).view(b * t, c)).view(b, t, c)
        return f.cross_entropy(self.head(x + y * gate).transpose(1, 2), labels)


class Delta(nn.Module):
    """A delta rule by chunks: masks of decays, a triangular system solved row by row, a state between chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.beta, self.decay = nn.Linear(8, 48), nn.Linear(8, 4), nn.Linear(8, 4)
        self.norm, self.out = nn.RMSNorm(4), nn.Linear(16, 8)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = f.normalize(q, dim=-1) * 0.5, f.normalize(k, dim=-1)
        beta = self.beta(x).sigmoid().transpose(1, 2).unsqueeze(-1)
        decay = f.logsigmoid(self.decay(x)).transpose(1, 2)
        q, k, v, kb = (each.reshape(b, 4, t // 4, 4, 4) for each in (q, k, v * beta, k * beta))
        decay = decay.reshape(b, 4, t // 4, 4).cumsum(-1)
        upper = torch.triu(torch.ones(4, 4, dtype=torch.bool, device=x.device), diagonal=0)
        between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()
        lower = -((kb @ k.transpose(-1, -2)) * between).masked_fill(upper, 0)
        for row in range(1, 4):
            own, above = lower[..., row, :row].clone(), lower[..., :row, :row].clone()
            lower[..., row, :row] = own + (own.unsqueeze(-1) * above).sum(-2)
        lower = lower + torch.eye(4, dtype=x.dtype, device=x.device)
        values, keys = lower @ v, lower @ (kb * decay.exp().unsqueeze(-1))
        state, made = torch.zeros(b, 4, 4, 4, dtype=x.dtype, device=x.device), torch.zeros_like(values)
        for chunk in range(t // 4):
            inner = (q[:, :, chunk] @ k[:, :, chunk].mT * between[:, :, chunk]).masked_fill_(upper.mT.triu(1), 0)
            new = values[:, :, chunk] - keys[:, :, chunk] @ state
            made[:, :, chunk] = (q[:, :, chunk] * decay[:, :, chunk, :, None].exp()) @ state + inner @ new
            last = decay[:, :, chunk, -1, None]
            kept = k[:, :, chunk] * (last - decay[:, :, chunk]).exp()[..., None]
            state = state * last.exp().unsqueeze(-1) + kept.mT @ new
        y = self.norm(made.reshape(b, 4, t, 4)).transpose(1, 2).flatten(2)
        return f.mse_loss(self.out(y), goal)


class Rotations(nn.Module):
    """Rotary positions four ways: halves and pairs, of a part of a head, looked up by place, and of two dims."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 96, bias=False), nn.Linear(32, 4)
        self.register_buffer("inv", 1.0 / 100 ** (torch.arange(0, 4, 2) / 4), persistent=False)
        angles = torch.arange(16.0)[:, None] / 100 ** (torch.arange(0, 4, 2) / 4)
        self.register_buffer("table", torch.cat([angles.cos(), angles.sin()], -1), persistent=True)

    def _halves(self, x: Tensor, places: Tensor) -> Tensor:
        angles = torch.cat([places[..., None].to(x.dtype) * self.inv.to(x.dtype)] * 2, -1)[:, None]
        one, other = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat((-other, one), dim=-1) * angles.sin()

    def _pairs(self, x: Tensor, places: Tensor) -> Tensor:
        cos, sin = self.table[places].to(x.dtype).chunk(2, -1)
        cos, sin = (each.repeat_interleave(2, -1).unsqueeze(1) for each in (cos, sin))
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + turned * sin

    def forward(self, x: Tensor, places: Tensor, labels: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 4, 24).transpose(1, 2).split(8, dim=-1)
        q = torch.cat([self._halves(q[..., :4], places), q[..., 4:]], -1)
        k_turned, k_plain = k.tensor_split((4,), dim=-1)
        k = torch.cat((self._halves(k_turned, places), k_plain), -1)
        rows, columns = places // 4, places % 4
        q = torch.cat([q[..., :4], self._pairs(q[..., 4:], rows)], -1)
        k = torch.cat([k[..., :4], self._pairs(k[..., 4:], columns)], -1)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return f.cross_entropy(self.out(y.transpose(1, 2).flatten(2).mean(1)), labels)


class Sinks(nn.Module):
    """A sliding window with slopes for distances, sinks beside the scores (GPT-OSS), two softmaxes subtracted."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, n, bias=False) for n in (32, 32, 16))
        self.sinks, self.mix = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(4, 4))
        self.norm, self.out = nn.RMSNorm(4, elementwise_affine=False), nn.Linear(16, 4)
        self.register_buffer("slopes", 2 ** -torch.arange(1.0, 9.0))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k = (each(x).unflatten(-1, (8, 4)).transpose(1, 2) for each in (self.q, self.k))
        v = self.v(x).unflatten(-1, (4, 4)).transpose(1, 2)
        place = torch.arange(t, device=x.device)
        apart = place[:, None] - place
        scores = torch.matmul(q, k.transpose(2, 3)).mul(0.5) - self.slopes.to(x.dtype)[:, None, None] * apart
        scores = scores.masked_fill(~((apart >= 0) & (apart < 4)), torch.finfo(x.dtype).min)
        scores = torch.cat([scores, self.sinks.reshape(1, -1, 1, 1).expand(b, -1, t, -1)], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        chances = f.softmax(scores, dim=-1, dtype=scores.dtype)[..., :-1]
        one, two = chances.view(b, 4, 2, t, t).unbind(2)
        weight = torch.exp((self.mix[0] * self.mix[1]).sum()) - (self.mix[2] * self.mix[3]).sum().exp() + 0.8
        y = self.norm((one - weight * two) @ v) * 0.2
        return f.cross_entropy(self.out(y.transpose(1, 2).reshape(b, t, -1)).amax(1), labels)


class Latents(nn.Module):
    """Multi-head latent attention: compressed keys and values, a part of each head with positions, absorbed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q_down, self.q_norm, self.q_up = nn.Linear(16, 8, False), nn.RMSNorm(8), nn.Linear(8, 4 * 6, False)
        self.kv_down, self.kv_norm = nn.Linear(16, 8 + 2, False), nn.RMSNorm(8)
        self.kv_up, self.out = nn.Linear(8, 4 * (4 + 4), False), nn.Linear(16, 16, False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, _ = x.size()
        q = self.q_up(self.q_norm(self.q_down(x))).view(b, t, 4, 6)
        q_plain, q_turned = torch.split(q, [4, 2], dim=-1)
        compressed, k_turned = self.kv_down(x).split([8, 2], dim=-1)
        compressed = self.kv_norm(compressed)
        up = self.kv_up.weight.view(4, 8, 8)
        absorbed = torch.einsum("bshd,hdc->bshc", q_plain, up[:, :4])
        angle = torch.arange(t, device=x.device, dtype=x.dtype)[None, :, None, None]
        turn = torch.cat([angle.cos(), angle.sin()], -1)
        q_turned, k_turned = (
            torch.stack([(each * turn).sum(-1), (each.flip(-1) * turn).sum(-1)], -1)
            for each in (q_turned, k_turned.unsqueeze(2))
        )
        scores = torch.einsum("bshc,btc->bsht", absorbed, compressed)
        scores = (scores + torch.einsum("bshr,btr->bsht", q_turned, k_turned.squeeze(2))) * 6**-0.5
        scores += torch.full((t, t), float("-inf"), device=x.device, dtype=x.dtype).triu_(1).unsqueeze(1)
        y = torch.einsum("bsht,btc->bshc", scores.softmax(dim=-1), compressed)
        y = torch.einsum("bshc,hdc->bshd", y, up[:, -4:])
        return f.cross_entropy(self.head(self.out(y.flatten(2)))[:, -1], labels)


class GatedForms(nn.Module):
    """Gated nets with their two halves in one weight: chunked, viewed, interleaved, of experts, of a low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Linear(16, 64), nn.Linear(32, 16)
        self.packed, self.back = nn.Parameter(torch.randn(2, 32, 16) * 0.2), nn.Parameter(torch.randn(32, 16) * 0.2)
        self.woven, self.woven_bias = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.zeros(4, 32))
        self.up, self.gate, self.head = nn.Linear(16, 4, bias=False), nn.Linear(4, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        gate, value = self.first(x).chunk(2, dim=-1)
        x = x + self.down(f.gelu(gate) * value)
        one, two = f.linear(x, self.packed.view(64, 16)).view(*x.shape[:-1], 2, 32).unbind(-2)
        x = x + f.silu(one).mul(two) @ self.back
        each = torch.baddbmm(self.woven_bias.unsqueeze(1), x.flatten(0, 1).expand(4, -1, -1), self.woven)
        gate, value = each[..., ::2].clamp(max=7.0), each[..., 1::2].clamp(min=-7.0, max=7.0)
        x = x + ((value + 1) * gate * torch.sigmoid(gate * 1.702)).mean(0).view_as(x)
        x = x * torch.sigmoid(self.gate(f.relu(self.up(x)).square()))
        return f.cross_entropy(self.head(x.mean(1)), labels)


class Depths(nn.Module):
    """A mixture of depths: the best tokens are gathered, run and added back; experts that choose their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.block = nn.Linear(16, 1), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.choose = nn.Linear(16, 4, bias=False)
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 16, 24) * 0.2), nn.Parameter(torch.randn(4, 24, 16) * 0.2)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        weight = self.router(x).squeeze(-1)
        top, chosen = torch.topk(weight, 4, dim=1, sorted=False)
        chosen, order = torch.sort(chosen, dim=1)
        top = top.gather(1, order)
        index = chosen.unsqueeze(-1).expand(-1, -1, x.size(-1))
        picked = torch.gather(x, 1, index)
        x = torch.scatter_add(x, 1, index, self.block(picked) * top.sigmoid().unsqueeze(-1))
        flat = x.reshape(-1, 16)
        chances = self.choose(flat).softmax(-1).t()
        gates, tokens = chances.topk(8, dim=-1)
        given = flat[tokens]
        made = torch.bmm(torch.bmm(given, self.w1).relu(), self.w2) * gates.unsqueeze(-1)
        y = torch.zeros_like(flat).index_add(0, tokens.reshape(-1), made.reshape(-1, 16))
        logits = self.head(flat + y).view(*labels.shape, -1)
        auxiliary = f.binary_cross_entropy_with_logits(weight, torch.zeros_like(weight).scatter(1, chosen, 1.0))
        return f.cross_entropy(logits.movedim(-1, 1), labels) + 0.01 * auxiliary


class ProductKeys(nn.Module):
    """A memory of products of keys: two lists of the best, the best of their sums, a bag of their values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.keys, self.values = nn.Parameter(torch.randn(2, 2, 8, 4)), nn.EmbeddingBag(64, 16, mode="sum")
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        q = self.norm(self.query(x)).view(-1, 2, 2, 4)
        scores = torch.einsum("nhpd,hpkd->nhpk", q, self.keys)
        best, place = scores.topk(3, dim=-1)
        total = (best[:, :, 0, :, None] + best[:, :, 1, None, :]).flatten(-2)
        where = (place[:, :, 0, :, None] * 8 + place[:, :, 1, None, :]).flatten(-2)
        total, chosen = total.topk(3, dim=-1)
        index = where.gather(-1, chosen)
        made = self.values(index.view(len(x), -1), per_sample_weights=total.softmax(-1).view(len(x), -1))
        return f.cross_entropy(self.head(x + made), labels)


class LogScan(nn.Module):
    """A minimal gated recurrence as a scan in logarithms, and a matrix memory whose gates a running maximum scales."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.hidden = nn.Linear(8, 16), nn.Linear(8, 16)
        self.q, self.k, self.v, self.both = (nn.Linear(16, n) for n in (16, 16, 16, 8))
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        gate, hidden = self.gates(x), self.hidden(x)
        log_kept = -f.softplus(gate)
        log_new = -f.softplus(-gate) + torch.where(hidden >= 0, (hidden.relu() + 0.5).log(), -f.softplus(-hidden))
        total = log_kept.cumsum(1)
        h = torch.exp(total + torch.logcumsumexp(log_new - total, dim=1))
        b, t, _ = h.shape
        q, k, v = (each(h).view(b, t, 4, 4).transpose(1, 2) for each in (self.q, self.k, self.v))
        into, forget = self.both(h).transpose(1, 2).chunk(2, 1)
        spans = f.logsigmoid(forget).cumsum(-1)
        log_weights = spans.unsqueeze(-1) - spans.unsqueeze(-2) + into.unsqueeze(-2)
        causal = torch.ones(t, t, device=x.device).tril().bool()
        log_weights = torch.where(causal, log_weights, -torch.inf)
        top = log_weights.amax(-1, keepdim=True)
        scores = q @ (k / 2).transpose(-2, -1) * (log_weights - top).exp()
        normal = torch.maximum(scores.sum(-1, keepdim=True).abs(), (-top).exp())
        y = scores @ v / (normal + 1e-6)
        return f.l1_loss(self.out(y.transpose(1, 2).reshape(b, t, 16)), goal)


RECURRENCES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "time mix": lambda: (TimeMix(), marked_words()),
    "delta rule": lambda: (Delta(), (torch.randn(4, 8, 8), torch.randn(4, 8, 8))),
    "rotations": lambda: (
        Rotations(),
        (torch.randn(4, 8, 16), torch.arange(8).repeat(4, 1), torch.randint(4, (4,))),
    ),
    "sinks": lambda: (Sinks(), labelled()),
    "latents": lambda: (Latents(), labelled()),
    "gated forms": lambda: (GatedForms(), labelled()),
    "depths": lambda: (Depths(), (torch.randn(4, 8, 16), torch.randint(8, (4, 8)))),
    "product keys": lambda: (ProductKeys(), (torch.randn(8, 16), torch.randint(4, (8,)))),
    "log scan": lambda: (LogScan(), (torch.randn(4, 8, 8), torch.randn(4, 8, 8))),
}
