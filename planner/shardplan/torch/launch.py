"""Launch: the `DeviceMesh` of a plan over the processes of this job, and checks of the job."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.launch.check import no_world, wrong_machines, wrong_world
from shardplan.launch.job import TORCHRUN, Job, job_of, variables_of
from shardplan.plan.types import Plan
from shardplan.torch.argument_types import check_plan


def mesh(plan: Plan, device_type: str | None = None) -> DeviceMesh:
    """The plan's mesh over the processes of this job, its axes in the plan's order; ranks are row-major.

    `device_type`: `cuda`, `cpu` ...; by default that of the accelerator there is, else the CPU. The process group is
    made if there is none, with the backend torch prefers for the device: by the environment of torchrun, srun, Open MPI
    or MPICH; of the last three the variables that torchrun sets are added, for libraries that read them.

    Raises `ShardplanError`: `wrong-world` (another number of processes than the mesh has devices), `wrong-host`
    (another number of processes per host than the plan places on one), `wrong-rank-order` (ranks of a host that do
    not follow each other), `no-world` (no process group and no launcher), `no-address` (nobody says where rank 0 is),
    `bad-argument`, and as `job_of`.
    """
    check_plan(plan)
    kind = device_type or _device_type()
    job = job_of(os.environ)
    faults = _faults(plan, job)
    if faults:
        raise ShardplanError(*faults)
    if job is not None and job.launcher is not TORCHRUN:
        os.environ.update(variables_of(job, os.environ))
    if kind != "cpu" and job is not None:
        _take_device(kind, job)
    return init_device_mesh(kind, plan.mesh.shape, mesh_dim_names=plan.mesh.names)


def _device_type() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else "cpu"


def _take_device(kind: str, job: Job) -> None:
    """One device for each process of a host, unless the program has chosen one already; the only one where the launcher
    lets a process see no other."""
    if job.local_rank is not None and torch.accelerator.current_accelerator() == torch.device(kind):
        alone = torch.accelerator.device_count() == 1 and job.launcher is not TORCHRUN
        torch.accelerator.set_device_index(0 if alone else job.local_rank)


def _faults(plan: Plan, job: Job | None) -> list[Diagnostic]:
    if dist.is_initialized():
        faults = wrong_world(plan, dist.get_world_size())
        return faults or (wrong_machines(plan, job) if job and job.size == dist.get_world_size() else [])
    if job is None:
        return [no_world(plan)]
    faults = wrong_world(plan, job.size) or wrong_machines(plan, job)
    if not faults and job.launcher is not TORCHRUN and job.address is None:
        summary = f"{job.launcher.name} started this process and does not say where rank 0 is"
        hint = (
            "set MASTER_ADDR to its machine for all processes: mpirun -x MASTER_ADDR=..., mpiexec -genv MASTER_ADDR ..."
        )
        faults = [error("no-address", summary, hint=hint)]
    return faults
