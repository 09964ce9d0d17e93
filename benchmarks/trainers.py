"""Do trainers train under a plan as they do on one process? `python benchmarks/trainers.py`

Takes transformers, accelerate, lightning, peft and torchtitan (with triton) beside `shardplan[torch]`. Every example of
docs/trainers.md is run on one process without a plan, and on four with one; a line for each has what both print at the
last step, and whether all steps are `equal`, `rounded` in the last digit, or `DIFFERENT`.
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


_FAILED, _NUMBER = "FAILED", r"\d+\.\d+"


def lines(*command: str) -> list[str]:
    """What a command prints of its steps; why it failed, behind `FAILED`."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "planner"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if re.match(r"(\[rank0\]: )?\w+(Error|Exception)\b", line)]
        return [_FAILED, *(said or done.stderr.strip().splitlines()[-1:])]
    return re.findall(r"^step \d+ .*$", done.stdout, re.MULTILINE) or [""]


def compared(one: list[str], four: list[str]) -> str:
    """`equal`, or `rounded` where numbers differ by no more than one in the last digit that is printed."""
    if one == four:
        return "equal"
    pairs = list(zip(re.findall(_NUMBER, "\n".join(one)), re.findall(_NUMBER, "\n".join(four)), strict=False))
    near = all(abs(float(a) - float(b)) <= 1.01 * 10.0 ** -len(a.partition(".")[2]) for a, b in pairs)
    same = re.sub(_NUMBER, "", "\n".join(one)) == re.sub(_NUMBER, "", "\n".join(four))
    return "rounded" if near and same else "DIFFERENT"


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
            verdict = _FAILED if _FAILED in (one[0], four[0]) else compared(one, four)
            print(f"{name:18} {verdict:10} one: {one[-1]:36} four: {four[-1]}", flush=True)


if __name__ == "__main__":
    main()
