"""The table of a cluster profile's keys, version 1: for each the allowed values, the default, and the resolved form.

From these tables YAML is checked, defaults are filled in, value types are built, misplaced keys are found and the
tables of docs/cluster-profiles.md are written. A new number is one line here and one in `shardplan.cluster.types`; then
run `python -m shardplan.cluster.reference`. Units are in the key names; a number may also carry its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardplan.cluster.quantity import GBIT, GBPS, MEGABYTES, MICROSECONDS, SIZE, TFLOPS
from shardplan.cluster.yaml import Field, Flag, Number, Section, Sequence, Table, Text

SCHEMA_VERSION: Final = 1
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")
Plain = dict[str, Any]
REQUIRED: Final = object()
OMITTED: Final = object()


@dataclass(frozen=True, slots=True)
class Around:
    """The surroundings of a level that is resolved: `joined`, the devices of the profile's mesh on it and inside, 0 for
    any number; `inner`: the level inside, resolved."""

    joined: int
    inner: Plain | None


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `default`: a plain value, `REQUIRED`, or `OMITTED` for one that may be absent when resolved too.
    `resolve`: (what is written or the default, all that is written beside it, the level's surroundings) -> the resolved
    value; `said`: its default in the documentation. `attribute`: of the value type (`""`: the key; None: none).
    `later`: profiles in older plans lack it, and mean by that what the value type has as default. `retired`: since when
    and why it decides nothing; it is still read, with a warning, and is not in the resolved profile.

    In a level: `beside`: the key or the topology without which it has no effect; `no_cards`: it has none beside network
    cards; `needed`: the topology that requires it.
    """

    key: str
    kind: Field | Keys
    about: str = ""
    default: Any = REQUIRED
    attribute: str | None = ""
    resolve: Callable[[Any, Plain, Around], Any] | None = None
    said: str = ""
    later: bool = False
    retired: str = ""
    beside: str = ""
    no_cards: bool = False
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """A mapping with these keys. `section`: what the YAML reader checks."""

    keys: tuple[Key, ...]
    section: Section = field(init=False)

    def __post_init__(self) -> None:
        kinds: Mapping[str, Field] = {
            key.key: key.kind.section if isinstance(key.kind, Keys) else key.kind for key in self.keys
        }
        object.__setattr__(self, "section", Section(kinds))


_EFFICIENCY = Number(open=True, maximum=1.2)
_SHARE = Number(open=True, maximum=1.0)
_HIDDEN = Number(maximum=1.0)
_TIMES = Number(open=True, maximum=4.0)
_COUNT = Number(minimum=1, integer=True)
_RATE = Number(GBPS, open=True)
_SCHEDULED: Final = "since plans of format 1.4: the schedule of a step says what overlaps compute"


def _retired(key: str, kind: Field, why: str) -> Key:
    """A key that older profiles may have."""
    return Key(key, kind, default=OMITTED, attribute=None, retired=why)


ETA_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "switch": {
        "all_reduce": {"2": 0.76, "4": 0.80, "8": 0.80}, "default": {"2": 0.68, "4": 0.78, "8": 0.80}, "nvls": 1.0,
    },
    "full_mesh": {"default": 0.70},
    "torus": {"default": 0.9},
    "pcie": {"default": 0.35},
    "custom": {"default": 1.0},
    "nics": {"all_reduce": 0.95, "default": 0.84, "partial": 0.96},
}  # fmt: skip
"""Link efficiency by topology (`nics`: between machines), fitted to published NCCL measurements: large messages of an
A100, H100, H200 and B200 reach 0.68 / 0.78 / 0.80 of the link with 2 / 4 / 8 ranks; NICs 0.96 where a group has some
of the devices of a machine, else 0.95 (all-reduce) and 0.84. All are limits for ever larger messages: the ramp comes on
top."""
TOPOLOGIES: Final = tuple(name for name in ETA_DEFAULTS if name != "nics")


# ---- defaults that depend on other keys ------------------------------------------------------------------------------


def _rounded(value: float, _: Plain, __: Around) -> int:
    return round(value)


def _in_order(peaks: Plain, _: Plain, __: Around) -> Plain:
    return {dtype: peaks[dtype] for dtype in DTYPES if dtype in peaks}


def _devices(value: int | None, _: Plain, around: Around) -> int:
    return around.joined if value is None else value


def _link(value: float | None, given: Plain, around: Around) -> float:
    if value is not None:
        return value
    if "node_gbit" in given:
        return float(given["node_gbit"] / 8 / given.get("nics", 1))
    if given.get("topology") == "full_mesh":
        return float(given["pair_gbps"] * max(_devices(given.get("devices"), given, around) - 1, 1))
    rates = _busbw(given.get("busbw_gbps", {}), given, around)
    return max(float(rate) for table in rates.values() for rate in table.values())


