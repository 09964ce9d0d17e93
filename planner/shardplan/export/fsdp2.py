"""A plan as a Python module that uses torch alone: `parallelize_module` for columns and rows, `fully_shard` for data
parallelism, with or without weights in pieces.

Sources: torch 2.13, `torch.distributed.tensor.parallel` (`ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`) and
`torch.distributed.fsdp.fully_shard`, whose mesh of two dims is hybrid sharding: (replicas, pieces).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardplan.errors import Diagnostic, warning
from shardplan.escapes import quoted
from shardplan.export.modules import ModuleStyle, OneAxis, one_axis, wildcards
from shardplan.export.specs import cannot_say, plain, solve_for
from shardplan.export.types import Exported
from shardplan.plan.types import Plan
from shardplan.planning.runtimes.facts import owner_of, wildcard

_HEAD = '''"""{model} on {mesh}: torch's fully_shard and parallelize_module.

    mesh = make_mesh("cuda")              # in every process, after torch.distributed.init_process_group
    model = parallelize(model, mesh)
    loss = model(my_rows(mesh, batch))    # the mean over a rank's rows; gradients are averaged over ranks

Made by shardplan; needs torch alone.
"""

import re

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

MESH = {sizes}
"""Ranks are counted row-major. replicate: the batch is split, weights are whole; shard: the batch is split, weights are
in pieces; tensor: modules are split."""

'''
_TAIL = '''

def make_mesh(device_type):
    """The mesh over all processes, counted row-major."""
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def parallelize(model, mesh):
    """`model`, built and the same in all processes, split as planned, in place."""
    if TENSOR_PLAN:
        _known(model, TENSOR_PLAN)
        parallelize_module(model, mesh["tensor"], {name: style() for name, style in TENSOR_PLAN.items()})
        for name, other in TIED:
            module, _, last = other.rpartition(".")
            if last in model.get_submodule(module)._parameters:
                model.get_submodule(module)._parameters[last] = model.get_parameter(name)
    if MESH["replicate"] * MESH["shard"] > 1:
        data = mesh["replicate", "shard"]
        for name, module in list(model.named_modules()):
            if any(_matches(name, pattern) for pattern in UNITS):
                fully_shard(module, mesh=data, reshard_after_forward=GATHERED_AGAIN)
        fully_shard(model, mesh=data)
    return model


def my_rows(mesh, batch):
    """The rows of `batch`, a tensor that all processes have, that this rank computes."""
    parts = MESH["replicate"] * MESH["shard"]
    return torch.chunk(batch, parts)[mesh.get_rank() // MESH["tensor"]]


def _matches(name, pattern):
    return re.fullmatch(re.escape(pattern).replace(r"\\*", r"\\d+"), name) is not None


def _known(model, plan):
    names = [name for name, _ in model.named_modules()]
    missing = [pattern for pattern in plan if not any(_matches(name, pattern) for name in names)]
    if missing:
        raise ValueError(f"the model has no modules {', '.join(missing)}")
'''
_STYLES: Mapping[str, str] = {
    "column": "ColwiseParallel()",
    "column gathered": "ColwiseParallel(output_layouts=Replicate())",
    "row": "RowwiseParallel()",
    "row split": "RowwiseParallel(input_layouts=Replicate())",
    "vocabulary": "RowwiseParallel(input_layouts=Replicate())",
    "width gathered": "ColwiseParallel(output_layouts=Replicate())",
}
_ROLES = ("replicate", "shard", "tensor")


def export_fsdp2(plan: Plan) -> Exported:
    """The module. Refused is what a `tp_plan` cannot express; weights may be kept in pieces and gathered for use."""
    found = one_axis(plan, gathers=True)
    reasons: list[str] = []
    modules = wildcards(found.modules, reasons)
    rules: dict[str, str] = {}
    for pattern, module in modules.items():
        style, why = _style(module)
        if why:
            reasons.append(f"'{module.name}' {why}")
        elif style:
            rules[pattern] = style
    sizes, disordered = _sizes(plan, found)
    refused = cannot_say(
        "fully_shard and parallelize_module",
        "what this plan does",
        dict.fromkeys([*reasons, *found.refused, *disordered]),
        solve_for("fsdp2"),
    )
    refused += _warnings(plan, found)
    head = _HEAD.replace("{model}", plain(plan.model.get("name", "a model"))).replace("{mesh}", plain(plan.mesh))
    text = head.replace("{sizes}", "{" + ", ".join(f"{quoted(axis)}: {size}" for axis, size in sizes.items()) + "}")
    text += _section("TENSOR_PLAN", [f"{quoted(name)}: lambda: {style}" for name, style in rules.items()], "{}")
    text += _section("UNITS", map(quoted, _units(plan)), "[]")
    text += f"GATHERED_AGAIN = {_gathers_again(plan)}\n"
    text += _section("TIED", [f"({quoted(one)}, {quoted(other)})" for one, other in _tied(plan)], "[]")
    return Exported(text.rstrip("\n") + "\n" + _TAIL, tuple(refused))


def _section(name: str, entries: Iterable[str], brackets: str) -> str:
    lines = "".join(f"\n    {entry}," for entry in entries)
    return f"{name} = {brackets[0]}{lines}{chr(10) if lines else ''}{brackets[1]}\n"


def _style(module: ModuleStyle) -> tuple[str, str]:
    """The style of a module as Python, empty for one that stays as it is, and why there is none."""
    if module.style == "whole":
        return "", ""
    if module.style == "per head":
        return f"SequenceParallel(sequence_dim={module.dim}, use_local_output=True)", ""
    if module.experts:
        return "", "is a stack of experts that is cut, and styles are for nn.Linear and nn.Embedding"
    if module.transposed and module.style in {"column", "row"}:
        return "", "stores its weight as [in, out] (Conv1D), and styles are for nn.Linear"
    if module.segments:
        return "", f"is fused in segments of {list(module.segments)}, and styles cut it evenly"
    suffix = " gathered" if module.gathered else " split" if module.split_input else ""
    kind = f"{module.style}{suffix}"
    return (_STYLES[kind], "") if kind in _STYLES else ("", f"is an embedding cut by its {module.style} and kept so")


def _sizes(plan: Plan, found: OneAxis) -> tuple[dict[str, int], list[str]]:
    """The sizes of the program's mesh, and why ranks cannot be counted so."""
    names, real = plan.mesh.names, plan.mesh.real_axes
    roles = {
        axis: "tensor" if axis == found.axis else "shard" if names[axis] in found.in_pieces else "replicate"
        for axis in real
    }
    sizes = {role: plan.mesh.ways([axis for axis in real if roles[axis] == role]) for role in _ROLES}
    order = [roles[axis] for axis in real]
    if order == sorted(order, key=_ROLES.index):
        return sizes, []
    listed = ", ".join(f"{names[axis]} ({roles[axis]})" for axis in real)
    return sizes, [f"ranks are counted by {', '.join(_ROLES)}, and the mesh has {listed}"]


