"""How long the verbs of the working day take on large models, and in how much memory.

    python benchmarks/verbs.py            # plans of described models are made first, in a folder of its own

Demands: `diff` of two plans of a 70B model in less than 1 s and 200 MB, `explain` of one tensor of an 8B model in less
than 5 s, both of processor time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LARGE, SMALL = "transformer:llama3-70b,batch=8,seq=4096", "transformer:llama3-8b,batch=8,seq=4096"
WEIGHT = "model.layers.*.mlp.down_proj.weight"
SCRIPT = """
import resource, sys
from shardplan.cli import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
CASES: tuple[tuple[str, float, int, tuple[str, ...]], ...] = (
    ("diff of two plans, 70B", 1.0, 200, ("diff", "70b.json", "other.json", "--exit-zero")),
    ("show, 70B", 2.0, 200, ("show", "70b.json")),
    ("check, 70B", 2.0, 200, ("check", "70b.json")),
    ("explain one tensor, 8B on 1x8", 5.0, 500, ("explain", "8b.json", "--model", SMALL, WEIGHT)),
    ("explain one tensor, 8B on 4x8", 5.0, 500, ("explain", "8b-4x8.json", "--model", SMALL, WEIGHT)),
    ("evaluate a plan, 8B on 4x8", 5.0, 500, ("evaluate", SMALL, "--fix", "8b-4x8.json")),
    ("compare, 8B on 4x8", 20.0, 500, ("compare", SMALL, "--mesh", "4x8")),
)
PLANS = (
    (LARGE, "--mesh", "4x8", "--remat", "full", "-o", "70b.json"),
    (LARGE, "--mesh", "4x8", "--remat", "full", "--microbatches", "2", "-o", "other.json"),
    (SMALL, "--mesh", "1x8", "-o", "8b.json"),
    (SMALL, "--mesh", "4x8", "-o", "8b-4x8.json"),
)


def measured(arguments: Sequence[str], folder: Path) -> tuple[float, int, int]:
    """Processor seconds, peak MB and exit code of one call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(run.stderr.split()[-1]) // 1024, run.returncode


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for plan in PLANS:
            seconds, _, code = measured(("solve", *plan, "-q"), folder)
            print(f"{'solve ' + plan[-1]:32} {seconds:6.2f} s", "" if code == 0 else f"exit {code}")
        for title, most_s, most_mb, arguments in CASES:
            seconds, peak_mb, code = measured(arguments, folder)
            passes = code == 0 and seconds <= most_s and peak_mb <= most_mb
            failed |= not passes
            demand = f"of {most_s:g} s and {most_mb} MB"
            print(f"{title:32} {seconds:6.2f} s  {peak_mb:4} MB  {demand:22} {'' if passes else 'FAILS'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
