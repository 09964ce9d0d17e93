"""What does a step cost beside compute, under a plan and under torch's own tensor parallelism and FSDP2?

    python benchmarks/overhead.py [--layers 2] [--steps 20] [--profile]

A Llama so small that its products cost next to nothing runs on four gloo processes: forward, loss and backward. A line
for each way: milliseconds of processor time and of the clock for a step, of the slowest process. Megatron is the same
layout for `parallelize` and for DTensor; `--profile` shows where the time of `parallelize` goes, on the first process.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))


import shardplan
import shardplan.torch

HIDDEN, HEADS, FFN, VOCAB, BATCH, SEQ = 64, 8, 128, 256, 8, 32
COLUMNS, ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")

PLAN = Path(tempfile.gettempdir()) / "overhead.plan.json"
WAYS = (
    "one process", "DTensor Megatron", "FSDP2", "parallelize", "parallelize_exported", "parallelize_exported, inductor",
)  # fmt: skip


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(HIDDEN, HIDDEN, bias=False))
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Any) -> Any:
        batch, seq, _ = x.shape
        y = self.first(x)
        q, k, v = (
            linear(y).view(batch, seq, -1, HIDDEN // HEADS).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, seq, -1))
        y = self.second(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(VOCAB, HIDDEN), nn.RMSNorm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def planned(layers: int, path: Path) -> None:
    """Write the plan that does what `megatron` below does."""
    with torch.device("meta"):
        model, ids = Llama(layers), torch.zeros(BATCH, SEQ, dtype=torch.long)
    pins = [f"*.{name}={{gpu: n}}" for name in COLUMNS] + [f"*.{name}={{gpu: k}}" for name in ROWS]
    pins += ["embed.weight=replicate", "head.weight=replicate", "*norm.weight=replicate", "ids=replicate"]
    plan = shardplan.torch.plan(model, {"ids": ids}, "1x4", cluster="h100-dgx", pins=pins, effort="quick")
    shardplan.save(plan, path)


def model_of(kind: str, layers: int, plan: Any) -> nn.Module:
    """The model, run as `kind` says."""
    torch.manual_seed(0)
    model = Llama(layers)
    if kind == "DTensor Megatron":
        mesh = init_device_mesh("cpu", (4,))
        ways = {**dict.fromkeys(COLUMNS, ColwiseParallel()), **dict.fromkeys(ROWS, RowwiseParallel())}
        for layer in model.layers:
            parallelize_module(layer, mesh, ways)
    elif kind == "FSDP2":
        mesh = init_device_mesh("cpu", (4,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "parallelize":
        shardplan.torch.parallelize(model, plan, shardplan.torch.mesh(plan, "cpu"))
    elif kind.startswith("parallelize_exported"):
        ids, backend = torch.zeros(BATCH, SEQ, dtype=torch.long), "inductor" if "inductor" in kind else None
        mesh = shardplan.torch.mesh(plan, "cpu")
        return shardplan.torch.parallelize_exported(model, (ids,), plan, mesh, backend=backend)
    return model


def step(model: nn.Module, ids: Any) -> float:
    found = model(ids)
    whole = found.full_tensor() if hasattr(found, "full_tensor") else found
    loss = functional.cross_entropy(whole.flatten(0, 1), ids.roll(-1, 1).flatten())
    loss.backward()
    model.zero_grad(set_to_none=True)
    return float(loss.item())


def run(layers: int, steps: int, path: Path, *, profile: bool) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = shardplan.load(path)
    ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
    for kind in WAYS:
        model = model_of(kind, layers, plan)
        for _ in range(3):
            loss = step(model, ids)
        watch = cProfile.Profile() if profile and kind == "parallelize" and not dist.get_rank() else None
        best = [float("inf")] * 2
        for _ in range(3):
            dist.barrier()
            clock, processor = time.perf_counter(), time.process_time()
            if watch:
                watch.enable()
            for _ in range(steps):
                step(model, ids)
            if watch:
                watch.disable()
            took = torch.tensor([time.process_time() - processor, time.perf_counter() - clock])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            best = [min(one, float(other) / steps * 1e3) for one, other in zip(best, took, strict=True)]
        if not dist.get_rank():
            print(f"{kind:32} {best[0]:10.1f} ms {best[1]:10.1f} ms   loss {loss:.5f}", flush=True)
            if watch:
                pstats.Stats(watch).sort_stats("tottime").print_stats(35)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--plan", type=Path, default=PLAN, help="where the plan is written")
    given = parser.parse_args()
    if "RANK" in os.environ:
        run(given.layers, given.steps, given.plan, profile=given.profile)
        return
    planned(given.layers, given.plan)
    print(f"torch {torch.__version__}\n{'':32} {'processor':>13} {'clock':>13}")
    starter = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", __file__, *sys.argv[1:]]
    subprocess.run(starter, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
