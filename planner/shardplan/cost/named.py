"""Cost models by name: ours, and those of other systems, as `--cost-model alpa:beta=1x0.01` writes them.

| name      | a cost is in | settings                                                                                  |
|-----------|--------------|-------------------------------------------------------------------------------------------|
| shardplan | seconds      |                                                                                           |
| alpa      | its own unit | `alpha`, `beta`: per mesh axis, `1x0.1`; `gather`: what any all-gather costs              |
| slapo     | elements     | `split`: what keeping one's piece costs, 1 in its last version; `element`: bytes of one   |
| hidet     | bytes        |                                                                                           |
| trtllm    | seconds      | `cluster_key`: a device of TensorRT-LLM's own table instead of the profile's              |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.units import Measure

_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "shardplan": (),
    "alpa": ("alpha", "beta", "gather"),
    "slapo": ("element", "split"),
    "hidet": (),
    "trtllm": ("cluster_key",),
}
"""Name of a cost model -> its settings."""
_TEXTS: Final = frozenset({"cluster_key"})
"""Settings that are no numbers."""
_UNITS: Final[dict[str, str]] = {"alpa": "units", "slapo": "elements", "hidet": "bytes"}
NAMES: Final = tuple(_SETTINGS)


@dataclass(frozen=True, slots=True)
class CostModel:
    """A cost model with its settings as they were written, in the order of their names."""

    name: str = "shardplan"
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def is_ours(self) -> bool:
        return self.name == "shardplan"

    @property
    def unit(self) -> str:
        """What a cost is a number of; empty where it is a time. One unit is kept as one microsecond."""
        return _UNITS.get(self.name, "")

    def text(self, setting: str) -> str:
        """A setting as written, `""` where it was not."""
        return dict(self.settings).get(setting, "")

    def numbers(self, setting: str) -> tuple[float, ...]:
        """The numbers of a setting, `()` where it was not written."""
        return tuple(map(float, self.text(setting).split("x"))) if self.text(setting) else ()

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.settings)
        return f"{self.name}:{settings}" if settings else self.name


OURS: Final = CostModel()


def parse_cost_model(text: str) -> CostModel:
    """The cost model of `NAME` or `NAME:SETTING=VALUE,...`. Raises `ShardplanError` (`bad-cost-model`)."""
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name not in _SETTINGS:
        hint = did_you_mean(name, NAMES) or f"cost models: {', '.join(NAMES)}"
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
    """How costs are read that a plan's `cost_model` (None: ours) put there; as times where it is not known."""
    return Measure(_UNITS.get(str(written).partition(":")[0], ""))


def _fault(name: str, key: str, value: str, earlier: Mapping[str, str]) -> Diagnostic | None:
    known = _SETTINGS[name]
    if key not in known:
        allowed = f"its settings: {', '.join(known)}" if known else "it has none"
        hint = did_you_mean(key, known) or allowed
        return error("bad-cost-model", f"the cost model '{name}' has no setting '{key}'", hint=hint)
    if key in earlier:
        return error("bad-cost-model", f"'{key}' is given twice")
    if key not in _TEXTS and not _are_numbers(value):
        hint = "write numbers that are not negative, one for each mesh axis where they differ, such as 1x0.1"
        return error("bad-cost-model", f"{key}='{value}' is not a number", hint=hint)
    return None


def _are_numbers(text: str) -> bool:
    try:
        return all(0 <= float(part) < float("inf") for part in text.split("x"))
    except ValueError:
        return False
