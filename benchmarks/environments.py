"""The oldest and the newest versions of everything that is needed, on every Python that is there.

    python benchmarks/environments.py [PYTHON ...] [--extra jax] [--tests tests/test_api.py]

An environment is made for each interpreter (`python3.11` and newer of the PATH and of pyenv, or those named) with the
newest versions that the index has, and one with those that `pyproject.toml` names as the lowest. In each the
installed `shardplan` solves, checks and verifies a small model, and a part of the tests is run. A plan that is
not, byte for byte, that of the first environment is told. Minutes. Exits with 1 where something fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = ("tests/test_api.py", "tests/test_request.py", "tests/cli/test_explain.py", "tests/cli/test_compare.py",
         "tests/solve/test_solve.py", "tests/layout", "tests/plan")  # fmt: skip
FOR_TESTS = ("pytest", "hypothesis", "jsonschema", "hatchling")
SHOWN = ("highspy", "numpy", "onnx", "networkx", "click", "rich")
COMMANDS = (
    ("solve", "{model}", "--mesh", "2x4", "-o", "x.plan.json", "--quiet"),
    ("check", "x.plan.json", "--model", "{model}"),
    ("verify", "{model}", "x.plan.json", "--shrink"),
    ("solve", "transformer:llama3-8b,layers=2,batch=8", "--mesh", "2x2", "-o", "y.plan.json", "--quiet"),
)


def interpreters() -> list[str]:
    """Every Python from 3.11 on that is found, one of each minor version."""
    named = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    kept = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    found: dict[str, str] = {}
    for path in [sys.executable, *map(str, kept), *filter(None, named)]:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        match = re.fullmatch(r"Python (3\.(\d+)\.\S+)", said.stdout.strip())
        if said.returncode == 0 and match and int(match[2]) >= 11:
            found.setdefault(match[2], path)
    return [found[minor] for minor in sorted(found, key=int)]


def lowest(requirement: str) -> str:
    """`numpy>=2.0` -> `numpy~=2.0.0`: the lowest release that is allowed, with repairs, on the Pythons it is for."""
    requirement, _, marker = requirement.partition(";")
    name, _, version = requirement.partition(">=")
    parts = [*version.split("."), "0", "0"][:3]
    return f"{name}~={'.'.join(parts)}{marker and ';' + marker}"


def wanted(kind: str, extras: list[str]) -> list[str]:
    plain = list(PROJECT["dependencies"])
    for extra in extras:
        plain += PROJECT["optional-dependencies"][extra]
    return [lowest(one) if kind == "oldest" else one for one in plain]


def ran(*command: str, folder: Path, seconds: float = 1500) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.returncode, done.stdout + done.stderr


def environment(python: str, kind: str, asked: argparse.Namespace, folder: Path) -> tuple[str, str, bool]:
    """Versions, what came of it, and whether it is good."""
    code, said = ran(python, "-m", "venv", str(folder), folder=ROOT)
    inside = folder / "bin"
    if code == 0:
        install = [*wanted(kind, asked.extra), *FOR_TESTS, "--only-binary", ":all:"]
        code, said = ran(str(inside / "pip"), "install", "-q", *install, folder=ROOT)
    if code == 0:
        code, said = ran(str(inside / "pip"), "install", "-q", "--no-deps", str(ROOT), folder=ROOT)
    if code:
        return "", f"not installed: {next((x for x in said.splitlines() if 'ERROR' in x), said)[:150]}", True
    _, listed = ran(str(inside / "pip"), "list", "--format=freeze", folder=ROOT)
    versions = dict(line.split("==") for line in listed.splitlines() if "==" in line)
    shown = " ".join(f"{name} {versions.get(name, '-')}" for name in SHOWN)
    model = str(ROOT / "tests" / "models" / "gpt2_small.onnx")
    for command in COMMANDS:
        code, said = ran(str(inside / "shardplan"), *(one.format(model=model) for one in command), folder=folder)
        if code:
            return shown, f"{command[0]} fails: {said.strip().splitlines()[-1][:150]}", False
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest()[:8] for name in ("x.plan.json", "y.plan.json")]
    code, said = ran(str(inside / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked.tests, folder=ROOT)
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    said = "; ".join([said.strip().splitlines()[-1], *failed])
    return shown, f"plans {' '.join(digests)}; {said}", code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", help="interpreters")
    parser.add_argument("--extra", action="append", default=[], choices=sorted(PROJECT["optional-dependencies"]))
    parser.add_argument("--kind", action="append", choices=("newest", "oldest"))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    asked = parser.parse_args()
    good = True
    for python in asked.python or interpreters():
        for kind in asked.kind or ("newest", "oldest"):
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                versions, said, fine = environment(python, kind, asked, Path(folder) / "venv")
            good = good and fine
            _, called = ran(python, "--version", folder=ROOT)
            print(
                f"{called.strip():14} {kind:7} {time.perf_counter() - started:4.0f} s  {versions}\n    {said}",
                flush=True,
            )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
