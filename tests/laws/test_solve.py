"""Laws of the solver, checked against enumeration on small random problems."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_problems import between, optimum, problem_of_maxima

from shardplan.solve import (
    Edge,
    LinearSum,
    Maximum,
    Problem,
    Progress,
    Solution,
    Start,
    Usage,
    evaluate,
    small_cores,
    solve,
    solver,
)
from shardplan.solve.bound.dual import Dual
from shardplan.solve.bound.lagrange import DeadEnd, Relaxation
from shardplan.solve.bound.marginals import Marginals
from shardplan.solve.budget import Budget
from shardplan.solve.highs.program import quiet_highs
from shardplan.solve.prove import branch_and_bound, pareto
from shardplan.solve.prove.pareto import View
from shardplan.solve.reduce import tables as reduce_tables
from shardplan.solve.reduce.core import core_of
from shardplan.solve.reduce.eliminate import eliminate
from shardplan.solve.reduce.fixing import prune
from shardplan.solve.reduce.graph import Contradiction, Gone, Graph, build
from shardplan.solve.reduce.memory import Profiles, tighten
from shardplan.solve.reduce.minplus import min_plus
from shardplan.solve.reduce.sums import sums_to_nodes
from shardplan.solve.reduce.tables import NONE, Tables

laws = settings(suppress_health_check=list(HealthCheck))


def tables(rows: int, columns: int, forbidden: bool):
    number = st.integers(-9, 30).map(float)
    entry = st.one_of(number, number, number, st.just(math.inf)) if forbidden else number
    return st.lists(entry, min_size=rows * columns, max_size=rows * columns).map(
        lambda entries: np.array(entries).reshape(rows, columns)
    )


@st.composite
def problems(draw, memory: bool = False, forbidden: bool = True, nodes: int = 6):
    """Graphs with parallel edges, tables used twice, nodes of one choice, forbidden choices and pairs, overlapping
    usages."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=nodes))
    costs = tuple(draw(tables(1, size, forbidden))[0] for size in sizes)
    edges: list[Edge] = []
    if len(sizes) > 1:
        pairs = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(sizes) - 1)).filter(lambda p: p[0] != p[1])
        for u, v in draw(st.lists(pairs, max_size=2 * len(sizes))):
            shared = [edge.table for edge in edges if edge.table.shape == (sizes[u], sizes[v])]
            reuse = bool(shared) and draw(st.booleans())
            edges.append(Edge(u, v, shared[0] if reuse else draw(tables(sizes[u], sizes[v], forbidden))))
    if not memory:
        return Problem(costs, tuple(edges))
    usages = []
    for _ in range(draw(st.integers(1, 7))):
        node, start, length = draw(st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, 4), st.integers(0, 4)))
        amount = draw(st.lists(st.integers(0, 12), min_size=sizes[node], max_size=sizes[node]))
        usages.append(Usage(node, start, start + length, np.array(amount, dtype=np.int64)))
    return Problem(costs, tuple(edges), tuple(usages), draw(st.integers(0, 40)))


def assignments(problem: Problem):
    return itertools.product(*(range(len(costs)) for costs in problem.costs))


def check(problem: Problem, **options: object) -> Solution:
    best = optimum(problem)
    solution = solve(problem, **options)
    if best == math.inf:
        assert (solution.outcome, solution.choices, solution.bound) == ("infeasible", None, math.inf)
    else:
        assert (solution.outcome, solution.cost, solution.bound) == ("optimal", best, best)
        assert evaluate(problem, solution.choices).feasible
    return solution


@laws
@given(problems(), st.booleans())
def test_optimum_is_that_of_enumeration(problem: Problem, presolve: bool) -> None:
    check(problem, presolve=presolve)


@laws
@given(problems(memory=True), st.booleans())
def test_optimum_under_memory_is_that_of_enumeration(problem: Problem, presolve: bool) -> None:
    check(problem, presolve=presolve)


@st.composite
def problems_of_two_sums(draw, memory: bool = False):
    """The larger of two sums, with the same pairs forbidden in both."""
    one = draw(problems(memory=memory, nodes=5))
    number = st.integers(-30, 30).map(float)

    def other(table):
        entries = draw(st.lists(number, min_size=table.size, max_size=table.size))
        return table + np.array(entries).reshape(table.shape) * draw(st.sampled_from((0.0, 1.0)))

    two = replace(
        one, costs=tuple(map(other, one.costs)), edges=tuple(e._replace(table=other(e.table)) for e in one.edges)
    )
    return one, two


