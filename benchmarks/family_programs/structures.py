"""Programs with structure in their numbers: Gaussian processes, structured matrices, messages that turn with space."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations


class Kernels(nn.Module):
    """A Gaussian process on features of a net: distances, a Cholesky factor, triangular solves, a log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 4))
        self.log_length, self.log_noise, self.mean = (nn.Parameter(torch.tensor(each)) for each in (0.0, -1.0, 0.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.net(x) / self.log_length.exp()
        kernel = torch.exp(-0.5 * torch.cdist(h, h).square())
        kernel = kernel + (self.log_noise.exp() + 1e-3) * torch.eye(len(x), dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(kernel)
        apart = (y - self.mean).unsqueeze(-1)
        white = torch.linalg.solve_triangular(factor, apart, upper=False)
        return 0.5 * white.square().sum() / len(x) + factor.diagonal().log().mean()


class Structured(nn.Module):
    """Structured matrices: butterflies of small blocks, monarchs by permutations, tensor trains, Kronecker factors,
    circulants by rolled indices, orthogonal ones by reflections."""

    def __init__(self) -> None:
        super().__init__()
        self.twiddle, self.left, self.right = (
            nn.Parameter(torch.randn(4, 8, 2, 2) * 0.5),
            nn.Parameter(torch.randn(4, 4, 4) * 0.4),
            nn.Parameter(torch.randn(4, 4, 4) * 0.4),
        )
        self.cores = nn.ParameterList([nn.Parameter(torch.randn(4, 4, 3)), nn.Parameter(torch.randn(3, 4, 4))])
        self.kron_a, self.kron_b, self.wheel = (
            nn.Parameter(torch.randn(4, 4) * 0.4),
            nn.Parameter(torch.randn(4, 4) * 0.4),
            nn.Parameter(torch.randn(16) * 0.2),
        )
        self.turn = parametrizations.orthogonal(nn.Linear(16, 16), orthogonal_map="householder")
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = x
        for level in range(4):
            pairs = h.view(len(x), -1, 2, 2**level).transpose(2, 3)
            blocks = self.twiddle[level].view(-1, 2**level, 2, 2)
            h = torch.einsum("bgsi,gsji->bgsj", pairs, blocks).transpose(2, 3).reshape(len(x), 16)
        m = torch.einsum("bki,kji->bkj", h.view(-1, 4, 4), self.left).transpose(1, 2)
        m = torch.einsum("bki,kji->bkj", m, self.right).transpose(1, 2).reshape(-1, 16)
        t = torch.einsum("bij,iar,rjc->bac", x.view(-1, 4, 4), *self.cores).flatten(1) / 8
        k = x @ torch.kron(self.kron_a, self.kron_b)
        at = (torch.arange(16)[:, None] - torch.arange(16)) % 16
        c = x @ self.wheel[at]
        return f.cross_entropy(self.head(torch.tanh(m + t + k + c) + self.turn(x)), labels)


class Equivariant(nn.Module):
    """Messages that turn with space: squared distances over edges, coordinates moved along edges, means by degrees; a
    farthest-point sample, neighbours in a ball."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.edge, self.node = (
            nn.Linear(4, 16),
            nn.Sequential(nn.Linear(33, 16), nn.SiLU(), nn.Linear(16, 16), nn.SiLU()),
            nn.Sequential(nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 16)),
        )
        self.move, self.head = (
            nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1, bias=False)),
            nn.Linear(16, 1),
        )

    def forward(self, h: Tensor, x: Tensor, edges: Tensor, goal: Tensor) -> Tensor:
        h = self.inp(h)
        source, target = edges
        for _ in range(2):
            apart = x[source] - x[target]
            far = apart.square().sum(-1, keepdim=True)
            m = self.edge(torch.cat([h[source], h[target], far], -1))
            degree = torch.zeros_like(h[:, :1]).index_add(0, target, torch.ones_like(far)).clamp(min=1)
            moved = torch.zeros_like(x).index_add(0, target, apart / (far + 1).sqrt() * self.move(m))
            x = x + moved / degree
            h = h + self.node(torch.cat([h, torch.zeros_like(h).index_add_(0, target, m)], -1))
        chosen = torch.zeros(4, dtype=torch.long, device=x.device)
        nearest = torch.full_like(x[:, 0], 1e9)
        for step in range(1, 4):
            nearest = torch.minimum(nearest, (x - x[chosen[step - 1]]).square().sum(-1).detach())
            chosen = chosen.index_fill(0, torch.tensor([step]), 0) + f.one_hot(torch.tensor(step), 4) * nearest.argmax()
        inside = (torch.cdist(x[chosen], x) < 1.5).to(x.dtype)
        pooled = inside @ h / inside.sum(-1, keepdim=True).clamp(min=1)
        return (self.head(pooled).mean() - goal.mean()).square() + (self.head(h).squeeze(-1) - goal).square().mean()


_EDGES = torch.stack([torch.arange(12).repeat_interleave(3), (torch.arange(36) * 5 + 1) % 12])


STRUCTURES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "kernels": lambda: (Kernels(), (torch.randn(8, 4), torch.randn(8))),
    "structured matrices": lambda: (Structured(), (torch.randn(8, 16), torch.randint(4, (8,)))),
    "equivariant": lambda: (Equivariant(), (torch.randn(12, 4), torch.randn(12, 3), _EDGES, torch.randn(12))),
}
