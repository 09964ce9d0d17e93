"""Equal treatment of layers, for runtimes with one rule per module of all layers: every layer follows the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from shardplan.graph.build import CostGraph, Node
from shardplan.planning.reduction import Allowed, Mask
from shardplan.planning.runtimes.facts import Facts, facts_of, wildcard

T = TypeVar("T")
Way = tuple[tuple[str, ...], tuple[bool, ...], tuple[bool, ...]]
"""How a module is split: the labels of its operator's strategy by axis, whether its result is kept in slices, and
whether its data arrives in slices."""


def differing(built: CostGraph, choice: Mapping[Node, int], axes: Sequence[int]) -> dict[str, Counter[Way]]:
    """Patterns of modules whose copies in the layers are split differently on `axes`, each with the splits of its
    copies."""
    facts = facts_of(built)
    ways: dict[str, Counter[Way]] = {}
    for index, module in facts.modules.items():
        ways.setdefault(wildcard(module), Counter())[_way(built, facts, index, choice, axes)] += 1
    return {pattern: found for pattern, found in ways.items() if len(found) > 1}


@dataclass(frozen=True)
class Alike:
    """A restriction: the modules of each pattern in `ways` are split in that way on `axes`; `None` keeps them whole."""

    ways: Mapping[str, Way | None]
    axes: tuple[int, ...]

    def __call__(self, built: CostGraph) -> Allowed:
        facts = facts_of(built)
        found: dict[Node, Mask] = {}
        for index, module in facts.modules.items():
            pattern = wildcard(module)
            if pattern in self.ways:
                for node, mask in _masks(built, facts, index, self.ways[pattern], self.axes):
                    found[node] = found[node] & mask if node in found else mask
        return found


def _way(built: CostGraph, facts: Facts, index: int, choice: Mapping[Node, int], axes: Sequence[int]) -> Way:
    operator = built.model.operators[index]
    strategies = built.operators[index].strategies
    made = next((name for name in operator.outputs if name in built.kept), "")
    data = _data(built, facts, index)
    return (
        _on(axes, strategies.labels(choice["operator", operator.name])),
        _on(axes, _cut(built, made, choice["kept", made])) if made else (),
        _on(axes, _cut(built, data, choice["kept", data])) if data else (),
    )


def _on(axes: Sequence[int], each: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(each[axis] for axis in axes)


def _data(built: CostGraph, facts: Facts, index: int) -> str:
    inputs = built.model.operators[index].inputs
    return next((name for name in inputs if name in built.kept and name not in facts.views), "")


def _cut(built: CostGraph, name: str, chosen: int) -> tuple[bool, ...]:
    space = built.kept[name]
    return tuple(bool(code < len(space.kind.shards)) for code in space.codes[chosen])


def _masks(
    built: CostGraph, facts: Facts, index: int, way: Way | None, axes: tuple[int, ...]
) -> Iterator[tuple[Node, Mask]]:
    operator = built.model.operators[index]
    strategies = built.operators[index].strategies
    labels = [_on(axes, strategies.labels(number)) for number in range(len(strategies))]
    if way is None:
        large = facts.matrices[index]
        codes = strategies.layout_codes("operands", large)[:, axes]
        space = strategies.operands[large]
        assert space is not None
        yield ("operator", operator.name), np.asarray((codes >= len(space.kind.shards)).all(axis=1))
        return
    wanted, kept, arriving = way
    yield ("operator", operator.name), np.array([label == wanted for label in labels], dtype=np.bool_)
    made = next((name for name in operator.outputs if name in built.kept), "")
    for name, cut in ((made, kept), (_data(built, facts, index), arriving)):
        if name and cut:
            space = built.kept[name]
            slices = space.codes[:, axes] < len(space.kind.shards)
            yield ("kept", name), np.asarray((slices == np.array(cut)).all(axis=1))