@laws
@given(problems_of_two_sums(), st.booleans())
def test_the_least_larger_sum_is_that_of_enumeration(both: tuple[Problem, Problem], presolve: bool) -> None:
    problem = between(*both)
    pairs = [[evaluate(one, choices).cost for one in both] for choices in assignments(problem)]
    assert optimum(problem) == min(map(max, pairs))
    check(problem, presolve=presolve)


@laws
@given(problems_of_two_sums(memory=True), st.booleans())
def test_the_least_larger_sum_under_memory_is_that_of_enumeration(
    both: tuple[Problem, Problem], presolve: bool
) -> None:
    check(between(*both), presolve=presolve)


def sums_of(draw, problem: Problem) -> LinearSum:
    """A sum over choices of any sign, mostly sparse; tables that the edges share are shared here too."""
    number = st.one_of(st.just(0.0), st.integers(-20, 20).map(float))
    made: dict[int, np.ndarray] = {}

    def like(table: np.ndarray) -> np.ndarray:
        if id(table) not in made:
            made[id(table)] = np.array(draw(st.lists(number, min_size=table.size, max_size=table.size)))
        return made[id(table)].reshape(table.shape)

    return LinearSum(tuple(map(like, problem.costs)), tuple(like(edge.table) for edge in problem.edges))


@st.composite
def problems_of_maxima(draw, memory: bool = False):
    """One to three maxima of one to three sums."""
    problem = draw(problems(memory=memory, nodes=4))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    groups = (Maximum(tuple(sums_of(draw, problem) for _ in range(size))) for size in sizes)
    return replace(problem, maxima=tuple(groups))


def is_valid(problem: Problem, solution: Solution) -> None:
    """Multipliers of the product of simplices, and candidates that fit, each once, the cheapest first."""
    assert [len(group) for group in solution.sum_multipliers] == [len(group.sums) for group in problem.maxima]
    for group in solution.sum_multipliers:
        assert min(group) >= 0
        assert sum(group) <= 1
    if solution.choices is None:
        return
    priced = [evaluate(problem, choices) for choices in solution.candidates]
    assert all(each.feasible for each in priced)
    assert [each.cost for each in priced] == sorted(each.cost for each in priced)
    assert priced[0].cost == solution.cost
    assert len(set(solution.candidates)) == len(solution.candidates) <= 24


@laws
@given(problems_of_maxima(), st.booleans())
def test_the_least_sum_of_maxima_is_that_of_enumeration(problem: Problem, presolve: bool) -> None:
    is_valid(problem, check(problem, presolve=presolve))


@laws
@given(problems_of_maxima(memory=True), st.booleans())
def test_the_least_sum_of_maxima_under_memory_is_that_of_enumeration(problem: Problem, presolve: bool) -> None:
    is_valid(problem, check(problem, presolve=presolve))


@laws
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from((True, True, True, False)))
def test_the_least_sum_of_maxima_that_pull_apart_is_that_of_enumeration(
    seed: int, memory: bool, presolve: bool
) -> None:
    problem = problem_of_maxima(seed, memory)
    is_valid(problem, check(problem, presolve=presolve))


@laws
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_plain_problems_at_multipliers_bound_what_is_too_broad(seed: int, memory: bool) -> None:
    problem = problem_of_maxima(seed, memory)
    best = optimum(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "SUMS_BROADEST", -1.0)
        patch.setattr(solver, "AVERAGES_UNPROVEN", 0.0)
        solution = solve(problem)
    assert solution.bound <= best <= solution.cost
    if best < math.inf:
        is_valid(problem, solution)
        dual = lagrangian(problem)
        assert solution.bound >= dual - max(0.005 * abs(best), 1.0)


def value(problem: Problem, one: LinearSum, choices: Sequence[int]) -> float:
    """A sum at an assignment."""
    own = sum(float(row[choice]) for row, choice in zip(one.costs, choices, strict=True))
    pairs = zip(problem.edges, one.tables, strict=True)
    return own + sum(float(table[choices[edge.u], choices[edge.v]]) for edge, table in pairs)


