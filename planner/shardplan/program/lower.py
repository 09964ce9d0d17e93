"""Model + plan -> the program of one device: local operators between the moves of the plan, in execution order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.legal import check
from shardplan.layout.lower import Step
from shardplan.layout.placement import Placement, S
from shardplan.layout.text import to_text
from shardplan.model.digest import structure_digest
from shardplan.model.types import Model, Operator
from shardplan.plan.agreement import inconsistent, require_agreement
from shardplan.plan.types import Move, OperatorDecision, Plan, TensorDecision
from shardplan.program.localise import localise
from shardplan.program.retrace import retrace
from shardplan.program.types import Compute, Instruction, Program, Repeat, Site, Transfer, Value, placements_of
from shardplan.rules import model_rules
from shardplan.rules.types import Option, Rule

Side = Literal["operands", "results"]
Layouts = tuple[Layout | None, ...]


def lower_program(model: Model, plan: Plan, rules: Sequence[Rule] | None = None) -> Program:
    """The forward program of `plan` for `model`; `rules`: those of the operators, if known.

    Raises `ShardplanError`: `stale-plan` for a plan of another model, `cannot-execute` for an operator that cannot be
    run on shards as the plan splits it.
    """
    check_fresh(model, plan)
    return _Lowering(model, plan, model_rules(model) if rules is None else rules).program()


class _Lowering:
    """The state of one lowering: what has been loaded and served so far."""

    def __init__(self, model: Model, plan: Plan, rules: Sequence[Rule]) -> None:
        self.model, self.plan, self.rules, self.mesh = model, plan, rules, plan.mesh
        self.decisions = {decision.name: decision for decision in plan.tensors}
        self.moves: dict[tuple[str, str, Layout, Layout], list[Move]] = defaultdict(list)
        for move in plan.moves:
            if move.phase == "forward" and not move.regather:
                self.moves[move.tensor, move.reader, move.source, move.target].append(move)
        self.loads: dict[Value, None] = {}
        self.served: set[str] = set()
        self.levels: list[list[Instruction]] = [[]]
        self.afterwards: list[list[Instruction]] = [[]]
        self.loops: tuple[str, ...] = ()
        self.home = {name: len(operator.makes_in) for operator in model.operators for name in operator.outputs}
        self.retraced: dict[tuple[str, Layout, Layout, tuple[Collective, ...]], tuple[Step, ...] | None] = {}
        self.beside: dict[str, list[int]] = defaultdict(list)
        for index, operator in enumerate(model.operators):
            for name in {*operator.inputs, *operator.outputs}:
                self.beside[name].append(index)

    def program(self) -> Program:
        makers = {name for operator in self.model.operators for name in operator.outputs}
        for decision in self.plan.tensors:
            if decision.name not in makers:
                self.loads[self._kept(decision)] = None
        decisions = {decision.name: decision for decision in self.plan.operators}
        for operator, rule in zip(self.model.operators, self.rules, strict=True):
            if operator.name not in decisions:
                hint = did_you_mean(operator.name, decisions)
                raise ShardplanError(error("stale-plan", f"the plan has no operator '{operator.name}'", hint=hint))
            self._operator(operator, rule, decisions[operator.name])
        self._go_to(())
        return Program(self.model, self.mesh, tuple(self.loads), tuple(self.levels[0]))

    def _go_to(self, loops: tuple[str, ...]) -> None:
        """Closes the loops that are left and opens those that are entered. `levels[d]`: the instructions inside of d
        loops so far; `afterwards[d]`: those that follow when the d-th is closed."""
        while loops[: len(self.loops)] != self.loops:
            name, inside, after = self.loops[-1], self.levels.pop(), self.afterwards.pop()
            self.levels[-1] += [Repeat(name, self.model.trips[name], tuple(inside)), *after]
            self.loops = self.loops[:-1]
        for name in loops[len(self.loops) :]:
            self.loops = (*self.loops, name)
            self.levels.append([])
            self.afterwards.append([])

    def _operator(self, operator: Operator, rule: Rule, decision: OperatorDecision) -> None:
        self._go_to(operator.loops)
        site = self._site(operator, rule, decision)
        reads = tuple(self._read(site, position) for position in range(len(operator.inputs)))
        makes = tuple(
            None if layout is None else Value(name, "made", layout)
            for name, layout in zip(operator.outputs, site.result_layouts, strict=True)
        )
        self.levels[-1].append(Compute(site, localise(site), reads, makes))
        goes_out = len(operator.makes_in) < len(operator.loops)
        for made in makes:
            if made is not None:
                kept = self._kept(self.decisions[made.tensor])
                self._transfer(made, kept, "", self.afterwards[-1] if goes_out else self.levels[-1])

    def _read(self, site: Site, position: int) -> Value | None:
        name, layout = site.operator.inputs[position], site.operand_layouts[position]
        if not name or layout is None:
            return None
        if name not in self.decisions:
            loaded = Value(name, "loaded", layout)
            self.loads[loaded] = None
            return loaded
        decision = self.decisions[name]
        kept = self._kept(decision)
        served = Value(name, "served", decision.served.forward)
        if name not in self.served:
            self.served.add(name)
            self._transfer(kept, served, "", self.levels[self.home.get(name, 0)])
        read = Value(name, "read", layout, f"{site.operator.name}:{position}")
        self._transfer(served, read, site.operator.name, self.levels[len(site.operator.reads_in)])
        return read

    @staticmethod
    def _kept(decision: TensorDecision) -> Value:
        return Value(decision.name, "kept", decision.layout.forward)

    def _transfer(self, source: Value, target: Value, reader: str, into: list[Instruction]) -> None:
        """The move of the plan between two forms of a tensor; none is needed where their layouts are the same."""
        tensor = self.model.tensors[source.tensor]
        move = None
        if source.layout != target.layout:
            moves = self.moves[source.tensor, reader, source.layout, target.layout]
            move = moves.pop(0) if moves else None
        steps, problem = self._steps(source, target, move)
        payloads = tuple(step.payload_bytes for step in move.steps) if move else ()
        into.append(Transfer(source, target, steps, payloads, tensor.size_bytes, problem))

    def _steps(self, source: Value, target: Value, move: Move | None) -> tuple[tuple[Step, ...], str]:
        """The collectives with the layouts between them, and the fault if they do not match."""
        if source.layout == target.layout:
            return (), ""
        ways = f"from {to_text(source.layout, self.mesh)} to {to_text(target.layout, self.mesh)}"
        if move is None:
            return (), f"the plan has no move {ways}"
        collectives = tuple(step.collective for step in move.steps)
        key = (source.tensor, source.layout, target.layout, collectives)
        if key not in self.retraced:
            shape = self.model.tensors[source.tensor].shape
            self.retraced[key] = retrace(
                self.mesh, shape, source.layout, target.layout, collectives, self._shards(source.tensor)
            )
        steps = self.retraced[key]
        if steps is None:
            listed = ", ".join(collective.kind for collective in collectives) or "nothing"
            return (), f"the collectives of the plan ({listed}) do not lead {ways}"
        return steps, ""

    def _shards(self, tensor: str) -> tuple[Placement, ...]:
        """The shards in which some operator beside the tensor can make or read it, and those of its dims."""
        found = {S(dim): None for dim in range(len(self.model.tensors[tensor].shape))}
        for index in self.beside[tensor]:
            operator = self.model.operators[index]
            for option in self.rules[index].options:
                for names, placements in ((operator.inputs, option.operands), (operator.outputs, option.results)):
                    both = zip(names, placements, strict=True)
                    found.update(dict.fromkeys(p for name, p in both if name == tensor and p.is_shard))
        return tuple(found)

    def _site(self, operator: Operator, rule: Rule, decision: OperatorDecision) -> Site:
        """The operator with the layouts around it. Raises `ShardplanError` where plan and rule disagree."""
        chosen = [_choice(operator, rule, label) for label in decision.split]
        tensors, constants = self.model.tensors, self.model.constants
        return Site(
            operator,
            rule,
            self.mesh,
            options=tuple(choice if isinstance(choice, Option) else None for choice in chosen),
            operand_layouts=self._layouts(operator, chosen, "operands", operator.inputs, decision.reads),
            result_layouts=self._layouts(operator, chosen, "results", operator.outputs, decision.makes),
            operand_shapes=tuple(tensors[name].shape if name else None for name in operator.inputs),
            result_shapes=tuple(tensors[name].shape if name else None for name in operator.outputs),
            known={i: constants[name] for i, name in enumerate(operator.inputs) if name in constants},
            dtypes=dtypes_around(operator, self.model),
        )

    def _layouts(
        self, operator: Operator, chosen: Sequence[Option | str], side: Side, names: Sequence[str], planned: Layouts
    ) -> Layouts:
        """Of all operands or results; plan and rule must agree on those that are planned, others follow the rule."""
        if len(planned) != len(names):
            raise _inconsistent(operator, f"it has {len(names)} {side}, the plan lists {len(planned)}")
        per_axis = [placements_of(choice, side, len(names)) for choice in chosen]
        found: list[Layout | None] = []
        for position, (name, given) in enumerate(zip(names, planned, strict=True)):
            wanted = Layout.of(*(axis[position] for axis in per_axis)).forward
            if not name:
                found.append(None)
                continue
            if given is not None and given.forward != wanted:
                texts = [to_text(layout, self.mesh) for layout in (given.forward, wanted)]
                raise _inconsistent(
                    operator, f"the plan gives '{name}' the layout {texts[0]}, its split means {texts[1]}"
                )
            if reasons := check(wanted, self.mesh, self.model.tensors[name].shape):
                raise _inconsistent(operator, f"'{name}' cannot be split so: {'; '.join(reasons)}")
            found.append(wanted)
        return tuple(found)


def dtypes_around(operator: Operator, model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Element types of operands and of results, `""` for absent ones."""
    operands, results = (
        tuple(model.tensors[name].dtype if name else "" for name in names)
        for names in (operator.inputs, operator.outputs)
    )
    return operands, results


def check_fresh(model: Model, plan: Plan) -> None:
    """Raises `ShardplanError` if `plan` was made for another model: `stale-plan`, or `inconsistent-plan` if only its
    digest is the model's."""
    if plan.model.get("digest") != structure_digest(model):
        summary = f"the plan was made for another model than '{model.name}': operators or shapes differ"
        raise ShardplanError(error("stale-plan", summary, hint="solve again, or give the model and dims of the plan"))
    if plan.pipeline is None:
        require_agreement(plan, model)


def _inconsistent(operator: Operator, why: str) -> ShardplanError:
    summary = f"the plan contradicts itself at operator '{operator.name}' ({operator.kind}): {why}"
    return inconsistent(summary)


def _choice(operator: Operator, rule: Rule, label: str) -> Option | str:
    """The meaning of a split's label: an option of the rule, or the label itself if nothing is split."""
    if label in {"-", "~"} or label.startswith("+"):
        return label
    for option in rule.options:
        if option.label == label:
            return option
    labels = ", ".join(option.label for option in rule.options) or "none"
    raise _inconsistent(operator, f"it splits factor '{label}'; the operator has {labels}")
