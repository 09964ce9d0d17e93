"""The best pipeline of a model on a cluster, with a lower bound: cut search and stage planning in turn.

Runs of units have cost lower bounds on every submesh (`pipeline.bounds.run_costs`); the best cut under these
(`pipeline.cut_search`) is a lower bound on the step of any pipeline. The stages of that cut are then planned, with
memory and all that they share, between borders as the cut has them. Where one does not fit, the cut is excluded and the
search goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardplan.cluster.mesh import merged
from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.errors import Diagnostic, InfeasibleError, LimitError, ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.interruption import Deadline, GivenUpError, Interruption
from shardplan.model.types import Model
from shardplan.pipeline.constants import (
    BOUNDING,
    CLOSE,
    CUT_TOLERANCE,
    EASINGS,
    EXPLORED,
    HOPELESS,
    MOST_ROUNDS,
    PACE,
    PLANNING_S,
    SMALL_DEVICES,
    SMALL_UNITS,
)
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, chain_of
from shardplan.pipeline.cut_search import FoundCuts, balanced
from shardplan.pipeline.mesh_refinement import FinerStages, searched_on
from shardplan.pipeline.result import PipelineResult, assemble_result
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.search_state import SearchState
from shardplan.pipeline.stage_costs import StageCosts
from shardplan.pipeline.stage_counts import refuse_impossible
from shardplan.pipeline.stage_planner import StagePlanner
from shardplan.pipeline.submeshes import Submesh, submeshes
from shardplan.plan.types import Plan
from shardplan.planning.finer import work_s
from shardplan.planning.infeasible import out_of_time
from shardplan.planning.standing import OnProgress
from shardplan.rules import model_rules
from shardplan.units import NS_PER_S, PS_PER_NS, counted


@dataclass
class PipelineSolver:
    """Searches pipelines of one model on one cluster. `stages`: how many, or any number; `sizes`: how many devices a
    stage may have, or any number that is a part of the cluster."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    schedule: Schedule
    stages: int | None = None
    sizes: frozenset[int] | None = None
    on_progress: OnProgress | None = None
    search_state: SearchState = field(init=False)
    chain: Chain = field(init=False)
    parts: tuple[Submesh, ...] = field(init=False)
    stage_costs: StageCosts = field(init=False)
    planner: StagePlanner = field(init=False)
    _finer: FinerStages | None = field(init=False, default=None)
    _best: PipelineResult | None = field(init=False, default=None)
    """The best pipeline so far."""
    _open: set[tuple[tuple[int, int, int], ...]] = field(init=False, default_factory=set)
    """Cuts that were looked at with each stage's own layout of tied weights."""

    def __post_init__(self) -> None:
        resolve(self.options.constraints, self.model, self.cluster.mesh)
        self.search_state = SearchState.of(self.options, Interruption(), self.on_progress)
        self.search_state.tell("bounding runs of layers")
        self.chain = chain_of(self.model, model_rules(self.model))
        parts = tuple(part for part in submeshes(self.cluster) if self.sizes is None or part.size in self.sizes)
        if self.stages is not None:
            refuse_impossible(self.stages, self.chain, self.cluster, parts)
        cluster = searched_on(self.model, self.cluster, self.options)
        finer = cluster is not self.cluster
        self.parts = tuple(Submesh(merged(part.cluster)[0]) for part in parts) if finer else parts
        self.stage_costs = StageCosts(
            self.model, self.chain, cluster, self.parts, self.options, self.schedule, exact=self._is_small,
            deadline=Deadline(self.search_state.ends_s, interruption=self.search_state.interruption),
        )  # fmt: skip
        self.planner = StagePlanner(self.stage_costs, cluster, self.options, self.schedule.chunks, self.search_state)
        if finer:
            self._finer = FinerStages(self.cluster, self.options, self.schedule, parts, self.planner)

    def solve(self) -> PipelineResult:
        """The pipeline with the shortest step found.

        Raises `InfeasibleError` when no cut fits in memory, `LimitError` when the time limit ends the search before
        there is any.
        """
        with self.search_state.interruption:
            found = self._searched()
            if self._finer is not None:
                found = self._finer.of(found)
            asked = self.search_state.interruption.asked
            return replace(found, interrupted=asked, by_clock=asked or self.search_state.by_clock)

    def _searched(self) -> PipelineResult:
        """The pipeline on the mesh that is searched."""
        try:
            if self.schedule.chunks > 1:
                return self._interleaved()
            best, bound = self._solve_small() if self._is_small else self._solve_large()
            best = best and self._at_asked_effort(best)
        except GivenUpError:
            self.search_state.by_clock = True
            best, bound = self._best, self.search_state.bound_ns
        if best is None:
            raise InfeasibleError(self._does_not_fit())
        if not bound and self.options.cost_model.is_ours and self._finer is None:  # which has another bound
            bound = work_s(self.model, self.cluster, self.options) / self.cluster.mesh.size * NS_PER_S
        return replace(best, bound_ns=min(bound, best.step_ns))

    def _solve_small(self) -> tuple[PipelineResult | None, float]:
        """The best cut of a small model, layouts at borders included, and a bound on all in nanoseconds: searched,
        planned, and searched again with what planning told, until there is nothing more to learn."""
        best, costs_ns = self._best, list[float]()
        for rounds in reversed(range(MOST_ROUNDS)):
            self.search_state.left = rounds + 1
            found = self._cut(worth_ns=best.step_ns * (1.0 - CLOSE)) if best else self._first_cut()
            if best is None:  # later searches end at what is worth it
                self.search_state.know(math.inf, self._bound(found, 0.0))
            if found.cuts is None or self.search_state.is_over():
                break
            plans = self.planner.plans(found.cuts)
            self.search_state.planned += 1
            if plans is None:
                continue
            staged = self._staged(found.cuts, plans)
            costs_ns = [*(costs_ns if best and best.step_ns <= staged.step_ns else ()), found.cost / PS_PER_NS]
            best = self._record(best, staged)
            best, learnt = self._learnt(best, found.cuts, plans, costs_ns, rounds)
            if not learnt:
                break
        if self.search_state.is_late():
            return best, self.search_state.bound_ns
        return best, self._bound(self._cut(proven=True), 0.0)

    def _first_cut(self) -> FoundCuts:
        """The best cut as long as no pipeline is known. If the costs of runs come too late, stages are equal ones, and
        it raises `GivenUpError`; or `LimitError`, if there are none that fit."""
        state, room_s = self.search_state, PLANNING_S * len(self.model.operators)
        for ends_s in (min(state.before_end(BOUNDING), state.limit_s - room_s), state.limit_s):
            try:
                with self.stage_costs.deadline.armed_until(ends_s):
                    return self._cut()
            except GivenUpError:
                if self._equal_stages() is not None:
                    raise
        raise LimitError(out_of_time(self.model, self.cluster))

    def _equal_stages(self) -> PipelineResult | None:
        """A pipeline of stages of as many devices and about as much work each, or of one stage if their number is free:
        a search for the best may take longer than a time limit. None where it does not fit."""
        stages = self.stages or 1
        equal = [number for number, part in enumerate(self.parts) if part.size * stages == self.cluster.mesh.size]
        if not equal:
            return None
        cuts = self._balanced(equal[0], stages)
        if not all(self.stage_costs.can_hold(cut) for cut in cuts):
            return None
        chosen = cuts if stages == 1 else self.stage_costs.with_best_layouts(cuts)
        try:
            plans = self.planner.of_all(chosen[0]) if stages == 1 else self.planner.plans(chosen)
        except LimitError:
            return None
        self.search_state.planned += 1
        return None if plans is None else self._record(None, self._staged(chosen, plans))

    def _balanced(self, part: int, count: int) -> list[Cut]:
        """So many runs of units of about equal cost, all on one kind of part."""
        if count == 1:
            return [Cut(0, len(self.chain), part, 0, 0)]
        runs = self.stage_costs.runs_on(part)
        edges = balanced([float(runs.of(u, u + 1).min()) for u in range(len(self.chain))], count)
        return [Cut(low, high, part, 0, 0) for low, high in itertools.pairwise(edges)]

    def _learnt(
        self, best: PipelineResult, cuts: Sequence[Cut], plans: Sequence[Plan], costs_ns: Sequence[float], rounds: int
    ) -> tuple[PipelineResult, bool]:
        """The best pipeline, and whether these stages told anything for one of so many further searches, if there is
        time for them."""
        if self.search_state.is_late():
            return best, False
        try:
            best = self._opened(best, cuts)
            return best, _is_converging(costs_ns, best.step_ns, rounds) and self._learn(cuts, plans)
        except (LimitError, KeyboardInterrupt):
            if not self.search_state.is_over():
                raise
            return best, False

    def _opened(self, best: PipelineResult, cuts: Sequence[Cut]) -> PipelineResult:
        """The better of `best` and a cut, met first, whose stages each keep as suits them the weight that the first
        and the last hold: the search says one layout for both, whose cost to a stage its bound may not know."""
        if _places(cuts) in self._open or all(cut.tied < 0 for cut in cuts):
            return best
        self._open.add(_places(cuts))
        free = [replace(cut, tied=-1) for cut in cuts]
        plans = [
            self.planner.plan(cut, self.planner.in_flight(place, len(free)), place) for place, cut in enumerate(free)
        ]
        fitting = [plan for plan in plans if plan is not None]
        return best if len(fitting) < len(plans) else self._record(best, self._staged(free, fitting))

    def _cut(
        self,
        *,
        easing: float | None = None,
        proven: bool = False,
        worth_ns: float = math.inf,
    ) -> FoundCuts:
        """The best cut as far as is known, as `StageCosts.search`."""
        self.search_state.tell("searching cuts")
        first = self.stage_costs.proven and not self.search_state.bound_ns
        found = self.stage_costs.search(
            self.stages,
            easing=easing,
            proven=proven,
            worth_ns=worth_ns,
            ends_s=self.search_state.ends_s,
            on_bound=self._report_bound if first else None,
        )
        self.search_state.work += found.work
        self.search_state.by_clock |= found.is_cut
        return found

    def _report_bound(self, bound_ps: float) -> None:
        """What the first search over cuts has proven so far; later ones are told by what comes of them."""
        self.search_state.bound_ns = max(self.search_state.bound_ns, bound_ps / PS_PER_NS)
        self.search_state.tell("searching cuts")

    def _record(self, best: PipelineResult | None, other: PipelineResult) -> PipelineResult:
        """The better of two pipelines, which the search state records."""
        self.search_state.interruption.arm()
        self.stage_costs.deadline.armed = True
        best = self._best = _better(best, other)
        self.search_state.know(best.step_ns, 0.0)
        return best

    def _solve_large(self) -> tuple[PipelineResult | None, float]:
        """The best cut that is found of a large model, and a bound on all in nanoseconds.

        Memory is brought into the bounds of the runs that are best without it, until the best cut is one whose bounds
        know of it; that one is planned.
        """
        best: PipelineResult | None = None
        bound, unlimited = 0.0, math.inf
        tried = set()
        for _ in range(MOST_ROUNDS):
            found = self._cut() if best else self._first_cut()
            unlimited = min(unlimited, found.bound)
            if found.cuts is None or (best is None and found.bound > HOPELESS * unlimited):
                break
            bound = self._bound(found, bound)
            self.search_state.know(math.inf if best is None else best.step_ns, bound)
            if self.search_state.is_over():
                return best, bound
            if best is not None and bound >= best.step_ns * (1.0 - CUT_TOLERANCE):
                return best, bound
            if self._raise_memory_bounds(found.cuts):
                continue
            if _places(found.cuts) in tried:
                break
            tried.add(_places(found.cuts))
            if (staged := self._planned(found.cuts)) is not None:
                best = self._record(best, staged)
                if self._sharpen_bounds(staged.cuts, staged.plans):
                    tried.discard(_places(found.cuts))
        return best if best is None else self._explored(best, tried), bound

    def _bound(self, found: FoundCuts, bound: float) -> float:
        return max(bound, found.bound / PS_PER_NS) if self.stage_costs.proven else bound

    def _raise_memory_bounds(self, cuts: Sequence[Cut]) -> bool:
        """Whether memory makes a stage dearer than it was known to be."""
        waiting = [self.planner.in_flight(place, len(cuts)) for place in range(len(cuts))]
        return True in [self.stage_costs.raise_bound(cut, held) for cut, held in zip(cuts, waiting, strict=True)]

    def _explored(self, best: PipelineResult, tried: set[tuple[tuple[int, int, int], ...]]) -> PipelineResult:
        """The best of a few more cuts: those that are best as far as can be guessed from the stages seen so far."""
        for number, easing in enumerate(EASINGS, start=1):
            best = self._best_guess(best, tried, easing, later=EXPLORED * (len(EASINGS) - number))
        return best

    def _best_guess(
        self, best: PipelineResult, tried: set[tuple[tuple[int, int, int], ...]], easing: float, later: int = 0
    ) -> PipelineResult:
        """The best of the cuts that one way to guess leads to; of `later` ones as many may be planned."""
        left = EXPLORED
        for _ in range(MOST_ROUNDS):
            if self.search_state.is_over() or not left:
                break
            self.search_state.left = left + later
            found = self._cut(easing=easing)
            if found.cuts is None or _places(found.cuts) in tried:
                break
            if found.cost / PS_PER_NS >= best.step_ns * (1.0 - CUT_TOLERANCE):
                break
            if self._raise_memory_bounds(found.cuts):  # much cheaper than to plan what memory does not allow
                continue
            left -= 1
            tried.add(_places(found.cuts))
            if (staged := self._planned(found.cuts, best.step_ns)) is not None:
                best = self._record(best, staged)
        return best

    def _interleaved(self) -> PipelineResult:
        """Every number of equal stages, with model chunks of about equal cost: chunk p runs on stage p mod S."""
        best: PipelineResult | None = None
        size, micro, bounds = self.cluster.mesh.size, self.options.microbatches, list[float]()
        counts = [(number, size // part.size) for number, part in enumerate(self.parts) if size % part.size == 0]
        counts = [(number, stages) for number, stages in counts if 2 <= stages == (self.stages or stages)]
        counts = [(number, stages) for number, stages in counts if stages * self.schedule.chunks <= len(self.chain)]
        for number, stages in counts:
            if not self.schedule.takes(micro, stages):
                continue
            bounds.append(self._interleaved_bound(number, stages))
            cuts = self._balanced(number, stages * self.schedule.chunks)
            fits = not self.search_state.is_over() and all(self.stage_costs.can_hold(cut) for cut in cuts)
            if fits and (staged := self._planned(cuts)) is not None:
                best = self._record(best, staged)
        if not counts:
            units = counted(len(self.chain), "unit")
            summary = f"'{self.model.name}' has {units}: too few for '{self.schedule}' on {self.cluster.mesh}"
            hint = "fewer model chunks, or fewer --stages, all alike"
            raise ShardplanError(error("too-many-stages", summary, hint=hint))
        if not bounds:
            self.schedule.refuse_uneven(micro, min(stages for _, stages in counts))
        if best is None:
            raise InfeasibleError(self._does_not_fit())
        return replace(best, bound_ns=min(*bounds, best.step_ns))

    def _interleaved_bound(self, part: int, stages: int) -> float:
        """Nanoseconds of the least step of so many stages on one kind of part: all are as busy as the mean, and of what
        they hand on and of tied weights it is the least."""
        busy_ns = self.stage_costs.least_ns(Cut(0, len(self.chain), part, 0, 0)) / stages
        handed = [float(self.stage_costs.handed_ps(part, part, border).min()) for border in range(len(self.chain) - 1)]
        sent_ns = sum(sorted(handed)[: stages * self.schedule.chunks - 1]) / PS_PER_NS
        step_ns = self.schedule.step([busy_ns] * stages, self.options.microbatches)
        return step_ns + sent_ns + self.stage_costs.apart_ns(part)

    def _at_asked_effort(self, best: PipelineResult) -> PipelineResult:
        """The better of `best` and its stages planned with the effort that is asked for, or one stage, if their number
        is free, which is the plan without a pipeline. With little effort, which meshes of more axes have, that is
        planned where weights are tied: of what they cost the search knows the least only."""
        effort, devices = "quick" if self._finer is not None else self.options.effort, self.cluster.mesh.size
        whole = [number for number, part in enumerate(self.parts) if part.size == devices and self.stages is None]
        alone = [tuple(self._balanced(number, 1)) for number in whole if best.tied or effort != "quick"]
        asked = replace(self.planner, effort=effort)
        for cuts in alone if effort == "quick" else (best.cuts, *alone):
            if self.search_state.is_over():
                break
            if len(cuts) == 1 and self.stage_costs.least_ns(cuts[0]) >= best.step_ns:
                continue
            plans = asked.plans(cuts, math.inf if cuts is best.cuts else best.step_ns, anew=True)
            if plans is not None:
                best = _better(best, self._staged(cuts, plans))
        return best

    def _learn(self, cuts: Sequence[Cut], plans: Sequence[Plan]) -> bool:
        """Take what planning tells of these stages for the next search; whether there was anything to learn.

        A stage takes at least what it takes with one microbatch in flight.
        """
        learnt = False
        for place, (cut, plan) in enumerate(zip(cuts, plans, strict=True)):
            waiting = self.planner.in_flight(place, len(cuts))
            least = plan if waiting == 1 else self.planner.plan(cut, 1, place)
            assert least is not None
            learnt |= self.stage_costs.learn(cut, least.summary, CLOSE)
        return self._sharpen_bounds(cuts, plans) or learnt

    def _sharpen_bounds(self, cuts: Sequence[Cut], plans: Sequence[Plan]) -> bool:
        """Whether what stages send was brought into their bounds, because they cost more than these."""
        waiting = [self.planner.in_flight(place, len(cuts)) for place in range(len(cuts))]
        seen = zip(cuts, waiting, plans, strict=True)
        return True in [self.stage_costs.sharpen(cut, held, plan.summary) for cut, held, plan in seen]

    @property
    def _is_small(self) -> bool:
        return len(self.chain) <= SMALL_UNITS and self.cluster.mesh.size <= SMALL_DEVICES

    def _planned(self, cuts: Sequence[Cut], worth_ns: float = math.inf) -> PipelineResult | None:
        """The pipeline of a cut, with the best layouts at its borders; None where a stage does not fit, or where a step
        takes longer than `worth_ns`."""
        chosen = (
            tuple(cuts) if self._is_small and self.schedule.chunks == 1 else self.stage_costs.with_best_layouts(cuts)
        )
        plans = self.planner.plans(chosen, worth_ns)
        self.search_state.planned += 1
        return None if plans is None else self._staged(chosen, plans)

    def _staged(self, cuts: Sequence[Cut], plans: Sequence[Plan]) -> PipelineResult:
        layout_of, sizes_of = self.stage_costs.layout_of, self.stage_costs.sizes_of
        borders = [
            (
                layout_of(mine.submesh, theirs.first - 1, mine.leaves),
                layout_of(theirs.submesh, theirs.first - 1, theirs.enters),
            )
            for mine, theirs in itertools.pairwise(cuts)
        ]
        return assemble_result(
            self.chain,
            cuts,
            [self.parts[cut.submesh] for cut in cuts],
            plans,
            [self.planner.in_flight(place, len(cuts)) for place in range(len(cuts))],
            borders,
            [sizes_of(cut.first - 1) for cut in cuts[1:]],
            self.stage_costs.transfers,
            self.options,
            self.schedule,
        )

    def _does_not_fit(self) -> Diagnostic:
        wanted = f"{counted(self.stages, 'stage')}" if self.stages else "stages"
        summary = f"no way to cut '{self.model.name}' into {wanted} on '{self.cluster.name}' fits in memory"
        recompute = "" if self.options.remat == "auto" else "--remat auto, "
        fewer = "--schedule 1f1b" if str(self.schedule) == "gpipe" else "more --microbatches"
        return error("infeasible", summary, hint=f"{fewer}, {recompute}or a larger --mesh")


def _better(one: PipelineResult | None, other: PipelineResult) -> PipelineResult:
    return other if one is None or other.step_ns < one.step_ns else one


def _is_converging(costs_ns: Sequence[float], best_ns: float, rounds: int) -> bool:
    """Whether cuts whose costs have risen like this since the best pipeline was found come to cost as much as that in
    so many more rounds. Where borders make stages much longer than their bounds, there are too many to learn of."""
    if len(costs_ns) <= PACE:
        return True
    pace_ns = (costs_ns[-1] - costs_ns[-1 - PACE]) / PACE
    return costs_ns[-1] + rounds * pace_ns >= best_ns * (1.0 - CLOSE)


def _places(cuts: Sequence[Cut]) -> tuple[tuple[int, int, int], ...]:
    return tuple((cut.first, cut.last, cut.submesh) for cut in cuts)