def lagrangian(problem: Problem) -> float:
    """The greatest Lagrangian bound, by a linear program over all assignments that fit."""
    sums = [one for maximum in problem.maxima for one in maximum.sums]
    free = replace(problem, maxima=())
    planes = [
        (each.cost, [value(problem, one, x) for one in sums])
        for x in assignments(problem)
        if (each := evaluate(free, x)).feasible
    ]
    highs, none = quiet_highs(), (np.zeros(0, np.int32), np.zeros(0))
    highs.addCol(-1.0, -math.inf, math.inf, 0, *none)
    for _ in sums:
        highs.addCol(0.0, 0.0, 1.0, 0, *none)
    first = 1
    for maximum in problem.maxima:
        columns = np.arange(first, first + len(maximum.sums), dtype=np.int32)
        highs.addRow(-math.inf, 1.0, len(columns), columns, np.ones(len(columns)))
        first += len(columns)
    for cost, values in planes:
        highs.addRow(-math.inf, cost, first, np.arange(first, dtype=np.int32), np.array([1.0, *(-v for v in values)]))
    highs.run()
    return float(highs.getSolution().col_value[0])


@laws
@given(problems_of_maxima(memory=True), st.data())
def test_another_sum_never_lowers_the_optimum_and_a_larger_group_never_exceeds_two(
    problem: Problem, data: st.DataObject
) -> None:
    """max(0, s) + max(0, t) >= max(0, s, t) >= max(0, s)."""
    last = problem.maxima[-1].sums
    more = sums_of(data.draw, problem)
    together = replace(problem, maxima=(*problem.maxima[:-1], Maximum((*last, more))))
    apart = replace(problem, maxima=(*problem.maxima, Maximum((more,))))
    costs = [solve(each).cost for each in (problem, together, apart)]
    assert costs == sorted(costs)


@laws
@given(problems_of_maxima(memory=True), st.integers(0, 20), st.data())
def test_a_bound_holds_wherever_the_search_starts_and_ends(problem: Problem, work: int, data: st.DataObject) -> None:
    share = st.floats(0.0, 1.0)
    start = tuple(tuple(data.draw(share) / len(group.sums) for _ in group.sums) for group in problem.maxima)
    best = optimum(problem)
    solution = solve(problem, work_limit=work / 1e4, start=Start(start))
    assert solution.bound <= best <= solution.cost
    is_valid(problem, solution)


@laws
@given(problems_of_maxima(memory=True), st.integers(-20, 20), st.integers(0, 4), st.data())
def test_a_search_that_ends_where_nothing_is_below_says_nothing_wrong(
    problem: Problem, above: int, averages: int, data: st.DataObject
) -> None:
    """From any multipliers of a byte: the bound holds, and what is below `below` is found as without it."""
    multipliers = {moment: data.draw(st.floats(0.0, 4.0)) for moment in range(problem.moments)}
    best = optimum(problem)
    below = best + above if math.isfinite(best) else float(above)
    solution = solve(problem, below=below, averages=averages, start=Start(memory_multipliers=multipliers))
    assert solution.bound <= best <= solution.cost
    if solution.choices is None:
        assert solution.outcome == "infeasible" or solution.bound >= below
    else:
        assert evaluate(problem, solution.choices).feasible
    if best < below and not averages:
        assert solution.cost == best


def test_a_proof_that_is_asked_for_less_than_a_whole_unit_of_cost_is_none() -> None:
    """The relaxation promises 1, nothing costs less than 2, and there is no cost between the two."""
    costs = tuple(map(np.array, ([0.0, 0.0], [0.0, 0.0], [math.inf, 0.0, -4.0])))
    usage = Usage(0, 0, 0, np.array([0, 0]))
    tables = ([[0.0, 0.0, 6.0], [0.0, math.inf, math.inf]], [[0.0, 2.0, 4.0], [0.0, math.inf, math.inf]])
    first, second = (Problem(costs, (Edge(0, 2, np.array(table)),), (usage,), 0) for table in tables)
    check(between(first, second))


@laws
@given(problems_of_two_sums(memory=True))
def test_where_decoding_meets_a_dead_end_the_proof_is_sought_all_the_same(
    both: tuple[Problem, Problem],
) -> None:
    def dead_end(*_: object) -> None:
        raise DeadEnd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Relaxation, "at", dead_end)
        check(between(*both))
        check(both[0])


