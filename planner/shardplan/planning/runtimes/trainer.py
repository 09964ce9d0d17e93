"""From roles of axes to the degrees of parallelism of a trainer (Megatron-LM, MaxText), which determine a
whole plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardplan.errors import Diagnostic, InfeasibleError, ShardplanError, error
from shardplan.graph.build import CostGraph
from shardplan.graph.experts import experts_of
from shardplan.graph.hidden_state import hidden_of
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.planning.parallelism import (
    CONTEXT,
    DATA,
    EXPERT,
    TENSOR,
    Parallelism,
    bad,
    check_model,
    restriction,
)
from shardplan.planning.reduction import Allowed
from shardplan.planning.runtimes.table import Role, Roles

_KINDS: dict[Role, str] = {
    "data": DATA, "shards": DATA, "expert": EXPERT, "context": CONTEXT, "tensor": TENSOR, "sequence": TENSOR,
}  # fmt: skip


def parallelism_of(roles: Roles, mesh: Mesh, *, sharded_optimizer: bool) -> Parallelism:
    """The degrees that these roles give. `sharded_optimizer`: the optimizer state is sharded over
    data-parallel ranks."""
    real = mesh.real_axes
    ways = {
        kind: math.prod(mesh.shape[axis] for axis in real if _KINDS[roles[axis]] == kind)
        for kind in (TENSOR, CONTEXT, EXPERT, DATA)
    }
    return Parallelism(
        tensor=ways[TENSOR],
        context=ways[CONTEXT],
        expert=ways[EXPERT],
        data=ways[DATA] * ways[EXPERT],
        zero=3 if any(roles[axis] == "shards" for axis in real) else 1 if sharded_optimizer else 0,
        sequence=any(roles[axis] == "sequence" for axis in real),
    )


def check_kind(model: Model, target: str) -> None:
    """Checks that a model is not mostly convolutions, and that its hidden state shows in normalisations: degrees of
    parallelism are terms of trainers of language models.

    Raises `ShardplanError` (`cannot-say`).
    """
    read = {name for operator in model.operators if "Conv" in operator.op_type for name in operator.inputs}
    sizes = {parameter.tensor: model.tensor(parameter.tensor).elements for parameter in model.parameters}
    if 2 * sum(size for name, size in sizes.items() if name in read) > sum(sizes.values()):
        hint = f"leave out --for {target}; --for jax and shardy say what is done to convolutions"
        summary = f"{target} trains language models, and '{model.name}' is mostly convolutions"
        raise ShardplanError(error("cannot-say", summary, hint=hint))
    if not hidden_of(model):
        summary = f"{target} trains language models, and no normalisation was recognised in '{model.name}'"
        detail = "it is not known which values are the hidden state between attention and MLP"
        hint = "export norms and attention as operators (opset 23), or plan --for jax or shardy"
        raise ShardplanError(error("cannot-say", summary, detail=detail, hint=hint))


def dividing(every: Sequence[Roles], mesh: Mesh, model: Model, options: PlanOptions) -> list[Roles]:
    """Those of `every` by whose degrees the model's sizes divide. Raises `InfeasibleError` if there are none, with the
    sizes that keep the nearest ones from it."""
    training = options.training
    faults = {
        roles: [
            *uneven(roles, mesh, model, options.microbatches),
            *refused(roles, mesh, model, options.target, training),
        ]
        for roles in every
    }
    if least := min(map(len, faults.values())):
        target = options.target
        summary = f"no plan that {target} can express: sizes of '{model.name}' do not divide over {mesh}"
        said = dict.fromkeys(each.summary for found in faults.values() if len(found) == least for each in found)
        hint = f"leave out --for {target}; or take a --mesh and a batch that divide them"
        raise InfeasibleError(error("infeasible", summary, detail="\n".join(said), hint=hint))
    return [roles for roles, found in faults.items() if not found]


def uneven(roles: Roles, mesh: Mesh, model: Model, microbatches: int) -> Sequence[Diagnostic]:
    """What of `model` does not divide by the degrees that these roles of the axes of `mesh` give."""
    try:
        check_model(parallelism_of(roles, mesh, sharded_optimizer=False), model, microbatches)
    except ShardplanError as uneven:
        return uneven.diagnostics
    return ()


def refused(roles: Roles, mesh: Mesh, model: Model, target: str, training: bool) -> Sequence[Diagnostic]:
    """Why the trainer refuses degrees that divide all sizes. Megatron-Core's layers of experts raise an error in
    training under tensor parallelism without sequence parallelism."""
    tensor = any(role == "tensor" for role, size in zip(roles, mesh.shape, strict=True) if size > 1)
    if target != "megatron" or not training or not tensor or not experts_of(model):
        return ()
    return (bad("Megatron-Core trains experts under tensor parallelism with --sequence-parallel only", ""),)


def trainer_limits(roles: Roles, built: CostGraph) -> Allowed:
    """The restriction to what a trainer does with these roles; `None` if the model's sizes do not divide."""
    mesh = built.cluster.mesh
    parallelism = parallelism_of(roles, mesh, sharded_optimizer=bool(built.updated))
    if uneven(roles, mesh, built.model, built.options.microbatches):
        first = next(iter(built.kept))
        return {("kept", first): np.zeros(len(built.kept[first]), dtype=np.bool_)}
    return restriction(parallelism, tuple(_KINDS[role] for role in roles), hidden_of(built.model))(built)
