"""The choices of an operator: one way to split it per mesh axis, with the layouts it then reads and makes.

Per mesh axis an operator may
- split a factor (an `Option` of its rule);
- do nothing, everything replicated: label `-`;
- do nothing with partial gradients, everything `R/P`: label `~` (training only);
- pass partial sums of operands it is linear in: these are `P`, the others `R/P`, results `P`: label `+0`, `+0,1` ...
The product over the axes, filtered by divisibility, is the strategy set.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardplan.cost.moves import Index, Seconds
from shardplan.graph.tensors import TensorSpace
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, Placement, R
from shardplan.rules.types import InnerCollective, Rule


@dataclass(frozen=True, slots=True)
class AxisChoice:
    """What one mesh axis does: its label, the factor it splits (`""`: none), and a placement code per operand and
    result (`None` for those that are not planned). `reductions`: how partial values of each result combine."""

    label: str
    factor: str
    unit: int
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    reductions: tuple[str, ...]
    works: bool
    inner: tuple[InnerCollective, ...] = ()


class StrategySpace:
    """All legal strategies of operators with one rule over tensors of the same kinds.

    `choices`: index into `axis_choices` per strategy and mesh axis, shape (strategies, axes). `reads[i]`, `makes[i]`:
    (value state, gradient state) of operand / result i per strategy, or `None` if it is not planned. `work`: the number
    of pieces into which the work is cut. `axis_sizes`: sizes of the mesh axes.
    """

    def __init__(
        self,
        rule: Rule,
        operands: Sequence[TensorSpace | None],
        results: Sequence[TensorSpace | None],
        mesh: Mesh,
    ) -> None:
        self._layouts: dict[tuple[str, int, int], Layout | None] = {}
        self.rule = rule
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.axis_choices = axis_choices(rule, operands, results)
        self.axis_sizes = np.array(mesh.shape, dtype=np.int64)
        choices = self._combinations(mesh)
        choices = choices[self._divisible(choices)]
        for side, spaces in (("operands", self.operands), ("results", self.results)):
            for position, space in enumerate(spaces):
                if space is not None:
                    choices = choices[self._legal(space, self._codes(choices, side, position))]
        self.choices: Index = choices
        self.reads = tuple(self._states(space, "operands", i) for i, space in enumerate(self.operands))
        self.makes = tuple(self._states(space, "results", i) for i, space in enumerate(self.results))
        works = np.array([choice.works for choice in self.axis_choices])
        self.work: Index = np.where(works[choices], self.axis_sizes, 1).prod(axis=1)

    def __len__(self) -> int:
        return len(self.choices)

    def keep(self, chosen: Index) -> None:
        """Drops all strategies except `chosen` (ascending numbers)."""
        self._layouts.clear()
        self.choices = self.choices[chosen]
        self.work = self.work[chosen]
        self.reads = tuple(pair and (pair[0][chosen], pair[1][chosen]) for pair in self.reads)
        self.makes = tuple(pair and (pair[0][chosen], pair[1][chosen]) for pair in self.makes)

    def splits_of(self, factors: Sequence[str]) -> Index:
        """The number of pieces into which each strategy cuts the given factors together."""
        among = np.array([choice.factor in factors and choice.works for choice in self.axis_choices])
        pieces: Index = np.where(among[self.choices], self.axis_sizes, 1).prod(axis=1)
        return pieces

    def works_on(self, axis: int) -> NDArray[np.bool_]:
        """Which strategies split their work on a mesh axis."""
        works = np.array([choice.works for choice in self.axis_choices])
        return np.asarray(works[self.choices[:, axis]])

    def exclusive_codes(self, position: int) -> NDArray[np.bool_]:
        """Mesh axes on which result `position` is partial but no sum (a maximum, say): shape (strategies, axes)."""
        flags = np.array([choice.reductions[position] != "sum" for choice in self.axis_choices])
        return flags[self.choices]

    def layout_codes(self, side: str, position: int) -> Index:
        """Placement codes of an operand or result, shape (strategies, axes)."""
        return self._codes(self.choices, side, position)

    def layout(self, side: Literal["operands", "results"], position: int, strategy: int) -> Layout | None:
        """The dual-pair layout in which a strategy reads an operand or makes a result; `None` if it is not planned."""
        key = (side, position, strategy)
        if key not in self._layouts:
            self._layouts[key] = self._layout(side, position, strategy)
        return self._layouts[key]

    def _layout(self, side: Literal["operands", "results"], position: int, strategy: int) -> Layout | None:
        space = getattr(self, side)[position]
        if space is None:
            return None
        chosen = [self.axis_choices[int(number)] for number in self.choices[strategy]]
        placements = space.placements([getattr(choice, side)[position] for choice in chosen])
        if side == "results":
            reductions = [choice.reductions[position] for choice in chosen]
            placements = [p if r == "sum" else P(r) for p, r in zip(placements, reductions, strict=True)]
        return Layout.of(*placements)

    def labels(self, strategy: int) -> tuple[str, ...]:
        return tuple(self.axis_choices[int(choice)].label for choice in self.choices[strategy])

    def _combinations(self, mesh: Mesh) -> Index:
        nothing = [number for number, choice in enumerate(self.axis_choices) if choice.label == "-"]
        everything = list(range(len(self.axis_choices)))
        per_axis = [nothing if size == 1 else everything for size in mesh.shape]
        planned = [("operands", position, space) for position, space in enumerate(self.operands)]
        planned += [("results", position, space) for position, space in enumerate(self.results)]
        nearby = [(side, position, space) for side, position, space in planned if space and space.nearby is not None]
        if not nearby:
            return np.array(list(itertools.product(*per_axis)), dtype=np.int64).reshape(-1, len(mesh))
        rows: Index = np.zeros((1, 0), dtype=np.int64)
        for ways in per_axis:
            longer = np.repeat(rows, len(ways), axis=0)
            rows = np.concatenate([longer, np.tile(ways, len(rows))[:, None]], axis=1)
            for side, position, space in nearby:
                rows = rows[space.offers(self._codes(rows, side, position))]
        return rows

    def _divisible(self, choices: Index) -> NDArray[np.bool_]:
        """All axes that split one factor together must divide the unit of each of their options."""
        divisible = np.ones(len(choices), dtype=np.bool_)
        for factor in sorted({choice.factor for choice in self.axis_choices if choice.factor}):
            number = np.array([choice.factor == factor for choice in self.axis_choices])
            pieces = np.where(number[choices], self.axis_sizes, 1).prod(axis=1)
            unit = np.array([choice.unit if choice.factor == factor else 0 for choice in self.axis_choices])
            divisible &= (unit[choices] % pieces[:, None] == 0).all(axis=1)
        return divisible

    def _codes(self, choices: Index, side: str, position: int) -> Index:
        per_choice = [getattr(choice, side)[position] for choice in self.axis_choices]
        return np.array(per_choice, dtype=np.int64)[choices]

    @staticmethod
    def _legal(space: TensorSpace, codes: Index) -> NDArray[np.bool_]:
        value, gradient = space.forward_state(codes), space.gradient_state(codes)
        return (value >= 0) & (gradient >= 0) & space.legal[value] & space.legal[gradient]

    def _states(self, space: TensorSpace | None, side: str, position: int) -> tuple[Index, Index] | None:
        if space is None:
            return None
        codes = self._codes(self.choices, side, position)
        return space.forward_state(codes), space.gradient_state(codes)


def axis_choices(
    rule: Rule, operands: Sequence[TensorSpace | None], results: Sequence[TensorSpace | None]
) -> tuple[AxisChoice, ...]:
    """What one mesh axis may do to an operator whose planned operands and results are these; equal ones only once."""
    planned = [space for space in (*operands, *results) if space is not None]
    wanted = [_nothing("-", R, operands, results)]
    if any(space.kind.has_gradient for space in planned):
        wanted.append(_nothing("~", RP, operands, results))
    wanted += [
        _choice(
            option.label, option.factor, option.size, option.operands, option.results, operands, results,
            works=option.works, inner=option.inner,
        )
        for option in rule.options
    ]  # fmt: skip
    for group in rule.linear:
        if any(position < len(operands) and operands[position] is not None for position in group):
            passed = [P() if position in group else RP for position in range(len(operands))]
            label = "+" + ",".join(map(str, group))
            wanted.append(_choice(label, "", 1, passed, [P()] * len(results), operands, results, works=False))
    distinct: dict[tuple[object, ...], AxisChoice] = {}
    for choice in wanted:
        if choice is not None:
            distinct.setdefault((choice.operands, choice.results, choice.factor), choice)
    return tuple(distinct.values())


def _nothing(
    label: str, placement: Placement, operands: Sequence[TensorSpace | None], results: Sequence[TensorSpace | None]
) -> AxisChoice | None:
    given = [placement] * len(operands), [placement] * len(results)
    return _choice(label, "", 1, *given, operands, results, works=False)


def _choice(
    label: str,
    factor: str,
    unit: int,
    operand_placements: Sequence[Placement],
    result_placements: Sequence[Placement],
    operands: Sequence[TensorSpace | None],
    results: Sequence[TensorSpace | None],
    *,
    works: bool,
    inner: tuple[InnerCollective, ...] = (),
) -> AxisChoice | None:
    """The choice in codes; `None` when some tensor cannot be placed so."""
    codes: list[tuple[int | None, ...]] = []
    for placements, spaces in ((operand_placements, operands), (result_placements, results)):
        side: list[int | None] = []
        for placement, space in zip(placements, spaces, strict=True):
            code = None if space is None else space.code(placement)
            if space is not None and code is None:
                return None
            side.append(code)
        codes.append(tuple(side))
    reductions = tuple(placement.reduction for placement in result_placements)
    return AxisChoice(label, factor, unit, codes[0], codes[1], reductions, works, inner)


def best_of_equals(space: StrategySpace, one: Seconds, other: Seconds) -> Index:
    """Among strategies that read and make the same layouts, the numbers of those that no other one of them beats in
    one part of their seconds without losing in the other, ascending."""
    columns = [state for pair in (*space.reads, *space.makes) if pair is not None for state in pair]
    columns += [code for i, made in enumerate(space.makes) if made is not None for code in space.exclusive_codes(i).T]
    least: dict[tuple[int, ...], float] = {}
    kept = []
    for number in np.lexsort((np.arange(len(one)), other, one)).tolist():
        key = tuple(int(column[number]) for column in columns)
        if float(other[number]) < least.get(key, np.inf):
            least[key] = float(other[number])
            kept.append(number)
    return np.array(sorted(kept), dtype=np.int64)
