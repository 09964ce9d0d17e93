"""All constants that trade time, memory and proof against each other, each with its meaning and the effect of a larger
value.

Work is counted in units of about a million table entries looked at, roughly a millisecond. A limit on work or time that
the caller gives replaces the default limits here. A quota is (work, gap as a share of the range between bound and
target, seconds if there is a time limit).
"""

from __future__ import annotations

import math

# The scale of costs

COST_DIGITS = 50
"""Costs are scaled so that their sum has about this many bits. More: finer fractions of a cost in multipliers; above
53, sums are no longer exact."""
COST_SPARE = 4.0
"""Sums of maxima count for the scale if they exceed the costs by this factor: float64 has that much beyond
`COST_DIGITS`."""
BOUND_SAFETY = 1e-13
"""Relative floating-point error of the sum of multipliers times room; it is deducted from bounds."""
COST_TOLERANCE = 1e-6
"""Share of a unit of cost that a bound may be above an integer by rounding: more is safer, and proves a unit less."""
REPORTED_FAULTS = 20
"""Maximum number of faults that are reported for a malformed problem."""
CHECKED_TOGETHER = 1_000_000
"""Numbers of a problem that are checked in one copy of all: more would take too much memory."""

# Limits on work where the caller gives none: more is slower and closes more of the gap

PROOF_WORK_SMALL = 5e2
"""Work on one proof after which a gap of `PROOF_SMALL_GAP` is enough: about half a second."""
PROOF_WORK = 1e4
"""Maximum work on one proof: about ten seconds."""
PROOF_SMALL_GAP = 1e-3
"""Gap, as a share of the cost, below which a proof gets little more work."""
SHORTFALL_SECONDS = 15.0
"""Time for the proof of how much memory is missing."""
LIMIT_STRIDE = 1 / 1024
"""First step above the need of one moment, as a share; the next steps double."""
GRACE_SECONDS = 0.7
"""Seconds after the end of a budget before a call that does not return is abandoned."""
TICK_SECONDS = 0.05
"""Seconds between two checks of a call that does not return: shorter reacts to Ctrl-C sooner."""
REDUCING_SECONDS = 0.5
"""Seconds after the end of a budget before reductions are given up: a search that has none yet finds its first
assignment after them."""

# Reductions

PRESOLVE_ROUNDS = 4
"""Maximum number of rounds of all reductions."""
PRESOLVE_MANY = 5000
"""Number of nodes above which another round follows only if the last one reached `PRESOLVE_WORTH`."""
PRESOLVE_WORTH = 0.98
"""Share of the problem that a round may leave at most if, above `PRESOLVE_MANY` nodes, another is to follow."""
DOMINATE_NODE_ENTRIES = 1e8
"""Table entries for the comparison of one node's choices; a node that needs more keeps all its choices."""
DOMINATE_ENTRIES = 2e9
"""Table entries for the comparison of all nodes' choices."""
DOMINATE_BLOCK = 1 << 15
"""Differences held at once: memory against the length of vector operations."""
DOMINATE_BATCH = 1 << 18
"""Pairs of choices compared at once."""
PEAKS_SEEN = 64
"""Moments looked at for each peak of memory that is wanted: more finds peaks further apart, and takes longer."""
MINPLUS_LONG = 64
"""Entries of a row from which each k of a (min, +) product is an operation of its own: with fewer, that takes longer
than the sums."""
MINPLUS_SMALL = 1 << 15
"""Sums of a product up to which it is few operations however long its rows are."""
MINPLUS_LAYERS = 1 << 17
"""Sums that are held at a time where all k are few operations."""
MINPLUS_BLOCK = 1 << 15
"""Entries of a block that stays in cache where each k is an operation of its own."""
MINPLUS_BUFFER = 16
"""Size of numpy's buffer during a product, the smallest possible: rows shorter than the buffer are copied into it when
a column is added to them, which takes longer than the sum."""
WAVEFRONT_NODES = 1000
"""Number of nodes up to which sweeps follow the graph's order; above, they follow colour classes, for fewer and larger
steps."""

