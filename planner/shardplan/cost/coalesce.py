"""Gradients of weights sent together: what one of them costs as its share of a bucket.

A collective of few bytes costs mostly its latency. Frameworks put gradients together until a bucket is full, and send
that. With T(S) what it takes to move a tensor of which a device has S bytes, and B the size of a bucket, it is charged

    S / B T(B)   for S < B,      T(S)   else

T is concave and 0 at 0, so that is min(T(S), S / B T(B)): it rises, is concave, and never above T. A bucket holds at
most B, or a single tensor; whatever it is made of, it takes at least the sum of what its parts are charged
(tests/cost/test_coalesce.py). Which buckets there are is decided for a whole plan: `shardplan.plan.bucketing`.
"""

from __future__ import annotations

from typing import Final

from shardplan.cost.moves import CollectiveSeconds
from shardplan.layout.collective import Collective, CollectiveKind

COALESCED: Final[frozenset[CollectiveKind]] = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
"""Collectives of several tensors that are one collective of their elements in a row."""


def in_bucket(seconds: CollectiveSeconds, bucket_bytes: float) -> CollectiveSeconds:
    """`seconds` of a collective on a tensor of so many bytes, in a bucket of `bucket_bytes`, all of whole tensors."""

    def price(collective: Collective, size_bytes: float) -> float:
        if collective.kind not in COALESCED or size_bytes >= bucket_bytes:
            return seconds(collective, size_bytes)
        return seconds(collective, bucket_bytes) * (size_bytes / bucket_bytes)

    return price
