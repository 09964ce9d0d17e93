"""The tutorials, done as they say: files are written, commands run in order, in an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from tutorial_steps import TUTORIALS, steps

ROOT = Path(__file__).parents[1]
MOST_LINES = 110
"""About two pages."""


def do(kind: str, word: str, language: str, text: str, folder: Path) -> None:
    if kind == "file":
        (folder / word).write_text(text)
        return
    bin_folder = Path(sys.executable).parent
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert word in ran.stdout, f"{word!r} is not in what {text!r} prints:\n{ran.stdout}"


@pytest.mark.parametrize("name", sorted(path.stem for path in TUTORIALS.glob("*.md")))
def test_a_tutorial_works_as_it_stands(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((ROOT / "tests" / "models" / "lstm_lm.onnx").read_bytes())
    found = steps(name)
    assert len(found) >= 4
    for kind, word, language, body in found:
        do(kind, word, language, body, tmp_path)


def test_a_trained_step_is_two_pages_away() -> None:
    assert len((TUTORIALS / "ml-engineer.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES
