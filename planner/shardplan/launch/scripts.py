"""Bash scripts that start a plan's ranks with torchrun, srun or mpirun; host files and rank files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from shardplan.escapes import one_line
from shardplan.launch.job import DEFAULT_PORT
from shardplan.launch.ranks import Launch

_PYTHON = "python"


def program_words(launch: Launch, python: str = _PYTHON) -> tuple[str, ...]:
    """The program, after the interpreter `python` where it needs one."""
    return (python, *launch.program) if is_python(launch) else launch.program


def is_python(launch: Launch) -> bool:
    """Whether `launch.program` is a file or (`-m`) a module of Python."""
    return launch.program[0] == "-m" or launch.program[0].endswith(".py")


def torchrun_words(launch: Launch, node_rank: int | None, command: Iterable[str] = ("torchrun",)) -> list[str]:
    """The command of torchrun on the machine `node_rank` of known hosts; of one machine alone for None."""
    if launch.machines == 1:
        rendezvous = ["--standalone"]
    else:
        assert node_rank is not None
        address, port = launch.rendezvous
        rendezvous = [
            f"--nnodes={launch.machines}", f"--node-rank={node_rank}",
            f"--master-addr={address}", f"--master-port={port}",
        ]  # fmt: skip
    return [*command, *rendezvous, f"--nproc-per-node={launch.per_machine}", *_torchrun_program(launch)]


def _torchrun_program(launch: Launch) -> list[str]:
    return [*launch.program] if is_python(launch) else ["--no-python", *launch.program]


def torchrun_script(launch: Launch) -> str:
    """The same script for every machine; it finds the machine's number by its name."""
    lines = [*_head(launch), *_exports(launch)]
    address, port = launch.rendezvous
    if launch.machines == 1:
        return _text([*lines, f"exec {shlex.join(torchrun_words(launch, None))}"])
    if launch.hosts:
        lines += ["node_rank=${NODE_RANK:-}", 'if [ -z "$node_rank" ]; then', '    case "$(hostname)" in']
        lines += [
            f"        {_patterns(launch, host)}) node_rank={number} ;;" for number, host in enumerate(launch.hosts)
        ]
        lines += [
            '        *) echo "$(hostname) is none of the machines of this plan; set NODE_RANK" >&2; exit 2 ;;',
            "    esac",
            "fi",
        ]
        where, number = f"--master-addr={shlex.quote(address)}", '"$node_rank"'
    else:
        lines += [
            ': "${MASTER_ADDR:?set it to the first machine}"',
            f': "${{NODE_RANK:?set it to the number of this machine, 0 to {launch.machines - 1}}}"',
        ]
        where, number = '--master-addr="$MASTER_ADDR"', '"$NODE_RANK"'
    start = f"exec torchrun --nnodes={launch.machines} --node-rank={number} {where} --master-port={port}"
    return _text([*lines, f"{start} --nproc-per-node={launch.per_machine} {shlex.join(_torchrun_program(launch))}"])


def _patterns(launch: Launch, host: str) -> str:
    """What `hostname` may say on a machine: its name, or that without or with a domain, where no other has it."""
    short = host.partition(".")[0]
    alone = not short.isdigit() and [other.partition(".")[0] for other in launch.hosts].count(short) == 1
    return f"{short} | {short}.*" if alone else host


def srun_words(launch: Launch, python: str) -> list[str]:
    """The command of srun within an allocation, or by itself; programs of Python are run by `python`."""
    words = [
        "srun",
        f"--nodes={launch.machines}",
        f"--ntasks={launch.ranks}",
        f"--ntasks-per-node={launch.per_machine}",
    ]
    words += [f"--nodelist={','.join(launch.hosts)}"] if launch.hosts else []
    words += [f"--gpus-per-node={launch.per_machine}"] if launch.gpus else []
    return [*words, "--distribution=block", *program_words(launch, python)]


