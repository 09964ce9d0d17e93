"""The constants that trade time and quality of the search for a plan of one mesh, each with its meaning.

Those of the search for a pipeline are in `shardplan.pipeline.constants`, the solver's in `shardplan.solve.constants`,
those of one schedule (`plan.step`, `schedule`) and of one question of `advice` beside their use. Work is in the units
of `shardplan.solve.constants`: a thousand are about a second. A gap is a share of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from shardplan.graph.options import Effort, PlanOptions

# The whole search

SEARCH_WORK: Final[Mapping[Effort, float]] = {"quick": 1e4, "thorough": 2e4, "exhaustive": math.inf}
"""Work after which no further question is asked and the best plan is the answer: more finds better plans, and better
bounds of models whose proofs take long."""


def work_limit(options: PlanOptions) -> float:
    """`SEARCH_WORK` of the asked effort; infinite if the search is to leave no gap."""
    return SEARCH_WORK[options.effort] if options.gap > 0.0 else math.inf


CLOSING_RESERVE = 3.5
"""Reserve at the end of a time limit for making the file of the best plan, in units of the time that scheduling a plan
takes."""

SEARCH_GAP: Final = 5e-3
"""With `--gap 0`, the gap at which the first of two searches ends."""
PROOF_TIMES: Final = 8.0
"""The second search, for a proof, begins if the time limit leaves at least this many times what the first took."""

# One question

AVERAGES: Final[Mapping[Effort, int]] = {"quick": 3, "thorough": 10, "exhaustive": 10}
"""Maximum number of plain problems for the objective's maxima: more raise the bound a little."""
ANSWER_JUDGED = 6
"""Candidates of one answer that are scheduled: the best by the sums need not have the shortest schedule."""
ANSWER_JUDGED_NODES = 12_000
"""More candidates are scheduled as long as they have at most this many nodes in all: small plans take almost
no time."""
EQUAL_JUDGED = 6
"""Minimum number of candidates with equal layers among them, if the search found such first."""
CUT_ROUNDS = 2
"""Maximum number of times that sums are added to the objective of a step."""
CUT_LEAST = 0.05
"""Share of the step that a sum must add."""
MISSING_ROUNDS = 3
"""Maximum number of times that a search is repeated with the sums that its best plan shows to be missing."""
WORTH_FOLDING: Final = 0.5
"""Share of the nodes that may remain if a problem of equal layers is to be worth its time."""

# Questions for further candidates only

ROUGH_GAP = 0.02
"""Relative gap left open in questions that only give further candidates, for which nothing has to be proven."""
ROUGH_WORK = 2e3
"""Work of a question that only gives further candidates."""

# Candidates on one mesh

