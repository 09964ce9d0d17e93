"""Standing and limits of a pipeline search: the best pipeline, the time limit, the effort, Ctrl-C."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from shardplan.graph.options import PlanOptions
from shardplan.interruption import Interruption
from shardplan.pipeline.constants import FINISHING, LATE_S
from shardplan.planning.constants import work_limit
from shardplan.planning.standing import OnProgress, Standing
from shardplan.units import PS_PER_NS


@dataclass
class SearchState:
    """`best_ns`: the shortest step known, infinite before there is one; `bound_ns`: a lower bound on every pipeline.
    `work`, in the units of `shardplan.solve.constants`: that of planning stages and searching cuts. `ends_s`
    (`time.monotonic`): when the search ends with what it has, and `limit_s` when its time is over. `by_clock`: whether
    time or Ctrl-C has decided anything. For the progress line: `planned`, the number of cuts
    whose stages were planned, `left`, of those that may follow, 0 if unknown."""

    options: PlanOptions
    interruption: Interruption = field(default_factory=Interruption)
    on_progress: OnProgress | None = None
    ends_s: float = math.inf
    limit_s: float = math.inf
    by_clock: bool = False
    best_ns: float = math.inf
    bound_ns: float = 0.0
    work: float = 0.0
    planned: int = 0
    left: int = 0

    @classmethod
    def of(
        cls, options: PlanOptions, interruption: Interruption | None = None, on_progress: OnProgress | None = None
    ) -> SearchState:
        """A search that begins now."""
        now_s, limit = time.monotonic(), math.inf if options.time_limit is None else options.time_limit
        return cls(options, interruption or Interruption(), on_progress, now_s + FINISHING * limit, now_s + limit)

    def is_over(self) -> bool:
        """Whether to end with the best pipeline. Raises `KeyboardInterrupt` on Ctrl-C if there is no pipeline yet."""
        known = math.isfinite(self.best_ns)
        if self.interruption.asked and not known:
            raise KeyboardInterrupt
        return self.is_late() or (known and self.work >= self._most_work)

    def is_late(self) -> bool:
        """Whether a pipeline is known, and the time limit has passed or Ctrl-C was pressed."""
        is_late = math.isfinite(self.best_ns) and (self.interruption.asked or time.monotonic() >= self.ends_s)
        self.by_clock |= is_late
        return is_late

    @property
    def _most_work(self) -> float:
        return work_limit(self.options)

    def before_end(self, share: float) -> float:
        """The time (`time.monotonic`) after that share of what is left; infinite without a time limit."""
        now = time.monotonic()
        return math.inf if math.isinf(self.ends_s) else now + share * (self.ends_s - now)

    def stage_s(self, stages: int) -> float | None:
        """Seconds for planning one of so many remaining stages."""
        if math.isinf(self.ends_s):
            return None
        return max(LATE_S, (self.ends_s - time.monotonic()) / (stages + 1))

    def know(self, best_ns: float, bound_ns: float) -> None:
        """Records a pipeline and a bound."""
        self.best_ns, self.bound_ns = min(self.best_ns, best_ns), max(self.bound_ns, bound_ns)
        self.tell("searching pipelines")

    def tell(self, doing: str) -> None:
        """Reports the current activity."""
        if self.on_progress is not None:
            share = self.work / self._most_work if math.isfinite(self._most_work) else 0.0
            bound = min(self.bound_ns, self.best_ns) * PS_PER_NS
            best = self.best_ns * PS_PER_NS
            self.on_progress(Standing(best, bound, min(1.0, share), doing, self.planned, self.left))
