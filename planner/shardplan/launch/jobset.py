"""A Kubernetes JobSet that starts a plan's ranks: one pod for each machine, torchrun in each."""

from __future__ import annotations

import shlex

from shardplan.escapes import one_line, quoted
from shardplan.launch.ranks import Launch
from shardplan.launch.scripts import is_python

_TEMPLATE = """\
{about}
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  network:
    enableDNSHostnames: true
  failurePolicy:
    maxRestarts: 0
  replicatedJobs:
    - name: machine
      replicas: 1
      template:
        spec:
          parallelism: {machines}
          completions: {machines}
          completionMode: Indexed
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
{spread}              containers:
                - name: ranks
                  image: {image}
                  command: ["/bin/sh", "-c"]
                  args:
                    - {command}
{env}{resources}                  volumeMounts:
                    - {{name: shm, mountPath: /dev/shm}}
              volumes:
                - name: shm
                  emptyDir: {{medium: Memory}}
"""
_SPREAD = """\
              affinity:
                podAntiAffinity:
                  requiredDuringSchedulingIgnoredDuringExecution:
                    - topologyKey: kubernetes.io/hostname
                      labelSelector:
                        matchLabels: {{jobset.sigs.k8s.io/jobset-name: {name}}}
"""
_GPUS = """\
                  resources:
                    limits: {{nvidia.com/gpu: {count}}}
"""


def jobset(launch: Launch) -> str:
    """The manifest. Pods find the first by the name that the JobSet gives it; every pod is on a machine of its own."""
    assert launch.image is not None
    words = [*launch.program] if is_python(launch) else ["--no-python", *launch.program]
    rendezvous = "--standalone"
    if launch.machines > 1:
        first = f"{launch.name}-machine-0-0.{launch.name}"
        rendezvous = (
            f'--nnodes={launch.machines} --node-rank="$JOB_COMPLETION_INDEX" '
            f"--master-addr={first} --master-port={launch.port}"
        )
    command = f"exec torchrun {rendezvous} --nproc-per-node={launch.per_machine} {shlex.join(words)}"
    env = "".join(
        f"                    - {{name: {name}, value: {_quoted(value)}}}\n"
        for name, value in launch.environment.items()
    )
    return _TEMPLATE.format(
        about="\n".join(f"# {one_line(line)}" for line in launch.about),
        name=launch.name,
        machines=launch.machines,
        image=_quoted(launch.image),
        command=_quoted(command),
        env=f"                  env:\n{env}" if env else "",
        resources=_GPUS.format(count=launch.per_machine) if launch.gpus else "",
        spread=_SPREAD.format(name=launch.name) if launch.machines > 1 else "",
    )


def _quoted(text: str) -> str:
    """As YAML has it, with what Kubernetes would replace (`$(NAME)`) kept as it is."""
    return quoted(text.replace("$(", "$$("))
