"""Comparison of hand-written plans with the best one: each is a set of restrictions for the same solver."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.model.types import Model
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.recipes import as_written_by_hand
from shardplan.planning.reduction import Restrict
from shardplan.planning.standing import OnProgress, Turn
from shardplan.units import PS_PER_NS

BEST = "best"
NOT_COMPUTED = "not computed: interrupted"


@dataclass(frozen=True, slots=True)
class Contender:
    """`plan`: the fastest of its kind that fits, or if none fits, the fastest without a memory limit; `None` if the
    kind is impossible for this model on this mesh, or was not searched (`NOT_COMPUTED`), with the reason in
    `why_not`."""

    name: str
    plan: Plan | None
    fits: bool
    why_not: str = ""

    @property
    def is_computed(self) -> bool:
        """Whether its search came to an end."""
        return self.why_not != NOT_COMPUTED


def compare_recipes(
    model: Model, cluster: Cluster, options: PlanOptions, on_progress: OnProgress | None = None
) -> tuple[Contender, ...]:
    """Every hand-written recipe, then the best plan; `on_progress` is called with the progress of each search. If
    Ctrl-C stops it once there is a result, the remaining ones are `NOT_COMPUTED`.

    Raises `ShardplanError` as `plan_model` for a model that cannot be planned as asked, but not for lack of memory.
    """
    contest = (*as_written_by_hand(options).items(), (BEST, None))
    turn = Turn(on_progress, len(contest))
    planner = Planner(model, cluster, options, turn.tell, reasons=False)
    unlimited = Planner(model, cluster, replace(options, memory_limit_bytes=UNLIMITED_BYTES), turn.tell, reasons=False)
    found: list[Contender] = []
    try:
        for name, recipe in contest:
            turn.next(name, restricted=recipe is not None)
            found.append(contender := _contend(name, recipe, planner, unlimited))
            if contender.plan is not None and contender.fits:
                turn.known = min(turn.known, contender.plan.summary.step_ns * PS_PER_NS)
    except KeyboardInterrupt:
        if not found:
            raise
    left = [Contender(name, None, fits=False, why_not=NOT_COMPUTED) for name, _ in contest[len(found) :]]
    return (*found, *left)


def _contend(name: str, recipe: Restrict | None, planner: Planner, unlimited: Planner) -> Contender:
    try:
        fastest = unless_interrupted(unlimited.plan(recipe))
    except InfeasibleError:
        return Contender(name, None, fits=False, why_not=_why_not(planner))
    if fastest.summary.memory.total <= planner.limit_bytes:
        return Contender(name, fastest, fits=True)
    try:
        return Contender(name, unless_interrupted(planner.plan(recipe)), fits=True)
    except InfeasibleError:
        return Contender(name, fastest, fits=False)


def _why_not(planner: Planner) -> str:
    target = planner.instance.options.target
    why = "not possible for this model on this mesh"
    return f"{why}, or nothing that {target} can express" if target else why
