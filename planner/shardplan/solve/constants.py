"""All constants that trade time, memory and proof against each other, each with its meaning and the effect of a larger
value.

Work is counted in units of about a million table entries looked at, roughly a millisecond. A limit on work or time that
the caller gives replaces the default limits here. An effort is (work, gap as a share of the range between bound and
target, seconds if there is a time limit).
"""

from __future__ import annotations

import math

# The scale of costs

COST_DIGITS = 50
"""Costs are scaled so that their sum has about so many bits. More: finer fractions of a cost in multipliers; above 53
sums are no longer exact."""
COST_SPARE = 4.0
"""Sums of maxima that are larger than the costs by this factor count too: float64 has so much beyond `COST_DIGITS`."""
BOUND_SAFETY = 1e-13
"""Share of the sum of multipliers times room that floating point may lose; it is deducted from bounds."""
REPORTED_FAULTS = 20
"""Faults of a malformed problem that are told at once."""

# Limits on work where the caller gives none: more is slower and closes more of the gap

PROOF_WORK_SMALL = 5e2
"""Work on one proof after which a gap of `PROOF_SMALL_GAP` will do: about half a second."""
PROOF_WORK = 1e4
"""Work on one proof in any case: about ten seconds."""
PROOF_SMALL_GAP = 1e-3
"""Share of the cost below which a gap is worth little more work."""
SHORTFALL_SECONDS = 15.0
"""For the proof of how much memory is missing."""
LIMIT_STRIDE = 1 / 1024
"""The first step above what one moment needs; the next ones double."""
GRACE_SECONDS = 0.7
"""After the end of a budget, before a call that does not return is abandoned."""
TICK_SECONDS = 0.05
"""Between two looks at a call that does not return: shorter hears Ctrl-C sooner."""

# Reductions

PRESOLVE_ROUNDS = 4
"""Rounds of all reductions at most."""
PRESOLVE_MANY = 5000
"""With so many nodes another round must be worth its time:"""
PRESOLVE_WORTH = 0.98
"""the last one left less than this share."""
DOMINATE_NODE_ENTRIES = 1e8
"""Table entries that the comparison of one node's choices may look at; nodes that need more keep them all."""
DOMINATE_ENTRIES = 2e9
"""Table entries that the comparison of all nodes' choices may look at."""
DOMINATE_BLOCK = 1 << 15
"""Differences that are held at once: memory against the length of vector operations."""
DOMINATE_BATCH = 1 << 18
"""Pairs of choices that are compared at once."""
MINPLUS_SMALL = 1 << 15
"""Entries up to which a (min, +) product is one operation."""
MINPLUS_BLOCK = 1 << 15
"""Entries of a block that stay in cache."""
MINPLUS_BUFFER = 16
"""Entries of numpy's buffer meanwhile, the least there may be: rows that are shorter than the buffer are copied into it
where a column is added to them, which takes longer than the sum."""
WAVEFRONT_NODES = 1000
"""Up to so many nodes sweeps follow the graph's order; beyond, colour classes, for fewer and larger steps."""

# Maxima

SUMS_BROADEST = 5e7
"""Entries of tables that sums over nodes may add. Beyond, plain problems are solved at a few multipliers: less memory
and a larger gap."""
CANDIDATES = 24
"""Different assignments that a solution with maxima has at most."""
POOL_SIZE = 96
"""Assignments that are kept during a search; some of them may not fit in memory."""
FIRST_MULTIPLIER = 0.5
"""Of all sums of a maximum together, where the search of multipliers begins."""
AVERAGES_SOLVES = 10
"""Plain problems that are solved at most."""
AVERAGES_UNPROVEN = 0.02
"""Relative gap that is left in each of them where memory binds: a proof there closes little of the whole."""
AVERAGES_EFFORT = 2e3
"""Work on each of them: a proof that takes longer closes little of the whole either."""
AVERAGES_MIXED = 8
"""Crossings of their assignments that are kept at most."""
AVERAGES_GAP = 4e-3
"""Share of the cost that more multipliers must promise."""
AVERAGES_OPEN = 2.0
"""Times what the last plain problem left between its cost and its bound that they must promise as well, as the next one
leaves as much again,"""
AVERAGES_CLOSE = 0.04
"""where that is no more than this share of the cost: beyond, other multipliers lead to better assignments."""
AVERAGES_WEAK = 0.5
"""Share of its cost that a plain problem leaves open where its multipliers are of no use, and milder ones are tried."""
MULTIPLIER_DIGITS = 10
"""Binary digits of multipliers there: averages are integers then, in units of 2 ** -10 of a cost."""
ONE_MAXIMUM_WORK = 2e3
"""For the parts of a problem in which one of several maxima is left alone."""
MAXIMA_PROOF: tuple[float, float, float] = (400.0, 0.0, math.inf)
"""For each integer program of several maxima, where some gap is good enough: about half a second."""
MAXIMA_PROVABLE_PAIRS = 400_000
"""Pairs that are worth such a program."""

# Bounds: cutting planes

