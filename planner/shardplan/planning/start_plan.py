"""A known plan as the first candidate of a search: its decisions, as far as they are valid here, scheduled anew.

Decisions are taken by the names of operators and tensors; what they leave open is chosen by price. No number of the
plan's file is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from shardplan.errors import Diagnostic
from shardplan.graph.build import CostGraph
from shardplan.graph.neighbourhood import Neighbourhood
from shardplan.graph.remat import Recompute
from shardplan.layout.legal import is_legal
from shardplan.model.types import Model
from shardplan.plan.assemble import finished, recompute_of
from shardplan.plan.types import OperatorDecision, Plan
from shardplan.planning.chain import Question
from shardplan.planning.constants import ROUGH_GAP, ROUGH_WORK
from shardplan.planning.decided import Decided
from shardplan.planning.instance import MOST_WHOLE, CostGraphs, Instance
from shardplan.planning.questions import asked
from shardplan.planning.reduction import Restrict
from shardplan.planning.search import Found, NoPlanError, Questions, Search
from shardplan.units import NS_PER_S, Measure, counted, size


@dataclass(frozen=True)
class StartPlan:
    """A plan that a search starts from, read from `file`."""

    plan: Plan
    file: str

    def unsuited(self, instance: Instance) -> str:
        """Why nothing can be taken from it, in words that follow "it"; empty if something can."""
        plan, mesh = self.plan, instance.cluster.mesh
        if plan.pipeline is not None:
            return f"is a pipeline of {counted(len(plan.pipeline.stages), 'stage')}"
        if plan.mesh.shape != mesh.shape:
            return f"is for another mesh ({plan.mesh})"
        if (mode := plan.model.get("mode")) != instance.options.mode:
            return f"is for {mode}"
        decided, model = self.decided(instance.model), instance.model
        if not decided.operators:
            return "has no operator of this model"
        if len(mesh.real_axes) > MOST_WHOLE and not self._is_whole(model, decided):
            return f"is for a model with other operators or sizes, and this mesh has more than {MOST_WHOLE} axes"
        return ""

    def _is_whole(self, model: Model, decided: Decided) -> bool:
        """Whether it has a decision for every operator of the model, and every layout in it is legal there."""
        if len(decided.operators) < len(model.operators):
            return False
        return all(
            name in model.tensors and is_legal(layout, self.plan.mesh, model.tensors[name].shape)
            for name, layouts in decided.met().items()
            for layout in layouts
        )

    def decided(self, model: Model) -> Decided:
        """Its decisions about operators of the same name and kind, and tensors of the same name and rank."""
        operators = {one.name: one for one in model.operators}
        decided = Decided.of_plan(self.plan)
        alike = {
            name: one
            for name, one in decided.operators.items()
            if name in operators
            and (one.op_type, len(one.inputs), len(one.outputs))
            == (operators[name].kind, len(operators[name].inputs), len(operators[name].outputs))
        }
        ranks = {one.name: len(one.shape) for one in self.plan.tensors}
        layouts = {
            node: layout
            for node, layout in decided.layouts.items()
            if node[1] in model.tensors and len(model.tensors[node[1]].shape) == ranks[node[1]]
        }
        return Decided(alike, layouts)

    def recompute(self, built: CostGraph) -> Recompute:
        """Which operators of `built` it recomputes."""
        known = {one.name: number for number, one in enumerate(built.model.operators)}

        def is_here(one: OperatorDecision) -> bool:
            before = one.recomputed_before
            return one.name in known and known.get(before, -1) >= known[one.name] if before else True

        tensors = tuple(one for one in self.plan.tensors if one.name in built.model.tensors)
        operators = tuple(filter(is_here, self.plan.operators))
        return recompute_of(replace(self.plan, operators=operators, tensors=tensors), built)

    def taken(self, found: Found, instance: Instance, why_not_all: str = "") -> Diagnostic:
        """What the search starts from: the plan's step here, and how much of it is as in the file. `why_not_all`: why
        only splits of operators are taken, in words that follow "it"."""
        step_ns = round(finished_s(found, instance) * NS_PER_S)
        splits = {one.name: one.split for one in self.plan.operators}
        chosen = found.candidate.priced.operators
        same, every = sum(splits.get(one.name) == one.split for one in chosen), len(chosen)
        part = "" if same == every else f", with {same:,} of {counted(every, 'operator')} split as there"
        part = part or (", with its splits of operators alone" if why_not_all else "")
        part += f": as a whole it {why_not_all}" if why_not_all else ""
        return Diagnostic(
            "note",
            "start",
            f"step {Measure(instance.options.cost_model.unit).text(step_ns)} here{part}",
            file=self.file,
        )

    def not_taken(self, why: str) -> Diagnostic:
        """Why the search does without it."""
        return Diagnostic("note", "no-start", f"it is no start: it {why}", file=self.file)


def finished_s(found: Found, instance: Instance) -> float:
    """The step (seconds) of a candidate in its plan, where gradients are sent in the best buckets."""
    priced = found.candidate.priced
    return finished(priced, instance.limit_bytes).step_s + priced.penalty_s


Ask = Callable[[], Questions[Found]]


def started(
    search: Search, start: StartPlan, graphs: CostGraphs, answered: Callable[[Ask], Found]
) -> tuple[Found | None, Diagnostic]:
    """The candidate with the decisions of a plan, or with its splits of operators alone where these are impossible here
    or do not fit in memory; and a note on it. `None`: neither is possible. `answered`: the result of the questions that
    its argument begins to ask, which may be restricted; raises `NoPlanError`."""
    instance = search.instance
    if why := start.unsuited(instance):
        return None, start.not_taken(why)
    decided, target = start.decided(instance.model), instance.options.target
    for restriction in (decided.fixed, decided.as_split):
        question = _question(start, decided, restriction, graphs)
        try:
            found = answered(functools.partial(_fitting, search, question))
        except NoPlanError:
            why = why or (f"is none that {target} can express" if target else "contradicts what is asked for here")
            continue
        if found.candidate.keeps(search.limit_bytes):
            return found, start.taken(found, instance, why)
        held, limit = size(found.candidate.peak_bytes), size(search.limit_bytes)
        why = why or f"does not fit in the memory limit ({held} of {limit})"
    return None, start.not_taken(why)


def _question(start: StartPlan, decided: Decided, restriction: Restrict, graphs: CostGraphs) -> Question:
    """The question for the best assignment with these decisions, whatever memory it takes. With many axes, only layouts
    near the decisions are priced, as everywhere on such meshes."""
    instance, remat = graphs.instance, None
    near = Neighbourhood(decided.met()) if len(instance.cluster.mesh.real_axes) > MOST_WHOLE else None
    if instance.chooses_remat:
        built, _ = graphs.asked() if near is None else graphs.near(near, None)
        remat = start.recompute(built)
    return Question(None, remat=remat, near=near, restriction=restriction, shortfall=False, unproven=ROUGH_GAP)


def _fitting(search: Search, question: Question) -> Questions[Found]:
    """The best candidate that fits in memory, or one that does not fit. Raises `NoPlanError` if there is none."""
    answer = yield from asked(search, question, ROUGH_WORK)
    if answer.solution.choices is None:
        raise NoPlanError(answer)
    best = search.judged(answer.candidates)[0]
    if not best.keeps(search.limit_bytes):
        answer = yield from asked(search, replace(question, limit_bytes=search.limit_bytes), ROUGH_WORK)
        best = search.judged(answer.candidates)[0] if answer.solution.choices is not None else best
    return Found(best, 0.0, answer.objective, tuple(() for _ in answer.objective.sizes), search.limit_bytes)
