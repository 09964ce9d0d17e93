"""What a plan says its model's tensors, parameters and operators are, compared with the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardplan.graph.flow import Flow, trace
from shardplan.model.types import Model, Parameter
from shardplan.plan.types import OperatorDecision, Plan, TensorDecision
from shardplan.program.machine.pipeline import stage_models
from shardplan.rules import model_rules


def misdeclared(model: Model, plan: Plan) -> tuple[str, ...]:
    """Whatever `plan`, made for `model`, says of it that is not so, one sentence each: names, shapes, types, the names
    of parameters in checkpoint and file, their dims and aliases, what operators read and make, what is missing."""
    if plan.pipeline is None:
        return tuple(_in_one(model, plan))
    pairs = zip(stage_models(model, plan), plan.pipeline.stages, strict=True)
    return tuple(f"{stage.name}: {text}" for part, stage in pairs for text in _in_one(part, stage.plan))


def _in_one(model: Model, plan: Plan) -> Iterator[str]:
    flow = trace(model, model_rules(model), training=plan.model.get("mode") == "training")
    parameters = {one.tensor: one for one in model.parameters}
    tensors = {name: _of_tensor(model, flow, name, parameters.get(name)) for name in flow.planned}
    yield from _compared("tensor", tensors, {one.name: _said_of_tensor(one) for one in plan.tensors})
    operators = {
        one.name: {"op": one.kind, "inputs": one.inputs, "outputs": one.outputs} for one in model.operators
    }  # fmt: skip
    yield from _compared("operator", operators, {one.name: _said_of_operator(one) for one in plan.operators})


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
    is_output = name in model.outputs and tensor.role == "activation"
    return {
        "role": "output" if is_output else tensor.role,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "checkpoint name": parameter.name if parameter else "",
        "initializer": parameter.onnx if parameter else "",
        "perm": parameter.perm if parameter else (),
        "aliases": parameter.aliases if parameter else (),
        "trainable": parameter is not None and name in flow.needs_grad,
    }


def _said_of_tensor(said: TensorDecision) -> dict[str, Any]:
    return {
        "role": said.role,
        "shape": said.shape,
        "dtype": said.dtype,
        "checkpoint name": said.checkpoint,
        "initializer": said.onnx,
        "perm": said.perm,
        "aliases": said.aliases,
        "trainable": said.trainable,
    }


def _said_of_operator(said: OperatorDecision) -> dict[str, Any]:
    return {"op": said.op_type, "inputs": said.inputs, "outputs": said.outputs}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, bool) or not isinstance(value, Iterable):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]"
