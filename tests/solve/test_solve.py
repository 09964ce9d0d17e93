"""What a caller of `solve` sees: sharing of work, limits, interruption, refusals, and known optima."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from shardplan.errors import ShardplanError
from shardplan.solve import Edge, Problem, Usage, evaluate, solve
from shardplan.solve.reduce.eliminate import _Queue, eliminate
from shardplan.solve.reduce.graph import build
from shardplan.solve.reduce.tables import Tables


def blocks(layers: int, chain: int = 20, choices: int = 12, hubs: int = 0, seed: int = 0) -> Problem:
    """Identical blocks in a row that share their tables: a chain with bypasses, and hubs that touch every block."""
    rng = np.random.default_rng(seed)

    def table() -> np.ndarray:
        return np.floor(rng.random((choices, choices)) ** 3 * 1e6)

    own = [np.floor(rng.random(choices) * 1e6) for _ in range(chain)]
    steps, bypass = [table() for _ in range(chain)], {(1, 9): table(), (11, 18): table(), (3, 7): table()}
    costs = [np.floor(rng.random(choices) * 1e6) for _ in range(hubs)]
    spokes = [(table(), table()) for _ in range(hubs)]
    edges = []
    for layer in range(layers):
        start = hubs + layer * chain
        costs += own
        edges += [Edge(start + i, start + i + 1, steps[i]) for i in range(chain - 1 + (layer + 1 < layers))]
        edges += [Edge(start + a, start + b, shared) for (a, b), shared in bypass.items()]
        for hub, (one, other) in enumerate(spokes):
            edges += [Edge(hub, start + 5, one), Edge(hub, start + 14, other)]
    return Problem(tuple(costs), tuple(edges))


def with_memory(problem: Problem, share: float, chain: int = 20) -> Problem:
    """Every second node is kept from its turn to its mirror image; the limit is `share` of the way from least to
    free."""
    rng = np.random.default_rng(1)
    count = len(problem.costs)
    amounts = [(1 << 20) // 2 ** rng.integers(0, 5, len(problem.costs[-1])) for _ in range(chain)]
    usages = tuple(Usage(v, v, 2 * count - v, amounts[v % chain]) for v in range(1, count, 2))
    free = solve(problem)
    assert free.choices is not None
    least = sum(int(usage.amount.min()) for usage in usages)
    peak = evaluate(Problem(problem.costs, problem.edges, usages), free.choices).peak_bytes
    return Problem(problem.costs, problem.edges, usages, int(least + share * (peak - least)))


def joins(layers: int) -> int:
    tables = Tables()
    graph = build(blocks(layers), tables)
    eliminate(graph)
    assert not graph.alive
    return sum(key[0] == "join" for key in tables._memo)


def test_depth_costs_the_logarithm_of_the_layers_in_products() -> None:
    assert joins(128) - joins(16) <= 3 * 3 + 3  # three doublings, few products each
    assert joins(128) < 60


@pytest.mark.parametrize("leaves", [1, 2])
def test_neighbours_of_a_hub_do_not_take_a_round_each(leaves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of chains of `leaves` nodes from one hub, as of a value that as many operators read."""
    rng, chains, rounds = np.random.default_rng(0), 3000, []
    costs = [np.floor(rng.random(4) * 1e6) for _ in range(1 + leaves * chains)]
    table = np.floor(rng.random((4, 4)) * 1e6)
    edges = tuple(
        Edge(0 if depth == 0 else 1 + chain + (depth - 1) * chains, 1 + chain + depth * chains, table)
        for chain in range(chains)
        for depth in range(leaves)
    )
    cheapest = _Queue.cheapest
    monkeypatch.setattr(_Queue, "cheapest", lambda queue: rounds.append(1) or cheapest(queue))
    problem = Problem(tuple(costs), edges)
    found = solve(problem)
    assert (found.outcome, found.cost) == ("optimal", evaluate(problem, found.choices or ()).cost)
    assert len(rounds) < 400  # down to the number of neighbours of which a node is a hub


@pytest.mark.parametrize("hubs", [0, 1, 3])
def test_deep_models_are_solved_to_optimality(hubs: int) -> None:
    started = time.process_time()
    solution = solve(blocks(60, hubs=hubs))
    assert solution.outcome == "optimal"
    assert solution.cost == solution.bound == evaluate(blocks(60, hubs=hubs), solution.choices or ()).cost
    assert time.process_time() - started < 10


