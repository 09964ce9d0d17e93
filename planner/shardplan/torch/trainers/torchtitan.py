"""torchtitan: plans for its models, and a `parallelize_fn` that applies one in its own training loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.common import ComplexRoPE
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention, VarlenAttention
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.layout.mesh import Mesh
from shardplan.plan.types import Plan
from shardplan.torch.eager.parallelize import parallelize
from shardplan.torch.launch import mesh
from shardplan.torch.trainers.rows import exchange_rows, rows_of
from shardplan.torch.trainers.whole_init import initialise_whole


class RealRoPE(ComplexRoPE):  # type: ignore[misc]
    """`ComplexRoPE` in real numbers: a position's cosines and sines side by side, of which ONNX has the products."""

    @dataclass(kw_only=True, slots=True)
    class Config(ComplexRoPE.Config):  # type: ignore[misc]
        """As of `ComplexRoPE`."""

    def _precompute_cache(self) -> Tensor:
        """Shape (positions, head size): cosine and sine of every pair."""
        return torch.view_as_real(super()._precompute_cache()).flatten(1)

    @staticmethod
    def apply_rotary_emb(query: Tensor, key: Tensor, rope_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Every pair of neighbours turned, as `ComplexRoPE` turns it."""
        cosine, sine = rope_cache.unflatten(-1, (-1, 2)).unbind(-1)

        def turned(each: Tensor) -> Tensor:
            first, second = each.float().unflatten(-1, (-1, 2)).unbind(-1)
            pair = torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1)
            return pair.flatten(-2).type_as(each)

        return turned(query), turned(key)


def plannable(spec: ModelSpec) -> ModelSpec:
    """`spec` in a form that ONNX can express: causal scaled dot-product attention and rotary tables in real numbers.

    Unlike FlexAttention, this attention does not separate the documents of a row.
    """
    made = replace(spec, model=copy.deepcopy(spec.model))
    for _, found, parent, place in list(made.traverse((FlexAttention.Config, VarlenAttention.Config))):
        _put(parent, place, ScaledDotProductAttention.Config(sharding_config=found.sharding_config))
    for _, found, parent, place in list(made.traverse(ComplexRoPE.Config)):
        _put(parent, place, RealRoPE.Config(**{each.name: getattr(found, each.name) for each in fields(found)}))
    return made


def _put(parent: Any, place: str | int, value: Any) -> None:
    if isinstance(place, int):
        parent[place] = value
    else:
        setattr(parent, place, value)


def example(config: Trainer.Config, processes: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model of `config` and the batch of all processes as its `Trainer` makes them, on the meta device, for
    `shardplan.torch.plan`. The model has to be `plannable`."""
    assert config.model_spec is not None, "the config has no model_spec"
    model_config = copy.deepcopy(config.model_spec.model)
    model_config.update_from_config(config=config)
    readers = _readers(ParallelDims.from_config(config.parallelism, processes))
    shape = (config.training.local_batch_size * readers, config.training.seq_len)
    with torch.device("meta"):
        model = model_config.build().to(TORCH_DTYPE_MAP[config.training.dtype])
        batch = {name: torch.zeros(shape, dtype=torch.long) for name in ("tokens", "positions")}
    return model, batch


def parallelize_fn(plan: Plan, *, strict: bool = True) -> Callable[..., nn.Module]:
    """The `parallelize_fn` of a `ModelSpec` that runs its model under `plan`: `replace(spec, parallelize_fn=...)`.

    torchtitan's loop stays as it is: every process reads rows of its own, and is given the logits of its rows for its
    loss. `strict`: as in `shardplan.torch.parallelize`.
    """

    def apply(
        model: nn.Module,
        *,
        parallel_dims: ParallelDims,
        training: Any,
        parallelism: Any,
        compile_config: Any,
        ac_config: Any,
        dump_folder: str,
    ) -> nn.Module:
        """Raises `ShardplanError` (`not-titan`) for what a plan cannot go with, and as `parallelize`."""
        faults = _faults(plan.mesh, parallel_dims, training, parallelism, compile_config, ac_config)
        if faults:
            raise ShardplanError(*faults)
        devices = mesh(plan)
        modules = {module: type(module) for module in model.modules()}
        parallelize(model, plan, devices, strict=strict)
        initialise_whole(model, modules)
        if ac_config is not None:
            ac_config.build(dump_folder=dump_folder).apply(model)
        _compute_logits_inside(model)
        exchange_rows(model, plan, devices, _readers(parallel_dims))
        wanted = TORCH_DTYPE_MAP[training.mixed_precision_param]
        if wanted != TORCH_DTYPE_MAP[training.dtype]:
            model.forward = torch.autocast(devices.device_type, wanted)(model.forward)
        return model

    return apply


def _readers(dims: ParallelDims) -> int:
    """How many processes read rows of their own."""
    return int(dims.dp_replicate * dims.dp_shard)


def _faults(
    mesh: Mesh, dims: ParallelDims, training: Any, parallelism: Any, compiled: Any, checkpoints: Any
) -> list[Diagnostic]:
    """What of the config a plan does not go with."""
    asked = {
        "parallelism.context_parallel_degree": dims.cp,
        "parallelism.pipeline_parallel_degree": dims.pp,
        "parallelism.expert_parallel_degree": dims.ep,
    }
    found = [
        _fault(f"{name} is {value}", "leave it at 1: the plan says what is split")
        for name, value in asked.items()
        if value > 1
    ]
    if rows_of(mesh, _readers(dims)) is None:
        allowed = ", ".join(str(mesh.ways(range(count))) for count in range(len(mesh) + 1))
        summary = f"{_readers(dims)} groups of processes read rows of their own, the plan's mesh is {mesh}"
        found.append(_fault(summary, f"set data_parallel_shard_degree to one of {allowed}"))
    if dims.tp > 1 and parallelism.spmd_backend != "partial_dtensor":
        hint = "leave it at 1, or set spmd_backend to 'partial_dtensor', whose loss takes whole logits"
        found.append(_fault(f"parallelism.tensor_parallel_degree is {dims.tp}", hint))
    if not training.disable_cuda_graphs:
        found.append(_fault("CUDA graphs are on", "set training.disable_cuda_graphs"))
    if compiled.enable and "model" in compiled.components:
        found.append(_fault("compile.components has the model", "compile the loss alone"))
    if checkpoints is not None and not isinstance(checkpoints, FullAC.Config):
        hint = "set activation_checkpoint to FullAC.Config(...) or None"
        found.append(_fault(f"activation_checkpoint is {type(checkpoints).__qualname__}", hint))
    return found


def _fault(summary: str, hint: str) -> Diagnostic:
    return error("not-titan", f"torchtitan's config does not go with a plan: {summary}", hint=hint)


def _compute_logits_inside(model: nn.Module) -> None:
    """Refuse what torchtitan only asks of a model later, when it makes the loss."""

    def check(module: nn.Module, args: Any) -> None:
        del args
        if getattr(module, "_skip_lm_head", False):
            hint = "set loss=CrossEntropyLoss.Config(...): the plan splits logits as it splits the rest"
            raise ShardplanError(_fault("ChunkedLossWrapper computes logits outside of the model", hint))

    model.register_forward_pre_hook(check)
