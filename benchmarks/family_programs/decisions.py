"""Programs of decisions and sequences: policies, beams, pointers, memories, halting, trees, flows."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn import functional as f


class Policy(nn.Module):
    """Proximal policies: generalised advantages backwards in time, ratios clipped, values clipped, entropies; squashed
    continuous actions beside discrete ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.choose, self.value = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 1)
        self.mean, self.spread = nn.Linear(16, 2), nn.Parameter(torch.zeros(2))

    def forward(
        self, seen: Tensor, actions: Tensor, moves: Tensor, before: Tensor, rewards: Tensor, done: Tensor
    ) -> Tensor:
        h = torch.tanh(self.body(seen))
        values = self.value(h).squeeze(-1)
        with torch.no_grad():
            gains, last = [], torch.zeros_like(rewards[:, 0])
            for step in reversed(range(rewards.shape[1] - 1)):
                goes_on = 1 - done[:, step]
                error = rewards[:, step] + 0.99 * values[:, step + 1] * goes_on - values[:, step]
                last = error + 0.99 * 0.95 * goes_on * last
                gains.insert(0, last)
            gain = torch.stack(gains, 1)
            goal = gain + values[:, :-1]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        chances = Categorical(logits=self.choose(h[:, :-1]))
        squashed = TransformedDistribution(Normal(self.mean(h[:, :-1]), self.spread.exp()), [TanhTransform()])
        said = chances.log_prob(actions[:, :-1]) + squashed.log_prob(moves[:, :-1]).sum(-1)
        ratio = (said - before[:, :-1]).exp()
        surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        apart = values[:, :-1]
        clipped = goal + (apart - goal).clamp(-0.2, 0.2)
        of_values = torch.maximum((apart - goal).square(), (clipped - goal).square()).mean()
        return -surrogate + 0.5 * of_values - 0.01 * chances.entropy().mean()


class Beam(nn.Module):
    """A beam search: scores of all words of all beams, parents by division, states reordered; the best beam's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(16, 16), nn.GRUCell(16, 16), nn.Linear(16, 16)
        self.width = 4

    def forward(self, context: Tensor, first: Tensor) -> Tensor:
        rows, width, vocab = context.shape[0], self.width, 16
        state = context.unsqueeze(1).expand(-1, width, -1)
        words = first.unsqueeze(1).expand(-1, width)
        scores = context.new_full((rows, width), -1e4)
        scores[:, 0] = 0
        history = words.unsqueeze(-1)
        for _ in range(3):
            state = self.cell(self.table(words).reshape(rows * width, -1), state.reshape(rows * width, -1))
            state = state.view(rows, width, -1)
            chances = self.out(state).log_softmax(-1)
            scores, places = (scores.unsqueeze(-1) + chances).view(rows, -1).topk(width, -1)
            parents, words = torch.div(places, vocab, rounding_mode="floor"), places % vocab
            state = state.gather(1, parents.unsqueeze(-1).expand(-1, -1, state.shape[-1]))
            history = history.gather(1, parents.unsqueeze(-1).expand(-1, -1, history.shape[-1]))
            history = torch.cat([history, words.unsqueeze(-1)], -1)
        weights = (scores / history.shape[-1]).softmax(-1)
        return -(weights * scores).sum(-1).mean()


class Pointer(nn.Module):
    """A pointer-generator: attention added to chances of the words of the source, coverage, an extended vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.read, self.cell = nn.Embedding(20, 16), nn.GRU(16, 8, bidirectional=True), nn.LSTMCell(16, 16)
        self.query, self.cover, self.score = nn.Linear(16, 16), nn.Linear(1, 16, bias=False), nn.Linear(16, 1)
        self.gate, self.out = nn.Linear(48, 1), nn.Linear(32, 16)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        known = source.clamp(max=15)
        seen, _ = self.read(self.table(known).transpose(0, 1))
        seen = seen.transpose(0, 1)
        h = c = torch.zeros_like(seen[:, 0])
        covered, losses = torch.zeros_like(seen[..., 0]), []
        for step in range(target.shape[1] - 1):
            word = self.table(target[:, step].clamp(max=15))
            h, c = self.cell(word, (h, c))
            raw = self.score(torch.tanh(seen + self.query(h).unsqueeze(1) + self.cover(covered.unsqueeze(-1))))
            attention = raw.squeeze(-1).masked_fill(source == 0, -1e9).softmax(-1)
            found = torch.bmm(attention.unsqueeze(1), seen).squeeze(1)
            made = torch.sigmoid(self.gate(torch.cat([h, found, word], -1)))
            own = f.pad(self.out(torch.cat([h, found], -1)).softmax(-1) * made, (0, 4))
            chances = own.scatter_add(1, source, attention * (1 - made))
            losses.append(-(chances.gather(1, target[:, step + 1, None]).squeeze(1) + 1e-9).log())
            losses.append(torch.min(attention, covered).sum(-1))
            covered = covered + attention
        return torch.stack(losses).mean()