# Maxima

HUB_NEIGHBOURS = 256
"""Number of neighbours above which a node is a hub, several of whose neighbours are eliminated in one round."""
SUMS_BROADEST = 5e7
"""Table entries that sums over nodes may add. Above, plain problems are solved at a few multipliers: less memory and a
larger gap."""
CANDIDATES = 24
"""Maximum number of different assignments in a solution with maxima."""
POOL_SIZE = 96
"""Number of assignments kept during a search; some of them may not fit in memory."""
FIRST_MULTIPLIER = 0.5
"""Sum of the multipliers of one maximum at the start of the search."""
AVERAGES_SOLVES = 10
"""Maximum number of plain problems."""
AVERAGES_UNPROVEN = 0.02
"""Relative gap left open in each plain problem if memory binds: a proof there closes little of the whole gap."""
AVERAGES_LARGE_UNPROVEN = 2e-3
"""The same without a memory limit, on cores with more than `EXACT_LARGE_PAIRS` pairs."""
AVERAGES_WORK = 2e3
"""Work on each plain problem: a longer proof closes little of the whole gap."""
AVERAGES_CROSSOVERS = 8
"""Maximum number of crossovers of their assignments that are kept."""
AVERAGES_GAP = 4e-3
"""Share of the cost by which new multipliers must promise to raise the bound."""
AVERAGES_OPEN = 2.0
"""New multipliers must also promise this many times the gap that the last plain problem left open, as the next one
leaves as much again,"""
AVERAGES_CLOSE = 0.04
"""if that gap is at most this share of the cost: above it, other multipliers still lead to better assignments."""
AVERAGES_WEAK = 0.5
"""Relative gap of a plain problem above which its multipliers are useless, and milder ones are tried."""
CLOSED_GAP = 0.04
"""Gap of averages above which a small problem is also solved with its maxima:"""
CLOSED_PAIRS = 2_000
"""one with at most this many pairs,"""
CLOSED_WORK = 1e3
"""by at most this much work, about a second."""
MULTIPLIER_DIGITS = 10
"""Binary digits of the multipliers of averages, which are then integers in units of 2 ** -10 of a cost."""
ONE_MAXIMUM_WORK = 2e3
"""Work on the parts of a problem in which one of several maxima is left."""
MAXIMA_PROOF: tuple[float, float, float] = (400.0, 0.0, math.inf)
"""Quota of each integer program of several maxima, if a positive gap is good enough: about half a second."""
MAXIMA_PROVABLE_PAIRS = 400_000
"""Maximum number of pairs of such a program."""

# Bounds: cutting planes

ASCENT_POINTS = 60
"""Maximum number of lists of multipliers."""
ASCENT_STALL = 5
"""The ascent ends if this many lists together do not close"""
ASCENT_RISE = 0.005
"""this share of the gap, or if better multipliers do not promise it."""
MASTER_PULL = 0.7
"""Step from the best multipliers towards the maximum of the planes, as a share of the way. Less is steadier
and slower."""
MASTER_STEADY = 0.02
"""The full step is taken if that maximum moved by no more than this share."""
MIXTURE_LEAST = 1e-6
"""Smallest share of an assignment of a mixture: less is rounding."""
MASTER_LARGEST = 4.0
"""Least upper limit of a multiplier of memory in the master problem, in costs of an assignment per memory limit. More
lets the first steps go further, and overshoot."""
LAGRANGE_SWEEPS = 12
"""Sweeps over the graph that elimination leaves, per list."""
LAGRANGE_IDLE = 1e-6
"""These sweeps end when one raises the bound by no more than this share."""
MULTIPLIER_MOMENTS = 24
"""Maximum number of moments with a multiplier: more give a tighter bound, and a master problem that converges more
slowly."""
FRESH_MOMENTS = 3
"""Moments added at a time."""
CUTSET_TRIES = 20
"""Labels tried for each node of a cutset if greedy decoding fails."""
MARGINAL_CELLS = 1 << 22
"""Entries that the backward pass over an eliminated node holds at once."""

