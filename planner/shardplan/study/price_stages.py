"""The price of a pipeline: the first and the last model chunk are planned, and of those between one for each number of
layers of each kind, which stands for all that have as many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardplan.cluster.types import Cluster
from shardplan.graph.options import UNLIMITED_BYTES, PlanOptions
from shardplan.layout.layout import Layout
from shardplan.model.types import Model
from shardplan.pipeline.chunk_memory import held_in_turn
from shardplan.pipeline.cut_choices import Cut
from shardplan.pipeline.cut_points import Chain, chain_at, part_of, stage_name
from shardplan.pipeline.p2p import Transfers
from shardplan.pipeline.plan import PipelineRequest, plan_of
from shardplan.pipeline.result import assemble_result
from shardplan.pipeline.schedule import Schedule
from shardplan.pipeline.submeshes import Submesh
from shardplan.plan.types import Memory, Plan
from shardplan.planning.parallelism import Parallelism
from shardplan.planning.standing import OnProgress, Turn
from shardplan.study.fixed_runs import Fixed, FixedRun, FixedRuns
from shardplan.study.model_chunks import chunk_starts, layers_in_chunks
from shardplan.study.trainer_step import with_sends


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The model chunks in order: chunk p runs on stage p mod `stages`. `stands_for`: the one that is planned in its
    place; `in_flight`: microbatches that wait in it; `planned`: by chunk that is planned, those for which it is, the
    most of any chunk that it stands for."""

    stages: int
    stands_for: tuple[int, ...]
    in_flight: tuple[int, ...]
    planned: Mapping[int, int]

    @classmethod
    def of(cls, layers: Sequence[tuple[int, ...]], stages: int, schedule: Schedule, microbatches: int) -> _Chunks:
        """`layers`: by chunk, the number of its layers of each kind."""
        count, inner = len(layers), layers[1:-1]
        stands_for = (0, *(1 + inner.index(own) for own in inner), count - 1)
        in_flight = tuple(schedule.in_flight_of(place, count, microbatches) for place in range(count))
        planned = dict[int, int]()
        for place, waiting in zip(stands_for, in_flight, strict=True):
            planned[place] = max(planned.get(place, 0), waiting)
        return cls(stages, stands_for, in_flight, planned)

    def held(self, runs: Mapping[int, FixedRun]) -> tuple[Memory, ...]:
        """The memory of a device of every stage."""
        chunks = [
            runs[place].chunk(self.planned[place], waiting)
            for place, waiting in zip(self.stands_for, self.in_flight, strict=True)
        ]
        return tuple(held_in_turn(chunks[stage :: self.stages]) for stage in range(self.stages))

    def stages_with(self, place: int) -> set[int]:
        """The stages that run chunks for which this one stands."""
        return {at % self.stages for at, planned in enumerate(self.stands_for) if planned == place}


def priced_stages(
    parallelism: Parallelism,
    model: Model,
    cluster: Cluster,
    part: Submesh,
    options: PlanOptions,
    limit_bytes: int,
    fixed: Fixed,
    on_progress: OnProgress | None,
) -> tuple[Plan, tuple[Memory, ...]]:
    """The plan of a pipeline, and the memory of a device of every stage: the fastest plans that fit, or the fastest of
    all if they do not. Raises `ShardplanError` (`no-cut`) for a model that cannot be cut."""
    stages = parallelism.pipeline
    schedule = Schedule("interleaved", parallelism.virtual) if parallelism.virtual > 1 else Schedule("1f1b")
    starts = chunk_starts(model, parallelism.pieces)
    chain = chain_at(model, starts)
    chunks = _Chunks.of(layers_in_chunks(model, starts), stages, schedule, options.microbatches)
    last, turn = parallelism.pieces - 1, Turn(on_progress, len(chunks.planned))
    asked, runs = dict[int, FixedRuns](), dict[int, FixedRun]()
    for place, in_flight in sorted(chunks.planned.items()):
        turn.next(f"stage {place}")
        own = part_of(chain, place, place + 1, stage_name(model, place))
        of_stage = replace(options, in_flight=in_flight)
        asked[place] = FixedRuns(own, part.cluster, of_stage, fixed, turn.tell, loss=place == last, is_stage=True)
        runs[place] = asked[place].under(UNLIMITED_BYTES)
    unlimited = [memory.total for memory in chunks.held(runs)]
    for place in sorted(runs) if max(unlimited) > limit_bytes else ():
        over = max(unlimited[stage] for stage in chunks.stages_with(place)) - limit_bytes
        share = -(-over // parallelism.virtual)  # each of a stage's chunks holds less by its share
        runs[place] = asked[place].within(runs[place], runs[place].plan.summary.memory.total - share)
    plans = {place: run.plan for place, run in runs.items()}
    transfers = Transfers(cluster)
    found = assemble_result(
        chain,
        [Cut(place, place + 1, 0, 0, 0) for place in range(parallelism.pieces)],
        [part] * parallelism.pieces,
        [plans[place] for place in chunks.stands_for],
        chunks.in_flight,
        *_borders(chain, plans, chunks.stands_for, options),
        transfers,
        options,
        schedule,
    )
    found = with_sends(found, transfers, schedule, options.microbatches)
    plan = plan_of(PipelineRequest(model, cluster, options, schedule, stages), found)
    return plan, chunks.held(runs)


def _borders(
    chain: Chain, plans: Mapping[int, Plan], stands_for: Sequence[int], options: PlanOptions
) -> tuple[list[tuple[Layout, Layout]], list[tuple[int, int]]]:
    """The layouts of the values at both ends of every stage, and the bytes of the value and its gradient in a
    microbatch."""
    kept = {place: {tensor.name: tensor.layout for tensor in plan.tensors} for place, plan in plans.items()}
    borders, sizes = list[tuple[Layout, Layout]](), list[tuple[int, int]]()
    for place, border in enumerate(chain.borders):
        mine, theirs = stands_for[place], stands_for[place + 1]
        borders.append((kept[mine][chain.borders[mine]], kept[theirs][chain.borders[theirs - 1]]))
        size = -(-chain.model.tensor(border).size_bytes // options.microbatches)
        sizes.append((size, size if options.training else 0))
    return borders, sizes
