"""Segmented shards through a model: which fused dims are worth cutting inside their pieces, and the options for that.

A packed q, k, v of 3 x 768 columns cannot be cut plainly by heads: a device would get columns of q only. Cut inside
each piece it can, and the matrix product that makes it does not care how its columns are ordered. So a segmentation
starts at an operator that cuts, joins or merges a dim (`seeds`), flows through every operator for which the dim is a
factor without order, and is offered where the maker and a reader of a tensor can both follow. Parameters are put in
order once, when they are loaded.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.layout.placement import RP, Placement, R, S
from shardplan.model.types import Model, Operator
from shardplan.rules.seeds import Place, Segments, place_of, refines, seeds, shards_of
from shardplan.rules.table import rule_for
from shardplan.rules.types import Join, Option, Rule, Slot

Variants = Mapping[Place, tuple[Segments, ...]]
"""(value, dim) -> the segmentations worth offering there."""
MOST_VARIANTS = 2
"""Per dim; more than two ways to fuse one dim are not met, and each costs search."""


def model_rules(model: Model) -> tuple[Rule, ...]:
    """The rule of every operator, in order, with the segmented options that lead somewhere in this model.

    Operators with equal signatures and equal segmentations around them share one rule object."""
    rules = [rule_for(operator, model) for operator in model.operators]
    variants = segment_variants(model, rules)
    touched = {value for value, _ in variants}
    shared: dict[tuple[object, ...], Rule] = {}
    expanded = []
    for rule, operator in zip(rules, model.operators, strict=True):
        around = [name for name in (*operator.inputs, *operator.outputs) if name]
        if touched.isdisjoint(around):
            expanded.append(rule)
            continue
        places = ((name, dim) for name in around for dim in range(len(model.tensors[name].shape)))
        key = (id(rule), tuple(variants.get(place, ()) for place in places))
        if key not in shared:
            shared[key] = expand(rule, operator, model, variants)
        expanded.append(shared[key])
    return tuple(expanded)


def expand(rule: Rule, operator: Operator, model: Model, variants: Variants) -> Rule:
    """`rule` with an option for every segmentation that all tensors around `operator` offer."""
    added: dict[tuple[str, str], Option] = {}
    for cut in _offered(rule, operator, _Ways(model), variants):
        if not cut.is_known:
            option = cut.option(operator)
            added.setdefault((option.factor, option.variant), option)
    return replace(rule, options=(*rule.options, *added.values())) if added else rule


def segment_variants(model: Model, rules: Sequence[Rule]) -> Variants:
    """The segmentations worth offering, by value and dim; `rules[i]` is the rule of operator i.

    A fixpoint from both sides: grow from the seeds through all operators, then drop what cannot be both made and read.
    What goes in and out of the model keeps its order.
    """
    beside, ways = _neighbours(model), _Ways(model)
    found: dict[Place, list[Segments]] = defaultdict(list)
    waiting = deque(seeds(model, rules))
    while waiting:
        place, segments = waiting.popleft()
        if segments in found[place] or len(found[place]) >= MOST_VARIANTS:
            continue
        found[place].append(segments)
        for index, slot in beside[place[0]]:
            operator = model.operators[index]
            for cut in ways.of(rules[index], operator, slot._replace(dim=place[1]), segments):
                waiting += [(place_of(operator, other), into) for other, into in cut.slots if into]
    fixed = {*model.inputs, *model.outputs}
    grown = {place: tuple(known) for place, known in found.items() if place[0] not in fixed}
    while (kept := _usable_variants(rules, grown, beside, ways)) != grown:
        grown = kept
    return grown


Beside = Mapping[str, list[tuple[int, Slot]]]


def _neighbours(model: Model) -> Beside:
    """Value -> the operators that make or read it, and as which result or operand (`dim` left open)."""
    beside: dict[str, list[tuple[int, Slot]]] = defaultdict(list)
    for index, operator in enumerate(model.operators):
        for position, name in enumerate(operator.inputs):
            beside[name].append((index, Slot(False, position, -1)))
        for position, name in enumerate(operator.outputs):
            beside[name].append((index, Slot(True, position, -1)))
    return beside


def _usable_variants(
    rules: Sequence[Rule], variants: Variants, beside: Beside, ways: _Ways
) -> dict[Place, tuple[Segments, ...]]:
    """Without the segmentations that no operator reads or that the maker of the tensor cannot make."""
    made: set[tuple[Place, Segments]] = set()
    read: set[tuple[Place, Segments]] = set()
    for index in sorted({index for value, _ in variants for index, _ in beside[value]}):
        operator = ways.model.operators[index]
        for cut in _offered(rules[index], operator, ways, variants):
            for slot, segments in cut.slots:
                (made if slot.is_result else read).add((place_of(operator, slot), segments))
    kept = {}
    for place, known in variants.items():
        has_maker = any(slot.is_result for _, slot in beside[place[0]])
        kept[place] = tuple(s for s in known if (place, s) in read and ((place, s) in made or not has_maker))
    return {place: known for place, known in kept.items() if known}


@dataclass(frozen=True, slots=True)
class _Cut:
    """One way to split an operator by segments: the segments of each dim that it shards (empty: a plain shard).

    `segments`: those of the factor, `size`: what the number of shards must divide; `source`: the option that it is a
    form of, None for a join. `is_known`: the rule offers it as it is."""

    factor: str
    segments: Segments
    size: int
    slots: tuple[tuple[Slot, Segments], ...]
    source: Option | None = None
    is_known: bool = False

    def option(self, operator: Operator) -> Option:
        """The option; a join replicates the small operands that say where to cut."""
        source = self.source or Option(
            self.factor,
            self.size,
            tuple(RP if name else R for name in operator.inputs),
            tuple(RP if name else R for name in operator.outputs),
        )
        operands: list[Placement] = list(source.operands)
        results: list[Placement] = list(source.results)
        for slot, segments in self.slots:
            (results if slot.is_result else operands)[slot.position] = S(slot.dim, segments)
        variant = str(S(0, self.segments)).removeprefix("S(0;").removesuffix(")")
        return replace(source, size=self.size, operands=tuple(operands), results=tuple(results), variant=variant)


class _Ways:
    """The ways to split the operators of a model by segments, worked out once per rule, dim and segmentation."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._known: dict[tuple[int, Slot, Segments], tuple[_Cut, ...]] = {}

    def of(self, rule: Rule, operator: Operator, slot: Slot, segments: Segments) -> tuple[_Cut, ...]:
        """The ways in which the dim `slot` is cut into `segments`."""
        key = (id(rule), slot, segments)
        if key not in self._known:
            self._known[key] = tuple(self._ways(rule, operator, slot, segments))
        return self._known[key]

    def _ways(self, rule: Rule, operator: Operator, slot: Slot, segments: Segments) -> Iterator[_Cut]:
        for is_known, options in ((True, rule.options), (False, rule.latent)):
            for option in options:
                shards = shards_of(option)
                if slot not in shards or option.ordered:
                    continue
                if any(shards.values()):
                    if shards[slot] == segments:
                        yield _Cut(option.factor, segments, option.size, tuple(shards.items()), option, is_known)
                    continue
                sizes = {s: self.model.tensors[place_of(operator, s)[0]].shape[s.dim] for s in shards}
                if (cut := _scaled(option, sizes, slot, segments)) is not None:
                    yield cut
        for join in rule.joins:
            if (parted := _along_join(join, slot, segments)) is not None:
                whole = parted[0][1]
                yield _Cut(join.factor, whole, math.gcd(*whole), parted)


