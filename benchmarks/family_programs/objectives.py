"""Programs that make their own inputs and targets: masked, mixed, packed, cut into chunks, drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from family_programs.batches import labelled, marked_words, words


class MaskedWords(nn.Module):
    """BERT's masking in the model: some words hidden, some exchanged, a loss of the hidden ones alone, picked out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(32, 16, padding_idx=0), nn.Linear(16, 16)
        self.norm, self.bias = nn.LayerNorm(16), nn.Parameter(torch.zeros(32))

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        chance = torch.rand(ids.shape, device=ids.device)
        hidden = (chance < 0.4) & ids.ne(0)
        given = ids.masked_fill(hidden & (chance < 0.3), 31)
        given = torch.where(hidden & (chance > 0.35), other, given)
        h = self.norm(f.gelu(self.inner(self.embed(given))))
        scores = h[hidden] @ self.embed.weight.t() + self.bias
        return f.cross_entropy(scores, torch.masked_select(ids, hidden))


class ChunkedLoss(nn.Module):
    """A loss over a vocabulary in chunks of rows, each recomputed in backward; a penalty of its normaliser."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 64, bias=False)

    def _part(self, h: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(h)
        lse = scores.logsumexp(-1)
        picked = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return (lse - picked).sum() + 1e-2 * lse.square().sum()

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.embed(ids)
        h = (h + self.cell(h.cumsum(1)).tanh()).flatten(0, 1)
        parts = zip(h.chunk(4), labels.flatten().chunk(4), strict=True)
        total = sum(checkpoint(self._part, *part, use_reentrant=False) for part in parts)
        return total / labels.numel()


class PackedDocuments(nn.Module):
    """Several documents in a row: positions that begin anew, attention within each, losses up to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(32, 16), nn.Embedding(16, 16)
        self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        starts = ids.eq(1)
        document = starts.cumsum(1)
        steps = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        begun = torch.where(starts, steps, steps.new_zeros(())).cummax(1).values
        h = self.embed(ids) + self.places(steps - begun)
        mask = (document.unsqueeze(2) == document.unsqueeze(1)).tril().unsqueeze(1)
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        h = h + self.out(f.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        goal = labels.masked_fill(starts.roll(-1, 1), -100)
        losses = f.cross_entropy(self.head(h).flatten(0, 1), goal.flatten(), reduction="none", label_smoothing=0.1)
        count = goal.ne(-100).sum(1).clamp(min=1)
        return (losses.view_as(ids).sum(1) / count).mean()


class SeveralAhead(nn.Module):
    """Words further ahead are told by more layers, one after the other, under the same head (DeepSeek-V3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.trunk, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.joins = nn.ModuleList(nn.Linear(32, 16, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(3))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        e = self.embed(ids)
        h = self.norms[0](e + self.trunk(e).relu())
        loss = f.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())
        for depth, (join, norm) in enumerate(zip(self.joins, self.norms[1:], strict=True), 1):
            h = join(torch.cat([h[:, :-1], norm(e[:, depth:])], -1))
            loss = loss + 0.3 * f.cross_entropy(self.head(h).flatten(0, 1), labels[:, depth:].reshape(-1))
        return loss


class DroppedPaths(nn.Module):
    """Whole blocks dropped for single samples and for all, scaled by what is left (stochastic depth)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.gains = nn.ParameterList(torch.full((16,), 0.5) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for number, (block, gain) in enumerate(zip(self.blocks, self.gains, strict=True)):
            made, keep = block(x) * gain, 1 - 0.2 * number
            if self.training and number == 1:
                made = made * torch.rand(1, device=x.device, dtype=x.dtype).add(keep).floor_()
            elif self.training and number:
                mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
                made = made * mask.div_(keep)
            x = x + made
        return f.cross_entropy(self.head(x.mean(1)), labels)


class CutMixed(nn.Module):
    """Images mixed in the model: a box of another one, labels by its area, erased pieces, flips of some."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.power, self.head = nn.Parameter(torch.tensor([3.0])), nn.Linear(8, 4)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        order = torch.tensor([2, 3, 1, 0], device=pixels.device)
        mixed = pixels.clone()
        mixed[:, :, 2:10, 4:12] = pixels[order, :, 2:10, 4:12]
        mixed[:2] = mixed[:2].flip(-1)
        mixed[1, :, 5:8, 5:8] = 0
        goal = f.one_hot(labels, 4).to(pixels.dtype)
        goal = goal * 0.75 + goal[order] * 0.25
        h = f.silu(self.norm(self.stem(mixed)))
        h = h.clamp(min=1e-6).pow(self.power).mean((-2, -1)).pow(1 / self.power)
        return f.cross_entropy(self.head(h), goal)


class Drawn(nn.Module):
    """Discrete codes drawn by noise, hard forwards and soft backwards, two tables of codes, a prior beside."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(16, 16), nn.Embedding(8, 8), nn.Linear(16, 16)
        self.prior = nn.Parameter(torch.zeros(2, 8))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        scores = self.encode(x).unflatten(-1, (2, 8))
        noise = torch.rand(scores.shape, device=x.device, dtype=x.dtype).clamp_(1e-6, 1 - 1e-6)
        soft = ((scores - (-noise.log()).log()) / 0.7).softmax(-1)
        index = soft.argmax(-1, keepdim=True)
        hard = torch.zeros_like(soft).scatter_(-1, index, 1.0)
        picked = (hard - soft.detach() + soft) @ self.codes.weight
        q, p = scores.log_softmax(-1), self.prior.log_softmax(-1)
        kl = f.kl_div(p.expand_as(q), q, log_target=True, reduction="none").sum(-1).mean()
        return f.mse_loss(self.decode(picked.flatten(-2)), goal) + 0.1 * kl


class Bags(nn.Module):
    """Bags of features: sums by weight, means, maxima of words, of a table that is shared, with offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(32, 8, mode="sum"), nn.EmbeddingBag(32, 8, mode="mean", padding_idx=0)
        self.table, self.weigh, self.head = nn.Embedding(32, 8), nn.Linear(8, 1), nn.Linear(24, 4)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        weights = self.weigh(self.table(ids)).squeeze(-1).softmax(-1)
        offsets = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
        found = [
            self.sums(ids, per_sample_weights=weights),
            self.means(ids.flatten(), offsets),
            f.embedding_bag(ids, self.table.weight, mode="max"),
        ]
        return f.cross_entropy(self.head(torch.cat(found, -1)), labels)


class Packed(nn.Module):
    """A GRU in both directions over packed sequences, sorted by it, attention over its results, lengths from words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = (
            nn.Embedding(32, 8, padding_idx=0),
            nn.GRU(8, 8, 2, batch_first=True, bidirectional=True),
        )
        self.query, self.head = nn.Linear(16, 1), nn.Linear(32, 4)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        given = ids.masked_fill(torch.arange(8, device=ids.device) >= ids[:, :1] % 6 + 3, 0)
        lengths = given.ne(0).sum(1)
        packed = rnn.pack_padded_sequence(self.embed(given), lengths.cpu(), batch_first=True, enforce_sorted=False)
        made, last = self.cell(packed)
        h, _ = rnn.pad_packed_sequence(made, batch_first=True, total_length=8)
        scores = self.query(h).squeeze(-1).masked_fill(given.eq(0), float("-inf"))
        pooled = (scores.softmax(-1).unsqueeze(1) @ h).squeeze(1)
        return f.cross_entropy(self.head(torch.cat([pooled, last[-2], last[-1]], -1)), labels)


class Windows(nn.Module):
    """Overlapping pieces by strides, of what it is given and of what it makes, put together again by their windows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(16, 4)
        self.register_buffer("shape", torch.hann_window(8))

    def forward(self, wave: Tensor, labels: Tensor) -> Tensor:
        pieces = wave.contiguous().as_strided((wave.shape[0], 7, 8), (wave.stride(0), 4, 1))
        h = torch.tanh(self.inner(pieces * self.shape))
        joined = f.fold(h.mT, (1, 32), (1, 8), stride=(1, 4)).flatten(1)
        spectrum = torch.stft(joined, 16, 8, window=torch.ones(16, dtype=wave.dtype), center=False, return_complex=True)
        level = torch.log1p(spectrum.abs().square().mean(-1))[:, :-1]
        return f.cross_entropy(self.head(torch.cat([level, joined[:, ::4]], -1)), labels)


OBJECTIVES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "masked words": lambda: (MaskedWords(), (marked_words()[0], words()[1])),
    "chunked loss": lambda: (ChunkedLoss(), words()),
    "packed documents": lambda: (PackedDocuments(), (torch.randint(1, 5, (4, 8)), words()[1])),
    "several ahead": lambda: (SeveralAhead(), words()),
    "dropped paths": lambda: (DroppedPaths(), labelled()),
    "cut mixed": lambda: (CutMixed(), (torch.randn(4, 3, 16, 16), torch.randint(4, (4,)))),
    "drawn codes": lambda: (Drawn(), (torch.randn(8, 16), torch.randn(8, 16))),
    "bags": lambda: (Bags(), (marked_words()[0], torch.randint(4, (4,)))),
    "packed gru": lambda: (Packed(), (marked_words()[0], torch.randint(4, (4,)))),
    "strided windows": lambda: (Windows(), (torch.randn(4, 32), torch.randint(4, (4,)))),
}
