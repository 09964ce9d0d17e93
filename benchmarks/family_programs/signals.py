"""Programs of fields, sound and images: operators of spectra, hashed grids, splats, wavelets, separated sources."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class FourierOperator(nn.Module):
    """A Fourier neural operator in two dims: kept modes at both ends, complex weights as pairs, a residual product."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.project = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 1, 1)
        self.low, self.high = (nn.Parameter(torch.randn(8, 8, 3, 3, 2) / 16) for _ in range(2))
        self.around = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        rows, columns = (torch.linspace(0, 1, n, dtype=x.dtype, device=x.device) for n in x.shape[-2:])
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(x.shape[0], -1, -1, -1)
        h = self.lift(torch.cat([x, grid], 1))
        spectrum = torch.fft.rfft2(h, norm="ortho")
        made = torch.zeros_like(spectrum)
        made[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :3], torch.view_as_complex(self.low))
        made[:, :, -3:, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -3:, :3], torch.view_as_complex(self.high))
        h = f.gelu(torch.fft.irfft2(made, s=h.shape[-2:], norm="ortho") + self.around(h))
        apart = self.project(h) - goal
        return (apart.flatten(1).norm(dim=1) / goal.flatten(1).norm(dim=1)).mean()


class Hyena(nn.Module):
    """Long convolutions: filters of a net of positions, with decays, by real transforms; gates between them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inp, self.short = (
            nn.Embedding(16, 16),
            nn.Linear(16, 48),
            nn.Conv1d(48, 48, 3, padding=2, groups=48),
        )
        self.filters, self.bias, self.out = (
            nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 32)),
            nn.Parameter(torch.randn(2, 16)),
            nn.Linear(16, 16),
        )
        self.frequency = nn.Parameter(torch.ones(16))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        size = ids.shape[1]
        at = torch.linspace(0, 1, size, dtype=self.bias.dtype, device=ids.device)[:, None]
        bands = torch.arange(1, 3, dtype=at.dtype, device=at.device) * 2 * math.pi * at
        places = torch.cat([at, bands.cos(), bands.sin()], -1)
        made = self.filters[1](torch.sin(self.frequency * self.filters[0](places)))
        decay = torch.exp(-at * torch.linspace(1, 4, 32, dtype=at.dtype, device=at.device))
        kernels = (made * decay).t().unflatten(0, (2, 16))
        u = self.short(self.inp(self.table(ids)).transpose(1, 2))[..., :size]
        gate, other, v = u.split(16, 1)
        for number, each in enumerate((other, gate)):
            v = v * each
            turned = torch.fft.rfft(v, n=2 * size) * torch.fft.rfft(kernels[number], n=2 * size)
            v = torch.fft.irfft(turned, n=2 * size)[..., :size] + v * self.bias[number][:, None]
        return f.cross_entropy(self.out(v.transpose(1, 2)).transpose(1, 2), labels)


class Hashed(nn.Module):
    """Grids of several scales in hashed tables: corners by bits, primes and exclusive ors, weights of eight corners;
    spherical harmonics, densities along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(64, 2) * 0.1) for _ in range(3))
        self.density, self.colour = nn.Linear(6, 8), nn.Sequential(nn.Linear(7 + 4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, origins: Tensor, ways: Tensor, pixels: Tensor) -> Tensor:
        depths = torch.linspace(0.1, 1.0, 6, dtype=origins.dtype, device=origins.device)
        points = ((origins[:, None] + ways[:, None] * depths[:, None]) * 0.25 + 0.5).clamp(0, 0.999)
        primes = torch.tensor([1, 2654435761, 805459861], device=points.device)
        features = []
        for level, table in enumerate(self.tables):
            scaled = points * (4 << level)
            corner, share = scaled.floor(), scaled - scaled.floor()
            made = 0
            for bits in itertools.product((0, 1), repeat=3):
                way = torch.tensor(bits, device=points.device)
                at = (corner.long() + way) * primes
                place = (at[..., 0] ^ at[..., 1] ^ at[..., 2]) % 64
                weight = torch.where(way.bool(), share, 1 - share).prod(-1, keepdim=True)
                made = made + table[place] * weight
            features.append(made)
        sigma, hidden = self.density(torch.cat(features, -1)).split([1, 7], -1)
        x, y, z = ways.unbind(-1)
        harmonics = torch.stack([torch.full_like(x, 0.28), -0.49 * y, 0.49 * z, -0.49 * x], -1)
        harmonics = harmonics[:, None].expand(-1, depths.shape[0], -1)
        colour = self.colour(torch.cat([hidden, harmonics], -1)).sigmoid()
        opaque = 1 - torch.exp(-f.softplus(sigma.squeeze(-1)) * 0.18)
        through = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], 1), 1)[:, :-1]
        return f.huber_loss(((opaque * through)[..., None] * colour).sum(1), pixels)