@laws
@given(problems_of_two_sums(memory=True))
def test_what_is_found_under_a_tighter_limit_keeps_the_limit_and_costs_what_it_says(
    both: tuple[Problem, Problem],
) -> None:
    """All that is found here is: `solve` itself compares its cost with `evaluate`."""
    problem = between(*both)
    fitted = small_cores._fit

    def nothing_at_the_limit(graph: Graph, limit: int, *rest: object) -> bool:
        return limit == problem.limit or fitted(graph, limit, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_cores, "_fit", nothing_at_the_limit)
        solution = solve(problem)
    if solution.choices is not None:
        assert evaluate(problem, solution.choices).feasible


def two_dense_sums(seed: int) -> tuple[Problem, Problem]:
    """Chains with two more edges, whose sums have little in common: the best multiplier of the sum leaves a gap."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 4, int(random.integers(4, 7))).tolist()

    def numbers(low: int, *shape: int) -> np.ndarray:
        return random.integers(low, 60, shape).astype(float)

    ends = [*itertools.pairwise(range(len(sizes)))]
    ends += [tuple(sorted(random.choice(len(sizes), 2, replace=False).tolist())) for _ in range(2)]
    costs = tuple(numbers(-9, size) for size in sizes)
    edges = tuple(Edge(u, v, numbers(-9, sizes[u], sizes[v])) for u, v in ends)
    other = tuple(edge._replace(table=edge.table + numbers(-60, *edge.table.shape)) for edge in edges)
    return Problem(costs, edges), Problem(tuple(row + numbers(-60, len(row)) for row in costs), other)


@laws
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_parts_find_the_least_larger_sum_with_fronts_and_without(seed: int, split: bool) -> None:
    """With `split`, there is no fusion to start from, and parts are split to the end."""
    with pytest.MonkeyPatch.context() as patch:
        if split:
            patch.setattr(small_cores, "_fuse", lambda *_: None)
            patch.setattr(branch_and_bound, "PARETO_PAIRS", -1)
        check(between(*two_dense_sums(seed)))


@laws
@given(problems_of_two_sums(), st.sampled_from((0.25, 0.5, 1.0)), st.integers(0, 9), st.booleans())
def test_fronts_find_the_least_larger_sum_and_say_where_they_had_no_room(
    both: tuple[Problem, Problem], multiplier: float, above: int, narrow: bool
) -> None:
    problem = between(*both)
    best, wide = optimum(problem), sums_to_nodes(problem)
    try:
        graph = build(wide.problem, Tables(), wide.amounts, wide.groups)
        graph.propagate()
        if best == math.inf or graph.hinge is None:
            return
        relaxation = Relaxation(
            graph, 0, Budget(), Profiles(graph.uses, core_of(graph).offsets, graph.tables.arrays, graph.base)
        )
        point, reduced, dual = relaxation.look({graph.hinge: multiplier * graph.scale})
    except (Contradiction, DeadEnd):
        return
    target = (best + above) * graph.scale
    order = tuple(step.node for step in reduced.postsolve if isinstance(step, Gone))
    view = View(multiplier * graph.scale, point.bound, Marginals(reduced, dual, math.inf), order)
    with pytest.MonkeyPatch.context() as patch:
        if narrow:
            patch.setattr(pareto, "PARETO_POINTS", 8)
            patch.setattr(pareto, "PARETO_COARSE", 8)
        try:
            found = pareto.cheapest(graph, 0, [view], target) if not reduced.alive else None
        except pareto.TooManyError:
            assert narrow
            return
    if found is not None:
        choices = wide.invert(graph.invert(found.labels))
        assert evaluate(problem, choices).cost == found.cost / graph.scale >= best
        assert narrow or found.exact
        assert not found.exact or found.cost / graph.scale == best


@laws
@given(problems_of_two_sums(memory=True))
def test_more_memory_never_makes_the_larger_sum_larger(both: tuple[Problem, Problem]) -> None:
    problem = between(*both)
    costs = [solve(replace(problem, limit=limit)).cost for limit in (5, 10, 20, 40, None)]
    assert all(tight >= loose for tight, loose in itertools.pairwise(costs))


@laws
@given(problems_of_two_sums(memory=True))
def test_nodes_for_pairs_change_no_sum(both: tuple[Problem, Problem]) -> None:
    """Every assignment has one counterpart in the problem whose surplus is on nodes: of its cost, surplus, memory."""
    problem = between(*both)
    wide = sums_to_nodes(problem)
    for choices in assignments(problem):
        priced, extended = evaluate(problem, choices), wide.apply(choices)
        if priced.cost == math.inf:
            continue
        assert wide.invert(extended) == choices
        surplus = sum(int(row[extended[node]]) for node, _, row in wide.amounts)
        found = evaluate(wide.problem, extended)
        assert (found.cost + max(0, surplus), found.peak_bytes) == (priced.cost, priced.peak_bytes)


@laws
@given(problems(memory=True))
def test_least_limit_is_feasible_and_one_byte_less_is_proven_infeasible(problem: Problem) -> None:
    free = replace(problem, limit=None)
    peaks = [each.peak_bytes for choices in assignments(free) if (each := evaluate(free, choices)).feasible]
    if not peaks or min(peaks) == 0:
        return
    assert solve(replace(problem, limit=min(peaks))).outcome == "optimal"
    short = solve(replace(problem, limit=min(peaks) - 1))
    assert (short.outcome, short.shortfall_bytes) == ("infeasible", 1)


@laws
@given(problems(memory=True))
def test_bound_optimum_incumbent(problem: Problem) -> None:
    seen: list[Progress] = []
    solve(problem, on_progress=seen.append)
    best = optimum(problem)
    for report in seen:
        assert report.bound <= best <= report.best
    assert all(a.best >= b.best and a.bound <= b.bound for a, b in itertools.pairwise(seen))


@laws
@given(problems())
def test_elimination_keeps_the_optimum_and_restores_full_assignments(problem: Problem) -> None:
    best = optimum(problem)
    try:
        graph = build(problem, Tables())
        eliminate(graph)
    except Contradiction:
        assert best == math.inf
        return
    core = core_of(graph)
    cheapest = math.inf
    for labels in itertools.product(*(range(size) for size in core.sizes)):
        cost = core.cost(np.array(labels, dtype=np.int64)) / graph.scale
        choices = graph.invert(dict(zip(core.nodes, labels, strict=True)))
        if math.isfinite(cost):
            assert evaluate(problem, choices).cost == cost
        cheapest = min(cheapest, cost)
    assert cheapest == best


@laws
@given(problems(memory=True))
def test_tightening_keeps_exactly_what_fits(problem: Problem) -> None:
    best = optimum(problem)
    assert problem.limit is not None
    try:
        graph = build(problem, Tables())
        graph.propagate()
        tighten(graph, problem.limit)
    except Contradiction:
        assert best == math.inf
        return
    core = core_of(graph)
    relaxation = Relaxation(
        graph, problem.limit, Budget(), Profiles(graph.uses, core_of(graph).offsets, graph.tables.arrays, graph.base)
    )
    cheapest = math.inf
    for labels in itertools.product(*(range(size) for size in core.sizes)):
        choices = np.array(labels, dtype=np.int64)
        fits = relaxation.profiles.of(choices).max(initial=0) <= problem.limit
        priced = evaluate(problem, graph.invert(dict(zip(core.nodes, labels, strict=True))))
        assert priced.feasible == (fits and math.isfinite(core.cost(choices)))
        cheapest = min(cheapest, priced.cost if priced.feasible else math.inf)
    assert cheapest == best


@laws
@given(problems(memory=True, forbidden=False), st.integers(0, 8), st.integers(0, 5))
def test_every_list_of_multipliers_gives_a_lower_bound(problem: Problem, multiplier: int, moment: int) -> None:
    assert problem.limit is not None
    best = optimum(problem)
    try:
        graph = build(problem, Tables())
        graph.propagate()
        tighten(graph, problem.limit)
    except Contradiction:
        return
    relaxation = Relaxation(
        graph, problem.limit, Budget(), Profiles(graph.uses, core_of(graph).offsets, graph.tables.arrays, graph.base)
    )
    multipliers = {moment: multiplier / 4} if moment < len(relaxation.room) else {}
    assert relaxation.at(multipliers).bound <= best * graph.scale


@laws
@given(problems(nodes=5, forbidden=False), st.integers(0, 12))
def test_pruning_keeps_everything_up_to_its_target(problem: Problem, above: int) -> None:
    graph = build(problem, Tables())
    core = core_of(graph)
    dual = Dual(core)
    target = dual.sweep() + above * graph.scale
    costs = [evaluate(problem, choices).cost * graph.scale for choices in assignments(problem)]
    wanted = sorted(cost for cost in costs if cost <= target)
    try:
        prune(graph, dual, target)
        graph.propagate()
    except Contradiction:
        assert not wanted
        return
    left = core_of(graph)
    kept = [left.cost(np.array(x, dtype=np.int64)) for x in itertools.product(*map(range, left.sizes.tolist()))]
    assert sorted(cost for cost in kept if cost <= target) == wanted


@laws
@given(problems(nodes=5, forbidden=False))
def test_marginals_never_exceed_the_truth_and_meet_it_at_the_optimum(problem: Problem) -> None:
    graph = build(problem, Tables())
    reduced: Graph = graph.copy()
    reduced.postsolve = []
    eliminate(reduced)
    dual = None
    if reduced.alive:
        dual = Dual(core_of(reduced))
        dual.sweep()
    bound = reduced.const if dual is None else dual.bound()
    known = Marginals(reduced, dual, math.inf)
    truth: dict[tuple[int, ...], float] = {}
    for choices in assignments(problem):
        cost = evaluate(problem, choices).cost * graph.scale
        for node, i in enumerate(choices):
            truth[node, i] = min(truth.get((node, i), math.inf), cost)
            for other in known.pair.get(node, {}):
                key = (node, i, other, choices[other])
                truth[key] = min(truth.get(key, math.inf), cost)
    for key, cost in truth.items():
        excess = known.node[key[0]][key[1]] if len(key) == 2 else known.pair[key[0]][key[2]][key[1], key[3]]
        assert bound + excess <= cost
        if dual is None and len(key) == 2 and not any(len(step.neighbours) == 2 for step in reduced.postsolve):
            assert bound + excess == cost  # exact on forests


@laws
@example(60, 40, 63, 0)
@example(70, 40, 80, 0)
@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_min_plus_is_its_definition(rows: int, inner: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    left, right = random.integers(-50, 50, (rows, inner)) * 1.0, random.integers(-50, 50, (inner, columns)) * 1.0
    left[random.random(left.shape) < 0.1] = math.inf
    expected = (left[:, :, None] + right[None]).min(axis=1)
    before = np.getbufsize()
    np.testing.assert_array_equal(min_plus(left, right), expected)
    assert np.getbufsize() == before


def test_tables_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_tables, "hash", lambda _: 0, raising=False)
    store = Tables()
    first, second = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    numbers = [store.add(table.copy()) for table in (first, second, first, second)]
    assert numbers == [0, 2, 0, 2]
    np.testing.assert_array_equal(store.arrays[2], second)


@laws
@given(tables(3, 4, forbidden=True))
def test_normal_form_adds_up_to_the_table(table: np.ndarray) -> None:
    store = Tables()
    for number, shown in ((store.add(table), table), (store.add(table) ^ 1, table.T)):
        const, row, column, rest = store.split(number)
        rebuilt = np.full(shown.shape, const)
        rebuilt = rebuilt if rest == NONE else rebuilt + store.arrays[rest]
        rebuilt = rebuilt if row == NONE else rebuilt + store.arrays[row][:, None]
        rebuilt = rebuilt if column == NONE else rebuilt + store.arrays[column][None, :]
        np.testing.assert_array_equal(rebuilt, shown)


@laws
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.data())
def test_joins_do_not_depend_on_the_side_they_are_seen_from(n: int, k: int, m: int, data: st.DataObject) -> None:
    store = Tables()
    left, right = (
        store.add(data.draw(tables(n, k, forbidden=False))),
        store.add(data.draw(tables(k, m, forbidden=False))),
    )
    _, costs = store.vector(data.draw(tables(1, k, forbidden=False))[0])
    there, back = store.join(left, costs, right), store.join(right ^ 1, costs, left ^ 1)
    if there.rest != NONE:
        assert there.rest == back.rest ^ 1
    assert there.const == back.const


@laws
@given(problems(memory=True), st.integers(0, 3))
def test_equal_runs_are_equal(problem: Problem, work: int) -> None:
    first, second = (replace(solve(problem, work_limit=work, seed=1), seconds=0.0) for _ in range(2))
    assert first == second
    assert first.reproducible
    if first.choices is not None:
        assert evaluate(problem, first.choices).feasible


@pytest.mark.parametrize("choices", [(0,), (0, 2), (-1, 0)])
def test_evaluator_refuses_what_is_no_assignment(choices: tuple[int, ...]) -> None:
    problem = Problem((np.zeros(1), np.zeros(2)), ())
    with pytest.raises(ValueError, match="choices"):
        evaluate(problem, choices)
