"""Model + cluster + options -> plan: the whole road, for programs that use shardplan as a library."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.constraints.reuse import adapted
from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError
from shardplan.graph.build import CostGraph, Node, build_cost_graph
from shardplan.graph.cache import cache_obstacles
from shardplan.graph.flow import microbatch_obstacles, training_obstacles
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.overlap import MOST_SOLVES, Trial, shortest_step
from shardplan.graph.peers import as_known
from shardplan.graph.pieces import scope
from shardplan.graph.pricing import Pricing
from shardplan.graph.problem import node_order, to_problem
from shardplan.graph.recipes import Allowed, restrict
from shardplan.graph.remat import Recompute, everything_again
from shardplan.graph.tensors import PICOSECONDS
from shardplan.graph.tiles import tile
from shardplan.graph.wishes import Bearing, Without, allowed, bearings, charged, charges_of
from shardplan.model.types import DTYPE_BITS, Model
from shardplan.plan.assemble import Priced, assemble, peak_memory, price
from shardplan.plan.need import Need, need_of
from shardplan.plan.refusals import infeasible, irreconcilable, many_axes, out_of_time, without_rule
from shardplan.plan.types import Plan
from shardplan.rules import model_rules
from shardplan.solve import Progress, evaluate, solve
from shardplan.solve.problem import Costs, Problem, Solution

__all__ = ["PlanOptions", "Planner", "plan_model"]

NOTHING = Solution("interrupted", None, math.inf, -math.inf)
Restrict = Callable[[CostGraph], Allowed]
"""What is to be allowed in a cost graph; nodes that are not named are free."""


def plan_model(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: Callable[[Progress], None] | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
) -> Plan:
    """The best plan for `model` on `cluster`, with its proof. `on_warning` hears of what the plan has to put up with.

    Raises `ShardplanError` for a model that cannot be planned as asked, `InfeasibleError` when it is proven that no
    plan fits in memory, `LimitError` when the time limit ends the search before any plan is found, and
    `KeyboardInterrupt` when the user does.
    """
    return Planner(model, cluster, options, on_progress, on_warning).plan()


@dataclass(frozen=True)
class Solved:
    """One solve at one weight: the graph, its memory rows, the arrays and what came of them."""

    built: CostGraph
    memory: Memory
    problem: Problem
    solution: Solution
    charges: Mapping[Node, Costs]
    asked: Sequence[Bearing]


def _element_bytes(model: Model) -> int:
    """Bytes of one element of the type that most of the model's values have, integers aside."""
    widths = [DTYPE_BITS[tensor.dtype] // 8 for tensor in model.tensors.values() if tensor.is_float]
    return max(1, max(sorted(set(widths)), key=widths.count, default=4))


def _obstacles(model: Model, options: PlanOptions) -> list[Diagnostic]:
    """Why the model cannot be planned as asked: the first reason there is."""
    cached = options.kv_cache_tokens > 0
    return (
        (training_obstacles(model) if options.training else [])
        or microbatch_obstacles(model, options.microbatches)
        or (cache_obstacles(model, training=options.training) if cached else [])
    )


class Planner:
    """Plans one model on one cluster, as asked and under further restrictions; prices are computed once for all."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        options: PlanOptions,
        on_progress: Callable[[Progress], None] | None = None,
        on_warning: Callable[[Diagnostic], None] | None = None,
        *,
        reasons: bool = True,
        complete: bool = False,
    ) -> None:
        """`reasons`: where nothing fits, find out what fills the memory and which constraints conflict. `complete`: all
        strategies are there, and the cost model of another planner brings its prices alone, not what it knows.

        Raises `ShardplanError` for a model that cannot be planned as asked.
        """
        if obstacles := _obstacles(model, options):
            raise ShardplanError(*obstacles)
        self.rules = model_rules(model)
        warn = on_warning or (lambda _: None)
        for diagnostic in without_rule(model, self.rules, strict=options.strict):
            if diagnostic.severity == "error":
                raise ShardplanError(diagnostic)
            model = replace(model, warnings=(*model.warnings, diagnostic))
            warn(diagnostic)
        fixed, partly = adapted(options.constraints, model)
        options = replace(options, constraints=fixed)
        for diagnostic in (*many_axes(cluster.mesh), *partly):
            warn(diagnostic)
        self.model, self.cluster, self.options = model, cluster, options
        given = options.memory_limit_bytes
        self.limit_bytes = given if given is not None else cluster.device.usable_bytes
        self._on_progress, self._on_warning = on_progress, on_warning
        self._reasons, self._complete = reasons, complete
        self.wishes = resolve(options.constraints, model, cluster.mesh)
        pricing = Pricing.named(options.cost_model, cluster, _element_bytes(model))
        if self.wishes.forbidden:
            collectives = Without(pricing.collectives, self.wishes.forbidden)
            overlap, optimizer = pricing.moves.overlap, pricing.optimizer
            pricing = replace(Pricing.made(cluster.mesh, collectives, pricing.compute, overlap), optimizer=optimizer)
        self._pricing = pricing
        self._last: tuple[float, CostGraph, Memory] | None = None

    def plan(self, restriction: Restrict | None = None) -> Plan:
        """The best plan, of those that `restriction` allows. Raises as `plan_model`."""
        refusals: list[ShardplanError | KeyboardInterrupt] = []

        started, ended = time.monotonic(), False
        solves: list[str] = []

        def left_s() -> float:
            limit = self.options.time_limit
            return math.inf if limit is None else max(0.0, limit - (time.monotonic() - started))

        def solve_at(weight: float) -> Trial[tuple[Priced, Memory]] | None:
            nonlocal ended
            if ended:
                return None
            solved = self.solve_at(weight, restriction, within_s=left_s() / max(1, MOST_SOLVES - len(solves)))
            solves.append(solved.solution.outcome)
            ended = solved.solution.outcome == "interrupted" or left_s() <= 0
            if solved.solution.choices is None:
                refusals.append(self.refusal(solved))
                return None
            priced = price(solved.built, solved.solution, solved.charges)
            bound_s = solved.solution.bound / PICOSECONDS
            return Trial(
                weight, (priced, solved.memory), priced.f1_s + priced.wish_s, priced.f2_s + priced.wish_s, bound_s
            )

        found = shortest_step(solve_at)
        if found is None:
            raise refusals[0]
        trial, step_bound_s = found
        if self._on_warning is not None:
            for diagnostic in self._pricing.compute.warnings:
                self._on_warning(diagnostic)
        priced, memory = trial.plan
        return assemble(priced, memory, self.limit_bytes, step_bound_s - priced.wish_s)

    def built_at(self, weight: float) -> tuple[CostGraph, Memory]:
        """The cost graph at an overlap weight and its memory rows; the last one is kept."""
        if self._last is None or self._last[0] != weight:
            built = self._build(weight)
            self._last = (weight, built, Memory(built))
        return self._last[1:]

    def solve_at(
        self,
        weight: float,
        restriction: Restrict | None = None,
        *,
        within_s: float = math.inf,
        roomy_first: bool = False,
    ) -> Solved:
        """The best assignment at an overlap weight (see `shardplan.graph.overlap`), or the proof that there is none.

        `within_s`: seconds that the search may take. `roomy_first`: it is sought without regard to memory first, which
        is quick; where that fits it is the answer, and exact.
        """
        built, memory = self.built_at(weight)
        asked = bearings(built, self.wishes)
        charges = charges_of(asked)
        problem = self._problem(built, memory, asked, restriction)
        if self.options.training and self.options.remat == "auto":
            once = Solved(built, memory, problem, NOTHING, charges, asked)
            return self._recomputing(weight, once, restriction, within_s)
        solution = self._roomy(problem, built, memory) if roomy_first else None
        return Solved(built, memory, problem, solution or self._solve(problem, within_s), charges, asked)

    def _problem(
        self, built: CostGraph, memory: Memory, asked: Sequence[Bearing], restriction: Restrict | None
    ) -> Problem:
        """The arrays of a cost graph with all that is asked of it."""
        problem = charged(to_problem(built, memory, self.limit_bytes), built, charges_of(asked))
        if asked:
            problem = restrict(problem, built, allowed(asked))
        if restriction is not None:
            problem = restrict(problem, built, restriction(built))
        if not self._complete:
            problem = as_known(problem, built, self.options.cost_model)
        return problem

    def _recomputing(self, weight: float, once: Solved, restriction: Restrict | None, within_s: float) -> Solved:
        """Layouts and what to recompute, chosen together; where everything fits as it is, nothing runs again."""
        solution = self._roomy(once.problem, once.built, once.memory)
        if solution is not None:
            return replace(once, solution=solution)
        again = self._build(weight, everything_again(once.built))
        problem = self._problem(again, once.memory, bearings(again, self.wishes), restriction)
        built = once.built
        options = scope(built.model, built.rules, built.flow, built.fusion, built.options)
        tiled = tile(options, built, again, (once.problem, problem))
        found = self._solve(tiled.problem, within_s)
        if found.choices is None:
            return replace(once, problem=tiled.problem, solution=found)
        states, choices = tiled.decode(found.choices)
        decided = self._build(weight, tiled.recompute(built, states))
        memory = Memory(decided)
        asked = bearings(decided, self.wishes)
        problem = self._problem(decided, memory, asked, restriction)
        priced = evaluate(problem, choices)
        cost = priced.cost
        solution = replace(found, choices=tuple(choices), cost=cost, bound=min(found.bound, cost))
        return Solved(decided, memory, problem, solution, charges_of(asked), asked)

    def _build(self, weight: float, again: Recompute | None = None) -> CostGraph:
        return build_cost_graph(
            self.model, self.rules, self.cluster, self.options, pricing=self._pricing, overlap_weight=weight,
            wishes=self.wishes, complete=self._complete or not self.options.cost_model.is_ours, again=again,
        )  # fmt: skip

    def _roomy(self, problem: Problem, built: CostGraph, memory: Memory) -> Solution | None:
        """The optimum without a limit on memory, if it keeps the limit all the same."""
        solution = self._solve(replace(problem, limit=None))
        if solution.choices is None or solution.outcome != "optimal":
            return None
        choice = dict(zip(node_order(built), solution.choices, strict=True))
        return solution if peak_memory(memory.holdings, memory.moments, choice).total <= self.limit_bytes else None

    def _solve(self, problem: Problem, within_s: float = math.inf) -> Solution:
        options = self.options
        return solve(
            problem,
            time_limit=None if options.time_limit is None else min(options.time_limit, within_s),
            gap=options.gap,
            seed=options.seed,
            presolve=options.presolve,
            on_progress=self._on_progress,
        )

    def refusal(self, solved: Solved) -> ShardplanError | KeyboardInterrupt:
        """What to raise when a solve gave no assignment."""
        if solved.solution.outcome == "interrupted":
            return KeyboardInterrupt()
        if solved.solution.outcome != "infeasible":
            return LimitError(out_of_time(self.model, self.cluster))
        if self._reasons and (conflict := self._conflict(solved)):
            return InfeasibleError(irreconcilable(self.model, self.cluster, conflict))
        shortfall, training = solved.solution.shortfall_bytes, self.options.training
        need = self._least_need(solved) if self._reasons else None
        hard = _hard(solved.asked)
        unasked = self._solve_without(solved, hard).shortfall_bytes if hard and self._reasons else None
        return InfeasibleError(
            infeasible(
                self.model, self.cluster, self.limit_bytes, shortfall, training=training, need=need, unasked=unasked
            )
        )

    def _solve_without(self, solved: Solved, without: Sequence[Constraint]) -> Solution:
        """As `solved`, but for some of the constraints."""
        problem = to_problem(solved.built, solved.memory, self.limit_bytes)
        problem = restrict(problem, solved.built, allowed(solved.asked, without=without))
        if not self._complete:
            problem = as_known(problem, solved.built, self.options.cost_model)
        return self._solve(problem)

    def _conflict(self, solved: Solved) -> list[Constraint]:
        """Constraints that leave no plan together while any of them may go; empty when it is not they that do.

        One after the other is left out, and put back where a plan appears.
        """
        hard = _hard(solved.asked)
        if not hard or self._solve_without(solved, hard).choices is None:
            return []
        dropped: list[Constraint] = []
        for constraint in hard:
            if self._solve_without(solved, [*dropped, constraint]).choices is None:
                dropped.append(constraint)
        return [constraint for constraint in hard if constraint not in dropped]

    def _least_need(self, solved: Solved) -> Need | None:
        """What the plan holds that comes nearest to fitting."""
        limit = self.limit_bytes + solved.solution.shortfall_bytes
        nearest = self._solve(replace(solved.problem, limit=limit))
        if nearest.choices is None:
            return None
        return need_of(solved.memory, dict(zip(node_order(solved.built), nearest.choices, strict=True)))


def _hard(asked: Sequence[Bearing]) -> list[Constraint]:
    """The constraints that may not be broken at any cost, each once."""
    return list(dict.fromkeys(bearing.constraint for bearing in asked if bearing.constraint.cost_us is None))
