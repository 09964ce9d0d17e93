"""What ranks are told in the tests of refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch_twins
from safetensors.torch import save_file
from tiny_models import Tiny
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch_cases import mesh_of

import shardplan.torch
from shardplan.errors import ShardplanError
from shardplan.plan.types import Plan


def refused(tiny: Tiny, plan: Plan, what: str) -> str:
    """What is said of a call, a batch or a checkpoint that does not fit."""
    model, ids = torch_twins.twin(tiny), torch.tensor(tiny.inputs["input_ids"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            _CASES[what](model, ids, plan, mesh_of(plan), Path(folder) / "model.safetensors")
        except ShardplanError as problem:
            return str(problem).replace(str(Path(folder)), "FOLDER")
    return "nothing"


def _two_inputs(model: nn.Module, ids: Any, plan: Plan, mesh: Any, path: Path) -> None:
    del path
    run = model.forward
    model.forward = lambda input_ids, labels: run(input_ids) + labels  # type: ignore[method-assign]
    shardplan.torch.parallelize(model, plan, mesh)(ids, ids)


def _strange_placement(model: nn.Module, ids: Any, plan: Plan, mesh: Any, path: Path) -> None:
    del path
    strange = [Partial("avg"), Replicate()]
    batch = DTensor.from_local(ids, mesh, strange, run_check=False, shape=ids.shape, stride=ids.stride())
    shardplan.torch.parallelize(model, plan, mesh)(batch)


def _data_dependent(model: nn.Module, ids: Any, plan: Plan, mesh: Any, path: Path) -> None:
    del path
    run = model.forward
    model.forward = lambda input_ids: run(input_ids) if input_ids.sum() > 3 else input_ids  # type: ignore[method-assign]
    shardplan.torch.parallelize_exported(model, (ids,), plan, mesh)


def _checkpoint(change: Any) -> Any:
    def load(model: nn.Module, ids: Any, plan: Plan, mesh: Any, path: Path) -> None:
        del ids
        weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        change(weights)
        save_file(weights, path)
        meta = model.to("meta")
        shardplan.torch.load_(meta, plan, mesh, path)

    return load


def _inputs(batch: Any, *, local: bool) -> Any:
    def given(model: nn.Module, ids: Any, plan: Plan, mesh: Any, path: Path) -> None:
        del model, path
        shardplan.torch.inputs(plan, mesh, dict.fromkeys(batch, ids), local=local)

    return given


_CASES: dict[str, Any] = {
    "inputs of the model": _two_inputs,
    "placements of a batch": _strange_placement,
    "missing input": _inputs([], local=False),
    "shape of a part": _inputs(["input_ids"], local=True),
    "export": _data_dependent,
    "missing weight": _checkpoint(lambda weights: weights.pop("transformer.ln_f.bias")),
    "shape of a weight": _checkpoint(lambda weights: weights.update({"lm_head.weight": torch.zeros(7, 32)})),
    "left on meta": _checkpoint(len),
}
