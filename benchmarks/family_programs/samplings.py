"""Programs of images, sound, graphs and points: sampled, matched, scattered, ranked."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class ConvNext(nn.Module):
    """ConvNeXt V2: depthwise convolutions, norms of channels last and first, responses normalised, paths scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 16, 2, 2)
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.depth, self.norm = nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16, eps=1e-6)
        self.up, self.back = nn.Linear(16, 64), nn.Linear(64, 16)
        self.gamma, self.beta = nn.Parameter(torch.rand(1, 1, 1, 64)), nn.Parameter(torch.zeros(1, 1, 1, 64))
        self.layer_scale, self.head = nn.Parameter(torch.full((16,), 0.5)), nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(spread + 1e-6)
        x = self.down(self.scale[:, None, None] * x + self.shift[:, None, None])
        h = self.up(self.norm(self.depth(x).permute(0, 2, 3, 1)))
        h = f.gelu(h)
        response = torch.norm(h, p=2, dim=(1, 2), keepdim=True)
        h = self.gamma * (h * (response / (response.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + h
        x = x + (self.layer_scale * self.back(h)).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        return f.cross_entropy(self.head(x.mean([-2, -1])), labels)


class Deformable(nn.Module):
    """Attention at sampled places of several scales: maps split by size, grids sampled, offsets by references."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.offsets, self.weights = nn.Linear(16, 16), nn.Linear(16, 4 * 2 * 2 * 2), nn.Linear(16, 16)
        self.level, self.out, self.head = nn.Parameter(torch.randn(2, 16)), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, small: Tensor, labels: Tensor) -> Tensor:
        shapes = [tuple(each.shape[-2:]) for each in (x, small)]
        flat = torch.cat([each.flatten(2).mT + self.level[n] for n, each in enumerate((x, small))], 1)
        b, n, _ = flat.shape
        places = []
        for h, w in shapes:
            rows, columns = torch.meshgrid(
                torch.linspace(0.5, h - 0.5, h, dtype=x.dtype, device=x.device),
                torch.linspace(0.5, w - 0.5, w, dtype=x.dtype, device=x.device),
                indexing="ij",
            )
            places.append(torch.stack((columns.reshape(-1) / w, rows.reshape(-1) / h), -1))
        reference = torch.cat(places)[None, :, None, None, None]
        offsets = self.offsets(flat).view(b, n, 4, 2, 2, 2)
        weights = self.weights(flat).view(b, n, 4, 4).softmax(-1).view(b, n, 4, 2, 2)
        normal = torch.tensor([[w, h] for h, w in shapes], dtype=x.dtype, device=x.device)
        grids = 2 * (reference + offsets / normal[None, None, None, :, None, :]) - 1
        sampled = []
        for number, value in enumerate(self.value(flat).view(b, n, 4, 4).split([h * w for h, w in shapes], dim=1)):
            h, w = shapes[number]
            maps = value.flatten(2).transpose(1, 2).reshape(b * 4, 4, h, w)
            grid = grids[:, :, :, number].transpose(1, 2).flatten(0, 1)
            sampled.append(f.grid_sample(maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(b * 4, 1, n, 4)
        made = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(b, 16, n).transpose(1, 2).contiguous()
        return f.cross_entropy(self.head((flat + self.out(made)).mean(1)), labels)


class Involution(nn.Module):
    """Kernels made at every place; a convolution whose places are learned, gathered by hand from four corners."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reduce, self.span = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 18, 1)
        self.norm, self.shift = nn.BatchNorm2d(4), nn.Conv2d(8, 2, 3, padding=1)
        self.out = nn.Conv2d(8, 3, 1)

    def _corners(self, x: Tensor, flow: Tensor) -> Tensor:
        b, c, h, w = x.shape
        base = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")).to(flow)
        y, z = (base + flow.tanh() * 2).unbind(1)
        y, z = y.clamp(0, h - 1), z.clamp(0, w - 1)
        top, left = y.detach().floor().long(), z.detach().floor().long()
        flat, made = x.flatten(2), torch.zeros_like(x)
        for dy in (0, 1):
            for dz in (0, 1):
                row, column = (top + dy).clamp(max=h - 1), (left + dz).clamp(max=w - 1)
                index = (row * w + column).flatten(1).unsqueeze(1).expand(b, c, h * w)
                weight = (1 - (y - (top + dy)).abs()) * (1 - (z - (left + dz)).abs())
                made = made + flat.gather(2, index).view_as(x) * weight.unsqueeze(1)
        return made

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.stem(x)
        b, c, height, width = h.shape
        kernel = self.span(self.norm(self.reduce(h)).relu()).view(b, 2, 9, height, width).unsqueeze(2)
        pieces = f.unfold(h, 3, padding=1).view(b, 2, c // 2, 9, height, width)
        h = (kernel * pieces).sum(dim=3).view(b, c, height, width)
        h = h + self._corners(h, self.shift(h))
        return f.mse_loss(self.out(h), goal)


class Flow(nn.Module):
    """Optical flow: all pairs correlated, pooled and looked up, a recurrent convolution, convex upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.context = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(3, 8, 3, 2, 1)
        self.gates, self.new = nn.Conv2d(36, 16, 3, padding=1), nn.Conv2d(36, 8, 3, padding=1)
        self.delta, self.mask = nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(8, 4 * 9, 1)

    def forward(self, x: Tensor, y: Tensor, goal: Tensor) -> Tensor:
        both = self.encode(torch.cat([x, y]))
        one, two = torch.tensor_split(both, 2, dim=0)
        b, c, h, w = one.shape
        volume = torch.einsum("bcij,bckl->bijkl", one, two).div(math.sqrt(c)).reshape(b * h * w, 1, h, w)
        pyramid = [volume, f.avg_pool2d(volume, 2, stride=2)]
        rows, columns = torch.meshgrid(
            torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij"
        )
        start = torch.stack([columns, rows]).to(x.dtype).expand(b, -1, -1, -1)
        near = torch.stack(torch.meshgrid(torch.arange(-1, 2), torch.arange(-1, 2), indexing="ij"), -1).to(x)
        state, places, loss = self.context(x).tanh(), start.clone(), x.new_zeros(())
        for step in range(2):
            places = places.detach()
            found = []
            for level, each in enumerate(pyramid):
                centre = places.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2) / 2**level
                size = torch.tensor([each.shape[-1] - 1, each.shape[-2] - 1], dtype=x.dtype, device=x.device)
                grid = 2 * (centre + near) / size.clamp(min=1) - 1
                found.append(f.grid_sample(each, grid, align_corners=True).view(b, h, w, -1))
            seen = torch.cat(found, -1).permute(0, 3, 1, 2)
            given = torch.cat([seen, places - start], 1)
            z, r = self.gates(torch.cat([state, given, f.unfold(state, 1).view_as(state)], 1)).sigmoid().chunk(2, 1)
            new = self.new(torch.cat([r * state, given, state], 1)).tanh()
            state = (1 - z) * state + z * new
            places = places + self.delta(state)
            mask = self.mask(state).view(b, 1, 9, 2, 2, h, w).softmax(dim=2)
            up = f.unfold(2 * (places - start), [3, 3], padding=1).view(b, 2, 9, 1, 1, h, w)
            up = (mask * up).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 2 * h, 2 * w)
            loss = loss + 0.8 ** (1 - step) * (up - goal).abs().mean()
        return loss


class Cosine(nn.Module):
    """Swin V2: cosine attention with learned scales, biases made by a net from logarithms of distances, rolled."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(16, 48, bias=False), nn.Parameter(torch.log(10 * torch.ones(4, 1, 1)))
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16))
        self.bias = nn.Sequential(nn.Linear(2, 16), nn.ReLU(inplace=True), nn.Linear(16, 4, bias=False))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None]).permute(1, 2, 0) + 1
        self.register_buffer("index", (apart[..., 0] * 3 + apart[..., 1]).view(-1), persistent=False)
        grid = torch.stack(torch.meshgrid(torch.arange(-1.0, 2), torch.arange(-1.0, 2), indexing="ij"), -1) * 8
        self.register_buffer("grid", torch.sign(grid) * torch.log2(grid.abs() + 1) / 3, persistent=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, h, w, c = x.shape
        rolled = torch.roll(x, shifts=(-1, -1), dims=(1, 2))
        windows = rolled.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        q, k, v = f.linear(windows, self.qkv.weight, bias).reshape(-1, 4, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = f.normalize(q, dim=-1) @ f.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * torch.clamp(self.scale, max=math.log(100.0)).exp()
        table = self.bias(self.grid.to(x.dtype)).view(-1, 4)
        scores = scores + 16 * torch.sigmoid(table[self.index].view(4, 4, 4).permute(2, 0, 1).contiguous()).unsqueeze(0)
        areas = torch.zeros(1, h, w, 1, device=x.device)
        for number, rows in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
            areas[:, rows, :, :] += number
        mask = areas.view(1, h // 2, 2, w // 2, 2).permute(0, 1, 3, 2, 4).reshape(-1, 4)
        mask = (mask.unsqueeze(1) - mask.unsqueeze(2)).ne(0).to(x.dtype) * -100.0
        scores = (scores.view(b, -1, 4, 4, 4) + mask[None, :, None]).view(-1, 4, 4, 4)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, h // 2, w // 2, 2, 2, c)
        y = torch.roll(y.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c), shifts=(1, 1), dims=(1, 2))
        return f.cross_entropy(self.head((x + self.norm(y)).flatten(1, 2).mean(1)), labels)


class Pyramid(nn.Module):
    """Maps of several sizes, up and down, weighted; boxes' areas pooled; channels attended; SiLU and in-place units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(16, momentum=None)
        self.sides = nn.ModuleList((nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)))
        self.blend, self.squeeze, self.excite = nn.Parameter(torch.ones(2)), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.eca, self.head = nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Linear(8 * 4, 4)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        small = self.act(self.first(x))
        smaller = self.norm(self.second(small)).relu_()
        one, two = (side(each) for side, each in zip(self.sides, (small, smaller), strict=True))
        up = f.interpolate(two, size=one.shape[-2:], mode="bicubic", align_corners=False)
        weights = self.blend.relu() / (self.blend.relu().sum() + 1e-4)
        h = weights[0] * one + weights[1] * up
        gate = f.adaptive_avg_pool2d(h, 1)
        h = h * self.excite(self.squeeze(gate).relu_()).sigmoid_()
        line = self.eca(h.mean((2, 3), keepdim=True).squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        h = h.mul(f.hardsigmoid(line).expand_as(h))
        pooled = f.adaptive_max_pool2d(h, (2, 2)) + f.lp_pool2d(h.abs() + 0.1, 2, 4, stride=4)
        return f.cross_entropy(self.head(f.dropout2d(pooled, 0.0).flatten(1)), labels)


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


def _images(size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, size, size), torch.randint(4, (4,))


def _holes() -> Tensor:
    x = torch.randn(4, 8, 16)
    return x.masked_fill(torch.rand(4, 8, 16) < 0.1, torch.nan)


SAMPLINGS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "convnext v2": lambda: (ConvNext(), (torch.randn(4, 3, 32, 32), torch.randint(8, (4,)))),
    "deformable": lambda: (
        Deformable(),
        (torch.randn(4, 16, 4, 4), torch.randn(4, 16, 2, 2), torch.randint(4, (4,))),
    ),
    "involution": lambda: (Involution(), (torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8))),
    "optical flow": lambda: (
        Flow(),
        (torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16), torch.randn(2, 2, 16, 16)),
    ),
    "cosine windows": lambda: (Cosine(), (torch.randn(4, 4, 4, 16), torch.randint(4, (4,)))),
    "pyramid": lambda: (Pyramid(), _images()),
    "radiance": lambda: (Radiance(), (torch.randn(8, 3), torch.randn(8, 3), torch.rand(8, 3))),
    "molecules": lambda: (
        Molecules(),
        (
            torch.randint(8, (16,)), torch.randn(16, 3), torch.randint(16, (2, 40)), torch.arange(16) // 4,
            torch.randn(4),
        ),
    ),
    "points": lambda: (Points(), (torch.randn(4, 8, 3),)),
    "ranked": lambda: (Ranked(), (_holes(), torch.randint(4, (4, 8)).float())),
    "sounds": lambda: (Sounds(), (torch.randn(4, 64), torch.randn(4, 64))),
}  # fmt: skip
