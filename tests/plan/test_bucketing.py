"""Where rounds of buckets end, against every way in which they could."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.plan.step.bucketing import Bucket, Queue, earliest, fullest, merged

QUEUES = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 20), min_size=n, max_size=n).map(sorted),
        st.lists(st.integers(0, 9), min_size=n, max_size=n),
        st.lists(st.integers(0, 1), min_size=n, max_size=n),
        st.lists(st.integers(1, 9), min_size=n, max_size=n),
        st.tuples(st.integers(0, 6), st.integers(0, 6)),
        st.integers(5, 40),
    )
)


def queue_of(drawn):
    ready, seconds, groups, sizes, latencies, most = drawn
    floats = [np.array(values, dtype=float) for values in (ready, seconds, sizes)]
    return Queue(floats[0], floats[1], np.array(groups), floats[2], latencies, float(most))


def rounds(ends):
    return list(itertools.pairwise((0, *ends)))


def is_allowed(queue, start, end):
    if end - start == 1:
        return True
    return all(queue.sizes[start:end][queue.groups[start:end] == g].sum() <= queue.most for g in (0, 1))


def arrival(queue, ends):
    """When the last round has arrived: rounds are sent one after the other, each when all of it is there."""
    now = 0.0
    for start, end in rounds(ends):
        there = set(queue.groups[start:end].tolist())
        now = max(now, queue.ready[end - 1]) + queue.seconds[start:end].sum() + sum(queue.latencies[g] for g in there)
    return now


def every(queue):
    """All allowed ends of rounds."""
    count = len(queue.ready)
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, count), k) for k in range(count)):
        ends = [*cuts, count]
        if all(is_allowed(queue, start, end) for start, end in rounds(ends)):
            yield ends


@settings(max_examples=150)
@given(QUEUES)
def test_no_other_rounds_arrive_earlier(drawn):
    queue = queue_of(drawn)
    found = earliest(queue)
    assert all(is_allowed(queue, start, end) for start, end in rounds(found))
    assert arrival(queue, found) == min(arrival(queue, ends) for ends in every(queue))


@given(QUEUES)
def test_full_rounds_are_allowed_and_cannot_go_on(drawn):
    queue = queue_of(drawn)
    found = fullest(queue)
    assert found[-1] == len(queue.ready)
    for start, end in rounds(found):
        assert is_allowed(queue, start, end)
        assert end == found[-1] or not is_allowed(queue, start, end + 1)


def test_rounds_grow_where_the_link_falls_behind():
    """Twenty equal gradients, one a second, each 0.9 seconds on the link; a bucket costs a second more."""
    queue = Queue(np.arange(1.0, 21.0), np.full(20, 0.9), np.zeros(20, dtype=int), np.ones(20), [1.0], 8.0)
    assert [end - start for start, end in rounds(earliest(queue))] == [3, 3, 4, 5, 5]
    assert arrival(queue, earliest(queue)) == 26.0
    assert arrival(queue, fullest(queue)) == 29.0


def _arrives(buckets, prices):
    """When the last bucket has been sent, each as soon as it is there and the link is free."""
    now = 0.0
    for one in buckets:
        now = max(now, one.ready) + prices[one.group](one.held)
    return now


PRICES = (lambda held: 1.0 + held, lambda held: 2.0 * held**0.5)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=9))
def test_merged_buckets_arrive_no_later_and_save_time(drawn):
    ready = list(itertools.accumulate(gap for _, gap, _ in drawn))
    buckets = [
        Bucket((row,), group, float(at), float(held))
        for row, ((group, _, held), at) in enumerate(zip(drawn, ready, strict=True))
    ]
    found = merged(buckets, PRICES, most=8.0)
    assert sorted(row for one in found for row in one.rows) == list(range(len(buckets)))
    assert [one.ready for one in found] == sorted(one.ready for one in found)
    for one in found:
        assert {buckets[row].group for row in one.rows} == {one.group}
        assert one.held == sum(buckets[row].held for row in one.rows) <= 8.0
        assert one.ready == max(buckets[row].ready for row in one.rows)
    assert _arrives(found, PRICES) <= _arrives(buckets, PRICES) + 1e-9
    taken, before = (sum(PRICES[one.group](one.held) for one in each) for each in (found, buckets))
    assert taken <= before + 1e-9


def test_a_group_that_has_little_to_send_skips_rounds():
    large = [Bucket((2 * turn,), 0, float(turn), 4.0) for turn in range(4)]
    small = [Bucket((2 * turn + 1,), 1, turn + 0.1, 0.01) for turn in range(4)]
    rounds = sorted(large + small, key=lambda one: one.ready)
    found = merged(rounds, PRICES, most=4.5)
    assert [one.rows for one in found] == [(0,), (2,), (4,), (6,), (1, 3, 5, 7)]
