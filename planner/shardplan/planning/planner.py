"""From a model, a cluster and options to a plan: the planner's entry for programs that use shardplan as a library."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, LimitError, NoneFitsError, ShardplanError, warning
from shardplan.graph.build import CostGraph
from shardplan.graph.memory import MemoryRows
from shardplan.graph.neighbourhood import Offer
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import at, objective_of
from shardplan.interruption import NEVER, Deadline, Interruption
from shardplan.model.types import Model
from shardplan.plan.assemble import Outcome, Proof, assemble, finished
from shardplan.plan.types import Plan
from shardplan.planning.answers import Answers
from shardplan.planning.candidates import shortest, unless_nothing_fits
from shardplan.planning.chain import Answer
from shardplan.planning.chosen import Chosen
from shardplan.planning.constants import (
    DEEPENED_GAP,
    DEEPENING_S,
    FEW_OPERATORS,
    FINER_S,
    IMPROVED_GAP,
    PROOF_TIMES,
    SEARCH_GAP,
    TIGHTER_LIMIT,
)
from shardplan.planning.decided import Decided
from shardplan.planning.finer import (
    CoarsePlans,
    OtherMesh,
    Transferable,
    by_pairs,
    deeper,
    finer,
    least_in_time,
    least_s,
    refuse_whole,
    same,
    transferred,
    with_fewer_axes,
    without_idle_axes,
)
from shardplan.planning.for_runtime import best_for_runtime, start_for_runtime
from shardplan.planning.infeasible import no_coarser_plan, none_fits, refusal
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.judge import Known
from shardplan.planning.less_memory import is_unproven_under_limit
from shardplan.planning.linear_questions import of_linear
from shardplan.planning.reduction import Restrict
from shardplan.planning.runtimes import RUNTIMES
from shardplan.planning.search import Found, NoPlanError, NoScheduleError, Questions, Search, Spent, T
from shardplan.planning.shallower import deepened, shallower
from shardplan.planning.standing import OnProgress, of_shallow, without_effort
from shardplan.planning.start_plan import Ask, StartPlan, finished_s, started
from shardplan.schedule.objective import Weights, at_multipliers


class Planner:
    """Plans one model on one cluster, as asked and under further restrictions; prices are computed once for all.

    The request becomes an instance; `candidates` asks questions about it; each question becomes cost graphs, passes the
    `chain` of reductions and the solver, and returns as assignments; the `judge` schedules and prices them; the best
    one is the plan. If there is none, `infeasible` finds the reason.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        options: PlanOptions,
        on_progress: OnProgress | None = None,
        on_warning: Callable[[Diagnostic], None] | None = None,
        *,
        reasons: bool = True,
        every_choice: bool = False,
        decided: Plan | None = None,
        coarse: CoarsePlans | None = None,
        offer: Offer | None = None,
        start: StartPlan | None = None,
    ) -> None:
        """`reasons`: if nothing fits, find out what fills the memory and which constraints conflict. `every_choice`,
        `decided`, `offer`: as in `Instance`. `coarse`: plans of coarser meshes, shared with other meshes over the same
        links. `start`: a known plan; without a restriction, no plan is slower than its decisions are here.

        Raises `ShardplanError` for a model that cannot be planned as asked.
        """
        self._on_progress, self._warn = on_progress, on_warning or (lambda _: None)
        self._reasons = reasons
        self._coarse = CoarsePlans() if coarse is None else coarse
        self.instance = instance_of(
            model, cluster, options, self._warn, every_choice=every_choice, decided=decided, offer=offer
        )
        self._answers = Answers(self.instance, self._warn, reasons)
        self._start = start
        self.known: Known = {}
        """Plans that `solve_at` has scheduled."""

    @property
    def work(self) -> float:
        """The work of its searches, in the units of `shardplan.solve.constants`."""
        return self._answers.work

    @property
    def _graphs(self) -> CostGraphs:
        return self._answers.graphs

    @property
    def limit_bytes(self) -> int:
        """What a plan may use of a device's memory."""
        return self.instance.limit_bytes

    def plan(
        self,
        restriction: Restrict | None = None,
        scheduled_bytes: int | None = None,
        work: float = math.inf,
        enough_s: float = math.inf,
    ) -> Plan:
        """The plan of `chosen`."""
        return self.chosen(restriction, scheduled_bytes, work, enough_s).plan

    def chosen(
        self,
        restriction: Restrict | None = None,
        scheduled_bytes: int | None = None,
        work: float = math.inf,
        enough_s: float = math.inf,
    ) -> Chosen:
        """The best plan that `restriction` allows. `scheduled_bytes`: the memory limit for the schedule, if it differs
        from the limit of the search. `work`: the work limit of the search, if that is less than its effort gives.
        Raises as `plan_model`, and `NoBetterError` if it is proven early that every plan takes `enough_s` or more."""
        with Interruption() as interruption:
            try:
                search = Search.of(self.instance, interruption, restricted=restriction is not None)
                search.spent.work += max(0.0, search.work_left - work)
                found = self._found(search, restriction, enough_s)
            except NoScheduleError as none:
                raise NoneFitsError(none_fits(self.instance, none.peak_bytes)) from None
            except NoPlanError as none:
                raise self.refusal(none.answer) from None
            if restriction is None and math.isinf(work):
                known = Transferable.of(found, search), search.spent.work
                self._coarse.plans.setdefault((self.instance.cluster.mesh, ()), known)
            return self._assembled(found, search, scheduled_bytes)

    def started(self) -> Plan | None:
        """The start alone, as a plan of this mesh; `None` if nothing can be taken from it."""
        with Interruption() as interruption:
            search = Search.of(self.instance, interruption)
            found = self._from_start(search)
            return None if found is None else self._assembled(found, search).plan

    def refined(
        self,
        coarser: Transferable,
        least_s: float,
        restriction: Restrict | None = None,
        *,
        like: Callable[[Decided], Decided] | None = None,
    ) -> Plan:
        """The plan of a coarser mesh on this mesh, improved over pairs of axes among the plans that `restriction`
        allows; with `like`, only by what that function makes of it. `least_s`: a lower bound on every step. Raises
        `LimitError` if the coarse plan is not valid on this mesh."""
        with Interruption() as interruption:
            search = Search.of(self.instance, interruption, restricted=restriction is not None)
            try:
                found = self._answered(transferred(search, coarser, least_s), search)
            except NoPlanError:
                asked = self.instance
                raise LimitError(no_coarser_plan(asked.model, asked.cluster, merged(asked.cluster)[0])) from None
            if like is None:
                found = self._answered(by_pairs(search, found), search, restriction)
            elif not search.is_over():
                decided = like(coarser.on(self.instance.cluster.mesh))
                found = self._better(found, search, transferred(search, coarser, least_s, decided))
            return self._assembled(found, search).plan

    def _assembled(self, found: Found, search: Search, scheduled_bytes: int | None = None) -> Chosen:
        """The plan of the best candidate, with its proof. Its schedule is finished however late it is: all of a plan
        follows from its decisions."""
        if search.interruption.asked and search.is_late():
            found = replace(found, outcome="interrupted")
        for diagnostic in self.instance.pricing.compute.warnings:
            self._warn(diagnostic)
        candidate, limit = found.candidate, self.limit_bytes
        if scheduled_bytes is not None:
            candidate, limit = candidate.under(scheduled_bytes), scheduled_bytes
        priced = finished(candidate.priced, limit)
        if priced.mismatch:
            self._warn(warning("price-mismatch", priced.mismatch, hint="the plan has the former"))
        sizes = objective_of(candidate.layouts.built).sizes  # sums that were added for one problem have no place
        multipliers = tuple(row[:size] for row, size in zip(found.multipliers, sizes, strict=True))
        outcome: Outcome = "interrupted" if found.outcome == "interrupted" else "feasible"
        proof = Proof(found.bound_s - priced.penalty_s, outcome, not search.clock.by_clock, multipliers)
        return Chosen(assemble(priced, limit, proof), priced, candidate.layouts.memory)

    @property
    def usual_multipliers(self) -> Weights:
        """Multipliers of the objective's sums with which searches begin."""
        return objective_of(self._graphs.asked()[0]).usual_multipliers

    def solve_at(
        self,
        multipliers: Weights,
        restriction: Restrict | None = None,
        work: float = math.inf,
        enough_s: float = math.inf,
    ) -> Answer:
        """The best assignment at given multipliers of the objective's sums, or the proof that there is none. `work`: of
        the search, if the best one without a memory limit does not fit; if the bound is `enough_s` seconds or more, it
        is not asked what fits, and the plan of the answer is not scheduled."""
        linear = at_multipliers(objective_of(self._graphs.asked()[0]), multipliers)
        search = Search(self.instance, float("inf"), Interruption(), only_best=False, known=self.known)
        return self._answered(of_linear(search, linear, work, enough_s), search, restriction)

    def built_at(self, multipliers: Weights = (), deadline: Deadline = NEVER) -> tuple[CostGraph, MemoryRows]:
        """The cost graph and its memory rows, with costs and tables at given multipliers of the objective's sums
        (default: compute and blocking communication only). At any multipliers, the costs of an assignment are a lower
        bound on its schedule. Raises `GivenUpError` at the deadline."""
        built, memory = self._graphs.asked(deadline)
        return at(built, at_multipliers(objective_of(built), multipliers)), memory

    def refusal(self, none: Answer) -> BaseException:
        """The error for an answer without an assignment."""
        return refusal(self._graphs, none, reasons=self._reasons)

    def _found(self, search: Search, restriction: Restrict | None, enough_s: float = math.inf) -> Found:
        """The best candidate, before its plan is assembled, and no worse than the start. Raises `NoPlanError`,
        `LimitError` on a mesh of too many axes, and `NoBetterError` as `plan`."""
        start = self._from_start(search) if restriction is None else None
        if start is None:
            return self._proven(search, restriction, enough_s)
        try:
            found = self._proven(search, restriction, enough_s)
        except (NoPlanError, LimitError):
            least = 0.0 if search.interruption.asked else least_s(self.instance)
            return replace(start, bound_s=min(least, finished_s(start, self.instance)))
        return self._no_worse(found, start, search)

    def _from_start(self, search: Search) -> Found | None:
        """The candidate with the decisions of the start, if it is valid here and fits in memory. It has its own record
        of work and plans, so that the search that follows finds what it would find without it, and maybe more."""
        start, instance = self._start, self.instance
        if start is None:
            return None
        own = replace(search, restricted=True, known={}, hopeless={}, spent=Spent())

        def answered(ask: Ask) -> Found:
            target = instance.options.target
            return (
                start_for_runtime(self._answers, RUNTIMES[target], own, ask) if target else self._answered(ask(), own)
            )

        found, said = started(own, start, self._graphs, answered)
        self._warn(said)
        if found is not None:
            search.interruption.arm()
            search.spent.best = found.candidate
        return found

    def _no_worse(self, found: Found, start: Found, search: Search) -> Found:
        """The better of what a search found and of its start, which is preferred among equals. If that is the start,
        plans with the same splits of operators are searched too."""
        instance = self.instance
        step_s, start_s = finished_s(found, instance), finished_s(start, instance)
        if found.candidate.keeps(instance.limit_bytes) and step_s < start_s:
            return found
        best = replace(found, candidate=start.candidate, bound_s=min(found.bound_s, start_s))
        is_equal = step_s == start_s or best.gap <= IMPROVED_GAP
        if is_equal or instance.options.target or instance.is_quick or search.is_over():
            return best
        own = replace(search, restricted=True)
        split = self._better(best, own, shortest(own), Decided.of_priced(start.candidate.priced).as_split)
        return split if finished_s(split, instance) < start_s else best

    def _proven(self, search: Search, restriction: Restrict | None, enough_s: float) -> Found:
        """The best candidate. If no gap is good enough, a search that leaves one open comes first: it finds better
        plans in the same time, and the proof may take very long. Raises as `_found`."""
        options, began_s = self.instance.options, time.monotonic()
        may_be_open = options.gap or restriction is not None or options.target or not options.cost_model.is_ours
        kept = None if may_be_open else self._otherwise(search, gap=SEARCH_GAP)
        if kept is None:
            return self._searched(search, restriction, enough_s)
        own = replace(search, restricted=True)
        found = self._answered(same(own, kept, kept.decided), own)
        if search.is_over() or not found.gap or search.lacks(PROOF_TIMES * (time.monotonic() - began_s)):
            return found
        with contextlib.suppress(NoPlanError, LimitError):
            proven = self._searched(search, restriction, enough_s)
            found = proven.proven_by(found).better([found.candidate], self.limit_bytes)
        return found

    def _searched(self, search: Search, restriction: Restrict | None, enough_s: float = math.inf) -> Found:
        """The best candidate of a search that knows no plan. Raises as `_found`."""
        if self.instance.options.target:
            return best_for_runtime(
                self._answers, RUNTIMES[self.instance.options.target], search, restriction=restriction,
                coarse=self._coarse, on_progress=self._on_progress,
            )  # fmt: skip
        deep = self._deepened(search) if restriction is None else None
        fits = deep is not None and deep.candidate.keeps(self.limit_bytes)
        if deep is not None and fits and (deep.gap <= DEEPENED_GAP or search.is_over()):
            return deep
        try:
            found = self._searched_whole(search, restriction, enough_s)
        except (NoPlanError, LimitError):
            if deep is None:
                raise
            return deep
        return found if deep is None else found.proven_by(deep).better([deep.candidate], self.limit_bytes)

    def _searched_whole(self, search: Search, restriction: Restrict | None, enough_s: float) -> Found:
        """As `_searched`, of all copies of the model's blocks."""
        fewer = self._coarser(search, without_idle_axes(self.instance)) if restriction is None else None
        if fewer is not None:
            with contextlib.suppress(NoPlanError):
                return self._answered(same(search, fewer), search)
        fewer_axes = None if restriction is not None else with_fewer_axes(self.instance)
        coarser = self._coarser(search, fewer_axes)
        if coarser is not None:
            with contextlib.suppress(NoPlanError):
                found = self._answered(finer(search, coarser, least_in_time(search)), search)
                return self._no_worse_than_quick(found, search)
        elif fewer_axes is not None and not (self.instance.chooses_remat or search.is_late()):
            # a search of all axes takes minutes
            self._answered(unless_nothing_fits(search, objective_of(self._graphs.asked()[0])), search)
        if restriction is None and search.spent.best is None and search.is_late():
            refuse_whole(search, fewer_axes)
        found = self._answered(shortest(search, enough_s if coarser is None else math.inf), search, restriction)
        found = search.with_best(found)
        if restriction is not None:
            return found
        return self._from_state_as_kept(self._no_worse_than_quick(found, search), search)

    def _no_worse_than_quick(self, found: Found, search: Search) -> Found:
        """The better of the plan of a small model and, where memory leaves a large gap, of plans that less effort finds
        under the same limit and under a tighter one, which must not have shorter steps."""
        is_small = len(self.instance.model.operators) <= FEW_OPERATORS and not self.instance.is_quick
        for share in (1.0, TIGHTER_LIMIT) if is_small else ():
            if not is_unproven_under_limit(found) or search.is_over():
                break
            quick = self._otherwise(search, effort="quick", memory_limit_bytes=int(share * self.limit_bytes))
            if quick is not None and quick.step_s < found.candidate.step_s:
                found = self._better(found, search, same(search, quick, quick.decided))
        return found

    def _from_state_as_kept(self, found: Found, search: Search) -> Found:
        """The better of a plan and of what a search finds with the operators split as in the best plan without
        `shard_optimizer`: that option must not lead to a longer step."""
        options, own = self.instance.options, replace(search, restricted=True)
        if not options.shard_optimizer or self.instance.is_quick or search.is_over() or found.gap <= options.gap:
            return found
        kept = self._otherwise(search, shard_optimizer=False)
        if kept is not None:
            found = self._better(found, own, transferred(own, kept, 0.0, kept.decided))
            found = self._better(found, own, shortest(own), kept.decided.as_split)
        return found

    def _better(
        self, found: Found, search: Search, questions: Questions[Found], restriction: Restrict | None = None
    ) -> Found:
        """The better of a plan and of what other questions find."""
        with contextlib.suppress(NoPlanError):
            other = self._answered(questions, search, restriction)
            found = found.better([other.candidate], self.limit_bytes)
        return found

    def _otherwise(self, search: Search, **options: Any) -> Transferable | None:
        """The best plan of the same request with other options, if there is one."""
        asked, told = self.instance, without_effort(self._on_progress)
        other = replace(asked.options, **options)
        found, work = self._on(asked.model, asked.cluster, search, other, told) or (None, 0.0)
        search.spent.work += work
        return found

    def _deepened(self, search: Search) -> Found | None:
        """The plan of a shallower model for all copies, if the model is deep and that is a plan of it."""
        asked, told = self.instance, of_shallow(self._on_progress)
        thin = shallower(asked)
        if thin is None:
            return None
        room_s = DEEPENING_S * len(asked.model.operators)
        coarse = self._coarse.of_shallow()
        found, work = self._on(thin, asked.cluster, search, asked.options, told, coarse, room_s) or (None, 0)
        search.spent.work += work
        if found is not None:
            with contextlib.suppress(NoPlanError):
                deep = deepened(found, thin, asked.model)
                return self._answered(deeper(search, deep, least_in_time(search)), search)
        return None

    def _coarser(self, search: Search, other: OtherMesh | None) -> Transferable | None:
        """The plan of another mesh, if there is one and it has a plan."""
        if other is None:
            return None
        cluster, groups = other
        key = cluster.mesh, ()
        if key not in self._coarse.plans:
            asked, told = self.instance, without_effort(self._on_progress)
            room_s = FINER_S * len(asked.model.operators)
            self._coarse.plans[key] = self._on(asked.model, cluster, search, asked.options, told, room_s=room_s)
        known = self._coarse.plans[key]
        if known is None:
            return None
        found, work = known
        if found is None:
            refuse_whole(search, other)
            return None
        search.spent.work += work
        return replace(found, groups=groups)

    def _on(
        self,
        model: Model,
        cluster: Cluster,
        search: Search,
        options: PlanOptions,
        told: OnProgress | None,
        coarse: CoarsePlans | None = None,
        room_s: float = 0.0,
    ) -> tuple[Transferable | None, float] | None:
        """The best plan of another model, on another mesh or with other options, if the request is valid so. Of a time
        limit, half is left for what follows, or `room_s` seconds if that is more."""
        if options.time_limit is not None:
            ends_s = min(search.share(2), search.ends_s - room_s)
            options = replace(options, time_limit=max(0.0, ends_s - time.monotonic()))
        try:
            other = Planner(model, cluster, options, told, reasons=False, coarse=coarse)
            own = Search.of(other.instance, search.interruption, search.clock)
            return Transferable.of(other._found(own, None), own), own.spent.work
        except NoPlanError:
            return None, 0.0
        except ShardplanError:  # such as a constraint that names one of the axes
            return None

    def _answered(self, questions: Questions[T], search: Search, restriction: Restrict | None = None) -> T:
        """The result of a generator of questions; progress is reported."""
        return self._answers.to(questions, search, restriction, self._on_progress)
