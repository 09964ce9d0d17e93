"""A constraint as written: its place in a file, what it matches, and what it requires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from shardplan.layout.collective import CollectiveKind
from shardplan.yaml_source import Mark

Section = Literal["inputs", "outputs", "parameters", "tensors", "operators", "axes", "any"]
SECTIONS: tuple[str, ...] = tuple(section for section in get_args(Section) if section != "any")


@dataclass(frozen=True, slots=True)
class Dims:
    """The sharding of a tensor, dim by dim: the axes of each dim, major first; `()` not sharded, `None` open.

    `rest_open`: dims beyond the last entry are open; otherwise they are not sharded, as in a `PartitionSpec`.
    `segments`: of an entry, the sizes of the pieces that its axes shard separately; missing or `()`: open.
    """

    entries: tuple[tuple[str, ...] | None, ...]
    rest_open: bool = False
    segments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """What one mesh axis does to an operator: it splits `factor` (`""`: nothing), or (`wanted` false) does not."""

    axis: str
    factor: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class AxisUse:
    """What one mesh axis may be used for. `inputs_dim`: it shards this dim of every graph input; `-1`: nothing said.
    `whole_parameters`: it shards no weight. `forbidden`: collectives that it may not carry."""

    inputs_dim: int = -1
    whole_parameters: bool = False
    forbidden: tuple[CollectiveKind, ...] = ()


Spec = Dims | tuple[Split, ...] | AxisUse


@dataclass(frozen=True, slots=True)
class Constraint:
    """`pattern`: a glob over names; `#2` is the third graph input or output. `any` (a pin): tensors and operators of
    that name.

    `cost_us`: the penalty of breaking it, per tensor or operator; `None` for a hard constraint. `text`: in people's
    notation. `aliases`: names given to the mesh axes, in their order (`mesh_axis_names`). `is_reused`: it comes from a
    plan of another model, whose names may have another prefix (`shardplan.constraints.reuse`).
    """

    section: Section
    pattern: str
    spec: Spec
    text: str
    mark: Mark
    cost_us: float | None = None
    aliases: tuple[str, ...] = ()
    is_pin: bool = False
    is_reused: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether it names one thing; such a constraint overrides patterns that match it too."""
        return not any(character in self.pattern for character in "*?[{")

    @property
    def where(self) -> dict[str, object]:
        """The location fields of a `Diagnostic` about it."""
        return {"file": self.mark.file} if self.is_pin else self.mark.where

    @property
    def place(self) -> str:
        """`fixed.yaml:3`, or the whole `--pin`."""
        return self.mark.file if self.is_pin else str(self.mark)

    def __str__(self) -> str:
        where = "" if self.section == "any" else f"{self.section}: "
        return f"{where}{self.pattern}: {self.text}"
