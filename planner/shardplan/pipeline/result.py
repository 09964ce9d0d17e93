"""The pipeline that a search ends with: its stages' plans, borders, transfers and bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shardplan.cluster.types import Cluster
from shardplan.graph.options import PlanOptions
from shardplan.layout.layout import Layout
from shardplan.pipeline.border_sizes import border_sizes
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain
from shardplan.pipeline.p2p import Transfers, exposed_ns
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.submeshes import Submesh
from shardplan.pipeline.tied_weights import tied_transfers, waited_ns
from shardplan.plan.types import Plan, Transfer


@dataclass(frozen=True)
class PipelineResult:
    """The stages found: their cuts, parts of the cluster, plans, and microbatches in flight. `borders`, `sizes`: the
    layouts of the values between stages, at either end, and the bytes of each and of its gradient in one microbatch.
    `tied`: transfers of tied weights. `step_ns`, transfers included; `bound_ns`: a lower bound on every pipeline of
    this model. `interrupted`: Ctrl-C ended the search; `by_clock`: time or Ctrl-C decided something."""

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
    interrupted: bool = False
    by_clock: bool = False


def assemble_result(
    chain: Chain,
    cuts: Sequence[Cut],
    parts: Sequence[Submesh],
    plans: Sequence[Plan],
    in_flight: Sequence[int],
    borders: Sequence[tuple[Layout, Layout]],
    sizes: Sequence[tuple[int, int]],
    transfers: Transfers,
    options: PlanOptions,
    schedule: Schedule,
) -> PipelineResult:
    """The pipeline of these plans, with the time of its step. Its bound is that of these cuts: a transfer takes at
    least as long as if every device sent and received an equal share. Raises `ShardplanError` (`uneven-microbatches`).
    """
    stages = len(cuts) // schedule.chunks
    schedule.refuse_uneven(options.microbatches, stages)
    summaries = [plan.summary for plan in plans]
    steps_ns = [sum(float(summary.step_ns) for summary in summaries[place::stages]) for place in range(stages)]
    bounds_ns = [sum(float(summary.step_bound_ns) for summary in summaries[place::stages]) for place in range(stages)]
    handed_ns = least_ns = 0.0
    for (mine, theirs), (source, target), (value, gradient) in zip(
        itertools.pairwise(parts), borders, sizes, strict=True
    ):
        back, forth = transfers.least_ns(theirs, mine, gradient), transfers.least_ns(mine, theirs, value)
        least_ns += (1.0 - transfers.hidden) * options.microbatches * (forth + (back if gradient else 0))
        ways = [transfers.send_receive(mine, theirs, target, value)]
        if gradient:
            ways.append(transfers.send_receive(theirs, mine, source, gradient))
        handed_ns += sum(exposed_ns(way, transfers.hidden, options.microbatches) for way in ways)
    tied = tied_transfers(transfers, chain, [cut.first for cut in cuts[1:]], parts, plans, training=options.training)
    least_ns += sum(
        transfers.least_ns(parts[one], parts[other], chain.model.tensor(weight.tensor).size_bytes)
        for weight in tied
        for one, other in ((weight.sender, weight.receiver), (weight.receiver, weight.sender))
    )
    return PipelineResult(
        chain=chain,
        cuts=tuple(cuts),
        parts=tuple(parts),
        plans=tuple(plans),
        in_flight=tuple(in_flight),
        borders=tuple(borders),
        sizes=tuple(sizes),
        tied=tied,
        step_ns=schedule.step(steps_ns, options.microbatches) + handed_ns + waited_ns(tied),
        bound_ns=schedule.step(bounds_ns, options.microbatches) + least_ns,
    )


def result_of_plans(
    chain: Chain,
    cuts: Sequence[Cut],
    parts: Sequence[Submesh],
    plans: Sequence[Plan],
    in_flight: Sequence[int],
    cluster: Cluster,
    options: PlanOptions,
    schedule: Schedule,
) -> PipelineResult:
    """The pipeline of these stages, in which values cross borders in the layouts in which they are kept."""
    kept = [{tensor.name: tensor.layout for tensor in plan.tensors} for plan in plans]
    values = [chain.borders[cut.first - 1] for cut in cuts[1:]]
    borders = [(kept[place][value], kept[place + 1][value]) for place, value in enumerate(values)]
    of_all, transfers = border_sizes(chain, options), Transfers(cluster)
    sizes = [of_all[cut.first - 1] for cut in cuts[1:]]
    return assemble_result(chain, cuts, parts, plans, in_flight, borders, sizes, transfers, options, schedule)
