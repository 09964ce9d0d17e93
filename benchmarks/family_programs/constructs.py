"""Programs of plain torch: functions and norms of one's own, checkpoints in checkpoints, views changed in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from family_programs.batches import labelled, rows, sequences, words


class Gcn(nn.Module):
    """Symmetric normalisation by degrees, scatter-adds, mean pooling by segment."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def conv(self, lin: Any, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        n = x.shape[0]
        deg = torch.ones(n, dtype=x.dtype, device=x.device).scatter_add(0, dst, torch.ones_like(dst, dtype=x.dtype))
        norm = deg.rsqrt()[src] * deg.rsqrt()[dst]
        h = lin(x)
        out = h / deg[:, None]
        return out.index_add(0, dst, h[src] * norm[:, None])

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
        x = self.conv(self.one, x, src, dst).relu()
        x = self.conv(self.two, x, src, dst).relu()
        total = x.new_zeros(4, 16).scatter_reduce(0, batch[:, None].expand_as(x), x, "sum")
        top = x.new_zeros(4, 16).scatter_reduce(0, batch[:, None].expand_as(x), x, "amax", include_self=False)
        return f.cross_entropy(self.head(total + top), labels)


class SwishFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: Tensor) -> Tensor:
        s = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, s, beta)
        return x * s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        x, s, beta = ctx.saved_tensors
        d = s + beta * x * s * (1 - s)
        return g * d, (g * x * x * s * (1 - s)).sum()


class OwnSwish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.beta = nn.Linear(16, 32), nn.Linear(32, 16), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        return (self.b(SwishFn.apply(self.a(x), self.beta)) - goal).abs().mean()


class SetupFn(torch.autograd.Function):
    """Newer style, with setup_context and two inputs that are used twice."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w.t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        x, w = ctx.saved_tensors
        return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2)


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(32, 16) / 4), nn.Parameter(torch.randn(16, 32) / 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = SetupFn.apply(x, self.w).tanh()
        return f.smooth_l1_loss(SetupFn.apply(h, self.v) + SetupFn.apply(x, self.w)[..., :16], goal)


class Einsum(nn.Module):
    """Attention and mixture of experts by einsum alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(16, 4, 4) / 4) for _ in range(3))
        self.o = nn.Parameter(torch.randn(4, 4, 16) / 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) / 4), nn.Parameter(torch.randn(4, 32, 16) / 4)
        self.gate = nn.Parameter(torch.randn(16, 4) / 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,dhe->bhte", x, w) for w in (self.q, self.k, self.v))
        a = torch.einsum("bhie,bhje->bhij", q, k).div(2).softmax(-1)
        x = x + torch.einsum("bhij,bhje,hed->bid", a, v, self.o)
        p = torch.einsum("btd,de->bte", x, self.gate).softmax(-1)
        h = torch.einsum("btd,edf->btef", x, self.up).relu()
        x = x + torch.einsum("btef,efd,bte->btd", h, self.down, p)
        return f.huber_loss(x, goal)


class Tied(nn.Module):
    """A table tied three ways: input, output, and a slice of it as a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(32, 16)
        self.block = nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.wte(ids) * math.sqrt(16)
        m = torch.triu(torch.full((ids.shape[1], ids.shape[1]), float("-inf"), dtype=x.dtype, device=x.device), 1)
        x = self.block(x, x.flip(1), tgt_mask=m)
        x = x @ self.wte.weight[:16].t() + x
        return f.cross_entropy(self.head(x).transpose(1, 2), labels, label_smoothing=0.1)


class Symmetric(nn.Module):
    """The upper half of a weight, mirrored."""

    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


class Norms(nn.Module):
    """Weight norm, spectral norm, an own parametrization, RMS norm, local response norm, instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a = weight_norm(nn.Linear(16, 16), dim=None)
        self.b = nn.Linear(16, 16)
        parametrize.register_parametrization(self.b, "weight", Symmetric())
        self.c = weight_norm(nn.Conv1d(16, 16, 3, padding=1))
        self.rms, self.inst = nn.RMSNorm(16), nn.InstanceNorm1d(16, affine=True)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        x = self.rms(self.b(self.a(x).relu()))
        y = self.inst(self.c(x.transpose(1, 2)))
        y = f.local_response_norm(y, 3)
        return f.mse_loss(y.transpose(1, 2), goal)


class OldNorm(nn.Module):
    """The old hook forms of weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.utils.weight_norm(nn.Linear(16, 32))
        self.b = torch.nn.utils.weight_norm(nn.Linear(32, 16), dim=1)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        return f.mse_loss(self.b(f.gelu(self.a(x))), goal)


class Nested(nn.Module):
    """Checkpoints within checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)) for _ in range(3))

    def inner(self, x: Tensor, i: int) -> Tensor:
        return x + self.blocks[i](x)

    def outer(self, x: Tensor) -> Tensor:
        x = checkpoint(self.inner, x, 0, use_reentrant=False)
        x = checkpoint(self.inner, x, 1, use_reentrant=False)
        return self.inner(x, 2)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        return (checkpoint(self.outer, x, use_reentrant=False) - goal).square().mean()


