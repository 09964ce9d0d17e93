"""`shardplan launch-env` and `launch`: what starts a plan's processes, and that it does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PLAN = str(Path(__file__).parents[2] / "plans" / "gpt2_small.4x4.plan.json")
HOSTS = ("--hosts", "node[1-4]")
TELL = """
import os
told = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
os.write(1, (" ".join(told) + chr(10)).encode())
"""


@pytest.mark.parametrize("target", ["torchrun", "srun", "mpirun"])
def test_scripts_are_bash_and_say_which_ranks_are_where(target, shardplan, folder):
    program = ("--", "train.py", "--name", "a b")
    asked = ("launch-env", PLAN, "--for", target, *HOSTS, "--env", "NCCL_DEBUG=INFO", *program)
    run = shardplan(*asked)
    assert (run.code, run.err) == (0, "")
    assert "16 processes, 4 on each of 4 machines" in run.out
    assert "node2: ranks 4-7" in run.out
    assert "NCCL_DEBUG=INFO" in run.out
    assert "'a b'" in run.out
    checked = subprocess.run(["bash", "-n"], input=run.out, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert run.out == shardplan(*asked).out


@pytest.mark.parametrize("target", ["torchrun", "srun", "mpirun"])
def test_an_address_that_is_given_is_the_only_one(target, shardplan, folder):
    """Names of machines in a scheduler may be none in their network."""
    met = ("--env", "MASTER_ADDR=10.0.0.7", "--env", "MASTER_PORT=4711")
    run = shardplan("launch-env", PLAN, "--for", target, *HOSTS, *met, "--port", "5000", "--", "train.py")
    lines = [line for line in run.out.splitlines() if "MASTER" in line or "--master" in line]
    assert "10.0.0.7" in "".join(lines)
    assert not [line for line in lines if "node1" in line or "5000" in line]


def test_variables_of_the_profile_are_set_and_decide_nothing_else(shardplan, folder):
    """NCCL's, such as the cards that it uses, are as much a matter of the machines as their links are."""
    Path("mine.yaml").write_text(
        'name: mine\nextends: builtin:h100-dgx\nenvironment: {NCCL_IB_HCA: "=mlx5_0", NCCL_DEBUG: WARN}\n',
        encoding="utf-8",
    )
    Path("plain.yaml").write_text("name: mine\nextends: builtin:h100-dgx\n", encoding="utf-8")
    description = "transformer:layers=1,hidden=64,heads=4,vocab=64,seq=16,batch=8"
    solve = ("solve", description, "--mesh", "2x2", "--effort", "quick", "-q")
    for name in ("mine", "plain"):
        assert shardplan(*solve, "-c", f"{name}.yaml", "-o", f"{name}.plan.json").code in (0, 3)
    mine, plain = (json.loads(Path(f"{name}.plan.json").read_text(encoding="utf-8")) for name in ("mine", "plain"))
    assert mine["cluster"]["digest"] == plain["cluster"]["digest"]
    assert shardplan("diff", "plain.plan.json", "mine.plan.json").out.count("NCCL") == 0
    script = shardplan("launch-env", "mine.plan.json", "--for", "srun", "--env", "NCCL_DEBUG=INFO").out
    assert "export NCCL_DEBUG=INFO\nexport NCCL_IB_HCA==mlx5_0\n" in script
    bad = Path("mine.yaml").read_text(encoding="utf-8").replace("WARN", '"$(id)"')
    Path("mine.yaml").write_text(bad, encoding="utf-8")
    assert shardplan(*solve, "-c", "mine.yaml", "-o", "mine.plan.json").code in (0, 3)
    assert "bad-variable" in shardplan("launch-env", "mine.plan.json", "--for", "srun").err


def test_a_job_set_is_yaml_and_a_ray_program_is_python(shardplan, folder):
    manifest = yaml.safe_load(shardplan("launch-env", PLAN, "--for", "jobset", "--image", "registry/a:1").out)
    assert manifest["kind"] == "JobSet"
    assert manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 4
    compile(shardplan("launch-env", PLAN, "--for", "ray").out, "ray", "exec")


def test_a_host_file_has_as_many_slots_as_a_machine_has_devices(shardplan, folder):
    run = shardplan("launch-env", PLAN, "--for", "hostfile", *HOSTS)
    lines = [line for line in run.out.splitlines() if not line.startswith("#")]
    assert lines == [f"node{number} slots=4" for number in (1, 2, 3, 4)]


