"""Where a model may be cut into stages, and the part of it that one stage runs.

A cut is a place in the operator order that exactly one value crosses: the residual stream between two decoder layers.
Values that depend on no weight (masks, rotary tables, positions) do not count: they are cheap, and every stage that
reads one computes it for itself. What lies between two neighbouring cuts is a unit; a stage is a run of units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.errors import ShardplanError, error
from shardplan.model.types import Block, Model
from shardplan.pipeline.constants import MOST_UNITS
from shardplan.rules import model_rules
from shardplan.rules.batch import batch_dims_of
from shardplan.rules.types import Rule

_BUFFER_ELEMENTS = 1 << 16
"""A buffer of more is a weight, trained or not (quantised ones are not)."""


@dataclass(frozen=True)
class Chain:
    """`units[u]`: operators of unit u; `borders[u]`: the value that unit u passes to unit u + 1. `free`: operators that
    depend on no weight. `names[u]`: the block of the unit, or its first and last block, or its position. `batch[b]`:
    the dim of border b that is the batch; 0 if none is."""

    model: Model
    units: tuple[tuple[int, ...], ...]
    borders: tuple[str, ...]
    names: tuple[str, ...]
    free: frozenset[int]
    batch: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.units)


def chain_of(model: Model, rules: Sequence[Rule]) -> Chain:
    """The units of `model`, whose operator i has the rule `rules[i]`.

    Raises `ShardplanError` (`no-cut`) when there is no place to cut.
    """
    crossing = _crossing(model, free_of_weights(model))
    possible = sorted(crossing)
    if not possible:
        summary = f"'{model.name}' cannot be cut into stages: more than one value crosses every place"
        raise ShardplanError(error("no-cut", summary, hint="plan it as one: leave out --stages"))
    return chain_at(model, _at_blocks(model, possible) or _balanced(possible, rules), rules)


def chain_at(model: Model, cuts: Sequence[int], rules: Sequence[Rule] | None = None) -> Chain:
    """The units of `model` between these places (numbers of operators, ascending).

    Raises `ShardplanError` (`no-cut`) for a place that not exactly one value crosses.
    """
    free = free_of_weights(model)
    crossing = _crossing(model, free)
    for cut in cuts:
        if cut not in crossing:
            summary = f"'{model.name}' cannot be cut before '{model.operators[cut].name}': not one value alone goes on"
            raise ShardplanError(error("no-cut", summary, hint=_near(model, sorted(crossing), cut)))
    places = [0, *cuts, len(model.operators)]
    runs = [tuple(index for index in range(low, high) if index not in free) for low, high in itertools.pairwise(places)]
    names = _names(model, places)
    borders = tuple(crossing[cut] for cut in cuts)
    batches = batch_dims_of(model, rules or model_rules(model))
    return Chain(model, tuple(runs), borders, names, free, tuple(batches.get(border, 0) for border in borders))


def _near(model: Model, possible: Sequence[int], cut: int) -> str:
    if not possible:
        return "more than one value crosses every place"
    near = sorted(possible, key=lambda place: (abs(place - cut), place))[:3]
    names = ", ".join(f"'{model.operators[place].name}'" for place in sorted(near))
    return f"near places are before {names}"


def begins(model: Model, parts: Sequence[Sequence[str]]) -> list[int]:
    """The start of each part but the first, given the names of its operators, also those that all parts share."""
    free, place = free_of_weights(model), {operator.name: index for index, operator in enumerate(model.operators)}
    own = [[place[name] for name in part if name in place and place[name] not in free] for part in parts]
    return [min(indices) for indices in own[1:] if indices]


def stage_name(model: Model, place: int) -> str:
    """The name of a stage's model."""
    return f"{model.name}.stage{place}"


def part_of(chain: Chain, first: int, last: int, name: str) -> Model:
    """Units `first` .. `last` - 1 as a model called `name`: what they read from the unit before is an input with a
    gradient, what they pass on is an output."""
    model = chain.model
    own = {index for unit in chain.units[first:last] for index in unit}
    indices = sorted(own | needed_for(chain, own))
    operators = tuple(model.operators[index] for index in indices)
    made = {value for operator in operators for value in operator.outputs if value}
    read = {value for operator in operators for value in operator.inputs if value}
    fed = chain.borders[first - 1] if first else ""
    handed = chain.borders[last - 1] if last < len(chain) else ""
    outputs = (*(value for value in model.outputs if value in made), *((handed,) if handed else ()))
    tensors = {value: tensor for value, tensor in model.tensors.items() if value in made or value in read}
    if fed:
        tensors[fed] = replace(model.tensor(fed), role="input")
    return replace(
        model,
        name=name,
        operators=operators,
        tensors=tensors,
        parameters=tuple(parameter for parameter in model.parameters if parameter.tensor in read),
        inputs=(*(value for value in model.inputs if value in read), *((fed,) if fed else ())),
        outputs=tuple(dict.fromkeys(outputs)),
        constants={value: data for value, data in model.constants.items() if value in read},
        blocks=_blocks(model, indices),
        trips={loop: model.trips[loop] for operator in operators for loop in operator.loops},
        warnings=(),
        fed={fed: chain.batch[first - 1]} if fed else {},
    )


