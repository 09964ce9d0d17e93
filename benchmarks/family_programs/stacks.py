"""Programs of transformers and tables in further forms: capacities, adapters, caches, kernels, experts of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint


class Capacity(nn.Module):
    """Experts of a capacity: places by running counts, tokens over it dropped, dispatched by products; then experts
    that choose their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.router, self.second = (
            nn.Embedding(16, 16),
            nn.Linear(16, 4, bias=False),
            nn.Linear(16, 4, bias=False),
        )
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)
        self.places, self.head = nn.Parameter(torch.randn(8, 16)), nn.Linear(16, 16)

    def experts(self, given: Tensor) -> Tensor:
        return torch.einsum("ech,ehd->ecd", f.gelu(torch.einsum("ecd,edh->ech", given, self.up)), self.down)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = (self.table(ids) + self.places).flatten(0, 1)
        logits = self.router(x)
        chances = logits.softmax(-1)
        gates, chosen = chances.topk(2, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        hot = f.one_hot(chosen, 4).to(x.dtype)
        order = hot.transpose(0, 1).flatten(0, 1)
        place = ((order.cumsum(0) - 1) * order).sum(-1).view(2, -1).t()
        room = 12
        fits = (place < room).to(x.dtype)
        where = f.one_hot(place.long().clamp(max=room - 1), room).to(x.dtype) * fits[..., None]
        combine = torch.einsum("tk,tke,tkc->tec", gates, hot, where)
        given = torch.einsum("tec,td->ecd", (combine > 0).to(x.dtype), x)
        y = x + torch.einsum("tec,ecd->td", combine, self.experts(given))
        balance = 4 * (hot[:, 0].mean(0) * chances.mean(0)).sum() + 1e-3 * logits.logsumexp(-1).square().mean()
        weight, tokens = self.second(y).softmax(-1).t().topk(8, -1)
        made = self.experts(y[tokens]) * weight.unsqueeze(-1)
        y = y.index_add(0, tokens.flatten(), made.flatten(0, 1))
        return f.cross_entropy(self.head(y), labels.flatten()) + 0.01 * balance


class Adapters(nn.Module):
    """Frozen weights with adapters: low ranks added, of several tasks by number, magnitudes apart from directions
    (DoRA), scaled rows (IA3), prefixes of keys and values; merged in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 16).requires_grad_(False)
        self.qkv, self.out = nn.Linear(16, 48).requires_grad_(False), nn.Linear(16, 16).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(3, 16, 4) * 0.2), nn.Parameter(torch.randn(3, 4, 48) * 0.2)
        self.down, self.up, self.size = (
            nn.Parameter(torch.randn(2, 16)),
            nn.Parameter(torch.randn(16, 2) * 0.1),
            nn.Parameter(self.out.weight.norm(dim=1)),
        )
        self.rows, self.prefix, self.head = (
            nn.Parameter(torch.ones(16)),
            nn.Parameter(torch.randn(2, 4, 16)),
            nn.Linear(16, 4),
        )

    def forward(self, ids: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        low = torch.bmm(torch.bmm(x, self.a[tasks]), self.b[tasks]) * (8 / math.sqrt(4))
        q, k, v = (self.qkv(x) + low).chunk(3, -1)
        keys, values = (each.expand(len(x), -1, -1) for each in self.prefix)
        k, v = torch.cat([keys, k * self.rows], 1), torch.cat([values, v * self.rows], 1)
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (q, k, v))
        h = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        whole = self.out.weight + self.up @ self.down
        whole = self.size[:, None] * whole / whole.norm(dim=1, keepdim=True).detach()
        return f.cross_entropy(self.head(x + f.linear(h, whole, self.out.bias)).mean(1), labels)


class Cached(nn.Module):
    """Decoding word by word with caches that are made first and filled in place; slopes for distances, a window, soft
    caps, a table that is tied and scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = (
            nn.Embedding(16, 16),
            nn.Linear(16, 48, bias=False),
            nn.Linear(16, 16, bias=False),
        )
        self.gate_up, self.down, self.norm = (
            nn.Linear(16, 64, bias=False),
            nn.Linear(32, 16, bias=False),
            nn.RMSNorm(16),
        )

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        rows, times = ids.shape
        slopes = 2 ** (-8 * torch.arange(1, 5, dtype=self.norm.weight.dtype, device=ids.device) / 4)
        keys = torch.zeros(rows, 4, times, 4, dtype=self.norm.weight.dtype, device=ids.device)
        values, made = torch.zeros_like(keys), []
        for step in range(times):
            x = self.table(ids[:, step]) * 4.0
            q, k, v = self.qkv(self.norm(x)).view(rows, 3, 4, 4).unbind(1)
            keys = keys.index_copy(2, torch.tensor([step]), k.unsqueeze(2))
            values = values.clone()
            values[:, :, step] = v
            first = max(0, step - 3)
            scores = (q.unsqueeze(2) @ keys[:, :, first : step + 1].mT) / 2
            far = torch.arange(first - step, 1, dtype=x.dtype, device=x.device)
            scores = 20 * torch.tanh(scores / 20) + slopes[:, None, None] * far
            h = (scores.softmax(-1) @ values[:, :, first : step + 1]).flatten(1)
            x = x + self.out(h)
            gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
            made.append(x + self.down(f.silu(gate) * up))
        logits = f.linear(torch.stack(made, 1), self.table.weight)
        return f.cross_entropy(30 * torch.tanh(logits / 30).flatten(0, 1), labels.flatten())


class Merged(nn.Module):
    """Features of images put into a text where it has a place for them (`masked_scatter`), two rotary positions; a loss
    of the words alone (`masked_select`)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.patch, self.project = (
            nn.Embedding(16, 16),
            nn.Conv2d(3, 16, 4, 4),
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
        )
        self.layer, self.head = (
            nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
            nn.Linear(16, 16, bias=False),
        )

    def forward(self, ids: Tensor, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        features = self.project(self.patch(pixels).flatten(2).transpose(1, 2))
        places = (ids == 0).unsqueeze(-1).expand_as(x)
        x = x.masked_scatter(places, features.to(x.dtype))
        ahead = torch.triu(torch.full((x.shape[1],) * 2, float("-inf"), dtype=x.dtype, device=x.device), 1)
        logits = self.head(self.layer(x, src_mask=ahead))[:, :-1]
        losses = f.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
        words = labels[:, 1:] != 0
        return torch.masked_select(losses, words).sum() / words.sum()


class Tasks(nn.Module):
    """Ranking of several tasks: a history weighed by a candidate, crossed features, experts mixed for every task;
    losses weighed by learned uncertainties, activations by statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.users, self.bag = (
            nn.Embedding(32, 8, padding_idx=0),
            nn.Embedding(16, 8),
            nn.EmbeddingBag(16, 8, mode="sum"),
        )
        self.score, self.dice, self.alpha = (
            nn.Linear(32, 1),
            nn.BatchNorm1d(32, affine=False),
            nn.Parameter(torch.zeros(32)),
        )
        self.cross_u, self.cross_v, self.cross_b = (
            nn.Parameter(torch.randn(2, *s) * 0.1) for s in ((32, 4), (4, 32), (32,))
        )
        self.experts, self.gates = (
            nn.ModuleList(nn.Linear(32, 16) for _ in range(4)),
            nn.ModuleDict({"click": nn.Linear(32, 4), "buy": nn.Linear(32, 4)}),
        )
        self.towers, self.unsure = (
            nn.ModuleDict({"click": nn.Linear(16, 1), "buy": nn.Linear(16, 1)}),
            nn.ParameterDict({"click": nn.Parameter(torch.zeros(())), "buy": nn.Parameter(torch.zeros(()))}),
        )

    def forward(self, user: Tensor, item: Tensor, past: Tensor, tags: Tensor, clicks: Tensor) -> Tensor:
        candidate, history = self.items(item), self.items(past)
        wide = candidate.unsqueeze(1).expand_as(history)
        weight = self.score(torch.cat([history, wide, history - wide, history * wide], -1)).squeeze(-1)
        weight = weight.masked_fill(past == 0, -1e9).softmax(-1)
        x = torch.cat([self.users(user), candidate, (weight.unsqueeze(-1) * history).sum(1), self.bag(tags)], -1)
        gate = self.dice(x).sigmoid()
        x = gate * x + (1 - gate) * self.alpha * x
        first = x
        for u, v, b in zip(self.cross_u, self.cross_v, self.cross_b, strict=True):
            x = first * ((x @ u) @ v + b) + x
        made = torch.stack([expert(x).relu() for expert in self.experts], 1)
        loss, chance = torch.zeros((), dtype=x.dtype, device=x.device), torch.ones_like(x[:, 0])
        for number, (name, own) in enumerate(self.gates.items()):
            mixed = (own(x).softmax(-1).unsqueeze(-1) * made).sum(1)
            chance = chance * self.towers[name](mixed).squeeze(-1).sigmoid()
            sure = torch.exp(-self.unsure[name])
            loss = (
                loss
                + sure * f.binary_cross_entropy(chance.clamp(1e-6, 1 - 1e-6), clicks[:, number])
                + self.unsure[name] / 2
            )
        return loss


class Forecast(nn.Module):
    """A temporal fusion transformer: gated residual nets, variables chosen, an encoder and a decoder of cells with
    states made of what is static, attention that can be read, quantiles."""

    class Residual(nn.Module):
        """A gated residual net, which may be told something."""

        def __init__(self, given: int, made: int, told: bool = False) -> None:
            super().__init__()
            self.first, self.second, self.gate, self.norm = (
                nn.Linear(given, 16),
                nn.Linear(16, made),
                nn.Linear(made, 2 * made),
                nn.LayerNorm(made),
            )
            self.skip, self.told = (
                nn.Linear(given, made) if given != made else nn.Identity(),
                nn.Linear(16, 16, bias=False) if told else None,
            )

        def forward(self, x: Tensor, told: Tensor | None = None) -> Tensor:
            h = self.first(x)
            if self.told is not None and told is not None:
                h = h + self.told(told if told.dim() == h.dim() else told.unsqueeze(1))
            return self.norm(self.skip(x) + f.glu(self.gate(self.second(f.elu(h)))))

    def __init__(self) -> None:
        super().__init__()
        self.static, self.embeds = nn.Embedding(4, 16), nn.ModuleList(nn.Linear(1, 16) for _ in range(3))
        self.pick, self.each = self.Residual(48, 3, True), nn.ModuleList(self.Residual(16, 16) for _ in range(3))
        self.starts, self.encode, self.decode = (
            nn.ModuleList(self.Residual(16, 16) for _ in range(2)),
            nn.LSTM(16, 16, batch_first=True),
            nn.LSTM(16, 16, batch_first=True),
        )
        self.enrich, self.qk, self.v, self.out = (
            self.Residual(16, 16, True),
            nn.Linear(16, 32),
            nn.Linear(16, 8),
            nn.Linear(8, 16),
        )
        self.quantiles = nn.Linear(16, 3)

    def forward(self, series: Tensor, kind: Tensor, goal: Tensor) -> Tensor:
        told = self.static(kind)
        parts = torch.stack([embed(series[..., n : n + 1]) for n, embed in enumerate(self.embeds)], -2)
        chosen = self.pick(parts.flatten(-2), told).softmax(-1)
        each = torch.stack([net(parts[..., n, :]) for n, net in enumerate(self.each)], -2)
        x = (chosen.unsqueeze(-1) * each).sum(-2)
        past, future = x[:, :-4], x[:, -4:]
        h, c = (start(told).unsqueeze(0) for start in self.starts)
        seen, state = self.encode(past, (h.contiguous(), c.contiguous()))
        ahead, _ = self.decode(future, state)
        x = self.enrich(x + torch.cat([seen, ahead], 1), told)
        q, k = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qk(x).chunk(2, -1))
        times = torch.arange(x.shape[1], device=x.device)
        scores = (q @ k.mT / math.sqrt(8)).masked_fill(times > times[:, None], float("-inf"))
        x = x + self.out((scores.softmax(-1) @ self.v(x).unsqueeze(1)).mean(1))
        apart = goal.unsqueeze(-1) - self.quantiles(x[:, -4:])
        levels = torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype, device=x.device)
        return torch.maximum(levels * apart, (levels - 1) * apart).sum(-1).mean()