class Splats(nn.Module):
    """Flat Gaussians: covariances of scales and turns, sorted by depth, blended from front to back."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.log_scale, self.turn = (
            nn.Parameter(torch.rand(12, 2)),
            nn.Parameter(torch.randn(12, 2) * 0.2 - 1),
            nn.Parameter(torch.randn(12)),
        )
        self.depth, self.colour, self.opacity = (
            nn.Parameter(torch.rand(12)),
            nn.Parameter(torch.rand(12, 3)),
            nn.Parameter(torch.zeros(12)),
        )

    def forward(self, image: Tensor) -> Tensor:
        cos, sin = self.turn.cos(), self.turn.sin()
        turned = torch.stack([cos, -sin, sin, cos], -1).reshape(-1, 2, 2)
        root = turned @ torch.diag_embed(self.log_scale.exp())
        spread = root @ root.transpose(1, 2) + 1e-3 * torch.eye(2, dtype=root.dtype, device=root.device)
        (a, b), (_, d) = spread[:, 0].unbind(-1), spread[:, 1].unbind(-1)
        inverse = torch.stack([d, -b, -b, a], -1).view(-1, 2, 2) / (a * d - b * b)[:, None, None]
        size = image.shape[-1]
        axis = (torch.arange(size, dtype=root.dtype, device=root.device) + 0.5) / size
        pixels = torch.cartesian_prod(axis, axis)
        order = torch.argsort(self.depth)
        apart = pixels[:, None] - self.place[order]
        power = -0.5 * torch.einsum("pni,nij,pnj->pn", apart, inverse[order], apart)
        alpha = (self.opacity[order].sigmoid() * power.exp()).clamp(max=0.99)
        through = torch.cat([torch.ones_like(alpha[:, :1]), (1 - alpha).cumprod(1)[:, :-1]], 1)
        made = (alpha * through) @ self.colour[order].sigmoid()
        made = made.t().view(3, size, size)
        l1 = (made - image).abs().mean()
        return l1 + 0.2 * (1 - (f.avg_pool2d(made[None], 3) * f.avg_pool2d(image, 3)).mean())


class Wavelets(nn.Module):
    """Images in four bands by strided slices, convolved, and put together again by interleaving; lifting steps."""

    def __init__(self) -> None:
        super().__init__()
        self.predict, self.update, self.bands = (
            nn.Conv1d(8, 8, 3, padding=1),
            nn.Conv1d(8, 8, 3, padding=1),
            nn.Conv2d(12, 12, 3, padding=1, groups=2),
        )
        self.inp = nn.Conv1d(3, 8, 1)

    def forward(self, image: Tensor, sound: Tensor) -> Tensor:
        a, b, c, d = image[..., ::2, ::2], image[..., ::2, 1::2], image[..., 1::2, ::2], image[..., 1::2, 1::2]
        bands = torch.cat([a + b + c + d, a - b + c - d, a + b - c - d, a - b - c + d], 1) / 2
        bands = bands + f.silu(self.bands(bands))
        a, b, c, d = bands.chunk(4, 1)
        whole = torch.empty_like(image)
        whole[..., ::2, ::2], whole[..., ::2, 1::2] = (a + b + c + d) / 2, (a - b + c - d) / 2
        whole[..., 1::2, ::2], whole[..., 1::2, 1::2] = (a + b - c - d) / 2, (a - b - c + d) / 2
        h = self.inp(sound)
        even, odd = h.unflatten(-1, (-1, 2)).unbind(-1)
        detail = odd - self.predict(even)
        smooth = even + self.update(detail)
        again = torch.stack([smooth, detail], -1).flatten(-2)
        return f.mse_loss(whole, image) + detail.abs().mean() + again.square().mean()


class Separated(nn.Module):
    """Sources separated: frames by a strided filter bank, stacked dilated blocks, overlap-add, the loss of the better
    permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, 16, 8, 4, bias=False), nn.ConvTranspose1d(16, 1, 8, 4, bias=False)
        self.norm, self.bottle, self.mask = nn.GroupNorm(1, 16, eps=1e-8), nn.Conv1d(16, 8, 1), nn.Conv1d(8, 32, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(8, 16, 1),
                nn.PReLU(),
                nn.GroupNorm(1, 16),
                nn.Conv1d(16, 16, 3, padding=2**n, dilation=2**n, groups=16),
                nn.PReLU(),
                nn.GroupNorm(1, 16),
            )
            for n in range(2)
        )
        self.skips, self.residual = nn.ModuleList(nn.Conv1d(16, 8, 1) for _ in range(2)), nn.Conv1d(16, 8, 1)

    def forward(self, mixture: Tensor, sources: Tensor) -> Tensor:
        frames = self.encode(mixture.unsqueeze(1)).relu()
        x, total = self.bottle(self.norm(frames)), 0
        for block, skip in zip(self.blocks, self.skips, strict=True):
            h = block(x)
            total = total + skip(h)
            x = x + self.residual(h) if block is self.blocks[0] else x
        masks = self.mask(f.prelu(total, self.blocks[0][1].weight)).sigmoid().unflatten(1, (2, 16))
        made = self.decode((masks * frames.unsqueeze(1)).flatten(0, 1)).view(mixture.shape[0], 2, -1)
        made = f.pad(made, (0, sources.shape[-1] - made.shape[-1]))
        made, goal = made - made.mean(-1, keepdim=True), sources - sources.mean(-1, keepdim=True)
        pairs = torch.einsum("bit,bjt->bij", made, goal)
        scaled = pairs.unsqueeze(-1) * goal.unsqueeze(1) / goal.square().sum(-1)[:, None, :, None]
        noise = made.unsqueeze(2) - scaled
        ratio = 10 * torch.log10(scaled.square().sum(-1) / (noise.square().sum(-1) + 1e-8) + 1e-8)
        straight, crossed = ratio[:, 0, 0] + ratio[:, 1, 1], ratio[:, 0, 1] + ratio[:, 1, 0]
        return -torch.stack([straight, crossed], -1).amax(-1).mean() / 2


