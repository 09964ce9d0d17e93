"""Programs of plain torch: losses, scans, transforms and branches that few models have, and states that they keep."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, rows, sequences


class Contrastive(nn.Module):
    """NT-Xent with a learned temperature and momentum buffer queue."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = (
            nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)),
            nn.Parameter(torch.tensor(1.0)),
        )
        self.register_buffer("queue", f.normalize(torch.randn(16, 8), dim=1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = f.normalize(self.net(a), dim=1), f.normalize(self.net(b), dim=1)
        pos = (za * zb).sum(1, keepdim=True)
        neg = za @ self.queue.clone().t()
        logits = torch.cat([pos, neg], 1) * self.scale.exp()
        self.queue.copy_(torch.cat([zb.detach(), self.queue[:-8]]))
        return f.cross_entropy(logits, torch.zeros(8, dtype=torch.long, device=a.device))


class Crf(nn.Module):
    """A linear-chain CRF on a bidirectional LSTM: logsumexp over tags in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm, self.out = (
            nn.Embedding(32, 16),
            nn.LSTM(16, 8, bidirectional=True, batch_first=True),
            nn.Linear(16, 4),
        )
        self.trans, self.start = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        e = self.out(self.lstm(self.emb(ids))[0])
        alpha = self.start + e[:, 0]
        score = self.start[tags[:, 0]] + e[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, ids.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.trans, 1) + e[:, t]
            score = score + self.trans[tags[:, t - 1], tags[:, t]] + e[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
        return (alpha.logsumexp(1) - score).mean()


class TopK(nn.Module):
    """Experts by a loop with masks (no shapes of data), top 2, a balance loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = (
            nn.Linear(16, 4, bias=False),
            nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4)),
        )

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        p = self.gate(x).softmax(-1)
        w, i = p.topk(2, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for n, e in enumerate(self.experts):
            out += e(x) * (w * (i == n)).sum(-1, keepdim=True)
        load = f.one_hot(i, 4).to(x.dtype).sum(-2).mean((0, 1))
        return f.mse_loss(x + out, goal) + 0.01 * 4 * (load * p.mean((0, 1))).sum()


class UNet3(nn.Module):
    """A 3-d U-net with trilinear upsampling, group norm and a dice loss."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv3d(1, 8, 3, padding=1),
            nn.Conv3d(8, 16, 3, 2, 1),
            nn.Conv3d(24, 8, 3, padding=1),
        )
        self.n, self.out = nn.GroupNorm(2, 16), nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = f.relu(self.a(x))
        b = f.leaky_relu(self.n(self.b(a)))
        u = f.interpolate(b, scale_factor=2, mode="trilinear", align_corners=False)
        p = self.out(f.relu(self.c(torch.cat([a, u], 1)))).softmax(1)
        t = f.one_hot(y, 2).permute(0, 4, 1, 2, 3).to(p.dtype)
        return 1 - (2 * (p * t).sum((2, 3, 4)) / (p + t).sum((2, 3, 4))).mean()


class Fold(nn.Module):
    """Pixel shuffle, unfold and fold, adaptive pools, grid sampling, PReLU, dropout-free squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.se1, self.se2 = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.PReLU(16),
            nn.Linear(16, 4),
            nn.Linear(4, 16),
        )
        self.b, self.theta = nn.Linear(4 * 9, 4 * 9), nn.Linear(16, 6)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.act(self.a(x))
        s = f.adaptive_avg_pool2d(h, 1).flatten(1)
        h = h * torch.sigmoid(self.se2(f.relu(self.se1(s))))[:, :, None, None]
        grid = f.affine_grid(
            self.theta(s).view(-1, 2, 3) * 0.1 + torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=x.dtype),
            list(h.shape),
            align_corners=False,
        )
        h = f.grid_sample(h, grid, align_corners=False)
        u = f.pixel_shuffle(h, 2)
        cols = f.unfold(u, 3, padding=1)
        cols = self.b(cols.transpose(1, 2)).transpose(1, 2)
        y = f.fold(cols, u.shape[-2:], 3, padding=1)
        y = f.adaptive_max_pool2d(y, 4)
        return f.mse_loss(y, goal)


class S4(nn.Module):
    """A diagonal state space by fft convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 16), nn.Linear(16, 4)
        self.loga, self.c, self.d = (
            nn.Parameter(torch.rand(16, 8)),
            nn.Parameter(torch.randn(16, 8)),
            nn.Parameter(torch.ones(16)),
        )

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        u = self.enc(x).transpose(1, 2)
        t = torch.arange(u.shape[-1], device=u.device, dtype=u.dtype)
        k = torch.einsum("hn,hnl->hl", self.c, torch.exp(-self.loga.exp()[..., None] * t * 0.1))
        n = 2 * u.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., : u.shape[-1]]
        y = y + u * self.d[:, None]
        return f.mse_loss(self.dec(f.gelu(y).transpose(1, 2)), goal)


class Scan(nn.Module):
    """Cumulative sums and products, sorting, running maxima, roll, tril, where."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x)
        g = torch.sigmoid(h)
        s = torch.cumsum(h * g, 1) / torch.arange(1, h.shape[1] + 1, device=h.device)[:, None]
        r = torch.cummax(h, 1).values + torch.cumprod(g, 1) + h.roll(1, 1)
        q = torch.sort(h, dim=-1).values + h.logcumsumexp(1)
        y = torch.where(s > 0, r, q).std(1) + h.var(1) + h.median(1).values
        return f.nll_loss(f.log_softmax(self.b(y), -1), labels)


