"""Seeds of segmented shards: packed tensors that are split, joined tensors, merged batch dims, gates."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from shardplan.model.types import Model, Operator
from shardplan.rules.types import Join, Option, Rule, Slot

Segments = tuple[int, ...]
Place = tuple[str, int]
"""A value and one of its dims."""
MOST_PIECES = 64
"""A dim of more segments than this is not packed, it is a reshape whose minor factor nobody wants."""
FARTHEST = 4
"""How many pointwise operators may lie between cutting a dim apart and putting it together again."""


def seeds(model: Model, rules: Sequence[Rule]) -> Iterator[tuple[Place, Segments]]:
    """The segmentations from which the others follow, in graph order.

    - `Split`, and several `Slice`s of one dim: the pieces, unless those of an activation only come together again
      (rotary halves, rolls);
    - `Concat`: the parts, unless they are such pieces or copies;
    - merges of leading dims `(b s)`, and middle factors of a packed dim `(3 heads size)`: the minor factor;
    - operators that ask for segments themselves (the gates of an LSTM).
    """
    readers = _readers(model)
    undone: set[int] = set()
    packed: list[tuple[Place, Segments]] = []
    for (place, sizes), outputs in _pieces(model, rules).items():
        is_weight = model.tensors[place[0]].role == "parameter"
        joins = set() if is_weight else _joined_again(model, rules, readers, place, outputs)
        undone |= joins
        if not joins:
            packed.append((place, sizes))
    for index, (operator, rule) in enumerate(zip(model.operators, rules, strict=True)):
        yield from _from_options(operator, rule)
        for join in rule.joins:
            is_copy = len(set(operator.inputs)) < len(operator.inputs)
            if join.whole.is_result and index not in undone and not is_copy and _is_useful(join.sizes):
                yield place_of(operator, join.whole), join.sizes
    yield from packed


def place_of(operator: Operator, slot: Slot) -> Place:
    """The value and the dim that a slot of an operator is."""
    return (operator.outputs if slot.is_result else operator.inputs)[slot.position], slot.dim


def refines(segments: Segments, sizes: Segments) -> bool:
    """Whether every boundary of `sizes` is one of `segments`."""
    return set(itertools.accumulate(sizes)) <= set(itertools.accumulate(segments))


def _is_useful(sizes: Segments) -> bool:
    return 1 < len(sizes) <= MOST_PIECES and math.gcd(*sizes) > 1


Cuts = dict[tuple[Place, Segments], list[str]]


def _pieces(model: Model, rules: Sequence[Rule]) -> Cuts:
    """Dims that are cut apart: (place, sizes of the pieces) -> the values that the pieces become.

    Slices of one dim count together; where they overlap or leave gaps, all their bounds cut."""
    sliced: dict[Place, list[tuple[Join, str]]] = defaultdict(list)
    found: Cuts = {}
    for operator, rule in zip(model.operators, rules, strict=True):
        for join in rule.joins:
            if join.whole.is_result:
                continue
            place = place_of(operator, join.whole)
            if None in join.parts or len(operator.outputs) == 1:
                sliced[place].append((join, operator.outputs[0]))
            else:
                found[place, join.sizes] = list(operator.outputs)
    for place, slices in sliced.items():
        bounds = sorted({bound for join, _ in slices for bound in (0, *itertools.accumulate(join.sizes))})
        sizes = tuple(stop - start for start, stop in itertools.pairwise(bounds))
        if len(slices) > 1:
            found.setdefault((place, sizes), [value for _, value in slices])
    return {key: values for key, values in found.items() if _is_useful(key[1])}


def _joined_again(
    model: Model, rules: Sequence[Rule], readers: Mapping[str, list[int]], place: Place, pieces: Sequence[str]
) -> set[int]:
    """The `Concat`s that put the pieces of a dim together to its old size, at most a few pointwise operators later."""
    value, dim = place
    size = model.tensors[value].shape[dim]
    found: set[int] = set()
    reached, front = set(pieces), list(pieces)
    for _ in range(FARTHEST):
        following: list[str] = []
        for index in sorted({index for piece in front for index in readers.get(piece, ())}):
            operator, rule = model.operators[index], rules[index]
            if any(join.whole.is_result and join.whole.dim == dim for join in rule.joins):
                if model.tensors[operator.outputs[0]].shape[dim] == size and reached.issuperset(operator.inputs):
                    found.add(index)
            elif rule.cost == "pointwise":
                following += [made for made in operator.outputs if made and made not in reached]
        reached.update(following)
        front = following
    return found


def _readers(model: Model) -> Mapping[str, list[int]]:
    readers: dict[str, list[int]] = defaultdict(list)
    for index, operator in enumerate(model.operators):
        for name in operator.inputs:
            readers[name].append(index)
    return readers


def _from_options(operator: Operator, rule: Rule) -> Iterator[tuple[Place, Segments]]:
    """Segments that options of the operator ask for; of reshapes only merged leading dims and middle factors."""
    for option in rule.options:
        yield from ((place_of(operator, slot), segments) for slot, segments in _segmented(option))
    for option in rule.latent if rule.cost == "view" else ():
        for slot, segments in _segmented(option):
            is_last = segments[0] == option.size
            if len(segments) <= MOST_PIECES and (slot.dim == 0 or not is_last):
                yield place_of(operator, slot), segments


def _segmented(option: Option) -> list[tuple[Slot, Segments]]:
    if not any(placement.segments for placement in (*option.operands, *option.results)):
        return []
    return [(slot, segments) for slot, segments in shards_of(option).items() if segments]


def shards_of(option: Option) -> dict[Slot, Segments]:
    """The dims that an option shards, with their segments."""
    sides = ((False, option.operands), (True, option.results))
    return {
        Slot(is_result, position, placement.dim): placement.segments
        for is_result, placements in sides
        for position, placement in enumerate(placements)
        if placement.is_shard
    }
