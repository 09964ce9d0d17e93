"""The README's JAX program, as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

from jax_flags import quick

README = Path(__file__).parents[2] / "README.md"


def test_the_jax_program_of_the_readme_sends_what_was_planned(tmp_path: Path):
    (text,) = re.findall(
        r"<!-- file: jax_step.py -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": quick()}
    command = [sys.executable, "-c", text]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^forward +total .* x 1\.00$", ran.stdout, re.MULTILINE), ran.stdout
