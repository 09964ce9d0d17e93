"""The constants that trade time and quality of studies: how much time each solve gets, and when enough is found.

Those of the search itself are in `shardplan.planning.constants`. A gap is a share of the step; times are in seconds.
"""

from __future__ import annotations

from typing import Final

REMEDY_GAP: Final = 0.1
"""Gap at which the plan of a remedy is good enough: a remedy has to be found, not perfected."""
REMEDY_S: Final = 20.0
"""Time limit (seconds) of the solve of one remedy: each takes its part of `REMEDIES_S`."""
REMEDIES_S: Final = 60.0
"""Time (seconds) after which no further remedy is solved, since the user waits for the answer that nothing fits."""
ALTERNATIVE_S: Final = 10.0
"""Time limit (seconds) of the solve of one alternative that `explain` prices: more makes each of them wait longer."""
LEAST_SEARCH_S: Final = 0.01
"""Time (seconds) that a search gets if reading or other meshes have used up the time limit: more goes further beyond
it."""
