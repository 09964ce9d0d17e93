"""The hidden state of a transformer: what lies between its attention and MLPs."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

from shardplan.graph.layer_parts import norms_of
from shardplan.model.types import Model, Operator

_SUMS = frozenset({"Add", "Dropout"})
"""Operators on the hidden state outside of attention and MLP, beside normalisations."""
_PRODUCTS = frozenset({"Gemm", "MatMul"})


@dataclass(frozen=True, slots=True)
class HiddenState:
    """`names`: the values that are the hidden state, or normalised; `read`: those that sums and normalisations read;
    `weights`: those that scale or shift it; `routing`: the products by which experts are chosen."""

    names: Set[str]
    read: Set[str]
    weights: Set[str]
    routing: Set[str]

    def cut_of(self, operator: Operator) -> int | None:
        """The dim of its second operand that tensor parallelism cuts in a product: of a product of the hidden state the
        columns, of one that is added to it the rows. None of other operators, and where both are so."""
        if operator.op_type not in _PRODUCTS or operator.outputs[0] in self.routing:
            return None
        is_column, is_row = operator.inputs[0] in self.names, operator.outputs[0] in self.read
        is_transposed = bool(operator.attributes.get("transB", 0))
        return None if is_column == is_row else int(is_column != is_transposed)


def hidden_of(model: Model) -> int:
    """The hidden size: the width that normalisations read most often, of sums where they read any: others may be of
    single heads. 0 if there are no normalisations."""
    sums = {model.tensor(one.outputs[0]).shape for one in model.operators if one.op_type == "Add"}
    shapes = [shape for norm in norms_of(model) if (shape := model.tensor(norm.source).shape)]
    widths = [shape[-1] for shape in [each for each in shapes if each in sums] or shapes]
    return max(sorted(set(widths)), key=widths.count) if widths else 0


def hidden_state(model: Model, hidden: int, among: Collection[str]) -> HiddenState:
    """The hidden state, `hidden` wide, outside attention and MLP, of the values `among`. Attention scores of a sequence
    as long as the hidden size is wide have more dims."""
    norms = [norm for norm in norms_of(model) if model.tensor(norm.source).shape[-1:] == (hidden,)]
    most = max((len(model.tensor(norm.source).shape) for norm in norms), default=None)
    sums = [operator for operator in model.operators if operator.op_type in _SUMS]
    read = {norm.source for norm in norms} | {name for one in sums for name in one.inputs}
    weights = {each.tensor for each in model.parameters}
    # what a bias makes of queries, keys or values as wide as the hidden state is inside of attention
    sums = [one for one in sums if one.op_type != "Add" or not weights & {*one.inputs} or read & {*one.outputs}]
    made = [name for norm in norms for name in norm.values] + [name for one in sums for name in one.outputs]

    def is_hidden(name: str) -> bool:
        shape = model.tensor(name).shape if name in among else ()
        return shape[-1:] == (hidden,) and (most is None or len(shape) <= most)

    names = frozenset(filter(is_hidden, made))
    read = {norm.source for norm in norms} | {name for one in sums for name in one.inputs if names & {*one.outputs}}
    beside = {name for one in model.operators if names & {*one.outputs} for name in one.inputs if name in weights}
    flat = frozenset(name for name in beside if len(model.tensor(name).shape) == 1)
    return HiddenState(names, frozenset(filter(is_hidden, read)), flat, _routing(model))


def _routing(model: Model) -> frozenset[str]:
    """The results of the last products before each choice of experts."""
    makers = {name: operator for operator in model.operators for name in operator.outputs}
    front = [operator.inputs[0] for operator in model.operators if operator.op_type == "TopK"]
    seen: set[str] = set()
    while front:
        name = front.pop()
        if name in makers and name not in seen:
            seen.add(name)
            front += makers[name].inputs if makers[name].op_type not in _PRODUCTS else ()
    return frozenset(name for name in seen if makers[name].op_type in _PRODUCTS)
