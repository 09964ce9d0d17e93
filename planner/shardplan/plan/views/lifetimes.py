"""The time spans in which the values of a plan are in memory, from its file alone.

A saved activation is held from its making to the backward of its maker, any other value until its last read; gradients
of activations from the backward of the last reader to that of the maker. With n operators, moment i < n is the forward
of operator i, and 2 n - 1 - i its backward. A view of a weight that is not moved on the way is that weight.
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
    shown = _shown(plan)
    for tensor in plan.tensors:
        if tensor.role in _WEIGHTS or not tensor.bytes_per_device:
            continue
        start = maker.get(tensor.name, 0)
        last = count - 1 if tensor.role == "output" else reader.get(tensor.name, start)
        if tensor.name not in shown:
            end = 2 * count - start if training and tensor.saved else last + 1
            yield start, end, tensor, False
        if training and tensor.name in maker and tensor.dtype.startswith(("float", "bfloat", "double")):
            yield 2 * count - 1 - last, 2 * count - start, tensor, True


def _shown(plan: Plan) -> frozenset[str]:
    """Views of weights, and views of these, in the layouts in which the weights are kept. What takes no time is a
    view."""
    kept = {tensor.name: tensor.layout.forward for tensor in plan.tensors}
    held = {tensor.name for tensor in plan.tensors if tensor.role in _WEIGHTS}
    shown = set[str]()
    for operator in plan.operators:
        source = operator.inputs[0] if operator.inputs else ""
        if operator.compute_ns or source not in held:
            continue
        read = operator.reads[0]
        for name, made in zip(operator.outputs, operator.makes, strict=True):
            if read is None or made is None or name not in kept:
                continue
            if (read.forward, made.forward) == (kept[source], kept[name]):
                held.add(name)
                shown.add(name)
    return frozenset(shown)
