"""Simulated devices for JAX: 16 of them in this process, for what is quickly done, and in processes of their own for
what compiles long. jax fixes their number when it first asks for devices, so the flag is set before any test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVICES = 16
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session")
def start():
    """Starts `python args...` in the checkout, with shardplan and the tests' helpers; `finish` gives what it prints."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("planner", "tests/support"))
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop("XLA_FLAGS")

    def begin(*args: str) -> subprocess.Popen:
        command = [sys.executable, *args]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return begin


@pytest.fixture(scope="session")
def finish():
    """Waits for a started program and gives what it printed; one that fails is a failure, with what it said."""

    def end(process: subprocess.Popen, timeout: float = 600) -> str:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, err[-4000:]
        return out

    return end


@pytest.fixture(scope="session")
def devices():
    """The simulated devices of this process."""
    jax = pytest.importorskip("jax")
    found = jax.devices()
    assert len(found) == DEVICES, "jax was started before these tests could say how many devices there are"
    return found
