"""The fields of a plan file, each stated once: for writing, reading, the JSON Schema, `diff` and the docs.

A new field is one line here and, if it is new to the plan, one in `shardplan.plan.types`. Keep keys in the order in
which the file has them. After a change run `python -m shardplan.plan.schema`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final, get_args

from shardplan.layout.collective import CollectiveKind
from shardplan.plan.kinds import (
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
from shardplan.plan.mesh_kinds import AxisNames, LayoutText, PerAxis, Share, WholePlan
from shardplan.plan.orientation import checkpoint_tensor, dim_segments, dim_shards, graph_tensor
from shardplan.plan.parts import (
    BlockCopy,
    PlacedAxis,
    are_stages,
    as_many_as,
    block_copies,
    collective_step,
    devices_per_host,
    hosts,
    in_rank,
    itself,
    laid_mesh,
    made,
    permutes,
    placed_axes,
    tensors_of,
    whole_plan,
)
from shardplan.plan.record import REQUIRED, Checked, Field, Nested, Record, rows
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
    Field("digest", Text(), "Of the structure: nodes, shapes, types, attributes; not of weights or names."),
    Field("mode", Choice(("training", "inference")), diff="mode"),
    Field("dims", MapOf(Integer()), "Symbolic dims and the sizes they were given; `trip:NAME` is the trip count that "
          "was given for the loop NAME.", default=None),
    Field("optimizer", Text(), default=None, diff="optimizer"),
    Field("shard_optimizer", Flag(), "Optimizer state may be sharded apart from the weights; absent means false.",
          default=False, diff="shard optimizer"),
    Field("equal_layers", Flag(), "All copies of a repeated block take the same layouts; absent means false.",
          default=False, diff="equal layers"),
    Field("remat", Choice(("none", "selective", "alternate", "full", "auto")), "What is computed again in backward; "
          "with `auto`, operators and tensors say so themselves.", default=None, diff="remat"),
    Field("microbatches", Integer(1), default=None, diff="microbatches"),
    Field("operators", Integer(), "How many the model has.", default=None),
    Field("parameters", Integer(), "How many the model has.", default=None),
    Field("parameter_elements", Integer(), "Of all parameters together.", default=None),
    Field("loops", MapOf(Integer(1)), "Loops whose bodies were planned, and the iterations of each; absent where there "
          "are none.", default=None),
    Field("stages", Either(("auto", "manual")), "How many stages were asked for, `manual` where they were "
          "fixed by hand; absent where none were.",
          default=None, diff="stages"),
    Field("schedule", Text(), "Pipeline schedule that was asked for; absent without stages.", default=None,
          diff="schedule"),
    Field("kv_cache_tokens", Integer(), "Tokens of key-value cache that memory is kept free for; absent means 0.",
          default=0, diff="kv cache tokens"),
    Field("cost_model", Text(), "Whose prices decided; absent means shardplan's own.", default="shardplan",
          diff="cost model"),
    Field("target", Text(), "The runtime whose format was to say the plan; absent where any plan would do.", default="",
          diff="target"),
    Field("constraints", TEXTS, "What was fixed by hand, as it was written; absent where nothing was.", default=None),
    Field("mesh_axis_names", TEXTS, "The names that the constraints give to the mesh axes, where they are others.",
          default=None),
), make=dict, shared=False)  # fmt: skip
"""Carried as plain data; `default` is the request of a plan that does not record the field."""

CLUSTER = Record("cluster", (
    Field("name", Text()),
    Field("digest", Text(), "Of everything in the profile that decides a price."),
    Field("profile", Carried(), "The resolved profile, every default written out; it can be planned with again."),
), make=dict, shared=False)  # fmt: skip

SOURCES = Record("sources", (
    Field("model", Text(), "The model: a path from the folder in which `solve` ran, or a description. Of an absolute "
          "path outside of that folder the name alone.", default=None),
    Field("cluster", Text(), "The cluster profile: its name, or a path as above.", default=None),
    Field("constraints", TEXTS, "Files of constraints, and plans whose layouts were kept.", default=None),
    Field("pins", TEXTS, "Single constraints.", default=None),
    Field("stages", Text(), "The plan as which the model was cut.", default=None),
), make=dict, shared=False)  # fmt: skip
"""Carried as plain data. What was given to a program as a value has no source."""


# ---- the mesh --------------------------------------------------------------------------------------------------------


AXIS = Record("axis", (
    Field("name", Text()),
    Field("size", Integer(1)),
    Field("link", Text(), "Level of the profile that joins the devices along this axis."),
), make=made(PlacedAxis), shared=False)  # fmt: skip

MESH = Record("mesh", (
    Field("axes", rows(AXIS, least=1), get=placed_axes),
    Field("devices", Integer(1), get=attrgetter("mesh.size"), derived=True),
    Field("hosts", Integer(1), "Machines, where the innermost link is that of a machine; ranks fill one after the "
          "other.", get=hosts, default=None, derived=True),
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
    Field("objective", Microseconds(minimum=None), "What was minimised, in microseconds.", "objective_ns"),
    Field("step_us", Microseconds(), "The scheduled step: compute_us + communication_us.", "step_ns",
          diff="step"),
    Field("bound_us", Microseconds(minimum=None), "Proven lower bound on the objective.", "bound_ns"),
    Field("gap", Number(), "(objective - bound_us) / objective."),
    Field("compute_us", Microseconds(), "", "compute_ns", diff="compute"),
    Field("communication_us", Microseconds(), "Exposed communication: the rest of the step.", "communication_ns",
          diff="communication"),
    Field("memory_bytes", Integer(), "Of one device, at the moment when it is largest.", get=attrgetter("memory.total"),
          derived=True, diff="memory"),
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
    _detail("overlap_weight", Number(maximum=1), "1; of plans older than 1.4 the weight of hidden communication.",
            "overlap_weight"),
    _detail("step_bound_us", Microseconds(), "No plan's step is predicted to be shorter.", "step_bound_ns"),
    Field("scheduled_us", Microseconds(), "Of plans older than 1.4 the scheduled step, which now is step_us.",
          "scheduled_ns", attrgetter("summary.scheduled_ns"), default=0),
    _detail("multipliers", ListOf(ListOf(Number(maximum=1))), "Of the sums of every phase, where the bound was found.",
            "multipliers", default=()),
    _detail("prefetch_distance", Integer(-1), "So many blocks before its reader's a weight is gathered; -1: right "
            "before it is read.", "prefetch_distance", default=1),
    Field("prefetches_in_time", Flag(), "Whether weights are gathered earlier where that distance is too short, just "
          "in time for their readers.", "prefetches_in_time", attrgetter("summary.prefetches_in_time"), default=False,
          since=6),
    _detail("reduces_beside", Flag(), "Whether gradients are reduced beside compute.", "reduces_beside", default=True),
    _detail("reproducible", Flag(), "False when a clock decided where the search ended.", "reproducible"),
    Field("warnings", TEXTS),
), make=dict, shared=False, part=True)  # fmt: skip


# ---- tensors ---------------------------------------------------------------------------------------------------------


SHAPE = Field("shape", COUNTS, "Sizes of the dims.")
DTYPE = Field("dtype", Text(), "ONNX's name in lower case: float, bfloat16, int64 ...")
LAYOUT = Field("layout", LayoutText(), "In which each device keeps the tensor.", check=in_rank, diff="{}")
DIMS = (
    Field("dims", ListOf(AxisNames()), "Per dim, the mesh axes that shard it, major first; the same as `layout` says.",
          get=lambda tensor: dim_shards(tensor.layout, len(tensor.shape)), derived=True),
    Field("segments", MapOf(ListOf(Integer(1))), "Dim -> sizes of its segments, each sharded on its own; absent when "
          "no dim has any.", get=lambda tensor: dim_segments(tensor.layout), default={}, derived=True),
)  # fmt: skip
STORED = (
    Field("served", LayoutText(), "In which readers find it, where that differs from `layout`: moved once for all "
          "readers.", like="layout", check=in_rank, diff="served {}"),
    Field("bytes_per_device", Integer(), "Of the kept layout."),
    Field("saved", Flag(), "Kept from forward for backward; absent means false.", default=False),
    Field("recomputed", Flag(), "Not kept but made again for backward; absent means false.",
          default=False, since=2, diff="recomputed"),
)  # fmt: skip

PARAMETER = Record("parameter", (
    Field("name", Text(), "In the checkpoint.", "checkpoint"),
    Field("tensor", Text(), "In the planned graph.", "name"),
    Field("onnx", Text(), "Initializer in the ONNX file."),
    Field("perm", COUNTS, "The graph's tensor is the checkpoint's transposed by this; empty: as it is.",
          check=permutes, late=True),
    Field("aliases", TEXTS, "Other names of the same data."),
    Field("trainable", Flag()),
    SHAPE, DTYPE, LAYOUT, *DIMS, *STORED,
    Field("optimizer", LayoutText(), "Layout of its optimizer state, where that is sharded apart from it.",
          default=None, check=in_rank, diff="optimizer {}"),
), make=lambda found: graph_tensor(TensorDecision(role="parameter", **found)), view=checkpoint_tensor,
    about="One parameter, dims as the checkpoint stores them.")  # fmt: skip

_BOUNDARY = (Field("name", Text()), SHAPE, DTYPE, LAYOUT, *DIMS, *STORED)
_BOUNDARY_IS = "An input or output of the model."
INPUT = Record("boundary", _BOUNDARY, make=made(TensorDecision, role="input"), about=_BOUNDARY_IS)
OUTPUT = Record("boundary", _BOUNDARY, make=made(TensorDecision, role="output"), about=_BOUNDARY_IS)

TENSOR = Record("tensor", (
    Field("name", Text()),
    Field("role", Choice(("activation", "constant")), "Absent for activations.", default="activation"),
    SHAPE, DTYPE, LAYOUT, *STORED,
), make=made(TensorDecision), about="A value inside the graph.")  # fmt: skip


# ---- operators and moves ---------------------------------------------------------------------------------------------


OPERATOR = Record("operator", (
    Field("name", Text()),
    Field("op", Text(), "", "op_type"),
    Field("module", Text(), "Dotted module path; empty when unknown."),
    Field("equation", Text(), "The operator's rule over its factors."),
    Field("split", PerAxis(), "Mesh axis -> the factor it splits; `-` nothing, `~` nothing with partial gradients, "
          "`+0` partial sums of operand 0 pass through.", diff="{}"),
    Field("inputs", TEXTS, "Names of the operands; empty where an optional one is absent."),
    Field("reads", ListOf(Optional(LayoutText())), "Layout in which each operand is read.",
          check=as_many_as("inputs")),
    Field("outputs", TEXTS),
    Field("makes", ListOf(Optional(LayoutText())), "Layout in which each result is made.",
          check=as_many_as("outputs")),
    Field("compute_ns", Integer()),
    Field("backward_ns", Integer(), "Part of compute_ns after the forward pass; absent when 0.", default=0),
    Field("inner_ns", Integer(), "Collectives inside the operator; absent when 0.", default=0),
    Field("inner_forward_ns", ListOf(Integer()), "Of inner_ns, what runs in forward, per mesh axis; absent when "
          "nothing does.", default=(), since=4),
    Field("inner_backward_ns", ListOf(Integer()), "Of inner_ns, what runs after the forward pass, per mesh axis.",
          default=(), since=4),
    Field("again", Text(), "Name of the operator right before whose backward this one runs a second time; absent where "
          "it runs once.", default="", since=2, diff="run again"),
), make=made(OperatorDecision))  # fmt: skip


COLLECTIVE = Record("collective", (
    Field("kind", Choice(get_args(CollectiveKind)), get=attrgetter("collective.kind")),
    Field("axes", AxisNames(1), "Mesh axes along which the devices of one group differ.",
          get=attrgetter("collective.axes")),
    Field("share", Share(), "Payload over the size of the whole tensor.", get=attrgetter("collective.share")),
    Field("bytes", Integer(), "Payload of one device, once: the gathered output of an all_gather, the input of the "
          "reductions, the send buffer of an all_to_all, what one device sends in a permute.", "payload_bytes"),
    Field("time_ns", Integer(), "Once."),
), make=collective_step)  # fmt: skip

MOVE = Record("move", (
    Field("tensor", Text()),
    Field("from", LayoutText(), "", "source"),
    Field("to", LayoutText(), "", "target"),
    Field("reader", Text(), "The operator it is for; empty when it serves all readers or stores a result."),
    Field("phase", Choice(get_args(Phase)), "In backward it is the gradient that moves; in update the new weight, from "
          "where the optimizer made it."),
    Field("regather", Flag(), "A saved value is gathered again for backward; absent means false.", default=False),
    Field("collectives", rows(COLLECTIVE), "", "steps"),
    Field("count", Integer(1), "Times per step."),
    Field("hidden", Number(maximum=1), "Share of its time that the schedule overlaps with compute."),
    Field("kind", Choice(get_args(MoveKind)), "A `blocking` move is waited for where it stands; `prefetched` and "
          "`deferred` ones run beside compute.", default="blocking", since=4),
    Field("issue_after", Text(), "The operator of its phase after which it is issued; empty: as the phase begins.",
          default="", since=4),
    Field("wait_before", Text(), "The operator of its phase before which it is awaited; empty: as the phase ends.",
          default="", since=4),
    Field("bucket", Integer(), "Moves with one number are sent together, and their times are shares of that; absent "
          "where it is sent by itself.", default=None, since=3),
    Field("time_ns", Integer(), "Of all its collectives, `count` times, hidden or not.", derived=True),
), make=made(Move))  # fmt: skip


# ---- blocks and stages -----------------------------------------------------------------------------------------------


BLOCK = Record("block", (
    Field("block", Integer(), "Copies with the same number are identical."),
    Field("name", Text()),
    Field("operators", ListOf(ListOf(Integer(), length=2)), "Runs [first, last + 1) of positions in `operators`, in "
          "corresponding order."),
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
    Field("first_device", Integer(), "Rank of its first device; it has as many as the mesh of its plan."),
    Field("units", ListOf(Text(), least=1), "Blocks of the model that it runs."),
    Field("in_flight", Integer(1), "Microbatches whose activations it holds at once."),
    Field("plan", WholePlan()),
), make=made(Stage), shared=False, named=True)  # fmt: skip

PIPELINE = Record("pipeline", (
    Field("schedule", Text(), "1f1b, gpipe or interleaved:V."),
    Field("bubble", Number(maximum=1), "Share of the step that the slowest stage waits."),
    Field("transfers", rows(TRANSFER), late=True),
    Field("stages", rows(STAGE, least=1)),
), make=made(Pipeline), shared=False)  # fmt: skip


# ---- the whole -------------------------------------------------------------------------------------------------------


PLAN = Record("plan", (
    Field("format_version", Text(rf"^{MAJOR}\.\d+$"), get=lambda _: f"{MAJOR}.0"),
    Field("digest", Text(rf"^{DIGEST}[0-9a-f]{{64}}$"), "Of all the rest of the document, as canonical JSON.",
          get=lambda _: None, default=None, since=5),
    Field("model", Checked(MODEL), "Which model, and what was asked for."),
    Field("cluster", Checked(CLUSTER), "The whole resolved profile: a plan can be priced again without the YAML file."),
    Field("sources", Checked(SOURCES), "Where what was asked for was read from.", default={}, since=5),
    Field("mesh", Nested(MESH), "Axes, outermost first, with their links.", get=itself),
    Field("summary", Nested(SUMMARY), "Predicted times, memory of one device by category, outcome, bound, gap."),
    Field("details", Nested(DETAILS), "What few readers need of the summary, and warnings.", get=itself),
    Field("parameters", rows(PARAMETER), "Dims as the checkpoint stores them.", get=tensors_of("parameter")),
    Field("inputs", rows(INPUT), "Of the model.", get=tensors_of("input")),
    Field("outputs", rows(OUTPUT), "Of the model.", get=tensors_of("output")),
    Field("tensors", rows(TENSOR), "Every value in between.", get=tensors_of("activation", "constant")),
    Field("operators", rows(OPERATOR), "What each mesh axis splits, and the layouts of operands and results."),
    Field("moves", rows(MOVE), "Every change of layout, with its collectives."),
    Field("blocks", rows(BLOCK), "Which operators are copies of each other (decoder layers).", get=block_copies),
    Field("pipeline", Nested(PIPELINE), "Only in a plan with stages; the decisions are then in the plans of the "
          "stages, and the sections above are empty.", default=None, since=1),
), make=whole_plan, shared=False)  # fmt: skip
