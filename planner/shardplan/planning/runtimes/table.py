"""What every runtime can express of a plan, one row each.

A runtime gives every mesh axis a role. What is split on an axis of a role, and what may be moved over it, is said in
`shardplan.planning.runtimes`: one module for each kind of role.

| role       | on such an axis                                                                                      |
|------------|------------------------------------------------------------------------------------------------------|
| `data`     | inputs are split by batch, weights are whole, nothing is sent but gradients                          |
| `shards`   | the same, with weights kept in pieces and gathered for use (FSDP)                                     |
| `tensor`   | modules are columns or rows; the hidden state between them is whole                                  |
| `sequence` | the same, with the hidden state between them cut by sequence                                         |
| `context`  | inputs are split by sequence, keys and values are gathered (trainers)                                |
| `expert`   | as `data`, with experts spread over it (trainers)                                                    |
| `dp`       | as torchtitan: inputs are split by batch, values move where modules with parameters begin and end    |
| `cp`       | the same, inputs are split by sequence                                                               |
| `tp`       | the same, inputs are whole                                                                           |
| `any`      | everything, but nothing that the program keeps is cut by segments                                    |
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from shardplan.layout.mesh import Mesh

Role = Literal["data", "shards", "expert", "context", "tensor", "sequence", "dp", "cp", "tp", "any"]
MODULE_ROLES: Final[frozenset[Role]] = frozenset({"tensor", "sequence"})
"""Roles with one rule per module of all layers."""
FREE_ROLES: Final[frozenset[Role]] = frozenset({"dp", "cp", "tp", "any"})
"""Roles under which neighbouring axes may do different things; with all others, axes with one role are one axis to a
runtime."""
Roles = tuple[Role, ...]
"""One for each mesh axis; axes of one device have the first role of their runtime."""


@dataclass(frozen=True, slots=True)
class Modules:
    """What a column-parallel or row-parallel module may be. `tables`: an embedding may be sharded by its vocabulary,
    and `widths`: by its width; `experts`: stacked weights may be sharded; `transposed`: weights may be stored [in,
    out]; `split_input`: a row-parallel module may take a whole input and slice it; `halves`: a column-parallel module
    may be fused from two equal parts, and `fused`: from any parts."""

    tables: bool = True
    widths: bool = True
    experts: bool = False
    transposed: bool = False
    split_input: bool = True
    halves: bool = False
    fused: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """`roles`: those that an axis may have, in the order of ranks where that matters (`ordered`); `once`: roles that at
    most one axis may have, counted together. `modules`: what a column or row may be, if layers are treated alike.
    `is_trainer`: plans are expressed by the degrees of parallelism only, as in `shardplan.planning.parallelism`."""

    roles: Roles
    once: frozenset[Role] = frozenset()
    ordered: bool = False
    modules: Modules | None = None
    is_trainer: bool = False

    def arrangements(self, mesh: Mesh) -> Iterator[Roles]:
        """The tuples of roles that the axes of `mesh` may have."""
        per_axis = [self._roles_of(axis.name, axis.size) for axis in mesh.axes]
        for roles in itertools.product(*per_axis):
            real = [role for role, size in zip(roles, mesh.shape, strict=True) if size > 1]
            if sum(role in self.once for role in real) > 1:
                continue
            if self.is_trainer and {"data", "shards"} <= set(real):
                continue
            if self.is_trainer and {"tensor", "sequence"} <= set(real):
                continue
            if self.ordered and sorted(real, key=self.roles.index) != real:
                continue
            yield roles

    def _roles_of(self, name: str, size: int) -> Roles:
        if size == 1:
            return self.roles[:1]
        named = tuple(role for role in self.roles if role == name)
        return named if self.ordered and named else self.roles


TRAINER_ROLES: Final[Roles] = ("data", "shards", "expert", "context", "tensor", "sequence")
"""Outermost first, as trainers count ranks."""
RUNTIMES: Final[Mapping[str, Runtime]] = {
    "tp-plan": Runtime(("data", "tensor"), MODULE_ROLES, modules=Modules(experts=True, halves=True)),
    "tp-plan-portable": Runtime(("data", "tensor"), MODULE_ROLES, modules=Modules(widths=False)),
    "deepspeed": Runtime(
        ("data", "tensor"), MODULE_ROLES, modules=Modules(tables=False, widths=False, split_input=False, fused=True)
    ),
    "torchtitan": Runtime(("dp", "cp", "tp"), ordered=True),
    "fsdp2": Runtime(("data", "shards", "tensor"), MODULE_ROLES, ordered=True, modules=Modules()),
    "megatron": Runtime(TRAINER_ROLES, ordered=True, is_trainer=True),
    "maxtext": Runtime(TRAINER_ROLES, ordered=True, is_trainer=True),
    "jax": Runtime(("any",)),
    "shardy": Runtime(("any",)),
}