def _busbw(value: Plain, given: Plain, _: Around) -> Plain:
    """On a custom topology every collective has a bus bandwidth: by default that of the all-gather."""
    if given.get("topology") != "custom":
        return value
    fallback = value.get("all_gather") or value[min(value)]
    return {kind: value.get(kind, fallback) for kind in COLLECTIVES}


def _eta(value: Plain, given: Plain, _: Around) -> Plain:
    """A given `default` replaces the assumed efficiency of each collective."""
    assumed = ETA_DEFAULTS["nics" if "node_gbit" in given else given.get("topology", "switch")]
    kept = {kind: eta for kind, eta in assumed.items() if "default" not in value or kind in ("nvls", "partial")}
    return kept | value


def _base(value: float | None, _: Plain, around: Around) -> float:
    inner = around.inner["base_us"] if around.inner else 5.0
    return float(inner if value is None else value)


def _by_cards(inside: float, cards: float) -> Callable[[Any, Plain, Around], float]:
    return lambda value, given, _: float((cards if "node_gbit" in given else inside) if value is None else value)


# ---- the tables ------------------------------------------------------------------------------------------------------

LEVEL: Final = Keys((
    Key("topology", Text(TOPOLOGIES), "how the devices are joined", "switch", no_cards=True),
    Key("devices", _COUNT, "devices joined by one unit of the level; the outermost level is unlimited", None,
        resolve=_devices, said="from `mesh`"),
    Key("link_gbps", _RATE, "per device and direction; with `node_gbit`: what one device can reach", None,
        "link_bytes_per_s", resolve=_link,
        said="`node_gbit / nics`, or from `pair_gbps` or `busbw_gbps`; else required"),
    Key("pair_gbps", _RATE, "the one link between two devices", 0.0, "pair_bytes_per_s", said="none",
        beside="topology full_mesh", needed="full_mesh"),
    Key("node_gbit", Number(GBIT, open=True), "network cards of one unit of the level below, together; the devices of "
        "the unit share them", 0.0, "node_bytes_per_s", said="none"),
    Key("nics", _COUNT, "number of these cards", 0, None, said="1", beside="node_gbit"),
    Key("eta", Table(Table(_EFFICIENCY, ranks=True, scalar=_EFFICIENCY), (*COLLECTIVES, "default", "partial", "nvls")),
        "efficiency of the link, by collective or `default`, a number or a table `{ranks: number}`; `partial`: where a "
        "group has some of the devices of a machine; `nvls`: in-switch all-reduce", {}, resolve=_eta,
        said="by topology"),
    Key("base_us", Number(MICROSECONDS), "start of a collective", None, "base_s", resolve=_base,
        said="5, or as the level inside"),
    Key("step_us", Number(MICROSECONDS), "one step of a ring, or one level of a tree", None, "step_s",
        resolve=_by_cards(1.0, 10.0), said="1; 10 with `node_gbit`"),
    Key("ramp_mb", Number(MEGABYTES), "message size at which half the time beyond latency is ramp", None, "ramp_bytes",
        resolve=_by_cards(8.0, 30.0), said="8; 30 with `node_gbit`"),
    Key("nvls", Flag(), "the switch can reduce", False, no_cards=True),
    Key("wrap", Flag(), "the two ends of a whole axis are joined", False, beside="topology torus"),
    Key("wrap_multiple", _COUNT, "so are those of a slice whose size is a multiple of this", 0, said="none",
        beside="topology torus"),
    Key("busbw_gbps", Table(Table(_RATE, ranks=True), keys=COLLECTIVES), "bus bandwidth by collective and ranks, "
        "instead of `eta * link`; required for `custom`", {}, "busbw", resolve=_busbw, said="none", no_cards=True,
        needed="custom"),
    Key("share", Number(open=True, maximum=1.0, words=("auto",)), "share of the cards that a group gets; `auto`: its "
        "devices / all devices of the mesh in the machine", "auto", beside="node_gbit"),
    Key("scale_loss", Table(_SHARE, ranks=True), "`{machines: factor}` on the card bandwidth", {}, said="none",
        beside="node_gbit"),
))  # fmt: skip

