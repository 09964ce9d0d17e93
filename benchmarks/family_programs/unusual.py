"""Programs that reach torch by ways of their own: scripted helpers, results into given tensors, weights of odd memory,
replaced forwards, wrapped tensors, numbers read for a log, generators, functions of statistics."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, labelled_rows, marked_words, rows


def _gated(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate) + x.mean(-1, keepdim=True)


class Scripted(nn.Module):
    """Helpers that `torch.jit.script` and `torch.compile` have been put around."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)
        object.__setattr__(self, "gated", torch.jit.script(_gated))
        object.__setattr__(self, "again", torch.compile(_gated, backend="eager"))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.gated(self.a(x), self.b(x))
        return f.cross_entropy(self.out(self.again(h, h.flip(-1))), labels)


class Into(nn.Module):
    """Results written into tensors that are given, and into parts of them."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("total", torch.zeros(16))
        self.register_buffer("mixed", torch.zeros(16, 16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            torch.add(self.total, x.mean(0), alpha=0.5, out=self.total)
            torch.matmul(self.a.weight, self.a.weight.T, out=self.mixed)
            best, place = x.new_empty(8), torch.empty(8, dtype=torch.long)
            torch.max(x, 1, out=(best, place))
        h = self.a(x) + self.total.clone() + (x @ self.mixed.clone()) * 0.01
        return f.cross_entropy(self.b(h) * (1 + best[:, None].sigmoid()), labels) + 0.01 * place.to(x.dtype).mean()


class OddMemory(nn.Module):
    """Weights without dims, of one entry, transposed in memory, with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.one = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(1))
        self.turned = nn.Parameter(torch.randn(16, 32).t() * 0.2)
        self.conv = nn.Conv2d(2, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.linear(x, self.turned) * self.scale + self.one
        image = h.view(-1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
        h = self.conv(image).mean((2, 3)) + self.out.weight.mT.contiguous().sum() * 0.01
        return f.cross_entropy(self.out(h), labels)


class OneStorage(nn.Module):
    """Weights that are views of one vector, as optimizers of flat parameters make them."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(16 * 16 + 16 * 4) * 0.2
        self.a, self.b = nn.Parameter(flat[:256].view(16, 16)), nn.Parameter(flat[256:].view(4, 16))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(f.linear(torch.tanh(f.linear(x, self.a)), self.b), labels)


class Logged(nn.Module):
    """Numbers read for a log, checks that never fail, results kept on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)
        self.log: list[Any] = []

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.relu(self.a(x))
        if not torch.compiler.is_compiling():
            self.log += [
                h.mean().item(),
                float(h.max()),
                h[0, :2].tolist(),
                f"{h.sum():.1f}",
                str(h.shape),
                repr(h)[:9],
            ]
            assert not bool(torch.isnan(h).any()), "not a number"
            assert torch.isfinite(h).all()
            assert h.detach().cpu().numpy().shape == (8, 16)
        loss = f.cross_entropy(self.b(h), labels)
        object.__setattr__(self, "last", loss.detach())
        return loss


class Replaced(nn.Module):
    """Forwards that instances have been given, partial calls of modules, attributes that are found when asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 16), nn.Linear(16, 4), nn.LayerNorm(16)
        own = self.a.forward
        self.a.forward = lambda given: own(given) * 0.5 + given
        self.norm.forward = types.MethodType(lambda module, given: given * module.weight + module.bias, self.norm)
        self.weights = functools.partial(getattr, self.b)

    def __getattr__(self, name: str) -> Any:
        if name == "scaled":
            return super().__getattr__("b").weight * 2
        return super().__getattr__(name)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        return f.cross_entropy(f.linear(h, self.scaled, self.weights("bias")), labels)


class History(nn.Module):
    """States in a queue, a recursion over halves, a cache of results by key, defaults that are filled on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.join, self.out = nn.Linear(32, 16), nn.Bilinear(16, 16, 16), nn.Linear(16, 4)

    def _joined(self, parts: Tensor) -> Tensor:
        if parts.shape[1] == 1:
            return parts[:, 0]
        half = parts.shape[1] // 2
        return torch.tanh(self.join(self._joined(parts[:, :half]), self._joined(parts[:, half:])))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        seen: collections.deque[Tensor] = collections.deque([torch.zeros_like(x[:, 0])] * 2, maxlen=2)
        found: dict[int, list[Tensor]] = collections.defaultdict(list)
        for step, each in enumerate(x.unbind(1)):
            seen.append(torch.tanh(self.cell(torch.cat([each, seen[0]], -1))))
            found[step % 2].append(seen[-1])
        h = torch.stack([torch.stack(each, 1).mean(1) for each in found.values()]).sum(0)
        return f.cross_entropy(self.out(h + self._joined(x)), labels)


class Statistics(nn.Module):
    """Quantiles, covariances, correlations, histograms, trapezes, running minima, modes, means without gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x)
        gaps = torch.where(h > 1.5, torch.full_like(h, torch.nan), h)
        scores = [torch.quantile(h, 0.3, dim=0), torch.nanmean(gaps, 0), torch.cov(h.T).diagonal()]
        scores += [torch.corrcoef(h.T)[0], torch.trapezoid(h, dim=0), torch.cumulative_trapezoid(h, dim=0)[-1]]
        scores += [torch.logcumsumexp(h, 0)[-1], torch.cummin(h, 0).values[-1], torch.nan_to_num(gaps).mean(0)]
        scores += [torch.diff(h, dim=0).abs().mean(0), torch.nanmedian(gaps, 0).values, h.nansum(0) * 0.1]
        scores += [torch.gradient(h, dim=0)[0].mean(0), torch.stack(torch.aminmax(h, dim=0)).mean(0)]
        counts = torch.histc(h.detach(), 16, -2.0, 2.0).to(h.dtype) * 0.01
        return f.cross_entropy(self.b(h + torch.stack([*scores, counts]).mean(0)), labels)


class Generators(nn.Module):
    """Masks that are drawn by a generator of one's own, and kept ones; noise by a seed that is set for it."""

    keep: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("keep", (torch.rand(32) > 0.2).float() / 0.8)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        drawn = torch.Generator().manual_seed(3)
        h = f.relu(self.a(x)) * self.keep
        h = h * (torch.rand(h.shape, generator=drawn, dtype=h.dtype) > 0.1) / 0.9
        h = h + 0.1 * torch.randn(h.shape, generator=drawn, dtype=h.dtype)
        h = h[torch.randperm(8, generator=drawn)]
        h = h * torch.bernoulli(torch.full((8, 1), 0.7), generator=drawn)
        return f.cross_entropy(self.b(h), labels)


class Chosen(nn.Module):
    """Losses by `where`: safe logarithms, huge numbers masked, both sides of a kink, a hinge, gradients that must be
    zero where the mask is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, mask = self.b(torch.tanh(self.a(x))), y > 0
        safe = torch.where(mask, y, torch.ones_like(y))
        log = torch.where(mask, torch.log(safe) * h, -h.square())
        kink = torch.where(h.abs() < 0.5, 0.5 * h.square(), h.abs() - 0.125)
        hidden = torch.where(mask, h, torch.finfo(h.dtype).min).softmax(-1)
        count = mask.sum().clamp(min=1)
        worst = torch.where(mask, (h - y).square(), 0.0).sum(-1).topk(4).values
        rows_of, columns = torch.where(torch.ones(2, 3) > 0)
        return (
            log.mean()
            + (kink * mask).sum() / count
            + (hidden * y).sum(-1).mean()
            + worst.mean()
            + h[rows_of, columns].sum() * 0.1
        )


class Tagged(Tensor):
    """A tensor that says that it is one's own."""

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, kinds, args, kwargs or {})


