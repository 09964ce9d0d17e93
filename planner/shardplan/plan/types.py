"""The values of a plan. Times are integer nanoseconds, sizes integer bytes; layouts are `Layout` over `Plan.mesh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.units import counted, duration, size

if TYPE_CHECKING:
    import networkx as nx

    from shardplan.plan.views.tables import Row, Table

Role = Literal["input", "output", "parameter", "constant", "activation"]
Phase = Literal["forward", "backward", "update"]
MoveKind = Literal["blocking", "prefetched", "deferred"]


@dataclass(frozen=True, slots=True)
class TensorDecision:
    """Layout in which a tensor is kept, and in which it is served to its readers (the same if nothing is gathered).

    `perm` etc. are set for parameters only: checkpoint dims in graph order as in `model.Parameter`; `layout` and
    `shape` here are in graph orientation, the file has parameters in checkpoint orientation. `optimizer`: layout of its
    optimizer state if that is sharded apart from it. `saved`: kept for backward; `recomputed`: made anew for
    backward instead, if that was chosen value by value. `bytes_per_device`: of the kept layout.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    served: Layout
    bytes_per_device: int
    saved: bool = False
    checkpoint: str = ""
    onnx: str = ""
    perm: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    trainable: bool = False
    optimizer: Layout | None = None
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """`split[axis]`: the factor that the mesh axis splits, or `"-"` (replicated), `"~"` (replicated, partial
    gradients), `"+0"` (partial sums of operands 0 ... pass through). `reads`, `makes`: layouts of operands and results,
    whose names are `inputs` and `outputs` (`""` for an absent optional operand). `compute_ns`: per step, of which
    `backward_ns` after the forward pass (recomputation included); `inner_ns`: collectives inside the operator, not part
    of `compute_ns`; per mesh axis `inner_forward_ns` and, after the forward pass, `inner_backward_ns`.
    `recomputed_before`: the operator right before whose backward this one is recomputed; `""` if it is not, or if
    `remat` determines it for the whole model."""

    name: str
    op_type: str
    module: str
    equation: str
    split: tuple[str, ...]
    reads: tuple[Layout | None, ...]
    makes: tuple[Layout | None, ...]
    compute_ns: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    backward_ns: int = 0
    inner_ns: int = 0
    inner_forward_ns: tuple[int, ...] = ()
    inner_backward_ns: tuple[int, ...] = ()
    recomputed_before: str = ""

    @property
    def label(self) -> str:
        """`encoder.norm (LayerNormalization)`; its name if it is of no module."""
        return f"{self.module} ({self.op_type})" if self.module else self.name

    @property
    def recompute_ns(self) -> int:
        """The part of `backward_ns` that is recomputation: as long as the forward run."""
        return self.compute_ns - self.backward_ns if self.recomputed_before else 0


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """One collective of a move: payload bytes of one device and predicted time of one run."""

    collective: Collective
    payload_bytes: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Move:
    """A change of layout. `source` -> `target` of `tensor`; `reader`: the operator it is for ("" if it serves all
    readers or stores the producer's result). In phase `backward` the gradient moves, from the reader back, or
    (`regather`) the saved value is re-gathered for the reader's backward. In phase `update` the new weight moves
    from where the optimizer made it to where it is kept.

    `count`: times per step (microbatches); `hidden`: the overlapped share of its time in the schedule. `bucket`: moves
    with one number are sent together, and their times are shares of the bucket's (`shardplan.plan.step.buckets`); None:
    alone. `kind`: `blocking` moves are waited for where they stand; `prefetched` and `deferred` ones run beside
    compute, from the operator `issue_after` to the operator `wait_before` of the pass in which they move ("" for the
    beginning and the end of the pass).
    """

    tensor: str
    source: Layout
    target: Layout
    reader: str
    phase: Phase
    steps: tuple[CollectiveStep, ...]
    regather: bool = False
    count: int = 1
    hidden: float = 0.0
    bucket: int | None = None
    kind: MoveKind = "blocking"
    issue_after: str = ""
    wait_before: str = ""

    @property
    def time_ns(self) -> int:
        return self.count * sum(step.time_ns for step in self.steps)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device by category, at the moment when their sum is largest."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.temporaries


