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
from shardplan.cluster.yaml import NAME, TITLE, Field, Flag, Number, Section, Sequence, Table, Text

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


# Limits are far from any device, and near enough that no sum or quotient of finite values overflows.
LEAST_SHARE: Final = 0.01
_LITTLE: Final = 1e-4
_EFFICIENCY = Number(minimum=LEAST_SHARE, maximum=1.2)
_SHARE = Number(minimum=LEAST_SHARE, maximum=1.0)
_PART = Number(minimum=_LITTLE, maximum=1.0)
_HIDDEN = Number(maximum=1.0)
_TIMES = Number(minimum=LEAST_SHARE, maximum=4.0)
_FACTOR = Number(minimum=LEAST_SHARE, maximum=2.0)
_SLOWER = Number(minimum=1.0, maximum=100.0)
_COUNT = Number(minimum=1, maximum=1_000_000, integer=True)
RATE = Number(GBPS, minimum=_LITTLE, maximum=1e6)
_CARDS = Number(GBIT, minimum=1e-3, maximum=1e8)
PEAK = Number(TFLOPS, minimum=1e-3, maximum=1e6)
_MICROSECONDS = Number(MICROSECONDS, maximum=1e7)
_MEGABYTES = Number(MEGABYTES, maximum=1e6)
_MEMORY = Number(SIZE, minimum=1.0, maximum=1e15)
_BYTES = Number(maximum=1e4)
_SIZE = Number(maximum=1e6)
_MANY = Number(maximum=1e7)
_TIME = Number(MICROSECONDS, minimum=1e-3, maximum=1e9)
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
    Key("devices", _COUNT, "number of devices that one unit of the level joins; the outermost level may have any "
        "number", None, resolve=_devices, said="from `mesh`"),
    Key("link_gbps", RATE, "bandwidth per device and direction; with `node_gbit`: the most that one device reaches",
        None, "link_bytes_per_s", resolve=_link, said="`node_gbit / nics`, or from `pair_gbps` or `busbw_gbps`; else "
        "required"),
    Key("pair_gbps", RATE, "bandwidth of the link between two devices", 0.0, "pair_bytes_per_s", said="none",
        beside="topology full_mesh", needed="full_mesh"),
    Key("node_gbit", _CARDS, "total bandwidth of the network cards of one unit of the level below; "
        "the devices of the unit share it", 0.0, "node_bytes_per_s", said="none"),
    Key("nics", _COUNT, "number of network cards of one unit of the level below", 0, None, said="1",
        beside="node_gbit"),
    Key("eta", Table(Table(_EFFICIENCY, ranks=True, scalar=_EFFICIENCY), (*COLLECTIVES, "default", "partial", "nvls")),
        "efficiency of the link, by collective or `default`, as a number or a table `{ranks: number}`; `partial`: of "
        "groups that have some, but not all, devices of a machine; `nvls`: of all-reduce in the switch", {},
        resolve=_eta, said="by topology"),
    Key("base_us", _MICROSECONDS, "time to start a collective", None, "base_s", resolve=_base,
        said="5, or as the level inside"),
    Key("step_us", _MICROSECONDS, "latency of one step of a ring, or of one level of a tree", None, "step_s",
        resolve=_by_cards(1.0, 10.0), said="1; 10 with `node_gbit`"),
    Key("ramp_mb", _MEGABYTES, "size of the message that takes, beyond latency, twice as long as at full "
        "bandwidth", None, "ramp_bytes", resolve=_by_cards(8.0, 30.0), said="8; 30 with `node_gbit`"),
    Key("nvls", Flag(), "whether the switch can reduce (NVLink SHARP)", False, no_cards=True),
    Key("wrap", Flag(), "whether a link joins the two ends of an axis that spans the whole level", False,
        beside="topology torus"),
    Key("wrap_multiple", _COUNT, "a link also joins the two ends of a slice whose size is a multiple of this", 0,
        said="none", beside="topology torus"),
    Key("busbw_gbps", Table(Table(RATE, ranks=True), keys=COLLECTIVES), "bus bandwidth by collective and number of "
        "ranks, used instead of `eta * link_gbps`; required for `custom`", {}, "busbw", resolve=_busbw, said="none",
        no_cards=True, needed="custom"),
    Key("share", Number(minimum=_LITTLE, maximum=1.0, words=("auto",)), "share of the cards' bandwidth that a group "
        "gets; `auto`: its devices in the machine / all devices of the mesh in the machine", "auto",
        beside="node_gbit"),
    Key("scale_loss", Table(_PART, ranks=True), "`{machines: factor}`: what is left of the cards' bandwidth between "
        "so many machines", {}, said="none", beside="node_gbit"),
))  # fmt: skip

