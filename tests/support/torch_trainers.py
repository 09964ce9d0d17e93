"""What ranks do in the tests of training loops and checkpoints under plans."""

from __future__ import annotations

import contextlib
import copy
import errno
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_twins
from safetensors.torch import load_file
from tiny_models import Tiny
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan


def loop(tiny: Tiny, plan: Plan, kind: str, fused: bool = False, steps: int = 2) -> tuple[float, float]:
    """Train as `kind` says under `plan`, and the same in one process: the largest difference of what the loop reports
    (losses, norms) and of a parameter afterwards."""
    model, reference = torch_twins.twin(tiny, fused=fused), torch_twins.twin(tiny, fused=fused)
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    ids = torch.tensor(tiny.inputs["input_ids"])
    ours, theirs = _told(model, ids, kind, steps), _told(reference, ids, kind, steps)
    found, wanted = shardplan.torch.full_state_dict(model), reference.state_dict()
    assert found.keys() == wanted.keys()
    told = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    return told, _difference(found, wanted)


def optimizers(tiny: Tiny, plan: Plan) -> dict[str, str]:
    """What is said of the first step of an optimizer that cannot run under a plan, and of one that can; and of
    the same over a model of one process."""
    made = {
        "SparseAdam": torch.optim.SparseAdam,
        "SGD": lambda held: torch.optim.SGD(held, 0.1, foreach=True),
    }
    model, alone = torch_twins.twin(tiny), torch_twins.twin(tiny)
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    found = {}
    for name, make in made.items():
        make(list(alone.parameters())).step(lambda: 0.0)
        try:
            make(list(model.parameters())).step(lambda: 0.0)
            found[name] = ""
        except ShardplanError as problem:
            found[name] = str(problem).split(":")[0] + str(problem).split(":")[1]
    return found


def other_shapes(tiny: Tiny, plan: Plan) -> tuple[float, list[str]]:
    """The largest error of logits of half of every sequence, and of more rows than the plan is for, where it need not
    be kept to; what is said where it is, of half of every sequence, and of half of the rows."""
    model, strict, reference = (torch_twins.twin(tiny, fused=True) for _ in range(3))
    shardplan.torch.parallelize(model, plan, mesh_of(plan), strict=False)
    shardplan.torch.parallelize(strict, plan, mesh_of(plan))
    ids, error, said = torch.tensor(tiny.inputs["input_ids"]), 0.0, []
    for batch in (ids, ids[:, :8], torch.cat([ids, ids]), ids[:1], ids):
        error = max(error, (_whole(model(batch)) - reference(batch)).abs().max().item())
    for batch, name in ((ids[:, :8], "half"), (ids[:2], "fewer rows"), (ids[:1], "one row")):
        try:
            strict(batch)
            said.append(name)
        except ShardplanError as problem:
            said.append(str(problem))
    return error, said


def _told(model: nn.Module, ids: Tensor, kind: str, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-4, fused=kind == "fused optimizer")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1, enabled=kind in {"scaler", "overflow"})
    found = []
    for step in range(steps):
        for number in range(2 if kind == "accumulation" else 1):
            batch = ids.roll(number + step, 0)[: 2 if kind == "fewer rows" and step else None]
            with torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else contextlib.nullcontext():
                loss = _loss(model(batch), batch)
            loss = loss * float("inf") if kind == "overflow" and not step else loss
            scaler.scale(loss).backward()
            found += [] if kind == "overflow" and not step else [loss.item()]
        scaler.unscale_(optimizer)
        if kind == "clipping":
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            found.append(_whole(norm).item())
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
        optimizer.zero_grad()
        found += _beside(model, ids, kind)
    return found


def _beside(model: nn.Module, ids: Tensor, kind: str) -> list[float]:
    """What loops do between steps: evaluate in inference mode, and a copy with other weights, which leaves the model
    as it is."""
    if kind == "inference mode":
        with torch.inference_mode():
            return [_loss(model(ids), ids).item()]
    if kind == "another weight":
        *_, norm = (module for module in model.modules() if getattr(module, "weight", torch.ones(1, 1)).ndim == 1)
        norm.weight = nn.Parameter(torch.full(norm.weight.shape, 0.5))
    if kind != "copy":
        return []
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
        return [_loss(other(ids), ids).item(), _loss(model(ids), ids).item()]


def _loss(logits: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(_whole(logits).float().flatten(0, 1), ids.roll(-1, 1).flatten())


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max((found[name] - wanted[name]).abs().max().item() for name in wanted)


def checkpoint(tiny: Tiny, plan: Plan, other: Plan, folder: Path, fused: bool = False) -> dict[str, float]:
    """Train a step under `plan`, save, read under `other` and in one process. Differences of weights, and of weights
    after one more step with the optimizer state that was read."""
    ids = torch.tensor(tiny.inputs["input_ids"])
    model = torch_twins.twin(tiny, fused=fused)
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-4)
    _step(model, optimizer, ids)
    saved = shardplan.torch.full_state_dict(model)
    shardplan.torch.save_checkpoint(folder, model, optimizer)
    shardplan.torch.save(model, folder / "model.safetensors")
    _step(model, optimizer, ids)
    after = shardplan.torch.full_state_dict(model)

    again = torch_twins.twin(tiny, fused=fused)
    for parameter in again.parameters():
        nn.init.zeros_(parameter)
    shardplan.torch.parallelize(again, other, mesh_of(other))
    optimizer = torch.optim.AdamW(again.parameters(), 1e-3, eps=1e-4)
    shardplan.torch.load_checkpoint(folder, again, optimizer)
    read = shardplan.torch.full_state_dict(again)
    _step(again, optimizer, ids)
    found = {
        "another mesh": _difference(read, saved),
        "another mesh, a step later": _difference(shardplan.torch.full_state_dict(again), after),
        "safetensors": _difference({**saved, **load_file(folder / "model.safetensors")}, saved),
    }
    if dist.get_rank() == 0:
        alone = {"model": {name: torch.zeros_like(tensor) for name, tensor in saved.items()}}
        dcp.load(alone, checkpoint_id=folder, no_dist=True)
        found["one process"] = _difference(alone["model"], saved)
    dist.barrier()
    return found