class Wrapped(nn.Module):
    """Constants and a weight that are tensors of a class of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)
        object.__setattr__(self, "shift", torch.ones(16).as_subclass(Tagged))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.b(self.a(x) + self.shift.to(x.dtype) * 0.5), labels)


class PaddedEncoder(nn.Module):
    """`nn.TransformerEncoder` with padded words, which has a fast path of its own in evaluation, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
        after = nn.TransformerDecoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.decoder, self.out = nn.TransformerDecoder(after, 1, nn.LayerNorm(16)), nn.Linear(16, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        padded = ids < 4
        memory = self.encoder(self.table(ids), src_key_padding_mask=padded)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=memory.dtype)
        h = self.decoder(self.table(labels), memory, tgt_mask=mask, memory_key_padding_mask=padded)
        return f.cross_entropy(self.out(h).transpose(1, 2), labels.roll(-1, 1))


class Sums(nn.Module):
    """Products with sums and quotients in one call, into what they are added to, too."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.randn(16, 16) * 0.2 for _ in range(4))
        self.v, self.b = nn.Parameter(torch.randn(16)), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = torch.addmm(x, x, self.w[0], beta=0.5, alpha=2)
        h = h + torch.baddbmm(x.view(2, 4, 16), h.view(2, 4, 16), self.w[1].expand(2, 16, 16)).view(8, 16)
        h = h + torch.addbmm(x[:4], h.view(2, 4, 16), self.w[2].expand(2, 16, 16)).repeat(2, 1)
        h = torch.addcmul(h, x, self.v, value=0.3).addcdiv(x, self.v.square() + 1, value=0.2)
        h = h + torch.addmv(self.v, self.w[3], self.v) + torch.addr(self.w[3], self.v, self.v)[:8]
        h = torch.rsub(h.addmm_(x, self.w[0], alpha=0.1).sub_(self.v), 1.0) + torch.linalg.multi_dot(
            [x, self.w[1], self.w[2]]
        )
        return f.cross_entropy(self.b(torch.lerp(h, x, 0.25)), labels)


class SavedSum(torch.autograd.Function):
    """Two results, one of which has no gradient; an argument that is no tensor, one that may be None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, power: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        made, signs = x.pow(power) @ weight.T, x > 0
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(signs)
        ctx.set_materialize_grads(False)
        ctx.power, ctx.with_bias = power, bias is not None
        return (made if bias is None else made + bias), signs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x = ctx.power * x.pow(ctx.power - 1) * (grad @ weight) if ctx.needs_input_grad[0] else None
        return of_x, grad.T @ x.pow(ctx.power), None, grad.sum(0) if ctx.with_bias else None


