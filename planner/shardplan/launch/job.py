"""The environment that a launcher gives a process: its rank, the number of processes, and their rendezvous address.

| launcher | rank, size | on this machine |
|---|---|---|
| torchrun | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` |
| Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `_LOCAL_SIZE` |
| MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
| srun | `SLURM_PROCID`, `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` |
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.errors import ShardplanError, error
from shardplan.launch.hosts import first_host
from shardplan.units import counted

DEFAULT_PORT: Final = 29500
"""Of torch, where nothing tells one job of a machine from another."""
_FIRST_PORT, _PORTS = 61440, 4096
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


@dataclass(frozen=True, slots=True)
class Launcher:
    """Names of variables: `rank`, `size`, and the same on this machine, of which the first that is set counts; `job`:
    an identifier of the job; `name`: for people."""

    name: str
    rank: str
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...] = ()


TORCHRUN: Final = Launcher("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
OPEN_MPI: Final = Launcher(
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
)
MPICH: Final = Launcher(
    "MPICH", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
)
SLURM: Final = Launcher(
    "srun",
    "SLURM_PROCID",
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    ("SLURM_LOCALID",),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ("SLURM_JOB_ID", "SLURM_JOBID"),
)
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")


@dataclass(frozen=True, slots=True)
class Job:
    """`rank` of `size` processes, `local_rank` of `local_size` on this machine; `address`, `port`: where rank 0
    listens. None: not told."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    address: str | None = None
    port: int = DEFAULT_PORT


def job_of(environment: Mapping[str, str]) -> Job | None:
    """The job of this process; None without a launcher. The innermost launcher decides: of `srun torchrun` that is
    torchrun, of `mpirun` within an allocation of SLURM it is Open MPI.

    Raises `ShardplanError` (`bad-environment`) for values that are not numbers, `uneven-machines` if SLURM runs more
    processes on one machine than on another.
    """
    launcher = _launcher(environment)
    if launcher is None:
        return None
    size = next((value for name in launcher.size if (value := _number(environment, name)) is not None), None)
    rank = _number(environment, launcher.rank)
    if size is None or (rank is None and launcher is not TORCHRUN):
        missing = launcher.rank if rank is None else launcher.size[0]
        summary = f"{launcher.name} started this process, and the environment has no {missing}"
        raise ShardplanError(error("bad-environment", summary))
    rank = rank or 0
    if rank >= size:
        summary = f"{launcher.rank} is {rank}, and {launcher.size[0]} says {counted(size, 'process')}"
        raise ShardplanError(error("bad-environment", summary))
    local_rank = next(
        (value for name in launcher.local_rank if (value := _number(environment, name)) is not None), None
    )
    local_size = _tasks(environment, size) if launcher is SLURM else _first_number(environment, launcher.local_size)
    address = _address(environment, launcher, size, local_size)
    return Job(launcher, rank, size, local_rank, local_size, address, _port(environment, launcher))


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    """The innermost launcher that has set its variables. MPICH's variables come from srun itself if they do not
    describe this machine: `srun --mpi=pmi2`."""
    if environment.get("WORLD_SIZE"):
        return TORCHRUN
    if OPEN_MPI.rank in environment:
        return OPEN_MPI
    hydra = MPICH.rank in environment and any(name in environment for name in MPICH.local_rank)
    srun = SLURM.rank in environment and any(name in environment for name in SLURM.size)
    if hydra or (MPICH.rank in environment and not srun):
        return MPICH
    return SLURM if srun else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        summary = f"the environment says {name}={value[:40]}, which is no number of processes"
        raise ShardplanError(error("bad-environment", summary))
    return int(value)


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((value for name in names if (value := _number(environment, name)) is not None), None)


def _tasks(environment: Mapping[str, str], size: int) -> int | None:
    """Processes per machine from SLURM's `4(x2),3`, of which all must be equal."""
    name = next((name for name in SLURM.local_size if environment.get(name)), None)
    if name is None:
        return None
    counts: list[int] = []
    for part in environment[name].split(","):
        found = _TASKS.fullmatch(part)
        if found is None or len(part) > 20:
            summary = f"the environment says {name}={environment[name][:40]}, which is no number of processes"
            raise ShardplanError(error("bad-environment", summary))
        counts += [int(found[1])] * min(int(found[2] or 1), size)
    if len(set(counts)) > 1:
        summary = f"srun runs {environment[name]} processes on its machines, which a plan wants alike"
        raise ShardplanError(error("uneven-machines", summary, hint="srun --ntasks-per-node N"))
    return counts[0]


def _address(environment: Mapping[str, str], launcher: Launcher, size: int, local_size: int | None) -> str | None:
    """The address of rank 0, if known."""
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if launcher is SLURM and (node_list := next((environment[name] for name in _NODES if environment.get(name)), "")):
        return first_host(node_list)
    return "127.0.0.1" if local_size == size and launcher is not TORCHRUN else None


def _port(environment: Mapping[str, str], launcher: Launcher) -> int:
    """The given port; else one that every process of a job derives from the job's number, above those that systems
    assign themselves."""
    given = _number(environment, "MASTER_PORT")
    if given is not None:
        return given
    job = next((environment[name] for name in launcher.job if environment.get(name)), "")
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if job else DEFAULT_PORT


def variables_of(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that torchrun would have set and `environment` lacks, for libraries that read nothing else."""
    told = {
        "RANK": job.rank,
        "WORLD_SIZE": job.size,
        "LOCAL_RANK": job.local_rank,
        "LOCAL_WORLD_SIZE": job.local_size,
        "MASTER_ADDR": job.address,
        "MASTER_PORT": job.port,
    }
    return {name: str(value) for name, value in told.items() if value is not None and name not in environment}
