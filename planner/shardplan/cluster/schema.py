"""The profile schema, version 1, as one table. Units are in the key names; a number may also carry its own unit."""

from __future__ import annotations

from typing import Final

from shardplan.cluster.quantity import GBIT, GBPS, MEGABYTES, MICROSECONDS, SIZE, TFLOPS
from shardplan.cluster.yaml import Flag, Number, Section, Sequence, Table, Text

SCHEMA_VERSION: Final = 1
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")
TOPOLOGIES: Final = ("switch", "full_mesh", "torus", "pcie", "custom")
STATUSES: Final = ("datasheet", "measured", "estimated")

_POSITIVE = Number(open=True)
_EFFICIENCY = Number(open=True, maximum=1.2)
_SHARE = Number(open=True, maximum=1.0)
_HIDDEN = Number(maximum=1.0)
_COUNT = Number(minimum=1, integer=True)
_RATE = Number(GBPS, open=True)

LEVEL: Final = Section({
    "topology": Text(TOPOLOGIES),
    "devices": _COUNT,  # joined by one unit of this level; default: from the mesh, outermost level: unlimited
    "link_gbps": _RATE,  # per device and direction
    "pair_gbps": _RATE,  # full_mesh: the one link between two devices
    "node_gbit": Number(GBIT, open=True),  # network cards of one machine together
    "nics": _COUNT,  # number of cards; one device reaches node_gbit / nics unless link_gbps says otherwise
    "eta": Table(
        Table(_EFFICIENCY, ranks=True, scalar=_EFFICIENCY), keys=(*COLLECTIVES, "default", "partial", "nvls")
    ),
    "base_us": Number(MICROSECONDS),
    "step_us": Number(MICROSECONDS),
    "ramp_mb": Number(MEGABYTES),
    "nvls": Flag(),
    "wrap": Flag(),  # torus: the two ends of a whole axis are joined
    "wrap_multiple": _COUNT,  # torus: also those of a slice of so many devices, or a multiple
    "busbw_gbps": Table(Table(_RATE, ranks=True), keys=COLLECTIVES),
    "share": Number(open=True, maximum=1.0, words=("auto",)),
    "scale_loss": Table(_SHARE, ranks=True),
})  # fmt: skip

DEVICE: Final = Section({
    "kind": Text(),
    "memory_bytes": Number(SIZE, open=True),
    "usable_fraction": _SHARE,
    "reserved_bytes": Number(SIZE),
    "hbm_gbps": _RATE,
    "peak_tflops": Table(Number(TFLOPS, open=True), keys=DTYPES),
    "allow_tf32": Flag(),
    "gemm": Section({"e": _SHARE, "m0": Number(), "n0": Number(), "k0": Number(), "sustained": _SHARE}),
    "mem_efficiency": _SHARE,
    "launch_us": Number(MICROSECONDS),
})  # fmt: skip

PROFILE: Final = Section({
    "schema": Number(integer=True, minimum=SCHEMA_VERSION, maximum=SCHEMA_VERSION),
    "name": Text(),
    "extends": Text(),
    "provenance": Section({
        "status": Text(STATUSES), "sources": Sequence(Text()), "date": Text(), "notes": Sequence(Text()),
        "device_hour_usd": Number(open=True),  # what a device costs; decides nothing
    }),
    "mesh": Section({
        "axes": Sequence(Section({"name": Text(), "size": _COUNT, "level": Text()})),
    }),
    "device": DEVICE,
    "levels": Table(LEVEL),
    "overlap": Section({
        "weight_gather": _HIDDEN, "grad_reduce": _HIDDEN, "tp": _HIDDEN, "a2a": _HIDDEN, "p2p": _HIDDEN,
        "kappa": Number(minimum=1.0),
    }),
    "coalesce": Section({"bucket_mb": Number(MEGABYTES)}),  # 0: every weight's gradient is sent by itself
    "curves": Sequence(Section({
        "collective": Text(COLLECTIVES),
        "group": Section({"nodes": _COUNT, "per_node": _COUNT}),
        "points": Sequence(Sequence(items=(Number(SIZE, open=True), Number(MICROSECONDS, open=True)))),
    })),
})  # fmt: skip

DEVICE_DEFAULTS: Final[dict[str, object]] = {
    "kind": "", "usable_fraction": 0.92, "reserved_bytes": 1_500_000_000, "allow_tf32": True,
    "mem_efficiency": 0.75, "launch_us": 4.0,
}  # fmt: skip
GEMM_DEFAULTS: Final[dict[str, float]] = {"e": 0.75, "m0": 64.0, "n0": 64.0, "k0": 128.0, "sustained": 1.0}
OVERLAP_DEFAULTS: Final[dict[str, float]] = {
    "weight_gather": 0.9, "grad_reduce": 0.9, "tp": 0.0, "a2a": 0.0, "p2p": 0.9, "kappa": 1.1,
}  # fmt: skip

COALESCE_DEFAULTS: Final[dict[str, float]] = {"bucket_mb": 25.0}
"""As torch's DDP does it; XLA joins up to 30 MB."""

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
