"""Programs of points, rays, molecules, ranks and sounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class Radiance(nn.Module):
    """Rays through a field: encoded places, transmittances by products, samples by sorted weights, a distortion."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList((nn.Linear(15, 32), nn.Linear(32 + 15, 32)))
        self.density, self.colour = nn.Linear(32, 1), nn.Sequential(nn.Linear(32 + 3, 16), nn.ReLU(), nn.Linear(16, 3))

    def _field(self, places: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        bands = 2.0 ** torch.arange(2, device=places.device, dtype=places.dtype)
        angles = (places[..., None, :] * bands[:, None]).flatten(-2)
        encoded = torch.cat([places, angles.sin(), angles.cos()], -1)
        h = self.layers[0](encoded).relu()
        h = self.layers[1](torch.cat([h, encoded], -1)).relu()
        return f.softplus(self.density(h)).squeeze(-1), self.colour(torch.cat([h, views], -1)).sigmoid()

    def _rendered(self, at: Tensor, origin: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
        sigma, colour = self._field(
            origin[:, None] + at[..., None] * way[:, None], way[:, None].expand(-1, at.shape[1], -1)
        )
        steps = torch.cat([at.diff(dim=-1), torch.full_like(at[:, :1], 1.0)], -1)
        alpha = 1 - torch.exp(-sigma * steps)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], -1), -1)[:, :-1]
        weights = alpha * through
        return weights, torch.einsum("rs,rsc->rc", weights, colour)

    def forward(self, origin: Tensor, way: Tensor, goal: Tensor) -> Tensor:
        way = way / torch.linalg.norm(way, dim=-1, keepdim=True)
        at = torch.linspace(0.1, 2, 8, device=way.device, dtype=way.dtype).expand(len(way), 8)
        weights, coarse = self._rendered(at, origin, way)
        chances = weights.detach()[:, 1:-1] + 1e-3
        cumulated = torch.cumsum(chances / chances.sum(-1, keepdim=True), -1)
        cumulated = torch.cat([torch.zeros_like(cumulated[..., :1]), cumulated], -1)
        drawn = torch.linspace(0.05, 0.95, 4, device=way.device, dtype=way.dtype).expand(len(way), 4).contiguous()
        after = torch.searchsorted(cumulated.contiguous(), drawn, right=True)
        low, high = (after - 1).clamp(min=0), after.clamp(max=cumulated.shape[-1] - 1)
        middle = 0.5 * (at[:, 1:] + at[:, :-1])
        edges = [torch.gather(cumulated, 1, each) for each in (low, high)]
        bins = [torch.gather(middle, 1, each) for each in (low, high)]
        spread = (edges[1] - edges[0]).where(edges[1] - edges[0] > 1e-5, torch.ones_like(drawn))
        fine = bins[0] + (drawn - edges[0]) / spread * (bins[1] - bins[0])
        every, _ = torch.sort(torch.cat([at, fine], -1), -1)
        weights, colour = self._rendered(every, origin, way)
        apart = (every.unsqueeze(-1) - every.unsqueeze(-2)).abs()
        distortion = torch.einsum("ri,rj,rij->r", weights, weights, apart).mean()
        return f.mse_loss(colour, goal) + f.mse_loss(coarse, goal) + 0.01 * distortion


