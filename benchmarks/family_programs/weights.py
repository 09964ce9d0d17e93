"""Programs that make something of their weights before they use them: joined, turned, rounded, cut, stacked, folded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as f
from torch.nn.utils import parametrize, prune

from family_programs.batches import labelled, labelled_rows, marked_words


class Joined(nn.Module):
    """Projections of q, k, v that are stored apart and used as one, the net's gate and input too."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 16)
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((16, 32), (16, 32), (32, 16)))
        self.norm, self.head = nn.RMSNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        parts = self.q, self.k, self.v
        weight, bias = (torch.cat([getattr(each, name) for each in parts]) for name in ("weight", "bias"))
        q, k, v = f.linear(self.norm(x), weight, bias).split([16, 8, 8], -1)
        q, k, v = (each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in (q, k, v))
        found = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        gate, up = f.linear(x, torch.cat([self.gate.weight, self.up.weight])).chunk(2, -1)
        x = x + self.down(f.silu(gate) * up)
        return f.cross_entropy(self.head(x.mean(1)), labels)


class TurnedTie(nn.Module):
    """The head's weight, turned and scaled, is the table of words; a factor of the vocabulary between (ALBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.factor = nn.Parameter(torch.randn(8, 32) * 0.3), nn.Linear(8, 16, bias=False)
        self.cell = nn.GRU(16, 16, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(32))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.factor(f.embedding(ids, self.head.t() * 8**0.5))
        h, _ = self.cell(h)
        h = f.linear(h, self.factor.weight.T)
        return f.cross_entropy((h @ self.head + self.bias).transpose(1, 2), labels, ignore_index=0)


class RoundedWeights(nn.Module):
    """Weights cast to single precision and back before each use, rounded by blocks of rows with straight gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.ones(32, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.linear(x, self.first.weight.to(torch.float32).to(x.dtype), self.first.bias.float().to(x.dtype))
        blocks = self.second.weight.view(4, 4, 32)
        top = blocks.abs().amax((1, 2), keepdim=True).detach() / 7
        rounded = ((blocks / top).round() * top).view(16, 32)
        h = f.linear(f.silu(h), self.second.weight + (rounded - self.second.weight).detach(), self.second.bias)
        rows = self.first.weight * self.scale
        h = h + f.linear(x, (rows.float() + 1).type_as(rows)[:16] * 0.1)
        return f.cross_entropy(self.head(h.mean(1)), labels)


class Lazy(nn.Module):
    """Lazy modules, made by a first batch; a convolution over words, norms of batches, a head of any width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.LazyConv1d(8, 3, padding=1), nn.LazyBatchNorm1d()
        self.inner, self.head = nn.LazyLinear(16), nn.LazyLinear(4)
        with torch.no_grad():
            self(torch.zeros(2, 8, 16), torch.zeros(2, dtype=torch.long))
        self.norm.reset_running_stats()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.relu(self.norm(self.conv(x.mT)))
        return f.cross_entropy(self.head(f.relu(self.inner(h.flatten(1)))), labels)


class Nested(nn.Module):
    """Modules in dictionaries in lists in dictionaries, parameters in dictionaries and lists, names like functions."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {
                kind: nn.ModuleList(nn.ModuleDict({"in": nn.Linear(16, 8), "weight": nn.Linear(8, 16)}) for _ in "ab")
                for kind in ("items_", "weight")
            }
        )
        self.scales = nn.ParameterDict({"keys_": torch.ones(16), "0": torch.ones(16)})
        self.steps = nn.ParameterList([torch.randn(16) * 0.1, torch.randn(16, 16) * 0.1])
        self.tables = nn.ModuleDict({"a.b".replace(".", "/"): nn.Embedding(4, 16)})
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor, kinds: Tensor) -> Tensor:
        h = x + self.tables["a/b"](kinds)
        for several in self.parts.values():
            for each in several:
                h = h + each["weight"](each["in"](h).relu())
        for scale in self.scales.values():
            h = h * scale
        return f.cross_entropy(self.head(h @ self.steps[1] + self.steps[0]), labels)


class Pruned(nn.Module):
    """Weights under masks (torch's pruning: by size, by rows, across layers, on top of each other)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4)
        prune.l1_unstructured(self.first, "weight", amount=0.3)
        prune.ln_structured(self.second, "weight", amount=0.25, n=2, dim=0)
        prune.random_unstructured(self.second, "weight", amount=0.2)
        prune.global_unstructured([(self.first, "bias"), (self.second, "bias")], prune.L1Unstructured, amount=4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.second(f.relu(self.first(x)))), labels)


class Symmetric(nn.Module):
    """The upper triangle, on both sides."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


class Damped(nn.Module):
    """A weight under a norm that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Parameter(torch.tensor(2.0))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.top / weight.norm().clamp(min=1e-3)).clamp(max=1.0)


class Chained(nn.Module):
    """Two parametrizations on one weight, one on a bias and on a bare parameter, read twice from a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.core = nn.Parameter(torch.randn(16, 16) * 0.2)
        parametrize.register_parametrization(self.first, "weight", Symmetric())
        parametrize.register_parametrization(self.first, "weight", Damped())
        parametrize.register_parametrization(self.first, "bias", nn.Tanh(), unsafe=True)
        parametrize.register_parametrization(self, "core", Symmetric())

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with parametrize.cached():
            h = self.first(f.gelu(self.first(x)))
            h = h @ self.core + (h @ self.core).tanh()
        return f.cross_entropy(self.head(h), labels)


