"""Seconds of collectives: the fastest of all flat algorithms and their compositions.

Compositions are alternatives that a runtime has: an all-reduce is a reduce-scatter and an all-gather; an all-gather is
an all-reduce of zero-padded shards; a collective over several mesh axes is one over each of them in some order; an
all-to-all or a permute is an all-gather of which a part is kept; and a collective inside of a machine is never slower
than the same between machines. So these laws hold exactly, for every profile, with T the price of a payload of b or S
bytes on n devices:

    T(S) rises, is concave and subadditive;   T = 0 for n = 1
    reduce_scatter, all_gather <= all_reduce <= reduce_scatter + all_gather
    all_to_all(b), permute(b) <= all_gather(n b)
    one collective over several axes <= the same over the axes one by one, in any order
    at equal n, a group that spans more machines (of every level at least as many) is never cheaper
    twice the bandwidth is never slower
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from shardplan.cluster.types import Cluster
from shardplan.cost.algorithms import flat_prices
from shardplan.cost.envelope import Envelope, Price, envelope, measured, price_at, prices_at, scaled, then
from shardplan.cost.links import Group
from shardplan.cost.types import Floats
from shardplan.layout.collective import FREE, CollectiveKind

Axes = tuple[int, ...]


class CollectiveModel:
    """Prices collectives on the mesh of a cluster. Each group is priced once, on first use."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._real = cluster.mesh.real_axes
        self._groups: dict[Axes, Group] = {}
        self._bases: dict[tuple[CollectiveKind, Axes], Envelope] = {}
        self._envelopes: dict[tuple[CollectiveKind, Axes], Envelope] = {}
        self._curves = {
            (curve.collective, curve.nodes, curve.per_node): measured(curve.points) for curve in cluster.curves
        }

    def seconds(self, kind: CollectiveKind, axes: Axes, payload_bytes: float) -> float:
        """Seconds of one collective over the devices that differ in `axes`, all sibling groups running it at once.

        `payload_bytes` as in `Collective.share`: of `all_gather` the gathered output, of `reduce_scatter` and
        `all_reduce` the input of one device, of `all_to_all` its send buffer, of `permute` what it sends.
        """
        return price_at(self.prices(kind, axes), payload_bytes)

    def seconds_array(self, kind: CollectiveKind, axes: Axes, payload_bytes: Floats) -> Floats:
        """`seconds` for an array of payloads, same shape."""
        return prices_at(self.prices(kind, axes), payload_bytes)

    def prices(self, kind: CollectiveKind, axes: Axes) -> Envelope:
        """The price curves whose minimum `seconds` is; none if nothing moves."""
        key = (kind, axes)
        if key not in self._envelopes:
            group = tuple(axis for axis in self._real if axis in axes)
            self._envelopes[key] = self._final(kind, group) if group and kind not in FREE else ()
        return self._envelopes[key]

    def _group(self, axes: Axes) -> Group:
        if axes not in self._groups:
            self._groups[axes] = Group.of(self.cluster, axes)
        return self._groups[axes]

    def _final(self, kind: CollectiveKind, axes: Axes) -> Envelope:
        if kind in ("all_to_all", "permute"):
            gathered = self.prices("all_gather", axes)
            return envelope([*self._base(kind, axes), *scaled(gathered, self._group(axes).size)])
        scattered, gathered = self._base("reduce_scatter", axes), self._base("all_gather", axes)
        reduced = [*self._base("all_reduce", axes), *then(scattered, gathered)]
        return envelope(reduced if kind == "all_reduce" else [*self._base(kind, axes), *reduced])

    def _base(self, kind: CollectiveKind, axes: Axes) -> Envelope:
        """Prices without substitution of another kind: the flat algorithms, stages over one set of axes after another,
        and the prices of farther groups of this size."""
        key = (kind, axes)
        if key not in self._bases:
            farther = [self._base(kind, other) for other in self._farther(axes)]
            own = [*self._flat(kind, axes), *self._staged(kind, axes)]
            self._bases[key] = envelope(itertools.chain(own, *farther))
        return self._bases[key]

    def _flat(self, kind: CollectiveKind, axes: Axes) -> Envelope:
        group = self._group(axes)
        curve = self._curves.get((kind, group.machines, group.ranks[0]))
        return curve if curve is not None else envelope(flat_prices(group, kind))

    def _staged(self, kind: CollectiveKind, axes: Axes) -> Iterator[Price]:
        """Prices of `kind` over two parts of `axes` in turn, for every way to split them; not for a permute."""
        for outer, inner in _splits(axes) if kind != "permute" else ():
            near, far = self.prices(kind, inner), self.prices(kind, outer)
            part = 1 / self._group(inner).size
            if kind in ("all_gather", "reduce_scatter"):
                yield from then(scaled(far, part), near)
            else:
                yield from then(far, near)
            if kind == "all_reduce":
                around = then(self.prices("reduce_scatter", inner), self.prices("all_gather", inner))
                yield from then(around, scaled(far, part))

    def _farther(self, axes: Axes) -> Iterator[Axes]:
        """Groups of the same size that span more machines (at no level fewer)."""
        group = self._group(axes)
        for other in _subsets(self._real):
            candidate = self._group(other)
            if other != axes and candidate.size == group.size and candidate.spans() != group.spans():
                pairs = zip(group.spans(), candidate.spans(), strict=True)
                if all(near <= far for near, far in pairs):
                    yield other


def _subsets(axes: Axes) -> Iterator[Axes]:
    return itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(1, len(axes) + 1))


def _splits(axes: Axes) -> Iterator[tuple[Axes, Axes]]:
    """Every way of cutting `axes` into two non-empty parts, in both orders."""
    for part in _subsets(axes):
        if len(part) < len(axes):
            yield part, tuple(axis for axis in axes if axis not in part)
