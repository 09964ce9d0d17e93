"""A small GPT of torch's own layers, run by the exported fully_shard program without shardplan, beside one process."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 8, 6, 16, 4, 24


class Attention(nn.Module):
    """Queries with a norm of their own, and half as many key heads."""

    def __init__(self, norms: bool) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH)
        self.q_norm = nn.RMSNorm(size, eps=1e-6) if norms else nn.Identity()

    def forward(self, x):
        batch, length, _ = x.shape
        size = WIDTH // HEADS
        q, k, v = (one(x).view(batch, length, -1, size) for one in (self.q, self.k, self.v))
        q, k, v = self.q_norm(q).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(made.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, norms: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention(norms)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, tied: bool, norms: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(norms) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def made(tied: bool, norms: bool) -> Gpt:
    torch.manual_seed(7)
    return Gpt(tied, norms)


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


def loss_of(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().pow(2).mean() + logits.float().logsumexp(-1).mean()


def alone(tied: bool, norms: bool):
    """Logits and gradients of one process."""
    model = made(tied, norms)
    logits = model(ids())
    loss_of(logits).backward()
    return logits.detach().numpy(), {name: p.grad.numpy() for name, p in model.named_parameters()}


def exported(text: str, tied: bool, norms: bool):
    """The same by the exported program, which cannot import shardplan: this rank's rows of the logits, and whole
    gradients."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "shardplan"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "shardplan", None)
        return _run(text, tied, norms)


def _run(text: str, tied: bool, norms: bool):
    program = types.ModuleType("program")
    exec(compile(text, "program", "exec"), program.__dict__)
    mesh = program.make_mesh("cpu")
    model = program.parallelize(made(tied, norms), mesh)
    logits = model(program.my_rows(mesh, ids()))
    loss_of(logits).backward()
    whole = {
        name: p.grad.full_tensor().numpy() if hasattr(p.grad, "full_tensor") else p.grad.numpy()
        for name, p in model.named_parameters()
    }
    return logits.detach().numpy(), whole
