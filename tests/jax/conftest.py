"""Programs for many devices run in processes of their own: jax fixes the number of devices when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def start():
    """Starts `python script args...` with shardplan and the tests' helpers; `finish` gives what it prints."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("planner", "tests/support"))
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop("XLA_FLAGS", None)

    def begin(script: Path | str, *args: str) -> subprocess.Popen:
        command = [sys.executable, str(ROOT / script), *args]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return begin


@pytest.fixture(scope="session")
def finish():
    """Waits for a started program and gives what it printed; one that fails is a failure, with what it said."""

    def end(process: subprocess.Popen, timeout: float = 240) -> str:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, err[-4000:]
        return out

    return end