@pytest.mark.parametrize("share", [0.6, 0.1, 0.0])
def test_deep_models_under_memory_are_within_a_thousandth(share: float) -> None:
    problem = with_memory(blocks(12, hubs=1), share)
    solution = solve(problem)
    assert solution.choices is not None
    assert evaluate(problem, solution.choices).feasible
    assert solution.gap <= 1e-3


def test_small_models_have_the_same_optimum_without_presolve() -> None:
    problem = blocks(2, choices=5, hubs=1)
    assert solve(problem).cost == solve(problem, presolve=False).cost


RR, RS, SR = 0, 1, 2
MATMUL = ((RR, RS, RS), (RS, SR, RR), (SR, RR, SR))
"""Slapo's strategies of a product: what its operands must be and what its result is; the second one adds an
all-reduce."""


class Slapo:
    """Slapo's cost model of one axis of 8 devices, in elements moved: a node per operator that constrains its
    inputs."""

    def __init__(self) -> None:
        self.costs: list[np.ndarray] = []
        self.edges: list[Edge] = []
        self.results: list[tuple[int, ...]] = []

    def node(
        self, volume: int, results: tuple[int, ...], own: list[int], *reads: tuple[int, tuple[int, ...], bool]
    ) -> int:
        """An operator with a result per strategy; a read is (producer, layout wanted per strategy, whether
        transposed)."""
        node = len(self.costs)
        self.costs.append(np.array(own, dtype=float))
        self.results.append(results)
        for producer, wanted, turned in reads:
            swap = {RR: RR, RS: SR, SR: RS} if turned else {RR: RR, RS: RS, SR: SR}
            table = [[self.move(volume, swap[have], want) for want in wanted] for have in self.results[producer]]
            self.edges.append(Edge(producer, node, np.array(table)))
        return node

    def move(self, volume: int, have: int, want: int) -> float:
        if have == want:
            return 0.0
        if have == RR:
            return 1.0
        return volume / 8 if want == RR else volume / 8 - volume / 64

    def linear(self, volume: int, source: int, out: int) -> int:
        return self.node(volume, (RS, RR, SR), [0, out, 0], (source, (RR, RS, SR), False))

    def view(self, volume: int, source: int) -> int:
        """A view pays for a gather of columns a second time, as Slapo has it."""
        node = self.node(volume, (RR, RS, SR), [0, 0, 0], (source, (RR, RS, SR), False))
        again = [
            [volume / 8 if have == RS and want != SR else 0.0 for want in (RR, RS, SR)] for have in self.results[source]
        ]
        self.edges.append(Edge(source, node, np.array(again)))
        return node

    def matmul(self, volume: int, left: int, right: int, turned: bool, out: int) -> int:
        firsts, seconds, results = zip(*MATMUL, strict=True)
        return self.node(volume, results, [0, out, 0], (left, firsts, False), (right, seconds, turned))

    def rows(self, volume: int, source: int) -> int:
        return self.node(volume, (RR, SR), [0, 0], (source, (RR, SR), False))

    def add(self, volume: int, left: int, right: int) -> int:
        every = (RR, RS, SR)
        return self.node(volume, every, [0, 0, 0], (left, every, False), (right, every, False))


def bert(layers: int) -> Problem:
    """BERT-large, batch 8, sequence 512."""
    stream, scores, wide = 8 * 512 * 1024, 8 * 16 * 512 * 512, 8 * 512 * 4096
    model = Slapo()
    x = model.node(0, (RR,), [0])
    for _ in range(layers):
        q, k, v = (model.view(stream, model.linear(stream, x, stream)) for _ in range(3))
        weights = model.rows(scores, model.matmul(stream, q, k, turned=True, out=scores))
        mixed = model.node(scores, (RS, RR, SR), [0, stream, 0], (weights, (RR, RS, SR), False))
        needs = [[model.move(stream, have, want) for want in (RS, SR, RR)] for have in model.results[v]]
        model.edges.append(Edge(v, mixed, np.array(needs)))
        dense = model.linear(stream, model.view(stream, mixed), stream)
        x = model.rows(stream, model.add(stream, dense, x))
        inner = model.linear(wide, model.linear(stream, x, wide), stream)
        x = model.rows(stream, model.add(stream, inner, x))
    model.node(stream, (RR,), [0], (x, (RR,), False))
    return Problem(tuple(model.costs), tuple(model.edges))


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 24, 96])
def test_slapos_series_of_layers_has_its_closed_form(layers: int) -> None:
    problem = bert(layers)
    started = time.process_time()
    solution = solve(problem)
    assert (solution.outcome, solution.cost) == ("optimal", (2 * layers + 1) * 524288 + 4)
    assert time.process_time() - started < 1