class Masks(nn.Module):
    """Sound by short transforms: magnitudes masked by a net over bands, phases kept, back to a wave; losses of
    spectra at several resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.mask = nn.LSTM(9, 8, batch_first=True, bidirectional=True), nn.Linear(16, 9)
        self.register_buffer("window", torch.hann_window(16))

    def spectrum(self, wave: Tensor, size: int) -> Tensor:
        window = torch.hann_window(size, dtype=wave.dtype, device=wave.device)
        return torch.stft(wave, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-5)

    def forward(self, wave: Tensor, clean: Tensor) -> Tensor:
        spec = torch.stft(wave, 16, 4, window=self.window, return_complex=True)
        h, _ = self.lstm(spec.abs().log1p().transpose(1, 2))
        mask = self.mask(h).sigmoid().transpose(1, 2)
        made = torch.istft(spec * mask, 16, 4, window=self.window, length=wave.shape[-1])
        loss = (made - clean).abs().mean()
        for size in (8, 16):
            one, two = self.spectrum(made, size), self.spectrum(clean, size)
            loss = loss + (one - two).norm() / two.norm() + (one.log() - two.log()).abs().mean()
        return loss


class Turned(nn.Module):
    """Convolutions that know of turns: kernels turned by right angles and stacked, a pool over turns."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.group = (
            nn.Parameter(torch.randn(4, 3, 3, 3) * 0.2),
            nn.Parameter(torch.randn(4, 4, 4, 3, 3) * 0.1),
        )
        self.norm, self.head = nn.BatchNorm3d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        lifted = torch.cat([torch.rot90(self.lift, n, (2, 3)) for n in range(4)])
        h = f.conv2d(x, lifted, padding=1).unflatten(1, (4, 4)).transpose(1, 2)
        h = self.norm(h).relu().flatten(1, 2)
        turned = [torch.rot90(self.group, n, (3, 4)).roll(n, 2).flatten(1, 2) for n in range(4)]
        h = f.conv2d(h, torch.stack(turned, 1).flatten(0, 1), padding=1).unflatten(1, (4, 4))
        return f.cross_entropy(self.head(h.amax(2).mean((-1, -2))), labels)


