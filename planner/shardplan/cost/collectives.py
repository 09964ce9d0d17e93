"""Seconds of collectives: flat algorithms, and everything that can be composed of others, whichever is fastest.

Compositions are what a runtime may do instead: an all-reduce is a reduce-scatter and an all-gather; an all-gather is an
all-reduce of zero-padded shards; a collective over several mesh axes is one over each of them in some order; an
all-to-all or a permute is an all-gather of which a part is kept; and what can be done between machines can be done as
fast inside one. So these hold exactly, for every profile, with T the price of a payload of b or S bytes on n devices:

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
    """Prices collectives on the mesh of a cluster. Groups are priced once, when first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._real = tuple(axis for axis, size in enumerate(cluster.mesh.shape) if size > 1)
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
        """The price curves whose minimum `seconds` is; none where nothing moves."""
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
        """Prices before another kind may stand in: the flat algorithm, stages over one axis set after another, and
        whatever farther groups of this size can do."""
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
        """Every way of running `kind` over two parts of `axes` in turn, a permute excepted."""
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
        """Groups of as many devices that span more machines (on no level fewer)."""
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