def test_work_limits_are_reproducible_and_time_limits_are_kept() -> None:
    problem = with_memory(blocks(12, hubs=2), 0.2)
    started = time.monotonic()
    timed = solve(problem, time_limit=0.4)
    assert time.monotonic() - started < 2.4
    assert timed.outcome in {"optimal", "feasible", "limit"}
    first, second = (solve(problem, work_limit=20) for _ in range(2))
    assert (first.choices, first.bound, first.reproducible) == (second.choices, second.bound, True)


def test_an_answer_is_known_even_if_there_was_no_time() -> None:
    problem = blocks(6, hubs=3)
    best = solve(problem).cost
    late = solve(problem, time_limit=0.0)
    assert late.choices is not None
    assert late.bound <= best <= late.cost


def test_ctrl_c_keeps_the_best() -> None:
    problem = with_memory(blocks(40, hubs=3, choices=24), 0.3)
    timer = threading.Timer(0.7, signal.raise_signal, [signal.SIGINT])
    before = signal.getsignal(signal.SIGINT)
    timer.start()
    solution = solve(problem, time_limit=30)
    timer.cancel()
    assert solution.outcome in {"interrupted", "optimal"}
    assert signal.getsignal(signal.SIGINT) is before
    if solution.choices is not None:
        assert evaluate(problem, solution.choices).feasible


def test_least_excess_is_told_even_where_choices_conflict() -> None:
    """Each node alone could use 1, but the pairs allow only (0, 1) and (1, 0): 1 + 5 at moment 0."""
    pairs = np.array([[np.inf, 0.0], [0.0, np.inf]])
    usages = tuple(Usage(v, 0, 1, np.array([1, 5])) for v in range(2))
    solution = solve(Problem((np.zeros(2), np.zeros(2)), (Edge(0, 1, pairs),), usages, 4))
    assert (solution.outcome, solution.shortfall_bytes) == ("infeasible", 2)


def test_ties_go_to_the_first_choice() -> None:
    problem = Problem((np.zeros(3), np.zeros(3)), (Edge(0, 1, np.zeros((3, 3))),))
    assert solve(problem).choices == (0, 0)


@pytest.mark.parametrize(
    ("problem", "summary"),
    [
        (Problem((np.zeros(0),), ()), "node 0: costs have shape (0,), not one per choice"),
        (Problem((np.array([0.5]),), ()), "node 0: a cost is not an integer"),
        (Problem((np.array([np.nan]),), ()), "node 0: a cost is not a number"),
        (Problem((np.array([-np.inf]),), ()), "node 0: a cost is minus infinity"),
        (
            Problem((np.zeros(1),), (Edge(0, 0, np.zeros((1, 1))),)),
            "edge 0 (0, 0): joins two different nodes of 0 to 0",
        ),
        (
            Problem((np.zeros(1), np.zeros(2)), (Edge(0, 1, np.zeros((2, 1))),)),
            "edge 0 (0, 1): table has shape (2, 1), its nodes have (1, 2) choices",
        ),
        (
            Problem((np.zeros(1),), (), (Usage(0, 2, 1, np.zeros(1, np.int64)),)),
            "usage 0 (node 0): interval [2, 1) is not one",
        ),
        (Problem((np.zeros(1),), (), (Usage(0, 0, 1, np.array([-1])),)), "usage 0 (node 0): an amount is negative"),
        (
            Problem((np.zeros(1),), (), (Usage(0, 0, 1, np.array([2**53 + 1])),), 2**53),
            (
                "usages may add up to 9,007,199,254,740,993 at one moment, under a limit of 9,007,199,254,740,992: "
                "more than can be added up exactly; give memory in a larger unit"
            ),
        ),
        (
            Problem((np.zeros(1),), (), (Usage(0, 0, 1, np.array([2**53])),) * 513, 2**53 - 1),
            (
                "usages may add up to 4,620,693,217,682,128,896 at one moment, under a limit of 9,007,199,254,740,991: "
                "more than can be added up exactly; give memory in a larger unit"
            ),
        ),
        (Problem((), (), (), 2**63), "the limit of memory is 9,223,372,036,854,775,808; 2**62 is the largest"),
        (Problem((np.zeros(1),), (), (Usage(3, 0, 1, np.array([1])),)), "usage 0 (node 3): nodes are 0 to 0"),
    ],
)
def test_malformed_problems_are_refused(problem: Problem, summary: str) -> None:
    with pytest.raises(ShardplanError) as caught:
        solve(problem)
    assert caught.value.diagnostics[0].summary == summary
