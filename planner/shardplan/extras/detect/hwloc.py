"""Parser of hwloc's description of a machine (`lstopo --of xml`): GPUs with model and memory, InfiniBand cards.

Fields are those of hwloc 2: an object of type `OSDev` per device that the system knows, GPUs once for each library that
finds them (`nvml0` and `cuda0` are one), with `info`s by name (hwloc's documentation, "I/O devices").
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardplan.units import whole_number

_DEVICE = re.compile(r'<object type="OSDev"([^>]*?)(?:/>|>(.*?)</object>)', re.DOTALL)
_FIELD = re.compile(r'([\w:]+)="([^"]*)"')
_INFO = re.compile(r'<info name="([^"]*)" value="([^"]*)"')
_MEMORY_KIB = ("CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize")
_LIBRARIES = ("nvml", "cuda", "rsmi")
"""Those by which a GPU is counted: of the first that finds any."""


def is_hwloc(text: str) -> bool:
    """Whether it is a topology that hwloc wrote."""
    return "<topology" in text and "<object " in text


def gpus_of(text: str) -> tuple[str | None, int, int | None]:
    """The model of the GPUs, how many there are, and the MiB of one. `ValueError` with their models for several."""
    found = list(_devices(text))
    named = next((of for lib in _LIBRARIES if (of := [i for name, i in found if re.fullmatch(rf"{lib}\d+", name)])), [])
    models = sorted({infos["GPUModel"] for _, infos in found if "GPUModel" in infos})
    if len(models) > 1:
        raise ValueError(", ".join(models))
    sizes = [kib for _, infos in found for key in _MEMORY_KIB if (kib := whole_number(infos.get(key, ""))) is not None]
    return models[0] if models else None, len(named), min(sizes) // 1024 if sizes else None


def cards_of(text: str) -> int:
    """How many InfiniBand or RoCE cards there are."""
    return sum(infos.get("osdev_type") == "3" for _, infos in _devices(text))


def _devices(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for fields, inside in _DEVICE.findall(text):
        own = dict(_FIELD.findall(fields))
        yield own.get("name", ""), own | dict(_INFO.findall(inside))
