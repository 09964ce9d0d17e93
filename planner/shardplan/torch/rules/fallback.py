"""The fallback for operations without a rule: run on gathered operands by every process."""

from __future__ import annotations

from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value


def replicated(engine: Engine, op: Op) -> Any:
    """An operation without a rule: every process does all of it."""
    engine.record.without_rule[op.name] += 1
    leaves: list[Value] = []

    def collect(argument: Any) -> Any:
        if isinstance(argument, Value):
            leaves.append(argument)
            return _Place(len(leaves) - 1)
        if isinstance(argument, (tuple, list)):
            return type(argument)(collect(item) for item in argument)
        return argument

    given = [collect(argument) for argument in op.args]
    named = {key: collect(argument) for key, argument in op.kwargs.items()}
    plain = [engine.convert(value, engine.constant(value.local, value.shape).layout) for value in leaves]

    def fill(argument: Any) -> Any:
        if isinstance(argument, _Place):
            return plain[argument.number].local
        if isinstance(argument, (tuple, list)):
            return type(argument)(fill(item) for item in argument)
        return argument

    made = op.func(*[fill(argument) for argument in given], **{key: fill(item) for key, item in named.items()})
    signature = engine.graph.signatures.nonlinear([value.key.signature for value in leaves])

    def as_value(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            shape = tuple(result.shape)
            return engine.result(result, engine.constant(result, shape).layout, shape, Key(signature, shape))
        if isinstance(result, (tuple, list)):
            return type(result)(as_value(item) for item in result)
        return result

    return as_value(made)


class _Place:
    def __init__(self, number: int) -> None:
        self.number = number
