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


def _images(size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, size, size), torch.randint(4, (4,))


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
}
