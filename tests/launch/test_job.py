"""What torchrun, Open MPI, MPICH and SLURM tell their processes, and what is refused about it."""

import pytest

from shardplan.errors import ShardplanError
from shardplan.launch.job import job_of, variables_of

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "151650305",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "4711",
}


@pytest.mark.parametrize(
    ("environment", "launcher", "address"),
    [
        (TORCHRUN, "torchrun", "a"),
        (OPEN_MPI, "Open MPI", None),
        (MPICH, "MPICH", None),
        (SLURM, "srun", "gpu07"),
        ({**SLURM, **OPEN_MPI, "SLURM_PROCID": "0"}, "Open MPI", None),
        ({**SLURM, **MPICH, "SLURM_PROCID": "1"}, "MPICH", None),
        ({**SLURM, **TORCHRUN, "SLURM_PROCID": "1"}, "torchrun", "a"),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}, "srun", "gpu07"),
        ({**MPICH, "MASTER_ADDR": "head"}, "MPICH", "head"),
    ],
)
def test_a_job_is_that_of_the_innermost_launcher(environment, launcher, address):
    job = job_of(environment)
    assert (job.launcher.name, job.rank, job.size, job.local_rank, job.local_size) == (launcher, 5, 8, 1, 4)
    assert job.address == address


def test_there_is_no_job_in_an_empty_environment_nor_in_the_shell_of_an_allocation():
    assert job_of({}) is None
    assert job_of({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "a"}) is None


def test_processes_of_one_machine_meet_there_on_a_port_of_their_job():
    one = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "5"}
    job, again, other = job_of(one), job_of(one), job_of({**one, "PMIX_NAMESPACE": "2"})
    assert job.address == "127.0.0.1"
    assert 61440 <= job.port < 65536
    assert job.port == again.port != other.port
    assert job_of({**one, "MASTER_PORT": "1234"}).port == 1234


def test_what_libraries_read_is_completed_and_nothing_replaced():
    environment = {**SLURM, "MASTER_PORT": "7", "LOCAL_RANK": "0"}
    assert variables_of(job_of(environment), environment) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu07",
    }


UNEVEN_HINT = "\nhint: srun --ntasks-per-node N"
HOST_HINT = "\nhint: letters, digits, '.', '-' and '_', or an IPv4 address; node[01-04] stands for four"
FAULTS = {
    "a rank that is no number": (
        {**SLURM, "SLURM_PROCID": "x"},
        "error[bad-environment]: the environment says SLURM_PROCID=x, which is no number of processes",
    ),
    "a rank beyond the size": (
        {**MPICH, "PMI_RANK": "8"},
        "error[bad-environment]: PMI_RANK is 8, and PMI_SIZE says 8 processes",
    ),
    "no size": (
        {"OMPI_COMM_WORLD_RANK": "1"},
        "error[bad-environment]: Open MPI started this process, and the environment has no OMPI_COMM_WORLD_SIZE",
    ),
    "machines that differ": (
        {**SLURM, "SLURM_TASKS_PER_NODE": "4,3(x2)"},
        "error[uneven-machines]: srun runs 4,3(x2) processes on its machines, which a plan wants alike" + UNEVEN_HINT,
    ),
    "machines in no form of SLURM's": (
        {**SLURM, "SLURM_TASKS_PER_NODE": "four"},
        "error[bad-environment]: the environment says SLURM_TASKS_PER_NODE=four, which is no number of processes",
    ),
    "hosts that a shell would obey": (
        {**SLURM, "SLURM_JOB_NODELIST": "a;id"},
        "error[bad-host]: SLURM's node list: 'a;id' is no name of a machine" + HOST_HINT,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_an_environment_is_said(fault):
    environment, text = FAULTS[fault]
    with pytest.raises(ShardplanError) as caught:
        job_of(environment)
    assert str(caught.value) == text
