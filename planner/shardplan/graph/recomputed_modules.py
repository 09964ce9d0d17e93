"""Parts of layers that trainers recompute by name, found by what operators do: Megatron-LM's `--recompute-modules`.

A layer is a chain of branches: each reads the residual stream, and what it makes is added to that. A branch with
attention is attention, one that chooses experts is a mixture, any other an MLP. Of `mlp`, `moe` and `shared_experts`
all is run again; of `layernorm`, `moe_act` and `mla_up_proj` the result is dropped, and made again when its reader's
backward needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from shardplan.errors import ShardplanError, error
from shardplan.graph.experts import RANK_OF_EXPERTS
from shardplan.graph.flow import Flow, trace
from shardplan.graph.recomputed_layers import RecomputedSegment, layers_of
from shardplan.model.types import Model
from shardplan.rules.types import Rule

_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


def recomputed_modules(
    model: Model, rules: Sequence[Rule], flow: Flow, names: Sequence[str]
) -> list[RecomputedSegment]:
    """The segments of the modules `names`, words of `MODULES`, the larger ones last; none of modules that no repeated
    layer has."""
    layers = _layers(model, rules, flow) if names else []
    return [
        _segment(part, layer, name in _DROPPED)
        for name in MODULES
        if name in names
        for layer in layers
        for part in MODULES[name](layer)
        if part
    ]


def check_modules(model: Model, rules: Sequence[Rule], names: Sequence[str]) -> None:
    """Raise `ShardplanError` (`bad-argument`) for modules that no repeated layer has."""
    layers = _layers(model, rules, trace(model, rules, training=True))
    asked = (name for name in MODULES if name in names)
    if missing := [name for name in asked if not any(part for layer in layers for part in MODULES[name](layer))]:
        summary = f"no repeated layer of this model has {' or '.join(missing)}, which is to be recomputed"
        hint = "layers are told apart by what their operators do; shardplan inspect lists the repeated blocks"
        raise ShardplanError(error("bad-argument", summary, hint=hint))


def _layers(model: Model, rules: Sequence[Rule], flow: Flow) -> list[_Layer]:
    return [_Layer(model, rules, flow, segment.operators) for segment in layers_of(model)]


def _segment(part: Set[int], layer: _Layer, is_dropped: bool) -> RecomputedSegment:
    """A part, which is run again before the backward of its last operator; or with the views of what it makes before
    that of the last operator that reads one of these."""
    if not is_dropped:
        return RecomputedSegment(frozenset(part), max(part))
    whole, readers, front = set(part), set(part), list(part)
    while front:
        for name in filter(None, layer.model.operators[front.pop()].outputs):
            fresh = {reader for reader, _ in layer.flow.readers.get(name, ())} - readers
            views = [reader for reader in fresh if layer.rules[reader].cost == "view"]
            readers |= fresh
            whole.update(views)
            front += views
    return RecomputedSegment(frozenset(whole), max(readers))


@dataclass(frozen=True)
class _Layer:
    """A layer of a model: its operators."""

    model: Model
    rules: Sequence[Rule]
    flow: Flow
    operators: frozenset[int]

    @cached_property
    def before(self) -> Mapping[int, frozenset[int]]:
        """The operators of the layer that each one depends on, with itself."""
        found: dict[int, frozenset[int]] = {}
        for index in sorted(self.operators):
            makers = (self.flow.makers.get(name, (-1, 0))[0] for name in self.model.operators[index].inputs)
            found[index] = frozenset({index}).union(*(found[maker] for maker in makers if maker in found))
        return found

    @cached_property
    def branches(self) -> tuple[frozenset[int], ...]:
        """What is made of the residual stream and added to it, without norms."""
        return tuple(part - set(self.norms) for part in self._by_addition.values())

    @cached_property
    def norms(self) -> tuple[int, ...]:
        """Norms of the residual stream."""
        wide = {self._shape(add) for add in self._by_addition}
        is_norm = (index for index in sorted(self.operators) if self.model.operators[index].op_type in _NORMS)
        return tuple(index for index in is_norm if self._shape(index) in wide)

    @cached_property
    def _by_addition(self) -> Mapping[int, frozenset[int]]:
        """The branches with their norms, by the addition to the residual stream."""
        return {add: part for add in sorted(self.operators) if (part := self._branch(add))}

    def chooses(self, branch: Set[int]) -> frozenset[int]:
        """Operators that choose experts."""
        return frozenset(index for index in branch if self.model.operators[index].op_type == "TopK")

    def attends(self, branch: Set[int]) -> frozenset[int]:
        """Attention, or the softmax of one that is not fused."""
        if fused := frozenset(index for index in branch if self.rules[index].cost == "attention"):
            return fused
        softmax = (index for index in branch if self.model.operators[index].op_type == "Softmax")
        return frozenset() if self.chooses(branch) else frozenset(softmax)

    def weighed(self, branch: Set[int]) -> frozenset[int]:
        """Products with a weight."""
        return frozenset(
            index
            for index in branch
            if self.rules[index].cost == "gemm"
            and self.flow.weightlike.intersection(self.model.operators[index].inputs)
        )

    def with_experts(self, branch: Set[int]) -> frozenset[int]:
        """Products with the weights of all experts."""

        def many(name: str) -> bool:
            return name in self.flow.weightlike and len(self.model.tensor(name).shape) == RANK_OF_EXPERTS

        return frozenset(
            index for index in self.weighed(branch) if any(map(many, filter(None, self.model.operators[index].inputs)))
        )

    def behind(self, index: int) -> frozenset[int]:
        """The operators of the layer that depend on one."""
        return frozenset(other for other, known in self.before.items() if index in known)

    def readers_of(self, index: int) -> frozenset[int]:
        """The operators that read what one makes."""
        made = filter(None, self.model.operators[index].outputs)
        return frozenset(reader for name in made for reader, _ in self.flow.readers.get(name, ()))

    def _branch(self, add: int) -> frozenset[int]:
        """The operators between the two operands of an addition, if one is made of the other."""
        operator = self.model.operators[add]
        if operator.op_type != "Add" or self.flow.weightlike.intersection(operator.inputs):
            return frozenset()
        for skipped, made in (operator.inputs, operator.inputs[::-1]):
            maker = self.flow.makers.get(made, (-1, 0))[0]
            if maker not in self.operators or self.model.tensor(made).shape != self.model.tensor(skipped).shape:
                continue
            readers = {reader for reader, _ in self.flow.readers.get(skipped, ()) if reader in self.before[maker]}
            if readers:
                return frozenset(index for index in self.before[maker] if self.before[index] & readers)
        return frozenset()

    def _shape(self, index: int) -> tuple[int, ...]:
        return self.model.tensor(self.model.operators[index].outputs[0]).shape


def _norms(layer: _Layer) -> Iterable[Set[int]]:
    return ({norm} for norm in layer.norms)


def _mlp(layer: _Layer) -> Iterable[Set[int]]:
    return (each for each in layer.branches if not layer.attends(each) and not layer.chooses(each))


def _moe(layer: _Layer) -> Iterable[Set[int]]:
    return (each for each in layer.branches if layer.chooses(each))


def _moe_act(layer: _Layer) -> Iterable[Set[int]]:
    """What stands between the products of experts."""
    for branch in _moe(layer):
        products = layer.with_experts(branch)
        yield {
            index for index in branch - products if layer.before[index] & products and layer.behind(index) & products
        }


def _shared_experts(layer: _Layer) -> Iterable[Set[int]]:
    """What depends on a product with a weight that has no part in the choice of experts, nor follows it."""
    for branch in _moe(layer):
        chosen = layer.chooses(branch)
        routing = frozenset[int]().union(*(layer.before[index] for index in chosen))
        routed = frozenset[int]().union(*(layer.behind(index) for index in chosen))
        own = layer.weighed(branch - routing - routed)
        yield {index for index in branch - routed if layer.before[index] & own}


def _mla_up_proj(layer: _Layer) -> Iterable[Set[int]]:
    """From the latents of multi-head latent attention to queries, keys and values: what depends on a second product,
    and what is moved for that alone, as the part of the keys that all heads share."""
    for branch in layer.branches:
        if attention := layer.attends(branch):
            inside = branch.intersection(*(layer.before[index] for index in attention)) - attention
            products = layer.weighed(inside)
            second = {index for index in products if layer.before[index] & products - {index}}
            part = {index for index in inside if layer.before[index] & second}
            for index in sorted(inside - products - part, reverse=True):
                if layer.model.operators[index].op_type not in _NORMS and layer.readers_of(index) <= part:
                    part.add(index)
            yield part


MODULES: Mapping[str, Callable[[_Layer], Iterable[Set[int]]]] = {
    "layernorm": _norms,
    "moe_act": _moe_act,
    "mla_up_proj": _mla_up_proj,
    "shared_experts": _shared_experts,
    "mlp": _mlp,
    "moe": _moe,
}
"""The modules by name: a larger one stands behind those that it contains."""
_DROPPED = frozenset({"layernorm", "moe_act", "mla_up_proj"})
"""Of these, only what they make is dropped."""