class Turing(nn.Module):
    """A neural Turing machine: addresses by content, interpolation, circular shifts, sharpening; a memory written."""

    def __init__(self) -> None:
        super().__init__()
        self.control, self.heads, self.out = (
            nn.LSTMCell(16, 16),
            nn.Linear(16, 8 + 1 + 1 + 3 + 1 + 16),
            nn.Linear(24, 8),
        )
        self.start = nn.Parameter(torch.randn(8, 8) * 0.1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        rows = x.shape[0]
        memory = self.start.unsqueeze(0).repeat(rows, 1, 1)
        h = c = x.new_zeros(rows, 16)
        weights, read, made = torch.softmax(memory.sum(-1), -1), memory.mean(1), []
        for step in range(x.shape[1]):
            h, c = self.control(torch.cat([x[:, step], read], -1), (h, c))
            key, strength, gate, shift, sharp, write = self.heads(h).split([8, 1, 1, 3, 1, 16], -1)
            near = f.cosine_similarity(memory, key.unsqueeze(1).tanh(), dim=-1)
            content = (f.softplus(strength) * near).softmax(-1)
            mixed = torch.lerp(weights, content, gate.sigmoid())
            ways = shift.softmax(-1)
            moved = sum(ways[:, n : n + 1] * mixed.roll(n - 1, -1) for n in range(3))
            weights = moved.clamp(min=1e-6).pow(1 + f.softplus(sharp))
            weights = weights / weights.sum(-1, keepdim=True)
            erase, add = write.chunk(2, -1)
            memory = memory * (1 - weights.unsqueeze(-1) * erase.sigmoid().unsqueeze(1))
            memory = torch.baddbmm(memory, weights.unsqueeze(-1), add.tanh().unsqueeze(1))
            read = torch.einsum("bn,bnd->bd", weights, memory)
            made.append(self.out(torch.cat([h, read], -1)))
        return f.binary_cross_entropy_with_logits(torch.stack(made, 1), target)


class Halting(nn.Module):
    """A universal transformer: one layer again and again, each place halts when it has had enough; a ponder cost."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.halt = nn.Embedding(16, 16), nn.Linear(16, 1)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True, activation="gelu")
        self.register_buffer("times", torch.randn(4, 16), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        halted, left, count, made = (torch.zeros_like(x[..., 0]) for _ in range(4))
        made = torch.zeros_like(x)
        for step in range(4):
            x = self.layer(x + self.times[step])
            chance = self.halt(x).squeeze(-1).sigmoid()
            running = (halted < 1).to(x.dtype)
            ends = ((halted + chance * running > 0.9).to(x.dtype) * running).detach()
            goes_on = ((halted + chance * running <= 0.9).to(x.dtype) * running).detach()
            halted = halted + chance * goes_on
            left = left + ends * (1 - halted)
            halted = halted + ends * left
            count = count + goes_on + ends
            share = (chance * goes_on + ends * left).unsqueeze(-1)
            made = x * share + made * (1 - share)
        logits = made @ self.table.weight.t() / 4
        return f.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * (left + count).mean()


class Trees(nn.Module):
    """Tree-structured cells: children gathered by number level by level, states written back into a table."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.hidden, self.forget = nn.Linear(8, 48), nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.skip, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        rows, nodes = x.shape[:2]
        h, c = x.new_zeros(rows, nodes, 16), x.new_zeros(rows, nodes, 16)
        first = nodes // 2
        for start, stop in ((first, nodes), (first // 2, first), (0, first // 2)):
            own = torch.arange(start, stop)
            kids = torch.stack([own * 2 + 1, own * 2 + 2], -1).clamp(max=nodes - 1)
            real = (own * 2 + 2 < nodes).to(x.dtype).view(1, -1, 1, 1)
            kid_h, kid_c = h[:, kids] * real, c[:, kids] * real
            i, o, u = (self.inp(x[:, own]) + self.hidden(kid_h.sum(2))).chunk(3, -1)
            keep = torch.sigmoid(self.skip(x[:, own]).unsqueeze(2) + self.forget(kid_h))
            new_c = i.sigmoid() * u.tanh() + (keep * kid_c).sum(2)
            h = h.index_copy(1, own, o.sigmoid() * new_c.tanh())
            c = c.index_copy(1, own, new_c)
        return f.cross_entropy(self.head(h[:, 0]), labels)


class Spline(nn.Module):
    """A flow of rational-quadratic splines: bins found by a sorted search, knots gathered, log-determinants summed."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4 * 23)) for _ in range(2))

    def spline(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        widths, heights, slopes = raw.split([8, 8, 7], -1)
        widths, heights = widths.softmax(-1), heights.softmax(-1)
        left = f.pad(widths.cumsum(-1), (1, 0)) * 6 - 3
        low = f.pad(heights.cumsum(-1), (1, 0)) * 6 - 3
        slopes = f.pad(f.softplus(slopes), (1, 1), value=1.0)
        inside = (x > -3) & (x < 3)
        held = torch.where(inside, x, torch.zeros_like(x))
        place = torch.searchsorted(left[..., 1:-1].contiguous(), held.unsqueeze(-1))
        at = [
            each.gather(-1, place).squeeze(-1) for each in (left, widths * 6, low, heights * 6, slopes, slopes[..., 1:])
        ]
        start, width, floor, height, before, after = at
        ratio, share = height / width, (held - start) / width
        bottom = ratio + (before + after - 2 * ratio) * share * (1 - share)
        made = floor + height * (ratio * share**2 + before * share * (1 - share)) / bottom
        top = ratio**2 * (after * share**2 + 2 * ratio * share * (1 - share) + before * (1 - share) ** 2)
        return torch.where(inside, made, x), torch.where(inside, (top / bottom**2).log(), torch.zeros_like(x))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for net in self.nets:
            one, two = x.chunk(2, -1)
            two, own = self.spline(two, net(one).unflatten(-1, (4, 23)))
            total = total + own.sum(-1)
            x = torch.cat([two, one], -1)
        return (0.5 * x.square().sum(-1) + 0.5 * x.shape[-1] * math.log(2 * math.pi) - total).mean()


class Glow(nn.Module):
    """A flow of images: activations normed, an invertible product whose determinant counts, squeezed, split."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(1, 12, 1, 1)), nn.Parameter(torch.zeros(1, 12, 1, 1))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(12, 12))[0])
        self.net = nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        x = x.view(rows, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
        x = x.reshape(rows, channels * 4, height // 2, width // 2)
        places = x.shape[2] * x.shape[3]
        x = (x + self.shift) * self.log_scale.exp()
        total = self.log_scale.sum() * places + torch.linalg.slogdet(self.mix)[1] * places
        x = f.conv2d(x, self.mix[:, :, None, None])
        one, two = x.chunk(2, 1)
        shift, raw = self.net(one).chunk(2, 1)
        scale = (raw + 2).sigmoid()
        two, total = (two + shift) * scale, total + scale.log().flatten(1).sum(1)
        x = torch.cat([one, two], 1)
        return (0.5 * x.square().flatten(1).sum(1) - total).mean() / x[0].numel()


class Slots(nn.Module):
    """Slots that compete for places: a softmax over slots, means by weights, a recurrent cell; mixed images."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.slot_norm = nn.Conv2d(3, 16, 3, padding=1), nn.LayerNorm(16), nn.LayerNorm(16)
        self.mu, self.q, self.kv = nn.Parameter(torch.randn(1, 4, 16)), nn.Linear(16, 16), nn.Linear(16, 32)
        self.cell, self.decode = nn.GRUCell(16, 16), nn.ConvTranspose2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        rows, _, height, width = x.shape
        seen = self.norm(self.encode(x).flatten(2).transpose(1, 2))
        k, v = self.kv(seen).chunk(2, -1)
        slots = self.mu.expand(rows, -1, -1)
        for _ in range(2):
            logits = torch.einsum("bnd,bsd->bns", k, self.q(self.slot_norm(slots))) / 4
            share = logits.softmax(-1) + 1e-8
            share = share / share.sum(1, keepdim=True)
            made = torch.einsum("bns,bnd->bsd", share, v)
            slots = self.cell(made.flatten(0, 1), slots.flatten(0, 1)).unflatten(0, (rows, 4))
        wide = slots.flatten(0, 1)[:, :, None, None].expand(-1, -1, height, width)
        image, mask = self.decode(wide).unflatten(0, (rows, 4)).split([3, 1], 2)
        return f.mse_loss((image * mask.softmax(1)).sum(1), x)


class Adaptive(nn.Module):
    """torch's adaptive softmax: classes in clusters, of which a batch may have none."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(16, 32, [8, 16], div_value=2.0)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return self.loss(torch.tanh(self.body(self.table(ids))).flatten(0, 1), labels.flatten()).loss


DECISIONS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "policy": lambda: (
        Policy(),
        (torch.randn(4, 6, 8), torch.randint(4, (4, 6)), torch.rand(4, 6, 2) - 0.5, torch.randn(4, 6) - 2,
         torch.randn(4, 6), (torch.rand(4, 6) > 0.8).float()),
    ),
    "beam": lambda: (Beam(), (torch.randn(4, 16), torch.randint(16, (4,)))),
    "pointer": lambda: (Pointer(), (torch.randint(20, (4, 6)), torch.randint(16, (4, 4)))),
    "turing": lambda: (Turing(), (torch.randn(4, 4, 8), torch.rand(4, 4, 8).round())),
    "halting": lambda: (Halting(), (torch.randint(16, (4, 8)), torch.randint(16, (4, 8)))),
    "tree cells": lambda: (Trees(), (torch.randn(4, 15, 8), torch.randint(4, (4,)))),
    "spline": lambda: (Spline(), (torch.randn(8, 8),)),
    "glow": lambda: (Glow(), (torch.rand(4, 3, 8, 8),)),
    "slots": lambda: (Slots(), (torch.rand(4, 3, 6, 6),)),
    "adaptive softmax": lambda: (Adaptive(), (torch.randint(32, (4, 8)), torch.randint(32, (4, 8)))),
}  # fmt: skip
