"""The time spans in which the values of a plan are in memory, from its file alone.

A saved activation is held from its making to the backward of its maker, any other value until its last read; gradients
of activations from the backward of the last reader to that of the maker. With n operators, moment i < n is the forward
of operator i, and 2 n - 1 - i its backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.plan.types import Plan, TensorDecision

_WEIGHTS = frozenset({"parameter", "constant"})


def spans(plan: Plan) -> Iterator[tuple[int, int, TensorDecision, bool]]:
    """(first moment, moment after the last, tensor, whether it is the gradient); 2 n - 1 - i is the backward of i.

    Empty for a plan without operators, such as that of a model that returns its inputs: it has no moments.
    """
    count = len(plan.operators)
    if not count:
        return
    training = plan.model.get("mode") == "training"
    maker = {name: index for index, operator in enumerate(plan.operators) for name in operator.outputs}
    reader = {name: index for index, operator in enumerate(plan.operators) for name in operator.inputs}
    for tensor in plan.tensors:
        if tensor.role in _WEIGHTS or not tensor.bytes_per_device:
            continue
        start = maker.get(tensor.name, 0)
        last = count - 1 if tensor.role == "output" else reader.get(tensor.name, start)
        if training and tensor.saved:
            yield start, 2 * count - start, tensor, False
        else:
            yield start, last + 1, tensor, False
        if training and tensor.name in maker and tensor.dtype.startswith(("float", "bfloat", "double")):
            yield 2 * count - 1 - last, 2 * count - start, tensor, True
