"""What all tests share: the examples that laws are shown, which tests are slow, and which run in one process.

`fixed`, the profile of every ordinary run: a law is shown the same examples wherever and whenever it runs, and as many
as find what breaks it; more of them find nothing new in the next run. `fresh`, asked for with
`--hypothesis-profile=fresh`: twice as many examples that nobody has seen, from `--hypothesis-seed=N` if that is given.
No law has a deadline: a machine that is busy breaks none.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

import pytest
import slow_tests
from hypothesis import settings

os.environ["SHARDPLAN_CHECK_PRICES"] = "1"
"""A plan's price that is not the solver's is an error, in processes that tests start too."""

os.environ["SHARDPLAN_ADVICE"] = "0"
"""Advice took a quarter of the time of all that `solve` is asked for; tests of advice, and those that give commands
anything at all, leave it on."""

for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
"""Products of small matrices, here and in processes that tests start, gain nothing by threads; on cores that others use
too, these spin while they wait for each other: a plan that runs in numpy took five times the processor time."""

settings.register_profile("fixed", deadline=None, derandomize=True, database=None, max_examples=50)
settings.register_profile("fresh", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("fixed")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Tests start some hundred processes, and each would compile the package again where the environment forbids to keep
what was compiled."""

os.fsync = lambda _: None
"""Nobody reads what tests write after a power cut: of a test that exports for each device, the disk took half the time.
What is brought to the disk is tested by calls."""

gc.set_threshold(100_000, 50, 50)
"""Tests make many objects, few of which are rings: looking for those took a tenth of the time of all tests."""

if hasattr(os, "SCHED_BATCH"):
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
"""A thread that wakes does not push another one off its core, here and in processes that tests start. Where there are
fewer cores than ranks, gloo's thread wakes at the other's message, pushes off the thread that holds the lock it needs
and spins for it until its time is up: collectives of four ranks on two cores took eight times as long."""

TOGETHER = ("tests/torch/", "tests/jax/")
"""Folders whose tests run in one worker of pytest-xdist: they load a framework and share processes. They go first."""


LONG = ("tests/planning/",)
"""What takes long goes next: a file of a minute that begins last has a core for itself."""


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests, too (tests/support/slow_tests.py)")


def pytest_collection_modifyitems(config, items):
    """Slow tests run where they are asked for: by `--slow`, or by name. With `--lf` files are collected in part, so
    what is listed cannot be compared with them."""
    by_name = any("::" in argument for argument in config.args)
    unknown = (
        [] if by_name or config.getoption("lf", default=False) else slow_tests.unknown(item.nodeid for item in items)
    )
    if unknown:
        raise pytest.UsageError(f"tests/support/slow_tests.py lists tests that do not exist: {', '.join(unknown)}")
    if not config.getoption("--slow") and not by_name:
        slow = [item for item in items if slow_tests.is_slow(item.nodeid)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not slow_tests.is_slow(item.nodeid)]
    items.sort(key=lambda item: (not item.nodeid.startswith(TOGETHER), not item.nodeid.startswith(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hands out whole files, so that what the tests of a file share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)
            return folder or nodeid.split("::", 1)[0]

    config.option.loadscopereorder = False
    return ByFile(config, log) if config.getoption("dist") == "load" else None