class OwnBackward(nn.Module):
    """A function of one's own on frozen and on made values, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 32), nn.Linear(32, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h, signs = SavedSum.apply(x, self.a.weight, 2, self.a.bias)
        h, others = SavedSum.apply(torch.tanh(h), self.b.weight, 3, None)
        return f.cross_entropy(self.out(h * (1 + 0.1 * signs) + others.to(h.dtype)[:, :16] * 0.1), labels)


class Ring(nn.Module):
    """A ring of states that is written by number, another that is rolled, a count that decides by `where`."""

    ring: Tensor
    rolled: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("ring", torch.zeros(4, 16))
        self.register_buffer("rolled", torch.zeros(4, 16))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if self.training:
            with torch.no_grad():
                at = self.count % 4
                self.ring.index_copy_(0, at.view(1), h.mean(0, keepdim=True))
                self.rolled = torch.cat([h.amax(0, keepdim=True), self.rolled[:-1]])
                self.count += 1
        warm = torch.where(self.count > 1, self.ring.mean(0), self.rolled[0])
        return f.cross_entropy(self.b(h + warm), labels)


class SameTwice(nn.Module):
    """A module under two names, in a list and in another module; its weight read by path."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.blocks = nn.ModuleList([nn.Sequential(self.a, nn.ReLU()), self.a])
        self.head = nn.ModuleDict({"last": nn.Linear(16, 4), "first": self.a})

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for block in (*self.blocks, self.head["first"]):
            x = block(x)
        x = x + f.linear(x, self.get_parameter("blocks.0.0.weight").T, dict(self.named_parameters())["a.bias"])
        return f.cross_entropy(self.get_submodule("head.last")(x), labels)


class LowBits(nn.Module):
    """Weights in eight bits with scales, two to a byte; products in half precision, pictures of bytes."""

    packed: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (16, 8), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(16, 1) * 0.1)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.a(pixels.to(self.scale.dtype) / 255)
        low, high = self.packed & 15, self.packed >> 4
        weight = (torch.stack([low, high], -1).flatten(1).to(x.dtype) - 8) * self.scale
        return f.cross_entropy(self.b(f.linear(x, weight) + x), labels)


UNUSUAL: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "scripted": lambda: (Scripted(), labelled_rows()),
    "into": lambda: (Into(), labelled_rows()),
    "odd memory": lambda: (OddMemory(), labelled_rows()),
    "one storage": lambda: (OneStorage(), labelled_rows()),
    "logged": lambda: (Logged(), labelled_rows()),
    "replaced": lambda: (Replaced(), labelled_rows()),
    "history": lambda: (History(), labelled()),
    "statistics": lambda: (Statistics(), labelled_rows()),
    "generators": lambda: (Generators(), labelled_rows()),
    "chosen": lambda: (Chosen(), rows()),
    "wrapped": lambda: (Wrapped(), labelled_rows()),
    "padded encoder": lambda: (PaddedEncoder(), marked_words()),
    "sums": lambda: (Sums(), labelled_rows()),
    "own backward": lambda: (OwnBackward(), labelled_rows()),
    "ring": lambda: (Ring(), labelled_rows()),
    "same twice": lambda: (SameTwice(), labelled_rows()),
    "low bits": lambda: (LowBits(), (torch.randint(0, 256, (8, 16), dtype=torch.uint8), torch.randint(4, (8,)))),
}
