"""Checks of a job against its plan: number of processes, processes per machine, and their order."""

from __future__ import annotations

from shardplan.errors import Diagnostic, error
from shardplan.launch.job import MPICH, OPEN_MPI, SLURM, TORCHRUN, Job
from shardplan.plan.format.conversions import devices_per_host, placed_axes
from shardplan.plan.types import Plan
from shardplan.units import counted

_PER_MACHINE = {
    TORCHRUN.name: "torchrun --nproc-per-node {}",
    OPEN_MPI.name: "mpirun --map-by ppr:{}:node",
    MPICH.name: "mpiexec -ppn {}",
    SLURM.name: "srun --ntasks-per-node {}",
}
_IN_ORDER = {
    TORCHRUN.name: "start it with torchrun, which numbers them so",
    OPEN_MPI.name: "mpirun --map-by slot --rank-by slot",
    MPICH.name: "mpiexec -ppn N",
    SLURM.name: "srun --distribution=block",
}


def no_world(plan: Plan) -> Diagnostic:
    """The error for a process with neither a launcher nor a process group."""
    summary = "there is no process group, and the environment names no WORLD_SIZE"
    hint = (
        f"start the program with torchrun --nproc-per-node N (in all {counted(plan.mesh.size, 'process')}), or call "
        "init_process_group; srun and mpirun do as well, and shardplan launch-env writes the line"
    )
    return error("no-world", summary, hint=hint)


def wrong_world(plan: Plan, found: int) -> list[Diagnostic]:
    """The error for a number of processes that differs from the number of devices of the mesh."""
    if found == (size := plan.mesh.size):
        return []
    summary = f"the plan is for {counted(size, 'device')} ({plan.mesh}), this job has {counted(found, 'process')}"
    hint = f"start {counted(size, 'process')}, or solve again for {counted(found, 'device')}"
    return [error("wrong-world", summary, hint=hint)]


def wrong_machines(plan: Plan, job: Job) -> list[Diagnostic]:
    """The error for a job whose machines differ from the plan's: axes within a machine must not cross its border, the
    border must be where it was planned, and ranks of a machine must be consecutive. All processes on one machine are
    accepted, for trying programs."""
    planned, found = devices_per_host(plan), job.local_size
    if planned is None or found is None:
        return []
    faults = []
    if found not in {planned, job.size}:
        processes = counted(found, "process")
        summary = f"the plan places {counted(planned, 'device')} on a machine, this job runs {processes} on one"
        detail = ", ".join(f"axis {axis.name}={axis.size} over {axis.link}" for axis in placed_axes(plan))
        how = _PER_MACHINE[job.launcher.name].format(planned)
        hint = f"start {counted(planned, 'process')} per machine ({how})"
        faults.append(error("wrong-host", summary, detail=detail, hint=hint))
    elif job.local_rank is not None and job.rank % found != job.local_rank:
        summary = (
            f"rank {job.rank} is process {job.local_rank} of its machine; where ranks of a machine follow each other, "
            f"{found} to a machine, it is process {job.rank % found}"
        )
        faults.append(error("wrong-rank-order", summary, hint=_IN_ORDER[job.launcher.name]))
    return faults