def test_a_file_is_written_and_nothing_else_is_replaced(shardplan, folder):
    assert shardplan("launch-env", PLAN, "--for", "srun", "-o", "job.sh").code == 0
    assert shardplan("launch-env", PLAN, "--for", "srun", "-o", "job.sh").code == 0
    Path("mine.sh").write_text("echo mine\n")
    run = shardplan("launch-env", PLAN, "--for", "srun", "-o", "mine.sh")
    assert run.code == 2
    assert Path("mine.sh").read_text() == "echo mine\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--for", "mpirun"], "mpirun has to know the 4 machines"),
        (["--for", "srun", "--hosts", "a,b"], "the plan takes 4 machines of 4 devices, 2 are given"),
        (["--for", "srun", "--hosts", "a,b,c,$(id)"], "'$(id)'"),
        (["--for", "jobset"], "a JobSet needs the image of a container"),
        (["--for", "srun", "--per-machine", "3"], "--per-machine 3 does not divide the 4 devices"),
        (["--for", "srun", "--env", "A=$(id)"], "sets 'A' to what no launcher should"),
        (["--for", "srun", "--name", "A;b"], "'A;b' is no name of a job"),
        (["--for", "ray", "--hosts", "a,b,c,d"], "ray chooses its machines itself"),
    ],
)
def test_what_cannot_be_is_refused(options, said, shardplan, folder):
    run = shardplan("launch-env", PLAN, *options)
    assert run.code == 2
    assert said in run.err
    assert "hint: " in run.err


def _plan(shardplan, mesh: str, name: str) -> None:
    description = "transformer:layers=1,hidden=64,heads=2,vocab=64,seq=32,batch=4"
    assert shardplan("solve", description, "--mesh", mesh, "--effort", "quick", "-o", name, "-q").code == 0


def test_torchrun_starts_every_process_and_its_exit_code_is_ours(folder, shardplan):
    pytest.importorskip("torch")
    _plan(shardplan, "2x2", "four.plan.json")
    Path("tell.py").write_text(TELL)
    command = [sys.executable, "-m", "shardplan", "launch", "four.plan.json", "--one-machine", "--port", "29517", "--"]
    run = subprocess.run([*command, "tell.py"], capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split("\n")[:4]) == [f"{rank} 4 {rank}" for rank in range(4)]
    Path("tell.py").write_text("raise SystemExit(3)")
    assert subprocess.run([*command, "tell.py"], capture_output=True, check=False, timeout=120).returncode == 1


def test_a_machine_that_there_is_not_is_refused(folder, shardplan):
    pytest.importorskip("torch")
    run = shardplan("launch", PLAN, "--for", "torchrun", "--hosts", "a,b,c,d", "--node-rank", "4", "--", "tell.py")
    said = "error[unknown-machine]: --node-rank 4: there are 4 machines\nhint: machines are 0 to 3\n"
    assert (run.code, run.err) == (2, said)


def _is_open_mpi() -> bool:
    if shutil.which("mpirun") is None:
        return False
    said = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in said.stdout


@pytest.mark.skipif(not _is_open_mpi(), reason="Open MPI is not installed")
def test_mpirun_starts_a_mesh_of_torch(folder, shardplan):
    """By the interpreter that runs this, which the PATH of a shell that activated nothing lacks; without ssh."""
    pytest.importorskip("torch")
    _plan(shardplan, "1x2", "two.plan.json")
    Path("mesh.py").write_text(
        "import os, shardplan, torch.distributed as dist\n"
        "mesh = shardplan.torch.mesh(shardplan.load('two.plan.json'), 'cpu')\n"
        "os.write(1, ('at ' + ' '.join(map(str, mesh.get_coordinate())) + chr(10)).encode())\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "shardplan", "launch", "two.plan.json", "--for", "mpirun", "--one-machine"]
    as_root = {"ALLOW_RUN_AS_ROOT": "1", "ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    Path("bin").mkdir()
    Path("bin/mpirun").symlink_to(shutil.which("mpirun"))
    environment = {**os.environ, "PATH": str(Path("bin").absolute())}
    environment |= {f"{prefix}_{name}": value for prefix in ("OMPI", "PRTE") for name, value in as_root.items()}
    run = subprocess.run(
        [*command, "--port", "29518", "--", "mesh.py"],
        capture_output=True, text=True, check=False, timeout=120, env=environment,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.split("\n")[:2]) == ["at 0 0", "at 0 1"]


def test_as_a_document(shardplan, folder):
    document = json.loads(shardplan("launch-env", PLAN, "--for", "srun", "--json").out)
    assert document["result"]["processes"] == 16
    assert document["result"]["text"].startswith("#!/bin/bash\n")
