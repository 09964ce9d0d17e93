"""Binary search in sorted values: `searchsorted` and `bucketize`."""

from __future__ import annotations

from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Dims, Value
from shardplan.torch.rules.elementwise import as_value


def searched(engine: Engine, op: Op) -> Value:
    """The place of every value among edges, which are the last dim of their operand and whole; one row of edges for
    all, or one for each row of values. Values may be split. Raises `NotImplementedError` for a number, or a sorter."""
    names = ("input", "boundaries") if op.name == "bucketize" else ("boundaries", "input")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    edges, sought = given.pop("boundaries", given.pop("sorted_sequence", None)), given.pop("input", None)
    if not isinstance(sought, (Value, torch.Tensor)) or given.get("sorter") is not None:
        raise NotImplementedError("a number, or a sorter")
    operands = [as_value(engine, edges), as_value(engine, sought)]
    edge, value = operands
    alone = edge.rank == 1
    own: Dims = tuple((f"x{dim}",) for dim in range(value.rank))
    lead: Dims = () if alone else own[:-1]
    sizes = {f"x{dim}": size for dim, size in enumerate(value.shape)} | {"edge": edge.shape[-1]}
    key = Key(engine.graph.signatures.nonlinear([each.key.signature for each in operands]), value.shape)

    def run(locals_: list[Any], _: Any) -> Any:
        return torch.searchsorted(locals_[0].contiguous(), locals_[1].contiguous(), **given)

    call = Call(operands, [(*lead, ("edge",)), own], [own], [value.shape], [key], sizes, run, frozenset({"edge"}))
    call.integer = True
    return engine.run(call)[0]
