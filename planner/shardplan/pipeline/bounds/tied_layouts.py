"""Layouts of tied weights that the first and the last stage hold, as options of the search over cuts.

The less a tied weight is sharded in either stage, the more it costs to keep both copies equal
(`pipeline.tied_weights`), and the cost of a stage depends on the layout there. So the layout is chosen with the cut:
each submesh is one option for stages in between, and for the first and the last stage one option per layout of the
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardplan.graph.build import CostGraph
from shardplan.layout.layout import Layout
from shardplan.pipeline.bounds.weighted import WeightedBounds
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, chain_part
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.submeshes import Submesh
from shardplan.pipeline.tied_weights import tied_at_both_ends, tied_ns
from shardplan.solve.problem import Costs


@dataclass(frozen=True, slots=True)
class StageSite:
    """A submesh (`part`) as an option of a stage: the first one (`ends` = 0), the last (1), or any between and the only
    one (-1); at the ends with the tied weight in layout number `tied`."""

    part: int
    ends: int = -1
    tied: int = -1

    def allows(self, first: int, last: int, units: int) -> bool:
        """Whether a stage of these units may be at this site."""
        begins, closes = first == 0, last == units
        return begins == closes if self.ends < 0 else (begins, closes) == (self.ends == 0, self.ends == 1)


@dataclass
class TiedLayouts:
    """The sites of stages on the submeshes `parts`, on which the whole model costs `runs`. `least_costs`: bounds of a
    chain on one submesh. `weight`: the largest that just the first and the last unit hold, "" where none is."""

    transfers: Transfers
    parts: Sequence[Submesh]
    runs: Sequence[WeightedBounds]
    least_costs: Callable[[Chain, Submesh], WeightedBounds]
    weight: str = field(init=False)
    sites: tuple[StageSite, ...] = field(init=False)
    _others: tuple[str, ...] = field(init=False)
    _sides: dict[tuple[int, bool], WeightedBounds] = field(init=False, default_factory=dict)
    _tied: dict[tuple[int, bool, int], WeightedBounds] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        held = tied_at_both_ends(self._chain, self._graphs)
        alone = [name for name, units in held.items() if len(units) == 2]
        tensor = self._chain.model.tensor
        self.weight = max(alone, key=lambda name: (tensor(name).size_bytes, name), default="")
        self._others = tuple(name for name in held if name != self.weight)
        between = [StageSite(part) for part in range(len(self.parts))]
        at_ends = [
            StageSite(part, end, choice)
            for end in (0, 1)
            for part, built in enumerate(self._graphs)
            for choice in range(len(built.kept[self.weight]) if self.weight else 0)
        ]
        self.sites = (*between, *at_ends)

    @property
    def _chain(self) -> Chain:
        return self.runs[0].first.chain

    @property
    def _graphs(self) -> list[CostGraph]:
        return [runs.built for runs in self.runs]

    def of(self, cut: Cut) -> Costs:
        """The least costs of the run of a stage, for all layouts at its borders, as `WeightedBounds.of`."""
        runs, behind = self.runs[cut.submesh], cut.first > 0
        least = runs.of(cut.first, cut.last)
        if cut.tied < 0 or (cut.first == 1 if behind else cut.last == len(self._chain) - 1):
            return least
        holding = self._holding(cut.submesh, behind, cut.tied)
        if behind:
            costs = holding.between(cut.first - 1, cut.last - 1, runs.layouts[cut.first - 1], None)
        else:
            costs = holding.between(cut.first, cut.last, None, runs.layouts[cut.last - 1])
        return np.maximum(least, costs)

    def sharpen(self, part: int) -> None:
        """Includes all multipliers of the costs on a part, the next time that they are needed."""
        for behind in (False, True):
            self._sides.pop((part, behind), None)
        self._tied = {key: runs for key, runs in self._tied.items() if key[0] != part}

    def _holding(self, part: int, behind: bool, tied: int) -> WeightedBounds:
        """Costs of runs from the first unit, or up to the last one (`behind`), that hold the weight in this layout: in
        a model without the unit at the other end, where it is the weight of one unit."""
        if (part, behind) not in self._sides:
            chain = chain_part(self._chain, 1 if behind else 0, len(self._chain) - (0 if behind else 1))
            self._sides[part, behind] = self.least_costs(chain, self.parts[part])
            for multipliers in self.runs[part].multipliers[1:]:
                self._sides[part, behind].sharpen(multipliers)
        if (part, behind, tied) not in self._tied:
            layout = self.runs[part].built.kept[self.weight].layout(tied)
            self._tied[part, behind, tied] = self._sides[part, behind].kept_so({self.weight: layout})
        return self._tied[part, behind, tied]

    def layout(self, cut: Cut) -> dict[str, Layout]:
        """How a stage keeps the weight, if that is said."""
        if cut.tied < 0:
            return {}
        return {self.weight: self.runs[cut.submesh].built.kept[self.weight].layout(cut.tied)}

    def number(self, cut: Cut) -> int:
        """The place in `sites` of what a stage is."""
        return (
            cut.submesh if cut.tied < 0 else self.sites.index(StageSite(cut.submesh, 1 if cut.first else 0, cut.tied))
        )

    def apart_ns(self) -> Costs:
        """What tied weights cost by the sites of the first and of the last stage; of all but `weight` the least."""
        parts = range(len(self.parts))
        least = np.zeros((len(parts), len(parts)))
        for name in self._others:
            tables = tied_ns(self.transfers, self.parts, self._graphs, name)
            least += np.array([[tables[a][b].min() for b in parts] for a in parts])
        tables = tied_ns(self.transfers, self.parts, self._graphs, self.weight) if self.weight else []
        total = np.zeros((len(self.sites), len(self.sites)))
        for one, first in enumerate(self.sites):
            for other, last in enumerate(self.sites):
                if first.ends == 0 and last.ends == 1:
                    kept = float(tables[first.part][last.part][first.tied, last.tied])
                    total[one, other] = least[first.part, last.part] + kept
                elif not self.weight:
                    total[one, other] = least[first.part, last.part]
        return total
