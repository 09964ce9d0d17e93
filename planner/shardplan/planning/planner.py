"""Model + cluster + options -> plan: the whole road, for programs that use shardplan as a library."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError, warning
from shardplan.graph.build import CostGraph
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import at, objective_of
from shardplan.graph.remat import Recompute
from shardplan.interruption import Interruption
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.plan.assemble import Outcome, Priced, Proof, assemble, in_best_buckets
from shardplan.plan.types import Plan
from shardplan.planning.candidates import of_linear, shortest
from shardplan.planning.chain import Answer, answer
from shardplan.planning.decided import Decided
from shardplan.planning.finer import CoarsePlans, Coarser, by_pairs, finer, lifted, work_s
from shardplan.planning.infeasible import no_coarser_plan, refusal
from shardplan.planning.instance import MOST_WHOLE, CostGraphs, instance_of, real_axes
from shardplan.planning.judge import Known
from shardplan.planning.reduction import Restrict, both
from shardplan.planning.runtimes import RUNTIMES
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import FREE_ROLES, Roles, Runtime
from shardplan.planning.runtimes.trainer import check_kind, divides
from shardplan.planning.said import best_said, said_with, weights_fit
from shardplan.planning.search import Found, NoBetterError, NoPlanError, Questions, Search, T
from shardplan.planning.standing import OnProgress, Turn, Watch, of_part, of_some
from shardplan.schedule.objective import Weights, at_multipliers, serial_objective


def plan_model(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    on_progress: OnProgress | None = None,
    on_warning: Callable[[Diagnostic], None] | None = None,
    coarse: CoarsePlans | None = None,
) -> Plan:
    """The best plan for `model` on `cluster`, with its proof. `on_warning` hears of what the plan has to put up with.
    `coarse`: as in `Planner`.

    Raises `ShardplanError` for a model that cannot be planned as asked, `InfeasibleError` when it is proven that no
    plan fits in memory, `LimitError` when the time limit ends the search before any plan is found, and
    `KeyboardInterrupt` when the user does.
    """
    return Planner(model, cluster, options, on_progress, on_warning, coarse=coarse).plan()


_SAME_S = 1e-9
"""Steps are told in nanoseconds."""


class Planner:
    """Plans one model on one cluster, as asked and under further restrictions; prices are computed once for all.

    An instance is made of what was asked; `candidates` asks questions about it; each is posed as cost graphs, goes down
    the `chain` of reductions to the solver, and comes back as an assignment; the `judge` prices it; the best is the
    plan. Where there is none, `infeasible` finds out why.
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
        complete: bool = False,
        decided: Plan | None = None,
        coarse: CoarsePlans | None = None,
    ) -> None:
        """`reasons`: where nothing fits, find out what fills the memory and which constraints conflict. `complete`,
        `decided`: as in `Instance`. `coarse`: plans of coarser meshes, kept for other meshes over the same links.

        Raises `ShardplanError` for a model that cannot be planned as asked.
        """
        self._on_progress, self._warn = on_progress, on_warning or (lambda _: None)
        self._reasons = reasons
        self._coarse = CoarsePlans() if coarse is None else coarse
        self.instance = instance_of(model, cluster, options, self._warn, complete=complete, decided=decided)
        self._graphs = CostGraphs(self.instance)
        self._others: dict[Mesh, Planner | None] = {}
        """Of coarser meshes, where a runtime is planned for."""
        self.known: Known = {}
        """Plans that `solve_at` laid out."""
        self.recompute: Recompute | None = None
        """What the last plan recomputes."""
        self.priced: Priced | None = None
        self.memory: Memory | None = None
        """The last plan as it was chosen, and what its cost graph holds."""
        self.work = 0.0
        """What its searches took, in the units of `shardplan.solve.constants`."""

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
        """The best plan, of those that `restriction` allows. `scheduled_bytes`: the limit on memory that its schedule
        is to keep where it can, if not the one under which the plan is sought. `work`: that the search may take, where
        that is less than its effort is. Raises as `plan_model`, and `NoBetterError` where it is proven early that all
        take `enough_s`."""
        with Interruption() as interruption:
            try:
                search = Search.of(self.instance, interruption, restricted=restriction is not None)
                search.spent.work += max(0.0, search.work_left - work)
                found = self._found(search, restriction, enough_s)
            except NoPlanError as none:
                raise self.refusal(none.answer) from None
            if restriction is None and math.isinf(work):
                self._coarse.plans.setdefault((self.instance.cluster.mesh, ()), (Coarser.of(found), search.spent.work))
            return self._assembled(found, scheduled_bytes, interrupted=interruption.asked)

    def refined(
        self,
        coarser: Coarser,
        least_s: float,
        restriction: Restrict | None = None,
        *,
        like: Callable[[Decided], Decided] | None = None,
    ) -> Plan:
        """The plan of a coarser mesh on this one, improved two axes at a time among the plans that `restriction`
        allows; `like`: or only by what this makes of it. `least_s`: a lower bound on the step of any. Raises
        `LimitError` where it is no plan of this mesh."""
        with Interruption() as interruption:
            search = Search.of(self.instance, interruption, restricted=restriction is not None)
            try:
                found = self._answered(lifted(search, coarser, least_s), search, None)
            except NoPlanError:
                asked = self.instance
                raise LimitError(no_coarser_plan(asked.model, asked.cluster, merged(asked.cluster)[0])) from None
            if like is None:
                found = self._answered(by_pairs(search, found), search, restriction)
            elif not search.is_over:
                decided = like(coarser.on(self.instance.cluster.mesh))
                with contextlib.suppress(NoPlanError):
                    other = self._answered(lifted(search, coarser, least_s, decided), search, None)
                    found = found.better([other.candidate], self.limit_bytes)
            return self._assembled(found, interrupted=interruption.asked)

    def _assembled(self, found: Found, scheduled_bytes: int | None = None, *, interrupted: bool = False) -> Plan:
        """The plan of what was found, with its proof."""
        if interrupted:
            found = replace(found, outcome="interrupted", reproducible=False)
        for diagnostic in self.instance.pricing.compute.warnings:
            self._warn(diagnostic)
        candidate, limit = found.candidate, self.limit_bytes
        self.recompute = candidate.layouts.built.recompute
        if scheduled_bytes is not None:
            candidate, limit = candidate.under(scheduled_bytes), scheduled_bytes
        priced = in_best_buckets(candidate.priced, candidate.layouts.memory, limit)
        self.priced, self.memory = priced, candidate.layouts.memory
        if priced.mismatch:
            self._warn(warning("price-mismatch", priced.mismatch, hint="the plan has the former"))
        proof = Proof(found.bound_s - priced.penalty_s, _outcome(found), found.reproducible, found.multipliers)
        return assemble(priced, limit, proof)

    @property
    def usual_multipliers(self) -> Weights:
        """Multipliers of the objective's sums that searches begin with."""
        return objective_of(self._graphs.asked()[0]).usual_multipliers

    def solve_at(self, multipliers: Weights, restriction: Restrict | None = None) -> Answer:
        """The best assignment at given multipliers of the objective's sums, or the proof that there is none."""
        linear = at_multipliers(objective_of(self._graphs.asked()[0]), multipliers)
        search = Search(self.instance, float("inf"), Interruption(), known=self.known)
        return self._answered(of_linear(search, linear), search, restriction)

    def built_at(self, multipliers: Weights = ()) -> tuple[CostGraph, Memory]:
        """The cost graph and its memory rows, with costs and tables at given multipliers of the objective's sums; by
        default of what computes and blocks alone. At any multipliers they are a lower bound on every schedule."""
        built, memory = self._graphs.asked()
        return at(built, at_multipliers(objective_of(built), multipliers)), memory

    def built_serial(self) -> tuple[CostGraph, Memory]:
        """The same with all compute and all communication added up, as if nothing ran beside anything else."""
        built, memory = self._graphs.asked()
        options = built.options
        objective = serial_objective(training=options.training, microbatches=options.microbatches)
        return at(built, at_multipliers(objective, ())), memory

    def refusal(self, none: Answer) -> BaseException:
        """What to raise for an answer without an assignment."""
        found = refusal(self._graphs, none, reasons=self._reasons)
        target = self.instance.options.target
        if target and isinstance(found, InfeasibleError):
            first, *others = found.diagnostics
            said = first.summary.replace("no plan", f"no plan that {target} can say", 1)
            hint = f"leave out --for {target}; or {first.hint}" if first.hint else f"leave out --for {target}"
            return InfeasibleError(replace(first, summary=said, hint=hint), *others)
        return found

    def _found(self, search: Search, restriction: Restrict | None, enough_s: float = math.inf) -> Found:
        """The best plan, before its file is made. Raises `NoPlanError`, `LimitError` on a mesh of too many axes, and
        `NoBetterError` as `plan`."""
        if self.instance.options.target:
            return self._said(search, restriction)
        coarser = None if restriction is not None else self._coarser(search)
        if coarser is None:
            return self._answered(shortest(search, enough_s), search, restriction)
        try:
            return self._answered(finer(search, coarser, self._least_s()), search, None)
        except NoPlanError:
            return self._answered(shortest(search), search, None)

    def _least_s(self) -> float:
        """No step is shorter: the model's work, cut evenly."""
        asked = self.instance
        return work_s(asked.model, asked.cluster, asked.options) / asked.cluster.mesh.size

    def _said(self, search: Search, restriction: Restrict | None) -> Found:
        """The best plan that the runtime it is for can say. Raises `NoPlanError`, and `LimitError` on a mesh of too
        many axes."""
        runtime, cluster = RUNTIMES[self.instance.options.target], self.instance.cluster
        every = [*runtime.arrangements(cluster.mesh)]
        if runtime.is_trainer:
            check_kind(self.instance.model, self.instance.options.target)
            model, microbatches = self.instance.model, self.instance.options.microbatches
            every = [roles for roles in every if divides(roles, cluster.mesh, model, microbatches)] or every
        every = [roles for roles in every if weights_fit(self.instance, roles)] or every[-1:]
        some = [roles for roles in every if len(real_axes(merged(cluster, roles)[0].mesh)) <= MOST_WHOLE]

        turn = Turn(self._on_progress, len(some))

        def ask(roles: Roles, enough_s: float) -> Found | None:
            turn.next(", ".join(f"{axis} {role}" for axis, role in zip(cluster.mesh.names, roles, strict=True)))
            return self.with_roles(runtime, roles, search, restriction, enough_s)

        try:
            with self._telling(of_some(turn.tell)):
                found = best_said(some, ask, self.limit_bytes, self._coarse.enough_s)
        except NoBetterError as none:
            raise none if len(some) == len(every) else NoBetterError(min(none.bound_s, self._least_s())) from None
        if found is None and len(real_axes(cluster.mesh)) > MOST_WHOLE:
            raise LimitError(no_coarser_plan(self.instance.model, cluster, merged(cluster)[0]))
        if found is None:  # asked here, so that a refusal speaks of this mesh
            return self._among_all(runtime, every[-1], search, restriction)
        return found if len(some) == len(every) else replace(found, bound_s=min(found.bound_s, self._least_s()))

    @contextlib.contextmanager
    def _telling(self, on_progress: OnProgress | None) -> Iterator[None]:
        """Meanwhile another hears how far a search is."""
        asker, self._on_progress = self._on_progress, on_progress
        try:
            yield
        finally:
            self._on_progress = asker

    def with_roles(
        self,
        runtime: Runtime,
        roles: Roles,
        search: Search,
        restriction: Restrict | None = None,
        enough_s: float = math.inf,
    ) -> Found | None:
        """The best plan in which the axes have these roles, for `runtime`; where neighbours over one link share a role,
        from the plan of the mesh on which they are one axis, and where they are one to the runtime too, that plan.
        `None` where that mesh has none. Raises `NoPlanError`, and `NoBetterError` where all take `enough_s`."""
        known = self._coarse.bounds_s
        key = self.instance.cluster.mesh, roles
        if restriction is None and key in known and known[key] >= enough_s:
            raise NoBetterError(known[key])
        try:
            return self._with_roles(runtime, roles, search, restriction, enough_s)
        except NoBetterError as none:
            if restriction is None:
                known[key] = none.bound_s
            raise

    def _with_roles(
        self, runtime: Runtime, roles: Roles, search: Search, restriction: Restrict | None, enough_s: float
    ) -> Found | None:
        """As `with_roles`, whatever was proven before."""
        mesh, are_one = self.instance.cluster.mesh, FREE_ROLES.isdisjoint(roles)
        of_coarser_s = enough_s if are_one else math.inf
        known = None if restriction is not None else self._coarser_with(runtime, roles, search, of_coarser_s)
        if known is None:
            try:
                found = self._among_all(runtime, roles, search, restriction, enough_s)
            except NoPlanError:
                if restriction is None:
                    self._coarse.plans[mesh, roles] = None, 0.0
                raise
            if restriction is None:
                self._coarse.plans[mesh, roles] = Coarser.of(found), 0.0
            return found
        coarser, own = known[0], self._search_like(search, roles)
        if coarser is not None and are_one:
            if coarser.step_s > enough_s - _SAME_S:
                raise NoBetterError(coarser.bound_s)
            return self._answered(lifted(own, coarser, coarser.bound_s), own, None)
        if coarser is not None:
            with contextlib.suppress(NoPlanError):
                return self._answered(finer(own, coarser, self._least_s()), own, Arrangement(runtime, roles))
        if are_one or len(real_axes(mesh)) > MOST_WHOLE:
            return None
        return self._among_all(runtime, roles, search, restriction, enough_s)

    def _among_all(
        self,
        runtime: Runtime,
        roles: Roles,
        search: Search,
        restriction: Restrict | None,
        enough_s: float = math.inf,
    ) -> Found:
        """The best plan of all with these roles. Raises as `with_roles`."""

        def asked(limits: Restrict) -> Found:
            own = self._search_like(search, roles, search.known)
            return self._answered(shortest(own, enough_s), own, both(limits, restriction))

        return said_with(runtime, roles, asked)

    def _search_like(self, search: Search, roles: Roles, known: Known | None = None) -> Search:
        """One of its own, for as long; unless axes have roles in which everything is said, in few choices alone."""
        known = {} if known is None else known
        restricted = "any" not in roles
        return Search(self.instance, search.limit_s, search.interruption, restricted=restricted, known=known)

    def _coarser_with(
        self, runtime: Runtime, roles: Roles, search: Search, enough_s: float
    ) -> tuple[Coarser | None] | None:
        """The plan of the mesh on which neighbours over one link with one role are one axis, where it has one; `None`
        where that is this mesh, or what is asked means nothing there. Raises `NoBetterError`."""
        other = self._with_fewer_axes(roles)
        if other is None:
            return None
        cluster, groups = other
        key = cluster.mesh, tuple(roles[group[0]] for group in groups)
        if key not in self._coarse.plans:
            self._coarse.plans[key] = self._on_with(runtime, cluster, key[1], search, enough_s)
        known = self._coarse.plans[key]
        return known and (known[0] and replace(known[0], groups=groups),)

    def _on_with(
        self, runtime: Runtime, cluster: Cluster, roles: Roles, search: Search, enough_s: float
    ) -> tuple[Coarser | None, float] | None:
        """What is known of another mesh whose axes have these roles. Raises `NoBetterError`."""
        mesh = cluster.mesh
        if mesh not in self._others:
            try:
                asked, reports = self.instance, self._on_progress
                self._others[mesh] = Planner(
                    asked.model, cluster, asked.options, reports, reasons=False, coarse=self._coarse
                )
            except ShardplanError:  # such as a constraint that names one of the axes
                self._others[mesh] = None
        other = self._others[mesh]
        if other is None:
            return None
        try:
            own = Search(other.instance, search.share(2), search.interruption)
            found = other.with_roles(runtime, roles, own, enough_s=enough_s)
        except NoPlanError:
            return None, 0.0
        return None if found is None else Coarser.of(found), 0.0

    def _with_fewer_axes(self, roles: Roles = ()) -> tuple[Cluster, tuple[tuple[int, ...], ...]] | None:
        """As `merged`, where that is another mesh, whose plans are plans of this one."""
        asked = self.instance
        cluster, groups = merged(asked.cluster, roles)
        is_same = len(groups) == len(asked.cluster.mesh)
        return None if is_same or asked.complete or not asked.options.cost_model.is_ours else (cluster, groups)

    def _coarser(self, search: Search) -> Coarser | None:
        """The plan of the mesh with one axis for each link, where that is another one and has a plan."""
        other = self._with_fewer_axes()
        if other is None:
            return None
        cluster, groups = other
        key = cluster.mesh, ()
        if key not in self._coarse.plans:
            self._coarse.plans[key] = self._on(cluster, search)
        known = self._coarse.plans[key]
        if known is None:
            return None
        found, work = known
        if found is None:
            asked = self.instance
            if len(real_axes(asked.cluster.mesh)) > MOST_WHOLE:
                raise LimitError(no_coarser_plan(asked.model, asked.cluster, cluster))
            return None
        search.spent.work += work
        return replace(found, groups=groups)

    def _on(self, cluster: Cluster, search: Search) -> tuple[Coarser | None, float] | None:
        """What is known of another mesh."""
        options = self.instance.options
        if options.time_limit is not None:
            options = replace(options, time_limit=max(0.0, search.share(2) - time.monotonic()))
        try:
            other = Planner(self.instance.model, cluster, options, of_part(self._on_progress), reasons=False)
            own = Search.of(other.instance, search.interruption)
            return Coarser.of(other._found(own, None)), own.spent.work
        except NoPlanError:
            return None, 0.0
        except ShardplanError:  # such as a constraint that names one of the axes
            return None

    def _answered(self, questions: Questions[T], search: Search, restriction: Restrict | None) -> T:
        """What a generator of questions comes to when all of them are answered."""
        watch = Watch(self._on_progress)
        try:
            question = next(questions)
            while True:
                asked = replace(question, restriction=both(question.restriction, restriction))
                found = answer(self._graphs, asked, watch.of(search, question))
                self.work += found.solution.work
                if found.solution.choices is not None:
                    search.interruption.arm()
                watch.heard(found)
                if found.solution.failure:
                    self._warn(_step_failed(found.solution.failure))
                question = questions.send(found)
        except StopIteration as end:
            result: T = end.value
            return result


def _step_failed(failure: str) -> Diagnostic:
    hint = "the plan stands; please report this defect of shardplan as CONTRIBUTING.md says"
    return warning("search-failed", f"a step of the search was given up: {failure}", hint=hint)


def _outcome(found: Found) -> Outcome:
    return "interrupted" if found.outcome == "interrupted" else "feasible"
