"""Hidet's automatic parallelisation, with its prices on our graph and our solver.

Source: hidet-org/hidet, branch auto-parallel, run with its own solver: an fp32 MLP x [8, 1024, 1024] -> 4096 -> 1024
on 8
devices, with budgets for the weights. Hidet does not charge the gather of a result, and never gathers a stored shard.
"""

import itertools

import pytest
from peer_mlp import Solved, mlp

from shardplan.graph.pricing import Pricing

ROWS = 8 * 1024


def hidet(*pins: str) -> Solved:
    return Solved(8, Pricing.hidet, "x=replicate", *pins, model=mlp(ROWS), split_all=False)


def test_with_room_for_all_weights_everything_is_replicated():
    assert hidet().cost == 0


def cheapest_with_both_weights_split(*pins: str) -> tuple[float, str, str]:
    """A budget of 0.2 of the weights leaves room for neither whole: both products must read shards."""
    tried = {
        (first, second): hidet(f"fc1={{machine: {first}}}", f"fc2={{machine: {second}}}", *pins).cost
        for first, second in itertools.product("nk", "nk")
    }
    (first, second), cost = min(tried.items(), key=lambda item: item[1])
    return cost, first, second


def test_without_room_column_then_contract_and_one_reduce_scatter():
    assert cheapest_with_both_weights_split() == (33554432, "n", "k")


def test_when_the_result_is_charged_too():
    assert cheapest_with_both_weights_split("y=replicate") == (67108864, "n", "k")


@pytest.mark.parametrize(("kind", "share"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1), ("slice", 0)])
def test_prices(kind, share):
    from shardplan.cost.hidet import HidetCollectives

    assert HidetCollectives(8).seconds(kind, (0,), 1000.0) == 1000.0 * share
    assert HidetCollectives(1).seconds(kind, (0,), 1000.0) == 0.0