def saved_badly(tiny: Tiny, plan: Plan, folder: Path) -> tuple[str, str]:
    """What is said where weights cannot be written: where a file stands in the way, and where the disk fills up."""
    model = torch_twins.twin(tiny)
    shardplan.torch.parallelize(model, plan, mesh_of(plan))
    write, said = safetensors.torch.save_file, []

    def full(weights: Any, path: Path, *given: Any) -> None:
        write(weights, path, *given)
        path.write_bytes(path.read_bytes()[:99])
        raise OSError(errno.ENOSPC, "No space left on device")

    for name, writer in (("file/model.safetensors", write), ("model.safetensors", full)):
        safetensors.torch.save_file = writer
        try:
            shardplan.torch.save(model, folder / name)
        except ShardplanError as problem:
            said.append(str(problem))
        finally:
            safetensors.torch.save_file = write
    return said[0], said[1]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> None:
    _loss(model(ids), ids).backward()
    optimizer.step()
    optimizer.zero_grad()


class Samples(torch.utils.data.Dataset):
    """Rows of numbers; `read` is what has been read of them."""

    def __init__(self, count: int, seq: int) -> None:
        self.rows, self.read = torch.arange(count * seq).reshape(count, seq), []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        return {"input_ids": self.rows[index], "number": index}


def read_batches(plan: Plan, order: list[int], shape: tuple[int, int]) -> tuple[list[Any], list[int], int]:
    """Whole batches that a data loader gives, with the numbers of their samples, which are none of the plan's inputs;
    the samples that this rank has read, and the loader's length."""
    data = Samples(len(order), shape[1])
    loader = shardplan.torch.data_loader(plan, mesh_of(plan), data, sampler=order)
    found = [(batch["input_ids"].full_tensor(), batch["number"].full_tensor()) for batch in loader]
    return found, data.read, len(loader)


def given_batches(tiny: Tiny, plan: Plan) -> tuple[list[str], dict[str, str]]:
    """What is wrong of batches that `inputs` and `microbatches` give, with targets and other things beside, whole and
    with fewer rows; and what is said of batches that they refuse."""
    mesh, ids = mesh_of(plan), torch.tensor(tiny.inputs["input_ids"])
    model = shardplan.torch.parallelize(torch_twins.twin(tiny), plan, mesh)
    wrong = []
    for count in (len(ids), len(ids) // 2):
        batch = {"input_ids": ids[:count], "targets": ids[:count] + 1, "shares": torch.arange(7.0), "of": "a text"}
        found = shardplan.torch.inputs(plan, mesh, batch)
        mine = {name: each.to_local() for name, each in found.items() if isinstance(each, DTensor)}
        again = shardplan.torch.inputs(plan, mesh, {**mine, "of": "a text"}, local=True)
        for name, each in batch.items():
            same = [_whole(given[name]) for given in (found, again)]
            if any(one != each if name == "of" else not torch.equal(one, each) for one in same):
                wrong.append(f"{name} of {count}")
        everywhere = [Replicate()] * 2
        batch = {"input_ids": found["input_ids"].redistribute(placements=everywhere), "targets": ids[:count] + 1}
        wrong += [
            f"microbatch of {count}"
            for part in shardplan.torch.microbatches(model, batch | {"of": "a text"})
            if not torch.equal(_whole(part["targets"]), _whole(part["input_ids"]) + 1) or part["of"] != "a text"
        ]
    refused = {
        "rows": lambda: shardplan.torch.inputs(plan, mesh, {"input_ids": ids[:1]}),
        "a microbatch": lambda: shardplan.torch.microbatches(model, {"input_ids": ids[:4]}),
        "no rows": lambda: model(ids[:0]),
        "a tensor": lambda: shardplan.torch.inputs(plan, mesh, ids),
        "arguments": lambda: shardplan.torch.inputs(plan, mesh, (ids,)),
        "microbatches": lambda: shardplan.torch.microbatches(model, (ids,)),
        "a list": lambda: shardplan.torch.inputs(plan, mesh, {"input_ids": ids.tolist()}),
        "samples": lambda: next(iter(shardplan.torch.data_loader(plan, mesh, torch.utils.data.TensorDataset(ids)))),
        "shuffled": lambda: shardplan.torch.data_loader(plan, mesh, Samples(4, 4), shuffle=True),
        "a path": lambda: shardplan.torch.parallelize(torch_twins.twin(tiny), "gpt.plan.json", mesh),
        "another order": lambda: shardplan.torch.parallelize(plan, torch_twins.twin(tiny), mesh),
        "no plan": lambda: shardplan.torch.mesh(model),
        "no mesh": lambda: shardplan.torch.parallelize(torch_twins.twin(tiny), plan, None),
    }
    said = {}
    for name, call in refused.items():
        try:
            said[name] = f"nothing: {call()}"
        except ShardplanError as problem:
            said[name] = str(problem)
    return wrong, said
