"""Cost bounds of every run of units on every submesh, refined by the stages that were planned, for the cut search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardplan.cluster.types import Cluster
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.interruption import Deadline
from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.pipeline.border_sizes import border_sizes
from shardplan.pipeline.bounds.cost import CostBounds
from shardplan.pipeline.bounds.run_costs import RunCosts
from shardplan.pipeline.bounds.tied_layouts import StageSite, TiedLayouts
from shardplan.pipeline.bounds.weighted import WeightedBounds
from shardplan.pipeline.constants import CUT_TOLERANCE, STRAINED
from shardplan.pipeline.cut_choices import Choices, Counts, Cut
from shardplan.pipeline.cut_points import Chain
from shardplan.pipeline.cut_search import FoundCuts, OnBound, search
from shardplan.pipeline.p2p import Transfers, exposed_ns
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.stage_inputs import weight_bytes
from shardplan.pipeline.submeshes import Submesh
from shardplan.pipeline.tied_weights import least_tied_ns, tied_at_both_ends, tied_ns
from shardplan.plan.types import Summary
from shardplan.planning import Planner
from shardplan.schedule.objective import Weights
from shardplan.solve.problem import Costs
from shardplan.units import PS_PER_NS


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stage that was planned: with `waiting` microbatches in flight it cost `strain` times the `least_ps`."""

    submesh: int
    least_ps: float
    waiting: int
    strain: float