PROOF_SHARE = 0.6
"""Share of the remaining work for the question that proves the bound."""
REMAT_UNPROVEN = 0.03
"""Relative gap left open if the search chooses what is recomputed: its integer programs are large."""
PLAIN_SHARES = ((0.5, 0.75, False), (0.25, 0.5, False), (0.5, 0.5, True))
"""Rules of thumb as `plain_sum` takes them: communication in forward overlaps better than communication in backward."""
UNLIMITED_GAP = 0.05
"""If the gap at the best multipliers without a memory limit is at most this, no others are searched: plain problems
under a limit take long."""
UNLIMITED_MEMORY = 1.5
"""If the best plan without a memory limit needs at most this many times the limit, all searches run without it first:
later candidates may need less."""
RESCHEDULED = 16
"""Number of plans without a memory limit that are scheduled again under it."""
RESCHEDULED_STAYING = 4
"""The same if weights would stay: how many do is found by scheduling several times."""
IMPROVED_GAP = 0.01
"""If the gap is larger than this share of the step, hand-written recipes, flags and tighter limits are tried too."""
RECIPE_HOPE = 2 / 3
"""Recipes are searched further if their bound is below the step by more than this share of the gap: their schedule
exceeds their bound by about as much as the best plan's does."""
TIGHTER_LIMIT = 0.8
"""Share of the memory limit under which another plan is searched if memory is scarce."""
LESS_TIGHT_LIMIT = 0.9
"""The same, if no plan within that share is better."""
FEW_OPERATORS: Final = 30
"""Most operators of a model for which less effort, also under a tighter limit, is tried where memory leaves such
a gap: it takes a second or two there, and as long as the search itself where models have layers, which it helps less.
"""
TIGHTER_SHARES = (0.9, 0.8, 0.7, 0.6)
"""Shares of the memory limit under which plans are searched too if the gap is above `TIGHTER_GAP`."""
TIGHTER_GAP = 0.1
"""Gap (share of the step) above which plans under the limits of `TIGHTER_SHARES` are searched."""
LESS_MEMORY = 0.98
"""Share of the best plan's memory under which others are searched: a tighter limit must not lead to a better plan."""
LESS_MEMORY_GAP = 0.03
"""Gap below which they are not searched: they take a third of the time of a search."""
LESS_MEMORY_WORK = 2e2
"""Work of the question for plans that need less memory than the best one: one plan is enough to start from."""
WITHIN_ROUNDS: Final = 8
"""Tighter limits that are tried if the schedule of no assignment found keeps the real one: two or three do where there
is a plan."""
CROSSOVER_PARENTS = 2
"""Number of the best simulated plans that are crossed over with all others."""
CROSSOVERS_JUDGED = 16
"""Maximum number of crossovers of the best plan that are scheduled."""
STRETCHES_GAP = 0.06
"""Gap above which stretches of other assignments are put into the best one: takes about a second for GPT-2."""
STRETCHES_TOWARDS = 0.6
"""Share of the way from the best multipliers to those of one sum, at which such assignments are solved."""
STRETCHES_FROM = 30
"""Maximum number of other assignments beside these, those with the shortest schedules first."""
STRETCHES_ROUNDS = 40
"""Maximum number of stretches, one after the other."""
STRETCHES_WORK = 4e8
"""Numbers of all sums of all edges in all rounds: large problems have fewer rounds."""
STRETCHES_JUDGED = 8
"""Assignments that are scheduled, of the last rounds."""
RECOMBINED_GAP = 0.05
"""Gap above which parts of other assignments are put into the best one: takes 0.2 to 3.5 seconds. Of ten models,
Llama 3 8B on 8x8 with 3.7 % would gain 0.3 % in 3.5 s; of those above, five gain 0.2 to 3.6 %."""
RECOMBINED_FROM = 30
"""Maximum number of other assignments whose parts are taken, those with the shortest steps first."""
RECOMBINED_PLACES = 24
"""Number of stretches of equal length into which the graph is divided; a part is one of them or several in a row."""
RECOMBINED_OF_BLOCK = 8
"""Number of stretches of a repeated block,"""
RECOMBINED_COPIES = 4
"""and of its copies; a part is some of the former in some of the latter."""
RECOMBINED_KEPT = 6
"""Maximum number of parts of one other assignment in one round."""
RECOMBINED_JUDGED = 16
"""Recombinations that are scheduled in one round."""
RECOMBINED_FAILURES = 2
"""Rounds in a row without a better plan after which it ends."""
RECOMBINED_WORK = 4e8
"""Numbers that one round looks up: large problems take parts of fewer assignments."""
BRANCH_GAP = 0.02
"""Gap at which branch and bound ends, and which the sums of the best plan have to leave for it to begin: their schedule
takes longer still, which no bound shows."""
BRANCHES: Final[Mapping[Effort, int]] = {"quick": 0, "thorough": 12, "exhaustive": 400}
"""Maximum number of parts for which branch and bound asks."""
BRANCH_PAIRS: Final[Mapping[Effort, float]] = {"quick": 0.0, "thorough": 4e6, "exhaustive": 1e8}
"""Pairs of choices in all parts of branch and bound together, of which a million take about half a second: large
problems have fewer parts."""
BRANCH_AVERAGES = 8
"""Maximum number of plain problems of one part: fewer leave bounds below that of both halves together."""
BRANCH_LEAST = 0.1
"""Share of a mixture that has to be on each side of a split of the preferred kind."""
RESCUE_S = 0.4
"""Seconds for each recipe after a time limit that gave no plan."""

