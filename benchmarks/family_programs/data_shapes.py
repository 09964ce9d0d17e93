"""Programs whose shapes depend on data: what masks pick, experts that have tokens, losses of valid entries."""

from __future__ import annotations

import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as f


class MaskedLoss(nn.Module):
    """Losses of the entries that a mask picks; rows written where a mask says."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h, keep = self.a(x), labels != 0
        changed = torch.zeros_like(h)
        changed[keep] = h[keep].tanh() * 2
        logits = self.b(h + changed)
        loss = f.cross_entropy(logits[keep], labels[keep]) + logits.masked_select(keep.unsqueeze(-1)).square().mean()
        rows = torch.where(keep.any(1))[0]
        each = f.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return loss + 0.1 * h[rows].mean() + each[~keep].sum() / 32


class HitExperts(nn.Module):
    """A loop over experts that have tokens (Mixtral's, as it was), each given its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4))
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        tokens = x.reshape(-1, 16)
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        made = torch.zeros_like(tokens)
        mask = f.one_hot(chosen, 4).permute(2, 1, 0)
        for hit in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            number = hit[0]
            slot, token = torch.where(mask[number])
            own = self.experts[int(number)](tokens[token]) * weights[token, slot, None]
            made.index_add_(0, token, own)
        return f.cross_entropy(self.head(tokens + made), labels.flatten())


class Chances(nn.Module):
    """Losses of `torch.distributions`, with its checks: a policy, an evidence bound, correlations of features."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(16, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.policy = nn.Linear(32, 4)

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        h = self.body(x).tanh()
        posterior = distributions.Normal(self.mean(h), f.softplus(self.spread(h)) + 1e-3)
        divergence = distributions.kl_divergence(posterior, distributions.Normal(torch.zeros_like(self.mean(h)), 1.0))
        policy = distributions.Categorical(logits=self.policy(h))
        loss = -policy.log_prob(actions).mean() - 0.01 * policy.entropy().mean() + 0.1 * divergence.sum(-1).mean()
        alike = torch.corrcoef(self.mean(h).t()) - torch.eye(8, device=x.device, dtype=x.dtype)
        return loss + 0.1 * alike.square().mean() + 0.1 * torch.cov(h.t()).diagonal().mean()


class Speech(nn.Module):
    """Frames, a recurrent layer and a CTC loss of labels whose padding is negative, as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.mix, self.out = nn.Conv1d(4, 16, 3, 2, 1), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.mix(self.frames(x).transpose(1, 2).relu())
        chances = self.out(h).log_softmax(-1, dtype=x.dtype).transpose(0, 1)
        valid = labels >= 0
        lengths = torch.full((x.shape[0],), h.shape[1], dtype=torch.long, device=x.device)
        flat = labels.masked_select(valid)
        return f.ctc_loss(chances, flat, lengths, valid.sum(-1), blank=0, reduction="mean", zero_infinity=True)


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8, 16), torch.randint(8, (4, 8))


DATA_SHAPES = {
    "masked losses": lambda: (MaskedLoss(), _tokens()),
    "experts that are hit": lambda: (HitExperts(), _tokens()),
    "chances": lambda: (Chances(), (torch.randn(16, 16), torch.randint(4, (16,)))),
    "speech": lambda: (
        Speech(),
        (torch.randn(4, 4, 24), torch.tensor([[1, 2, 3], [4, 4, -1], [5, 6, 7], [2, -1, -1]])),
    ),
}
