"""Sources of candidate plans: generators that ask questions, look at the answers, and return the best plan found.

Each generator yields a `Question` and is sent its `Answer`; it does not know who answers. `searched` asks about all
plans; `_improvements` lists the sources that follow, in the order in which they are tried. Whatever a question
minimises, the assignments in its answer are compared by their scheduled steps, and the bound in its answer holds for
the schedule of every plan that the question allows.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from shardplan.graph.objective_cuts import binding_cuts
from shardplan.graph.remat import Recompute
from shardplan.planning.at_once import at_once
from shardplan.planning.branch_and_bound import branched
from shardplan.planning.chain import Answer, Question
from shardplan.planning.constants import (
    AVERAGES,
    CUT_LEAST,
    IMPROVED_GAP,
    LESS_MEMORY,
    LESS_MEMORY_GAP,
    LESS_MEMORY_WORK,
    MISSING_ROUNDS,
    PLAIN_SHARES,
    RECIPE_HOPE,
    RESCHEDULED,
    RESCHEDULED_STAYING,
    RESCUE_S,
    ROUGH_WORK,
    UNLIMITED_GAP,
    UNLIMITED_MEMORY,
)
from shardplan.planning.crossovers import crossed, with_stretches
from shardplan.planning.judge import Candidate
from shardplan.planning.less_memory import TIGHTER, at_tighter_limits, under_less_memory
from shardplan.planning.outside_blocks import outside_blocks
from shardplan.planning.questions import about, asked, best_among, better_of, by_phase, of_phases
from shardplan.planning.recipes import recipes_for, without_axes
from shardplan.planning.recombinations import recombined
from shardplan.planning.reduction import Restrict
from shardplan.planning.rematerialisation import FLAGS, MOST_RECOMPUTED, flags
from shardplan.planning.scheduled_buckets import at_scheduled_buckets
from shardplan.planning.search import Found, NoBetterError, NoPlanError, Questions, Search
from shardplan.planning.within_memory import within_memory
from shardplan.schedule.objective import Linear, Objective, fitting, plain_sum
from shardplan.units import PS_PER_S


def shortest(search: Search, enough_s: float = math.inf) -> Questions[Found]:
    """The plan with the shortest step. Where the search also chooses which operators are recomputed, the plans of the
    flags `--remat none`, `selective`, `alternate` and `full` are candidates too. Raises `NoPlanError` if there is no
    plan, and `NoBetterError` if every plan takes `enough_s` seconds or more."""
    instance, spent, most = search.instance, search.spent, _most_solved(search)
    spent.later = most * len(FLAGS) if instance.chooses_remat else 0
    yield from at_once(search)
    found = yield from searched(search, chooses_remat=instance.chooses_remat, enough_s=enough_s)
    is_open = instance.chooses_remat and found.limit_bytes is not None and found.gap > IMPROVED_GAP
    for remat in flags(found.candidate.layouts.built) if is_open else ():
        spent.later = max(0, spent.later - most)
        if found.outcome == "interrupted" or search.is_over():
            break
        with contextlib.suppress(NoPlanError):
            other = yield from searched(search, remat, below_s=found.candidate.step_s)
            found = replace(found.better([other.candidate], instance.limit_bytes), outcome=other.outcome)
    return (yield from within_memory(search, found))


def searched(
    search: Search,
    remat: Recompute | None = None,
    *,
    chooses_remat: bool = False,
    below_s: float = math.inf,
    enough_s: float = math.inf,
) -> Questions[Found]:
    """The best plan of all candidate sources. `remat` fixes which operators are recomputed, unless the search chooses
    that. The search ends once it is proven that no step is shorter than `below_s` seconds. Raises `NoPlanError`, and
    `NoBetterError` if every plan takes `enough_s` or more, or the plan without a memory limit `search.worth_s`."""
    limit_bytes, unlimited = search.limit_bytes, search.without_limit()
    search.spent.left = _most_solved(search)
    skips = search.regather and search.is_late()  # the same was done at other prices, in vain
    free = None if skips else (yield from without_limit(unlimited, remat, enough_s))
    if free is not None and free.candidate.step_s >= search.worth_s:
        raise NoBetterError(free.bound_s)
    if free is not None and not (free.candidate.keeps(limit_bytes) or chooses_remat or remat or search.is_over()):
        yield from unless_nothing_fits(search, free.objective)
    if free is not None and free.bound_s < below_s and free.candidate.peak_bytes <= UNLIMITED_MEMORY * limit_bytes:
        free = yield from improved(unlimited, free)
    if free is not None and free.bound_s >= below_s:
        return free
    if free is not None and free.candidate.keeps(limit_bytes):
        return (yield from completed(unlimited, free, limit_bytes))
    search.spent.left = _most_solved(search) // 2
    if free is not None and free.candidate.layouts.built.recompute.held and not (chooses_remat or search.regather):
        return (yield from _with_fewer_staying(search, unlimited, free, remat, below_s))
    try:
        found = yield from under_the_limit(search, free, remat, chooses_remat=chooses_remat, enough_s=enough_s)
    except NoPlanError as none:
        found = yield from from_recipes(search, none.answer)
        found = found.proven_by(free) if free is not None and search.is_late() else found
    if not (chooses_remat or search.has_to_stop()):
        found = found.better([*search.known.values(), *_rescheduled(search, unlimited)], limit_bytes)
    if found.candidate.step_s < min(below_s, search.worth_s):
        found = yield from improved(search, found)
        found = yield from completed(search, found, limit_bytes)
    return found


def _with_fewer_staying(
    search: Search, unlimited: Search, free: Found, remat: Recompute | None, below_s: float
) -> Questions[Found]:
    """The best plan if memory is too short for all gathered weights of `free`, the best plan without a limit, to stay:
    that plan with as many as fit, and the result of a search at prices as if none stayed. The bound holds for any
    choice of what stays."""
    limit_bytes = search.limit_bytes
    others = [] if search.has_to_stop() else _rescheduled(search, unlimited, RESCHEDULED_STAYING)
    free = replace(free, limit_bytes=limit_bytes).better(others, limit_bytes)
    if free.candidate.keeps(limit_bytes) and (free.gap <= UNLIMITED_GAP or search.is_over()):
        return free
    found = yield from searched(replace(search, regather=True), remat, below_s=below_s)
    proven = free
    with contextlib.suppress(NoPlanError):
        proven = yield from of_phases(
            search, limit_bytes, remat, parts=2, objective=free.objective, start=free.multipliers, averages=1
        )
    return proven.proven_by(free).better([free.candidate, found.candidate], limit_bytes)


def _rescheduled(search: Search, unlimited: Search, most: int = RESCHEDULED) -> list[Candidate]:
    """The best plans of a search without a memory limit, scheduled again so that they keep the limit where they can."""
    ranked = sorted(unlimited.known.values(), key=lambda one: one.step_s)
    plans = [(one.layouts, tuple(one.priced.choice.values())) for one in ranked]
    return search.judged(plans[:most]) if plans else []


def improved(search: Search, found: Found) -> Questions[Found]:
    """The best of the known plan and of the plans that further searches around it find."""
    improvements = _improvements(search)
    after = sum(improvements.values())
    for improve, most in improvements.items():
        if found.gap <= IMPROVED_GAP or _is_final(search, found):
            break
        search.spent.left, after = after, after - most
        found = yield from improve(search, found)
    return found


def completed(search: Search, found: Found, limit_bytes: int) -> Questions[Found]:
    """The result of a branch and bound that starts from a known plan and keeps within `limit_bytes`, and of mixing what
    was met on the way."""
    if _is_final(search, found):
        return found
    met = search.met
    found = yield from branched(search, found)
    if search.met > met:
        found = yield from crossed(search, found)
    if not (search.instance.is_quick or search.restricted):
        found = yield from recombined(search, found)
    return found.better([*search.known.values()], limit_bytes)


def with_missing_sums(search: Search, found: Found) -> Questions[Found]:
    """The search again with the sums that its best plan shows to be missing, from the multipliers known: the objective
    is nearer to the schedule then, and its bound is one as well."""
    for _ in range(MISSING_ROUNDS):
        best, whole = found.candidate, found.whole
        if whole is None or best.layouts.built is not whole.built or _is_final(search, found):
            break
        cuts = binding_cuts(whole.built, tuple(best.priced.choice.values()), found.objective, CUT_LEAST)
        if not cuts:
            break
        objective = found.objective.with_cuts(cuts)
        start, recompute = fitting(found.multipliers, objective), best.layouts.built.recompute
        try:
            other = yield from of_phases(
                search, found.limit_bytes, recompute, parts=2, objective=objective, start=start
            )
        except NoPlanError:
            break
        found = replace(other, bound_s=max(found.bound_s, other.bound_s)).better([best], search.limit_bytes)
    return found


def _is_final(search: Search, found: Found) -> bool:
    """Whether nothing more is to be searched, whatever the gap."""
    return found.is_only_one or found.outcome == "interrupted" or search.is_over()


def _most_solved(search: Search) -> int:
    """Upper bound on the plain problems (problems of one linear sum) that `searched` solves."""
    return 2 * search.averages + 1 + 2 * sum(_improvements(search).values())


Improvement: TypeAlias = Callable[[Search, Found], Questions[Found]]


def _improvements(search: Search) -> dict[Improvement, int]:
    """The searches that start from a known plan, in their order, each with an upper bound on the plain problems that it
    solves."""
    instance = search.instance
    if not instance.options.cost_model.is_ours:
        return {}
    axes, restricted = len(instance.cluster.mesh), 1 + AVERAGES["quick"]
    improvements: dict[Improvement, int] = {
        on_one_device: 1,
        with_plain_sums: 1 if instance.is_quick else len(PLAIN_SHARES),
    }
    if not (instance.is_quick or search.restricted):
        improvements = {with_missing_sums: MISSING_ROUNDS, at_scheduled_buckets: 1, **improvements}
        improvements |= {
            with_recipes: restricted * len(recipes_for(instance.options)),
            on_coarser_meshes: restricted * axes if axes > 1 else 0,
        }
        improvements[regathering] = AVERAGES["quick"]
    improvements[under_less_memory] = 2
    improvements[at_tighter_limits] = TIGHTER
    if instance.is_quick:
        return improvements
    return {**improvements, crossed: 0, with_stretches: 0, needing_less_memory: AVERAGES["quick"], outside_blocks: 0}


def without_limit(
    search: Search, remat: Recompute | None = None, enough_s: float = math.inf
) -> Questions[Found | None]:
    """The best plan without a memory limit, or `None` if it was not searched; if it fits, it is the answer. It is not
    searched where the choice of recomputed operators is open. Raises `NoBetterError` if every plan takes `enough_s` or
    more."""
    with contextlib.suppress(NoPlanError):
        return (yield from of_phases(search, None, remat, parts=2, enough_s=enough_s))
    return None


def unless_nothing_fits(search: Search, objective: Objective) -> Questions[None]:
    """Schedules the assignment with the least base sums under the limit, which is known from then on. Raises
    `NoPlanError` if it is proven at once that no plan fits in memory, whatever the maxima of `objective`."""
    question = Question(search.limit_bytes, objective.base, ends_s=search.ends_s)
    answer = yield from asked(search, question, min(ROUGH_WORK, search.work_left))
    if answer.solution.outcome == "infeasible":
        raise NoPlanError(answer)
    if answer.candidates and not search.has_to_stop():
        search.judged(answer.candidates)


def under_the_limit(
    search: Search, free: Found | None, remat: Recompute | None, *, chooses_remat: bool, enough_s: float
) -> Questions[Found]:
    """The best plan under the memory limit. `free` is the best plan without a limit; the search may start from its
    multipliers. Raises `NoPlanError`, and `NoBetterError` if every plan takes `enough_s` or more."""
    limit_bytes, near = search.limit_bytes, None
    if free is not None and not chooses_remat:
        try:
            near = yield from of_phases(
                search,
                limit_bytes,
                remat,
                parts=2,
                objective=free.objective,
                start=free.multipliers,
                averages=1,
                enough_s=enough_s,
            )
        except NoPlanError as none:
            if none.answer.solution.outcome == "infeasible":
                raise
        if near is not None:
            near = near.proven_by(free)
            if near.gap <= UNLIMITED_GAP or search.is_over():
                return near
    found = yield from of_phases(search, limit_bytes, remat, chooses_remat=chooses_remat, enough_s=enough_s)
    return found if near is None else found.proven_by(near).better([near.candidate], limit_bytes)


def from_recipes(search: Search, none: Answer) -> Questions[Found]:
    """The best plan that was scheduled, if time or Ctrl-C ended a search; or the first plan found in the layouts of a
    hand-written recipe, for a search that was stopped or failed before it had any plan. Raises `NoPlanError` if no
    recipe gives a plan either, or if `none` is a proof that there is no plan.
    """
    if search.spent.best is not None and search.is_late():
        return search.best_without(none)
    recipes = recipes_for(search.instance.options).values() if none.solution.outcome == "limit" else ()
    remat = MOST_RECOMPUTED if none.question.chooses_remat else none.question.remat
    for recipe in recipes:
        ends_s = max(search.limit_s, time.monotonic()) + RESCUE_S
        question = replace(none.question, restriction=recipe, chooses_remat=False, remat=remat, ends_s=ends_s)
        answer = yield from asked(search, replace(question, objective=None, is_late=True), ROUGH_WORK)
        if answer.solution.choices is not None:
            best, bound_s = search.judged(answer.candidates)[0], max(0.0, none.solution.bound / PS_PER_S)
            multipliers = by_phase(answer.objective, ())
            return Found(best, bound_s, answer.objective, multipliers, none.question.limit_bytes)
    raise NoPlanError(none)


def estimated(search: Search, objective: Objective) -> Questions[Candidate | None]:
    """The plan with equal layers that minimises one plain sum, without a memory limit: within some percent of the best.
    `None` if there is none."""
    linear = _plain_sums(objective)[0]
    answer = yield Question(None, linear=linear, equal_layers=True, ends_s=search.ends_s, shortfall=False)
    return search.judged(answer.candidates[:1])[0] if answer.candidates else None


def with_plain_sums(search: Search, found: Found) -> Questions[Found]:
    """Candidates from plain sums: plans that minimise compute and blocking communication plus a share of all other
    traffic."""
    sums = _plain_sums(found.objective)
    questions = [
        replace(about(found, linear), equal_layers=True) for linear in (sums[:1] if search.instance.is_quick else sums)
    ]
    return best_among(search, found, questions, proves=False)


def _plain_sums(objective: Objective) -> list[Linear]:
    return [plain_sum(objective, forward, backward, outermost=outer) for forward, backward, outer in PLAIN_SHARES]


def with_recipes(search: Search, found: Found) -> Questions[Found]:
    """Candidates in the layouts of hand-written recipes: the free choices are solved at the best multipliers known, and
    at the recipe's own multipliers where its bound leaves hope."""
    for recipe in recipes_for(search.instance.options).values():
        found = yield from _restricted(search, found, recipe, RECIPE_HOPE, equal_layers=True)
    return found