# Bounds: subgradient steps and message passing on large cores

SUBGRADIENT_STEP = 0.05
"""First step, as a share of the bound per share of memory."""
SUBGRADIENT_SHORTER = 0.7
"""Factor on the step when the bound stops rising."""
SUBGRADIENT_IDLE = 20
"""Steps without a better bound after which the bound counts as not rising."""
SUBGRADIENT_MEMORY = 0.9
"""Weight of the previous steps in the average direction."""
SUBGRADIENT_DAMPING = 1e-4
"""Added to the mean square of a moment's past excesses, of which the root divides its step: more shortens the steps of
moments with small excesses."""
MESSAGE_MOMENTUM = 0.9
"""Share of their last change by which messages are moved on before a sweep."""
SUBGRADIENT_FRESH = 8
"""Moments that get a multiplier at a time."""
SUBGRADIENT_SEPARATION = 3
"""Minimum distance between these moments."""
SWEEP_CHUNK = 1 << 16
"""Table entries that a sweep stacks for one operation."""

# Proofs on small cores without memory

EXACT_SWEEPS = 30
"""Maximum number of sweeps of a round."""
EXACT_DECODED = (1, 5, 15)
"""Numbers of sweeps after which assignments are decoded."""
EXACT_LARGE_PAIRS = 1e7
"""Number of pairs above which a core is large: then the gap that may stay open does, as a sweep takes a tenth of a
second or more;"""
EXACT_REFINED = 2
"""and after this sweep the best completion of a cutset is looked for, which is near the optimum."""
EXACT_PROOF_SWEEPS = 10
"""Sweeps before a program is given to HiGHS."""
EXACT_IDLE = 1e-3
"""Sweeps end when one closes less than this share of the gap."""
EXACT_SHRINKS = 0.8
"""Another round follows if a round leaves less than this share of the pairs,"""
EXACT_RISE = 0.02
"""or closes more than this share of the gap."""
EXACT_PROVABLE_PAIRS = 40_000
"""Number of pairs up to which a core goes to HiGHS at once."""
CUTSET_NODES = 12
"""A core is small if elimination leaves a cutset of at most this many nodes."""
CUTSET_COMBINATIONS = 100
"""Number of assignments of a cutset up to which all are enumerated."""
CUTSET_BRANCHES = 6
"""Number of assignments of a cutset under memory up to which all are branched on."""

# Proofs and search on small cores with memory or maxima

BRANCH_SHRINKS = 0.95
"""A branch is branched again if it has less than this share of the pairs."""
NEAR_POINTS = 4
"""Number of assignments near the best multipliers that are crossed over and fused."""
CROSSOVERS = 20
"""Number of crossovers of a pair that are tried."""
FRUGAL_WORK = 200.0
"""Work on the cheapest assignment of least memory, which is only a first answer."""
PROOF_CEILINGS = (0.02, 0.1, 0.4, 1.0)
"""Shares of the gap for which a proof is tried, one after the other."""
FUSION_OF_SUMS: tuple[float, float, float] = (150.0, 0.05, 5.0)
"""Quota (work, gap, seconds) of a fusion with maxima, of which there are many similar ones."""
FUSION: tuple[float, float, float] = (1e3, 0.05, 10.0)
"""Quota (work, gap as a share of the range, seconds) of any other fusion."""
FUSION_GAP = 1e-2
"""Gap, as a share of the cost, below which a fusion leaves the rest to the proof."""
TIGHTER_LIMITS = (0.85, 0.7)
"""Shares of the memory limit that are tried too: their multipliers lead to other assignments, which keep the limit as
well."""
TIGHTER_GAP = 0.03
"""Gap above which they are tried."""
ROOMY_FACTOR = 1.5
"""Memory of an assignment without the limit, relative to the limit, up to which a proof on it is useful."""
PROGRAM_SWEEPS = 10
"""Sweeps before a program with memory is given to HiGHS."""

# Proofs of one maximum by parts