class Diffused(nn.Module):
    """A step of diffusion: noise schedules in buffers, conditions dropped by mask, velocities, weights by signal to
    noise; a guided second pass without gradients."""

    def __init__(self) -> None:
        super().__init__()
        betas = torch.linspace(1e-3, 0.2, 10)
        kept = (1 - betas).cumprod(0)
        self.register_buffer("signal", kept.sqrt())
        self.register_buffer("noise", (1 - kept).sqrt())
        self.times, self.classes, self.none = nn.Linear(8, 16), nn.Embedding(4, 16), nn.Parameter(torch.zeros(16))
        self.inp, self.film, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, 16), nn.Conv2d(8, 3, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def net(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        bands = torch.exp(torch.arange(4, dtype=x.dtype, device=x.device) * -math.log(1000) / 4)
        turns = step[:, None].to(x.dtype) * bands
        told = f.silu(self.times(torch.cat([turns.sin(), turns.cos()], -1)) + condition)
        scale, shift = self.film(told)[:, :, None, None].chunk(2, 1)
        return self.out(f.silu(self.norm(self.inp(x)) * (1 + scale) + shift))

    def forward(self, image: Tensor, noise: Tensor, step: Tensor, labels: Tensor, drop: Tensor) -> Tensor:
        signal, strength = (each[step][:, None, None, None] for each in (self.signal, self.noise))
        noisy = signal * image + strength * noise
        goal = signal * noise - strength * image
        condition = torch.where(drop[:, None], self.none, self.classes(labels))
        made = self.net(noisy, step, condition)
        ratio = (self.signal[step] / self.noise[step]).square()
        weight = torch.minimum(ratio, torch.full_like(ratio, 5.0)) / (ratio + 1)
        loss = ((made - goal).square().mean((1, 2, 3)) * weight).mean()
        with torch.no_grad():
            both = self.net(
                noisy.repeat(2, 1, 1, 1),
                step.repeat(2),
                torch.cat([self.classes(labels), self.none.expand(len(step), -1)]),
            )
            one, none = both.chunk(2)
            guided = none + 3 * (one - none)
        return loss + 0.1 * f.mse_loss(made, guided)


SIGNALS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "fourier operator": lambda: (FourierOperator(), (torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8))),
    "hyena": lambda: (Hyena(), (torch.randint(16, (4, 8)), torch.randint(16, (4, 8)))),
    "hashed grids": lambda: (Hashed(), (torch.randn(8, 3), f.normalize(torch.randn(8, 3), dim=-1), torch.rand(8, 3))),
    "splats": lambda: (Splats(), (torch.rand(1, 3, 8, 8),)),
    "wavelets": lambda: (Wavelets(), (torch.randn(4, 3, 8, 8), torch.randn(4, 3, 16))),
    "separated": lambda: (Separated(), (torch.randn(4, 64), torch.randn(4, 2, 64))),
    "masked sound": lambda: (Masks(), (torch.randn(4, 64), torch.randn(4, 64))),
    "turned kernels": lambda: (Turned(), (torch.randn(4, 3, 8, 8), torch.randint(4, (4,)))),
    "diffused": lambda: (
        Diffused(),
        (
            torch.randn(4, 3, 8, 8),
            torch.randn(4, 3, 8, 8),
            torch.randint(10, (4,)),
            torch.randint(4, (4,)),
            torch.tensor([True, False, False, True]),
        ),
    ),
}
