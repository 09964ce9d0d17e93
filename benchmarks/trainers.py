"""Do trainers train under a plan as they do on one process? `python benchmarks/trainers.py`

Takes transformers, accelerate, lightning, peft and torchtitan (with triton) beside `shardplan[torch]`. Every example of
docs/trainers.md is run on one process without a plan, and on four with one; a line for each has what both print at the
last step.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "peft", "torchtitan")
LAUNCH = ("-m", "torch.distributed.run", "--nproc-per-node", "4")


def lines(*command: str) -> list[str]:
    """What a command prints of its steps."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "planner"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False
    )
    if done.returncode:
        return [done.stderr.strip().splitlines()[-1]]
    return re.findall(r"^step \d+ .*$", done.stdout, re.MULTILINE) or [""]


def main() -> None:
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    with tempfile.TemporaryDirectory() as folder:
        gpt, llama = f"{folder}/gpt.plan.json", f"{folder}/llama.plan.json"
        script = (EXAMPLES / "train_accelerate.py").read_text()
        solve = re.search(r"    shardplan (solve .*?)gpt.plan.json\n", script, re.DOTALL)
        assert solve is not None
        lines("-m", "shardplan", *shlex.split(solve[1].replace("\\\n", " ")), gpt)
        trainer = str(EXAMPLES / "train_hugging_face.py")
        lines(trainer, "--solve", llama)
        to = ("--output", f"{folder}/trained")
        runs = {"Trainer": ((trainer, *to), (trainer, "--plan", llama, *to))}
        for name, file in (("accelerate", "train_accelerate.py"), ("Lightning", "train_lightning.py")):
            runs[name] = ((str(EXAMPLES / file), gpt, "--alone"), (str(EXAMPLES / file), gpt))
        lora = str(EXAMPLES / "train_lora.py")
        lines(lora, "--solve", f"{folder}/lora.plan.json")
        runs["PEFT (LoRA)"] = ((lora,), (lora, "--plan", f"{folder}/lora.plan.json"))
        titan, one_process = str(EXAMPLES / "train_torchtitan.py"), (*LAUNCH[:-1], "1")
        lines(titan, "--solve", f"{folder}/titan.plan.json")
        under = (titan, "--plan", f"{folder}/titan.plan.json")
        runs["torchtitan"] = ((*one_process, titan), under)
        runs["torchtitan, FullAC"] = ((*one_process, titan, "--recompute"), (*under, "--recompute"))
        for name, (alone, planned) in runs.items():
            one, four = lines(*alone), lines(*LAUNCH, *planned)
            print(
                f"{name:18} {'equal' if one == four else 'DIFFERENT':10} one: {one[-1]:36} four: {four[-1]}", flush=True
            )


if __name__ == "__main__":
    main()
