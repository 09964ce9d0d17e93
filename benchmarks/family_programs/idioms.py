"""Programs in the idioms of research code: complex positions, einops, shared weights, odd losses, transforms."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from family_programs.batches import labelled, labelled_rows, words


class MetaLlama(nn.Module):
    """Meta's Llama: positions as complex numbers in an attribute, heads repeated, a gated net, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))
        self.w1, self.w2, self.w3 = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(16, 32)
        self.norm = nn.RMSNorm(16)
        angles = torch.outer(torch.arange(8.0), 10000 ** -(torch.arange(0, 4, 2).float() / 4))
        self.freqs_cis = torch.polar(torch.ones_like(angles), angles)

    def _rotated(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        shape = [size if place in {1, pairs.ndim - 1} else 1 for place, size in enumerate(pairs.shape)]
        return torch.view_as_real(pairs * freqs_cis.view(*shape)).flatten(3).type_as(x)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.embed(ids)
        b, t, _ = h.shape
        x = self.norm(h)
        q, k, v = (w(x).view(b, t, -1, 4) for w in (self.wq, self.wk, self.wv))
        q, k = (self._rotated(each, self.freqs_cis[:t]) for each in (q, k))
        k, v = (each[:, :, :, None, :].expand(b, t, 2, 2, 4).reshape(b, t, 4, 4) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(2, 3) / 2 + torch.full((t, t), -1e9, device=q.device, dtype=q.dtype).triu(1)
        h = h + self.wo((scores.float().softmax(-1).type_as(q) @ v).transpose(1, 2).contiguous().view(b, t, -1))
        h = h + self.w2(f.silu(self.w1(h)) * self.w3(h))
        return f.cross_entropy((h @ self.embed.weight.t()).view(-1, 32), labels.view(-1))


class SpectralMixing(nn.Module):
    """A filter in the frequency domain (GFNet, FNO): complex weights as pairs, real transforms there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(4, 8), nn.Linear(8, 4)
        self.filter = nn.Parameter(torch.randn(8, 5, 8, 2) * 0.1)
        self.mix = nn.Parameter(torch.randn(4, 8, 8, 2) * 0.1)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = self.lift(x)
        spectrum = torch.fft.rfft2(h, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.filter)
        h = h + torch.fft.irfft2(spectrum, s=(8, 8), dim=(1, 2), norm="ortho")
        modes = torch.fft.rfft(h, dim=2)[:, :, :4]
        weights = torch.view_as_complex(self.mix)
        mixed = torch.einsum("bxki,kio->bxko", modes, weights)
        h = h + torch.fft.irfft(mixed, n=8, dim=2)
        return f.mse_loss(self.head(f.gelu(h)), goal)


class ComplexNet(nn.Module):
    """A complex-valued linear recurrence (S4D, LRU): decay as polar numbers, powers, real parts, magnitudes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.log_decay, self.angle = nn.Parameter(torch.randn(16) - 1), nn.Parameter(torch.randn(16))
        self.c = nn.Parameter(torch.randn(16, 2))

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        u = self.inner(x)
        decay = torch.polar(torch.exp(-torch.exp(self.log_decay)), self.angle)
        steps = torch.arange(x.shape[1], device=x.device)
        kernel = torch.exp(decay.log()[:, None] * steps) * torch.view_as_complex(self.c)[:, None]
        lags = (steps[:, None] - steps[None, :]).clamp(min=0)
        causal = (steps[:, None] >= steps[None, :]).to(u.dtype)
        y = torch.einsum("blh,hkl->bkh", u, kernel.real[:, lags] * causal)
        z = torch.complex(y, u)
        return f.mse_loss(self.out(torch.tanh(z.abs()) + z.conj().imag * 0.1), goal)


class Contractions(nn.Module):
    """`tensordot`, `mv`, `rot90`, `outer`, `inner`, `kron`, chains of products."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.vector = nn.Parameter(torch.randn(4, 4, 8) * 0.3), nn.Parameter(torch.randn(8))
        self.left, self.right = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h = torch.tensordot(x.view(-1, 4, 4), self.core, dims=([1, 2], [0, 1]))
        gate = torch.mv(h, self.vector).sigmoid()
        turned = torch.rot90(h.view(-1, 2, 4), 1, (1, 2)).reshape(-1, 8)
        h = h * gate[:, None] + turned @ torch.kron(self.left, self.right)
        h = h + torch.outer(gate, self.vector) + torch.inner(h, torch.diag(self.vector))
        h = torch.linalg.multi_dot([h, torch.diag_embed(self.vector), self.out.weight.t()]) + self.out.bias
        return f.mse_loss(torch.addmv(h[:, 0], h, h[0]) + h.dot(h.flatten()) if h.dim() == 1 else h, goal)


class Picks(nn.Module):
    """`take_along_dim`, `index_put_` that adds, `cummax`, `unfold` views, `index_add`, `masked_select` by masks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.a(x)
        order = h.argsort(-1, descending=True)
        h = torch.take_along_dim(h, order, -1)
        running, _ = h.cummax(1)
        windows = running.unfold(1, 3, 1).mean(-1)
        pooled = torch.zeros(4, 16, dtype=h.dtype, device=h.device)
        pooled = pooled.index_put((labels,), windows.mean(1), accumulate=True)
        counted = torch.zeros_like(pooled).index_add_(0, labels, h[:, 0])
        square = torch.bmm(h.transpose(1, 2), h)
        square.diagonal(dim1=1, dim2=2).add_(1.0)
        logits = self.out(windows[:, -1] + pooled[labels] + counted[labels] + square.mean(1))
        return f.cross_entropy(logits, labels)


@dataclass
class Outcome:
    """What a model returns: a loss among other things."""

    loss: Tensor
    logits: Tensor
    count: int = 0


class Branches(nn.Module):
    """Blocks in dicts and lists by string, a block used at two depths, results in a dataclass, numbers of Python."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(
            OrderedDict(norm=nn.LayerNorm(16), up=nn.Linear(16, 32), act=nn.GELU(), down=nn.Linear(32, 16))
        )
        self.blocks = nn.ModuleDict({"encoder": nn.ModuleDict({"first": block, "second": nn.Linear(16, 16)})})
        self.again = nn.ModuleList([block, nn.Identity(), block])
        self.scales = nn.ParameterDict({"first": nn.Parameter(torch.ones(16)), "second": nn.Parameter(torch.ones(16))})
        self.head = nn.Linear(16, 4)

    def _run(self, *, x: Tensor, depth: int = 2) -> Outcome:
        for name, module in self.blocks["encoder"].items():
            x = x + self.scales[name] * module(x)
        for module in self.again[:depth]:
            x = module(x)
        logits = self.head(x.mean(1))
        return Outcome(logits.logsumexp(-1).mean(), logits, count=x.shape[1])

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        made = self._run(x=x, depth=3)
        return f.cross_entropy(made.logits, labels) + 0.01 * made.loss * made.count / math.sqrt(x.size(-1))


class Sandwich(nn.Module):
    """Norms before and after (Gemma 2), per-head norms of queries and keys, layer scale, capped scores."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(16, eps=1e-6) for _ in range(4))
        self.qn, self.kn = nn.LayerNorm(4, bias=False), nn.LayerNorm(4, bias=False)
        self.q, self.kv, self.o = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(32, 16)
        self.gamma = nn.Parameter(torch.full((16,), 0.1))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.norms[0](x)
        q = self.qn(self.q(h).view(b, t, 4, 4)).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2, 2, 4).permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(q, self.kn(k), v, is_causal=True, enable_gqa=True)
        x = x + self.gamma * self.norms[1](self.o(y.transpose(1, 2).reshape(b, t, -1)))
        gate, value = self.up(self.norms[2](x)).chunk(2, -1)
        x = x + self.norms[3](self.down(f.gelu(gate, approximate="tanh") * value))
        return f.cross_entropy(30 * torch.tanh(self.head(x[:, -1]) / 30), labels, label_smoothing=0.1)


class Volumes(nn.Module):
    """Convolutions in one and three dims, groups, dilation, transposed ones, group norm, pools over volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv3d(2, 8, 3, padding=1), nn.Conv3d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.norm, self.up = nn.GroupNorm(4, 8), nn.ConvTranspose3d(8, 4, 2, stride=2)
        self.line = nn.Conv1d(4, 8, 5, stride=2, padding=2, padding_mode="circular")
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = f.max_pool3d(f.leaky_relu(self.norm(self.stem(x))), 2)
        h = h + self.deep(h)
        h = self.up(h)
        line = self.line(h.flatten(2)[..., :16])
        return f.cross_entropy(self.head(f.adaptive_avg_pool1d(line, 1).squeeze(-1)) + h.mean((2, 3, 4)), labels)


class Warped(nn.Module):
    """A spatial transformer: an affine grid from the image, sampled; pixels shuffled and unshuffled; channels too."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.stem = nn.Linear(192, 6), nn.Conv2d(12, 16, 3, padding=1)
        self.up = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        theta = self.where(x.flatten(1)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3, device=x.device, dtype=x.dtype)
        x = f.grid_sample(x, f.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
        h = self.stem(f.pixel_unshuffle(x, 2))
        h = f.channel_shuffle(h, 4).relu()
        h = f.pixel_shuffle(h, 2)
        y = self.up(h) + f.interpolate(f.avg_pool2d(x, 2), scale_factor=2, mode="bilinear", antialias=False)
        return f.smooth_l1_loss(y, goal) + f.huber_loss(y.flip(-1), goal.roll(1, -1), delta=0.5)


class Detections(nn.Module):
    """Focal loss, dice, boxes' overlap and margins: losses with masks and clamps."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score, self.box = nn.Linear(16, 32), nn.Linear(32, 8), nn.Linear(32, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.body(x).relu()
        p, target = self.score(h), f.one_hot(labels, 8).to(x.dtype)
        bce = f.binary_cross_entropy_with_logits(p, target, reduction="none", pos_weight=torch.full((8,), 2.0).to(x))
        pt = torch.exp(-bce)
        focal = (0.25 * (1 - pt) ** 2 * bce).mean()
        chance = p.sigmoid()
        dice = 1 - (2 * (chance * target).sum(-1) + 1) / (chance.sum(-1) + target.sum(-1) + 1)
        corner, size = self.box(h).sigmoid().chunk(2, -1)
        boxes = torch.cat([corner, corner + size], -1)
        other = boxes.roll(1, 1).detach()
        low, high = torch.max(boxes[..., :2], other[..., :2]), torch.min(boxes[..., 2:], other[..., 2:])
        inter = (high - low).clamp(min=0).prod(-1)
        areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (boxes, other)]
        keep = labels.ne(0)
        iou = torch.where(keep, inter / (sum(areas) - inter + 1e-6), torch.zeros_like(inter))
        margin = f.multi_margin_loss(p.flatten(0, 1), labels.flatten())
        return focal + dice.mean() + (1 - iou.sum() / keep.sum().clamp(min=1)) + margin


class Towers(nn.Module):
    """InfoNCE of two towers with a learned temperature, a queue of keys that is a buffer, a momentum encoder (MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 8), nn.Linear(16, 8)
        for parameter in self.key.parameters():
            parameter.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("queue", f.normalize(torch.randn(8, 16), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q = f.normalize(self.query(x), dim=-1)
        with torch.no_grad():
            k = f.normalize(self.key(y), dim=-1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], 1) * self.scale.clamp(max=4).exp()
        if self.training:
            self.queue[:, : k.shape[0]] = k.t()
            self.pointer.add_(k.shape[0]).remainder_(16)
        return f.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=x.device))


class Routed(nn.Module):
    """Tokens to their two best experts by masks and `index_add_`, balance and z losses."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.w1, self.w2 = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        flat = x.reshape(-1, 16)
        logits = self.gate(flat)
        weights, chosen = logits.softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        combine = torch.zeros_like(logits).scatter(1, chosen, weights)
        each = torch.einsum("nd,edf->enf", flat, self.w1).relu().square()
        out = torch.einsum("enf,efd,ne->nd", each, self.w2, combine)
        load = f.one_hot(chosen, 4).to(x.dtype).sum(1).mean(0)
        balance = 4 * (load * logits.softmax(-1).mean(0)).sum() + 1e-3 * logits.logsumexp(-1).square().mean()
        y = (flat + out).view_as(x).amax(1)
        return f.nll_loss(f.log_softmax(self.head(y), -1), labels) + 0.01 * balance


class Scans(nn.Module):
    """A selective scan by cumulative products and sums, a mask of sums of segments (Mamba 2), a gated delta rule."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.out = nn.Linear(16, 16 + 8 + 8 + 4), nn.Linear(16, 4)
        self.log_a, self.skip = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        n, t, _ = x.shape
        u, b, c, dt = self.proj(x).split([16, 8, 8, 4], -1)
        dt, u = f.softplus(dt), u.view(n, t, 4, 4)
        decay = (-self.log_a.exp() * dt).permute(0, 2, 1)
        total = decay.cumsum(-1)
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        segments = (total[..., :, None] - total[..., None, :]).masked_fill(~mask, -torch.inf).exp()
        y = torch.einsum("bln,bsn,bhls,bshp->blhp", c, b, segments, u * dt[..., None]) + u * self.skip[:, None]
        state = u.new_zeros(n, 4, 8, 4)
        kept = torch.cumprod(torch.sigmoid(dt), 1)
        for step in range(t):
            old = torch.einsum("bhnp,bn->bhp", state, b[:, step])
            new = (u[:, step] - old) * kept[:, step, :, None]
            state = state + torch.einsum("bhp,bn->bhnp", new, b[:, step] / t)
        return f.cross_entropy(self.out(y.flatten(2)[:, -1] + state.mean(2).flatten(1)), labels)


class Transformed(nn.Module):
    """`torch.func`: `vmap` over heads of an ensemble, per-sample weights from a hypernetwork."""

    def __init__(self) -> None:
        super().__init__()
        self.ensemble = nn.Parameter(torch.randn(4, 16, 8) * 0.3)
        self.hyper, self.out = nn.Linear(16, 8 * 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        members = torch.vmap(lambda w: torch.tanh(x @ w))(self.ensemble)
        own = self.hyper(x).view(-1, 8, 4)
        each = torch.vmap(lambda row, weight: row @ weight, in_dims=(0, 0))(members.mean(0), own)
        return f.cross_entropy(each + self.out(members.std(0)), labels)


class Rearranged(nn.Module):
    """Windows there and back as einops writes them: reshapes, permutations and reshapes; shifted, with a bias table."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 1)
        self.table = nn.Parameter(torch.randn(49, 2) * 0.1)
        rows = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = (rows[:, :, None] - rows[:, None, :]).permute(1, 2, 0) + 3
        self.register_buffer("index", apart[..., 0] * 7 + apart[..., 1], persistent=False)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        b, _, h, w = x.shape
        shifted = torch.roll(x, (-2, -2), (2, 3))
        qkv = self.qkv(shifted).reshape(b, 3, 2, 4, h // 4, 4, w // 4, 4)
        q, k, v = qkv.permute(1, 0, 4, 6, 2, 5, 7, 3).reshape(3, -1, 2, 16, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        y = ((q * 0.5) @ k.mT + bias).softmax(-1) @ v
        y = y.reshape(b, h // 4, w // 4, 2, 4, 4, 4).permute(0, 3, 6, 1, 4, 2, 5).reshape(b, 8, h, w)
        return f.l1_loss(x + torch.roll(self.proj(y), (2, 2), (2, 3)), goal)


IDIOMS = {
    "meta's llama": lambda: (MetaLlama(), words()),
    "spectral mixing": lambda: (SpectralMixing(), (torch.randn(4, 8, 8, 4), torch.randn(4, 8, 8, 4))),
    "complex recurrence": lambda: (ComplexNet(), (torch.randn(4, 8, 8), torch.randn(4, 8, 4))),
    "contractions": lambda: (Contractions(), (torch.randn(8, 16), torch.randn(8, 4))),
    "picks": lambda: (Picks(), labelled()),
    "branches": lambda: (Branches(), labelled()),
    "sandwich": lambda: (Sandwich(), labelled()),
    "volumes": lambda: (Volumes(), (torch.randn(4, 2, 4, 8, 8), torch.randint(4, (4,)))),
    "warped": lambda: (Warped(), (torch.randn(4, 3, 8, 8), torch.randn(4, 3, 8, 8))),
    "detections": lambda: (Detections(), (torch.randn(4, 8, 16), torch.randint(8, (4, 8)))),
    "towers": lambda: (Towers(), (torch.randn(8, 16), torch.randn(8, 16))),
    "routed": lambda: (Routed(), labelled()),
    "scans": lambda: (Scans(), labelled()),
    "transformed": lambda: (Transformed(), labelled_rows()),
    "rearranged": lambda: (Rearranged(), (torch.randn(4, 8, 8, 8), torch.randn(4, 8, 8, 8))),
}