def _offered(rule: Rule, operator: Operator, ways: _Ways, variants: Variants) -> Iterator[_Cut]:
    """The ways to split the operator by segments that all tensors around it offer."""
    for is_result, names in ((False, operator.inputs), (True, operator.outputs)):
        for position, name in enumerate(names):
            for dim in range(len(ways.model.tensors[name].shape) if name else 0):
                for segments in variants.get((name, dim), ()):
                    for cut in ways.of(rule, operator, Slot(is_result, position, dim), segments):
                        if all(not s or s in variants.get(place_of(operator, slot), ()) for slot, s in cut.slots):
                            yield cut


def _scaled(option: Option, sizes: Mapping[Slot, int], slot: Slot, segments: Segments) -> _Cut | None:
    """The segmented form of a plain option. A dim of `option.size` units of c elements is cut in multiples of c."""
    scale = {s: size // option.size for s, size in sizes.items()}
    if not scale[slot] or any(size % scale[slot] for size in segments):
        return None
    units = tuple(size // scale[slot] for size in segments)
    if sum(units) != option.size or math.gcd(*units) == 1:
        return None
    cut = tuple((s, tuple(unit * scale[s] for unit in units)) for s in sizes)
    return _Cut(option.factor, units, math.gcd(*units), cut, option)


def _along_join(join: Join, slot: Slot, segments: Segments) -> tuple[tuple[Slot, Segments], ...] | None:
    """The segments of the whole and of the parts of a join, when those of one are given.

    The whole must be cut at least where its parts meet. From one part we conclude that all of its size are cut alike.
    """
    if slot == join.whole:
        if not refines(segments, join.sizes):
            return None
        whole = segments
    elif slot in join.parts:
        size = join.sizes[join.parts.index(slot)]
        whole = tuple(piece for part in join.sizes for piece in (segments if part == size else (part,)))
    else:
        return None
    cut: list[tuple[Slot, Segments]] = [(join.whole, whole)]
    rest = list(whole)
    for part, size in zip(join.parts, join.sizes, strict=True):
        inside: list[int] = []
        while sum(inside) < size:
            inside.append(rest.pop(0))
        if part is not None:
            cut.append((part, tuple(inside) if len(inside) > 1 else ()))
    return tuple(cut)