ASCENT_POINTS = 60
"""Lists of multipliers at most."""
ASCENT_STALL = 5
"""So many lists together must bring something:"""
ASCENT_RISE = 0.005
"""this share of the gap, which better multipliers must promise, too."""
MASTER_PULL = 0.7
"""Share of the way from the best multipliers known to the best point under all planes. Less is steadier and slower."""
MASTER_STEADY = 0.02
"""All of the way is gone where that point moved by no more than this."""
SETTLE_SWEEPS = 12
"""Sweeps over what elimination leaves, per list."""
PRICED_MOMENTS = 24
"""Moments with a multiplier at most: more make a tighter bound, and a master that takes longer to come to rest."""
FRESH_MOMENTS = 3
"""Moments that are added at a time."""
CUTSET_TRIES = 20
"""Labels tried for each node of a cutset where greedy decoding fails."""
MARGINAL_CELLS = 1 << 22
"""Entries that the pass back over an eliminated node holds at once."""

# Bounds: subgradient steps and message passing on large cores

SUBGRADIENT_STEP = 0.05
"""The first step, as a share of the bound per share of memory."""
SUBGRADIENT_SHORTER = 0.7
"""What a step becomes when the bound stops rising."""
SUBGRADIENT_IDLE = 20
"""Steps without a better bound after which it has."""
SUBGRADIENT_MEMORY = 0.9
"""Weight of the steps before in the average direction."""
MESSAGE_MOMENTUM = 0.9
"""Share of their last change by which messages go on before a sweep."""
SUBGRADIENT_FRESH = 8
"""Moments that get a multiplier at a time."""
SUBGRADIENT_SEPARATION = 3
"""How far apart these are."""
SWEEP_CHUNK = 1 << 16
"""Entries of tables that a sweep stacks for one operation."""

# Proofs on small cores without memory

EXACT_SWEEPS = 30
"""Sweeps of a round at most."""
EXACT_DECODED = (1, 5, 15)
"""Sweeps after which assignments are decoded."""
EXACT_PROOF_SWEEPS = 10
"""Sweeps before a program is handed to HiGHS."""
EXACT_SHRINKS = 0.8
"""Go round again while a round leaves less than this share of the pairs,"""
EXACT_RISE = 0.02
"""or closes more than this share of the gap."""
EXACT_PROVABLE_PAIRS = 40_000
"""A core of so few pairs goes to HiGHS at once."""
CUTSET_NODES = 12
"""A core is small where elimination removes everything but for so many nodes."""
CUTSET_COMBINATIONS = 100
"""So many ways to fix a cutset are tried one by one."""
CUTSET_BRANCHES = 6
"""So many ways to fix a cutset under memory are followed one by one."""

# Proofs and search on small cores with memory or maxima

BRANCH_SHRINKS = 0.95
"""A branch is branched again where it has less than this share of the pairs."""
NEAR_POINTS = 4
"""Assignments near the best multipliers that are crossed and fused."""
CROSSOVERS = 20
"""Crossovers of a pair that are tried."""
PROOF_CEILINGS = (0.02, 0.1, 0.4, 1.0)
"""Shares of the gap up to which a proof is sought one after the other."""
FUSION_OF_SUMS: tuple[float, float, float] = (150.0, 0.05, 5.0)
"""Work, gap and seconds of a fusion where there are maxima: there are many that are much the same."""
FUSION: tuple[float, float, float] = (1e3, 0.05, 10.0)
"""Work, gap as a share of the range, and seconds of another fusion."""
FUSION_GAP = 1e-2
"""Share of the cost below which a gap is left to the proof."""
TIGHTER_LIMITS = (0.85, 0.7)
"""Shares of a limit that are tried too: their multipliers lead elsewhere, and what keeps them keeps the limit."""
TIGHTER_GAP = 0.03
"""Gap beyond which they are."""
ROOMY_FACTOR = 1.5
"""Times the limit that an assignment without regard to memory may use, for a proof on it to be of use."""
PROGRAM_SWEEPS = 10
"""Sweeps before a program with memory is handed to HiGHS."""

# Proofs of one maximum by parts

PARTS_WORK = 5e3
"""Work, about five seconds, after which a gap will do where no limit is given and some gap is good enough."""
PART_WORK = 1.5e3
"""Work of a part beyond which none is split then."""
PART_REDUCED_PAIRS = 200_000
"""Pairs that are worth all reductions."""
PARETO_PAIRS = 60_000
"""Pairs so few that all non-dominated ways to settle them may be kept."""
PART_CEILINGS = (0.05, 0.2, 1.0)
"""Shares of the gap within which a part's best assignments are sought one after the other."""
PART_ASIDE = 0.35
"""The other two multipliers are where the best assignments of either side are this share of the gap above the bound."""
SPLIT_LEAST = 1e-3
"""Share of the gap that half counts for whose best does not get dearer."""
PART_PROGRAM_WORK = 1e3
"""Of an integer program for a part."""
PART_NODE_ENTRIES = 3e5
"""Entries looked at in a part, per node,"""
PART_PAIR_ENTRIES = 200.0
"""and per pair, on average."""
PART_PRICING = 0.2
"""Share of the work of a part that goes into its multiplier."""
PARETO_WAYS = 1 << 17
"""Ways that are looked at together;"""
PARETO_COARSE = 1 << 13
"""where there would be more, ways are dropped until there are no more than so many."""

