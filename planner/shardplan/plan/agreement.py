"""Whether a plan describes exactly the operators, tensors and parameters of a model; a matching digest alone may be a
copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardplan.errors import ShardplanError, error
from shardplan.graph.flow import Flow, trace
from shardplan.model.types import Model, Parameter
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.rules import model_rules

_MOST_SHOWN = 5


def require_agreement(plan: Plan, model: Model, file: str | None = None) -> None:
    """Raises `ShardplanError` (`inconsistent-plan`) if `plan`, on one mesh, describes other things than `model` has."""
    found = list(disagreements(plan, model))
    if found:
        more = [f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
        summary = f"the plan does not speak of what the model '{model.name}' has"
        raise inconsistent(summary, "\n".join([*found[:_MOST_SHOWN], *more]), file)


def inconsistent(summary: str, detail: str = "", file: str | None = None) -> ShardplanError:
    """The error about a plan that contradicts its model or itself."""
    hint = "solve again; the plan file may have been edited"
    return ShardplanError(error("inconsistent-plan", summary, detail=detail, hint=hint, file=file))


def disagreements(plan: Plan, model: Model) -> Iterator[str]:
    """The differences between the plan and the model, one sentence each: names, shapes, types, parameter names in
    checkpoint and file, their dims and aliases, operands and results of operators, and missing entries."""
    flow = trace(model, model_rules(model), training=plan.model.get("mode") == "training")
    parameters = {one.tensor: one for one in model.parameters}
    tensors = {name: _of_tensor(model, flow, name, parameters.get(name)) for name in flow.planned}
    yield from _compared("tensor", tensors, {one.name: _tensor_fields(one) for one in plan.tensors})
    operators = {
        one.name: {"place": place, "op": one.kind, "inputs": one.inputs, "outputs": one.outputs}
        for place, one in enumerate(model.operators)
    }
    said = {one.name: _operator_fields(place, one) for place, one in enumerate(plan.operators)}
    yield from _compared("operator", operators, said)


def _compared(what: str, model: Mapping[str, dict[str, Any]], plan: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield from (f"the {what} '{name}' of the model is missing" for name in model if name not in plan)
    yield from (f"the {what} '{name}' is none of the model's" for name in plan if name not in model)
    for name, facts in model.items():
        said = plan.get(name, facts)
        for key, fact in facts.items():
            if said[key] != fact:
                yield f"{key} of the {what} '{name}' is {_text(said[key])}, in the model {_text(fact)}"


def _of_tensor(model: Model, flow: Flow, name: str, parameter: Parameter | None) -> dict[str, Any]:
    tensor = model.tensor(name)
    return {
        "parameter": parameter is not None,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "checkpoint name": parameter.name if parameter else "",
        "initializer": parameter.onnx if parameter else "",
        "perm": parameter.perm if parameter else (),
        "aliases": parameter.aliases if parameter else (),
        "trainable": parameter is not None and name in flow.needs_grad,
    }


def _tensor_fields(said: TensorDecision) -> dict[str, Any]:
    return {
        "parameter": said.role == "parameter",
        "shape": said.shape,
        "dtype": said.dtype,
        "checkpoint name": said.checkpoint,
        "initializer": said.onnx,
        "perm": said.perm,
        "aliases": said.aliases,
        "trainable": said.trainable,
    }


def _operator_fields(place: int, said: OperatorDecision) -> dict[str, Any]:
    return {"place": place, "op": said.op_type, "inputs": said.inputs, "outputs": said.outputs}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, bool) or not isinstance(value, Iterable):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]"