class Molecules(nn.Module):
    """An equivariant net: distances as radial functions, messages and moves of places added by number, angles."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.message = (
            nn.Embedding(8, 16),
            nn.Sequential(nn.Linear(32 + 8, 16), nn.SiLU(), nn.Linear(16, 16)),
        )
        self.move, self.node = nn.Linear(16, 1, bias=False), nn.Linear(32, 16)
        self.width, self.out = nn.Parameter(torch.full((8,), 2.0)), nn.Linear(16, 1)
        self.register_buffer("centres", torch.linspace(0, 3, 8))

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor, of: Tensor, energy: Tensor) -> Tensor:
        h, (source, target) = self.kind(kinds), edges
        for _ in range(2):
            apart = places.index_select(0, source) - places.index_select(0, target)
            distance = torch.linalg.vector_norm(apart + 1e-6, dim=-1, keepdim=True)
            radial = torch.exp(-self.width * (distance - self.centres.to(distance)).square())
            cut = 0.5 * (torch.cos(math.pi * (distance / 5).clamp(max=1)) + 1)
            sent = self.message(torch.cat([h[source], h[target], radial], -1)) * cut
            pull = apart / (distance + 1) * self.move(sent).tanh()
            places = places + torch.zeros_like(places).index_add_(0, target, pull, alpha=0.5)
            gathered = torch.zeros_like(h).scatter_add_(0, target.unsqueeze(-1).expand_as(sent), sent)
            h = h + self.node(torch.cat([h, gathered], -1)).tanh()
        counts = torch.zeros(4, dtype=h.dtype, device=h.device).scatter_add(0, of, torch.ones_like(h[:, 0]))
        made = torch.zeros(4, 1, dtype=h.dtype, device=h.device).index_add(0, of, self.out(h)).squeeze(-1)
        return f.smooth_l1_loss(made / counts.clamp(min=1), energy, beta=0.5) + 0.01 * torch.cdist(h, h).mean()


class Points(nn.Module):
    """PointNet++: the farthest points one by one, neighbours by distance, groups gathered; Chamfer and transport."""

    def __init__(self) -> None:
        super().__init__()
        self.local, self.decode = nn.Sequential(nn.Linear(3 + 8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 24)
        self.lift = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        h, batch = self.lift(x), torch.arange(b, device=x.device)
        distance, far, chosen = torch.full((b, n), 1e10, dtype=x.dtype, device=x.device), batch.new_zeros(b), []
        for _ in range(4):
            chosen.append(far)
            centre = x[batch, far].unsqueeze(1)
            distance = torch.minimum(distance, (x - centre).pow(2).sum(-1))
            far = distance.argmax(-1)
        index = torch.stack(chosen, 1)
        centres = x[batch[:, None], index]
        near = torch.cdist(centres, x).topk(3, dim=-1, largest=False).indices
        group = torch.cat([x[batch[:, None, None], near] - centres.unsqueeze(2), h[batch[:, None, None], near]], -1)
        code = self.local(group).max(2)[0].max(1)[0]
        made = self.decode(code).view(b, 8, 3)
        apart = torch.cdist(made, x, p=2)
        chamfer = apart.min(1)[0].mean() + apart.min(2).values.mean()
        cost, u, v = apart / 0.5, torch.zeros_like(apart[:, :, 0]), torch.zeros_like(apart[:, 0])
        for _ in range(3):
            u = -math.log(8) - torch.logsumexp(v.unsqueeze(1) - cost, dim=2)
            v = -math.log(n) - torch.logsumexp(u.unsqueeze(2) - cost, dim=1)
        transport = ((u.unsqueeze(2) + v.unsqueeze(1) - cost).exp() * apart).sum((1, 2)).mean()
        return chamfer + 0.1 * transport


class Ranked(nn.Module):
    """Numbers of tables: medians, ranks, quantiles, missing ones; a soft sort; a loss of pairs and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.score = nn.Linear(16, 32), nn.Linear(32, 1)
        self.missing = nn.Parameter(torch.zeros(16))
        self.register_buffer("middle", torch.zeros(16))

    def forward(self, x: Tensor, gains: Tensor) -> Tensor:
        absent = x.isnan()
        flat = torch.where(absent, self.missing, x.nan_to_num())
        if self.training:
            self.middle.lerp_(x.nan_to_num().flatten(0, 1).median(0).values, 0.1)
        h = self.first(flat - self.middle).tanh()
        robust = (h - h.median(dim=1, keepdim=True)[0]).abs().kthvalue(3, dim=1, keepdim=True).values
        s = self.score(h / (robust + 1)).squeeze(-1)
        order = gains.argsort(dim=1, descending=True)
        listed = s.gather(1, order)
        likelihood = (listed.flip(1).logcumsumexp(1).flip(1) - listed).mean()
        pairs = s.unsqueeze(2) - s.unsqueeze(1)
        better = torch.sign(gains.unsqueeze(2) - gains.unsqueeze(1))
        rank = f.relu(1 - better * pairs) * better.abs()
        soft = torch.softmax(-(s.sort(1, descending=True)[0].unsqueeze(-1) - s.unsqueeze(1)).abs(), -1)
        spread = torch.quantile(s, 0.75, dim=1) - s.nanquantile(0.25, dim=1)
        return (
            likelihood
            + rank.mean()
            + (soft @ gains.unsqueeze(-1)).std()
            + spread.mean()
            + s.nanmean()
            + 0.1 * s.median()
        )


class Sounds(nn.Module):
    """Filters of learned bands, periodic units, weight norm, noise shaped by a spectrum, losses of spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.band = nn.Parameter(torch.rand(8) * 0.2), nn.Parameter(torch.rand(8) * 0.2)
        self.snake = nn.Parameter(torch.ones(1, 8, 1))
        self.deep = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, padding=2, dilation=2))
        self.up = nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1)
        self.out, self.mel = nn.Conv1d(4, 1, 7, padding=3, padding_mode="reflect"), nn.Linear(17, 8, bias=False)
        self.register_buffer("times", torch.arange(-8.0, 9.0))
        self.register_buffer("window", torch.hann_window(32))

    def _spectrum(self, x: Tensor) -> Tensor:
        found = torch.stft(x, 32, 8, 32, self.window.to(x.dtype), center=True, return_complex=True)
        return self.mel((found.abs().square() + 1e-6).transpose(1, 2)).abs().add(1e-5).log()

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        low = self.low.abs().unsqueeze(1)
        high = (low + self.band.abs().unsqueeze(1)).clamp(max=0.5)
        t = self.times.to(x.dtype)
        filters = 2 * high * torch.sinc(2 * high * t) - 2 * low * torch.sinc(2 * low * t)
        filters = filters * (0.54 + 0.46 * torch.cos(math.pi * t / 8))
        h = f.conv1d(x.unsqueeze(1), filters.unsqueeze(1), stride=2, padding=8)
        h = h + (1 / (self.snake + 1e-9)) * torch.sin(self.snake * h).pow(2)
        y = self.out(f.leaky_relu(self.up(h + self.deep(h)), 0.1)).tanh().squeeze(1)
        return f.l1_loss(self._spectrum(y), self._spectrum(goal)) + f.mse_loss(y.diff(dim=-1), goal.diff(dim=-1))


def _holes() -> Tensor:
    x = torch.randn(4, 8, 16)
    return x.masked_fill(torch.rand(4, 8, 16) < 0.1, torch.nan)


POINT_SETS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "radiance": lambda: (Radiance(), (torch.randn(8, 3), torch.randn(8, 3), torch.rand(8, 3))),
    "molecules": lambda: (
        Molecules(),
        (
            torch.randint(8, (16,)),
            torch.randn(16, 3),
            torch.randint(16, (2, 40)),
            torch.arange(16) // 4,
            torch.randn(4),
        ),
    ),
    "points": lambda: (Points(), (torch.randn(4, 8, 3),)),
    "ranked": lambda: (Ranked(), (_holes(), torch.randint(4, (4, 8)).float())),
    "sounds": lambda: (Sounds(), (torch.randn(4, 64), torch.randn(4, 64))),
}
