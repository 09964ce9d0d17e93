"""The devices that TensorRT-LLM's auto_parallel knows, by its `cluster_key` (auto_parallel/cluster_info.py, 0.21).

GB/s per device, Tflop/s of dense matrix products, GB of memory; 10 us of latency on every link, switches that reduce
between hosts. For the H200 its source gives the figures with sparsity; here they are halved, like all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardplan.errors import ShardplanError, did_you_mean, error

_PCIE_4, _PCIE_5, _NVLINK_3, _NVLINK_4 = 32.0, 64.0, 300.0, 450.0


@dataclass(frozen=True, slots=True)
class TrtllmDevice:
    """One row: bandwidth inside a host and between hosts, and of the memory; peaks by width (0: none), all without
    sparsity. `reduces`: the switches inside a host reduce."""

    key: str
    intra_gbps: float
    inter_gbps: float
    memory_gbps: float
    fp16: float
    fp32: float
    int8: float
    fp8: float = 0.0
    int4: float = 0.0
    reduces: bool = False

    def tflops(self) -> dict[str, float]:
        """Peaks by the dtype names of our profiles, without those it has not."""
        peaks = {"fp32": self.fp32, "fp16": self.fp16, "bf16": self.fp16, "int8": self.int8, "fp8": self.fp8}
        return {name: peak for name, peak in {**peaks, "int4": self.int4}.items() if peak}


DEVICES: Final[dict[str, TrtllmDevice]] = {
    device.key: device
    for device in (
        TrtllmDevice("A100-SXM-80GB", _NVLINK_3, 25, 2039, fp16=312, fp32=156, int8=624),
        TrtllmDevice("A100-SXM-40GB", _NVLINK_3, 25, 1555, fp16=312, fp32=156, int8=624),
        TrtllmDevice("A100-PCIe-80GB", _PCIE_4, 25, 1935, fp16=312, fp32=156, int8=624),
        TrtllmDevice("A100-PCIe-40GB", _PCIE_4, 25, 1555, fp16=312, fp32=156, int8=624),
        TrtllmDevice("H100-SXM", _NVLINK_4, 50, 3350, fp16=989, fp32=495, int8=1979, fp8=1979, reduces=True),
        TrtllmDevice("H100-PCIe", _PCIE_5, 50, 2000, fp16=756, fp32=378, int8=1513, fp8=1513),
        TrtllmDevice("H20", _NVLINK_4, 50, 4000, fp16=147, fp32=74, int8=293, fp8=293),
        TrtllmDevice("H200-SXM", _NVLINK_4, 50, 4800, fp16=989.5, fp32=67, int8=1979, fp8=1979),
        TrtllmDevice("H200-NVL", _NVLINK_4, 50, 4800, fp16=835.5, fp32=60, int8=1670.5, fp8=1670.5),
        TrtllmDevice("A40", _PCIE_4, 25, 696, fp16=150, fp32=75, int8=300, int4=600),
        TrtllmDevice("A30", _PCIE_4, 25, 933, fp16=165, fp32=82, int8=330, int4=661),
        TrtllmDevice("A10", _PCIE_4, 25, 600, fp16=125, fp32=62.5, int8=250, int4=500),
        TrtllmDevice("A10G", _PCIE_4, 25, 600, fp16=70, fp32=35, int8=140, int4=280),
        TrtllmDevice("L40S", _PCIE_4, 25, 864, fp16=362, fp32=183, int8=733, fp8=733, int4=733),
        TrtllmDevice("L40", _PCIE_4, 25, 864, fp16=181, fp32=90, int8=362, fp8=362, int4=724),
        TrtllmDevice("L20", _PCIE_4, 25, 864, fp16=119, fp32=60, int8=238, fp8=238),
        TrtllmDevice("L4", _PCIE_4, 25, 300, fp16=120, fp32=60, int8=242, fp8=242),
        TrtllmDevice("L2", _PCIE_4, 25, 300, fp16=97, fp32=48, int8=193, fp8=193),
    )
}  # fmt: skip


def trtllm_device(key: str) -> TrtllmDevice:
    """The device of that key. Raises `ShardplanError` (`bad-cost-model`) for any other: none stands in for another."""
    if key not in DEVICES:
        hint = did_you_mean(key, DEVICES) or "leave cluster_key out to take the numbers of the --cluster profile"
        summary = f"TensorRT-LLM's table has no device '{key}'"
        raise ShardplanError(error("bad-cost-model", summary, detail=f"it has {', '.join(DEVICES)}", hint=hint))
    return DEVICES[key]
