"""Programs of mathematics: soft trees, losses of pairs, gradients of steps, sparse products, views by strides."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Trees(nn.Module):
    """Soft trees: chances of ways multiplied level by level, entmax by sorting, gates by straight-through Gumbels."""

    def __init__(self) -> None:
        super().__init__()
        self.pick, self.cut = nn.Parameter(torch.randn(16, 8, 3)), nn.Parameter(torch.randn(8, 3))
        self.leaf, self.temper = nn.Parameter(torch.randn(8, 8, 4)), nn.Parameter(torch.zeros(8, 3))

    @staticmethod
    def _sparsemax(x: Tensor, dim: int) -> Tensor:
        ordered, _ = torch.sort(x, dim=dim, descending=True)
        place = torch.arange(1, x.size(dim) + 1, device=x.device, dtype=x.dtype)
        place = place.view([-1 if d == dim else 1 for d in range(x.dim())])
        total = ordered.cumsum(dim) - 1
        size = (place * ordered > total).sum(dim=dim, keepdim=True)
        return (x - total.gather(dim, size - 1) / size.to(x.dtype)).clamp(min=0)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.einsum("nd,dtk->ntk", x, self._sparsemax(self.pick, 0))
        left = torch.sigmoid((chosen - self.cut) * torch.exp(-self.temper))
        ways = torch.stack([left, 1 - left], -1)
        reached = torch.einsum("nti,ntj,ntk->ntijk", *ways.unbind(2)).flatten(2)
        votes = torch.einsum("ntl,tlc->ntc", reached, self.leaf)
        gate = (votes + noise).softmax(-1)
        hard = torch.zeros_like(gate).scatter_(-1, gate.argmax(-1, keepdim=True), 1.0)
        gate = hard - gate.detach() + gate
        return f.nll_loss(f.log_softmax((votes * gate).mean(1), -1), labels, ignore_index=3)


class Matched(nn.Module):
    """Losses of pairs: triplets of the hardest, arc margins, supervised contrasts, an alignment of two sets, Barlow."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.project = (
            nn.Linear(16, 16),
            nn.Parameter(torch.randn(4, 16)),
            nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8, affine=False)),
        )

    def forward(self, x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
        h = f.normalize(self.body(x), dim=1)
        same = labels[:, None].eq(labels[None, :])
        apart = torch.cdist(h, h.detach().roll(1, 0))
        far = apart.masked_fill(~same, 0).max(1)[0]
        near = apart.masked_fill(same, float("inf")).min(1)[0]
        triplet = f.softplus(far - torch.where(near.isinf(), far, near)).mean()
        cosine = f.linear(h, f.normalize(self.classes, dim=1)).clamp(-0.99, 0.99)
        angle = torch.acos(cosine)
        hot = torch.zeros_like(cosine).scatter_(1, labels.view(-1, 1), 1)
        arc = f.cross_entropy(8 * torch.where(hot.bool(), torch.cos(angle + 0.1), cosine), labels)
        sim = h @ h.t() / 0.5
        itself = torch.eye(len(h), dtype=torch.bool, device=h.device)
        logs = sim - torch.logsumexp(sim.masked_fill(itself, -1e9), 1, keepdim=True)
        positive = same & ~itself
        contrast = -(logs * positive).sum(1) / positive.sum(1).clamp(min=1)
        one, two = self.project(x), self.project(y)
        cross = one.T @ two / len(one)
        barlow = (cross.diagonal() - 1).square().sum() + 5e-3 * (cross - torch.diag(cross.diag())).pow(2).sum()
        vic = f.relu(1 - torch.sqrt(one.var(dim=0) + 1e-4)).mean() + f.pairwise_distance(one, two).mean()
        ranked = f.triplet_margin_loss(h, h.roll(1, 0), h.roll(2, 0), margin=0.3) + f.margin_ranking_loss(
            h[:, 0], h[:, 1], torch.sign(y[:, 0]), 0.1
        )
        return (
            triplet
            + arc
            + contrast.mean()
            + 0.1 * barlow
            + vic
            + ranked
            + f.cosine_embedding_loss(one, two, torch.sign(y[:, 0]))
        )


class Meta(nn.Module):
    """An inner step of descent with gradients through it, an ensemble by `functional_call`, Jacobians by `jvp`."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.rate = (
            nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
            nn.Parameter(torch.full((4,), 0.1)),
        )

    def forward(self, x: Tensor, labels: Tensor, other: Tensor) -> Tensor:
        fast = dict(self.net.named_parameters())
        perturbed = {name: weight + 0.05 * torch.sin(weight.detach() * 10) for name, weight in fast.items()}
        logits = torch.func.functional_call(self.net, perturbed, (x,))
        inner = f.cross_entropy(torch.func.functional_call(self.net, fast, (x,)), labels)
        w = fast["2.weight"]
        hidden = self.net[:2](x)
        error = (logits.softmax(-1) - f.one_hot(labels, 4).to(x.dtype)).detach()
        stepped = {**fast, "2.weight": w - self.rate.unsqueeze(1) * (error.t() @ hidden) / len(x)}
        outer = torch.func.functional_call(self.net, stepped, (other,))
        return inner + f.cross_entropy(outer, labels.flip(0)) + 0.1 * f.mse_loss(logits, outer)


class Sparse(nn.Module):
    """A graph as a sparse matrix: products of it with dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        matrix = torch.sparse_coo_tensor(edges, weights, (len(x), len(x)))
        h = torch.sparse.mm(matrix, self.first(x)).relu()
        return f.cross_entropy(torch.sparse.mm(matrix, self.second(h)), labels)


class Strided(nn.Module):
    """Views by strides, windows, blocks of Toeplitz matrices, banded products, a circulant by transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.band, self.kernel = nn.Parameter(torch.randn(16, 3)), nn.Parameter(torch.randn(31))
        self.ring, self.head = nn.Parameter(torch.randn(16)), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        toeplitz = self.kernel.unfold(0, 16, 1).flip(0)
        windows = torch.as_strided(x.contiguous(), (x.shape[0], 6, 3, 16), (128, 16, 16, 1))
        h = torch.einsum("nwkd,dk->nwd", windows, self.band) @ toeplitz
        ring = torch.fft.ifft(
            torch.fft.fft(h)
            * torch.fft.fft(self.ring.to(torch.complex128 if h.dtype == torch.float64 else torch.complex64))
        ).real
        block = torch.block_diag(
            *[self.ring[n * 4 : n * 4 + 4].outer(self.band[n * 4 : n * 4 + 4, 0]) for n in range(4)]
        )
        return f.cross_entropy(self.head((h + ring @ block).amax(1)), labels)


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8, 16), torch.randint(4, (4,))


MATHEMATICS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "trees": lambda: (Trees(), (torch.randn(8, 16), torch.randn(8, 8, 4), torch.randint(4, (8,)))),
    "matched": lambda: (Matched(), (torch.randn(8, 16), torch.randn(8, 16), torch.randint(4, (8,)))),
    "meta": lambda: (Meta(), (torch.randn(8, 8), torch.randint(4, (8,)), torch.randn(8, 8))),
    "sparse graph": lambda: (
        Sparse(),
        (torch.randn(8, 8), torch.randint(8, (2, 20)), torch.rand(20), torch.randint(4, (8,))),
    ),
    "strided": lambda: (Strided(), _batch()),
}
