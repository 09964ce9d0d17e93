"""Gradient bucketing: the share of a bucket's time that one weight's gradient is charged.

A collective of few bytes costs mostly its latency. Frameworks collect gradients until a bucket is full, and send it.
Let T(S) be the time to move a tensor of which a device has S bytes, and B the size of a bucket. The tensor is charged

    S / B T(B)   for S < B,      T(S)   else

T is concave and 0 at 0, so that is min(T(S), S / B T(B)): it is increasing, concave, and never above T. A bucket holds
at most B, or a single tensor; it always takes at least the sum of what its tensors are charged
(tests/cost/test_coalesce.py). The buckets themselves are formed for a whole plan: `shardplan.plan.step.bucketing`.
"""

from __future__ import annotations

from typing import Final

from shardplan.cost.moves import CollectiveSeconds
from shardplan.layout.collective import Collective, CollectiveKind

COALESCED: Final[frozenset[CollectiveKind]] = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
"""Collectives of several tensors that are one collective of their elements in a row."""


def in_bucket(seconds: CollectiveSeconds, bucket_bytes: float) -> CollectiveSeconds:
    """`seconds` of a collective on a tensor of `size_bytes`, as its share of a bucket of `bucket_bytes`."""

    def price(collective: Collective, size_bytes: float) -> float:
        if collective.kind not in COALESCED or size_bytes >= bucket_bytes:
            return seconds(collective, size_bytes)
        return seconds(collective, bucket_bytes) * (size_bytes / bucket_bytes)

    return price
