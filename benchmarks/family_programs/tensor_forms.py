"""Programs that take functions of tensors in rare forms: complex numbers, counts, pools, decompositions, moved dims."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as f


class ComplexRotary(nn.Module):
    """Queries and keys turned as complex numbers, as Meta's Llama does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        angles = torch.outer(torch.arange(8.0), 100.0 ** -torch.linspace(0, 1, 4))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 8)) for each in self.qkv(x).chunk(3, -1))
        q, k = (self._turned(each) for each in (q, k))
        y = f.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
        return f.mse_loss(self.out(y.transpose(1, 2).flatten(2)), goal)

    def _turned(self, x: Tensor) -> Tensor:
        angles = self.angles.float()
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, None]).flatten(-2).type_as(x)


class FiveDims(nn.Module):
    """Attention of windows within windows: five dims, with a bias for places."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 4)
        self.bias = nn.Parameter(torch.randn(2, 4, 4) / 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(x).reshape(b, t // 4, 4, 3, 2, 8).permute(3, 0, 1, 4, 2, 5)
        q, k, v = qkv.unbind(0)
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        y = y + (torch.matmul(q * 8**-0.5, k.transpose(-1, -2)) + self.bias).softmax(-1) @ v
        return f.cross_entropy(self.out(y.transpose(2, 3).reshape(b, t, d).mean(1)), labels)


class Counted(nn.Module):
    """Buffers that a pass changes: whole numbers, running sums, codes assigned anew; results that need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 8), nn.Linear(8, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("usage", torch.zeros(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("last", torch.zeros(4, 8), persistent=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x)
        if self.training:
            self.steps += 1
            self.usage.index_add_(0, h.detach().flatten(0, 1).argmax(-1), torch.ones(32, dtype=h.dtype))
            self.mean = self.mean.lerp(h.detach().mean((0, 1)), 0.1)
            self.last.copy_(h.detach()[:, 0])
        h = (h - self.mean) / (1 + self.usage / self.usage.sum().clamp(min=1)) + self.last.unsqueeze(1) * 0.1
        return f.cross_entropy(self.out(h.mean(1)), labels) * (1 + 0.01 * self.steps)


class Rounded(nn.Module):
    """Straight-through rounding, fake quantisation by hand, and a product in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out, self.scale = nn.Linear(16, 16), nn.Linear(16, 4), nn.Parameter(torch.tensor(0.1))

    def _quantised(self, x: Tensor, scale: Tensor) -> Tensor:
        y = (x / scale).clamp(-8, 7)
        return (y + (y.round() - y).detach()) * scale

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        w = self._quantised(self.a.weight, self.a.weight.detach().abs().amax(1, keepdim=True) / 7)
        h = self._quantised(f.linear(x, w, self.a.bias), self.scale)
        whole = (h.detach() * 4).to(torch.int32) @ torch.ones(16, 4, dtype=torch.int32)
        return f.cross_entropy(self.out(h.relu()).mean(1) + 0.01 * whole.float().mean(1).to(h.dtype), labels)


class Pools(nn.Module):
    """Pools of norms, with indices and back, of odd sizes; responses normalised; channels shuffled and unshuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=2, dilation=2, groups=4)
        self.norm, self.up = (
            nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
            nn.ConvTranspose2d(8, 8, 2, 2, groups=2),
        )
        self.out = nn.Linear(8 * 9, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.local_response_norm(self.a(x), 3)
        m, places = f.max_pool2d(h, 2, return_indices=True)
        h = f.max_unpool2d(m, places, 2) + f.interpolate(f.lp_pool2d(h, 2, 2), scale_factor=2, mode="bicubic")
        h = self.norm(self.b(f.channel_shuffle(h, 4)))
        h = f.pixel_unshuffle(self.up(h), 2)[:, :8] + f.avg_pool2d(self.up(h), 3, 2, 1, count_include_pad=False)
        return f.cross_entropy(self.out(f.adaptive_avg_pool2d(h, 3).flatten(1)), labels)


class Algebra(nn.Module):
    """Decompositions: a solve, an inverse, a determinant, a Cholesky factor, an exponential, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 16), nn.Linear(4, 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.a(x).unflatten(-1, (4, 4))
        spd = h @ h.mT / 4 + torch.eye(4, dtype=x.dtype)
        low = torch.linalg.cholesky(spd)
        y = torch.linalg.solve_triangular(low, h, upper=False) + torch.linalg.inv(spd) + torch.linalg.matrix_exp(h / 8)
        y = y + torch.linalg.solve(spd, h) + torch.logdet(spd)[..., None, None] / 8
        return f.mse_loss(self.out(y / torch.linalg.matrix_norm(y, keepdim=True)).flatten(-2), goal)


class Heads(nn.Module):
    """torch's attention with biases of keys, a zero key, masks of both kinds, other widths of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.MultiheadAttention(16, 4, add_bias_kv=True, add_zero_attn=True, batch_first=True)
        self.two = nn.MultiheadAttention(16, 2, kdim=8, vdim=4, batch_first=True)
        self.k, self.v, self.out = nn.Linear(16, 8), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        late = torch.triu(torch.ones(8, 8, dtype=torch.bool), 1)
        padded = torch.zeros(4, 8, dtype=torch.bool)
        padded[1:, 6:] = True
        h, _ = self.one(x, x, x, attn_mask=late, need_weights=False)
        y, seen = self.two(h, self.k(x), self.v(x), key_padding_mask=padded, average_attn_weights=False)
        return f.cross_entropy(self.out((x + y).mean(1)) + seen.mean((1, 2))[:, :4], labels)


class Stateless(nn.Module):
    """A module called with other parameters, per-sample functions by vmap, weights averaged over modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        mixed = {
            name: (one + other) / 2
            for (name, one), other in zip(self.a.named_parameters(), self.b.parameters(), strict=True)
        }
        h = torch.func.functional_call(self.a, mixed, (x,))
        h = h + torch.vmap(lambda rows, scale: rows * scale.sigmoid())(h, self.b(x).mean(1))
        return f.cross_entropy(self.out(h.mean(1)), labels)


class Moved(nn.Module):
    """Dims moved, rolled, flipped, turned, tiled; grids, products of sets, lookups along dims."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x).movedim(1, 2).swapaxes(1, 2)
        rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(16.0), indexing="ij")
        h = h + (rows - columns).to(h.dtype) / 16
        h = h.roll((1, 2), (1, 2)) + h.rot90(2, (1, 2)) + h.flip(-1, 1)
        order = h.detach().sum(-1).argsort(1)
        h = torch.take_along_dim(h, order[..., None], 1) + torch.tile(h[:, :2], (1, 4, 1))
        h = torch.cat([h.repeat_interleave(2, 1)[:, ::2], h.unfold(1, 2, 1).mean(-1)], 1)
        return f.cross_entropy(self.out(torch.nan_to_num(h).logsumexp(1)), labels)


class Shared(nn.Module):
    """Weights that several modules share: tied tables, a transpose, a slice, and one bias in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.head.weight = self.table.weight
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        self.down.bias = self.up.bias

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) * math.sqrt(16)
        h = h + f.linear(f.gelu(self.up(h)), self.up.weight.t(), self.down.bias)
        h = h + self.down(f.layer_norm(h, (16,))) + f.linear(h[..., :8], self.table.weight[:16, :8])
        return f.cross_entropy(self.head(h[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def _rows(*more: Tensor) -> tuple[Tensor, ...]:
    return torch.randn(4, 8, 16), *more


def _labels(count: int = 4, classes: int = 4) -> Tensor:
    return torch.randint(classes, (count,))


TENSOR_FORMS = {
    "complex rotary": lambda: (ComplexRotary(), _rows(torch.randn(4, 8, 16))),
    "five dims": lambda: (FiveDims(), _rows(_labels())),
    "counts": lambda: (Counted(), _rows(_labels())),
    "rounded": lambda: (Rounded(), _rows(_labels())),
    "pools": lambda: (Pools(), (torch.randn(4, 3, 8, 8), _labels())),
    "algebra": lambda: (Algebra(), _rows(torch.randn(4, 8, 16))),
    "heads": lambda: (Heads(), _rows(_labels())),
    "stateless": lambda: (Stateless(), _rows(_labels())),
    "moved dims": lambda: (Moved(), _rows(_labels())),
    "shared in parts": lambda: (Shared(), (torch.randint(32, (4, 9)),)),
}
