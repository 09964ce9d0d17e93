"""All constants that trade time and quality of the search for a pipeline, each with its meaning.

Those of the search for the plan of one stage are in `shardplan.planning.constants`.
"""

from __future__ import annotations

from typing import Final

# What is searched

MOST_UNITS: Final = 12
"""Number of units of about equal work for a model without repeated blocks: more of them balance stages better; runs of
units, and so the time of the search, grow with its square."""
SMALL_UNITS: Final = 13
SMALL_DEVICES: Final = 16
"""Up to this many units and devices, cuts are searched together with the layouts at their borders, which finds the best
pair of both; the states of that search grow with each of the two."""
MOST_ROUNDS: Final = 40
"""Searches over cuts, each with what the plans of the last one told: only a search that learns little each time needs
so many, and it would not end without a limit."""
CLOSE: Final = 1e-6
"""Improvements of at most this share of a step are not searched: one search more for a difference that nobody sees."""
CUT_TOLERANCE: Final = 1e-3
"""Relative distance from the best cut at which a search over cuts of a larger model ends: a smaller one takes longer,
for a cut that is at most so much better."""
ROUGH_TOLERANCE: Final = 0.02
"""The same for stages of equal size, whose best cut only limits the search that follows."""
PACE: Final = 8
"""Number of searches over cuts of a small model, without a better pipeline, that show how fast their costs rise: from
fewer, the search may be given up although the next would have led to a better one."""
EXPLORED: Final = 4
"""Number of further cuts of larger models that are planned for each of the `EASINGS`: each takes as long as the plans
of all of its stages."""
EASINGS: Final = (1e-9, 0.1)
"""Guesses about the effect of memory on unseen runs: a run that costs this share less than an affected one is assumed
to be unaffected. Each value finds cuts that the other misses; more of them plan more stages."""

# Bounds

DEVICE_PRICES: Final = 12
"""Maximum number of device multipliers that are tried for a bound over submeshes: each takes as long as a plain search
over cuts of one submesh."""
DEVICE_PRICE_CLOSE: Final = 1e-3
"""Relative distance from the best multiplier's bound that is good enough: a smaller one takes more multipliers."""
STRAINED: Final = 2e-3
"""A stage whose cost exceeds its bound by more than this share gets better bounds, which take a pass over all runs."""
MOST_MULTIPLIERS: Final = 3
"""Multipliers at which the costs of one submesh are known: more give better bounds, and each takes a pass over all
runs."""
LARGEST_TABLE: Final = 1 << 24
"""Numbers in a table that joins the costs around one node: for a larger one, the minimum is taken factor by factor,
which is a weaker bound and takes less memory."""
FIRST_MULTIPLIER: Final = 0.05
"""First multiplier of memory that is tried: this share of the cost of a run, divided by the bytes of a device. Where
the best one is known for other microbatches in flight, the search begins there."""
LEAST_MULTIPLIER: Final = 1e-6
"""The same, to see whether memory makes a run dearer at all: a larger one misses runs that it makes a little dearer, a
smaller one takes roundings for costs."""
MULTIPLIER_STEPS: Final = (3.0, 3.0**0.5)
"""Factors between the multipliers of memory that are tried, the coarse one first: finer ones raise bounds a little
more, and each multiplier that is tried takes a pass over all runs."""
WORTH_RAISING: Final = 1e-3
"""A bound that rises by at most this share is not brought into the table of all runs."""
CEILING: Final = 64.0
"""A bound of this many times a run's cost without a memory limit counts as a proof that it does not fit: bounds of what
does not fit have no end."""
HOPELESS: Final = CEILING / 2
"""A cut whose cost is more than this many times that of the best one without a memory limit does not fit. It is less
than `CEILING`, at which bounds of single runs end: stages that fit are part of what the two cuts cost."""

# Time

BOUNDING: Final = 0.7
"""Share of a time limit within which the costs of runs have to be known; else the stages are equal ones. With more,
cuts are searched more often, and less time is left for the plans of their stages."""
PLANNING_S: Final = 1.2e-3
"""Seconds of a time limit that are left for planning equal stages, for each operator of the model."""
FINISHING: Final = 0.8
"""Share of a time limit for the search; the rest is for the best pipeline on the finer mesh and for its file."""
LATE_S: Final = 0.01
"""Seconds for the plan of a stage after the time limit, if there is no pipeline yet: some pipeline, of any quality."""
