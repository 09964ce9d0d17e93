"""`shardplan launch-env PLAN --for LAUNCHER` and `shardplan launch PLAN -- train.py ...`: a plan's processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from shardplan.errors import Attempts, Diagnostic, ShardplanError, error
from shardplan.verbs.numbers import WholeRange
from shardplan.verbs.session import STANDARD_OUTPUT, Session, Verb, attended_verb, verb

if TYPE_CHECKING:
    from shardplan.launch.ranks import Launch

FORMATS = ("torchrun", "srun", "mpirun", "jobset", "ray", "hostfile", "rankfile")
STARTS = ("torchrun", "mpirun", "srun")
_NEED_HOSTS = ("hostfile", "rankfile")
_TAKE_NO_HOSTS = ("jobset", "ray")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}")
_PLACEHOLDER = ("train.py",)


def launch_options(function: Verb) -> Verb:
    """What both verbs ask for."""
    for add in reversed((
        click.argument("plan", type=click.Path(path_type=str)),
        click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM [ARGUMENT]...]"),
        click.option("--hosts", metavar="A,B,...", help="Machines in the order of their ranks; node[01-04] is four."),
        click.option("--hostfile", metavar="FILE", help="The same, a machine per line."),
        click.option("--per-machine", metavar="N", type=WholeRange(1), help="Processes on a machine."),
        click.option("--one-machine", is_flag=True, help="All processes on one machine: to try a program."),
        click.option("--port", metavar="N", type=WholeRange(1024, 65535), default=29500, show_default=True,
            help="Where rank 0 listens."),
        click.option("--env", metavar="NAME=VALUE", multiple=True,
            help="A variable for all processes, such as NCCL_IB_HCA=mlx5, beside the profile's; may be repeated."),
        click.option("--no-gpus", is_flag=True, help="Ask the scheduler for no GPUs."),
    )):  # fmt: skip
        function = add(function)
    return function


@click.command("launch-env", short_help="Write what starts a plan's processes: a script, a manifest.")
@click.option("--for", "target", type=click.Choice(FORMATS), required=True, help="The launcher.")
@launch_options
@click.option("--name", metavar="NAME", help="Name of the job.  [default: the model's]")
@click.option("--image", metavar="IMAGE", help="Container image (jobset).")
@click.option("-o", "--output", metavar="FILE", help="Where it goes; - is standard output, the default.")
@verb
def launch_env(
    session: Session, /, target: str, name: str | None, image: str | None, output: str | None, **asked: Any
) -> int:
    """Write what starts the processes of the plan file PLAN with a launcher: ranks are row-major in the plan's mesh,
    those of a machine follow each other, so that every mesh axis runs over the link that it was planned for.

    torchrun, mpirun: a script of bash; srun: one for sbatch; jobset: a manifest of Kubernetes; ray: a program with a
    placement group; hostfile, rankfile: files of Open MPI. PROGRAM is train.py by default.
    """
    output = None if output == STANDARD_OUTPUT else output
    launch = _described(target, name=name, image=image, **asked)
    text = _texts()[target](launch)
    document = {"launcher": target, "output": output, **_document(launch), "text": text}
    if output is not None:
        _write(text, output)
    if session.as_json:
        session.write_document(document)
    elif output is None:
        session.write_text(text)
    else:
        from shardplan.render.console import emit

        session.paint(lambda console: emit(console, f"wrote {output}"))
    return 0


@click.command(short_help="Start a program in the processes of a plan.")
@click.option("--for", "target", type=click.Choice(STARTS), default="torchrun", show_default=True, help="The launcher.")
@click.option(
    "--node-rank",
    metavar="N",
    type=WholeRange(0),
    help="Number of this machine (torchrun).  [default: found by its name]",
)
@launch_options
@attended_verb
def launch(session: Session, /, target: str, node_rank: int | None, **asked: Any) -> int:
    """Start PROGRAM in the processes of the plan file PLAN and end with its exit code.

    torchrun starts those of this machine and is called on every machine; mpirun and srun start all. With --json the
    program's output goes to standard error.
    """
    from shardplan.launch.start import start

    if not asked["program"]:
        hint = "shardplan launch PLAN -- train.py --epochs 3"
        raise ShardplanError(error("no-program", "there is no program to start", hint=hint))
    described = _described(target, name=None, image=None, **asked)
    command, code = start(described, target, node_rank, quiet_output=session.as_json)
    if session.as_json:
        session.write_document({"launcher": target, **_document(described), "command": command, "exit_code": code})
    return code


def _described(
    target: str,
    *,
    plan: str,
    program: tuple[str, ...],
    hosts: str | None,
    hostfile: str | None,
    per_machine: int | None,
    one_machine: bool,
    port: int,
    no_gpus: bool,
    env: tuple[str, ...],
    name: str | None,
    image: str | None,
) -> Launch:
    """What was asked for, with everything that is wrong with it said together."""
    from shardplan.launch.hosts import host_names, read_host_file
    from shardplan.launch.ranks import Launch, axes_of, check_hosts, environment_of, per_machine_of
    from shardplan.plan.file import read_plan

    loaded = read_plan(plan)
    attempt = Attempts()
    together = attempt(lambda: per_machine_of(loaded, per_machine, one_machine=one_machine))
    environment = attempt(lambda: environment_of(env, loaded))
    given: tuple[str, ...] | None = ()
    if hosts is not None:
        given = attempt(lambda: host_names(hosts))
    elif hostfile is not None and together is not None:
        given = attempt(lambda: read_host_file(hostfile, together))
    attempt.problems += _faults(target, program, hosts, hostfile, name, image, per_machine, one_machine=one_machine)
    attempt.finish()
    assert given is not None
    made = Launch(
        title=f"{loaded.model.get('name')} on {loaded.cluster.get('name')} ({loaded.mesh})",
        axes=axes_of(loaded),
        ranks=loaded.mesh.size,
        per_machine=together or 1,
        hosts=given,
        program=program or _PLACEHOLDER,
        environment=environment or {},
        port=port,
        name=name or _job_name(str(loaded.model.get("name"))),
        image=image,
        gpus=not no_gpus,
    )
    faults = [*check_hosts(made), *_unnamed(target, made)]
    if faults:
        raise ShardplanError(*faults)
    return made


def _faults(
    target: str,
    program: tuple[str, ...],
    hosts: str | None,
    hostfile: str | None,
    name: str | None,
    image: str | None,
    per: int | None,
    *,
    one_machine: bool,
) -> list[Diagnostic]:
    from shardplan.launch.ranks import NAME

    faults = []
    if program and program[0].startswith("-") and program[0] != "-m":
        faults.append(
            error("no-program", f"'{program[0]}' is no program", hint="PLAN -- train.py, or PLAN -- -m module")
        )
    if hosts is not None and hostfile is not None:
        faults.append(error("two-host-lists", "--hosts and --hostfile are both given", hint="give one of them"))
    if per is not None and one_machine:
        faults.append(error("bad-argument", "--per-machine and --one-machine are both given", hint="give one of them"))
    if target in _TAKE_NO_HOSTS and (hosts is not None or hostfile is not None):
        faults.append(error("no-hosts-here", f"{target} chooses its machines itself", hint="leave --hosts out"))
    if name is not None and not NAME.fullmatch(name):
        hint = "at most 40 small letters, digits and '-', beginning with a letter"
        faults.append(error("bad-name", f"'{name}' is no name of a job", hint=hint))
    if target == "jobset" and image is None:
        faults.append(error("no-image", "a JobSet needs the image of a container", hint="--image registry/name:tag"))
    if image is not None and not _IMAGE.fullmatch(image):
        faults.append(error("bad-image", f"'{image}' is no image of a container", hint="registry/name:tag"))
    return faults


def _unnamed(target: str, made: Launch) -> list[Diagnostic]:
    """Machines that somebody has to name."""
    if made.hosts or not (target in _NEED_HOSTS or (target == "mpirun" and made.machines > 1)):
        return []
    summary = (
        f"{target} has to know the {made.machines} machines" if made.machines > 1 else f"a {target} names its machine"
    )
    return [error("no-hosts", summary, hint="--hosts a,b,... or --hostfile FILE, in the order of ranks")]


def _job_name(model: str) -> str:
    """A name that SLURM and Kubernetes take, from that of a model."""
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40].strip("-")
    return plain if plain[:1].isalpha() else f"plan-{plain}"[:40].strip("-")


def _texts() -> dict[str, Callable[[Launch], str]]:
    from shardplan.launch.jobset import jobset
    from shardplan.launch.ray_script import ray_script
    from shardplan.launch.scripts import host_file, mpirun_script, rank_file, srun_script, torchrun_script

    return {
        "torchrun": torchrun_script,
        "srun": srun_script,
        "mpirun": mpirun_script,
        "jobset": jobset,
        "ray": ray_script,
        "hostfile": host_file,
        "rankfile": rank_file,
    }


def _document(launch: Launch) -> dict[str, object]:
    return {
        "processes": launch.ranks,
        "per_machine": launch.per_machine,
        "machines": launch.machines,
        "hosts": list(launch.hosts),
        "environment": dict(launch.environment),
        "program": list(launch.program),
    }


def _write(text: str, output: str) -> None:
    from shardplan.plan.file import write_other

    write_other(text, output, "launcher")
