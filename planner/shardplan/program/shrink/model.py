"""A large model scaled down under the same plan: fewer layers, smaller dims, every operator split as before.

What holds for it holds for the model as far as structure goes: the same operators, the same strategies, the same moves,
only shorter dims. Strategies are transferred by operator and option; segmented shards get segments of the new sizes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from shardplan.errors import ShardplanError, error
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import check, legal_for
from shardplan.layout.lower import by_bytes, lower
from shardplan.layout.placement import Placement
from shardplan.model.digest import structure_digest
from shardplan.model.shallow import thin_model, thinned
from shardplan.model.types import Model, Operator
from shardplan.plan.types import CollectiveStep, Move, OperatorDecision, Plan, TensorDecision
from shardplan.program.lower import check_fresh, lower_program
from shardplan.program.machine.run import MOST_BYTES, needed_bytes
from shardplan.program.retrace import retrace
from shardplan.program.shrink.resize import resized
from shardplan.program.shrink.sizes import LEAST, smaller_sizes
from shardplan.rules import model_rules
from shardplan.rules.types import Option, Rule

_T = TypeVar("_T")
QUICK_BYTES = 256 << 20
"""A run that needs more memory than this takes long, and may have shorter dims."""
COPIES = 3
"""Of every repeated block so many copies stay: the first two and the last."""


def shrink_model(model: Model, plan: Plan, rules: Sequence[Rule] | None = None) -> tuple[Model, Plan]:
    """`shardplan.program.shrink.shrink.shrink` for a plan without stages."""
    check_fresh(model, plan)
    rules = model_rules(model) if rules is None else rules
    kept, renamed = thinned(model, COPIES)
    thin = thin_model(model, kept, renamed)
    thin_rules = [rules[index] for index in kept]

    def scaled(room: int, least: int) -> tuple[Model, Plan, tuple[Rule, ...]]:
        small = resized(thin, thin_rules, smaller_sizes(thin, plan, thin_rules, room, least))
        small_rules = scaled_rules(small)
        return small, ScaledPlan(plan, thin, thin_rules, small, small_rules).plan(), small_rules

    found, planned, _ = tried(scaled, lambda made: needed_bytes(lower_program(*made)))
    return found, planned


def tried(scaled: Callable[[int, int], _T], needed: Callable[[_T], int]) -> _T:
    """The first of several attempts that is small enough, or the last that succeeds. `scaled(room, least)`: `room`
    elements of a dim on a device, two so that their order shows, or one; `least` of a dim as a whole."""
    made = scaled(2, LEAST)
    for room, least, tolerated_bytes in ((2, 2, QUICK_BYTES), (1, 2, MOST_BYTES)):
        if needed(made) > tolerated_bytes:
            with contextlib.suppress(ShardplanError):
                made = scaled(room, least)
    return made


def scaled_rules(scaled: Model) -> tuple[Rule, ...]:
    """The rules of a scaled-down model. Raises `ShardplanError` (`cannot-shrink`) where its sizes do not agree."""
    try:
        return model_rules(scaled)
    except ShardplanError as problem:
        raise refusal(str(problem)) from None


def refusal(detail: str) -> ShardplanError:
    """`cannot-shrink`, and why."""
    hint = "verify a smaller model of the same kind, or this one whole"
    return ShardplanError(
        error("cannot-shrink", "no scaled-down form of the model has the same strategies", detail=detail, hint=hint)
    )


def _form(option: Option) -> tuple[tuple[str, int, bool], ...]:
    """What an option does to every operand and result: kind of placement, dim, whether by segments."""
    return tuple((p.kind, p.dim, bool(p.segments)) for p in option.operands + option.results)


class ScaledPlan:
    """The plan for a scaled-down model: `old` is the thinned model at full size, `new` the scaled-down one."""

    def __init__(
        self, plan: Plan, old: Model, old_rules: Sequence[Rule], new: Model, new_rules: Sequence[Rule]
    ) -> None:
        self.given, self.old, self.new, self.mesh = plan, old, new, plan.mesh
        self.options = [self._matched(one, other) for one, other in zip(old_rules, new_rules, strict=True)]
        self.placements = self._placements()
        self.tensors = {d.name: self._tensor(d) for d in plan.tensors if d.name in new.tensors}
        self.collectives: dict[tuple[str, str, Layout, Layout], tuple[Collective, ...]] = {}
        for move in plan.moves:
            if move.phase == "forward" and not move.regather:
                listed = tuple(step.collective for step in move.steps)
                self.collectives.setdefault((move.tensor, move.reader, move.source, move.target), listed)

    @staticmethod
    def _matched(old: Rule, new: Rule) -> dict[str, tuple[Option, Option]]:
        """Label of every option -> the option, and the one of the scaled-down rule that shards the same dims alike.

        Names do not tell: a reshape numbers the factors of its shapes. Where several shard the same dims (the factors
        of one compound dim) they correspond in order, if there are equally many."""
        groups: tuple[dict[object, list[Option]], dict[object, list[Option]]] = ({}, {})
        for rule, found in zip((old, new), groups, strict=True):
            for option in rule.options:
                found.setdefault(_form(option), []).append(option)
        return {
            one.label: (one, other)
            for form, options in groups[0].items()
            if len(options) == len(groups[1].get(form, ()))
            for one, other in zip(options, groups[1][form], strict=True)
        }

    def _placements(self) -> dict[tuple[str, Placement], Placement]:
        """(tensor, shard of it) -> the same shard of the scaled-down model's tensor."""
        found: dict[tuple[str, Placement], Placement] = {}
        for operator, options in zip(self.old.operators, self.options, strict=True):
            for one, other in options.values():
                for names, before, after in (
                    (operator.inputs, one.operands, other.operands),
                    (operator.outputs, one.results, other.results),
                ):
                    for name, p, q in zip(names, before, after, strict=False):  # `new` may have more operands
                        if p.is_shard:
                            found.setdefault((name, p), q)
        return found

    def _layout(self, name: str, layout: Layout) -> Layout:
        placements = []
        for placement in layout.placements:
            if placement.segments and (name, placement) not in self.placements:
                raise refusal(f"no operator beside '{name}' splits it as {placement}")
            placements.append(self.placements[name, placement] if placement.segments else placement)
        made = Layout.of(*placements, order=layout.order)
        reasons = check(made, self.mesh, self.new.tensors[name].shape)
        if reasons:
            raise refusal(f"'{name}': {'; '.join(reasons)}")
        return made

    def plan(self) -> Plan:
        """The plan of the scaled-down model; its prices are those of the model's plan and mean nothing."""
        given = {decision.name: decision for decision in self.given.operators}
        operators = []
        moves: list[Move] = []
        served: set[str] = set()
        for old, new, options in zip(self.old.operators, self.new.operators, self.options, strict=True):
            decision = self._operator(given[old.name], old, new, options)
            operators.append(decision)
            moves += self._reads(given[old.name], old, decision, served)
            moves += self._stores(given[old.name], decision)
        model = {**self.given.model, "digest": structure_digest(self.new), "microbatches": 1}
        tensors = tuple(self.tensors.values())
        decided = replace(self.given, model=model, tensors=tensors, operators=tuple(operators), blocks=())
        return replace(decided, moves=tuple(moves))

    def _tensor(self, decision: TensorDecision) -> TensorDecision:
        layout, served = (self._layout(decision.name, layout) for layout in (decision.layout, decision.served))
        shape = self.new.tensors[decision.name].shape
        return replace(decision, shape=shape, layout=layout, served=served)

    def _operator(
        self, given: OperatorDecision, old: Operator, new: Operator, options: Mapping[str, tuple[Option, Option]]
    ) -> OperatorDecision:
        def layouts(names: Sequence[str], wanted: Sequence[Layout | None]) -> tuple[Layout | None, ...]:
            both = zip(names, wanted, strict=True)
            return tuple(None if layout is None else self._layout(name, layout) for name, layout in both)

        for label in given.split:
            if label not in options and label not in {"-", "~"} and not label.startswith("+"):
                raise refusal(f"operator '{old.name}' ({old.kind}) cannot be split by {label} any more")
        reads = layouts(old.inputs, given.reads)
        return replace(
            given,
            split=tuple(options[label][1].label if label in options else label for label in given.split),
            reads=(*reads, *[None] * (len(new.inputs) - len(reads))),
            makes=layouts(old.outputs, given.makes),
            inputs=new.inputs,
            outputs=new.outputs,
        )

    def _reads(
        self, given: OperatorDecision, old: Operator, decision: OperatorDecision, served: set[str]
    ) -> Iterator[Move]:
        before = {d.name: d for d in self.given.tensors}
        for name, was, wanted, read in zip(old.inputs, given.inputs, given.reads, decision.reads, strict=False):
            if wanted is None or read is None:
                continue
            tensor = self.tensors[name]
            if name not in served:
                served.add(name)
                key = (name, "", before[name].layout.forward, before[name].served.forward)
                yield from self._move(name, tensor.layout, tensor.served, "", key)
            key = (was, decision.name, before[was].served.forward, wanted.forward)
            yield from self._move(name, tensor.served, read, decision.name, key)

    def _stores(self, given: OperatorDecision, decision: OperatorDecision) -> Iterator[Move]:
        before = {d.name: d for d in self.given.tensors}
        for name, made, wanted in zip(decision.outputs, decision.makes, given.makes, strict=True):
            if made is not None and wanted is not None:
                key = (name, "", wanted.forward, before[name].layout.forward)
                yield from self._move(name, made, self.tensors[name].layout, "", key)

    def _move(
        self, name: str, source: Layout, target: Layout, reader: str, key: tuple[str, str, Layout, Layout]
    ) -> Iterator[Move]:
        """The move in the scaled-down model: by the collectives that the plan lists, or the fewest bytes without."""
        start, goal = source.forward, target.forward
        if start == goal:
            return
        tensor = self.new.tensors[name]
        listed = self.collectives.get(key)
        if listed is None or retrace(self.mesh, tensor.shape, start, goal, listed) is None:
            legal = legal_for(self.mesh, tensor.shape)
            listed = tuple(s.collective for s in lower(self.mesh, start, goal, by_bytes(self.mesh), legal=legal))
        steps = [CollectiveStep(c, math.ceil(c.share * tensor.size_bytes), 0) for c in listed]
        yield Move(name, start, goal, reader, "forward", tuple(steps))
