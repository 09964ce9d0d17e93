"""Smaller sizes for all dims that are consistent everywhere and still divide by the plan's numbers of shards.

Rules say which dims are the same factor and which are products of factors. Dims that are never part of a product take
any size; the others are divided by powers of small primes, whose exponents are a small integer program: the exponent of
a product is the sum of those of its factors.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.program.shrink.classes import Classes, Node, Place, relate
from shardplan.rules.types import Rule
from shardplan.solve.highs.program import quiet_highs

PRIMES = (2, 3, 5, 7)
LEAST = 4
"""No dim becomes smaller than this, unless it was: with fewer elements too many mistakes are not noticed."""


@dataclass(frozen=True)
class Sizes:
    """New sizes of all dims of all tensors; `ratios`: by what each factor of each operator (by number) is divided,
    where it grows a fraction below one."""

    places: Mapping[Place, int]
    ratios: Mapping[tuple[int, str], int | Fraction]

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """The new shape of a tensor."""
        return tuple(self.places[name, dim] for dim in range(rank))


def smaller_sizes(model: Model, plan: Plan, rules: Sequence[Rule], room: int = 2, least: int = LEAST) -> Sizes:
    """Sizes that fit together, as small as they may be. `room`: how many elements of a dim every device keeps at
    least, where it had as many; `least`: how many a dim keeps that is bound to others."""
    classes = relate(model, rules)
    sizes = {(name, dim): size for name, tensor in model.tensors.items() for dim, size in enumerate(tensor.shape)}
    factors = {(i, name): size for i, rule in enumerate(rules) for name, size in rule.sizes.items()}
    needs = _needs(model, plan)
    pieces = _pieces(plan, sizes)
    free = _free_sizes(classes, sizes, needs, room)
    current: dict[Node, int] = dict(itertools.chain[tuple[Node, int]](sizes.items(), factors.items()))
    for prime in PRIMES:
        exponents = _exponents(classes, current, needs, pieces, free, prime, room, least)
        for node in current:
            current[node] //= prime ** exponents.get(classes.find(node), 0)
        for place, lengths in pieces.items():
            pieces[place] = {length // prime ** exponents.get(classes.find(place), 0) for length in lengths}
    found = {node: free.get(classes.find(node), size) for node, size in current.items()}
    ratios = {node: size // max(1, found[node]) for node, size in factors.items()}
    return Sizes({place: found[place] for place in sizes}, ratios)


def _plans(plan: Plan) -> list[Plan]:
    """The plan, or those of its stages."""
    return [plan] if plan.pipeline is None else [stage.plan for stage in plan.pipeline.stages]


def _needs(model: Model, plan: Plan) -> dict[Node, int]:
    """By what the plan divides each place and each factor: the sizes of the axes that shard it in any layout; where
    several stages do, each on a mesh of its own, what all of them divide."""
    number = {operator.name: index for index, operator in enumerate(model.operators)}
    needs: dict[Node, int] = {}
    for single in _plans(plan):
        axes: dict[Node, set[int]] = defaultdict(set)
        for decision in single.operators:
            for axis, label in enumerate(decision.split if decision.name in number else ()):
                axes[number[decision.name], label.partition(";")[0]].add(axis)
        for name, layout in _layouts(single, number):
            for axis, placement in enumerate(layout.placements):
                if placement.is_shard:
                    axes[name, placement.dim].add(axis)
        for node, split in axes.items():
            needs[node] = math.lcm(needs.get(node, 1), single.mesh.ways(sorted(split)))
    return needs


def _layouts(plan: Plan, operators: Container[str]) -> Iterator[tuple[str, Layout]]:
    """Every layout in which the plan has a tensor, those around `operators` among them."""
    for tensor in plan.tensors:
        yield from ((tensor.name, layout) for layout in (tensor.layout, tensor.served))
    for decision in plan.operators:
        if decision.name in operators:
            names, layouts = (*decision.inputs, *decision.outputs), (*decision.reads, *decision.makes)
            yield from ((name, layout) for name, layout in zip(names, layouts, strict=True) if layout is not None)


def _pieces(plan: Plan, sizes: Mapping[Place, int]) -> dict[Place, set[int]]:
    """The lengths of the segments in which the plan cuts dims; each must remain a multiple of what cuts it."""
    pieces: dict[Place, set[int]] = defaultdict(set)
    for single in _plans(plan):
        for name, layout in _layouts(single, {decision.name for decision in single.operators}):
            for placement in layout.placements:
                if placement.segments and (name, placement.dim) in sizes:
                    pieces[name, placement.dim].update(placement.segments)
    return dict(pieces)


def _free_sizes(classes: Classes, sizes: Mapping[Place, int], needs: Mapping[Node, int], room: int) -> dict[Node, int]:
    """Class -> new size, for dims that are no part of a product."""
    members: dict[Node, list[Place]] = defaultdict(list)
    for place in sizes:
        members[classes.find(place)].append(place)
    need: dict[Node, int] = defaultdict(lambda: 1)
    for node, ways in needs.items():
        need[classes.find(node)] = math.lcm(need[classes.find(node)], ways)
    free = {}
    for root, places in members.items():
        alike = {sizes[place] for place in places}
        if root not in classes.fixed and root not in classes.bound and len(alike) == 1:
            ways = need[root]
            free[root] = min(*alike, max(room * ways, -(-LEAST // ways) * ways))
    return free


def _exponents(
    classes: Classes,
    current: Mapping[Node, int],
    needs: Mapping[Node, int],
    pieces: Mapping[Place, set[int]],
    free: Mapping[Node, int],
    prime: int,
    room: int,
    least: int,
) -> dict[Node, int]:
    """How often each class is divided by `prime`: as often as possible in all."""
    limits: dict[Node, int] = {}
    for node, size in current.items():
        root = classes.find(node)
        shortest = least if isinstance(node[0], str) else 2
        limit = 0 if root in classes.fixed else _times(size, needs.get(node, 1), prime, shortest, room)
        limits[root] = min(limit, limits.get(root, limit))
    for place, lengths in pieces.items():
        root = classes.find(place)
        limits[root] = min(limits[root], *(_times(length, needs.get(place, 1), prime, 1, room) for length in lengths))
    used = {node for product, nodes in classes.products for node in map(classes.find, (product, *nodes))}
    simple = {root: limit for root, limit in limits.items() if root not in used and root not in free}
    solver = quiet_highs()
    variables = {
        root: solver.addIntegral(lb=0, ub=limits.get(root, 0)) for root in dict.fromkeys(sorted(used, key=str))
    }
    if not variables:
        return simple
    for product, nodes in dict.fromkeys((classes.find(p), tuple(map(classes.find, n))) for p, n in classes.products):
        solver.addConstr(sum(variables[node] for node in nodes) == variables[product])
    solver.maximize(sum(variables.values()))
    found = {root: round(solver.val(variable)) for root, variable in variables.items()}
    return {**simple, **found}


def _times(size: int, need: int, prime: int, least: int, room: int) -> int:
    """How often `size` can be divided by `prime` and still be a multiple of `need`, and no less than it should."""
    times = 0
    least = min(size, max(room * need, least) if least > 1 else need)
    while size and size % prime == 0 and (size // prime) % need == 0 and size // prime >= least:
        size //= prime
        times += 1
    return times