class Frozen(nn.Module):
    """Weights that are first read with gradients off."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.b(self.a(x).relu()).std()
            big = self.a.weight.abs().max()
        return f.mse_loss(self.b(self.a(x).relu()) / scale / big, goal)


class Spectral(nn.Module):
    """Spectral norms, whose vectors are buffers that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = spectral_norm(nn.Linear(16, 32)), spectral_norm(nn.Conv1d(8, 8, 3, padding=1))
        self.c = torch.nn.utils.spectral_norm(nn.Linear(32, 16))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        return f.mse_loss(self.c(self.b(self.a(x)).relu()), goal)


class Views(nn.Module):
    """Views of views, changed in place: chunk, narrow, transpose, diagonal, masked fill, index put, copy."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.a(x)
        left, right = h[..., :8], h[..., 8:]
        left.mul_(right.sigmoid())
        h.transpose(0, 1)[:, 0].add_(1)
        h = h.clone()
        h[:, -1] = h[:, 0] * 2
        h[:, 1:3, :4] = 0
        h.narrow(1, 2, 2).copy_(h.narrow(1, 0, 2).detach().tanh())
        h.masked_fill_(h > 2, 2.0)
        c = h.new_zeros(h.shape)
        c[..., ::2] = h[..., 1::2]
        c[..., 1::2] = -h[..., ::2]
        sq = self.b(c)
        sq.diagonal(dim1=-2, dim2=-1).add_(1)
        sq.select(1, 0).neg_()
        return f.mse_loss(sq, goal)


class Rotary(nn.Module):
    """Complex rotary positions, as Llama's own code has them, and an fft mixing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, 8).unbind(2)
        freqs = torch.outer(
            torch.arange(t, device=x.device, dtype=x.dtype),
            1.0 / 10000 ** (torch.arange(0, 8, 2, device=x.device, dtype=x.dtype) / 8),
        )
        cos, sin = freqs.cos()[None, :, None], freqs.sin()[None, :, None]

        def rot(y: Tensor) -> Tensor:
            a, c = y.reshape(*y.shape[:-1], 4, 2).unbind(-1)
            return torch.stack([a * cos - c * sin, a * sin + c * cos], -1).flatten(-2)

        q, k = rot(q), rot(k)
        x = x + self.o(
            f.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            .transpose(1, 2)
            .reshape(b, t, 16)
        )
        return f.cross_entropy(self.head(x[:, -1]), labels)


class Vae(nn.Module):
    """A variational autoencoder with an explicit noise, KL, and a straight-through code book."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mu, self.var = nn.Conv2d(3, 8, 4, 2, 1), nn.Linear(128, 16), nn.Linear(128, 16)
        self.book = nn.Parameter(torch.randn(8, 16))
        self.dec, self.up = nn.Linear(16, 128), nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: Tensor, eps: Tensor) -> Tensor:
        h = f.elu(self.enc(x)).flatten(1)
        mu, lv = self.mu(h), self.var(h).clamp(-4, 4)
        z = mu + eps * (lv / 2).exp()
        d = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.t() + self.book.pow(2).sum(1)
        code = f.embedding(d.argmin(1), self.book)
        zq = z + (code - z).detach()
        y = torch.sigmoid(self.up(self.dec(zq).view(-1, 8, 4, 4)))
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()
        return (
            f.binary_cross_entropy(y, torch.sigmoid(x))
            + 0.1 * kl
            + f.mse_loss(code, z.detach())
            + f.mse_loss(z, code.detach())
        )


CONSTRUCTS = {
    "graph convolution": lambda: (
        Gcn(),
        (
            torch.randn(16, 8),
            torch.randint(16, (32,)),
            torch.randint(16, (32,)),
            torch.arange(16) // 4,
            torch.randint(4, (4,)),
        ),
    ),
    "own swish": lambda: (OwnSwish(), rows()),
    "own product": lambda: (OwnLinear(), sequences()),
    "einsum": lambda: (Einsum(), sequences()),
    "tied slices": lambda: (Tied(), words()),
    "norms of weights": lambda: (Norms(), sequences()),
    "hooks of weight norm": lambda: (OldNorm(), rows()),
    "nested checkpoints": lambda: (Nested(), rows()),
    "read without gradients": lambda: (Frozen(), rows()),
    "spectral norm": lambda: (Spectral(), sequences()),
    "views in place": lambda: (Views(), (torch.randn(4, 16, 16), torch.randn(4, 16, 16))),
    "rotary by hand": lambda: (Rotary(), labelled(classes=8)),
    "code book": lambda: (Vae(), (torch.randn(4, 3, 8, 8), torch.randn(4, 16))),
}