# Choices outside of the blocks

OUTSIDE_ROUNDS = 3
"""Maximum number of times that each part is solved again around a better plan; one round gives nearly all of it."""
OUTSIDE_GAIN = 1e-3
"""Share of the step by which a part must shorten it, or it is the last."""
OUTSIDE_TOWARDS = 0.4
"""How far the multipliers go from the best ones towards each single sum: little leads to the same choices, much to
those of one sum alone."""

# Buckets of the size of a schedule

BUCKET_SHARE: Final = 0.5
"""Size of the buckets, as a share of the mean size in the best plan's schedule: a smaller one also stands for the time
in which a link waits for the first bucket and sends the last. ViT-Base on 4x4 has one plan at shares of 0.3 to 0.7
(9.1 ms), and another at 1 (10.2 ms, as without this search)."""
BUCKET_GAP: Final = 0.1
"""Share by which the schedule of the best plan has to be longer than its sums: else full buckets are not what is wrong,
and the search, which takes a fifth of the time of all, finds nothing."""

# What may be recomputed together

STRETCH_MIN_CAP = 4
"""Lower limit of the cap on a stretch's operators, which is otherwise STRETCH_FACTOR * sqrt(all operators)."""
STRETCH_FACTOR = 1.25
"""The cap on the operators that are recomputed together, in units of the square root of all operators: longer stretches
keep less and hold more at a time."""

# Finer meshes, from the plan of a coarser one

PAIR_WORK = 1.2e3
"""Work of the search of one pair of axes: more finds better plans."""
PAIR_JUDGED = 4
"""Candidates of a pair of axes that are scheduled."""
ALL_SUMS_AXES = 2
"""Number of mesh axes up to which one problem may have the tables of all sums: on more, they take gigabytes."""
WHOLE_GAP = 0.02
"""Gap at or below which no further plain problem of all axes is solved: another one closes a part of it, and takes as
long."""
WHOLE_AVERAGES = 2
"""Plain problems of all axes together, each of which takes seconds; good multipliers are known from the pairs. From the
multipliers of a shallow model there is one: a second one raised no bound."""

FINER_S: Final = 1.2e-3
"""Seconds of a time limit that are left for the plan of the finer mesh, for each operator."""

# Deep models, from the plan of a shallower one

MANY_OPERATORS: Final = 3_000
"""Number of operators from which on a shallower model is searched: a search of the whole model takes minutes then."""
SHALLOW_COPIES: Final = 8
"""Copies of a block in the shallow model: more are closer to the whole model, whose first and last copies differ."""
DEEPENED_GAP: Final = 0.2
"""Gap above which the whole model is searched after all: a plan of the shallow one fits in memory only if nothing is
overlapped then, as more memory than that of eight copies can balance is short. GPT with 310 billion parameters on 32x8,
`--remat full`, 7.3 s in place of 5.7. Other gaps of deep models are below 18 %, of whole searches too."""
DEEPENING_S: Final = 3e-3
"""Seconds of a time limit that are left for the plan of the whole model, for each of its operators."""

# Runtimes, which name the role of each mesh axis

SAME_STEP_S: Final = 1e-9
"""Seconds by less than which no step is shorter than another: steps are integer nanoseconds."""
ROLES_SLOWER = 1.01
"""A search for further roles ends where its plan without a memory limit takes this many times the best step."""
ROLES_HOPELESS = 1.2
"""Roles whose estimate is above this many times the best step so far are not searched: estimates are within a tenth of
the plan that a search finds."""
COARSER_HOPELESS = 1.1
"""Where the plan of the coarser mesh takes this many times the best step, the finer mesh is not searched: its plans are
a few percent shorter at most."""
ROLES_FEW = 3
"""So many assignments of roles are searched in the order in which the runtime names them."""

# Where nothing fits

NEED_SECONDS = 15.0
"""Time for the plan that shows what fills the memory, if none fits."""
