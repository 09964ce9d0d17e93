"""Sensitivity analysis of a plan: how far the constants of a profile may be wrong before another plan is better.

Two questions about a plan. Constants drawn at random within a spread, all at once: how much slower is this plan than
the best one under those constants? And one by one: how far may each constant move, both ways, before some other plan
is faster by more than one per cent?
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardplan.cluster.perturb import COMPUTE, MEMORY, constants, perturbed
from shardplan.cluster.types import Cluster
from shardplan.errors import InfeasibleError, ShardplanError, error
from shardplan.graph.options import PlanOptions
from shardplan.model.types import Model
from shardplan.plan.interrupted import unless_interrupted
from shardplan.plan.types import Plan
from shardplan.planning import Planner
from shardplan.planning.decided import Decided

SPREAD = 0.15
WORTH_HAVING = 0.01
"""A plan that is faster by at most this share is no reason to change."""
FARTHEST = 2.0
NOT_OF_A_PIPELINE = error(
    "pipeline-plan", "the plan is a pipeline; sensitivity analysis is for plans of one mesh",
    hint="leave out --robust, or solve without stages",
)  # fmt: skip
_HALVINGS = 2
_MOST_ASKED = 2 * (1 + _HALVINGS)
"""Factors of one constant that are tried."""


@dataclass(frozen=True, slots=True)
class Slack:
    """While `constant` is between `low` and `high` times what the profile says, no other plan is faster by
    more than `WORTH_HAVING`.
    0 and infinity: as far as was looked, half and twice."""

    constant: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Robustness:
    """`regrets`: per draw, step of the plan over that of the best one there, less 1; ascending. `slacks`: one per
    constant. `spread`: the least and the most within which constants were drawn."""

    regrets: tuple[float, ...]
    slacks: tuple[Slack, ...]
    spread: tuple[float, float] = (SPREAD, SPREAD)


def drawn(cluster: Cluster, rng: np.random.Generator) -> Cluster:
    """`cluster` with every constant multiplied by its own factor, even on the logarithm, within its spread."""
    return perturbed(cluster, factors_of(cluster, constants(cluster), rng))


def factors_of(cluster: Cluster, names: Iterable[str], rng: np.random.Generator) -> dict[str, float]:
    """A random factor for each of these constants, even on the logarithm, within its spread."""
    wide = {name: math.log1p(spread_of(cluster, name)) for name in names}
    return {name: math.exp(rng.uniform(-most, most)) for name, most in wide.items()}


def spread_of(cluster: Cluster, constant: str) -> float:
    """How far a constant (as in `constants`) may be off: as the profile was measured, else `SPREAD`."""
    measured = cluster.spread.get({COMPUTE: COMPUTE, MEMORY: "memory"}.get(constant, constant.rpartition(" ")[0]))
    return SPREAD if measured is None else float(measured)


def robustness(
    model: Model,
    cluster: Cluster,
    options: PlanOptions,
    plan: Plan,
    draws: int,
    on_done: Callable[[int, int], None] | None = None,
) -> Robustness:
    """What `plan`, the best one for `model` on `cluster`, is worth when the constants of `cluster` are others.

    Two solves per draw, and up to a dozen per constant; `on_done` hears after every two how many pairs are done and how
    many are left at most. Raises `ShardplanError` (`pipeline-plan`) for a pipeline.
    """
    if plan.pipeline is not None:
        raise ShardplanError(NOT_OF_A_PIPELINE)
    rng, names, done = np.random.default_rng(options.seed), constants(cluster), itertools.count(1)

    def regret_on(other: Cluster, left: int) -> float:
        found = regret(model, other, options, plan)
        if on_done is not None:
            on_done(next(done), left)
        return found

    def slack(number: int, name: str) -> Slack:
        later = (len(names) - number) * _MOST_ASKED
        return _slack(name, lambda factors, left: regret_on(perturbed(cluster, factors), left + later))

    later = len(names) * _MOST_ASKED
    regrets = sorted(regret_on(drawn(cluster, rng), draws - number + later) for number in range(1, draws + 1))
    slacks = tuple(slack(number, name) for number, name in enumerate(names, 1))
    spreads = [spread_of(cluster, name) for name in names]
    return Robustness(tuple(regrets), slacks, (min(spreads), max(spreads)))


def regret(model: Model, cluster: Cluster, options: PlanOptions, plan: Plan) -> float:
    """Step of `plan` on `cluster` over that of the best plan there, less 1; infinite where it does not fit."""
    planner = Planner(model, cluster, replace(options, effort="quick"), reasons=False)
    try:
        held = unless_interrupted(planner.plan(Decided.of_plan(plan).fixed)).summary.step_ns
    except InfeasibleError:
        return math.inf
    best = min(held, unless_interrupted(planner.plan()).summary.step_ns)
    return max(0.0, held / max(best, 1) - 1.0)


def _slack(name: str, regret_at: Callable[[Mapping[str, float], int], float]) -> Slack:
    """Both ends by halving the interval on the logarithm, from twice (half) the value down. `regret_at` also takes how
    many are asked after it at most."""

    def reach(direction: float, later: int) -> float:
        def holds(power: float, left: int) -> bool:
            return regret_at({name: FARTHEST ** (direction * power)}, left + later) <= WORTH_HAVING

        if holds(1.0, _HALVINGS):
            return math.inf
        inside, outside = 0.0, 1.0
        for left in reversed(range(_HALVINGS)):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if holds(middle, left) else (inside, middle)
        return inside

    return Slack(name, FARTHEST ** -reach(-1.0, _MOST_ASKED // 2), FARTHEST ** reach(1.0, 0))