@dataclass
class StageCosts:
    """Lower bounds on what stages of `chain` cost on the parts of a cluster, and what planning has told since.

    `exact`: the search is over the layouts at borders too, and for as long as nothing is left to learn. What is needed
    of a part is computed on first use; at the `deadline` all that computes costs raises `GivenUpError`."""

    model: Model
    chain: Chain
    cluster: Cluster
    parts: Sequence[Submesh]
    options: PlanOptions
    schedule: Schedule
    exact: bool
    deadline: Deadline
    transfers: Transfers = field(init=False)
    _sizes: tuple[tuple[int, int], ...] = field(init=False)
    proven: bool = field(init=False, default=True)
    """Whether nothing was left out that might have been good."""
    _behind: list[Counts] = field(init=False)
    _runs: dict[int, WeightedBounds] = field(init=False, default_factory=dict)
    _known: dict[Cut, float] = field(init=False, default_factory=dict)
    _proven: dict[Cut, float] = field(init=False, default_factory=dict)
    _seen: list[_Seen] = field(init=False, default_factory=list)
    _memory_bounds: dict[int, CostBounds] = field(init=False, default_factory=dict)
    _tables: dict[StageSite, Costs] = field(init=False, default_factory=dict)
    _handing: list[list[Costs]] = field(init=False, default_factory=list)
    _handovers: dict[tuple[object, ...], Costs] = field(init=False, default_factory=dict)
    _tied: TiedLayouts | None = field(init=False, default=None)
    _apart: Costs | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.transfers = Transfers(self.cluster)
        self._sizes = border_sizes(self.chain, self.options)
        count = min(len(self.chain), self.cluster.mesh.size)
        self._behind = [self._fitting(part, count) for part in self.parts]

    def runs_on(self, part: int) -> WeightedBounds:
        """Lower bounds on the costs of all runs of units on a part."""
        if part not in self._runs:
            self._runs[part] = self._least_costs(self.chain, self.parts[part])
        return self._runs[part]

    def _compute_apart(self) -> None:
        """What stages cost together, for which all parts have to be known."""
        each = range(len(self.parts))
        every = [self.runs_on(part) for part in each]
        if self.exact and self._tied is None:
            self._tied = TiedLayouts(self.transfers, self.parts, every, self._least_costs)
        self._handing = [[self._handed(sender, receiver) for receiver in each] for sender in each]
        if self._tied is None:
            least_ns = least_tied_ns(self.transfers, self.chain, self.parts, [runs.built for runs in every])
            self._apart = np.full((len(self.parts), len(self.parts)), PS_PER_NS * least_ns)
        else:
            self._apart = PS_PER_NS * self._tied.apart_ns()

    def search(
        self,
        stages: int | None,
        *,
        easing: float | None = None,
        proven: bool = False,
        worth_ns: float = math.inf,
        ends_s: float = math.inf,
        on_bound: OnBound | None = None,
    ) -> FoundCuts:
        """The best cut as far as is known, of `stages` stages or of any number; none where none is faster than
        `worth_ns`. `ends_s`, `on_bound`: as in `shardplan.pipeline.cut_search.search`. Raises `GivenUpError` at the
        deadline.

        `easing`: as far as is guessed, a run costs as many times its least as any did that was seen, was no longer
        and had no more in flight; where it costs less than that by this share, no more than is known. `proven`: stages
        that were planned cost what is proven of them, and not what they were found to take.
        """
        if self._apart is None:
            self._compute_apart()
        costs = self._current_costs(self._proven if proven else self._known)
        sites = self._sites
        choices = Choices(
            costs=costs,
            sizes=[self.parts[site.part].size for site in sites],
            handing=[[self._handing[sender.part][receiver.part] for receiver in sites] for sender in sites],
            most_behind=[self._behind[site.part] for site in sites],
            devices=self.cluster.mesh.size,
            share=self.share,
            stages=stages,
            costs_behind={} if self.exact else self._costs_behind(costs, easing),
            apart=self._apart,
        )
        found = search(choices, 0.0 if self.exact else CUT_TOLERANCE, worth_ns * PS_PER_NS, ends_s, on_bound)
        if found.cuts is None:
            return found
        return replace(found, cuts=tuple(self._cut_at(cut, sites[cut.submesh]) for cut in found.cuts))

    def _cut_at(self, cut: Cut, site: StageSite) -> Cut:
        return replace(cut, submesh=site.part, tied=site.tied)

    @property
    def _sites(self) -> Sequence[StageSite]:
        return self._tied.sites if self._tied else [StageSite(part) for part in range(len(self.parts))]

    def _least(self, cut: Cut) -> Costs:
        return self._tied.of(cut) if self._tied else self.runs_on(cut.submesh).of(cut.first, cut.last)

    def apart_ns(self, part: int) -> float:
        """The least that tied weights cost when the first and the last stage run on this part."""
        graphs, parts = [self.runs_on(part).built], [self.parts[part]]
        names = tied_at_both_ends(self.chain, graphs)
        return sum(float(tied_ns(self.transfers, parts, graphs, name)[0][0].min()) for name in names)

    @property
    def share(self) -> float:
        """What a stage counts in a step that is not the slowest: 1 / (M V)."""
        return 1.0 / (self.options.microbatches * self.schedule.chunks)

    def step_ns(self, stages_ns: Sequence[float]) -> float:
        """A step of stages, or of all their model chunks, that take so long, without what they hand on."""
        count = len(stages_ns) // self.schedule.chunks
        by_stage = [sum(stages_ns[place::count]) for place in range(count)]
        return self.schedule.step(by_stage, self.options.microbatches)

    def in_flight(self, behind: int, stages: int) -> int:
        """Microbatches that a stage holds with so many of `stages` behind it."""
        return self.schedule.in_flight(behind, stages, self.options.microbatches) if self.options.training else 1

    def least_ns(self, cut: Cut) -> float:
        """The least that the run of a stage costs, whatever it is handed and however little waits."""
        return self._least_ps(cut) / PS_PER_NS

    def _least_ps(self, cut: Cut) -> float:
        return float(self.runs_on(cut.submesh).of(cut.first, cut.last).min())

    def bound_ns(self, cut: Cut, in_flight: int) -> float:
        """The least that a stage costs with so many microbatches in flight, between borders as the cut has them."""
        cost = float(self._least(cut)[cut.enters, cut.leaves])
        bounds = self._memory_bounds[cut.submesh].table(in_flight) if cut.submesh in self._memory_bounds else None
        return max(cost, 0.0 if bounds is None else float(bounds[cut.first, cut.last])) / PS_PER_NS

    def can_hold(self, cut: Cut) -> bool:
        """Whether a stage has room for its weights, as far as is known."""
        return bool(self._behind[cut.submesh][cut.first, cut.last] >= 0)

    def handed_ps(self, sender: int, receiver: int, border: int) -> Costs:
        """Exposed picoseconds per step of handing `border` over, shape (layouts of the sender, of the receiver)."""
        leaves, enters = self.runs_on(sender).layouts[border], self.runs_on(receiver).layouts[border]
        key = (sender, receiver, id(leaves), id(enters), self.sizes_of(border))
        if key not in self._handovers:
            self._handovers[key] = self._handover_ps(sender, receiver, border)
        return self._handovers[key]

    def _handover_ps(self, sender: int, receiver: int, border: int) -> Costs:
        value, gradient = self.sizes_of(border)
        micro, hidden = self.options.microbatches, self.transfers.hidden
        mine, theirs = self.parts[sender], self.parts[receiver]
        there = [
            exposed_ns(self.transfers.send_receive(mine, theirs, layout, value), hidden, micro)
            for layout in self.runs_on(receiver).layouts[border]
        ]
        back = [
            exposed_ns(self.transfers.send_receive(theirs, mine, layout, gradient), hidden, micro) if gradient else 0.0
            for layout in self.runs_on(sender).layouts[border]
        ]
        table: Costs = PS_PER_NS * (np.array(back)[:, None] + np.array(there)[None, :])
        return table

    def sizes_of(self, border: int) -> tuple[int, int]:
        """Bytes of the value at a border and of its gradient, in one microbatch."""
        return self._sizes[border]

    def kind_of(self, cut: Cut) -> tuple[object, ...]:
        """Equal for stages that run equal units between equal borders."""
        runs = self.runs_on(cut.submesh).first
        ends = [
            runs.layouts[border][number]
            for border, number in ((cut.first - 1, cut.enters), (cut.last - 1, cut.leaves))
            if 0 <= border < len(self.chain) - 1
        ]
        return (cut.submesh, runs.kinds(cut.first, cut.last), cut.first == 0, cut.tied, *ends)

    def layout_of(self, submesh: int, border: int, number: int) -> Layout:
        """The layout that a `Cut` means by a number."""
        return self.runs_on(submesh).layouts[border][number]

    def tied_layout(self, cut: Cut) -> Mapping[str, Layout]:
        """How a stage keeps the weight that the first and the last hold, if that is said."""
        return self._tied.layout(cut) if self._tied else {}

    def with_best_layouts(self, cuts: Sequence[Cut]) -> tuple[Cut, ...]:
        """The same stages with the layouts at their borders for which the sum of stages and transfers is least."""
        tables = [self.share * self.runs_on(cut.submesh).of(cut.first, cut.last) for cut in cuts]
        slowest = max(range(len(cuts)), key=lambda place: float(tables[place].min()))
        tables[slowest] = tables[slowest] / self.share
        least, pointers = np.zeros(1), []
        for place, (cut, table) in enumerate(zip(cuts, tables, strict=True)):
            if place:
                handed = least[:, None] + self.handed_ps(cuts[place - 1].submesh, cut.submesh, cut.first - 1)
                pointers.append(handed.argmin(axis=0))
                least = handed.min(axis=0)
            total = least[:, None] + table
            pointers.append(total.argmin(axis=0))
            least = total.min(axis=0)
        chosen = [0]
        for pointer in reversed(pointers):
            chosen.append(int(pointer[chosen[-1]]))
        ends = chosen[::-1]
        return tuple(replace(cut, enters=ends[2 * place], leaves=ends[2 * place + 1]) for place, cut in enumerate(cuts))

    def learn(self, cut: Cut, summary: Summary, close: float) -> bool:
        """Take note of what a stage costs that holds one microbatch; whether that is more than was known."""
        cost = summary.step_ns * PS_PER_NS
        least = float(self._least(cut)[cut.enters, cut.leaves])
        proven_ns = summary.step_ns if summary.outcome == "optimal" else summary.bound_ns
        self._proven[cut] = max(least, proven_ns * PS_PER_NS)
        known = self._known.get(cut, least)
        if cost > known * (1.0 + close):
            self._known[cut] = cost
            return True
        return False

    def see(self, cut: Cut, in_flight: int, cost_ns: float) -> None:
        """Take note of how much more a stage costs than the least, for memory above all."""
        least_ps = self._least_ps(cut)
        if not least_ps:  # operators on tensors without elements: nothing says how much of nothing more is
            return
        seen = _Seen(cut.submesh, least_ps, in_flight, cost_ns * PS_PER_NS / least_ps)
        if seen not in self._seen:
            self._seen.append(seen)

    def raise_bound(self, cut: Cut, in_flight: int) -> bool:
        """Bring memory into the bound of a run (`shardplan.pipeline.bounds.cost`); whether that made it costlier."""
        runs = self.runs_on(cut.submesh).first
        if cut.submesh not in self._memory_bounds:
            self._memory_bounds[cut.submesh] = CostBounds(runs, self.options.limit_bytes_on(self.cluster.device))
        return self._memory_bounds[cut.submesh].raise_for(
            cut.first, cut.last, in_flight, runs.least(cut.first, cut.last)
        )

    def sharpen(self, cut: Cut, in_flight: int, summary: Summary) -> bool:
        """Where a stage costs more than it is known to at least, bring the multipliers at which its own bound was found
        into the bounds (`shardplan.pipeline.bounds.weighted`); whether they were not there."""
        close = self.bound_ns(cut, in_flight) * (1.0 + STRAINED)
        if summary.step_ns <= close or not self.runs_on(cut.submesh).sharpen(summary.multipliers):
            return False
        if self._tied:
            self._tied.sharpen(cut.submesh)
        self._tables = {site: table for site, table in self._tables.items() if site.part != cut.submesh}
        return True

    def refuse(self, cut: Cut, behind: int, *, one_waits: bool, never: bool) -> None:
        """Excludes a stage that does not fit with so many stages behind it: the run, if it is proven to fit with no
        layouts at its ends (`never`); otherwise better cuts may be excluded with it."""
        if never:
            self._exclude(cut, behind)
        elif self.exact:
            self._known[cut] = self._proven[cut] = np.inf
            self.proven = self.proven and one_waits
        else:
            self._exclude(cut, behind)
            self.proven = False

    def _exclude(self, cut: Cut, behind: int) -> None:
        """Excludes this run, and every run that contains it, on this submesh with so many stages behind it."""
        longer = self._behind[cut.submesh][: cut.first + 1, cut.last :]
        np.minimum(longer, behind - 1, out=longer)

    def _least_costs(self, chain: Chain, part: Submesh) -> WeightedBounds:
        options = replace(self.options, constraints=(), memory_limit_bytes=UNLIMITED_BYTES)
        planner = Planner(chain.model, part.cluster, options, reasons=False)

        def costs_at(multipliers: Weights) -> RunCosts:
            return RunCosts(planner.built_at(multipliers, self.deadline)[0], chain, self.deadline)

        return WeightedBounds(costs_at)

    def _fitting(self, part: Submesh, count: int) -> Counts:
        """How many stages may follow a run of units on `part`, as far as its weights and their states tell."""
        held = np.array([weight_bytes(self.model, unit, self.options) for unit in self.chain.units])
        sums = np.concatenate([[0.0], held.cumsum()])
        fits = (sums[None, :] - sums[:, None]) / part.size <= self.options.limit_bytes_on(self.cluster.device)
        return np.where(fits, count, -1).astype(np.int64)

    def _costs_behind(self, costs: Sequence[Costs], easing: float | None) -> dict[tuple[int, int], Costs]:
        """By how many stages come behind and submesh: costs that know of memory, and where there is an `easing`, of
        what was seen. Equal ones are the same array."""
        raised: dict[tuple[int, int, int], Costs] = {}
        found = {}
        for submesh, cost in enumerate(costs):
            here = [] if easing is None else [one for one in self._seen if one.submesh == submesh]
            bounds = self._memory_bounds.get(submesh)
            for behind in range(min(len(self.chain), self.cluster.mesh.size)):
                waiting = self.in_flight(behind, behind + 1)
                table = bounds.table(waiting) if bounds else None
                known = [one for one in here if one.waiting <= waiting]
                key = (submesh, id(table), len(known))
                if key not in raised:
                    costlier = cost if table is None else np.maximum(cost, table[:, :, None, None])
                    if easing is not None and known:
                        costlier = np.maximum(costlier, _strained(cost, known, easing))
                    raised[key] = costlier
                if raised[key] is not cost:
                    found[behind, submesh] = raised[key]
        return found

    @property
    def _layouts(self) -> int:
        """How many layouts at borders the search tells apart."""
        every = map(self.runs_on, range(len(self.parts)))
        return max((len(row) for runs in every for row in runs.layouts), default=1) if self.exact else 1

    def _current_costs(self, known: Mapping[Cut, float]) -> list[Costs]:
        """The tables, and what planning has told."""
        sites = self._sites
        tables = [self._table(site) for site in sites]
        for cut, cost_ps in known.items():
            number = self._tied.number(cut) if self._tied else cut.submesh
            if tables[number] is self._tables[sites[number]]:
                tables[number] = tables[number].copy()
            tables[number][cut.first, cut.last, cut.enters, cut.leaves] = cost_ps
        return tables

    def _table(self, site: StageSite) -> Costs:
        if site not in self._tables:
            self._tables[site] = self._leasts(site)
        return self._tables[site]

    def _leasts(self, site: StageSite) -> Costs:
        """Costs of all runs that may be so; where the search is not exact, of the best layouts at both ends."""
        units, layouts = len(self.chain), self._layouts
        if not self.exact:
            return self.runs_on(site.part).leasts()[:, :, None, None]
        tied = self._tied is not None and self._tied.weight
        table = np.full((units + 1, units + 1, layouts, layouts), np.inf)
        for first, last in itertools.combinations(range(units + 1), 2):
            if not tied or site.allows(first, last, units):
                self.deadline.check()
                cost = self._least(Cut(first, last, site.part, 0, 0, site.tied))
                table[first, last, : cost.shape[0], : cost.shape[1]] = cost
        return table

    def _handed(self, sender: int, receiver: int) -> Costs:
        """Exposed transfers, shape (unit, layouts out, layouts in); where the search is not exact, of the cheapest."""
        units, layouts = len(self.chain), self._layouts
        table = np.full((units + 1, layouts, layouts), np.inf)
        table[0], table[units] = 0.0, 0.0
        for border in range(units - 1):
            cost = self.handed_ps(sender, receiver, border)
            if self.exact:
                table[border + 1, : cost.shape[0], : cost.shape[1]] = cost
            else:
                table[border + 1] = cost.min()
        return table


def _strained(cost: Costs, seen: Sequence[_Seen], easing: float) -> Costs:
    """Costs of all runs if each is strained as the worst that was seen of those that cost no more at least; a run that
    costs less than one that was seen is strained by so much less, and not at all once it costs the share `easing` less:
    memory that is too short for some layers has room for a few fewer."""
    strain = np.ones_like(cost)
    for one in seen:
        least = np.where(np.isfinite(cost), cost, one.least_ps)
        eased = np.clip((1.0 - least / one.least_ps) / easing, 0.0, 1.0)
        np.maximum(strain, one.strain - (one.strain - 1.0) * eased, out=strain)
    return cost * strain
