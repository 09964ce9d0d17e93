"""Composed rules: the rule of an operator without a table row, from the body that its schema gives it.

The body is a small model; its operators have rules. Dims that some operator of the body splits together are one factor
(union-find). For each such factor the body is walked once as a single mesh axis would see it: values are shards, whole,
or partial; where a partial value is needed whole it is all-reduced inside. What a device does is run the same operator
on its shards, so a factor is offered only if the body for those shards is what the walk found: counts in attributes,
and constants made from sizes, must not stand against it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from shardplan.layout.placement import RP, P, Placement, R, S
from shardplan.model.types import Model, Operator
from shardplan.rules.body import RESULTS, Body, body_of, operand_name
from shardplan.rules.signature import Shaped, Signature
from shardplan.rules.types import Cost, InnerCollective, Option, Rule

RuleOf = Callable[[Operator, Model], Rule]
Place = tuple[str, int]
"""A value of the body and one of its dims."""


def composed(signature: Signature, rule_of: RuleOf) -> Rule | None:
    """The rule of the operator from its schema's body, whose operators have the rules `rule_of`.

    None where the schema has no body, or the body holds nested graphs or shapes that stay unknown. What backward saves
    is taken to be what the operators of the body save of operands and results; the rest it computes again.
    """
    body = body_of(signature)
    if body is None:
        return None
    rules = [rule_of(operator, body.model) for operator in body.model.operators]
    composer = _Composer(signature, body, rules)
    options = composer.options()
    inner = [rule.cost for rule in rules]
    forward = sum(rule.flops for rule in rules)
    is_float = any(made is not None and made.is_float for made in signature.results)
    return Rule(
        composer.equation(options),
        tuple(option for _, option in options),
        {option.factor: option.size for _, option in options},
        linear=composer.linear(),
        saved_operands=composer.saved(operands=True) if is_float else (),
        saved_results=composer.saved(operands=False) if is_float else (),
        cost=_cost(inner),
        flops=forward,
        backward_flops=forward + sum(rule.backward_flops for rule in rules) if is_float else 0.0,
        temporary_bytes=composer.largest_temporary(),
    )


def _cost(inner: Sequence[Cost]) -> Cost:
    """A body of pointwise operators is one; anything else moves its operands and results."""
    for product in ("attention", "conv", "gemm"):
        if product in inner:
            return "gemm"
    return "pointwise" if set(inner) <= {"pointwise", "view", "free"} else "memory"


class _State(NamedTuple):
    """What a device has of a value: a shard, the whole, or a partial value; of a mean with `averaged`."""

    placement: Placement
    averaged: bool = False


_WHOLE, _MERGED = _State(RP), _State(R)
"""Whole because nothing before it is split, and whole because partial values were combined."""


class _StuckError(Exception):
    """The axis cannot split this factor."""


@dataclass
class _Walk:
    """One mesh axis going through the body: states of its values, and the collectives it meets."""

    model: Model
    rules: Sequence[Rule]
    places: frozenset[Place]
    states: dict[str, _State]
    inner: list[InnerCollective] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    strict: bool = False
    """Do not combine partial values inside."""
    splits: list[Option | None] = field(default_factory=list)
    """What the axis does to each operator so far."""
    combined: list[tuple[str, ...]] = field(default_factory=list)
    """The values that are combined before each operator so far."""

    def run(self) -> None:
        """Find the states of all values. Raises `_StuckError`."""
        for operator, rule in zip(self.model.operators, self.rules, strict=True):
            option = self._option(operator, rule)
            self.splits.append(option)
            self.combined.append(())
            made = self._split(operator, option) if option else self._whole(operator, rule)
            self.states.update((name, state) for name, state in zip(operator.outputs, made, strict=True) if name)

    def _option(self, operator: Operator, rule: Rule) -> Option | None:
        found = [option for option in rule.options if not self.places.isdisjoint(places_of(operator, option))]
        if len(found) > 1 or any(option.ordered for option in found):
            raise _StuckError
        return found[0] if found else None

    def _split(self, operator: Operator, option: Option) -> list[_State]:
        """The results when the axis splits the operator."""
        for name, wanted in zip(operator.inputs, option.operands, strict=True):
            if not name:
                continue
            state = self.of(name)
            if wanted.is_shard and state.placement != wanted:
                raise _StuckError
            if not wanted.is_shard:
                if state.placement.is_shard or wanted.kind == "P":
                    raise _StuckError
                self._make_whole(name)
        self.inner += option.inner
        self.sizes.append(option.size)
        return [_State(placement, averaged=option.averaged and placement.kind == "P") for placement in option.results]

    def _whole(self, operator: Operator, rule: Rule) -> list[_State]:
        """The results when the axis splits nothing: everything whole, or partial sums that pass through."""
        reads = [name for name in operator.inputs if name]
        states = [self.of(name) for name in reads]
        if any(state.placement.is_shard for state in states):
            raise _StuckError
        partial = tuple(i for i, name in enumerate(operator.inputs) if self.of(name).placement.kind == "P")
        kinds = {self.of(operator.inputs[i]) for i in partial}
        if partial in rule.linear and len(kinds) == 1 and next(iter(kinds)).placement == P():
            return [next(iter(kinds))] * len(operator.outputs)
        for name in reads:
            self._make_whole(name)
        is_merged = any(self.of(name) == _MERGED for name in reads)
        return [_MERGED if is_merged else _WHOLE] * len(operator.outputs)

    def of(self, name: str) -> _State:
        """The state of a value; what nothing has made is whole."""
        return self.states.get(name, _WHOLE)

    def _make_whole(self, name: str) -> None:
        """Combine a partial value; what is made from shards with it has a gradient to be summed as well."""
        if self.of(name).placement.kind != "P":
            return
        if self.strict:
            raise _StuckError
        tensor = self.model.tensors[name]
        self.inner.append(InnerCollective("all_reduce", tensor.size_bytes))
        if tensor.is_float:
            self.inner.append(InnerCollective("all_reduce", tensor.size_bytes, "backward"))
        self.states[name] = _MERGED
        self.combined[-1] += (name,)


@dataclass(frozen=True)
class BodySplit:
    """What one mesh axis that splits a factor of a composed operator does inside of its body.

    `splits[i]`: the option of the body's operator i, None where it is not split; `combined[i]`: the partial values that
    are combined before it.
    """

    splits: tuple[Option | None, ...]
    combined: tuple[tuple[str, ...], ...]


def inside(signature: Signature, rule_of: RuleOf, factors: Sequence[str]) -> tuple[Model, list[Rule], list[BodySplit]]:
    """The body of a composed operator, the rules of its operators, and how axes that split `factors` go through it.

    `""` is the factor of an axis that splits nothing. `LookupError` for a factor that the operator does not have.
    """
    body = body_of(signature)
    assert body is not None
    rules = [rule_of(operator, body.model) for operator in body.model.operators]
    composer = _Composer(signature, body, rules)
    known = {option.factor: places for places, option in composer.options()}
    splits = []
    for factor in factors:
        walk = composer.walk(known[factor] if factor else frozenset())
        splits.append(BodySplit(tuple(walk.splits), tuple(walk.combined)))
    return body.model, composer.rules, splits


def places_of(operator: Operator, option: Option) -> list[Place]:
    """The values around an operator, and their dims, that an option shards."""
    sides = ((operator.inputs, option.operands), (operator.outputs, option.results))
    return [(name, p.dim) for names, side in sides for name, p in zip(names, side, strict=True) if name and p.is_shard]


class _Composer:
    """Factors, options and facts of one body."""

    def __init__(self, signature: Signature, body: Body, rules: Sequence[Rule]) -> None:
        self.signature, self.body, self.model = signature, body, body.model
        self.rules = [replace(rule, options=tuple(o for o in rule.options if not o.is_segmented)) for rule in rules]
        self.operands = [operand_name(i) if operand is not None else "" for i, operand in enumerate(signature.operands)]
        self.results = [RESULTS.format(i) if made is not None else "" for i, made in enumerate(signature.results)]

    def options(self) -> list[tuple[frozenset[Place], Option]]:
        """The factors that can be split, in the order of operands and dims."""
        found: dict[frozenset[Place], Option] = {}
        classes = self._classes()
        for name in self.operands:
            for dim in range(len(self._shape(name))):
                places = classes.get((name, dim))
                if places and places not in found and (option := self._try(places, len(found))):
                    found[places] = option
        return list(found.items())

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.model.tensors[name].shape if name in self.model.tensors else ()

    def _classes(self) -> Mapping[Place, frozenset[Place]]:
        """Places that some operator splits together, with all that hang together with them."""
        parent: dict[Place, Place] = {}

        def root(place: Place) -> Place:
            while parent.setdefault(place, place) != place:
                place = parent[place]
            return place

        for operator, rule in zip(self.model.operators, self.rules, strict=True):
            for option in rule.options:
                first, *others = places_of(operator, option) or [("", 0)]
                for other in others:
                    parent[root(other)] = root(first)
        members: dict[Place, set[Place]] = defaultdict(set)
        for place in list(parent):
            members[root(place)].add(place)
        return {place: frozenset(group) for group in members.values() for place in group}

    def _try(self, places: frozenset[Place], number: int) -> Option | None:
        """The option that splits a factor; None where the body, or the operator on shards, stands against it."""
        if any(len({dim for name, dim in places if name == operand}) > 1 for operand in self.operands):
            return None
        try:
            walk = self.walk(places)
        except _StuckError:
            return None
        size = math.gcd(*walk.sizes)
        made = [walk.of(name) for name in self.results]
        averaged = {state.averaged for state in made if state.placement.kind == "P"}
        if size < 2 or len(averaged) > 1 or not self._same_on_shards(walk, size):
            return None
        return Option(
            chr(ord("a") + number) if number < 26 else f"f{number}",
            size,
            tuple(R if not name else walk.of(name).placement for name in self.operands),
            tuple(R if not name else state.placement for name, state in zip(self.results, made, strict=True)),
            tuple(walk.inner),
            averaged=averaged == {True},
        )

    def walk(self, places: frozenset[Place]) -> _Walk:
        """An axis that splits a factor, gone through the body. Raises `_StuckError`."""
        starts = {name: _State(S(dim)) for name, dim in places if name in self.operands}
        walk = _Walk(self.model, self.rules, places, dict(starts))
        walk.run()
        return walk

    def _same_on_shards(self, walk: _Walk, size: int) -> bool:
        """Whether the body for the shards of one device has the values that the walk found."""
        ways = next(way for way in range(2, size + 1) if size % way == 0)
        local = {name: _shrunk(self._shape(name), state, ways) for name, state in walk.states.items()}
        operands = tuple(
            tensor and Shaped(local.get(name, tensor.shape), tensor.dtype, tensor.is_constant)
            for name, tensor in zip(self.operands, self.signature.operands, strict=True)
        )
        made = tuple(
            tensor and Shaped(local[name], tensor.dtype)
            for name, tensor in zip(self.results, self.signature.results, strict=True)
        )
        smaller = body_of(replace(self.signature, operands=operands, results=made))
        if smaller is None:
            return False
        shapes = {name: tensor.shape for name, tensor in smaller.model.tensors.items()}
        fits = all(shapes.get(name, shape) == shape for name, shape in local.items())
        return fits and (bool(walk.inner) or _same_numbers(self.model, smaller.model))

    def linear(self) -> tuple[tuple[int, ...], ...]:
        """Sets of operands whose partial sums pass through: each alone, else all together."""
        floats = [i for i, operand in enumerate(self.signature.operands) if operand is not None and operand.is_float]
        alone = tuple((i,) for i in floats if self._passes((i,)))
        return alone or ((tuple(floats),) if len(floats) > 1 and self._passes(floats) else ())

    def _passes(self, group: Iterable[int]) -> bool:
        starts = {self.operands[i]: _State(P()) for i in group}
        walk = _Walk(self.model, self.rules, frozenset(), starts, strict=True)
        try:
            walk.run()
        except _StuckError:
            return False
        return all(walk.of(name).placement == P() for name in self.results if name)

    def saved(self, *, operands: bool) -> tuple[int, ...]:
        """Positions of the operands (results) that are kept for backward: those that the body's operators save, and
        of what they save inside the operands that it is made of."""
        kept = {
            names[position]
            for operator, rule in zip(self.model.operators, self.rules, strict=True)
            for names, positions in ((operator.inputs, rule.saved_operands), (operator.outputs, rule.saved_results))
            for position in positions
        }
        for operator in reversed(self.model.operators):
            if not kept.isdisjoint(set(operator.outputs) - set(self.results)):
                kept.update(operator.inputs)
        return tuple(i for i, name in enumerate(self.operands if operands else self.results) if name and name in kept)

    def largest_temporary(self) -> int:
        """Bytes of the largest value that is neither operand nor result."""
        made = {name for operator in self.model.operators for name in operator.outputs if name}
        inside = made - set(self.results)
        return max((self.model.tensors[name].size_bytes for name in inside), default=0)

    def equation(self, options: Sequence[tuple[frozenset[Place], Option]]) -> str:
        """The rule as text: dims that nothing splits are `_`, those that are split inside have `~`."""
        names = {
            place: f"~{option.factor}" if option.inner else option.factor
            for places, option in options
            for place in places
        }
        sides = []
        for tensors, values in ((self.signature.operands, self.operands), (self.signature.results, self.results)):
            dims = (
                [names.get((name, dim), "_") for dim in range(tensor.rank)] if tensor else ["_*"]
                for name, tensor in zip(values, tensors, strict=True)
            )
            sides.append(", ".join(" ".join(words) for words in dims))
        return " -> ".join(sides)


def _shrunk(shape: tuple[int, ...], state: _State, ways: int) -> tuple[int, ...]:
    placement = state.placement
    return tuple(n // ways if placement.is_shard and placement.dim == dim else n for dim, n in enumerate(shape))


def _same_numbers(one: Model, other: Model) -> bool:
    """Whether the float constants of two bodies are the same: one made from a size is not."""
    for name in sorted(set(one.constants) & set(other.constants)):
        first, second = one.constants[name], other.constants[name]
        if first.dtype.kind == "f" and not np.array_equal(first, second, equal_nan=True):
            return False
    return True
