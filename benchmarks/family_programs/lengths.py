"""Programs of sequences that differ in length or are made shorter: merged, hashed, packed, padded, transduced."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, marked_words


class Merged(nn.Module):
    """Tokens merged in pairs that are most alike (ToMe): a match of two sets, sorted, averaged where they belong."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.key, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1)[:, :8]
        metric = self.key(h) / self.key(h).norm(dim=-1, keepdim=True)
        one, other = metric[..., ::2, :], metric[..., 1::2, :]
        scores = one @ other.transpose(-1, -2)
        scores[..., 0, :] = -torch.inf
        best, node = scores.max(dim=-1)
        edge = best.argsort(dim=-1, descending=True)[..., None]
        kept, gone = edge[..., 2:, :].sort(dim=1)[0], edge[..., :2, :]
        into = node[..., None].gather(dim=-2, index=gone)
        source, target = h[..., ::2, :], h[..., 1::2, :]
        n, _, c = source.shape
        left = source.gather(dim=-2, index=kept.expand(n, 2, c))
        moved = source.gather(dim=-2, index=gone.expand(n, 2, c))
        target = target.scatter_reduce(-2, into.expand(n, 2, c), moved, reduce="mean")
        return f.cross_entropy(self.head(torch.cat([left, target], dim=1).mean(dim=1)), labels)


class Hashes(nn.Module):
    """Embeddings of hashed n-grams, several tokens ahead predicted by several heads, weighted and stacked losses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16, padding_idx=0)
        self.grams = nn.ModuleList(nn.Embedding(64, 16) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.SiLU()) for _ in range(3))
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight
        self.weights = nn.Parameter(torch.zeros(3))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        before = ids
        for number, table in enumerate(self.grams, 1):
            before = before * 31 + f.pad(ids, (number, 0))[:, : ids.size(1)]
            x = x + table(torch.remainder(torch.bitwise_xor(before, before >> 3), 64)) / (number + 1)
        losses = []
        for number, block in enumerate(self.blocks):
            x = x + block(x)
            target = torch.full_like(labels, -100)
            target[:, : labels.size(1) - number] = labels[:, number:]
            logits = self.head(x)
            losses.append(f.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100))
            losses[-1] = losses[-1] + 1e-3 * logits.logsumexp(-1).square().mean()
        return (torch.stack(losses) * self.weights.softmax(0)).sum() + losses[0]


class Packed(nn.Module):
    """Packed sequences through an LSTM with a projection and a GRU both ways, and the last states of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True, proj_size=8)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 4)

    def forward(self, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths.cpu(), True, enforce_sorted=False)
        made, (last, _) = self.lstm(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(made, batch_first=True, total_length=ids.shape[1])
        _, state = self.gru(padded)
        h = torch.cat([last[-1], *state.unbind(0)], -1)
        return f.cross_entropy(self.head(h), labels, weight=torch.tensor([1.0, 2.0, 0.5, 1.0]).to(h))


class Transducer(nn.Module):
    """A transducer's loss: the sums over all alignments by `logaddexp`, along diagonals of a lattice."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.predict = nn.GRU(8, 16, batch_first=True), nn.Embedding(8, 16)
        self.join, self.out = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h, _ = self.encode(x)
        g = self.predict(f.pad(labels, (1, 0)))
        logits = self.out(torch.tanh(self.join(h.unsqueeze(2) + g.unsqueeze(1)))).log_softmax(-1)
        t, u = logits.shape[1:3]
        blank = logits[..., 0]
        emit = torch.take_along_dim(logits[:, :, :-1], labels[:, None, :, None].expand(-1, t, -1, 1), -1).squeeze(-1)
        alpha = [blank.new_zeros(len(x))]
        for place in range(1, u):
            alpha.append(alpha[-1] + emit[:, 0, place - 1])
        for time in range(1, t):
            row = [alpha[0] + blank[:, time - 1, 0]]
            for place in range(1, u):
                row.append(
                    torch.logaddexp(alpha[place] + blank[:, time - 1, place], row[-1] + emit[:, time, place - 1])
                )
            alpha = row
        return -(alpha[-1] + blank[:, -1, -1]).mean()


class Padded(nn.Module):
    """torch's attention with masks of padding and of places, weights that are used, layers under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(24, 16), nn.Parameter(torch.randn(8, 16) * 0.1)
        self.cross = nn.MultiheadAttention(16, 4, batch_first=True, kdim=8, vdim=8)
        layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.decoder, self.memory = nn.TransformerDecoder(layer, 2, nn.LayerNorm(16)), nn.Linear(8, 16)
        self.head = nn.Linear(16, 24)

    def forward(self, ids: Tensor, other: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids) * 4 + self.place
        absent = ids.eq(0)
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=x.device, dtype=x.dtype)
        made, weights = self.cross(x, other, other, average_attn_weights=False)
        made = self.decoder(
            x + made,
            self.memory(other),
            tgt_mask=causal,
            tgt_key_padding_mask=absent.to(x.dtype) * -1e9,
            tgt_is_causal=True,
        )
        spread = -(weights.clamp(min=1e-9) * weights.clamp(min=1e-9).log()).sum(-1)
        loss = f.cross_entropy(self.head(made).transpose(1, 2), labels, ignore_index=0, label_smoothing=0.1)
        return loss + 0.1 * spread.masked_select(~absent.unsqueeze(1)).mean()


class Classes(nn.Module):
    """A softmax whose rare classes stand in clusters, a bag of words by offsets, and soft targets."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.body = nn.EmbeddingBag(24, 16, mode="mean", include_last_offset=False), nn.Linear(16, 16)
        self.soft = nn.AdaptiveLogSoftmaxWithLoss(16, 24, cutoffs=[4, 12], div_value=2.0)
        self.table = nn.Linear(16, 24)

    def forward(self, words: Tensor, offsets: Tensor, labels: Tensor) -> Tensor:
        h = f.elu(self.body(self.bag(words, offsets)))
        chances = self.soft.log_prob(h)
        picked = chances.gather(1, labels.unsqueeze(1)).squeeze(1)
        soft = f.softmax(self.table(h).detach() / 2, -1)
        return -picked.mean() + f.kl_div(f.log_softmax(self.table(h), -1), soft.roll(1, -1), reduction="batchmean")


LENGTHS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "merged tokens": lambda: (Merged(), labelled(8)),
    "hashes": lambda: (Hashes(), marked_words()),
    "packed lstm": lambda: (
        Packed(),
        (torch.randint(1, 16, (4, 8)), torch.tensor([8, 5, 3, 7]), torch.randint(4, (4,))),
    ),
    "transducer": lambda: (Transducer(), (torch.randn(4, 6, 8), torch.randint(1, 8, (4, 3)))),
    "padded": lambda: (
        Padded(),
        (
            torch.randint(1, 24, (4, 8)) * (torch.arange(8) < torch.tensor([[8], [5], [6], [7]])),
            torch.randn(4, 6, 8),
            torch.randint(24, (4, 8)),
        ),
    ),
    "clustered": lambda: (
        Classes(),
        (torch.randint(24, (24,)), torch.tensor([0, 5, 9, 10, 13, 17, 20, 22]), torch.randint(24, (8,))),
    ),
}
