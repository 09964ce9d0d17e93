"""Programs of plain torch: functions in forms that few programs use, and what modules do beside computing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations, parametrize


class ViewsChanged(nn.Module):
    """Views changed in place: strided, selected, narrowed, transposed, by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h, g = self.a(x) * 1.0, self.b(x)
        h[:, ::2] *= 2
        h[..., 0].copy_(g[..., 1])
        h.select(1, 3).mul_(g.select(1, 0))
        h.narrow(2, 4, 8).add_(g.narrow(2, 0, 8), alpha=0.5)
        h.transpose(1, 2)[:, 2].sub_(g.transpose(1, 2)[:, 3])
        h[..., :8].mul_(0.5)
        h.masked_fill_(h > 2, 0.0)
        h.view(4, 4, 2, 16)[:, 1, 0].zero_()
        copied = g.transpose(1, 2).contiguous()
        copied.mul_(2)
        flat = g.transpose(1, 2).reshape(4, -1)
        flat.add_(1)
        h = h + g + copied.transpose(1, 2) * flat.view(4, 16, 8).transpose(1, 2)
        h.view_as(g).expand_as(g).sub_(0.1)
        return f.cross_entropy(self.out(h.mean(1)), labels)


class Diagonals(nn.Module):
    """Diagonals read, embedded and scattered; traces, triangles, Kronecker products."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        m = self.a(x).transpose(1, 2) @ self.b(x)
        d = m.diagonal(dim1=-2, dim2=-1)
        m = torch.diagonal_scatter(m, torch.sigmoid(d), dim1=-2, dim2=-1) + torch.diag_embed(d * 0.1)
        m = m.tril(-1) + m.triu(1) / 2 + torch.eye(8, dtype=x.dtype)
        k = torch.kron(self.out.weight[:2, :2], self.out.weight[2:6, 2:6])
        y = self.out(m) @ k
        return f.mse_loss(y, goal) + 0.01 * torch.einsum("bii->b", y).square().mean()


class DiagonalInPlace(nn.Module):
    """A diagonal changed in place, as kernels of Gaussian processes have their noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.noise = nn.Linear(16, 8), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.a(x).transpose(1, 2)
        kernel = h @ h.transpose(1, 2) / 16
        kernel.diagonal(dim1=-2, dim2=-1).add_(f.softplus(self.noise))
        return f.mse_loss(kernel, goal)


class Packed(nn.Module):
    """Inner modules that return mappings, None and numbers, and take keyword arguments of every kind."""

    class Inner(nn.Module):
        """Returns a mapping of everything."""

        def __init__(self) -> None:
            super().__init__()
            self.lin, self.gate = nn.Linear(16, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor, *, scale: float = 1.0, extra: Any = None) -> dict[str, Any]:
            h = f.gelu(self.lin(x)) * scale
            seen = None if extra is None else extra["last"] + h
            return {"hidden": h, "gates": (self.gate(h), [h.sum(-1)]), "none": None, "count": h.shape[1], "last": seen}

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.out = nn.ModuleList(self.Inner() for _ in range(3)), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        extra: Any = None
        for number, block in enumerate(self.blocks):
            made = block(x, scale=1.0 + number, extra=extra)
            x = x + made["hidden"] * torch.sigmoid(made["gates"][0]) / made["count"]
            extra = {"last": x if made["last"] is None else made["last"]}
        return f.cross_entropy(self.out((x + extra["last"]).mean(1)), labels)