# HiGHS

PROGRAM_SPAN = 1e4
"""The program's costs are scaled so that the range of interest (target less bound) is about this long."""
PROGRAM_ROWS = 8
"""Memory rows that are added at a time."""
PROGRAM_LP_ROUNDS = 30
"""Rounds of memory rows that a relaxation may break."""
PROGRAM_TOLERANCE = 1e-9
"""HiGHS computes in floating point: what it calls optimal may be dearer than the optimum by this share."""
UNPRESOLVED_COLUMNS = 2_000
"""Programs of so few columns are solved as they are: HiGHS's presolve never ends on some of them, and gains little."""
PROGRAM_HUNG = 4.0
"""Times as long as it was given, and seconds, after which HiGHS is not late any more but hangs: what it has found is
lost then, and it goes on working beside us."""
PROGRAM_COLUMN = 0.15
"""Units of work per pair that a program may take between two calls back, measured: one that may take more than is left
of an effort is not begun."""
SIMPLEX_CALL = 1 / 200_000
"""Units of work per column that pass between two calls back of the simplex method, measured: HiGHS's own clock would
not be reproducible."""
MIP_CALL = 1 / 1_750
"""Units of work per column that pass between two calls back of branch and bound, measured."""

# Large cores: bound and rounding

ROUNDING_EVERY = 24
"""Sweeps between two roundings,"""
ROUNDING_FIRST = 8
"""and while there is no assignment."""
ROUNDING_SWEEPS = 2
"""Sweeps in the order of rounding before it."""
ROUNDING_REPAIRS = 200
"""Trees solved around forbidden pairs of a rounding,"""
ROUNDING_REPAIR_TREE = 120
"""of so many nodes."""
LARGE_STALL = 60
"""The bound is left alone when so many sweeps"""
LARGE_CLOSED = 0.1
"""closed less than this share of the gap,"""
LARGE_CLOSED_SMALL = 0.5
"""or than this one where a proof is within reach."""
LARGE_BOUND_SHARE = 0.3
"""Share of the time, or of the work, that the bound may take at a time."""
LARGE_BOUND_WORK = 3e4
"""Work of the bound when no limit is given: about half a minute."""
LARGE_WORK = 6e4
"""Work of the search when no limit is given: about a minute."""

# Large cores: proofs on what is left

SCENE_SHRINKS = 0.7
"""A smaller core is worth making when pruning alone leaves less than this share of the pairs,"""
SCENE_SHRUNK = 0.8
"""and worth moving to when the reductions leave less than this share."""
SCENE_BISECTIONS = 40
"""Steps of the search for how far a label may be from the bound."""
LARGE_CEILINGS = (0.05, 0.25, 1.0)
"""Shares of the gap up to which a proof is sought one after the other."""
LARGE_PROVABLE_PAIRS = 90_000
"""Pairs of labels that are worth a proof after the reductions,"""
LARGE_TRIED_PAIRS = 800_000
"""and before."""
LARGE_PROOF_ROUNDS = 6
"""Rounds after which a proof is tried again although the gap is much the same."""
LARGE_PROOF_SHARE = 0.4
"""Share of the time or work left that a proof may take."""

# Large cores: better assignments

TREE_SMALLEST = 3
"""Nodes of the smallest"""
TREE_LARGEST = 1500
"""and of the largest tree."""
CLIMB_TREES = 150
"""So many trees"""
CLIMB_FLAT = 1e-5
"""that improve by less than this share end a climb."""
CLIMB_SHARE = 0.1
"""Share of the time or work left that a climb may take."""
CLIMB_PRICE_WEIGHTS = (0.0, 0.1, 0.3, 1.0)
"""Weights of multipliers in the choice of a tree's labels, drawn at random."""
LARGE_RAISES = 40
"""Sweeps for another assignment from a better bound."""
LARGE_SHAKE = 0.15
"""Standard deviation of the logarithm of multipliers that are perturbed for another assignment."""
KICK_HEAT = (3e-5, 2e-3)
"""Range of temperatures, as shares of the cost,"""
KICK_TREES = (20, 120)
"""and of numbers of trees at them."""
CROSSOVER_WORST = 1.3
"""Times the incumbent's cost beyond which another assignment is not fused with it."""
CROSSOVER_EFFORT: tuple[float, float, float] = (4e3, 0.01, 8.0)
"""Work, gap and seconds of such a fusion,"""
NEAR_EFFORT: tuple[float, float, float] = (1e4, 0.01, 15.0)
"""and of a program of the labels that the bound finds least objectionable,"""
NEAR_PAIRS = 150_000.0
"""which has so many pairs at first,"""
NEAR_WIDER = 3.0
"""and more by this factor when it brought nothing quickly."""
