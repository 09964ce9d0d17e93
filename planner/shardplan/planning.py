"""Model + cluster + options -> plan: the whole road, for programs that use shardplan as a library."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.constraints.reuse import adapted
from shardplan.constraints.types import Constraint
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError
from shardplan.graph.build import CostGraph, build_cost_graph
from shardplan.graph.cache import cache_obstacles
from shardplan.graph.flow import microbatch_obstacles, training_obstacles
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.peers import as_known
from shardplan.graph.pricing import Pricing
from shardplan.graph.problem import node_order, to_problem
from shardplan.graph.recipes import Allowed, restrict
from shardplan.graph.remat import Recompute
from shardplan.graph.wishes import Bearing, Without, allowed, bearings, charged, charges_of
from shardplan.model.types import DTYPE_BITS, Model
from shardplan.plan.assemble import assemble, peak_memory, recompute_of
from shardplan.plan.need import Need, need_of
from shardplan.plan.refusals import infeasible, irreconcilable, lighter_options, many_axes, out_of_time, without_rule
from shardplan.plan.trial import PlanTrial
from shardplan.plan.types import Plan
from shardplan.recomputing import UNPROVEN, UNSOLVED, Solved, choose, opened, read
from shardplan.rules import model_rules
from shardplan.shortest import Asked, shortest
from shardplan.solve import Progress, solve
from shardplan.solve.problem import Problem, Solution

__all__ = ["PlanOptions", "Planner", "Solved", "plan_model"]

NEED_SECONDS = 15.0
"""For a plan that shows what fills the memory, where none fits."""
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
        decided: Plan | None = None,
    ) -> None:
        """`reasons`: where nothing fits, find out what fills the memory and which constraints conflict. `complete`: all
        strategies are there, and the cost model of another planner brings its prices alone, not what it knows.
        `decided`: under `remat` `auto`, the plan that says what is recomputed.

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
        self._reasons, self._complete, self._decided = reasons, complete, decided
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
        trial, bound_s = self._found(restriction)
        if self._on_warning is not None:
            for diagnostic in self._pricing.compute.warnings:
                self._on_warning(diagnostic)
        priced, memory = trial.plan
        return assemble(priced, memory, self.limit_bytes, bound_s - priced.wish_s)

    def _found(self, restriction: Restrict | None) -> tuple[PlanTrial, float]:
        """The plan and the proven bound on its step. Raises as `plan_model`."""

        def pose(weight: float, again: Recompute | None = None, *, complete: bool = False) -> Solved:
            return self._posed(weight, restriction, again=again, complete=complete)

        def solve_at(weight: float, within_s: float) -> Solved:
            return self.solve_at(weight, restriction, within_s=within_s)

        overlap = self._pricing.moves.overlap
        return shortest(
            Asked(
                options=self.options,
                limit_bytes=self.limit_bytes,
                balances=not (overlap.tp or overlap.a2a),  # only weights and their gradients hide
                chooses=self._chooses_again,
                pose=pose,
                solve=self._solve,
                solve_at=solve_at,
                refusal=self.refusal,
            )
        )

    def built_at(self, weight: float) -> tuple[CostGraph, Memory]:
        """The cost graph at an overlap weight and its memory rows; the last one is kept."""
        if self._last is None or self._last[0] != weight:
            built = self._build(weight)
            if self._decided is not None and self.options.remat == "auto":
                built = self._build(weight, recompute_of(self._decided, built))
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
        posed = self._posed(weight, restriction)
        ends = time.monotonic() + within_s
        if roomy_first or self._chooses_again:
            roomy = self._solve(replace(posed.problem, limit=None), within_s)
            if self._fits(posed, roomy):
                return replace(posed, solution=roomy)
        unproven = UNPROVEN if self.options.gap else 0.0
        if not self._chooses_again:
            return replace(posed, solution=self._solve(posed.problem, within_s))
        return choose(
            posed,
            roomy,
            lambda again: self._posed(weight, restriction, again=again),
            lambda problem, known: self._solve(problem, ends - time.monotonic(), known, unproven),
        )

    @property
    def _chooses_again(self) -> bool:
        """Whether what is recomputed is to be chosen."""
        return self.options.training and self.options.remat == "auto" and self._decided is None

    def _posed(
        self,
        weight: float,
        restriction: Restrict | None = None,
        without: Sequence[Constraint] = (),
        again: Recompute | None = None,
        *,
        complete: bool = False,
    ) -> Solved:
        """What is to be solved, less the constraints `without`. `again`: what is recomputed, if that is decided;
        `complete`: with all strategies, so that problems at several weights have the same choices."""
        if again is None:
            built, memory = self.built_at(weight)
        else:
            built = self._build(weight, again, complete=complete)
            memory = Memory(built)
        asked = bearings(built, self.wishes)
        charges = charges_of(bearing for bearing in asked if bearing.constraint not in without)
        problem = charged(to_problem(built, memory, self.limit_bytes), built, charges)
        if asked:
            problem = restrict(problem, built, allowed(asked, without=without))
        if restriction is not None:
            problem = restrict(problem, built, restriction(built))
        if not self._complete:
            problem = as_known(problem, built, self.options.cost_model)
        return Solved(built, memory, problem, UNSOLVED, charges, asked)

    def _build(self, weight: float, again: Recompute | None = None, *, complete: bool = False) -> CostGraph:
        complete = complete or self._complete or not self.options.cost_model.is_ours
        return build_cost_graph(
            self.model, self.rules, self.cluster, self.options, pricing=self._pricing, overlap_weight=weight,
            wishes=self.wishes, complete=complete, again=again,
        )  # fmt: skip

    def _fits(self, posed: Solved, solution: Solution) -> bool:
        """Whether the optimum without a limit on memory keeps the limit all the same."""
        if solution.choices is None or solution.outcome != "optimal":
            return False
        choice = dict(zip(node_order(posed.built), solution.choices, strict=True))
        return peak_memory(posed.memory.holdings, posed.memory.moments, choice).total <= self.limit_bytes

    def _solve(
        self,
        problem: Problem,
        within_s: float = math.inf,
        roomy: Solution | None = None,
        unproven: float = 0.0,
    ) -> Solution:
        options = self.options
        left_s = within_s if options.time_limit is None else min(options.time_limit, within_s)
        return solve(
            problem,
            unproven=unproven,
            time_limit=None if left_s == math.inf else max(0.0, left_s),
            gap=options.gap,
            seed=options.seed,
            presolve=options.presolve,
            on_progress=self._on_progress,
            roomy=roomy,
        )

    def refusal(self, solved: Solved) -> ShardplanError | KeyboardInterrupt:
        """What to raise when a solve gave no assignment."""
        if solved.solution.outcome == "interrupted":
            return KeyboardInterrupt()
        if solved.solution.outcome != "infeasible":
            return LimitError(out_of_time(self.model, self.cluster))
        if self._reasons and (conflict := self._conflict(solved)):
            return InfeasibleError(irreconcilable(self.model, self.cluster, conflict))
        need = self._least_need(solved) if self._reasons else None
        hard = _hard(solved.asked)
        unasked = self._solve_without(solved, hard).shortfall_bytes if hard and self._reasons else None
        return InfeasibleError(
            infeasible(
                self.model,
                self.cluster,
                self.limit_bytes,
                solved.solution.shortfall_bytes,
                lighter=lighter_options(self.options),
                need=need,
                unasked=unasked,
            )
        )

    def _solve_without(self, solved: Solved, without: Sequence[Constraint]) -> Solution:
        """As `solved`, but for some of the constraints."""
        weight = solved.built.prices.weight
        posed = self._posed(weight, without=without)
        if solved.tiled is not None:
            posed = opened(posed, lambda again: self._posed(weight, without=without, again=again))
        return self._solve(posed.problem)

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
        nearest = self._solve(replace(solved.problem, limit=limit), NEED_SECONDS)
        if nearest.choices is None:
            return None
        weight = solved.built.prices.weight
        found = read(solved, nearest, lambda again: self._posed(weight, again=again))
        assert found.solution.choices is not None
        return need_of(found.memory, dict(zip(node_order(found.built), found.solution.choices, strict=True)))


def _hard(asked: Sequence[Bearing]) -> list[Constraint]:
    """The constraints that may not be broken at any cost, each once."""
    return list(dict.fromkeys(bearing.constraint for bearing in asked if bearing.constraint.cost_us is None))
