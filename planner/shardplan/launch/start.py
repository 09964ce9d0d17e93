"""Starts a plan's processes by torchrun, mpirun or srun, and returns the launcher's exit code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardplan.errors import ShardplanError, error
from shardplan.launch.ranks import Launch
from shardplan.launch.scripts import host_file, mpirun_words, srun_words, torchrun_words

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_BY_SIGNAL = 128
_STANDARD_ERROR = 2
_LOCAL_MPI = {"OMPI_MCA_plm_rsh_agent": sys.executable}
"""Open MPI 4 refuses to start where no ssh is installed, even if all ranks are on this machine
(open-mpi/ompi#12386). Any program that exists satisfies it; none is run."""


def start(launch: Launch, target: str, node_rank: int | None, *, quiet_output: bool = False) -> tuple[list[str], int]:
    """The command that was run, and its exit code; 128 plus the signal's number if a signal ended it. `quiet_output`:
    its output goes to standard error.

    Raises `ShardplanError`: `no-launcher` if the program is not installed, `unknown-machine` if torchrun needs the
    number of this machine, `no-hosts`.
    """
    with _command(launch, target, node_rank) as command:
        local = _LOCAL_MPI if target == "mpirun" and not launch.hosts else {}
        environment = {**local, **os.environ, **launch.environment}
        output = _STANDARD_ERROR if quiet_output else None
        sys.stdout.flush()
        try:
            process = subprocess.Popen(command, env=environment, stdout=output)  # noqa: S603 - it is what the user asks for
        except OSError as problem:
            summary = f"cannot start {command[0]}: {(problem.strerror or str(problem)).lower()}"
            hint = "install it, or take another launcher with --for"
            raise ShardplanError(error("no-launcher", summary, hint=hint)) from None
        code = _wait(process)
        return list(command), code if code >= 0 else _BY_SIGNAL - code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code. A signal to stop is passed on to the launcher, which stops its processes, and its end is
    awaited."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
            raise
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def _command(launch: Launch, target: str, node_rank: int | None) -> Iterator[list[str]]:
    """The command to run. Python programs get `sys.executable`, which has shardplan; the PATH may lead to another."""
    if target == "srun":
        yield srun_words(launch, sys.executable)
    elif target == "torchrun":
        _need_torch()
        yield torchrun_words(launch, _node_rank(launch, node_rank), _TORCHRUN)
    elif not launch.hosts:
        yield mpirun_words(launch, None, sys.executable)
    else:
        with tempfile.TemporaryDirectory(prefix="shardplan-") as folder:
            hosts = Path(folder) / "hosts"
            hosts.write_text(host_file(launch), encoding="utf-8")
            yield mpirun_words(launch, str(hosts), sys.executable)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        hint = "pip install 'shardplan[torch]', or take --for mpirun or srun"
        raise ShardplanError(error("no-launcher", "torchrun is a part of torch, which is not installed", hint=hint))


def _node_rank(launch: Launch, given: int | None) -> int | None:
    """The number of this machine: as given, or where its name is in the list."""
    if launch.machines == 1:
        return None
    if not launch.hosts:
        summary = f"torchrun has to know where the first of {launch.machines} machines is"
        hint = "--hosts a,b,... in the order of ranks; --one-machine to try the program here"
        raise ShardplanError(error("no-hosts", summary, hint=hint))
    if given is not None:
        if given >= launch.machines:
            summary, hint = f"--node-rank {given}: there are {launch.machines} machines", f"0 to {launch.machines - 1}"
            raise ShardplanError(error("unknown-machine", summary, hint=f"machines are {hint}"))
        return given
    name = socket.gethostname()
    names = {name, name.partition(".")[0], socket.getfqdn()}
    found = [number for number, host in enumerate(launch.hosts) if host in names or host.partition(".")[0] == name]
    if len(found) != 1:
        summary = f"this machine, {name}, is not among the hosts {', '.join(launch.hosts[:8])}"
        raise ShardplanError(error("unknown-machine", summary, hint="say its number with --node-rank N"))
    return found[0]
