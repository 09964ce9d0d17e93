"""Cost models by name and settings, as in `--cost-model alpa:beta=1x0.01`: our own, and those of providers.

A provider is a module with a table `COST_MODELS` from names to `CostModelKind`s. It is imported when a name that is not
ours is requested, so that nothing here depends on it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.units import Measure

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.cost.types import CollectivePricer, ComputePricer

P = TypeVar("P")
_PROVIDERS: Final = ("shardplan.extras.peers.cost_models",)
_OURS: Final = "shardplan"


class Pricers(Protocol):
    """Makes the prices of collectives and of local work of a cost model on a cluster. `element_bytes`: bytes of the
    model's floats, for models that count elements. Raises `ShardplanError` (`bad-cost-model`) for settings that do not
    fit the mesh."""

    def __call__(
        self, asked: CostModel, cluster: Cluster, element_bytes: int
    ) -> tuple[CollectivePricer, ComputePricer]: ...


@dataclass(frozen=True, slots=True)
class CostModelKind:
    """A provider's description of a cost model. `settings`: names of its settings; `texts`: those that are not numbers.

    `unit`: the unit of its costs; empty if they are seconds. `restrict(problem, cost_graph)`: the problem with only the
    choices that its planner has; None: all of them.
    """

    pricers: Pricers
    settings: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()
    unit: str = ""
    restrict: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class CostModel:
    """A cost model with its settings as they were written, in the order of their names."""

    name: str = _OURS
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def is_ours(self) -> bool:
        return self.name == _OURS

    @property
    def unit(self) -> str:
        """The unit of a cost; empty if it is a time. One unit is stored as one microsecond."""
        return "" if self.is_ours else _provided()[self.name].unit

    def pricers(self, cluster: Cluster, element_bytes: int) -> tuple[CollectivePricer, ComputePricer]:
        """Its prices of collectives and local work, for every model except ours; see `Pricers`."""
        return _provided()[self.name].pricers(self, cluster, element_bytes)

    def restricted(self, problem: P, cost_graph: object) -> P:
        """The `Problem` of a cost graph with only the choices that the planner of this cost model has."""
        restrict = None if self.is_ours else _provided()[self.name].restrict
        restricted: P = restrict(problem, cost_graph) if restrict else problem
        return restricted

    def text(self, setting: str) -> str:
        """A setting as written, `""` where it was not."""
        return dict(self.settings).get(setting, "")

    def numbers(self, setting: str) -> tuple[float, ...]:
        """The numbers of a setting, `()` if it was not written."""
        return tuple(map(float, self.text(setting).split("x"))) if self.text(setting) else ()

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.settings)
        return f"{self.name}:{settings}" if settings else self.name


OURS: Final = CostModel()


def cost_model_names() -> tuple[str, ...]:
    """All names, ours first."""
    return (_OURS, *_provided())


def parse_cost_model(text: str) -> CostModel:
    """The cost model of `NAME` or `NAME:SETTING=VALUE,...`. Raises `ShardplanError` (`bad-cost-model`)."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name != _OURS and name not in _provided():
        hint = did_you_mean(name, cost_model_names()) or f"cost models: {', '.join(cost_model_names())}"
        raise ShardplanError(error("bad-cost-model", f"there is no cost model '{name}'", hint=hint))
    settings: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for part in rest.split(",") if colon else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        problem = _fault(name, key, value, settings)
        problems += [problem] if problem else []
        settings[key] = value
    if problems:
        raise ShardplanError(*problems)
    return CostModel(name, tuple(sorted(settings.items())))


def measure_of(written: object) -> Measure:
    """How to read the costs of a plan with this `cost_model` (None: ours); as times if it is not known."""
    name = str(written).partition(":")[0]
    if written is None or name == _OURS or name not in _provided():
        return Measure()
    return Measure(_provided()[name].unit)


@functools.cache
def _provided() -> Mapping[str, CostModelKind]:
    """The cost models of all providers, in their order."""
    return {
        name: kind for provider in _PROVIDERS for name, kind in importlib.import_module(provider).COST_MODELS.items()
    }


def _fault(name: str, key: str, value: str, earlier: Mapping[str, str]) -> Diagnostic | None:
    known, texts = ((), frozenset[str]()) if name == _OURS else (_provided()[name].settings, _provided()[name].texts)
    if key not in known:
        allowed = f"its settings: {', '.join(known)}" if known else "it has none"
        hint = did_you_mean(key, known) or allowed
        return error("bad-cost-model", f"the cost model '{name}' has no setting '{key}'", hint=hint)
    if key in earlier:
        return error("bad-cost-model", f"'{key}' is given twice")
    if key not in texts and not _are_numbers(value):
        hint = "write numbers that are not negative, one for each mesh axis where they differ, such as 1x0.1"
        return error("bad-cost-model", f"{key}='{value}' is not a number", hint=hint)
    return None


def _are_numbers(text: str) -> bool:
    try:
        return all(0 <= float(part) < float("inf") for part in text.split("x"))
    except ValueError:
        return False
