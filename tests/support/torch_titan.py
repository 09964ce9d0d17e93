"""A model that draws its weights and reads its rows as torchtitan's do, and what ranks do with it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan
from shardplan.torch.trainers.rows import exchange_rows
from shardplan.torch.trainers.whole_init import initialise_whole

BATCH, SEQ, WIDTH = 8, 4, 8


class Drawn(nn.Linear):
    """As torchtitan's modules, which draw their own parameters; `skips`: one whose weight another one draws."""

    def __init__(self, rows: int, columns: int, *, skips: bool = False) -> None:
        super().__init__(columns, rows, bias=False)
        self.skips = skips

    def _init_self_parameters(self) -> None:
        if not self.skips:
            nn.init.trunc_normal_(self.weight, std=0.3)


def _angles() -> Tensor:
    """Rows of a table that every block has for itself, as torchtitan's have their cosines and sines."""
    return torch.arange(2.0 * SEQ * WIDTH).view(SEQ, -1).cos()


class Model(nn.Module):
    """A packed weight of unequal parts, which torch may have to keep apart, and a tied table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = Drawn(16, WIDTH, skips=True), Drawn(16, WIDTH)
        self.table.weight = self.head.weight
        for number in range(2):
            self.register_buffer(f"angles{number}", _angles(), persistent=False)
        self.packed, self.wide, self.out = Drawn(4 * WIDTH, WIDTH), Drawn(WIDTH, 2 * WIDTH), Drawn(WIDTH, WIDTH)

    def init_weights(self) -> None:
        self.table.weight = self.head.weight  # torchtitan ties again: moving from the meta device has untied them
        self.angles0, self.angles1 = _angles(), _angles()
        for module in (self.table, self.packed, self.wide, self.out, self.head):
            module._init_self_parameters()

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        x = functional.embedding(tokens, self.table.weight)
        for angles in (self.angles0, self.angles1) if positions is not None else ():
            sine, cosine = functional.embedding(positions, angles).chunk(2, -1)
            x = x * cosine + torch.tanh(x) * sine
        wide, gate, up = self.packed(x).split((2 * WIDTH, WIDTH, WIDTH), -1)
        return self.head(self.wide(torch.relu(wide)) + self.out(gate * up) + x)


def batch() -> dict[str, Tensor]:
    tokens = torch.randint(0, 16, (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
    return {"tokens": tokens, "positions": torch.arange(SEQ).expand(BATCH, SEQ).contiguous()}


@functools.cache
def made() -> Model:
    model = Model()
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights()
    return model


def train(plan: Plan, readers: int) -> dict[str, float]:
    """A step of rows of one's own under `plan`, of a model that is drawn under it: how far it is from one process."""
    with torch.device("meta"):
        model = Model()
    classes = {module: type(module) for module in model.modules()}
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    initialise_whole(model, classes)
    exchange_rows(model, plan, mesh_of(plan), readers)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights()
    alone, whole = made(), batch()
    drawn = shardplan.torch.full_state_dict(model)
    rank, rows = torch.distributed.get_rank() * readers // 4, BATCH // readers
    own = {name: tensor[rank * rows : (rank + 1) * rows] for name, tensor in whole.items()}
    wanted, found = alone(**whole), model(own["tokens"], positions=own["positions"])
    alone.zero_grad()
    wanted.square().sum().backward()
    found.square().sum().backward()
    gradients = {
        name: _difference(alone.get_parameter(name).grad, parameter.grad.full_tensor())
        for name, parameter in model.named_parameters()
        if "parametrizations" not in name
    }
    return {
        "drawn": max(_difference(tensor, drawn[name]) for name, tensor in alone.state_dict().items()),
        "results": _difference(wanted[rank * rows : (rank + 1) * rows], found),
        **gradients,
    }


def selecting(plan: Plan) -> str:
    """What is said of a model that is run by a checkpoint which saves some results."""
    model = Model()
    forward = model.forward
    chosen = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    model.forward = lambda **given: checkpoint(forward, use_reentrant=False, context_fn=chosen, **given)
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    try:
        model(**batch())
    except ShardplanError as problem:
        return str(problem)
    return ""


def _difference(wanted: Any, found: Any) -> float:
    return float((wanted - found).abs().max() / wanted.abs().max()) if wanted.shape == found.shape else float("inf")
