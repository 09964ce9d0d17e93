"""Whether a plan speaks of exactly the operators, tensors and parameters of a model: a digest can be copied."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from shardplan.errors import ShardplanError, error
from shardplan.model.types import Model
from shardplan.plan.types import Plan, TensorDecision

_MOST_SHOWN = 5


def require_agreement(plan: Plan, model: Model, file: str | None = None) -> None:
    """Raise `ShardplanError` (`inconsistent-plan`) where `plan`, on one mesh, names other things than `model` has."""
    found = list(disagreements(plan, model))
    if found:
        more = [f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
        raise ShardplanError(
            error(
                "inconsistent-plan",
                f"the plan does not speak of what the model '{model.name}' has",
                detail="\n".join([*found[:_MOST_SHOWN], *more]),
                hint="solve again; the plan file may have been edited",
                file=file,
            )
        )


def disagreements(plan: Plan, model: Model) -> Iterator[str]:
    """What the plan says otherwise than the model, one sentence each."""
    yield from _operators(plan, model)
    decided = {tensor.name: tensor for tensor in plan.tensors}
    for name, tensor in model.tensors.items():
        if tensor.role != "constant" and name not in decided:
            yield f"the tensor '{name}' of the model is not in the plan"
    for name, decision in decided.items():
        known = model.tensors.get(name)
        if known is None:
            yield f"the model has no tensor '{name}'"
        elif (known.shape, known.dtype) != (decision.shape, decision.dtype):
            yield (
                f"the tensor '{name}' is {_typed(decision.shape, decision.dtype)} in the plan and "
                f"{_typed(known.shape, known.dtype)} in the model"
            )
    yield from _parameters(decided, model)


def _operators(plan: Plan, model: Model) -> Iterator[str]:
    for one, other in zip_longest(plan.operators, model.operators):
        if other is None:
            yield f"the model has no operator '{one.name}'"
        elif one is None:
            yield f"the operator '{other.name}' of the model is not in the plan"
        elif (one.name, one.op_type) != (other.name, other.kind):
            planned, known = f"'{one.name}' ({one.op_type})", f"'{other.name}' ({other.kind})"
            yield f"the plan has the operator {planned} where the model has {known}"
        elif (one.inputs, one.outputs) != (other.inputs, other.outputs):
            yield f"the operator '{one.name}' reads or makes other tensors in the model"
        else:
            continue
        return  # all that follow are shifted


def _parameters(decided: dict[str, TensorDecision], model: Model) -> Iterator[str]:
    known = {parameter.tensor: parameter for parameter in model.parameters}
    for name, decision in decided.items():
        parameter = known.get(name)
        if (parameter is None) != (decision.role != "parameter"):
            yield f"the tensor '{name}' is a parameter in {'the model' if parameter else 'the plan'} alone"
        elif parameter is not None:
            said = (decision.checkpoint, decision.onnx, decision.perm, decision.aliases)
            if said != (parameter.name, parameter.onnx, parameter.perm, parameter.aliases):
                what = "another name, other aliases or another order of dims"
                yield f"the parameter '{parameter.name}' has {what} in the plan"


def _typed(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