def shared_weights(chain: Chain, cuts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Weights that several stages read, with the stages; `cuts`: where a new stage begins, in units."""
    stage_of = {index: sum(unit >= cut for cut in cuts) for unit, run in enumerate(chain.units) for index in run}
    found: dict[str, set[int]] = {}
    weights = {parameter.tensor for parameter in chain.model.parameters}
    for index, stage in stage_of.items():
        for value in chain.model.operators[index].inputs:
            if value in weights:
                found.setdefault(value, set()).add(stage)
    return {value: tuple(sorted(stages)) for value, stages in sorted(found.items()) if len(stages) > 1}


def chain_part(chain: Chain, first: int, last: int) -> Chain:
    """Units `first` .. `last` - 1 as the chain of a model of their own."""
    model = part_of(chain, first, last, chain.model.name)
    place = {operator.name: index for index, operator in enumerate(model.operators)}
    operators = chain.model.operators

    def there(indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(place[operators[index].name] for index in indices if operators[index].name in place)

    units = tuple(there(unit) for unit in chain.units[first:last])
    inner = slice(first, last - 1)
    return Chain(
        model, units, chain.borders[inner], chain.names[first:last], frozenset(there(chain.free)), chain.batch[inner]
    )


def free_of_weights(model: Model) -> frozenset[int]:
    """Operators that no weight influences; small untrained buffers do not count as weights."""
    bound = set(model.fed)
    for parameter in model.parameters:
        if parameter.trainable or model.tensor(parameter.tensor).elements > _BUFFER_ELEMENTS:
            bound.add(parameter.tensor)
    found = set()
    for index, operator in enumerate(model.operators):
        if any(value in bound for value in operator.inputs):
            bound.update(value for value in operator.outputs if value)
        else:
            found.add(index)
    return frozenset(found)


def _crossing(model: Model, free: frozenset[int]) -> dict[int, str]:
    """Places that exactly one value crosses, with the value: a float that depends on weights."""
    last: dict[str, int] = {}
    for index, operator in enumerate(model.operators):
        for value in operator.inputs:
            last[value] = index
    ends: dict[int, list[str]] = {}
    alive: set[str] = set()
    found: dict[int, str] = {}
    for index, operator in enumerate(model.operators):
        if alive and len(alive) == 1 and not operator.loops and index - 1 not in free:
            (only,) = alive
            if model.tensor(only).is_float and model.tensor(only).shape:
                found[index] = only
        for value in filter(None, operator.outputs):
            if index not in free and last.get(value, index) > index:
                alive.add(value)
                ends.setdefault(last[value], []).append(value)
        alive.difference_update(ends.pop(index, ()))
    return found


def _at_blocks(model: Model, possible: Sequence[int]) -> list[int]:
    """Of the possible places those at which a repeated block begins or its last copy ends."""
    wanted = {copy[0] for block in model.blocks for copy in block.copies}
    wanted |= {block.copies[-1][-1] + 1 for block in model.blocks}
    return [place for place in possible if place in wanted]


def _balanced(possible: Sequence[int], rules: Sequence[Rule]) -> list[int]:
    """At most `MOST_UNITS` - 1 of the possible places, about equal work between them."""
    total = sum(rule.flops for rule in rules)
    chosen: list[int] = []
    done = 0.0
    places = set(possible)
    for index, rule in enumerate(rules):
        if index in places and done >= total * (len(chosen) + 1) / MOST_UNITS and len(chosen) < MOST_UNITS - 1:
            chosen.append(index)
        done += rule.flops
    return chosen or [possible[len(possible) // 2]]


def _names(model: Model, places: Sequence[int]) -> tuple[str, ...]:
    starts = {copy[0]: name for block in model.blocks for copy, name in zip(block.copies, block.names, strict=True)}
    found = []
    for number, (low, high) in enumerate(itertools.pairwise(places)):
        named = [starts[index] for index in range(low, high) if index in starts]
        if named:
            found.append(named[0] if len(named) == 1 else f"{named[0]} … {named[-1]}")
        else:
            found.append("start" if not number else "end" if high == places[-1] else f"unit {number}")
    return tuple(found)


def needed_for(chain: Chain, own: set[int]) -> set[int]:
    """The operators free of weights whose results `own` read, directly or not."""
    makers = {value: index for index in chain.free for value in chain.model.operators[index].outputs if value}
    found: set[int] = set()
    waiting = list(own)
    while waiting:
        for value in chain.model.operators[waiting.pop()].inputs:
            maker = makers.get(value)
            if maker is not None and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


def _blocks(model: Model, indices: Sequence[int]) -> tuple[Block, ...]:
    """The repeated blocks with those of their copies that are there as a whole; one alone still is a block, which runs
    again where blocks do."""
    place: Mapping[int, int] = {index: position for position, index in enumerate(indices)}
    found = []
    for block in model.blocks:
        whole = [number for number, copy in enumerate(block.copies) if all(index in place for index in copy)]
        if whole:
            copies = tuple(tuple(place[index] for index in block.copies[number]) for number in whole)
            found.append(Block(tuple(block.names[number] for number in whole), copies))
    return tuple(found)
