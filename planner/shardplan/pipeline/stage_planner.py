"""Plans of the stages of a cut, each planned as a model of its own between the layouts of its borders.

Stages that run equal units between equal borders, with as many microbatches in flight, are planned once: the layouts of
the first are those of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, LimitError
from shardplan.graph.options import Effort, PlanOptions
from shardplan.graph.remat import Recompute
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import part_of, stage_name
from shardplan.pipeline.search_state import SearchState
from shardplan.pipeline.stage_costs import StageCosts
from shardplan.pipeline.stage_inputs import all_kept_so, constraints_on, kept_so
from shardplan.plan.types import Plan, TensorDecision
from shardplan.planning import Planner
from shardplan.planning.search import NoBetterError
from shardplan.units import NS_PER_S

_HALVINGS = 40
"""Bisections of the search for a stage's greatest time, which is then exact to a nanosecond."""


@dataclass
class StagePlanner:
    """Plans stages of `stage_costs.chain`; every one once, with an effort and within the limits of `search_state`."""

    stage_costs: StageCosts
    cluster: Cluster
    options: PlanOptions
    chunks: int
    search_state: SearchState
    effort: Effort = "quick"
    _left: int = field(init=False, default=1)
    _planned: dict[tuple[Cut, int], Plan | None] = field(init=False, default_factory=dict)
    _recompute: dict[tuple[Cut, int], Recompute] = field(init=False, default_factory=dict)
    _alike: dict[tuple[object, int], tuple[Model, Plan]] = field(init=False, default_factory=dict)
    """By kind of stage and microbatches in flight: the first such stage, and its plan."""

    def plans(self, cuts: Sequence[Cut], worth_ns: float = math.inf, *, anew: bool = False) -> tuple[Plan, ...] | None:
        """A plan of every stage; `None` when one does not fit, which is then left out of the search, or when the step
        is sure to be longer than `worth_ns` (`anew`: whatever plans of these stages told) or the search is over."""
        plans: list[Plan] = []
        waits = [self.in_flight(place, len(cuts)) for place in range(len(cuts))]
        known = zip(cuts, waits, strict=True)
        steps_ns = [0.0 if anew else self.stage_costs.bound_ns(cut, waiting) for cut, waiting in known]
        for place, cut in enumerate(cuts):
            if self.stage_costs.step_ns(steps_ns) > worth_ns:
                return None
            waiting, self._left = waits[place], len(cuts) - place
            self.search_state.tell(f"planning stage {place + 1} of {len(cuts)}")
            try:
                plan = self.plan(cut, waiting, place, self._enough_ns(steps_ns, place, worth_ns))
            except NoBetterError as none:
                self.stage_costs.see(cut, waiting, none.bound_s * NS_PER_S)
                return None
            except (LimitError, KeyboardInterrupt):
                if not self.search_state.is_over():
                    raise
                return None
            if self.search_state.is_over():
                return None
            if plan is None:
                never = self._plan(cut, waiting, self.stage_costs.model.name, free=True) is None
                self.stage_costs.refuse(cut, len(cuts) - 1 - place, one_waits=waiting == 1, never=never)
                return None
            self.stage_costs.see(cut, waiting, plan.summary.step_ns)
            steps_ns[place] = plan.summary.step_ns
            plans.append(plan)
        return tuple(plans)

    def of_all(self, cut: Cut) -> tuple[Plan] | None:
        """The plan of the only stage, which needs no costs; `None` if none fits."""
        self._left = 1
        plan = self._plan(cut, self.in_flight(0, 1), stage_name(self.stage_costs.model, 0))
        return None if plan is None else (plan,)

    def in_flight(self, place: int, count: int) -> int:
        """Microbatches that stage `place` of `count` holds; model chunks of one stage count one by one."""
        schedule, options = self.stage_costs.schedule, self.stage_costs.options
        return schedule.in_flight_of(place, count, options.microbatches) if options.training else 1

    def _enough_ns(self, steps_ns: Sequence[float], place: int, worth_ns: float) -> float:
        """With a stage that takes so long the step is longer than `worth_ns`, whatever the others take beyond these."""
        if math.isinf(worth_ns):
            return math.inf
        enough_ns, least_ns = worth_ns, 0.0
        for _ in range(_HALVINGS):
            middle_ns = (least_ns + enough_ns) / 2
            if self.stage_costs.step_ns([*steps_ns[:place], middle_ns, *steps_ns[place + 1 :]]) > worth_ns:
                enough_ns = middle_ns
            else:
                least_ns = middle_ns
        return enough_ns

    def plan(self, cut: Cut, in_flight: int, place: int, enough_ns: float = math.inf) -> Plan | None:
        """The plan of a stage with so many microbatches in flight; None where none fits. Raises `NoBetterError` where
        it is proven early that all take `enough_ns`."""
        key = (cut, in_flight)
        if key not in self._planned:
            name = stage_name(self.stage_costs.model, place)
            kind = self.stage_costs.kind_of(cut)
            known = self._alike.get((kind, in_flight))
            plan = self._same_step(*known, cut, in_flight, name) if known else None
            is_new = plan is None
            if is_new:
                plan = self._plan(cut, in_flight, name, enough_ns=enough_ns)
            if is_new and plan is not None and not self.options.constraints:
                plan = self._or_more_in_flight(plan, kind, cut, in_flight, name)
                self._alike[kind, in_flight] = part_of(self.stage_costs.chain, cut.first, cut.last, name), plan
            self._planned[key] = plan
        return self._planned[key]

    def _same_step(self, model: Model, plan: Plan, cut: Cut, in_flight: int, name: str) -> Plan | None:
        """`plan`, of `model`, for a stage of equal units; None where that takes another time."""
        found = self._with_layouts_of(model, plan, cut, in_flight, name)
        if found is None or found.summary.step_ns != plan.summary.step_ns:
            return None
        return _with_proof(found, plan)

    def _or_more_in_flight(self, plan: Plan, kind: object, cut: Cut, in_flight: int, name: str) -> Plan:
        """The better of `plan` and the fastest of equal stages that hold more microbatches: that fits here as well."""
        waiting = [
            (other.summary.step_ns, more)
            for (known, more), (_, other) in self._alike.items()
            if known == kind and more > in_flight and other.summary.step_ns < plan.summary.step_ns
        ]
        if not waiting:
            return plan
        decided = self._recompute[cut, in_flight]
        found = self._with_layouts_of(*self._alike[kind, min(waiting)[1]], cut, in_flight, name)
        if found is None or found.summary.step_ns >= plan.summary.step_ns:
            self._recompute[cut, in_flight] = decided
            return plan
        return _with_proof(found, plan)

    def _with_layouts_of(self, model: Model, plan: Plan, cut: Cut, in_flight: int, name: str) -> Plan | None:
        """The plan of a stage in the layouts of `plan`, which is of `model`; None where units differ or none fits."""
        own = part_of(self.stage_costs.chain, cut.first, cut.last, name)
        called = _corresponding_values(own, model)
        if called is None:
            return None
        tensors = {tensor.name: tensor for tensor in plan.tensors}
        layouts = {mine: tensors[theirs] for mine, theirs in called.items() if theirs in tensors}
        return self._plan(cut, in_flight, name, like=layouts)

    def _plan(
        self,
        cut: Cut,
        in_flight: int,
        name: str,
        *,
        free: bool = False,
        like: Mapping[str, TensorDecision] | None = None,
        enough_ns: float = math.inf,
    ) -> Plan | None:
        """The plan of a stage, its borders as the cut has them or `free`, or all of its values `like` these; None where
        none fits. Raises `NoBetterError` as `plan`."""
        chain, cluster = self.stage_costs.chain, self.stage_costs.parts[cut.submesh].cluster
        model = part_of(chain, cut.first, cut.last, name)
        options = self.options_of(model, cluster.mesh, in_flight)
        planner = Planner(model, cluster, options, reasons=False)
        ends: dict[str, Layout] = dict(self.stage_costs.tied_layout(cut))
        if cut.first:
            ends[chain.borders[cut.first - 1]] = self.stage_costs.layout_of(cut.submesh, cut.first - 1, cut.enters)
        if cut.last < len(chain):
            ends[chain.borders[cut.last - 1]] = self.stage_costs.layout_of(cut.submesh, cut.last - 1, cut.leaves)
        try:
            if like is not None:
                chosen = planner.chosen(lambda built: all_kept_so(built, like))
            else:
                enough_s = enough_ns / NS_PER_S
                chosen = planner.chosen(None if free else lambda built: kept_so(built, ends), enough_s=enough_s)
        except InfeasibleError:
            return None
        except LimitError:
            self.search_state.by_clock |= options.time_limit is not None
            raise
        finally:
            self.search_state.work += planner.work
        self.search_state.by_clock |= not chosen.plan.summary.reproducible
        if not free:
            self._recompute[cut, in_flight] = chosen.recompute
        return chosen.plan

    @property
    def limit_bytes(self) -> int:
        """Bytes that one model chunk of a stage may hold on a device."""
        return self.options.limit_bytes_on(self.cluster.device) // self.chunks

    def options_of(self, model: Model, mesh: Mesh, in_flight: int) -> PlanOptions:
        """The options under which a stage, which is `model`, is planned on its part of the devices."""
        return replace(
            self.options,
            effort=self.effort,
            time_limit=self.search_state.stage_s(self._left),
            in_flight=in_flight,
            constraints=constraints_on(self.options.constraints, model, mesh),
            memory_limit_bytes=self.limit_bytes,
        )

    def recompute_of(self, cut: Cut, in_flight: int) -> Recompute:
        """What the plan of a stage, which has one, recomputes."""
        return self._recompute[cut, in_flight]


def _with_proof(plan: Plan, proven: Plan) -> Plan:
    """A plan with what was proven of another one of equal stages."""
    proof, step_ns = proven.summary, plan.summary.step_ns
    summary = replace(
        plan.summary,
        outcome=proof.outcome,
        objective_ns=step_ns,
        bound_ns=proof.bound_ns,
        gap=(step_ns - proof.bound_ns) / step_ns if step_ns else 0.0,
        step_bound_ns=proof.step_bound_ns,
        reproducible=proof.reproducible,
    )
    return replace(plan, summary=summary)


def _corresponding_values(model: Model, other: Model) -> dict[str, str] | None:
    """The values of `model` by what they are called in `other`, operator by operator; None where they do not match."""
    if len(model.operators) != len(other.operators):
        return None
    called: dict[str, str] = {}
    for mine, theirs in zip(model.operators, other.operators, strict=True):
        names = ((*mine.inputs, *mine.outputs), (*theirs.inputs, *theirs.outputs))
        if mine.kind != theirs.kind or len(names[0]) != len(names[1]):
            return None
        called.update(zip(*names, strict=True))
    return called
