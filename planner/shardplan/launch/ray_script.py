"""A Ray program that starts a plan's ranks: a placement group with a bundle per machine, torchrun in each."""

from __future__ import annotations

from shardplan.escapes import one_line
from shardplan.launch.ranks import Launch
from shardplan.launch.scripts import is_python

_TEMPLATE = '''\
{about}
import os
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

MACHINES, PER_MACHINE, GPUS, PORT = {machines}, {per_machine}, {gpus}, {port}
ENVIRONMENT = {environment!r}
PROGRAM = {program!r}


@ray.remote(max_calls=1)
def address():
    return ray.util.get_node_ip_address()


@ray.remote(max_calls=1)
def run(number, first):
    """torchrun on one machine; its exit code."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={{MACHINES}}", f"--node-rank={{number}}"]
    command += [f"--master-addr={{first}}", f"--master-port={{PORT}}", f"--nproc-per-node={{PER_MACHINE}}", *PROGRAM]
    return subprocess.run(command, env={{**os.environ, **ENVIRONMENT}}, check=False).returncode


def main():
    ray.init()
    bundle = {{"CPU": PER_MACHINE, **({{"GPU": PER_MACHINE}} if GPUS else {{}})}}
    group = placement_group([bundle] * MACHINES, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def on(number):
        return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=number)

    first = ray.get(address.options(num_cpus=1, scheduling_strategy=on(0)).remote())
    held = {{"num_cpus": PER_MACHINE, "num_gpus": PER_MACHINE if GPUS else 0}}
    started = [run.options(**held, scheduling_strategy=on(number)).remote(number, first) for number in range(MACHINES)]
    return max(abs(code) for code in ray.get(started))


if __name__ == "__main__":
    sys.exit(main())
'''


def ray_script(launch: Launch) -> str:
    """The program; machines are Ray's to choose, and every bundle is on a machine of its own."""
    program = [*launch.program] if is_python(launch) else ["--no-python", *launch.program]
    return _TEMPLATE.format(
        about="\n".join(f"# {one_line(line)}" for line in launch.about),
        machines=launch.machines,
        per_machine=launch.per_machine,
        gpus=launch.gpus,
        port=launch.port,
        environment=dict(launch.environment),
        program=program,
    )
