"""The enumeration of single collectives is complete and contains nothing else.

Here a collective is possible between two layouts if the sets of elements that devices hold say so, whatever the axis
lists look like; that is compared with what `transitions` enumerates, kind by kind, group by group.
"""

import itertools
from collections import Counter

import pytest

from shardplan.layout.layout import Layout
from shardplan.layout.legal import tile
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, R, S
from shardplan.layout.table import transition_table
from shardplan.layout.transitions import transitions


def held(layout, mesh, shape):
    """Per rank, the set of elements."""
    result = []
    for place in mesh.coordinates():
        dims = [list(itertools.chain(*(range(*piece) for piece in dim))) for dim in tile(layout, mesh, shape, place)]
        result.append(frozenset(itertools.product(*dims)))
    return result


def partial_axes(layout):
    return {axis for axis, placement in enumerate(layout.placements) if placement == P()}


def parts(sets):
    """The union of sets that do not overlap; None if they do."""
    union = frozenset().union(*sets)
    return union if sum(map(len, sets)) == len(union) else None


class Possible:
    """Which collectives can lead from `u` to `v`, decided by who holds what."""

    def __init__(self, mesh, shape, u, v):
        self.mesh, self.places = mesh, list(mesh.coordinates())
        self.before, self.after = held(u, mesh, shape), held(v, mesh, shape)
        self.partial_before, self.partial_after = partial_axes(u), partial_axes(v)

    def kinds(self):
        found = set()
        axes = range(len(self.mesh))
        for size in range(1, len(axes) + 1):
            for group in itertools.combinations(axes, size):
                for kind in ("slice", "mask", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"):
                    smaller = any(known == kind and set(axes) <= set(group) for known, axes in found)
                    if not smaller and all(
                        getattr(self, kind)(set(group), members) for members in self.mesh.groups(group)
                    ):
                        found.add((kind, group))
        return found

    def slice(self, _group, members):
        own = all(self.after[rank] < self.before[rank] for rank in members)
        same = len({self.before[rank] for rank in members}) == 1
        spread = parts([self.after[rank] for rank in members]) == self.before[members[0]]
        return own and same and spread and self.partial_before == self.partial_after

    def mask(self, group, members):
        wanted = {self.after[rank] for rank in members}
        return (
            self.partial_after - self.partial_before == group
            and self.partial_before < self.partial_after
            and wanted == {frozenset().union(*(self.before[rank] for rank in members))}
        )

    def all_gather(self, _group, members):
        wanted = {self.after[rank] for rank in members}
        return self.partial_before == self.partial_after and wanted == {parts([self.before[rank] for rank in members])}

    def reduce_scatter(self, group, members):
        summed = self.partial_before - self.partial_after == group and self.partial_after < self.partial_before
        given = {self.before[rank] for rank in members}
        return summed and given == {parts([self.after[rank] for rank in members])}

    def all_reduce(self, group, members):
        summed = self.partial_before - self.partial_after == group and self.partial_after < self.partial_before
        return summed and all(self.before[rank] == self.after[rank] for rank in members)

    def all_to_all(self, _group, members):
        before, after = ([sets[rank] for rank in members] for sets in (self.before, self.after))
        equal = len({len(x & y) for x in before for y in after}) == 1
        return self.partial_before == self.partial_after and equal and parts(before) == parts(after) is not None

    def permute(self, group, members):
        def offered(sets, partial):
            return Counter(
                (sets[rank], self.mesh.number(sorted(partial & group), self.places[rank])) for rank in members
            )

        outside = self.partial_before - group == self.partial_after - group
        return outside and offered(self.before, self.partial_before) == offered(self.after, self.partial_after)


CASES = [
    ((2, 2), (4, 4)),
    ((2, 3), (6, 6)),
    ((2, 4), (8, 8)),
    ((2, 2, 4), (16,)),
    ((4,), (4, 4)),
]


@pytest.mark.parametrize(("sizes", "shape"), CASES, ids=str)
def test_exactly_the_possible_collectives_are_enumerated(sizes, shape):
    mesh = Mesh.of(**{f"axis{number}": size for number, size in enumerate(sizes)})
    alphabet = (*(S(dim) for dim in range(len(shape))), P())
    for source in transition_table(mesh, alphabet).states:
        enumerated = {}
        for target, collective in transitions(mesh, source, alphabet):
            enumerated.setdefault(target, set()).add((collective.kind, collective.axes))
        for target in transition_table(mesh, alphabet).states:
            if target != source:
                possible = Possible(mesh, shape, source, target).kinds()
                assert enumerated.get(target, set()) == possible, (source, target)


def test_the_judge_knows_an_impossible_exchange():
    """Two dims that swap their axes of sizes 2 and 3 do not exchange equal pieces: no single collective."""
    mesh = Mesh.of(a=2, b=3)
    assert Possible(mesh, (6, 6), Layout.of(S(0), S(1)), Layout.of(S(1), S(0))).kinds() == set()
    assert Possible(mesh, (6, 6), Layout.of(S(0), R), Layout.of(S(1), R)).kinds() == {("all_to_all", (0,))}