def _units(plan: Plan) -> list[str]:
    """The modules whose weights are gathered together: the blocks that repeat."""
    known = {tensor.checkpoint.rpartition(".")[0] for tensor in plan.tensors if tensor.role == "parameter"}
    names = [name for names, _ in plan.blocks for name in names]
    return list(dict.fromkeys(wildcard(name) for name in names if any(f"{k}.".startswith(f"{name}.") for k in known)))


def _gathers_again(plan: Plan) -> bool:
    """Whether weights that are gathered for use are freed after forward, and gathered again for backward."""
    return any(move.regather and move.kind == "prefetched" for move in plan.moves)


def _tied(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names of one weight in two modules, of which the second has to be made the first again."""
    for tensor in plan.tensors:
        if tensor.role == "parameter" and any(placement.is_shard for placement in tensor.layout.placements):
            for alias in tensor.aliases:
                if owner_of(alias) != alias and alias != tensor.checkpoint:
                    yield tensor.checkpoint, alias


def _warnings(plan: Plan, found: OneAxis) -> Iterator[Diagnostic]:
    """What is done, but not quite as the plan has it."""
    numbers = [plan.mesh.names.index(name) for name in found.in_pieces]
    whole = [
        tensor.checkpoint
        for tensor in plan.tensors
        if tensor.role == "parameter" and not all(tensor.layout.placements[axis].is_shard for axis in numbers)
    ]
    if numbers and whole:
        some = ", ".join(sorted(whole)[:3]) + (" ..." if len(whole) > 3 else "")
        yield warning("not-said", f"{some}: whole on every device in the plan; fully_shard cuts all weights")