GEMM: Final = Keys((
    Key("e", _SHARE, "matrix products of sizes m, n, k reach this share of the peak: `e * m/(m+m0) * n/(n+n0) * "
        "k/(k+k0)`", 0.75),
    Key("m0", _SIZE, "see `e`", 64.0),
    Key("n0", _SIZE, "see `e`", 64.0),
    Key("k0", _SIZE, "see `e`", 128.0),
    Key("sustained", _SHARE, "factor on the rate of matrix products in long runs: devices that are busy for hours are "
        "slower than in a short measurement", 1.0, later=True),
    Key("attention", _TIMES, "rate of fused attention as a share of the rate of plain products of these sizes, or, if "
        "the profile has `device.attention`, of the rate in that table", OMITTED, said="0.6, or 1"),
    Key("narrow", _SHARE, "share of the peak that products of 8 bits reach; products of 4 bits reach 0.84 times that",
        OMITTED, said="0.50"),
    Key("grouped", _SHARE, "rate of the products of several experts of a device together, as a share of the rate of "
        "plain products; their `m` and `n` do not matter", OMITTED, said="1"),
))  # fmt: skip

DEVICE: Final = Keys((
    Key("kind", Text(form=TITLE), "name of the device; known kinds are checked against their data sheet", "",
        said="none"),
    Key("memory_bytes", _MEMORY, "memory of one device", resolve=_rounded),
    Key("usable_fraction", _SHARE, "share of the memory that may be used: a plan has `memory_bytes * usable_fraction - "
        "reserved_bytes`", 0.92),
    Key("reserved_bytes", Number(SIZE, maximum=1e15), "memory for the runtime's context and communication buffers",
        1_500_000_000, resolve=_rounded, said="1.5 GB"),
    Key("hbm_gbps", RATE, "memory bandwidth", attribute="hbm_bytes_per_s"),
    Key("peak_tflops", Table(PEAK, keys=DTYPES),
        f"dense peak by type: `{' '.join(DTYPES)}`; a missing one is replaced by the next wider, with a warning",
        attribute="peak_flops", resolve=_in_order, said="one required"),
    Key("allow_tf32", Flag(), "whether fp32 matrix products use the tf32 peak", True),
    Key("gemm", GEMM),
    Key("mem_efficiency", _SHARE, "share of `hbm_gbps` that is reached", 0.75, "memory_efficiency"),
    Key("launch_us", _MICROSECONDS, "time to start a kernel", 4.0, "launch_s"),
    Key("attention", Table(_SHARE, ranks=True), "`{size of a head: share}`: the share of the peak that fused attention "
        "reaches over many keys, forward and backward together; interpolated between sizes, constant beyond the last",
        OMITTED, said="from `gemm`"),
    Key("attention_keys", _MANY, "number of keys for each query, on average, at which fused attention reaches half "
        "of that share", OMITTED, said="0"),
))  # fmt: skip

OVERLAP: Final = Keys(
    (
        *(_retired(key, _HIDDEN, _SCHEDULED) for key in ("weight_gather", "grad_reduce", "tp", "a2a")),
        Key("p2p", _HIDDEN, "share of what pipeline stages send that overlaps compute", 0.9),
        Key("kappa", _SLOWER, "factor by which compute is slower while it overlaps communication", 1.1),
    )
)