@dataclass(frozen=True, slots=True)
class Summary:
    """`step_ns`: the scheduled step, `compute_ns` + `communication_ns` (exposed communication, and the slowdown of
    compute beside communication); `hidden_ns`: overlapped communication. `bound_ns`, `step_bound_ns`: proven lower
    bound on the step of any plan; `gap`: its relative distance. `objective_ns`: `step_ns`. `scheduled_ns`,
    `overlap_weight`: only of plans older than format 1.4. `multipliers`: of the sums of each phase at the bound.
    `prefetch_distance`: how far ahead weights are gathered (blocks; -1: right before they are read);
    `prefetches_in_time`: or earlier, just in time for their readers; `reduces_beside`: whether gradients are reduced
    beside compute."""

    outcome: Literal["optimal", "feasible", "interrupted"]
    objective_ns: int
    bound_ns: int
    gap: float
    step_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int
    memory: Memory
    memory_limit_bytes: int
    reproducible: bool = True
    overlap_weight: float = 1.0
    step_bound_ns: int = 0
    scheduled_ns: int = 0
    multipliers: tuple[tuple[float, ...], ...] = ()
    prefetch_distance: int = 1
    prefetches_in_time: bool = False
    reduces_beside: bool = True

    @property
    def least_ns(self) -> int:
        """The proven lower bound on every plan's step; if the plan does not record it, its objective's bound."""
        return self.step_bound_ns or (self.step_ns if self.outcome == "optimal" else self.bound_ns)

    @property
    def slack(self) -> float:
        """The share of the step that a better plan might save. `gap` is the objective's, which may be far smaller."""
        return max(0.0, 1.0 - self.least_ns / self.step_ns) if self.step_ns else 0.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value sent from one stage of a pipeline to another, and its gradient back. `source`, `target`: layouts on the
    meshes of stage `sender` and stage `receiver`. `forward`, `backward`: collectives of one microbatch; a `permute`
    over all axes is the send. `count`: microbatches; `hidden`: the overlapped share."""

    tensor: str
    sender: int
    receiver: int
    source: Layout
    target: Layout
    forward: tuple[CollectiveStep, ...]
    backward: tuple[CollectiveStep, ...]
    count: int
    hidden: float

    @property
    def time_ns(self) -> int:
        return self.count * sum(step.time_ns for step in (*self.forward, *self.backward))


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the model on a part of the devices: those from `first_device` on, as many as the mesh of `plan` has.
    `units`: blocks of the model that it runs; `in_flight`: microbatches whose activations it holds; `plan`: of that
    part, with times and memory per step as in any plan."""

    name: str
    first_device: int
    units: tuple[str, ...]
    in_flight: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`schedule`: `1f1b`, `gpipe` or `interleaved:V`. `transfers`: first what each stage sends to the next, in order,
    then those that keep tied weights equal. `bubble`: share of the step that the slowest stage waits."""

    schedule: str
    stages: tuple[Stage, ...]
    transfers: tuple[Transfer, ...]
    bubble: float

    @property
    def handed(self) -> tuple[Transfer, ...]:
        """What each stage sends to the next."""
        return self.transfers[: len(self.stages) - 1]


@dataclass(frozen=True)
class Plan:
    model: Mapping[str, object]
    """name, digest (structure), mode, dims, optimizer, remat, microbatches, blocks ..., JSON-ready, fixed key order."""
    cluster: Mapping[str, object]
    """name, digest and the resolved profile."""
    mesh: Mesh
    axis_links: tuple[str, ...]
    summary: Summary
    tensors: tuple[TensorDecision, ...]
    operators: tuple[OperatorDecision, ...]
    moves: tuple[Move, ...]
    warnings: tuple[str, ...] = ()
    blocks: tuple[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], ...] = ()
    """Repeated blocks as (module paths of the copies, operator indices of each copy): for folding in `show`."""
    pipeline: Pipeline | None = None
    """Stages, each with a plan of its own; then `tensors`, `operators` and `moves` here are empty."""
    sources: Mapping[str, object] = field(default_factory=dict)
    """The sources of the inputs: model, cluster, constraints, pins, stages; JSON-ready."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shardplan.plan.views.notebook import summary_html

        return summary_html(self)

    def __repr__(self) -> str:
        """`<Plan of gpt2_small, training, on h100-dgx (machine=4 x gpu=4): step 12.8 ms, 3.31 GiB per device>`."""
        prices = self.model.get("cost_model")
        takes = f"priced by {prices}" if prices else f"step {duration(self.summary.step_ns)}"
        what = f"{self.model.get('name')}, {self.model.get('mode')}, on {self.cluster.get('name')} ({self.mesh})"
        stages = f", {counted(len(self.pipeline.stages), 'stage')}" if self.pipeline else ""
        return f"<Plan of {what}: {takes}, {size(self.summary.memory.total)} per device{stages}>"

    def records(self, table: Table) -> list[Row]:
        """The rows of one table (`parameters`, `tensors`, `operators`, `moves`), as `pandas.DataFrame` takes them;
        times in nanoseconds per step, sizes in bytes of one device. Raises `KeyError` for another name."""
        from shardplan.plan.views import tables

        return tables.table(self, table)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Operators and tensors with their decisions; see `shardplan.plan.views.networkx_graph`."""
        from shardplan.plan.views import networkx_graph

        return networkx_graph.to_networkx(self)
