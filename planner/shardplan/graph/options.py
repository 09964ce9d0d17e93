"""The options of a request that prices depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardplan.cluster.types import Device
from shardplan.constraints.types import Constraint
from shardplan.cost.named import OURS, CostModel
from shardplan.graph.precision import PrecisionName

Mode = Literal["training", "inference"]
Remat = Literal["none", "selective", "alternate", "full", "auto"]
Effort = Literal["quick", "thorough", "exhaustive"]
UNLIMITED_BYTES = 1 << 60
"""A memory limit that no plan reaches, for planning without a limit."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers are recomputed: `block`, the first `number`; `every`, each `number`-th, the last of so many;
    `uniform`, all, in chunks of `number` of which only the input is saved."""

    scheme: Literal["block", "every", "uniform"]
    number: int


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """`microbatches`: the graph's batch is that of one step and runs as so many equal microbatches. `remat`: which
    activations are recomputed in backward instead of saved; `full_layers`: the layers of which `full` recomputes them,
    None for all; `modules`: the parts of layers that `selective` recomputes, none for
    the inside of attention. `memory_limit_bytes`: per device; `None` takes the usable
    memory of the profile's device. `gap`: where memory binds, the relative optimality gap at which a plan is good
    enough. `strict`: an operator without a rule is an error. `constraints`: the user's constraints. `kv_cache_tokens`:
    in inference, room for the keys and values of so many tokens, all sequences together. `cost_model`: whose prices;
    another system's prices also narrow the choices to what it knows (`shardplan.cost.named`). `shard_optimizer`: in
    training, optimizer state may be sharded apart from its weight (ZeRO-1, Megatron's distributed optimizer).
    `equal_layers`: all copies of a repeated block take the same layouts, as a scan over stacked layers needs.
    `in_flight`: so many microbatches have run forward and wait for their backward, as in a pipeline stage. `target`:
    the runtime (`shardplan.planning.runtimes`) that has to express the plan; empty for any plan. `effort`: quick
    searches, for comparing many plans, try fewer candidates with lower bounds; thorough ones end after a fixed amount
    of work, exhaustive ones when the search has nothing left to try. `precision`: of the products with weights
    (`shardplan.graph.precision`), empty for the graph's type. `in_time`: weights may be gathered just in time for their
    readers; other runtimes than ours gather them one block ahead. `dealt_sequence`: a sharded sequence is dealt so that
    every device has a piece from the front and one from the back, which balances work that grows along it."""

    mode: Mode = "training"
    optimizer: str = "adam-mixed"
    microbatches: int = 1
    remat: Remat = "none"
    memory_limit_bytes: int | None = None
    time_limit: float | None = None
    gap: float = 0.005
    seed: int = 0
    presolve: bool = True
    strict: bool = False
    constraints: tuple[Constraint, ...] = ()
    kv_cache_tokens: int = 0
    cost_model: CostModel = OURS
    shard_optimizer: bool = False
    equal_layers: bool = False
    in_flight: int = 1
    effort: Effort = "thorough"
    target: str = ""
    precision: PrecisionName = ""
    in_time: bool = True
    dealt_sequence: bool = False
    full_layers: Layers | None = None
    modules: tuple[str, ...] = ()

    def limit_bytes_on(self, device: Device) -> int:
        """What a plan may take of a device's memory: the limit that is asked for, else what is usable."""
        return device.usable_bytes if self.memory_limit_bytes is None else self.memory_limit_bytes

    @property
    def training(self) -> bool:
        return self.mode == "training"

    @property
    def holds_weights(self) -> bool:
        """Whether gathered weights may stay from forward to backward: while several microbatches wait for their
        backward, as in a pipeline, that would hardly save a gather, and other runtimes re-gather."""
        return self.training and self.in_flight == 1 and self.gathers_in_time and self.cost_model.is_ours

    @property
    def gathers_in_time(self) -> bool:
        """Whether weights may be gathered just in time for their readers."""
        return self.in_time and not self.target
