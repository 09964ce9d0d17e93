"""The fields of a plan file, each stated once: for writing, reading, the JSON Schema, `diff` and the docs.

A new field is one line here and, if it is new to the plan, one in `shardplan.plan.types`. Keep keys in the order in
which the file has them. After a change run `python -m shardplan.plan.schema`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final, get_args

from shardplan.layout.collective import CollectiveKind
from shardplan.plan.format.conversions import (
    BlockCopy,
    PlacedAxis,
    are_stages,
    as_many_as,
    block_copies,
    collective_step,
    devices_per_host,
    gap_of_bound,
    hosts,
    in_rank,
    itself,
    laid_mesh,
    made,
    permutes,
    placed_axes,
    rest_of_step,
    tensors_of,
    whole_plan,
)
from shardplan.plan.format.kinds import (
    Carried,
    Choice,
    Either,
    Flag,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Microseconds,
    Number,
    Optional,
    Text,
)
from shardplan.plan.format.mesh_kinds import AxisNames, LayoutText, PerAxis, Share, WholePlan
from shardplan.plan.format.records import REQUIRED, Checked, Field, Nested, Record, rows
from shardplan.plan.orientation import checkpoint_tensor, dim_segments, dim_shards, graph_tensor
from shardplan.plan.types import (
    Memory,
    Move,
    MoveKind,
    OperatorDecision,
    Phase,
    Pipeline,
    Stage,
    TensorDecision,
    Transfer,
)

MAJOR: Final = 1
DIGEST: Final = "sha256:"
TEXTS, COUNTS = ListOf(Text()), ListOf(Integer())


# ---- what was asked, and of what -------------------------------------------------------------------------------------

MODEL = Record("model", (
    Field("name", Text()),
    Field("digest", Text(), "Digest of the model's structure: its nodes, shapes, types and attributes, and the names "
          "of its values. Data of weights and the name of the file do not count."),
    Field("mode", Choice(("training", "inference")), diff="mode"),
    Field("dims", MapOf(Integer()), "The size that was given for each symbolic dim; `trip:NAME` is the trip count that "
          "was given for the loop NAME.", default=None),
    Field("optimizer", Text(), default=None, diff="optimizer"),
    Field("shard_optimizer", Flag(), "Whether optimizer state may be sharded otherwise than its weight; absent means "
          "false.", default=False, diff="shard optimizer"),
    Field("equal_layers", Flag(), "Whether all copies of a repeated block must have the same layouts; absent means "
          "false.", default=False, diff="equal layers"),
    Field("remat", Choice(("none", "selective", "alternate", "full", "auto")), "Which activations are recomputed "
          "in backward; with `auto` the planner chose, and operators and tensors say whether they are.", default=None,
          diff="remat"),
    Field("microbatches", Integer(1), default=None, diff="microbatches"),
    Field("operators", Integer(), "Number of operators in the model.", default=None),
    Field("parameters", Integer(), "Number of parameters (tensors) in the model.", default=None),
    Field("parameter_elements", Integer(), "Number of elements in all parameters together.", default=None),
    Field("loops", MapOf(Integer(1)), "Number of iterations of each loop whose body was planned; absent if there are "
          "no loops.", default=None),
    Field("stages", Either(("auto", "manual")), "Number of pipeline stages that was asked for; `manual` if the "
          "stages were fixed by hand; absent if no stages were asked for.",
          default=None, diff="stages"),
    Field("schedule", Text(), "The pipeline schedule that was asked for; absent without stages.", default=None,
          diff="schedule"),
    Field("kv_cache_tokens", Integer(), "Number of tokens for whose key-value cache memory is kept free; absent means "
          "0.", default=0, diff="kv cache tokens"),
    Field("cost_model", Text(), "Name of the cost model whose prices the search used; absent means shardplan's own.",
          default="shardplan", diff="cost model"),
    Field("target", Text(), "The runtime for which the plan was made: all of the plan can be said in its format; "
          "absent if any plan was allowed.", default="", diff="target"),
    Field("constraints", TEXTS, "Constraints as the user wrote them; absent if there were none.", default=None),
    Field("mesh_axis_names", TEXTS, "Names that the constraints use for the mesh axes, if they differ from the names "
          "in `mesh`.", default=None),
), make=dict, shared=False)  # fmt: skip
"""Carried as plain data; `default` is the request of a plan that does not record the field."""

CLUSTER = Record("cluster", (
    Field("name", Text()),
    Field("digest", Text(), "Digest of everything in the profile that influences a price."),
    Field("profile", Carried(), "The profile with every default written out, so that it can be planned with again."),
), make=dict, shared=False)  # fmt: skip

SOURCES = Record("sources", (
    Field("model", Text(), "The model: its path relative to the folder in which `solve` ran, or its description. Of an "
          "absolute path outside of that folder, only the file name is written.", default=None),
    Field("cluster", Text(), "The cluster profile: its name, or its path, written as for `model`.", default=None),
    Field("constraints", TEXTS, "The constraint files, and the plan files whose layouts were kept.", default=None),
    Field("pins", TEXTS, "Constraints that were given one by one (`--pin`).", default=None),
    Field("stages", Text(), "The plan file whose stages were taken over.", default=None),
), make=dict, shared=False)  # fmt: skip
"""Carried as plain data. What was given to a program as a value has no source."""


# ---- the mesh --------------------------------------------------------------------------------------------------------


AXIS = Record("axis", (
    Field("name", Text()),
    Field("size", Integer(1)),
    Field("link", Text(), "The level of the profile whose links join the devices along this axis."),
), make=made(PlacedAxis), shared=False)  # fmt: skip

MESH = Record("mesh", (
    Field("axes", rows(AXIS, least=1), get=placed_axes),
    Field("devices", Integer(1), get=attrgetter("mesh.size"), derived=True),
    Field("hosts", Integer(1), "Number of machines, if the innermost level is a machine. Consecutive ranks fill one "
          "machine after the other.", get=hosts, default=None, derived=True),
    Field("devices_per_host", Integer(1), get=devices_per_host, default=None, derived=True),
), make=laid_mesh, shared=False, part=True)  # fmt: skip


# ---- times and memory ------------------------------------------------------------------------------------------------

MEMORY = Record("memory", (
    Field("parameters", Integer(), diff="parameters"),
    Field("gradients", Integer(), diff="gradients"),
    Field("optimizer", Integer(), diff="optimizer"),
    Field("activations", Integer(), diff="activations"),
    Field("temporaries", Integer(), diff="temporaries"),
), make=made(Memory), shared=False)  # fmt: skip

SUMMARY = Record("summary", (
    Field("outcome", Choice(("optimal", "feasible", "interrupted"))),
    Field("objective", Microseconds(minimum=None), "The value that the search minimised, in microseconds.",
          "objective_ns"),
    Field("step_us", Microseconds(), "Predicted time of one step: compute_us + communication_us.", "step_ns",
          diff="step"),
    Field("bound_us", Microseconds(minimum=None), "Proven lower bound on `objective`.", "bound_ns"),
    Field("gap", Number(), "(objective - bound_us) / objective.", check=gap_of_bound),
    Field("compute_us", Microseconds(), "", "compute_ns", diff="compute"),
    Field("communication_us", Microseconds(), "Exposed communication: the part of the step that compute does not "
          "hide.", "communication_ns", check=rest_of_step, diff="communication"),
    Field("memory_bytes", Integer(), "Memory of one device at the moment when most is in use.",
          get=attrgetter("memory.total"), derived=True, diff="memory"),
    Field("memory_limit_bytes", Integer()),
    Field("memory", Nested(MEMORY)),
), make=dict, part=True)  # fmt: skip


def _detail(key: str, kind: Kind, about: str, attribute: str, *, default: object = None) -> Field:
    """A number of the summary that few readers need; one with a `default` may be absent in a file."""
    get, absent = attrgetter(f"summary.{attribute}"), REQUIRED if default is None else default
    return Field(key, kind, about, attribute, get, default=absent, always=True)


DETAILS = Record("details", (
    _detail("hidden_us", Microseconds(), "Communication overlapped with compute; not part of communication_us.",
            "hidden_ns"),
    _detail("overlap_weight", Number(maximum=1), "Always 1, except in plans older than 1.4, where it is the weight of "
            "hidden communication.", "overlap_weight"),
    _detail("step_bound_us", Microseconds(), "Lower bound on the predicted step of every plan.", "step_bound_ns"),
    Field("scheduled_us", Microseconds(), "The scheduled step, in plans older than 1.4; newer plans have it in "
          "step_us.", "scheduled_ns", attrgetter("summary.scheduled_ns"), default=0),
    _detail("multipliers", ListOf(ListOf(Number(maximum=1))), "Lagrange multipliers with which the bound was proven: "
            "one list for each phase, one number for each of the sums that it always has.", "multipliers", default=()),
    _detail("prefetch_distance", Integer(-1), "Number of blocks by which a weight is gathered ahead of the block "
            "that reads it; -1: it is gathered right before it is read.", "prefetch_distance", default=1),
    Field("prefetches_in_time", Flag(), "Whether weights are gathered earlier where that distance is too short, just "
          "in time for the operators that read them.", "prefetches_in_time", attrgetter("summary.prefetches_in_time"),
          default=False, since=6),
    _detail("reduces_beside", Flag(), "Whether gradients are reduced while backward still computes.", "reduces_beside",
            default=True),
    _detail("reproducible", Flag(), "False if time or Ctrl-C ended any of the search: another run may end elsewhere.",
            "reproducible"),
    Field("warnings", TEXTS),
), make=dict, shared=False, part=True)  # fmt: skip


# ---- tensors ---------------------------------------------------------------------------------------------------------


SHAPE = Field("shape", COUNTS, "Sizes of the dims.")
DTYPE = Field("dtype", Text(), "Element type, by ONNX's name in lower case: float, bfloat16, int64 ...")
LAYOUT = Field("layout", LayoutText(), "The layout in which the devices store the tensor.", check=in_rank, diff="{}")
DIMS = (
    Field("dims", ListOf(AxisNames()), "For each dim, the mesh axes that shard it, the major one first. `layout` says "
          "the same.", get=lambda tensor: dim_shards(tensor.layout, len(tensor.shape)), derived=True),
    Field("segments", MapOf(ListOf(Integer(1))), "For each dim that consists of segments (as a fused q, k, v does), "
          "their sizes; every segment is sharded on its own. Absent if no dim has segments.",
          get=lambda tensor: dim_segments(tensor.layout), default={}, derived=True),
)  # fmt: skip
STORED = (
    Field("served", LayoutText(), "The layout in which operators read the tensor, if it differs from `layout`; the "
          "tensor is moved to it once for all of them.", like="layout", check=in_rank, diff="served {}"),
    Field("bytes_per_device", Integer(), "Size on one device, in `layout`."),
    Field("saved", Flag(), "Whether the tensor is kept from forward to backward; absent means false.", default=False),
    Field("recomputed", Flag(), "Whether the tensor is recomputed for backward instead of kept; absent means "
          "false.", default=False, since=2, diff="recomputed"),
)  # fmt: skip

PARAMETER = Record("parameter", (
    Field("name", Text(), "Name in the checkpoint.", "checkpoint"),
    Field("tensor", Text(), "Name in the planned graph.", "name"),
    Field("onnx", Text(), "Name of the initializer in the ONNX file."),
    Field("perm", COUNTS, "Permutation of dims that turns the checkpoint's tensor into the graph's; empty: they are "
          "the same.", check=permutes, late=True),
    Field("aliases", TEXTS, "Other names in the checkpoint for the same tensor (tied weights)."),
    Field("trainable", Flag()),
    SHAPE, DTYPE, LAYOUT, *DIMS, *STORED,
    Field("optimizer", LayoutText(), "Layout of the optimizer state, if it differs from that of the parameter.",
          default=None, check=in_rank, diff="optimizer {}"),
), make=lambda found: graph_tensor(TensorDecision(role="parameter", **found)), view=checkpoint_tensor,
    about="One parameter, dims as the checkpoint stores them.")  # fmt: skip

_BOUNDARY = (Field("name", Text()), SHAPE, DTYPE, LAYOUT, *DIMS, *STORED)
_BOUNDARY_IS = "An input or output of the model."
INPUT = Record("boundary", _BOUNDARY, make=made(TensorDecision, role="input"), about=_BOUNDARY_IS)
OUTPUT = Record("boundary", _BOUNDARY, make=made(TensorDecision, role="output"), about=_BOUNDARY_IS)

TENSOR = Record("tensor", (
    Field("name", Text()),
    Field("role", Choice(("activation", "constant")), "What the tensor is; absent means activation.",
          default="activation"),
    SHAPE, DTYPE, LAYOUT, *STORED,
), make=made(TensorDecision), about="A value inside the graph.")  # fmt: skip


# ---- operators and moves ---------------------------------------------------------------------------------------------


OPERATOR = Record("operator", (
    Field("name", Text()),
    Field("op", Text(), "", "op_type"),
    Field("module", Text(), "Dotted path of the module that the operator belongs to; empty if unknown."),
    Field("equation", Text(), "The dims of operands and results, as an equation over the operator's factors."),
    Field("split", PerAxis(), "For each mesh axis, the factor that it splits. `-`: none; `~`: none, and gradients are "
          "partial; `+0`: none, and partial sums of operand 0 are passed on.", diff="{}"),
    Field("inputs", TEXTS, "Names of the operands; an empty name stands for an optional operand that is absent."),
    Field("reads", ListOf(Optional(LayoutText())), "The layout in which each operand is read.",
          check=as_many_as("inputs")),
    Field("outputs", TEXTS),
    Field("makes", ListOf(Optional(LayoutText())), "The layout in which each result is produced.",
          check=as_many_as("outputs")),
    Field("compute_ns", Integer()),
    Field("backward_ns", Integer(), "The part of compute_ns that runs after the forward pass; absent means 0.",
          default=0),
    Field("inner_ns", Integer(), "Time of collectives inside the operator; absent means 0.", default=0),
    Field("inner_forward_ns", ListOf(Integer()), "The part of inner_ns that runs in forward, for each mesh axis; "
          "absent means 0.", default=(), since=4),
    Field("inner_backward_ns", ListOf(Integer()), "The part of inner_ns that runs after the forward pass, for each "
          "mesh axis; absent means 0.", default=(), since=4),
    Field("again", Text(), "If this operator is recomputed: the operator right before whose backward that happens. "
          "Absent if it runs once.", "recomputed_before", default="", since=2, diff="recomputed"),
), make=made(OperatorDecision))  # fmt: skip


COLLECTIVE = Record("collective", (
    Field("kind", Choice(get_args(CollectiveKind)), get=attrgetter("collective.kind")),
    Field("axes", AxisNames(1), "The mesh axes along which the devices communicate.",
          get=attrgetter("collective.axes")),
    Field("share", Share(), "`bytes` as a share of the size of the whole tensor.", get=attrgetter("collective.share")),
    Field("bytes", Integer(), "Payload of one device in one run: the gathered output of an all_gather, the input of a "
          "reduction, the send buffer of an all_to_all, what one device sends in a permute.", "payload_bytes"),
    Field("time_ns", Integer(), "Time of one run."),
), make=collective_step)  # fmt: skip

MOVE = Record("move", (
    Field("tensor", Text()),
    Field("from", LayoutText(), "", "source"),
    Field("to", LayoutText(), "", "target"),
    Field("reader", Text(), "The operator that the move is for; empty if it serves all readers or stores a result."),
    Field("phase", Choice(get_args(Phase)), "When the move happens. In `backward` the gradient is moved; in `update` "
          "the new weight, from the layout in which the optimizer computed it."),
    Field("regather", Flag(), "Whether a saved value is gathered a second time for backward; absent means false. A "
          "weight that backward reads and that has no such move stays gathered from forward on.", default=False),
    Field("collectives", rows(COLLECTIVE), "", "steps"),
    Field("count", Integer(1), "Number of times that the move happens in one step."),
    Field("hidden", Number(maximum=1), "The share of its time that the schedule overlaps with compute."),
    Field("kind", Choice(get_args(MoveKind)), "Compute waits for a `blocking` move; `prefetched` and "
          "`deferred` moves run while others compute.", default="blocking", since=4),
    Field("issue_after", Text(), "The operator of the phase after which the move is issued; empty: it is issued when "
          "the phase begins.", default="", since=4),
    Field("wait_before", Text(), "The operator of the phase that waits for the move; empty: the end of the phase waits "
          "for it.", default="", since=4),
    Field("bucket", Integer(), "Moves with the same number are sent together, and each has its share of their time; "
          "absent if the move is sent alone.", default=None, since=3),
    Field("time_ns", Integer(), "Time of all its collectives in one step (`count` runs), hidden or not.", derived=True),
), make=made(Move))  # fmt: skip


# ---- blocks and stages -----------------------------------------------------------------------------------------------


BLOCK = Record("block", (
    Field("block", Integer(), "Copies with the same number are identical."),
    Field("name", Text()),
    Field("operators", ListOf(ListOf(Integer(), length=2)), "The operators of the copy, as ranges [first, last + 1) of "
          "positions in `operators`; all copies list them in the same order."),
), make=made(BlockCopy))  # fmt: skip


TRANSFER = Record("transfer", (
    Field("tensor", Text()),
    Field("sender", Integer()),
    Field("receiver", Integer(), check=are_stages),
    Field("from", LayoutText(), "", "source", stage="sender"),
    Field("to", LayoutText(), "", "target", stage="receiver"),
    Field("forward", rows(COLLECTIVE), stage="receiver"),
    Field("backward", rows(COLLECTIVE), stage="sender"),
    Field("count", Integer(1)),
    Field("hidden", Number(maximum=1)),
    Field("time_ns", Integer(), derived=True),
), make=made(Transfer))  # fmt: skip

STAGE = Record("stage", (
    Field("name", Text()),
    Field("first_device", Integer(), "Rank of the stage's first device. The stage has as many devices as the mesh of "
          "its plan."),
    Field("units", ListOf(Text(), least=1), "The blocks of the model that the stage runs."),
    Field("in_flight", Integer(1), "Number of microbatches whose activations the stage holds at the same time."),
    Field("plan", WholePlan()),
), make=made(Stage), shared=False, named=True)  # fmt: skip

PIPELINE = Record("pipeline", (
    Field("schedule", Text(), "`1f1b`, `gpipe` or `interleaved:V`."),
    Field("bubble", Number(maximum=1), "The share of the step in which the slowest stage waits."),
    Field("transfers", rows(TRANSFER), late=True),
    Field("stages", rows(STAGE, least=1)),
), make=made(Pipeline), shared=False)  # fmt: skip


# ---- the whole -------------------------------------------------------------------------------------------------------


PLAN = Record("plan", (
    Field("format_version", Text(rf"^{MAJOR}\.\d+$"), get=lambda _: f"{MAJOR}.0"),
    Field("digest", Text(rf"^{DIGEST}[0-9a-f]{{64}}$"), "Digest of the rest of the document, as canonical JSON.",
          get=lambda _: None, default=None, since=5),
    Field("model", Checked(MODEL), "The model, and the options of the request."),
    Field("cluster", Checked(CLUSTER), "The whole profile, so that a plan can be priced again without the YAML file."),
    Field("sources", Checked(SOURCES), "The files and texts from which the request was read.", default={}, since=5),
    Field("mesh", Nested(MESH), "The mesh axes, outermost first, with their links.", get=itself),
    Field("summary", Nested(SUMMARY), "Predicted times, memory of one device by category, outcome, bound, gap."),
    Field("details", Nested(DETAILS), "Further numbers of the summary, and the warnings.", get=itself),
    Field("parameters", rows(PARAMETER), "The parameters, with dims as the checkpoint stores them.",
          get=tensors_of("parameter")),
    Field("inputs", rows(INPUT), "The inputs of the model.", get=tensors_of("input")),
    Field("outputs", rows(OUTPUT), "The outputs of the model.", get=tensors_of("output")),
    Field("tensors", rows(TENSOR), "All values between inputs and outputs.", get=tensors_of("activation", "constant")),
    Field("operators", rows(OPERATOR), "The operators: what each mesh axis splits, and the layouts of operands and "
          "results."),
    Field("moves", rows(MOVE), "All changes of layout, with their collectives."),
    Field("blocks", rows(BLOCK), "Groups of operators that are copies of each other, such as decoder layers.",
          get=block_copies),
    Field("pipeline", Nested(PIPELINE), "Only in a plan with stages. The decisions are then in the plans of the "
          "stages, and the sections above are empty.", default=None, since=1),
), make=whole_plan, shared=False)  # fmt: skip
