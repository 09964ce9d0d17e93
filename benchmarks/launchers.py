"""A plan's processes started by real launchers on this machine: which rank is where, and what of the mesh it is.

    python benchmarks/launchers.py

Open MPI's `mpirun`, and SLURM with four nodes that are all this machine (Debian: `slurmd slurmctld slurm-client munge`;
as root), its daemons started in a folder of their own and ended. The plan has two devices on each of four machines;
hosts are named in another order than SLURM's, and a job with another topology has to be refused. Exits with 1 where a
rank is not where the plan places it. A launcher that is not installed is a line.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARDPLAN = (sys.executable, "-m", "shardplan")
HOSTS = ("node03", "node02", "node04", "node01")
PROGRAM = """
import os, shardplan, torch.distributed as dist
mesh = shardplan.torch.mesh(shardplan.load("eight.plan.json"), "cpu")
where = os.environ.get("SLURMD_NODENAME", "localhost")
os.write(1, f"rank {dist.get_rank()} on {where} is {tuple(mesh.get_coordinate())}\\n".encode())
dist.destroy_process_group()
"""
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
{nodes}
PartitionName=all Nodes=node[01-04] Default=YES State=UP OverSubscribe=FORCE:8
"""


def ran(*command: str, folder: Path, **variables: str) -> tuple[int, str]:
    python = {"PYTHONPATH": str(ROOT / "planner"), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **python, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def placed(said: str) -> list[str]:
    return sorted(line for line in said.splitlines() if line.startswith("rank "))


def wanted(hosts: tuple[str, ...]) -> list[str]:
    return sorted(f"rank {rank} on {hosts[rank // 2]} is {(rank // 2, rank % 2)}" for rank in range(8))


def free_ports(count: int) -> list[int]:
    """Ports that nothing on this machine listens on."""
    held = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def slurm_started(folder: Path) -> dict[str, str]:
    """The daemons of four nodes; what a client is told."""
    (folder / "state").mkdir()
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o400)
    folder.chmod(0o755)
    configuration = folder / "slurm.conf"
    host, ports = socket.gethostname(), free_ports(1 + len(HOSTS))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4"
        for node, port in zip(sorted(HOSTS), ports[1:], strict=True)
    )
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=ports, nodes=nodes))
    told = {"SLURM_CONF": str(configuration)}
    files = ("key-file=key", "socket=munge.socket", "pid-file=munged.pid", "log-file=munged.log", "seed-file=seed")
    given = [f"--{name}={folder / file}" for name, _, file in (each.partition("=") for each in files)]
    ran("munged", *given, "--force", folder=folder)
    ran("slurmctld", folder=folder, **told)
    for node in sorted(HOSTS):
        ran("slurmd", "-N", node, folder=folder, **told)
    for _ in range(30):
        time.sleep(1)
        if ran("sinfo", "-h", "-o", "%T", folder=folder, **told)[1].strip() == "idle":
            return told
    raise RuntimeError("its nodes did not come up")


def ended(folder: Path) -> None:
    for file in sorted(folder.glob("*.pid")):
        os.kill(int(file.read_text()), signal.SIGTERM)
    time.sleep(3)


def by_slurm(folder: Path) -> list[tuple[str, bool, str]]:
    told = slurm_started(folder)
    try:
        hosts = ("--hosts", ",".join(HOSTS), "--no-gpus", "--env", "MASTER_ADDR=127.0.0.1")
        program = ("--", sys.executable, "mesh.py")
        ran(
            *SHARDPLAN,
            "launch-env",
            "eight.plan.json",
            "--for",
            "srun",
            *hosts,
            "-o",
            "job.sh",
            *program,
            folder=folder,
        )
        _, said = ran("sbatch", "-o", "job.out", "job.sh", folder=folder, **told)
        for _ in range(100):
            time.sleep(2)
            if not ran("squeue", "-h", folder=folder, **told)[1].strip():
                break
        said += (folder / "job.out").read_text()
        found = [("sbatch job.sh", placed(said) == wanted(HOSTS), said)]
        code, said = ran(*SHARDPLAN, "launch", "eight.plan.json", "--for", "srun", "--no-gpus", *hosts[3:], *program,
                         folder=folder, **told)  # fmt: skip
        found.append(("launch --for srun", placed(said) == wanted(tuple(sorted(HOSTS))), said))
        other = ("srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", sys.executable, "mesh.py")
        code, said = ran(*other, folder=folder, **told, MASTER_ADDR="127.0.0.1")
        return [*found, ("srun, 4 on each of 2 nodes", code != 0 and "error[wrong-host]" in said, said)]
    finally:
        ended(folder)


def by_open_mpi(folder: Path) -> list[tuple[str, bool, str]]:
    as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    command = (*SHARDPLAN, "launch", "eight.plan.json", "--for", "mpirun", "--one-machine", "--", "mesh.py")
    _, said = ran(*command, folder=folder, **as_root)
    return [("launch --for mpirun", placed(said) == wanted(("localhost",) * 4), said)]


def main() -> int:
    good = True
    for name, needed, run in (("Open MPI", "mpirun", by_open_mpi), ("SLURM", "slurmctld", by_slurm)):
        if shutil.which(needed) is None:
            print(f"{name:9} not installed")
            continue
        version = re.search(r"\d+\.\d[\d.]*", ran(needed, "--version" if needed == "mpirun" else "-V", folder=ROOT)[1])
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            folder = Path(made)
            (folder / "mesh.py").write_text(PROGRAM)
            model = "transformer:llama3-8b,layers=1,batch=16"
            ran(*SHARDPLAN, "solve", model, "--mesh", "4x2", "-o", "eight.plan.json", "--quiet", folder=folder)
            for what, fine, said in run(folder):
                good = good and fine
                print(
                    f"{name:9} {version[0] if version else '':9} {what:28} {'as planned' if fine else 'NO'}", flush=True
                )
                if not fine:
                    print(said)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
