"""Simulated devices for JAX: 16 of them in this process, for what is quickly done, and in processes of their own for
what compiles long. jax fixes their number when it first asks for devices, so the flag is set before any test runs.

Machine code is not optimised, and loops are written by the older of XLA's emitters, which are three quarters of what
compiling costs: what XLA partitions and sends is settled before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax_flags import simulated

ROOT = Path(__file__).parents[2]
DEVICES = 16
FLAGS = simulated(DEVICES)
os.environ["XLA_FLAGS"] = FLAGS
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PJRT_NPROC"] = str(16 * DEVICES)  # threads: see docs/jax.md


@pytest.fixture(scope="session")
def start():
    """Starts `python args...` in the checkout, with shardplan and the tests' helpers; `finish` gives what it prints.
    XLA is told what it is told here, unless `flags` says otherwise; None: what the program tells it, and not to
    optimise machine code. What runs in the end is ended.
    """
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("planner", "tests/support"))
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    started: list[subprocess.Popen] = []

    def begin(*args: str, flags: str | None = FLAGS) -> subprocess.Popen:
        told = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} if flags is None else {"XLA_FLAGS": flags}
        environment = {**inherited, "PYTHONPATH": paths} | told
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *args], cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def finish():
    """Waits for a started program and gives what it printed; one that fails is a failure, with what it said."""

    def end(process: subprocess.Popen, timeout: float = 300) -> str:
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
