"""Questions about all plans, and about what may be better than a known plan, and what their answers leave as the best
plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardplan.graph.remat import Recompute
from shardplan.planning.chain import Answer, Question, most_solved
from shardplan.planning.constants import PROOF_SHARE, REMAT_UNPROVEN, ROUGH_GAP, ROUGH_WORK
from shardplan.planning.reduction import Restrict
from shardplan.planning.search import Found, NoBetterError, NoPlanError, Questions, Search
from shardplan.schedule.objective import Linear, Objective, Weights
from shardplan.solve import Plane
from shardplan.units import PS_PER_S


def asked(search: Search, question: Question, work: float) -> Questions[Answer]:
    """Asks one question with a work limit and adds the work of its answer to what the search has spent."""
    most = most_solved(question, search.instance.options)
    search.spent.left = max(search.spent.left, most)
    answer = yield replace(question, work=work, regather=question.regather or search.regather)
    search.spent.work += answer.solution.work
    search.spent.solved += most
    search.spent.left -= most
    return answer


def about(found: Found, linear: Linear | None, *, restriction: Restrict | None = None) -> Question:
    """The question for the best assignment of a linear function, or of the step, that recomputes what the best plan
    recomputes."""
    remat = found.candidate.layouts.built.recompute
    return Question(
        found.limit_bytes,
        found.objective,
        linear,
        remat,
        restriction=restriction,
        memory_multipliers=found.memory_multipliers,
    )


def best_among(search: Search, found: Found, questions: Sequence[Question], *, proves: bool = True) -> Questions[Found]:
    """The best of the known plan and of the plans that answer `questions`."""
    for question in questions:
        found, _ = yield from better_of(search, found, question, proves=proves)
    return found


def better_of(
    search: Search, found: Found, question: Question, *, proves: bool = True, work: float = ROUGH_WORK
) -> Questions[tuple[Found, float]]:
    """The best of the known plan and of the plans that answer one question, with the bound of that answer in seconds.
    With `proves`, these plans are not scheduled if their bound is no better than the known plan."""
    if search.is_over() or found.outcome == "interrupted":
        return found, math.inf
    below_s = found.candidate.step_s if proves else math.inf
    question = replace(question, ends_s=search.share(2), unproven=ROUGH_GAP, below_s=below_s, shortfall=False)
    answer = yield from asked(search, question, min(work, search.work_left))
    solution = answer.solution
    if solution.outcome == "interrupted":
        found = replace(found, outcome="interrupted")
    bound_s = solution.bound / PS_PER_S
    if solution.choices is None or (proves and bound_s >= found.candidate.step_s):
        return found, math.inf
    return search.best_of(found, answer.candidates), bound_s


def by_phase(objective: Objective, multipliers: Weights) -> Weights:
    """Multipliers of the maxima of a problem, phase by phase: a phase of one sum has none."""
    given = iter(multipliers)
    return tuple(next(given, ()) if size else () for size in objective.sizes)


def of_phases(
    search: Search,
    limit_bytes: int | None,
    remat: Recompute | None = None,
    *,
    parts: float = 1,
    chooses_remat: bool = False,
    objective: Objective | None = None,
    start: Weights = (),
    planes: Sequence[Plane] = (),
    averages: int | None = None,
    enough_s: float = math.inf,
    known: Restrict | None = None,
) -> Questions[Found]:
    """The best plan for the maxima of the phases' sums (those of `objective`), searched from the multipliers `start` or
    the cutting planes `planes`; `known`: a known plan. Raises `NoPlanError` if there is no plan, and `NoBetterError` if
    every plan takes `enough_s` or more."""
    unproven = REMAT_UNPROVEN if chooses_remat and search.instance.options.gap else 0.0
    question = Question(
        limit_bytes,
        objective,
        remat=remat,
        chooses_remat=chooses_remat,
        unproven=unproven,
        known=known,
        start=start,
        planes=planes,
        averages=averages,
        below_s=enough_s,
    )
    answer = yield from asked(search, replace(question, ends_s=search.share(parts)), PROOF_SHARE * search.work_left)
    solution = answer.solution
    bound_s = max(0.0, solution.bound / PS_PER_S)  # a search that the clock ended may have none
    if bound_s >= enough_s and solution.outcome != "infeasible":
        raise NoBetterError(bound_s)
    if solution.choices is None:
        raise NoPlanError(answer)
    best = search.judged(answer.candidates)[0]
    multipliers = by_phase(answer.objective, solution.sum_multipliers)
    proof = solution.outcome, solution.planes, solution.memory_multipliers
    return Found(best, bound_s, answer.objective, multipliers, limit_bytes, *proof, answer.whole, answer.mixture)
