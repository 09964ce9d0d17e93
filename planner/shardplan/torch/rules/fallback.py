"""The fallback for operations without a rule: run on gathered operands by every process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import OpOverload

from shardplan.torch.gradients.moves import with_own_memory
from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.lineage import values_in
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.function_names import in_place


def replicated(engine: Engine, op: Op) -> Any:
    """An operation without a rule: every process does all of it. Operands that it changes in place are written. It is
    recorded where something had to be sent for it: of operands that all have, the plan does nothing less."""
    of = [value.key.signature for value in values_in([*op.args, *op.kwargs.values()])]
    signature = engine.graph.signatures.nonlinear(of)
    gathered, before_it = _Gathered(engine, signature), engine.record.unplanned.total()
    given = [gathered.collect(argument) for argument in op.args]
    named = {key: gathered.collect(argument) for key, argument in op.kwargs.items()}
    if engine.record.unplanned.total() > before_it:
        engine.record.without_rule[op.name] += 1
    before = [_version(value) for value in gathered.whole]
    filled = [gathered.fill(argument) for argument in given]
    if in_place(op.func) and isinstance(op.args[0], Value):
        filled[0] = with_own_memory(filled[0])
    made = op.func(*filled, **{key: gathered.fill(argument) for key, argument in named.items()})
    if made is None and in_place(op.func):  # `__setitem__` returns nothing
        made = filled[0]
    told = {a.number for place, a in enumerate(given) if isinstance(a, _Place) and _is_changed(op.func, place)}
    for number, (value, whole) in enumerate(zip(gathered.values, gathered.whole, strict=True)):
        if number in told or _version(whole) != before[number]:
            engine.write(value, whole)
    return _values(engine, made, signature)


@dataclass(frozen=True)
class _Place:
    """Stands for a value among arguments."""

    number: int


@dataclass
class _Gathered:
    """The values among the arguments of an operation, in order, and the same gathered. `signature`: of its results."""

    engine: Engine
    signature: int
    values: list[Value] = field(default_factory=list)
    whole: list[Value] = field(default_factory=list)

    def collect(self, argument: Any) -> Any:
        """An argument with places for values, which are gathered."""
        if isinstance(argument, Value):
            layout = self.engine.constant(argument.local, argument.shape).layout
            self.values.append(argument)
            whole = self.engine.convert(self.engine.read_whole(argument, self.signature), layout)
            if not whole.local.is_contiguous():  # as the program has it
                whole = replace(whole, local=whole.local.contiguous(), forms={})
            self.whole.append(whole)
            return _Place(len(self.values) - 1)
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.collect(item) for item in argument)
        return argument

    def fill(self, argument: Any) -> Any:
        """An argument with whole tensors in those places."""
        if isinstance(argument, _Place):
            return self.whole[argument.number].local
        if isinstance(argument, (tuple, list)):
            return type(argument)(self.fill(item) for item in argument)
        return argument


def _values(engine: Engine, result: Any, signature: int) -> Any:
    """Results with values in place of tensors."""
    if isinstance(result, torch.Tensor):
        shape = tuple(result.shape)
        return engine.result(result, engine.constant(result, shape).layout, shape, Key(signature, shape))
    if isinstance(result, (tuple, list)):
        items = [_values(engine, item, signature) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _version(value: Value) -> int:
    """Rises with every change in place."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - a traced tensor has no versions
        return 0 if value.local.is_inference() else value.local._version  # noqa: SLF001


def _is_changed(func: Any, position: int) -> bool:
    """Whether an operator of ATen says that it changes an argument."""
    if not isinstance(func, OpOverload):
        return False
    alias = func._schema.arguments[position].alias_info  # noqa: SLF001 - there is no public name
    return alias is not None and alias.is_write
