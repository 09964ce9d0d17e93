"""The description of this machine: output of `nvidia-smi` and data of its network cards, as far as available."""

from __future__ import annotations

import subprocess
from pathlib import Path

_COMMANDS = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "--query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max", "--format=csv"),
    ("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv"),
)
_RATES = "/sys/class/infiniband"
_SECONDS = 30


def texts_here(rates: str = _RATES) -> list[tuple[str, str]]:
    """(where it is from, what it says). `rates`: the folder of the network cards."""
    found = []
    for command in _COMMANDS:
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603 - fixed words
        except (OSError, subprocess.TimeoutExpired):
            continue
        if ran.returncode == 0:
            found.append((" ".join(command), ran.stdout))
    ports = [_state_and_rate(file) for file in sorted(Path(rates).glob("*/ports/1/rate"))]
    if any(ports):
        found.append((rates, "".join(ports)))
    return found


def _state_and_rate(rate: Path) -> str:
    """The state of a port (`4: ACTIVE`), where the kernel says it, and its rate; nothing of a port that cannot be read,
    as the kernel answers for a card that is being reset."""
    state = rate.with_name("state")
    try:
        return (state.read_text(encoding="utf-8") if state.exists() else "") + rate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
