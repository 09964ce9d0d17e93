"""Plans for gradient buckets of the size that the best plan's schedule has, in place of full ones.

No schedule may be below the bound, so its sums charge every gradient a share of a full bucket. A schedule sends less at
a time: small early buckets start communication early, small late ones leave little to send after the last compute, and
each pays the whole latency. So the best assignments for the sums send too much. Prices for buckets of a size that
schedules have lead to other assignments, which the schedule then compares with the others.
"""

from __future__ import annotations

from dataclasses import replace

from shardplan.plan.step.buckets import buckets_of, device_bytes
from shardplan.planning.constants import BUCKET_GAP, BUCKET_SHARE
from shardplan.planning.judge import Candidate
from shardplan.planning.questions import about, better_of
from shardplan.planning.search import Found, Questions, Search


def at_scheduled_buckets(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of those at the prices of buckets of the size that its schedule has, if that
    schedule is far longer than the sums say."""
    size_bytes = _mean_bucket_bytes(found.candidate)
    if not size_bytes or found.excess <= BUCKET_GAP:
        return found
    question = replace(about(found, None), bucket_bytes=BUCKET_SHARE * size_bytes, averages=1)
    found, _ = yield from better_of(search, found, question, proves=False)
    return found


def _mean_bucket_bytes(candidate: Candidate) -> float:
    """A device's bytes of the mean bucket in a plan's schedule; 0 if it has none."""
    mesh = candidate.layouts.built.cluster.mesh
    buckets = buckets_of(candidate.priced.scheduled.parts.moves)
    sent_bytes = sum(device_bytes(move, mesh) for bucket in buckets.values() for move in bucket)
    return float(sent_bytes) / len(buckets) if buckets else 0.0