GEMM: Final = Keys((
    Key("e", _SHARE, "share of the peak that matrix products reach: `e * m/(m+m0) * n/(n+n0) * k/(k+k0)`", 0.75),
    Key("m0", Number(), "see `e`", 64.0),
    Key("n0", Number(), "see `e`", 64.0),
    Key("k0", Number(), "see `e`", 128.0),
    Key("sustained", _SHARE, "of that, what a training step of hours keeps of a short measurement", 1.0,
        later=True),
    Key("attention", _TIMES, "of what plain products of these sizes reach, what fused attention does; where there is "
        "`device.attention`, of that", OMITTED, said="0.6, or 1"),
    Key("narrow", _SHARE, "share of the peak that products of 8 bits reach, those of 4 bits 0.84 times that", OMITTED,
        said="0.50"),
    Key("grouped", _SHARE, "of what plain products reach, what those of all experts of a device together do, "
        "whatever their `m` and `n`", OMITTED, said="1"),
))  # fmt: skip

DEVICE: Final = Keys((
    Key("kind", Text(), "name of the device; known kinds are checked against their data sheet", "", said="none"),
    Key("memory_bytes", Number(SIZE, open=True), "memory of one device", resolve=_rounded),
    Key("usable_fraction", _SHARE, "a plan may use `memory_bytes * usable_fraction - reserved_bytes`", 0.92),
    Key("reserved_bytes", Number(SIZE), "runtime context, communication buffers", 1_500_000_000, resolve=_rounded,
        said="1.5 GB"),
    Key("hbm_gbps", _RATE, "memory bandwidth", attribute="hbm_bytes_per_s"),
    Key("peak_tflops", Table(Number(TFLOPS, open=True), keys=DTYPES), f"dense peaks: `{' '.join(DTYPES)}`; a missing "
        "one is replaced by the next wider, with a warning", attribute="peak_flops", resolve=_in_order,
        said="one required"),
    Key("allow_tf32", Flag(), "fp32 matrix products use the tf32 peak", True),
    Key("gemm", GEMM),
    Key("mem_efficiency", _SHARE, "share of `hbm_gbps` that is reached", 0.75, "memory_efficiency"),
    Key("launch_us", Number(MICROSECONDS), "start of a kernel", 4.0, "launch_s"),
    Key("attention", Table(_SHARE, ranks=True), "`{size of a head: share}` of the peak that fused attention reaches "
        "over many keys, forward and backward together; interpolated between two sizes, beyond them that of the last",
        OMITTED, said="from `gemm`"),
    Key("attention_keys", Number(), "so many keys for each query, on average, halve that", OMITTED, said="0"),
))  # fmt: skip

OVERLAP: Final = Keys(
    (
        *(_retired(key, _HIDDEN, _SCHEDULED) for key in ("weight_gather", "grad_reduce", "tp", "a2a")),
        Key("p2p", _HIDDEN, "share of what pipeline stages send that overlaps compute", 0.9),
        Key("kappa", Number(minimum=1.0), "how much slower compute is beside communication", 1.1),
    )
)

COALESCE: Final = Keys((
    Key("bucket_mb", Number(MEGABYTES), "gradients of weights are sent together, at most so much of a device (as "
        "torch's DDP does it; XLA joins up to 30 MB); 0: each by itself "
        "([cost-model.md](cost-model.md#gradients-together))",
        25.0, "bucket_bytes"),
))  # fmt: skip