COALESCE: Final = Keys((
    Key("bucket_mb", _MEGABYTES, "gradients of weights are reduced together in buckets of at most this size on "
        "one device (as torch's DDP does; XLA joins up to 30 MB); 0: each is reduced alone "
        "([cost-model.md](cost-model.md#gradients-together))", 25.0, "bucket_bytes"),
))  # fmt: skip

TRAINING: Final = Keys((
    Key("host_us", _MICROSECONDS, "time in which the host starts an operator, forward or backward: an eager "
        "trainer is never faster than its host", OMITTED, "host_s", said="0"),
    Key("eager_us", _MICROSECONDS, "time in which the host starts one kernel of a program that runs as it is "
        "written, for `price --eager`", OMITTED, "eager_s", said="none, and `--eager` is refused"),
    Key("host_collective_us", _MICROSECONDS, "time in which the host starts a collective", OMITTED,
        "host_collective_s", said="0"),
    Key("tp_exponent", _SLOWER, "how host and device add up where ranks wait for each other within a "
        "microbatch, as of tensor parallelism: 1 is one after the other, a large number the slower of the two",
        OMITTED, said="3, as on a single device"),
    Key("loss_bytes", _BYTES, "bytes that the loss reads and writes for every logit, forward and backward: trainers "
        "compute it in fp32", OMITTED, said="0"),
    Key("cut_loss_bytes", _BYTES, "instead of `training.loss_bytes` where tensor-parallel ranks cut the vocabulary",
        OMITTED, said="`training.loss_bytes`"),
    Key("loss_kernels", _MANY, "number of operators that the host starts for the loss of a microbatch, forward and "
        "backward, in addition to those of the model; 0 where parameters are sharded (FSDP)", OMITTED, said="0"),
    Key("fsdp_loss_memory", _BYTES, "instead of `training.loss_memory` where parameters are sharded (FSDP)", OMITTED,
        said="`training.loss_memory`"),
    Key("fsdp_kappa", _SLOWER, "instead of `overlap.kappa` where parameters are sharded (FSDP)", OMITTED,
        said="`overlap.kappa`"),
    Key("sustained", _FACTOR, "factor on `device.gemm.sustained` in the runs of trainers",
        OMITTED, said="1"),
    Key("attention", _TIMES, "instead of `device.gemm.attention`", OMITTED, said="`device.gemm.attention`"),
    Key("memory", _FACTOR, "factor on `device.mem_efficiency` for the unfused operators of "
        "trainers", OMITTED, said="1"),
    Key("fsdp_attention", _TIMES, "instead of `training.attention` where parameters are sharded (FSDP)", OMITTED,
        said="`training.attention`"),
    Key("fsdp_sustained", _FACTOR, "instead of `training.sustained` where parameters are "
        "sharded (FSDP)", OMITTED, said="`training.sustained`"),
    Key("fsdp_memory", _FACTOR, "instead of `training.memory` where parameters are sharded "
        "(FSDP)", OMITTED, said="`training.memory`"),
    Key("fsdp_loss_bytes", _BYTES, "instead of `training.loss_bytes` where parameters are sharded (FSDP)", OMITTED,
        said="`training.loss_bytes`"),
    Key("tp_forward", _HIDDEN, "share of the tensor-parallel communication of forward that is cut into pieces and "
        "overlaps matrix products", OMITTED, said="0"),
    Key("tp_backward", _HIDDEN, "share of the tensor-parallel communication of backward that overlaps matrix products, "
        "those for gradients of weights included", OMITTED, said="0"),
    Key("exchange", _HIDDEN, "share of the exchange of tokens between experts that costs no time: tokens for several "
        "experts of one device are sent once, and sending overlaps other work", OMITTED, said="0"),
    Key("narrow", _SHARE, "instead of `device.gemm.narrow`", OMITTED, said="`device.gemm.narrow`"),
    Key("grouped", _SHARE, "instead of `device.gemm.grouped`", OMITTED, said="`device.gemm.grouped`"),
    Key("fsdp_grouped", _SHARE, "instead of `training.grouped` where parameters are sharded (FSDP)", OMITTED,
        said="`training.grouped`"),
    Key("reduces_beside", Flag(), "whether gradients of weights that every device holds whole are reduced while "
        "backward computes, as DDP does in buckets; false: after it, as Megatron-LM did until 2023", OMITTED,
        said="true"),
    Key("partial_groups", _SLOWER, "factor on the time of a reduction after backward in groups that have "
        "several, but not all, devices of each of several machines", OMITTED, said="1"),
    Key("sends", _HIDDEN, "share of the time of sending between pipeline stages that each stage waits: twice for every "
        "microbatch, the first and the last stage once", OMITTED, said="`1 - overlap.p2p` of every border"),
    Key("loss_memory", _BYTES, "bytes that the loss holds for every logit in addition to the logit and its gradient: "
        "its copies in fp32", OMITTED, said="0"),
))  # fmt: skip
"""What the runs of trainers take other than the schedule of a plan: only `shardplan price` reads it, and no plan that
is solved depends on it."""