def on_coarser_meshes(search: Search, found: Found) -> Questions[Found]:
    """Candidates from coarser meshes: plans that leave one mesh axis unused, always solved at their own multipliers
    too, so that a finer mesh never gets a slower plan."""
    axes = range(len(search.instance.cluster.mesh))
    for axis in axes if len(axes) > 1 else ():
        found = yield from _restricted(search, found, without_axes([axis]), 0.0)
    return found


def on_one_device(search: Search, found: Found) -> Questions[Found]:
    """The candidate in which every device does everything, if it computes for less time than the best step takes."""
    built, alone = found.candidate.layouts.built, without_axes(range(len(search.instance.cluster.mesh)))
    allowed, compute_s = alone(built), 0.0
    for operator, space in zip(built.model.operators, built.operators, strict=True):
        compute_s += float(space.compute_s[allowed.get(("operator", operator.name), ...)].min())
    if compute_s >= found.candidate.step_s:
        return found
    question = replace(about(found, found.linear, restriction=alone), equal_layers=True)
    return (yield from best_among(search, found, [question]))


def _restricted(
    search: Search, found: Found, restriction: Restrict, hope: float, *, equal_layers: bool = False
) -> Questions[Found]:
    """Plans of a restriction at the best multipliers known; also at its own multipliers if its bound is below the best
    step by more than the share `hope` of the gap."""
    question = replace(about(found, found.linear, restriction=restriction), equal_layers=equal_layers)
    found, bound_s = yield from better_of(search, found, question)
    if bound_s < found.candidate.step_s * (1.0 - hope * found.gap):
        near = replace(question, linear=None, averages=AVERAGES["quick"])
        found, _ = yield from better_of(search, found, near, proves=False)
    else:
        search.spent.left -= AVERAGES["quick"]
    return found


def regathering(search: Search, found: Found) -> Questions[Found]:
    """Candidates at prices as if all gathered weights were gathered again, which are searched under a tighter memory
    limit anyway: that must not lead to a better plan."""
    if search.regather or not found.candidate.layouts.built.recompute.held:
        return found
    question = replace(about(found, None), equal_layers=True, regather=True, averages=AVERAGES["quick"])
    found, _ = yield from better_of(search, found, question, proves=False)
    return found


def needing_less_memory(search: Search, found: Found) -> Questions[Found]:
    """Plans with equal layers that need less memory than the best plan, and crossovers with them: starting points in
    another part of the search space."""
    if found.gap <= LESS_MEMORY_GAP:
        return found
    less = int(LESS_MEMORY * found.candidate.peak_bytes)
    question = replace(about(found, None), equal_layers=True, limit_bytes=less, stay=True)
    met = search.met
    question = replace(question, averages=AVERAGES["quick"])
    found, _ = yield from better_of(search, found, question, proves=False, work=LESS_MEMORY_WORK)
    if search.met > met:
        found = yield from crossed(search, found)
    return found