def srun_script(launch: Launch) -> str:
    """For sbatch, or a shell within an allocation. SLURM orders machines by its own list, whatever order they are named
    in; where that must be another, the order is a host file of SLURM's (`arbitrary`)."""
    options = [f"--job-name={launch.name}", f"--nodes={launch.machines}", f"--ntasks-per-node={launch.per_machine}"]
    options += [f"--gpus-per-node={launch.per_machine}"] if launch.gpus else []
    options += [f"--nodelist={','.join(launch.hosts)}"] if launch.hosts else []
    start = f"srun --ntasks={launch.ranks} --ntasks-per-node={launch.per_machine} --distribution=block"
    shell, *about, strict = _head(launch)
    lines = [shell, *about, *(f"#SBATCH {option}" for option in options), strict, *_exports(launch)]
    if launch.port != DEFAULT_PORT and "MASTER_PORT" not in launch.environment:
        lines.append(f"export MASTER_PORT={launch.port}")
    if len(launch.hosts) > 1:
        lines += [] if "MASTER_ADDR" in launch.environment else [f"export MASTER_ADDR={launch.hosts[0]}"]
        lines += [
            "SLURM_HOSTFILE=$(mktemp)",
            "export SLURM_HOSTFILE",
            "trap 'rm -f \"$SLURM_HOSTFILE\"' EXIT",
            *_file("$SLURM_HOSTFILE", [host for host in launch.hosts for _ in range(launch.per_machine)]),
        ]
        start = f"srun --ntasks={launch.ranks} --distribution=arbitrary"
    return _text([*lines, f"{start} {shlex.join(program_words(launch))}"])


def host_file(launch: Launch) -> str:
    """Machines and slots, as Open MPI reads them."""
    return _text([*_about(launch), *_slots(launch)])


def rank_file(launch: Launch) -> str:
    """A machine and a slot for every rank, as Open MPI's `--rankfile` reads them."""
    ranks = (
        f"rank {machine * launch.per_machine + slot}={host} slot={slot}"
        for machine, host in enumerate(launch.hosts)
        for slot in range(launch.per_machine)
    )
    return _text([*_about(launch), *ranks])


def mpirun_words(launch: Launch, hosts: str | None, python: str = _PYTHON) -> list[str]:
    """Open MPI's mpirun with a host file, or on this machine; ranks fill a machine before the next. Programs of Python
    are run by `python`."""
    words = ["mpirun", "-np", str(launch.ranks)]
    words += ["--hostfile", hosts] if hosts else ["--host", f"localhost:{launch.ranks}"]
    words += ["--map-by", "slot", "--rank-by", "slot", "--bind-to", "none"]
    told = dict(launch.environment)
    if launch.machines > 1:
        told = {**dict(zip(("MASTER_ADDR", "MASTER_PORT"), launch.rendezvous, strict=True)), **told}
    words += [word for name, value in told.items() for word in ("-x", f"{name}={value}")]
    return [*words, *program_words(launch, python)]


def mpirun_script(launch: Launch) -> str:
    """A host file, and the line that uses it."""
    lines = _head(launch)
    if launch.machines == 1 and not launch.hosts:
        return _text([*lines, f"exec {shlex.join(mpirun_words(launch, None))}"])
    lines += ["hosts=$(mktemp)", "trap 'rm -f \"$hosts\"' EXIT", *_file("$hosts", _slots(launch))]
    words = mpirun_words(launch, "HOSTS")
    at = words.index("HOSTS")
    return _text([*lines, f'{shlex.join(words[:at])} "$hosts" {shlex.join(words[at + 1 :])}'])


def _slots(launch: Launch) -> list[str]:
    return [f"{host} slots={launch.per_machine}" for host in launch.hosts]


def _about(launch: Launch) -> list[str]:
    return [f"# {one_line(line)}" for line in launch.about]


def _head(launch: Launch) -> list[str]:
    return ["#!/bin/bash", *_about(launch), "set -euo pipefail"]


def _exports(launch: Launch) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in launch.environment.items()]


def _file(path: str, lines: Iterable[str]) -> list[str]:
    """A here document. No line can be its end: host names have no such form."""
    return [f"cat > \"{path}\" <<'END OF HOSTS'", *lines, "END OF HOSTS"]


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