class Noise(nn.Module):
    """Noise of many kinds drawn in the program. (What dropout draws under a plan is not what one process draws.)"""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)
        self.drop = nn.AlphaDropout(0.1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.drop(f.selu(self.a(x)))
        if self.training:
            h = h + 0.1 * torch.randn_like(h) + 0.1 * torch.rand(h.shape[-1], dtype=h.dtype)
            h = torch.normal(h, 0.1) + torch.empty_like(h).uniform_(-0.1, 0.1)
            h = h * torch.bernoulli(torch.full((h.shape[0], 1, 1), 0.8, dtype=h.dtype)) / 0.8
        return f.cross_entropy(self.b(h.mean(1)), labels)


class ByNumber(nn.Module):
    """Modules and parameters in lists and mappings, looked up by what is computed of numbers; one of them is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.acts = nn.ModuleDict({"gelu": nn.GELU(), "prelu": nn.PReLU(16), "silu": nn.SiLU()})
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(16) * (1 + n)) for n in range(2))
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(16))})
        self.layers.append(self.layers[0])
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for n, key in enumerate(("silu", "gelu", "prelu", "silu")):
            h = self.layers[(3 * n) % len(self.layers)](x)
            h = h.transpose(1, 2) if key == "prelu" else h
            h = self.acts[key](h if key != "prelu" else h.transpose(1, 2).flatten(0, 1)).view_as(x)
            x = x + h * self.scales[n % 2] + self.named["shift"]
        return f.cross_entropy(self.out(x.amax(1)), labels)


class Ellipses(nn.Module):
    """Einsums with ellipses, of three operands, of one, and outer ones; tensordot."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(16, 4, 4) / 4) for _ in range(3))
        self.o = nn.Parameter(torch.randn(4, 4, 16) / 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        q, k, v = (torch.einsum("...d,dhe->...he", x, each) for each in (self.q, self.k, self.v))
        a = torch.einsum("...qhe,...khe->...hqk", q, k).softmax(-1)
        y = torch.einsum("b...hqk,b...khe,heo->b...qo", a, v, self.o)
        y = y + torch.tensordot(x, torch.einsum("dhe,ehd->de", self.q, self.o), ([2], [0])).mean(-1, keepdim=True)
        return f.mse_loss(y + torch.einsum("bi,bj->bij", x[:, :, 0], x[:, 0]), goal)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Parametrized(nn.Module):
    """Weights through parametrizations: one's own, weight norm, spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.out = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        parametrize.register_parametrization(self.a, "weight", Symmetric())
        parametrizations.weight_norm(self.b)
        parametrizations.spectral_norm(self.c)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.out(self.c(f.relu(self.b(self.a(x))))).mean(1), labels)


class Segments(nn.Module):
    """Cross entropy with classes in the middle: smoothed, weighted, with targets that do not count; soft targets."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.register_buffer("weights", torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.b(f.hardswish(self.a(x)))
        one = f.cross_entropy(y, labels, weight=self.weights, ignore_index=7, label_smoothing=0.1)
        soft = f.one_hot(labels, 8).permute(0, 3, 1, 2).to(y.dtype) * 0.9 + 0.0125
        return one + f.cross_entropy(y, soft) + f.nll_loss(y.log_softmax(1), labels, reduction="sum") / labels.numel()


class Margins(nn.Module):
    """Losses of margins and of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor, signs: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        many = f.one_hot(labels, 8).to(a.dtype)
        return (
            f.multi_margin_loss(a, labels)
            + f.multilabel_soft_margin_loss(b, many)
            + f.multilabel_margin_loss(a, f.pad(labels[:, None], (0, 7), value=-1))
            + f.margin_ranking_loss(a.sum(1), b.sum(1), signs, margin=0.5)
            + f.hinge_embedding_loss(f.pairwise_distance(a, b), signs)
            + f.cosine_embedding_loss(a, b, signs, margin=0.3)
            + f.triplet_margin_with_distance_loss(a, b, a.flip(0), swap=True)
        )


class Likelihoods(nn.Module):
    """Losses of distributions: binary with weights, Gaussian, Poisson, divergence, Huber."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)
        self.register_buffer("weights", torch.linspace(0.5, 2.0, 8))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        a, b, c = self.a(x), self.b(x), self.c(x)
        p = torch.sigmoid(goal)
        return (
            f.binary_cross_entropy(torch.sigmoid(a), p, weight=self.weights)
            + f.binary_cross_entropy_with_logits(b, p, pos_weight=self.weights)
            + f.gaussian_nll_loss(a, goal, f.softplus(b) + 0.1)
            + f.poisson_nll_loss(c, p, full=True)
            + f.kl_div(a.log_softmax(-1), goal.softmax(-1), reduction="batchmean")
            + f.kl_div(a.log_softmax(-1), b.log_softmax(-1), log_target=True, reduction="batchmean")
            + f.huber_loss(b, goal, delta=0.5)
            + f.smooth_l1_loss(c, goal, beta=0.3)
        )


class Ctc(nn.Module):
    """A connectionist loss of sequences of one length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logs = self.out(self.lstm(x)[0]).log_softmax(-1).transpose(0, 1)
        frames, rows = logs.shape[:2]
        return f.ctc_loss(logs, labels, torch.full((rows,), frames), torch.full((rows,), labels.shape[1]))


class Scattered(nn.Module):
    """Messages over edges: scatter_reduce of several kinds, index_add, index_put, index_copy, index_fill, scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 16), nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        source, target = edges
        m = self.a(x)[source]
        where = target[:, None].expand_as(m)
        most = torch.zeros_like(x).scatter_reduce(0, where, m, "amax", include_self=False)
        mean = torch.zeros_like(x).scatter_reduce(0, where, m, "mean")
        total = torch.zeros_like(x).index_add(0, target, m) + torch.zeros_like(x).scatter_add(0, where, m * m)
        put = torch.zeros_like(x).index_put((target,), m, accumulate=True)
        h = self.b(torch.cat([most + put, mean + total], -1))
        h = h.index_copy(0, torch.tensor([1, 3]), x[:2]).index_fill(1, torch.tensor([5]), 0.5)
        return f.cross_entropy(self.out(h), labels)


class Bucketed(nn.Module):
    """Numbers in buckets, sorted places, embeddings of them; a table with a padded row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(9, 16, padding_idx=0), nn.Embedding(8, 16)
        self.out = nn.Linear(16, 4)
        self.register_buffer("edges", torch.linspace(-1.5, 1.5, 8))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        first = torch.bucketize(x, self.edges)
        second = torch.searchsorted(self.edges, x.contiguous(), right=True).clamp(max=7)
        ranks = x.argsort(-1).argsort(-1).to(x.dtype) / x.shape[-1]
        h = self.a(first) + self.b(second) + ranks[..., None]
        return f.cross_entropy(self.out(h.mean(1)), labels)


def _rows(*more: Tensor) -> tuple[Tensor, ...]:
    return torch.randn(4, 8, 16), *more


def _labels(count: int = 4, classes: int = 4) -> Tensor:
    return torch.randint(classes, (count,))


FORMS = {
    "views changed": lambda: (ViewsChanged(), _rows(_labels())),
    "diagonals": lambda: (Diagonals(), _rows(torch.randn(4, 8, 8))),
    "diagonal in place": lambda: (DiagonalInPlace(), _rows(torch.randn(4, 8, 8))),
    "packed results": lambda: (Packed(), _rows(_labels())),
    "noise": lambda: (Noise(), _rows(_labels())),
    "by number": lambda: (ByNumber(), _rows(_labels())),
    "ellipses": lambda: (Ellipses(), _rows(torch.randn(4, 8, 16))),
    "parametrized": lambda: (Parametrized(), _rows(_labels())),
    "segments": lambda: (Segments(), (torch.randn(4, 3, 8, 8), torch.randint(8, (4, 8, 8)))),
    "margins": lambda: (Margins(), (torch.randn(8, 16), _labels(8, 8), torch.randint(2, (8,)).float() * 2 - 1)),
    "likelihoods": lambda: (Likelihoods(), (torch.randn(8, 16), torch.randn(8, 8))),
    "ctc": lambda: (Ctc(), _rows(torch.randint(1, 8, (4, 3)))),
    "scattered": lambda: (Scattered(), (torch.randn(8, 16), torch.randint(8, (2, 24)), _labels(8))),
    "buckets": lambda: (Bucketed(), (torch.randn(4, 8), _labels())),
}
