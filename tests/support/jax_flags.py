"""What XLA is told in tests: how many devices there are, and to compile quickly what runs once."""

from __future__ import annotations

import importlib.util
import mmap
from pathlib import Path

QUICK = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "false"}
"""Machine code is not optimised, and loops are written by the older of XLA's emitters: the newer compile three times as
long. XLA partitions a program, and decides what it sends, before either."""


def simulated(devices: int) -> str:
    """`XLA_FLAGS` for so many simulated devices."""
    return f"--xla_force_host_platform_device_count={devices} {quick()}"


def quick() -> str:
    """`XLA_FLAGS` that say nothing of devices. XLA ends the process at a flag that it does not know, so that those of
    `QUICK` are given only where its library has their names."""
    return " ".join(f"--{name}={value}" for name, value in QUICK.items() if _is_known(name))


def _is_known(flag: str) -> bool:
    found = importlib.util.find_spec("jaxlib")
    folders = [Path(folder) for folder in found.submodule_search_locations or ()] if found else []
    return any(_has(file, flag.encode()) for folder in folders for file in folder.glob("libjax*.so*"))


def _has(file: Path, word: bytes) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word + b"\0") >= 0
