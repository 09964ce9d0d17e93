"""What a plan is asked for, as far as prices depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardplan.constraints.types import Constraint
from shardplan.cost.named import OURS, CostModel
from shardplan.graph.precision import PrecisionName

Mode = Literal["training", "inference"]
Remat = Literal["none", "selective", "alternate", "full", "auto"]
Effort = Literal["quick", "thorough", "exhaustive"]
UNLIMITED_BYTES = 1 << 60
"""A limit on memory that no plan reaches: what something takes without regard to memory is planned under it."""


TRAINERS_PREFETCH = 1
"""Blocks ahead in which FSDP and its like gather weights."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """`microbatches`: the graph's batch is one step's; it runs as so many equal microbatches. `remat`: which
    activations are recomputed in backward instead of saved. `memory_limit_bytes`: per device; `None` takes what the
    profile's device has to give. `gap`: where memory binds, the relative gap at which a plan is good enough. `strict`:
    an operator without a rule is an error. `constraints`: what is fixed by hand. `kv_cache_tokens`: in inference, room
    is kept for the keys and values of so many tokens, all sequences together. `cost_model`: whose prices; with those of
    another system the choices are narrowed to what it knows (`shardplan.cost.named`). `shard_optimizer`: in
    training, optimizer state may be sharded apart from its weight (ZeRO-1, Megatron's distributed optimizer).
    `equal_layers`: all copies of a repeated block take the same layouts, as a scan over stacked layers needs.
    `in_flight`: so many microbatches have run forward and wait for their backward, as in a stage of a pipeline.
    `target`: the runtime (`shardplan.planning.runtimes`) that is to say the plan; empty where any plan will do.
    `effort`: where many plans are made to be compared, quick ones do: fewer candidates, bounds a little lower;
    exhaustive ones end when the search has nothing more to try, thorough ones after so much work at most that
    somebody can wait for it. `precision`: of the products with weights (`shardplan.graph.precision`), empty for the
    type that the graph says. `prefetch_blocks`: weights are gathered so many blocks ahead at most. `dealt_sequence`: of
    a sequence that is cut every device has a piece from the front and one from the back, so that all have as much to do
    where the work grows along it."""

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
    prefetch_blocks: int = 8
    dealt_sequence: bool = False

    @property
    def training(self) -> bool:
        return self.mode == "training"

    @property
    def most_ahead(self) -> int:
        """So many blocks ahead weights are gathered at most: other runtimes than ours do it one block ahead."""
        return TRAINERS_PREFETCH if self.target else self.prefetch_blocks