class Member(nn.Module):
    """One net of an ensemble."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(x)))


class Ensemble(nn.Module):
    """Nets that are stacked and called as one by vmap, beside a stack of experts of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member() for _ in range(4))
        object.__setattr__(self, "base", Member().to("meta"))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        names = [name for name, _ in self.members[0].named_parameters()]
        held = {name: torch.stack([each.get_parameter(name) for each in self.members]) for name in names}
        scores = torch.vmap(lambda weights, given: functional_call(self.base, weights, (given,)), (0, None))(held, x)
        inner = torch.einsum("bi,eoi->ebo", x, held["inner.weight"]) + held["inner.bias"][:, None]
        return f.cross_entropy(scores.mean(0), labels) + inner.square().mean() * 0.1 + scores.var(0).mean()


class Elastic(nn.Module):
    """One set of weights for nets of several widths, depths and kernels (once for all)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.point = nn.Conv1d(16, 16, 5, groups=16), nn.Conv1d(16, 32, 1)
        self.turn = nn.Parameter(torch.eye(3))
        self.norm, self.head = nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss = x.new_zeros(())
        for width, size in ((8, 3), (12, 5), (16, 3)):
            kernel = self.conv.weight[:width]
            if size == 3:
                kernel = (kernel[..., 1:4].reshape(-1, 3) @ self.turn).view(width, 1, 3)
            h = f.conv1d(x.mT[:, :width], kernel, self.conv.bias[:width], padding=size // 2, groups=width)
            h = f.conv1d(f.hardswish(h), self.point.weight[: 2 * width, :width], self.point.bias[: 2 * width])
            scale, shift = self.norm.weight[: 2 * width], self.norm.bias[: 2 * width]
            h = f.batch_norm(h, None, None, scale, shift, training=True)
            loss = loss + f.cross_entropy(
                f.linear(h.mean(-1), self.head.weight[:, : 2 * width], self.head.bias), labels
            )
        return loss


class Folded(nn.Module):
    """Branches of convolutions that are folded into one kernel before they are used (RepVGG), norms folded too."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.point = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.stem = nn.BatchNorm2d(8), nn.Conv2d(3, 8, 1)
        self.head = nn.Linear(8 * 9, 4)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        h = self.stem(pixels)
        same = torch.zeros(8, 8, 3, 3, dtype=h.dtype, device=h.device)
        same[torch.arange(8), torch.arange(8), 1, 1] = 1
        kernel = self.wide.weight + f.pad(self.point.weight, (1, 1, 1, 1)) + same
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        kernel = kernel * scale.view(-1, 1, 1, 1)
        bias = (self.wide.bias + self.point.bias - self.norm.running_mean) * scale + self.norm.bias
        h = f.relu(f.conv2d(h, kernel, bias, padding=1))
        columns = f.unfold(h, 3, stride=3)
        mixed = self.head.weight.view(4, 8, 9).mean(-1) @ kernel.flatten(1)
        h = f.linear(columns.mT, mixed).mean(1)
        return f.cross_entropy(h + self.head.bias, labels)


class Hooked(nn.Module):
    """Weights made anew by a hook before each pass, and results changed by hooks with keywords, for all and for one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 4)
        self.shift = nn.Parameter(torch.zeros(16))
        self.first.register_forward_pre_hook(self._shifted, with_kwargs=True)
        self.second.register_forward_hook(lambda module, given, made: made + given[0] * module.weight.diagonal())
        self.seen: list[Tensor] = []

    def _shifted(self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> object:
        return (args[0] + self.shift,), kwargs

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        self.seen.clear()
        handle = self.first.register_forward_hook(lambda _, __, made: self.seen.append(made))
        h = self.second(f.silu(self.first(x)))
        handle.remove()
        return f.cross_entropy(self.head(h), labels) + 0.01 * self.seen[0].square().mean()


WEIGHTS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "joined weights": lambda: (Joined(), labelled()),
    "turned tie": lambda: (TurnedTie(), marked_words()),
    "rounded weights": lambda: (RoundedWeights(), labelled()),
    "lazy": lambda: (Lazy(), labelled()),
    "nested": lambda: (Nested(), (*labelled_rows(), torch.randint(4, (8,)))),
    "pruned": lambda: (Pruned(), labelled_rows()),
    "chained": lambda: (Chained(), labelled_rows()),
    "ensemble": lambda: (Ensemble(), labelled_rows()),
    "elastic": lambda: (Elastic(), labelled()),
    "folded weights": lambda: (Folded(), (torch.randn(4, 3, 9, 9), torch.randint(4, (4,)))),
    "hooks of modules": lambda: (Hooked(), labelled_rows()),
}
