"""The pipeline that a search ends with."""

from __future__ import annotations

from dataclasses import dataclass

from shardplan.layout.layout import Layout
from shardplan.plan.types import Plan, Transfer
from shardplan.stages.cut import Chain
from shardplan.stages.search import Cut
from shardplan.stages.submeshes import Submesh


@dataclass(frozen=True)
class StagedPlans:
    """The stages found: their cuts, parts of the cluster, plans, and microbatches in flight. `borders`, `sizes`: the
    layouts of what each hands on, at either end, and the bytes of it and of its gradient in one microbatch. `tied`:
    transfers for weights that several stages hold. `step_ns`, transfers included; `bound_ns`: no pipeline of this model
    takes less."""

    chain: Chain
    cuts: tuple[Cut, ...]
    parts: tuple[Submesh, ...]
    plans: tuple[Plan, ...]
    in_flight: tuple[int, ...]
    borders: tuple[tuple[Layout, Layout], ...]
    sizes: tuple[tuple[int, int], ...]
    tied: tuple[Transfer, ...]
    step_ns: float
    bound_ns: float
