"""Algorithms of collectives: a table of flat algorithms, each with its number of steps and its seconds per byte.

The price of a collective is that of the cheapest row for it (`shardplan.cost.collectives` composes rows further).
Formulas are in docs/cost-model.md. In-network reduction by switches is a row of `shardplan.cost.links.OFFLOADS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shardplan.cost.envelope import Price
from shardplan.cost.links import Group, bus_bandwidth, exchange_seconds, ramp_bytes, send_seconds
from shardplan.layout.collective import CollectiveKind


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm for collectives of `kinds`. `steps`: (group, level) -> number of consecutive messages over that
    level; `at_once`: messages of different levels run concurrently. `per_byte`: seconds per byte of payload (as in
    `Collective.share`) of the slowest link."""

    name: str
    kinds: tuple[CollectiveKind, ...]
    steps: Callable[[Group, int], int]
    per_byte: Callable[[Group, CollectiveKind], float]
    at_once: bool = False


def _ring_steps(group: Group, level: int) -> int:
    """Steps of a ring: one message for each pair of neighbours that this level joins."""
    return math.prod(group.ranks[level:]) - math.prod(group.ranks[level + 1 :])


def _tree_steps(group: Group, level: int) -> int:
    """Steps of a chain inside a machine and a binary tree over machines."""
    ranks = group.ranks[level]
    return ranks - 1 if level == 0 else math.ceil(math.log2(ranks))


def _there_and_back(steps: Callable[[Group, int], int]) -> Callable[[Group, int], int]:
    return lambda group, level: 2 * steps(group, level)


def _reduced(group: Group, kind: CollectiveKind) -> float:
    """Every byte crosses a link (n - 1)/n times; twice for an all-reduce."""
    wire = (2 if kind == "all_reduce" else 1) * (group.size - 1) / group.size
    return wire / bus_bandwidth(group, kind)


def _exchanged(group: Group, _: CollectiveKind) -> float:
    return max(exchange_seconds(group, level) for level in group.crossed)


def _sent(group: Group, _: CollectiveKind) -> float:
    return max(send_seconds(group, level) for level in group.crossed)


def _one(_: Group, __: int) -> int:
    return 1


ALGORITHMS: Final = (
    Algorithm("ring", ("all_gather", "reduce_scatter"), _ring_steps, _reduced),
    Algorithm("ring", ("all_reduce",), _there_and_back(_ring_steps), _reduced),
    Algorithm("tree", ("all_reduce",), _there_and_back(_tree_steps), _reduced),
    Algorithm("direct exchange", ("all_to_all",), _ring_steps, _exchanged),
    Algorithm("direct send", ("permute",), _one, _sent, at_once=True),
)


def flat_prices(group: Group, kind: CollectiveKind) -> list[Price]:
    """The prices of `kind` over `group`, one per algorithm: seconds as `(a, b, c)` of `a + b S + c sqrt(S)`."""
    return [_price(group, kind, algorithm) for algorithm in ALGORITHMS if kind in algorithm.kinds]


def _price(group: Group, kind: CollectiveKind, algorithm: Algorithm) -> Price:
    inverse = algorithm.per_byte(group, kind)
    return _latency(group, algorithm), inverse, inverse * math.sqrt(ramp_bytes(group))


def _latency(group: Group, algorithm: Algorithm) -> float:
    """The start-up time, and the latency of every step."""
    levels = group.levels
    steps = [algorithm.steps(group, level) * levels[level].step_s for level in group.crossed]
    return max(levels[level].base_s for level in group.crossed) + (max(steps) if algorithm.at_once else sum(steps))