class Hyper(nn.Module):
    """A hypernetwork: weights of a convolution and a batch of products made by another net."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.kernel = nn.Linear(8, 16 * 8), nn.Linear(8, 8 * 3 * 3 * 3)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, z: Tensor, labels: Tensor) -> Tensor:
        k = self.kernel(z.mean(0)).view(8, 3, 3, 3)
        h = f.conv2d(x, k, padding=1).relu().mean((2, 3))
        w = self.make(z).view(-1, 16, 8)
        h = torch.baddbmm(torch.zeros(1, 16, 1, dtype=x.dtype), w, h.unsqueeze(2)).squeeze(2)
        return f.cross_entropy(self.out(h.view(-1, 2, 8).amax(1)), labels)


class Adversarial(nn.Module):
    """A gradient penalty: gradients of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        return (
            f.softplus(self.net(fake)).mean()
            + f.softplus(-self.net(real)).mean()
            + 0.1 * self.net[0].weight.norm(dim=0).mean()
        )


class Ema(nn.Module):
    """A teacher that is a moving average of the student, kept in buffers and changed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(16, 8), nn.Linear(16, 8).requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 8))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            t = ((self.teacher(b) - self.center) / 0.04).softmax(-1)
            self.center.mul_(0.9).add_(self.teacher(b).mean(0, keepdim=True), alpha=0.1)
        return -(t * (self.student(a) / 0.1).log_softmax(-1)).sum(-1).mean()


class Bilin(nn.Module):
    """Bilinear, embedding bags of several modes, cosine and pairwise losses, factorisation machine."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.other = nn.EmbeddingBag(32, 8, mode="mean"), nn.EmbeddingBag(32, 8, mode="sum")
        self.bi, self.v = nn.Bilinear(8, 8, 8), nn.Parameter(torch.randn(8, 4) / 2)

    def forward(self, ids: Tensor, other: Tensor, target: Tensor) -> Tensor:
        a, b = self.bag(ids), self.other(other)
        y = self.bi(a, b)
        fm = 0.5 * ((y @ self.v).pow(2) - y.pow(2) @ self.v.pow(2)).sum(1)
        return (
            f.soft_margin_loss(fm, target)
            + f.cosine_embedding_loss(a, b, target, margin=0.2)
            + f.triplet_margin_loss(y, a, b)
            + f.kl_div(y.log_softmax(-1), b.softmax(-1), reduction="batchmean")
        )


class Parallel(nn.Module):
    """Branches by a dict of modules, a list of parameters, buffers by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({k: nn.Linear(16, 8) for k in ("x", "y", "z")})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(3)])
        self.mix = nn.ParameterDict({"w": nn.Parameter(torch.randn(24, 4) / 4)})
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(24))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        out = {k: m(x) * s for (k, m), s in zip(self.branches.items(), self.scales, strict=True)}
        h = torch.cat([out[k] for k in sorted(set(out))], -1)
        self.steps = self.steps + 1
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return f.multi_margin_loss((h - self.mean) @ self.mix["w"], labels)


class Linformer(nn.Module):
    """Linear attention with feature maps, a window attention by as-strided-like unfold, relative biases by table."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(16, 48), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.randn(15, 2))
        self.ln = nn.LayerNorm(16, bias=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln(x)).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q1, k1 = f.elu(q) + 1, f.elu(k) + 1
        lin = q1 @ (k1.transpose(-1, -2) @ v) / (q1 @ k1.sum(-2, keepdim=True).transpose(-1, -2))
        pos = torch.arange(t, device=x.device)
        bias = self.table[pos[:, None] - pos[None] + t - 1].permute(2, 0, 1)
        att = (q @ k.transpose(-1, -2) / 8**0.5 + bias).softmax(-1) @ v
        kw = f.pad(k, (0, 0, 1, 1)).unfold(2, 3, 1)
        loc = (
            torch.einsum("bhtd,bhtdw->bhtw", q, kw).softmax(-1)[..., None]
            * f.pad(v, (0, 0, 1, 1)).unfold(2, 3, 1).transpose(-1, -2)
        ).sum(-2)
        y = self.o((lin + att + loc).transpose(1, 2).reshape(b, t, d))
        return f.cross_entropy(self.head((x + y).mean(1)), labels)


RARITIES = {
    "queue": lambda: (Contrastive(), rows()),
    "crf": lambda: (Crf(), (torch.randint(32, (4, 6)), torch.randint(4, (4, 6)))),
    "masked experts": lambda: (TopK(), sequences()),
    "unet 3d": lambda: (UNet3(), (torch.randn(2, 1, 8, 8, 8), torch.randint(2, (2, 8, 8, 8)))),
    "fold": lambda: (Fold(), (torch.randn(4, 3, 8, 8), torch.randn(4, 4, 4, 4))),
    "fft state space": lambda: (S4(), (torch.randn(4, 16, 4), torch.randn(4, 16, 4))),
    "scans": lambda: (Scan(), labelled()),
    "hypernetwork": lambda: (Hyper(), (torch.randn(4, 3, 8, 8), torch.randn(4, 8), torch.randint(4, (4,)))),
    "weight penalty": lambda: (Adversarial(), rows()),
    "teacher": lambda: (Ema(), rows()),
    "bilinear": lambda: (
        Bilin(),
        (torch.randint(32, (8, 4)), torch.randint(32, (8, 4)), torch.randint(2, (8,)).float() * 2 - 1),
    ),
    "branches": lambda: (Parallel(), (torch.randn(8, 16), torch.randint(4, (8,)))),
    "linear attention": lambda: (Linformer(), labelled()),
}