TRAINING: Final = Keys((
    Key("host_us", Number(MICROSECONDS), "the host starts an operator, forward or backward, in so much: an eager "
        "trainer is never faster than its host", OMITTED, "host_s", said="0"),
    Key("host_collective_us", Number(MICROSECONDS), "the same of a collective", OMITTED, "host_collective_s", said="0"),
    Key("loss_bytes", Number(), "memory traffic of the loss, forward and backward, for every logit: trainers take it "
        "in fp32", OMITTED, said="0"),
    Key("loss_kernels", Number(), "operators that the host starts for the loss of a microbatch, forward and backward, "
        "and which no model has; none where parameters are sharded (FSDP)", OMITTED, said="0"),
    Key("fsdp_loss_memory", Number(), "instead of `training.loss_memory` where parameters are sharded (FSDP)", OMITTED,
        said="`training.loss_memory`"),
    Key("fsdp_kappa", Number(minimum=1.0), "instead of `overlap.kappa` where parameters are sharded (FSDP)", OMITTED,
        said="`overlap.kappa`"),
    Key("sustained", Number(open=True, maximum=2.0), "times `device.gemm.sustained`: what matrix products keep in the "
        "runs of trainers", OMITTED, said="1"),
    Key("attention", _TIMES, "instead of `device.gemm.attention`", OMITTED, said="`device.gemm.attention`"),
    Key("memory", Number(open=True, maximum=2.0), "times `device.mem_efficiency`: what the unfused operators of "
        "trainers reach", OMITTED, said="1"),
    Key("fsdp_attention", _TIMES, "instead of `training.attention` where parameters are sharded (FSDP)", OMITTED,
        said="`training.attention`"),
    Key("fsdp_sustained", Number(open=True, maximum=2.0), "instead of `training.sustained` where parameters are "
        "sharded (FSDP)", OMITTED, said="`training.sustained`"),
    Key("fsdp_memory", Number(open=True, maximum=2.0), "instead of `training.memory` where parameters are sharded "
        "(FSDP)", OMITTED, said="`training.memory`"),
    Key("fsdp_loss_bytes", Number(), "instead of `training.loss_bytes` where parameters are sharded (FSDP)", OMITTED,
        said="`training.loss_bytes`"),
    Key("tp_forward", _HIDDEN, "share of tensor-parallel traffic of forward that runs in pieces beside products",
        OMITTED, said="0"),
    Key("tp_backward", _HIDDEN, "the same of backward, or beside the products for gradients of weights", OMITTED,
        said="0"),
    Key("exchange", _HIDDEN, "the same of exchanges between experts: tokens for several experts of one device are sent "
        "once, and beside other work", OMITTED, said="0"),
    Key("narrow", _SHARE, "instead of `device.gemm.narrow`", OMITTED, said="`device.gemm.narrow`"),
    Key("grouped", _SHARE, "instead of `device.gemm.grouped`", OMITTED, said="`device.gemm.grouped`"),
    Key("reduces_beside", Flag(), "gradients of weights that every device holds whole are reduced beside backward, as "
        "in buckets of DDP; false: after it, as Megatron-LM did until 2023", OMITTED, said="true"),
    Key("partial_groups", Number(minimum=1.0), "times what a reduction after backward takes in groups of several, but "
        "not all, devices of each of several machines", OMITTED, said="1"),
    Key("sends", _HIDDEN, "share of what pipeline stages hand on that each of them waits for: twice for every "
        "microbatch, at the ends once", OMITTED, said="`1 - overlap.p2p` of every border"),
    Key("loss_memory", Number(), "bytes that the loss holds for every logit, besides the logit and its gradient: those "
        "in fp32", OMITTED, said="0"),
))  # fmt: skip
"""What the runs of trainers take other than the schedule of a plan: only `shardplan price` reads it, and no plan that
is solved depends on it."""

PROVENANCE: Final = Keys((
    Key("status", Text(("datasheet", "measured", "estimated")), "estimated numbers cause a warning", "estimated"),
    Key("sources", Sequence(Text()), "where the numbers come from", [], said="none"),
    Key("date", Text(), "of the numbers", "", said="none"),
    Key("notes", Sequence(Text()), "what a reader should know", [], said="none"),
    Key("device_hour_usd", Number(open=True), "what a device costs; decides nothing", OMITTED),
))  # fmt: skip

AXIS: Final = Keys((
    Key("name", Text()), Key("size", _COUNT), Key("level", Text()),
))  # fmt: skip

GROUP: Final = Keys((
    Key("nodes", _COUNT, default=1), Key("per_node", _COUNT, default=1),
))  # fmt: skip

CURVE: Final = Keys((
    Key("collective", Text(COLLECTIVES), default="all_reduce"),
    Key("group", GROUP),
    Key("points", Sequence(Sequence(items=(Number(SIZE, open=True), Number(MICROSECONDS, open=True)))), default=[],
        resolve=lambda points, _, __: sorted(points)),
))  # fmt: skip

PROFILE: Final = Keys((
    Key("schema", Number(integer=True, minimum=SCHEMA_VERSION, maximum=SCHEMA_VERSION), "version of this table", 1),
    Key("name", Text(), "what it is called", OMITTED, said="file name"),
    Key("extends", Text(), "`builtin:NAME` or a relative path", OMITTED),
    Key("provenance", PROVENANCE),
    Key("mesh", Keys((
        Key("axes", Sequence(AXIS.section), "the mesh used when `--mesh` is absent, outermost axis first: `{name, "
        "size, "
            "level}` each"),
    ))),
    Key("device", DEVICE),
    Key("levels", Table(LEVEL.section), "kinds of link by name, innermost first"),
    Key("overlap", OVERLAP),
    Key("coalesce", COALESCE, later=True),
    Key("training", TRAINING, later=True),
    Key("spread", Table(Number(open=True, maximum=1.0)), "how far measured times of one kind lie apart, relative: of "
        "`compute`, of `memory`, and by name of a level of its links; what `solve --robust` draws constants within",
        {}, said="0.15 each", later=True),
    Key("curves", Sequence(CURVE.section), "measured times that replace the formula: `{collective, group: {nodes, "
        "per_node}, points: [[size, time], …]}`", [], said="none"),
))  # fmt: skip