PROVENANCE: Final = Keys((
    Key("status", Text(("datasheet", "measured", "estimated")), "estimated numbers cause a warning", "estimated"),
    Key("sources", Sequence(Text()), "where the numbers come from", [], said="none"),
    Key("date", Text(), "date of the numbers", "", said="none"),
    Key("notes", Sequence(Text()), "what a reader should know", [], said="none"),
    Key("device_hour_usd", Number(minimum=_LITTLE, maximum=1e6), "price of one device for an hour; it influences "
        "no plan", OMITTED),
))  # fmt: skip

AXIS: Final = Keys((
    Key("name", Text(form=NAME)), Key("size", _COUNT), Key("level", Text()),
))  # fmt: skip

GROUP: Final = Keys((
    Key("nodes", _COUNT, default=1), Key("per_node", _COUNT, default=1),
))  # fmt: skip

CURVE: Final = Keys((
    Key("collective", Text(COLLECTIVES), default="all_reduce"),
    Key("group", GROUP),
    Key("points", Sequence(Sequence(items=(_MEMORY, _TIME))), default=[],
        resolve=lambda points, _, __: sorted(points)),
))  # fmt: skip

PROFILE: Final = Keys((
    Key("schema", Number(integer=True, minimum=SCHEMA_VERSION, maximum=SCHEMA_VERSION), "version of this table", 1),
    Key("name", Text(form=TITLE), "name of the profile", OMITTED, said="file name"),
    Key("extends", Text(), "the profile that this one changes: `builtin:NAME` or a relative path", OMITTED),
    Key("provenance", PROVENANCE),
    Key("mesh", Keys((
        Key("axes", Sequence(AXIS.section), "the mesh used when `--mesh` is absent, outermost axis first: `{name, "
        "size, "
            "level}` each"),
    ))),
    Key("device", DEVICE),
    Key("levels", Table(LEVEL.section, form=NAME), "kinds of link by name, innermost first"),
    Key("overlap", OVERLAP),
    Key("coalesce", COALESCE, later=True),
    Key("training", TRAINING, later=True),
    Key("spread", Table(_PART), "relative spread of measured times, for `compute`, for "
        "`memory`, and for the links of a level by its name; `--robust` (`solve`, `price`) draws constants within it",
        {}, said="0.15 each", later=True),
    Key("environment", Table(Text()), "environment variables that `launch` and `launch-env` give every process "
        "of a plan, such as NCCL's; they influence no plan", {}, said="none", later=True),
    Key("curves", Sequence(CURVE.section), "measured times that replace the formula: `{collective, group: {nodes, "
        "per_node}, points: [[size, time], …]}`", [], said="none"),
))  # fmt: skip
