"""`solve --stages`: the best pipeline there is, with a bound on how much better any other could be.

Runs of units are priced by (min, +) products on every submesh (`shardplan.stages.chain`), which are lower bounds; the
best cut under these (`shardplan.stages.search`) is a lower bound on the step of any pipeline. The stages of that cut
are then planned each for itself, with memory and all that they share, between borders as the cut has them. Where one
does not fit, the cut is excluded and the search goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardplan.cluster.types import Cluster
from shardplan.constraints.resolve import resolve
from shardplan.errors import Diagnostic, InfeasibleError, ShardplanError, error
from shardplan.graph.build import CostGraph
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.rules import model_rules
from shardplan.solve.problem import Costs
from shardplan.stages.chain import RunCosts
from shardplan.stages.cut import Chain, chain_of, part_of
from shardplan.stages.floors import Floors
from shardplan.stages.found import StagedPlans
from shardplan.stages.parts import concerning, kept_so, weight_bytes
from shardplan.stages.schedule import Schedule
from shardplan.stages.search import Choices, Counts, Cut, Found, balanced, search
from shardplan.stages.submeshes import Submesh, submeshes
from shardplan.stages.transfer import Transfers, exposed_ns, tied_transfers, waited_ns

_PICOSECONDS_PER_NS = 1000.0
_MOST_ROUNDS = 40
_SMALL_UNITS, _SMALL_DEVICES = 13, 16
"""Up to so many, cuts are searched together with the layouts at their borders."""
_TOLERANCE = 1e-3
"""Relative, of the search over cuts of larger models."""
_EXPLORED = 2
"""Further cuts that are tried of larger models."""
_TIGHTENED = 3
"""Searches with bounds that know of memory."""
_CLOSE = 1e-6


@dataclass
class Stager:
    """Searches pipelines of one model on one cluster. `stages`: how many, or any number; `sizes`: how many devices a
    stage may have, or any number that is a part of the cluster."""

    model: Model
    cluster: Cluster
    options: PlanOptions
    schedule: Schedule
    stages: int | None = None
    sizes: frozenset[int] | None = None
    chain: Chain = field(init=False)
    parts: tuple[Submesh, ...] = field(init=False)
    transfers: Transfers = field(init=False)
    _runs: list[RunCosts] = field(init=False)
    _planned: dict[tuple[object, ...], Plan | None] = field(init=False, default_factory=dict)
    _behind: list[Counts] = field(init=False)
    _exact: bool = field(init=False, default=True)
    _known: dict[Cut, float] = field(init=False, default_factory=dict)
    _strain: dict[int, float] = field(init=False, default_factory=dict)
    _floors: dict[int, Floors] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        resolve(self.options.constraints, self.model, self.cluster.mesh)
        self.chain = chain_of(self.model, model_rules(self.model))
        if self.stages is not None and self.stages > len(self.chain):
            summary = f"'{self.model.name}' has {len(self.chain)} units and cannot be cut into {self.stages} stages"
            raise ShardplanError(error("too-many-stages", summary, hint=f"at most --stages {len(self.chain)}"))
        parts = submeshes(self.cluster)
        self.parts = tuple(part for part in parts if self.sizes is None or part.size in self.sizes)
        self.transfers = Transfers(self.cluster)
        self._runs = [RunCosts(self._graph(part), self.chain) for part in self.parts]
        count = min(len(self.chain), self.cluster.mesh.size)
        self._behind = [self._fitting(part, count) for part in self.parts]

    def solve(self) -> StagedPlans:
        """The pipeline with the shortest step found.

        Raises `InfeasibleError` when no cut fits in memory.
        """
        if self.schedule.pieces > 1:
            return self._interleaved()
        best, bound = self._searched()
        if best is None:
            raise InfeasibleError(self._does_not_fit())
        if best.tied and self.stages is None:
            best = self._or_whole(best)
        return replace(best, bound_ns=min(bound, best.step_ns))

    def _searched(self) -> tuple[StagedPlans | None, float]:
        """The best cut that fits, and a bound on all in nanoseconds: searched, planned, and searched again with what
        planning told."""
        best: StagedPlans | None = None
        bound = 0.0
        for _ in range(_MOST_ROUNDS):
            found = self._search()
            if found.cuts is None:
                break
            if self._exact:
                bound = max(bound, found.bound / _PICOSECONDS_PER_NS)
            if best is not None and bound >= best.step_ns * (1.0 - _CLOSE):
                break
            cuts = self._with_layouts(found.cuts)
            plans = self._plans(cuts)
            if plans is None:
                continue
            staged = self._staged(cuts, plans)
            best = staged if best is None or staged.step_ns < best.step_ns else best
            if not self._small:
                return self._tightened(self._explored(best), bound, found)
            if not self._learn(cuts, plans):
                break
        return best, bound

    def _interleaved(self) -> StagedPlans:
        """Every number of equal stages, each with its pieces of about equal cost: piece p runs on stage p mod S."""
        best: StagedPlans | None = None
        bounds = []
        for number, part in enumerate(self.parts):
            stages, rest = divmod(self.cluster.mesh.size, part.size)
            if (
                rest
                or stages < 2
                or (self.stages or stages) != stages
                or stages * self.schedule.pieces > len(self.chain)
            ):
                continue
            runs = self._runs[number]
            bounds.append(runs.least(0, len(self.chain)) / stages / _PICOSECONDS_PER_NS)
            edges = balanced([runs.least(u, u + 1) for u in range(len(self.chain))], stages * self.schedule.pieces)
            cuts = [Cut(low, high, number, 0, 0) for low, high in itertools.pairwise(edges)]
            if any(self._behind[number][cut.first, cut.last] < 0 for cut in cuts):
                continue
            chosen = self._with_best_layouts(cuts)
            if (plans := self._plans(chosen)) is not None:
                staged = self._staged(chosen, plans)
                best = staged if best is None or staged.step_ns < best.step_ns else best
        if not bounds:
            summary = (
                f"'{self.model.name}' has {len(self.chain)} units: too few for '{self.schedule}' on {self.cluster.mesh}"
            )
            raise ShardplanError(error("too-many-stages", summary, hint="fewer pieces, or fewer --stages, all alike"))
        if best is None:
            raise InfeasibleError(self._does_not_fit())
        return replace(best, bound_ns=min(*bounds, best.step_ns))

    def _or_whole(self, best: StagedPlans) -> StagedPlans:
        """The better of `best` and one stage: the search does not know what tied weights cost."""
        found = self._search(stages=1)
        if found.cuts is None or found.bound >= best.step_ns * _PICOSECONDS_PER_NS:
            return best
        plans = self._plans(found.cuts)
        whole = self._staged(found.cuts, plans) if plans else best
        return whole if whole.step_ns < best.step_ns else best

    def _explored(self, best: StagedPlans) -> StagedPlans:
        """The best of a few more cuts: those that are best when runs cost as much more than their bounds as they were
        found to on the same submesh, for memory above all."""
        last, tried = best, {_places(best.cuts)}
        for _ in range(_EXPLORED):
            for cut, plan in zip(last.cuts, last.plans, strict=True):
                bound_ns = self._runs[cut.submesh].least(cut.first, cut.last) / _PICOSECONDS_PER_NS
                strain = plan.summary.step_ns / bound_ns
                self._strain[cut.submesh] = max(self._strain.get(cut.submesh, 1.0), strain)
            found = self._search(strained=True)
            if found.cuts is None or _places(found.cuts) in tried:
                break
            tried.add(_places(found.cuts))
            cuts = self._with_layouts(found.cuts)
            plans = self._plans(cuts)
            if plans is not None:
                last = self._staged(cuts, plans)
                best = last if last.step_ns < best.step_ns else best
        return best

    def _tightened(self, best: StagedPlans, bound: float, found: Found) -> tuple[StagedPlans, float]:
        """Better bounds, and perhaps a better pipeline: memory is brought into the bounds of the runs that are best
        without it, and the search goes on with these (`shardplan.stages.floors`)."""
        for _ in range(_TIGHTENED):
            if found.cuts is None or bound >= best.step_ns * (1.0 - _TOLERANCE):
                break
            raised = [self._floored(cut, self.in_flight(at, len(found.cuts))) for at, cut in enumerate(found.cuts)]
            if True not in raised:
                break
            found = self._search()
            bound = max(bound, found.bound / _PICOSECONDS_PER_NS if self._exact else 0.0)
            if found.cuts is not None and (plans := self._plans(cuts := self._with_layouts(found.cuts))) is not None:
                best = min(best, self._staged(cuts, plans), key=lambda staged: staged.step_ns)
        return best, bound

    def _floored(self, cut: Cut, waiting: int) -> bool:
        """Whether memory makes a run dearer than it was known to be."""
        runs = self._runs[cut.submesh]
        floors = self._floors.setdefault(cut.submesh, Floors(runs, self._limit_bytes))
        return floors.raise_for(cut.first, cut.last, waiting, runs.least(cut.first, cut.last))

    def _learn(self, cuts: Sequence[Cut], plans: Sequence[Plan]) -> bool:
        """Take what planning tells of these stages for the next search; whether there was anything to learn.

        A stage takes at least what it takes with one microbatch in flight.
        """
        learnt = False
        for place, (cut, plan) in enumerate(zip(cuts, plans, strict=True)):
            waiting = self.in_flight(place, len(cuts))
            least = plan if waiting == 1 else self._planned_with(cut, 1, place)
            assert least is not None
            cost = least.summary.step_ns * _PICOSECONDS_PER_NS
            known = self._known.get(cut, self._runs[cut.submesh].of(cut.first, cut.last)[cut.enters, cut.leaves])
            if cost > known * (1.0 + _CLOSE):
                self._known[cut] = cost
                learnt = True
        return learnt

    def _graph(self, part: Submesh) -> CostGraph:
        options = replace(self.options, constraints=(), memory_limit_bytes=1 << 60)
        return Planner(self.model, part.cluster, options, reasons=False).built_at(1.0)[0]

    @property
    def _limit_bytes(self) -> int:
        given = self.options.memory_limit_bytes
        return given if given is not None else self.cluster.device.usable_bytes

    def _fitting(self, part: Submesh, count: int) -> Counts:
        """How many stages may follow a run of units on `part`, as far as its weights and their states tell."""
        held = np.array([weight_bytes(self.model, unit, self.options) for unit in self.chain.units])
        sums = np.concatenate([[0.0], held.cumsum()])
        fits = (sums[None, :] - sums[:, None]) / part.size <= self._limit_bytes
        return np.where(fits, count, -1).astype(np.int64)

    @property
    def _small(self) -> bool:
        return len(self.chain) <= _SMALL_UNITS and self.cluster.mesh.size <= _SMALL_DEVICES

    def _search(self, *, strained: bool = False, stages: int | None = None) -> Found:
        layouts = max((len(row) for runs in self._runs for row in runs.layouts), default=1) if self._small else 1
        units = len(self.chain)
        costs = [
            self._table(number, layouts) * (self._strain.get(number, 1.0) if strained else 1.0)
            for number in range(len(self._runs))
        ]
        choices = Choices(
            costs=costs,
            sizes=[part.size for part in self.parts],
            handing=[[self._handing(s, t, layouts) for t in range(len(self.parts))] for s in range(len(self.parts))],
            most_behind=[behind[: units + 1, : units + 1] for behind in self._behind],
            devices=self.cluster.mesh.size,
            share=1.0 / (self.options.microbatches * self.schedule.pieces),
            stages=stages or self.stages,
            costs_behind={
                (behind, submesh): np.maximum(costs[submesh], table[:, :, None, None])
                for submesh, floors in self._floors.items()
                for behind in range(min(units, self.cluster.mesh.size))
                if (table := floors.table(self.in_flight(0, behind + 1))) is not None
            },
        )
        return search(choices, 0.0 if self._small else _TOLERANCE)

    def _table(self, submesh: int, layouts: int) -> Costs:
        """Costs of all runs on a submesh; with one layout, of the best layouts at both ends."""
        units, runs = len(self.chain), self._runs[submesh]
        table = np.full((units + 1, units + 1, layouts, layouts), np.inf)
        for first, last in itertools.combinations(range(units + 1), 2):
            cost = runs.of(first, last)
            if layouts == 1:
                table[first, last] = cost.min()
            else:
                table[first, last, : cost.shape[0], : cost.shape[1]] = cost
        for cut, cost_ps in self._known.items():
            if cut.submesh == submesh and layouts > 1:
                table[cut.first, cut.last, cut.enters, cut.leaves] = cost_ps
        return table

    def _handing(self, sender: int, receiver: int, layouts: int) -> Costs:
        """Exposed transfers, shape (unit, layouts out, layouts in); with one layout, of the cheapest."""
        units = len(self.chain)
        table = np.full((units + 1, layouts, layouts), np.inf)
        table[0], table[units] = 0.0, 0.0
        for border in range(units - 1):
            cost = self.handed_ps(sender, receiver, border)
            if layouts == 1:
                table[border + 1] = cost.min()
            else:
                table[border + 1, : cost.shape[0], : cost.shape[1]] = cost
        return table

    def handed_ps(self, sender: int, receiver: int, border: int) -> Costs:
        """Exposed picoseconds per step of handing `border` over, shape (layouts of the sender, of the receiver)."""
        value, gradient = self.sizes_of(border)
        micro, hidden = self.options.microbatches, self.transfers.hidden
        mine, theirs = self.parts[sender], self.parts[receiver]
        there = [
            exposed_ns(self.transfers.handover(mine, theirs, layout, value), hidden, micro)
            for layout in self._runs[receiver].layouts[border]
        ]
        back = [
            exposed_ns(self.transfers.handover(theirs, mine, layout, gradient), hidden, micro) if gradient else 0.0
            for layout in self._runs[sender].layouts[border]
        ]
        table: Costs = _PICOSECONDS_PER_NS * (np.array(back)[:, None] + np.array(there)[None, :])
        return table

    def sizes_of(self, border: int) -> tuple[int, int]:
        """Bytes of the value at a border and of its gradient, in one microbatch."""
        kind = self._runs[0].built.kept[self.chain.borders[border]].kind
        return kind.size_bytes, kind.gradient_bytes if kind.has_gradient else 0

    def layout_of(self, submesh: int, border: int, number: int) -> Layout:
        """The layout that a `Cut` means by a number."""
        return self._runs[submesh].layouts[border][number]

    def _with_layouts(self, cuts: Sequence[Cut]) -> tuple[Cut, ...]:
        """The same stages with the layouts at their borders for which the sum of stages and transfers is least."""
        return tuple(cuts) if self._small else self._with_best_layouts(cuts)

    def _with_best_layouts(self, cuts: Sequence[Cut]) -> tuple[Cut, ...]:
        share = 1.0 / (self.options.microbatches * self.schedule.pieces)
        tables = [share * self._runs[cut.submesh].of(cut.first, cut.last) for cut in cuts]
        slowest = max(range(len(cuts)), key=lambda place: float(tables[place].min()))
        tables[slowest] = tables[slowest] / share
        least, ways = np.zeros(1), []
        for place, (cut, table) in enumerate(zip(cuts, tables, strict=True)):
            if place:
                handed = least[:, None] + self.handed_ps(cuts[place - 1].submesh, cut.submesh, cut.first - 1)
                ways.append(handed.argmin(axis=0))
                least = handed.min(axis=0)
            total = least[:, None] + table
            ways.append(total.argmin(axis=0))
            least = total.min(axis=0)
        chosen = [0]
        for way in reversed(ways):
            chosen.append(int(way[chosen[-1]]))
        ends = chosen[::-1]
        return tuple(replace(cut, enters=ends[2 * place], leaves=ends[2 * place + 1]) for place, cut in enumerate(cuts))

    def in_flight(self, place: int, count: int) -> int:
        """Microbatches that stage `place` of `count` holds."""
        if not self.options.training:
            return 1
        stages = count // self.schedule.pieces
        return self.schedule.in_flight(stages - 1 - place % stages, stages, self.options.microbatches)

    def _plans(self, cuts: Sequence[Cut]) -> tuple[Plan, ...] | None:
        """A plan of every stage; `None` when one does not fit, which is then excluded."""
        plans = []
        for place, cut in enumerate(cuts):
            plan = self._planned_with(cut, self.in_flight(place, len(cuts)), place)
            if plan is None:
                self._refuse(cut, self.in_flight(place, len(cuts)), len(cuts) - 1 - place)
                return None
            plans.append(plan)
        return tuple(plans)

    def _planned_with(self, cut: Cut, in_flight: int, place: int) -> Plan | None:
        key = (cut, in_flight)
        if key not in self._planned:
            self._planned[key] = self._plan(cut, in_flight, f"{self.model.name}.stage{place}")
        return self._planned[key]

    def _refuse(self, cut: Cut, in_flight: int, behind: int) -> None:
        """Leave out what does not fit: the run, or where it fits with other borders only, the run between these. What
        then is left out beyond what is proven not to fit is no part of the bound."""
        if self._plan(cut, in_flight, self.model.name, free=True) is None:
            self._exclude(cut, behind)
        elif self._small:
            self._known[cut] = np.inf
            self._exact = self._exact and in_flight == 1
        else:
            self._exclude(cut, behind)
            self._exact = False

    def _exclude(self, cut: Cut, behind: int) -> None:
        """Never again this run, or one that contains it, on this submesh with so many stages behind it."""
        most = self._behind[cut.submesh]
        longer = most[: cut.first + 1, cut.last :]
        np.minimum(longer, behind - 1, out=longer)

    def _plan(self, cut: Cut, in_flight: int, name: str, *, free: bool = False) -> Plan | None:
        """The plan of a stage, its borders as the cut has them or `free`; None where none fits."""
        model, cluster = part_of(self.chain, cut.first, cut.last, name), self.parts[cut.submesh].cluster
        options = replace(
            self.options,
            in_flight=in_flight,
            constraints=concerning(self.options.constraints, model, cluster.mesh),
            memory_limit_bytes=self._limit_bytes // self.schedule.pieces,
        )
        planner = Planner(model, cluster, options, reasons=False)
        ends: dict[str, Layout] = {}
        if cut.first:
            ends[self.chain.borders[cut.first - 1]] = self.layout_of(cut.submesh, cut.first - 1, cut.enters)
        if cut.last < len(self.chain):
            ends[self.chain.borders[cut.last - 1]] = self.layout_of(cut.submesh, cut.last - 1, cut.leaves)
        try:
            return planner.plan(None if free else lambda built: kept_so(built, ends))
        except InfeasibleError:
            return None

    def _staged(self, cuts: tuple[Cut, ...], plans: tuple[Plan, ...]) -> StagedPlans:
        each = [float(plan.summary.step_ns) for plan in plans]
        stages = len(cuts) // self.schedule.pieces
        costs = [sum(each[place::stages]) for place in range(stages)]
        borders = []
        handed = 0.0
        for mine, theirs in itertools.pairwise(cuts):
            border = theirs.first - 1
            handed += float(self.handed_ps(mine.submesh, theirs.submesh, border)[mine.leaves, theirs.enters])
            borders.append(
                (
                    self.layout_of(mine.submesh, border, mine.leaves),
                    self.layout_of(theirs.submesh, border, theirs.enters),
                )
            )
        parts = tuple(self.parts[cut.submesh] for cut in cuts)
        starts = [cut.first for cut in cuts[1:]]
        tied = tied_transfers(self.transfers, self.chain, starts, parts, plans, training=self.options.training)
        step_ns = self.schedule.step(costs, self.options.microbatches) + handed / _PICOSECONDS_PER_NS + waited_ns(tied)
        return StagedPlans(
            chain=self.chain,
            cuts=cuts,
            parts=parts,
            plans=plans,
            in_flight=tuple(self.in_flight(place, len(cuts)) for place in range(len(cuts))),
            borders=tuple(borders),
            sizes=tuple(self.sizes_of(cut.first - 1) for cut in cuts[1:]),
            tied=tied,
            step_ns=step_ns,
            bound_ns=0.0,
        )

    def _does_not_fit(self) -> Diagnostic:
        wanted = f"{self.stages} stages" if self.stages else "stages"
        summary = f"no way to cut '{self.model.name}' into {wanted} on '{self.cluster.name}' fits in memory"
        recompute = "" if self.options.remat == "auto" else "--remat auto, "
        return error("infeasible", summary, hint=f"more --microbatches, {recompute}or a larger --mesh")


def _places(cuts: Sequence[Cut]) -> tuple[tuple[int, int, int], ...]:
    return tuple((cut.first, cut.last, cut.submesh) for cut in cuts)
