"""The search over cuts against enumeration, and the schedules' formulas."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardplan.errors import ShardplanError
from shardplan.pipeline.cut_choices import Choices, Cut
from shardplan.pipeline.cut_search import search
from shardplan.pipeline.schedule import parse_schedule
from shardplan.pipeline.submeshes import placed


def random_choices(seed: int, units: int, sizes: tuple[int, ...], devices: int, layouts: int, stages: int | None):
    rng = np.random.default_rng(seed)
    costs = []
    for size in sizes:
        cost = np.full((units + 1, units + 1, layouts, layouts), np.inf)
        for a, b in itertools.combinations(range(units + 1), 2):
            ins, outs = (layouts if a else 1), (layouts if b < units else 1)
            cost[a, b, :ins, :outs] = (b - a) * rng.integers(50, 100, (ins, outs)) / size
        costs.append(cost)
    handing = [[rng.integers(0, 20, (units + 1, layouts, layouts)).astype(float) for _ in sizes] for _ in sizes]
    behind = [rng.integers(-1, 6, (units + 1, units + 1)) for _ in sizes]
    dearer = {
        (number, mesh): costs[mesh] * rng.uniform(1, 2, (units + 1, units + 1, 1, 1))
        for number, mesh in itertools.product(range(units), range(len(sizes)))
        if rng.random() < 0.3
    }
    apart = rng.integers(0, 30, (len(sizes), len(sizes))).astype(float)[:, rng.integers(0, len(sizes), len(sizes))]
    share = 1 / int(rng.integers(1, 6))
    return Choices(costs, sizes, handing, behind, devices, share, stages, dearer, apart if rng.random() < 0.8 else None)


def price(choices: Choices, cuts: tuple[Cut, ...]) -> float:
    each = [
        float(choices.cost(cut.submesh, len(cuts) - 1 - place)[cut.first, cut.last, cut.enters, cut.leaves])
        for place, cut in enumerate(cuts)
    ]
    sent = sum(
        float(choices.handing[a.submesh][b.submesh][b.first, a.leaves, b.enters]) for a, b in itertools.pairwise(cuts)
    )
    apart = 0.0 if choices.apart is None or len(cuts) == 1 else choices.apart[cuts[0].submesh, cuts[-1].submesh]
    return choices.share * sum(each) + (1 - choices.share) * max(each) + sent + apart


def enumerated(choices: Choices) -> float:
    units, layouts = choices.units, choices.costs[0].shape[2]
    best = math.inf
    for count in range(1, units + 1):
        if choices.stages not in (None, count):
            continue
        for inner in itertools.combinations(range(1, units), count - 1):
            edges = (0, *inner, units)
            for meshes in itertools.product(range(len(choices.sizes)), repeat=count):
                if sum(choices.sizes[mesh] for mesh in meshes) != choices.devices:
                    continue
                if any(choices.most_behind[m][edges[i], edges[i + 1]] < count - 1 - i for i, m in enumerate(meshes)):
                    continue
                for ends in itertools.product(range(layouts), repeat=2 * (count - 1)):
                    walls = (0, *ends, 0)
                    cuts = tuple(
                        Cut(edges[i], edges[i + 1], m, walls[2 * i], walls[2 * i + 1]) for i, m in enumerate(meshes)
                    )
                    best = min(best, price(choices, cuts))
    return best


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    units=st.integers(1, 4),
    devices=st.sampled_from([2, 4]),
    layouts=st.integers(1, 2),
    stages=st.sampled_from([None, None, 1, 2, 3]),
)
def test_the_search_finds_what_enumeration_finds(seed, units, devices, layouts, stages):
    choices = random_choices(seed, units, (1, 2, 4)[: devices.bit_length()], devices, layouts, stages)
    heard: list[float] = []
    found, best = search(choices, on_bound=heard.append), enumerated(choices)
    assert heard
    assert max(heard) <= best * (1 + 1e-9)
    assert (found.cuts is None) == (best == math.inf)
    if found.cuts is not None:
        assert found.cost == pytest.approx(best, rel=1e-12)
        assert price(choices, found.cuts) == pytest.approx(found.cost, rel=1e-12)
        assert found.bound == pytest.approx(found.cost, rel=1e-12)


def test_what_first_and_last_cost_besides_decides():
    """Of two cuts into unlike stages the one whose ends are cheaper together, though its stages are dearer."""
    run = np.full((3, 3, 1, 1), np.inf)
    run[0, 1], run[1, 2] = 10.0, 10.0
    costs = [run, run + np.array([[0, 0, 0], [0, 0, 3], [0, 0, 0]])[:, :, None, None]]
    still = [[np.zeros((3, 1, 1))] * 2] * 2
    unlimited = [np.full((3, 3), 9)] * 2
    found = [
        search(Choices(costs, [1, 1], still, unlimited, 2, 0.5, 2, {}, np.array([[apart, apart], [2 * apart, 0.0]])))
        for apart in (0.0, 1.0, 9.0)
    ]
    assert [[cut.submesh for cut in one.cuts] for one in found] == [[0, 0], [0, 0], [1, 1]]
    assert [one.cost for one in found] == [one.bound for one in found] == [15.0, 16.0, 18.0]


def test_what_is_not_worth_it_is_not_looked_for():
    choices = random_choices(5, 4, (1, 2, 4), 4, 2, None)
    best = search(choices)
    assert search(choices, worth=best.cost * 1.01).cost == best.cost
    none = search(choices, worth=best.cost)
    assert (none.cuts, none.bound) == (None, best.cost)


def test_a_tolerance_leaves_a_bound_below_the_cost():
    choices = random_choices(5, 8, (1, 2, 4), 4, 2, None)
    exact, rough = search(choices), search(choices, tolerance=0.2)
    assert rough.bound <= exact.cost <= rough.cost <= 1.25 * rough.bound + 1e-9


def test_the_step_of_a_schedule():
    plain, cut = parse_schedule("1f1b"), parse_schedule("interleaved:2")
    assert plain.step([6.0, 4.0], 2) == pytest.approx((10 + (2 - 1) * 6) / 2)
    assert plain.step([6.0], 8) == 6.0
    assert cut.step([6.0, 6.0], 4) == 6.0 + 6.0 / 8
    assert [str(parse_schedule(text)) for text in ("gpipe", "interleaved:3")] == ["gpipe", "interleaved:3"]


def test_microbatches_in_flight():
    plain, gpipe, cut = (parse_schedule(text) for text in ("1f1b", "gpipe", "interleaved:2"))
    assert [plain.in_flight(behind, 4, 8) for behind in (3, 2, 1, 0)] == [4, 3, 2, 1]
    assert plain.in_flight(3, 4, 2) == 2
    assert gpipe.in_flight(0, 4, 8) == 8
    assert cut.in_flight(3, 4, 32) == math.ceil(4 * (1 + 3 / 8))


def test_unknown_schedules_are_refused():
    with pytest.raises(ShardplanError) as problem:
        parse_schedule("1b1f")
    assert str(problem.value) == (
        "error[bad-schedule]: there is no schedule '1b1f'\n"
        "hint: 1f1b, gpipe, or interleaved:V with V model chunks per stage"
    )


def test_parts_lie_side_by_side_aligned():
    assert placed((4, 2, 2)) == (0, 4, 6)
    assert placed((2, 4, 2)) == (4, 0, 6)
