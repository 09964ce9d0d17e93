"""Tables, graphs and others: recommendation, graph convolutions, mixtures, variational and contrastive training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dlrm(nn.Module):
    """Bags of embeddings, pairwise products, two MLPs, binary cross entropy."""

    left: Tensor
    right: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, 8, mode=mode) for size, mode in ((32, "sum"), (16, "mean")))
        self.bottom = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 3, 16), nn.ReLU(), nn.Linear(16, 1))
        rows, columns = torch.tril_indices(3, 3, -1)
        self.register_buffer("left", rows, persistent=False)
        self.register_buffer("right", columns, persistent=False)

    def forward(self, dense: Tensor, first: Tensor, second: Tensor, clicked: Tensor) -> Tensor:
        x = self.bottom(dense)
        every = torch.stack([x, self.bags[0](first), self.bags[1](second)], 1)
        pairs = torch.bmm(every, every.transpose(1, 2))[:, self.left, self.right]
        logits = self.top(torch.cat([x, pairs], 1)).view(-1)
        return functional.binary_cross_entropy_with_logits(logits, clicked)


class GraphConv(nn.Module):
    """Messages along edges, added up at their ends; means over nodes of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.own = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.message = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        x = self.enter(nodes)
        source, target = edges[0], edges[1]
        degree = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        degree = degree.index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
        for own, message in zip(self.own, self.message, strict=True):
            sent = message(x).index_select(0, source)
            total = torch.zeros_like(x).index_add_(0, target, sent)
            x = functional.relu(own(x) + total / degree.unsqueeze(-1))
        return functional.nll_loss(functional.log_softmax(self.head(self.norm(x)), -1), labels)


class GraphAttention(nn.Module):
    """A softmax over the edges of each node, by scatters."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.left, self.right = (
            nn.Linear(8, 16),
            nn.Parameter(torch.randn(4, 4)),
            nn.Parameter(torch.randn(4, 4)),
        )
        self.head = nn.Linear(16, 4)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        x = self.project(nodes).view(-1, 4, 4)
        source, target = edges.unbind(0)
        scores = functional.leaky_relu((x * self.left).sum(-1)[source] + (x * self.right).sum(-1)[target], 0.2)
        at = target[:, None].expand(-1, 4)
        top = torch.full((x.shape[0], 4), -1e9, dtype=x.dtype, device=x.device)
        top = top.scatter_reduce(0, at, scores, "amax")
        weight = torch.exp(scores - top[target])
        total = torch.zeros_like(top).scatter_add(0, at, weight)
        sent = x[source] * (weight / (total[target] + 1e-9)).unsqueeze(-1)
        made = torch.zeros_like(x).index_add(0, target, sent)
        return functional.cross_entropy(self.head(functional.elu(made).flatten(1)), labels)


class Vae(nn.Module):
    """A reparametrised latent, a divergence, a Bernoulli decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = nn.Linear(32, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.decoder, self.norm = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 32)), nn.BatchNorm1d(16)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.encoder(x)))
        mean, spread = self.mean(hidden), self.spread(hidden)
        made = self.decoder(mean + torch.exp(0.5 * spread) * noise)
        lost = functional.binary_cross_entropy_with_logits(made, torch.sigmoid(x), reduction="sum") / x.shape[0]
        return lost - 0.5 * torch.mean(torch.sum(1 + spread - mean.pow(2) - spread.exp(), 1))


class Quantised(nn.Module):
    """A codebook: nearest entries, gradients straight through, a commitment, and a moving average kept in a buffer."""

    usage: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 8), nn.Linear(8, 16)
        self.codebook = nn.Embedding(16, 8)
        self.register_buffer("usage", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        apart = z.pow(2).sum(-1, keepdim=True) - 2 * z @ self.codebook.weight.t() + self.codebook.weight.pow(2).sum(-1)
        chosen = apart.argmin(-1)
        if self.training:
            with torch.no_grad():
                counts = functional.one_hot(chosen, 16).sum((0, 1)).to(self.usage.dtype)
                self.usage.mul_(0.9).add_(counts, alpha=0.1)
        found = self.codebook(chosen)
        lost = functional.mse_loss(found, z.detach()) + 0.25 * functional.mse_loss(z, found.detach())
        return functional.mse_loss(self.decoder(z + (found - z).detach()), x) + lost


class Contrastive(nn.Module):
    """As SimCLR: two views in one batch, similarities without the diagonal, a queue in a buffer."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
        self.register_buffer("queue", functional.normalize(torch.randn(8, 16), dim=0))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        z = functional.normalize(self.body(torch.cat([one, other])), dim=1)
        batch = one.shape[0]
        near = (z @ z.t() / 0.5).masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=z.device), -1e9)
        far = z @ self.queue.clone().detach().to(z.dtype) / 0.5
        at = torch.arange(2 * batch, device=z.device)
        lost = functional.cross_entropy(torch.cat([near, far], 1), (at + batch) % (2 * batch))
        with torch.no_grad():
            self.queue[:, : 2 * batch] = z.t()
        return lost


class Kan(nn.Module):
    """B-splines with a grid in a buffer, cosine layers, a mixture density at the end."""

    grid: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 12).repeat(8, 1))
        self.spline, self.base = nn.Parameter(torch.randn(16, 8, 8) * 0.1), nn.Linear(8, 16, bias=False)
        self.mean, self.log_scale, self.weight = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        at, grid = x.unsqueeze(-1), self.grid
        bases = ((at >= grid[:, :-1]) & (at < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (at - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - at) / (grid[:, k + 1 :] - grid[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        hidden = self.base(functional.silu(x)) + functional.linear(bases.flatten(1), self.spline.flatten(1))
        scale = self.log_scale(hidden).clamp(-3, 3)
        odds = self.weight(hidden).log_softmax(-1) - 0.5 * ((y - self.mean(hidden)) / scale.exp()) ** 2 - scale
        return -torch.logsumexp(odds, -1).mean()


def _graph() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(16, 8), torch.randint(16, (2, 48)), torch.randint(4, (16,))


TABLES = {
    "dlrm": lambda: (
        Dlrm(),
        (torch.randn(8, 12), torch.randint(32, (8, 4)), torch.randint(16, (8, 4)), torch.randint(2, (8,)).float()),
    ),
    "graph conv": lambda: (GraphConv(), _graph()),
    "graph attention": lambda: (GraphAttention(), _graph()),
    "vae": lambda: (Vae(), (torch.randn(8, 32), torch.randn(8, 8))),
    "codebook": lambda: (Quantised(), (torch.randn(4, 4, 16),)),
    "contrastive": lambda: (Contrastive(), (torch.randn(4, 16), torch.randn(4, 16))),
    "kan": lambda: (Kan(), (torch.randn(8, 8), torch.randn(8, 1))),
}
