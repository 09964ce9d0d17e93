"""Programs whose arguments and results are no plain tensors: dictionaries, records, arguments by name alone; and
weights that are frozen in part, adapted, tied beside adapters, or written in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled_rows, rows, words


@dataclass
class Rows:
    """A batch as a record."""

    x: Tensor
    y: Tensor


@dataclass
class Scores:
    """A result as a record."""

    loss: Tensor
    scores: Tensor


class Pair(NamedTuple):
    """A batch as a tuple with names."""

    x: Tensor
    y: Tensor


torch.export.register_dataclass(Rows)
torch.export.register_dataclass(Scores)


class Net(nn.Module):
    """Two layers; what is called is said by those that inherit."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

    def inner(self, x: Tensor) -> Tensor:
        return self.b(f.gelu(self.a(x)))


class OfMapping(Net):
    """One dictionary, with a dictionary inside."""

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        return f.mse_loss(self.inner(batch["x"]), batch["goals"]["y"])


class OfRecord(Net):
    """One record in, a record out."""

    def forward(self, batch: Rows) -> Scores:
        scores = self.inner(batch.x)
        return Scores(f.mse_loss(scores, batch.y), scores)


class OfPair(Net):
    """A tuple with names."""

    def forward(self, batch: Pair) -> Tensor:
        return f.mse_loss(self.inner(batch.x), batch.y)


class OfList(Net):
    """A list of tensors of unlike lengths."""

    def forward(self, parts: list[Tensor], y: Tensor) -> Tensor:
        return f.mse_loss(self.inner(torch.cat(parts)), y)


class ByName(Net):
    """Arguments by name alone, one of them not given and one that is no tensor."""

    def forward(self, *, x: Tensor, y: Tensor, weight: Tensor | None = None, kind: str = "l2") -> Tensor:
        apart = self.inner(x) - y
        apart = apart.abs() if kind == "l1" else apart.square()
        return (apart if weight is None else apart * weight).mean()


class ByAnyName(Net):
    """Whatever is given by name."""

    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        return f.mse_loss(self.inner(x), more["y"]) + 0.1 * more["shift"].mean() * self.a.bias.sum()


class ByAnyPlace(Net):
    """Whatever is given by place."""

    def forward(self, *parts: Tensor) -> Tensor:
        return f.mse_loss(self.inner(parts[0]), parts[1])


class Frozen(nn.Module):
    """A frozen trunk run without gradients, a frozen layer with them, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))
        self.first, self.middle, self.head = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 4)
        for part in (self.trunk, self.middle):
            part.requires_grad_(False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.trunk(x)
        return f.cross_entropy(self.head(f.gelu(self.middle(self.first(h)))), labels)


class Adapter(nn.Module):
    """A frozen layer, and beside it a product of two narrow weights; `decomposed`: with columns of trained length."""

    def __init__(self, base: nn.Linear, rank: int = 4, *, decomposed: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 4)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / 4)
        self.length = nn.Parameter(base.weight.detach().norm(dim=1)) if decomposed else None

    def forward(self, x: Tensor) -> Tensor:
        if self.length is None:
            return self.base(x) + 0.5 * f.linear(f.linear(x, self.down), self.up)
        whole = self.base.weight + 0.5 * self.up @ self.down
        scale = self.length / whole.norm(dim=1).detach()
        return f.linear(x, scale.unsqueeze(1) * whole, self.base.bias)


class Adapted(nn.Module):
    """Attention whose products are adapted, between a table of words that is also the frozen head, with an adapter
    on either end."""

    def __init__(self, *, decomposed: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.low, self.high = nn.Parameter(torch.randn(32, 4) / 4), nn.Parameter(torch.randn(4, 16) / 4)
        self.q, self.k, self.v, self.o = (
            Adapter(nn.Linear(16, 16, bias=False), decomposed=decomposed) for _ in range(4)
        )
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight
        self.table.requires_grad_(False)
        self.out = Adapter(self.head, decomposed=decomposed)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        h = self.table(ids) + f.embedding(ids, self.low) @ self.high
        q, k, v = (layer(h).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = h + self.o(f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return f.cross_entropy(self.out(h).flatten(0, 1), targets.flatten())


class Sliced(nn.Module):
    """Weights of which slices are set while the program runs, as a row that pads and a band that is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.out = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            self.table.weight[0] = 0.0
            self.mix.weight[:, :4] *= 0.5
            self.mix.weight[2:4, 4:] = self.mix.weight[4:6, 4:].clone()
            self.out.bias[1::2].clamp_(-0.1, 0.1)
        return f.cross_entropy(self.out(f.gelu(self.mix(self.table(ids)))).flatten(0, 1), targets.flatten())


class Prompted(nn.Module):
    """Trained vectors before the words, and trained keys and values before those of a frozen attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 32)
        self.requires_grad_(False)
        self.prompt, self.prefix = nn.Parameter(torch.randn(4, 16)), nn.Embedding(4, 32)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        h = torch.cat([self.prompt.expand(ids.shape[0], -1, -1), self.table(ids)], 1)
        q, k, v = self.qkv(h).chunk(3, -1)
        places = torch.arange(4, device=ids.device).unsqueeze(0).expand(ids.shape[0], -1)
        keys, values = self.prefix(places).chunk(2, -1)
        k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in (q, k, v))
        h = (h + f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))[:, 4:]
        return f.cross_entropy(self.out(h).flatten(0, 1), targets.flatten())


def _named(kind: type[Any]) -> Any:
    return kind(*rows())


SIGNATURES: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "of a mapping": lambda: (OfMapping(), ({"x": rows()[0], "goals": {"y": rows()[1]}},)),
    "of a record": lambda: (OfRecord(), (_named(Rows),)),
    "of a pair": lambda: (OfPair(), (_named(Pair),)),
    "of a list": lambda: (OfList(), ([torch.randn(4, 16), torch.randn(8, 16)], torch.randn(12, 16))),
    "by name": lambda: (ByName(), {"x": rows()[0], "y": rows()[1], "kind": "l1"}),
    "by any name": lambda: (ByAnyName(), {"x": rows()[0], "y": rows()[1], "shift": torch.randn(8)}),
    "by any place": lambda: (ByAnyPlace(), rows()),
    "frozen": lambda: (Frozen(), labelled_rows()),
    "adapted": lambda: (Adapted(decomposed=False), words()),
    "adapted columns": lambda: (Adapted(decomposed=True), words()),
    "sliced weights": lambda: (Sliced(), words()),
    "prompted": lambda: (Prompted(), words()),
}
