"""The best plan that a runtime can express: one search for each assignment of roles to the mesh axes.

Neighbouring axes over one link that share a role are one axis of a coarser mesh; plans of coarser meshes are kept and
shared. A search ends as soon as it is proven that its plans are no shorter than the best one so far.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.errors import LimitError, ShardplanError
from shardplan.graph.problem import objective_of
from shardplan.layout.mesh import Mesh
from shardplan.planning.answers import Answers
from shardplan.planning.candidates import estimated, shortest
from shardplan.planning.constants import (
    AVERAGES,
    COARSER_HOPELESS,
    ROLES_FEW,
    ROLES_HOPELESS,
    ROLES_SLOWER,
    SAME_STEP_S,
)
from shardplan.planning.expressible import best_expressible, expressible_with, weights_fit
from shardplan.planning.finer import CoarsePlans, Transferable, finer, least_s, transferred, with_fewer_axes
from shardplan.planning.infeasible import no_coarser_plan
from shardplan.planning.instance import MOST_WHOLE, Instance, instance_of
from shardplan.planning.judge import Known
from shardplan.planning.linear_questions import bound_at
from shardplan.planning.questions import of_phases
from shardplan.planning.reduction import Restrict, both
from shardplan.planning.runtimes.arrangement import Arrangement
from shardplan.planning.runtimes.table import FREE_ROLES, Roles, Runtime
from shardplan.planning.runtimes.trainer import check_kind, dividing
from shardplan.planning.search import Found, NoBetterError, NoPlanError, Questions, Search
from shardplan.planning.standing import OnProgress, Turn, without_bound
from shardplan.schedule.objective import at_multipliers


def best_for_runtime(
    answers: Answers,
    runtime: Runtime,
    search: Search,
    *,
    restriction: Restrict | None = None,
    coarse: CoarsePlans,
    on_progress: OnProgress | None = None,
) -> Found:
    """The best plan that `runtime` can express and `restriction` allows. `coarse`: plans of coarser meshes.

    Raises `NoPlanError`, `LimitError` on a mesh of too many axes, `NoBetterError` if every plan takes `coarse.enough_s`
    or more, and `ShardplanError` for a model that the runtime cannot train.
    """
    instance = answers.instance
    cluster = instance.cluster
    every = _roles(instance, runtime)
    some = [roles for roles in every if len(merged(cluster, roles)[0].mesh.real_axes) <= MOST_WHOLE]
    turn = Turn(on_progress, len(some))
    plans = RuntimePlans(answers, runtime, coarse, restriction, without_bound(turn.tell))

    def ask(roles: Roles, enough_s: float) -> Found | None:
        if search.is_over() and enough_s < math.inf:
            raise NoBetterError(0.0 if search.is_late() else min(enough_s, least_s(instance)))
        turn.next(", ".join(f"{axis} {role}" for axis, role in zip(cluster.mesh.names, roles, strict=True)))
        return plans.with_roles(roles, search, enough_s)

    try:
        found = best_expressible(plans.promising_first(some, search), ask, instance.limit_bytes, coarse.enough_s)
    except NoBetterError as none:
        raise none if len(some) == len(every) else NoBetterError(min(none.bound_s, least_s(instance))) from None
    if found is None and len(cluster.mesh.real_axes) > MOST_WHOLE:
        raise LimitError(no_coarser_plan(instance.model, cluster, merged(cluster)[0]))
    if found is None:  # asked here, so that a refusal speaks of this mesh
        return replace(plans, on_progress=on_progress).among_all(every[-1], search)
    return found if len(some) == len(every) else replace(found, bound_s=min(found.bound_s, least_s(instance)))


def start_for_runtime(answers: Answers, runtime: Runtime, search: Search, ask: Callable[[], Questions[Found]]) -> Found:
    """The result of the questions that `ask` begins, for the first roles of the axes with which `runtime` can express
    it. Raises `NoPlanError` if there are none."""

    def limited(limits: Restrict) -> Found:
        return answers.to(ask(), search, limits)

    *others, last = _roles(answers.instance, runtime)
    for roles in others:
        with contextlib.suppress(NoPlanError):
            return expressible_with(runtime, roles, limited)
    return expressible_with(runtime, last, limited)


def _roles(instance: Instance, runtime: Runtime) -> list[Roles]:
    """The roles that the axes may have, without those that are impossible; if memory makes all so, the last one."""
    mesh = instance.cluster.mesh
    every = [*runtime.arrangements(mesh)]
    if runtime.is_trainer:
        check_kind(instance.model, instance.options.target)
        every = dividing(every, mesh, instance.model, instance.options)
    return [roles for roles in every if weights_fit(instance, roles)] or every[-1:]


@dataclass
class RuntimePlans:
    """The best plans of one instance that `runtime` can express and `restriction` allows, by the roles of the axes."""

    answers: Answers
    runtime: Runtime
    coarse: CoarsePlans
    restriction: Restrict | None = None
    on_progress: OnProgress | None = None
    _others: dict[Mesh, RuntimePlans | None] = field(init=False, default_factory=dict)
    """Plans of coarser meshes."""
    _last: Found | None = field(init=False, default=None)
    """The last plan that was found."""
    _estimates: dict[Roles, float] = field(init=False, default_factory=dict)
    """Steps (seconds) of estimates."""

    @property
    def _instance(self) -> Instance:
        return self.answers.instance

    def promising_first(self, every: list[Roles], search: Search) -> list[Roles]:
        """`every` in the order of the steps that one plain problem with equal layers gives, those that fit in memory
        first. A search that begins near the best plan proves of most roles that they give no shorter one."""
        if len(every) <= ROLES_FEW or len(self._instance.cluster.mesh.real_axes) > MOST_WHOLE:
            return every
        ranks = {roles: self._estimated(roles, search) for roles in every}
        return sorted(every, key=ranks.__getitem__)

    def _estimated(self, roles: Roles, search: Search) -> tuple[bool, float]:
        """Whether an estimate of the best plan with these roles does not fit in memory, and its step in seconds."""
        if search.is_over():
            return True, math.inf
        own = self._search_like(search, roles)
        limits = both(Arrangement(self.runtime, roles), self.restriction)
        found = self.answers.to(estimated(own, objective_of(self.answers.graphs.asked()[0])), own, limits)
        if found is None:
            return True, math.inf
        self._estimates[roles] = found.step_s
        return not found.keeps(self._instance.limit_bytes), found.step_s

    def with_roles(self, roles: Roles, search: Search, enough_s: float = math.inf) -> Found | None:
        """The best plan in which the axes have these roles. If neighbours over one link share a role, the search starts
        from the mesh on which they are one axis; if they are one axis to the runtime too, that mesh's plan is the
        result. `None` if that mesh has no plan. Raises `NoPlanError`, and `NoBetterError` if every plan takes
        `enough_s` or more."""
        known = self.coarse.bounds_s
        key = self._instance.cluster.mesh, roles
        if self.restriction is None and key in known and known[key] >= enough_s:
            raise NoBetterError(known[key])
        try:
            return self._with_roles(roles, search, enough_s)
        except NoBetterError as none:
            if self.restriction is None:
                known[key] = none.bound_s
            raise

    def _with_roles(self, roles: Roles, search: Search, enough_s: float) -> Found | None:
        """As `with_roles`, but without looking at earlier bounds."""
        mesh, are_one = self._instance.cluster.mesh, FREE_ROLES.isdisjoint(roles)
        of_coarser_s = enough_s if are_one else math.inf
        bound_s = 0.0
        if not are_one and self.restriction is None and with_fewer_axes(self._instance, roles) is not None:
            # the plan of the coarser mesh proves nothing about this one; without one, `among_all` checks it
            own = self._search_like(search, roles)
            bound_s = self._check_hopeful(own, roles, Arrangement(self.runtime, roles), enough_s)
        known = None if self.restriction is not None else self._coarser(roles, search, of_coarser_s)
        if known is None:
            return self._kept(roles, search, enough_s)
        coarser, own = known[0], self._search_like(search, roles)
        if coarser is not None and are_one:
            if coarser.step_s > enough_s - SAME_STEP_S:
                raise NoBetterError(coarser.bound_s)
            return self.answers.to(transferred(own, coarser, coarser.bound_s), own, on_progress=self.on_progress)
        if coarser is not None and coarser.step_s > COARSER_HOPELESS * enough_s:
            raise NoBetterError(bound_s)
        if coarser is not None:
            questions = finer(own, coarser, least_s(self._instance))
            with contextlib.suppress(NoPlanError):
                self._last = self.answers.to(questions, own, Arrangement(self.runtime, roles), self.on_progress)
                return self._last
        if are_one or len(mesh.real_axes) > MOST_WHOLE:
            return None
        return self.among_all(roles, search, enough_s)

    def _kept(self, roles: Roles, search: Search, enough_s: float) -> Found:
        """As `among_all`; the result is kept for finer meshes."""
        key = self._instance.cluster.mesh, roles
        try:
            found = self.among_all(roles, search, enough_s)
        except NoPlanError:
            if self.restriction is None:
                self.coarse.plans[key] = None, 0.0
            raise
        if self.restriction is None:
            self.coarse.plans[key] = Transferable.of(found, search), 0.0
        return found

    def among_all(self, roles: Roles, search: Search, enough_s: float = math.inf) -> Found:
        """The best of all plans with these roles. Raises as `with_roles`."""

        def asked(limits: Restrict) -> Found:
            own = replace(self._search_like(search, roles, search.known), worth_s=ROLES_SLOWER * enough_s)
            limits = both(limits, self.restriction) or limits
            self._check_hopeful(own, roles, limits, enough_s)
            self._last = self.answers.to(shortest(own, enough_s), own, limits, self.on_progress)
            return self._last

        return expressible_with(self.runtime, roles, asked)

    def _check_hopeful(self, search: Search, roles: Roles, limits: Restrict, enough_s: float) -> float:
        """A lower bound (seconds) on every plan with these roles, by plain problems at good multipliers of other roles.
        Raises `NoBetterError` if it is `enough_s` or more, or if the estimate of these roles is far above that."""
        last = self._last
        if last is None or enough_s == math.inf or self._instance.chooses_remat:
            return 0.0
        bound_s = 0.0
        for linear in (last.linear, at_multipliers(last.objective, last.objective.usual_multipliers)):
            bound_s = max(bound_s, self.answers.to(bound_at(search, linear), search, limits, self.on_progress))
            if bound_s >= enough_s:
                break
        is_hopeless = self._estimates.get(roles, 0.0) > ROLES_HOPELESS * enough_s
        if is_hopeless and bound_s < last.bound_s:  # it would be the bound of the best plan
            bound_s = max(bound_s, self.answers.to(_raised_bound(search, last, enough_s), search, limits))
        if bound_s >= enough_s or is_hopeless:
            raise NoBetterError(bound_s)
        return bound_s

    def _search_like(self, search: Search, roles: Roles, known: Known | None = None) -> Search:
        """A new search with the same time limit. It is `restricted` if no role leaves everything open: then few choices
        are left."""
        known = {} if known is None else known
        restricted = "any" not in roles
        return Search(self._instance, search.limit_s, search.interruption, restricted, search.clock, known=known)

    def _coarser(self, roles: Roles, search: Search, enough_s: float) -> tuple[Transferable | None] | None:
        """The plan of the mesh on which neighbours over one link with one role are one axis. `None` if it has no plan,
        if that is this mesh, or if the request is not valid there. Raises `NoBetterError`."""
        other = with_fewer_axes(self._instance, roles)
        if other is None:
            return None
        cluster, groups = other
        key = cluster.mesh, tuple(roles[group[0]] for group in groups)
        if key not in self.coarse.plans:
            self.coarse.plans[key] = self._on(cluster, key[1], search, enough_s)
        known = self.coarse.plans[key]
        return known and (known[0] and replace(known[0], groups=groups),)

    def _on(
        self, cluster: Cluster, roles: Roles, search: Search, enough_s: float
    ) -> tuple[Transferable | None, float] | None:
        """The best plan of another mesh whose axes have these roles. Raises `NoBetterError`."""
        mesh, asked = cluster.mesh, self._instance
        if mesh not in self._others:
            try:
                there = Answers(instance_of(asked.model, cluster, asked.options, lambda _: None), lambda _: None)
                self._others[mesh] = RuntimePlans(there, self.runtime, self.coarse, None, self.on_progress)
            except ShardplanError:  # such as a constraint that names one of the axes
                self._others[mesh] = None
        other = self._others[mesh]
        if other is None:
            return None
        try:
            own = Search(other.answers.instance, search.share(2), search.interruption, clock=search.clock)
            found = other.with_roles(roles, own, enough_s)
        except NoPlanError:
            return None, 0.0
        return None if found is None else Transferable.of(found, search), 0.0


def _raised_bound(search: Search, near: Found, enough_s: float) -> Questions[float]:
    """A lower bound (seconds) on every step, by few plain problems from the multipliers of `near`, a similar plan; no
    more are solved once it is `enough_s`."""
    try:
        found = yield from of_phases(
            search, None, start=near.multipliers, averages=AVERAGES["quick"], enough_s=enough_s
        )
    except NoBetterError as none:
        return none.bound_s
    except NoPlanError:
        return 0.0
    return found.bound_s