PARTS_WORK = 5e3
"""Work, about five seconds, after which a gap is enough, if no limit is given and a positive gap is good enough."""
PART_WORK = 1.5e3
"""In that case, parts are not split after this work."""
PART_REDUCED_PAIRS = 200_000
"""Number of pairs up to which all reductions are applied."""
PARETO_PAIRS = 60_000
"""Number of pairs up to which all non-dominated points may be kept."""
PART_CEILINGS = (0.05, 0.2, 1.0)
"""Shares of the gap within which a part's best assignments are searched, one after the other."""
PART_ASIDE = 0.35
"""The other two multipliers are where the best assignments of either side are this share of the gap above the bound."""
SPLIT_LEAST = 1e-3
"""Share of the gap that a half counts whose bound does not rise."""
PART_PROGRAM_WORK = 1e3
"""Work of an integer program for a part."""
PART_NODE_ENTRIES = 3e5
"""Average number of entries looked at in a part, per node,"""
PART_PAIR_ENTRIES = 200.0
"""and per pair."""
PART_MULTIPLIER_WORK = 0.2
"""Share of the work of a part for its multiplier."""
PARETO_POINTS = 1 << 17
"""Number of points that are compared at once;"""
PARETO_COARSE = 1 << 13
"""if there are more, points are dropped until at most this many are left."""

# HiGHS

PROGRAM_SPAN = 1e4
"""The program's costs are scaled so that the range of interest (target less bound) is about this long."""
PROGRAM_ROWS = 8
"""Memory rows added at a time."""
PROGRAM_LP_ROUNDS = 30
"""Maximum number of rounds of memory rows in a relaxation."""
PROGRAM_TOLERANCE = 1e-9
"""Relative tolerance of HiGHS, which computes in floating point: its optimum may be more expensive than the true one by
this share."""
PROGRAM_ABSOLUTE_GAP = 1e-6
"""Gap in scaled costs at which HiGHS stops, which is its own default: less takes longer and proves nothing more."""
PROGRAM_VIOLATION = 1e-7
"""Share of the limit by which a fractional solution must exceed it for a memory row: HiGHS itself is no
more exact."""
PROGRAM_LEAST_SECONDS = 0.01
"""Least time that a call of HiGHS gets: its limit must be later than its clock."""
UNPRESOLVED_COLUMNS = 2_000
"""Number of columns up to which programs are solved without HiGHS's presolve, which never ends on some of them and
gains little."""
PROGRAM_HUNG = 4.0
"""Factor on the given time, and seconds, after which HiGHS is considered hung: its results are lost, and it continues
in the background."""
PROGRAM_COLUMN = 0.15
"""Measured work per pair that a program may take between two callbacks: a program that may take more than the remaining
quota is not started."""
SIMPLEX_CALL = 1 / 200_000
"""Measured work per column between two callbacks of the simplex method; HiGHS's own clock would not be reproducible."""
MIP_CALL = 1 / 1_750
"""Measured work per column between two callbacks of branch and bound."""

# Large cores: bound and rounding

ROUNDING_EVERY = 24
"""Sweeps between two roundings,"""
ROUNDING_FIRST = 8
"""and while there is no assignment yet."""
ROUNDING_SWEEPS = 2
"""Sweeps in the order of rounding before it."""
ROUNDING_REPAIRS = 200
"""Maximum number of trees solved around forbidden pairs of a rounding,"""
ROUNDING_REPAIR_TREE = 120
"""with this many nodes each."""
ROUNDING_UNFIT = 1e3
"""Forbidden pairs that count as much as a label that exceeds the memory, at dead ends of a rounding."""
ROUNDING_POLISH = 1
"""Rounds of single changes of a rounded assignment: it is one of many,"""
POLISH_ROUNDS = 3
"""and of an assignment that the search continues from."""
LARGE_STALL = 60
"""The bound is no longer raised when this many sweeps"""
LARGE_CLOSED = 0.1
"""close less than this share of the gap,"""
LARGE_CLOSED_SMALL = 0.5
"""or less than this one if a proof is within reach."""
LARGE_BOUND_SHARE = 0.3
"""Share of the time, or of the work, that the bound may take at a time."""
LARGE_BOUND_WORK = 3e4
"""Work of the bound without a limit: about half a minute."""
LARGE_WORK = 6e4
"""Work of the search without a limit: about a minute."""