class Speedrun(nn.Module):
    """A small language model as in speed contests: skips between halves by learned weights, value embeddings, normed
    queries and keys, squares of rectified values, blocks in a mapping recomputed in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.values = nn.Embedding(16, 16), nn.Embedding(16, 16)
        self.blocks = nn.ModuleDict(
            {
                f"block_{n}": nn.ModuleDict(
                    {
                        "qkv": nn.Linear(16, 48, bias=False),
                        "out": nn.Linear(16, 16, bias=False),
                        "up": nn.Linear(16, 64, bias=False),
                        "down": nn.Linear(64, 16, bias=False),
                    }
                )
                for n in range(4)
            }
        )
        self.mix, self.skip = nn.Parameter(torch.tensor([[1.0, 0.1]] * 4)), nn.Parameter(torch.ones(2))

    def block(self, name: str, x: Tensor, first: Tensor, values: Tensor, mix: Tensor) -> Tensor:
        own = self.blocks[name]
        x = mix[0] * x + mix[1] * first
        q, k, v = own["qkv"](f.rms_norm(x, (16,))).view(*x.shape[:2], 3, 4, 4).unbind(2)
        at = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)[:, None] * torch.tensor([1.0, 0.0], dtype=x.dtype)
        cos, sin = at.cos()[:, None], at.sin()[:, None]

        def turned(y: Tensor) -> Tensor:
            one, two = f.rms_norm(y, (4,)).chunk(2, -1)
            return torch.cat([one * cos + two * sin, two * cos - one * sin], -1).transpose(1, 2)

        v = (v + values.view_as(v)) * 0.5
        h = f.scaled_dot_product_attention(turned(q), turned(k), v.transpose(1, 2), is_causal=True, scale=0.12)
        x = x + own["out"](h.transpose(1, 2).reshape_as(x))
        return x + own["down"](own["up"](f.rms_norm(x, (16,))).relu().square())

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = first = f.rms_norm(self.table(ids), (16,))
        values, held = self.values(ids), []
        for number, name in enumerate(self.blocks):
            if number >= 2:
                x = x + self.skip[number - 2] * held.pop()
            x = checkpoint(self.block, name, x, first, values, self.mix[number], use_reentrant=False)
            if number < 2:
                held.append(x)
        logits = f.rms_norm(x, (16,)) @ self.table.weight.T
        return f.cross_entropy((15 * logits * torch.rsqrt(logits.square() + 225)).flatten(0, 1), labels.flatten())


STACKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "capacity": lambda: (Capacity(), (torch.randint(16, (4, 8)), torch.randint(16, (4, 8)))),
    "adapters": lambda: (Adapters(), (torch.randint(16, (4, 8)), torch.tensor([0, 2, 1, 1]), torch.randint(4, (4,)))),
    "cached": lambda: (Cached(), (torch.randint(16, (4, 6)), torch.randint(16, (4, 6)))),
    "merged images": lambda: (
        Merged(),
        (
            torch.cat([torch.zeros(4, 4, dtype=torch.long), torch.randint(1, 16, (4, 8))], 1),
            torch.randn(4, 3, 8, 8),
            torch.randint(16, (4, 12)),
        ),
    ),
    "tasks": lambda: (
        Tasks(),
        (
            torch.randint(16, (8,)),
            torch.randint(1, 32, (8,)),
            torch.randint(32, (8, 5)),
            torch.randint(16, (8, 3)),
            torch.rand(8, 2).round(),
        ),
    ),
    "forecast": lambda: (Forecast(), (torch.randn(4, 12, 3), torch.randint(4, (4,)), torch.randn(4, 4))),
    "speedrun": lambda: (Speedrun(), (torch.randint(16, (4, 8)), torch.randint(16, (4, 8)))),
}