# Large cores: measured work of steps, in table entries, so that a work limit takes about as long whatever is done

RAISE_PAIR_ENTRIES = 3
"""A sweep and a subgradient step: per pair,"""
RAISE_LABEL_ENTRIES = 20
"""and per label."""
ROUNDING_PAIR_ENTRIES = 6
"""A rounding with its sweeps: per pair,"""
ROUNDING_LABEL_ENTRIES = 200
"""and per label."""
TREE_NODE_ENTRIES = 2000
"""A tree move, per node."""
SHRINK_PAIR_ENTRIES = 10
"""An attempt to build a smaller core, per pair."""

# Large cores: proofs on what is left

STATE_SHRINKS = 0.7
"""A smaller core is built if pruning alone leaves less than this share of the pairs,"""
STATE_SHRUNK = 0.8
"""and used if the reductions leave less than this share."""
STATE_BISECTIONS = 40
"""Steps of the search for the largest reduced cost of the kept labels."""
LARGE_CEILINGS = (0.05, 0.25, 1.0)
"""Shares of the gap for which a proof is tried, one after the other."""
LARGE_PROVABLE_PAIRS = 90_000
"""Number of pairs of labels for which a proof is tried after the reductions,"""
LARGE_TRIED_PAIRS = 800_000
"""and before them."""
LARGE_PROOF_ROUNDS = 6
"""Rounds after which a proof is tried again although the gap has hardly changed."""
LARGE_PROOF_SHARE = 0.4
"""Share of the remaining time or work that a proof may take."""

# Large cores: better assignments

TREE_SMALLEST = 3
"""Number of nodes of the smallest"""
TREE_LARGEST = 1500
"""and of the largest tree."""
CLIMB_TREES = 150
"""A climb ends if this many trees"""
CLIMB_FLAT = 1e-5
"""improve the cost by less than this share."""
CLIMB_SHARE = 0.1
"""Share of the remaining time or work that a climb may take."""
CLIMB_MOST_TREES = 10**9
"""Maximum number of trees of a climb: in effect none, as it ends by itself."""
LARGE_CYCLE = 4
"""Rounds of a cycle: in one, labels with low reduced costs are searched; in the others, crossovers. More makes the
former rarer."""
CLIMB_MULTIPLIER_WEIGHTS = (0.0, 0.1, 0.3, 1.0)
"""Weights of multipliers in the choice of a tree's labels, drawn at random."""
LARGE_RAISES = 40
"""Sweeps for another assignment from a better bound."""
LARGE_SHAKE = 0.15
"""Standard deviation of the logarithm of perturbed multipliers, for another assignment."""
SHAKE_SWEEPS = 6
"""Sweeps at them before the assignment is rounded: more follows them better."""
KICK_HEAT = (3e-5, 2e-3)
"""Range of temperatures, as shares of the cost,"""
KICK_TREES = (20, 120)
"""and of the numbers of trees at them."""
KICK_RAREST = 1e-9
"""Least random number of which the logarithm is a move's slack: less allows rarer, worse moves."""
CROSSOVER_WORST = 1.3
"""Cost, relative to the incumbent's, above which another assignment is not fused with it."""
CROSSOVER_QUOTA: tuple[float, float, float] = (4e3, 0.01, 8.0)
"""Quota (work, gap, seconds) of such a fusion,"""
NEAR_QUOTA: tuple[float, float, float] = (1e4, 0.01, 15.0)
"""and of a program of the labels with the lowest reduced costs,"""
NEAR_PAIRS = 150_000.0
"""which has this many pairs at first,"""
NEAR_WIDER = 3.0
"""and this factor more after it found nothing quickly."""
STRETCH_PLACES = 96
"""Number of places, spread over a problem, where a stretch of another assignment may begin or end."""
STRETCH_GAIN = 1e-4
"""Share of the cost that a stretch must save."""
