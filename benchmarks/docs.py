"""Runs the commands of the README and of docs/ again and compares what they print with what the pages say.

    python benchmarks/docs.py [PAGE ...] [--write] [--tables]     # --write: bring the pages up to date

A block ```console holds commands after `$ ` and what they print, both streams; a line `...` stands for any lines. They
run in a copy of the checkout, page by page, after the commands of comments `<!-- before: COMMAND -->` above them, which
make what they read. Commands of other programs than shardplan, sed and the examples are told of and not run.

`--tables`: a table, or block, below a comment `<!-- from: COMMAND -->` is what that benchmark prints; it runs again,
which may take minutes, and rows are told of which it prints no longer. Columns that hold times of a processor or a
clock differ from run to run and are left out. A COMMAND that names a variable of the environment, such as `$IOPDDL`,
needs data that are not in the repository, and is told of and not run where that is not set.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
PART = re.compile(
    r"^<!-- before: (?P<before>.*) -->$"
    r"|^<!-- from: (?P<source>.*) -->\n+(?P<table>(?:\|.*\n)+|```console\n(?s:.*?)^```$)"
    r"|(?<=^```console\n)(?P<block>(?s:.*?))(?=^```$)",
    re.MULTILINE,
)
TIMED = re.compile(r"CPU|processor|opens in|wall|RSS|(?:^| )s$")
READS = re.compile(r"[\w./-]+\.(?:onnx|json|gz|yaml|safetensors)\b|\w+\.\w+:\w+")
WRITES = re.compile(r"(?:-o|>|--solve) +(\S+)")
ELIDED = "..."


@dataclass(frozen=True)
class Example:
    """A command as the page has it, with its lines of continuation, and the lines that it prints."""

    command: tuple[str, ...]
    printed: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.command).removeprefix("$ ").replace("\\\n", " ")


def examples(block: str) -> list[Example]:
    found: list[Example] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Example((line,), ()))
        elif found and not found[-1].printed and found[-1].command[-1].endswith("\\"):
            found[-1] = replace(found[-1], command=(*found[-1].command, line))
        elif found:
            found[-1] = replace(found[-1], printed=(*found[-1].printed, line))
    return found


def reason_not_to_run(example: Example, copy: Path) -> str:
    """Why a command is not run here, `""` where it is."""
    if not example.text.startswith(("shardplan ", "sed ", "python docs/examples/", "torchrun ")):
        return "another program"
    for module in _imported(example, copy):
        if importlib.util.find_spec(module) is None:
            return f"needs {module}"
    made = WRITES.findall(example.text)
    missing = [name for name in READS.findall(example.text) if name not in made and not (copy / name).exists()]
    return f"needs {missing[0]}" if missing else ""


def _imported(example: Example, copy: Path) -> list[str]:
    """The packages that a command's example of docs/ imports."""
    script = re.search(r"docs/examples/\w+\.py", example.text)
    text = (copy / script[0]).read_text(encoding="utf-8") if script else ""
    named = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    return [name for name in named if not (copy / "docs" / "examples" / f"{name}.py").exists()]


def printed_by(example: Example, copy: Path) -> tuple[str, ...]:
    """Both streams of a command that runs in the copy, line by line."""
    text = re.sub(r"^shardplan(?= )", "python -m shardplan", example.text)
    return output_of(re.sub(r"^torchrun(?= )", "python -m torch.distributed.run", text), copy)


def output_of(command: str, copy: Path) -> tuple[str, ...]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # XLA's alarms about slow compilation tell of the machine
    paths = os.pathsep.join(filter(None, (str(copy / "planner"), os.environ.get("PYTHONPATH"))))
    planner = {**os.environ, **quiet, "PYTHONPATH": paths}
    text = re.sub(r"^python(?= )", sys.executable, command)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; exec 2>&1; {text}"], cwd=copy, env=planner, capture_output=True, text=True,
        timeout=3600, check=False,
    )  # fmt: skip
    return tuple(line.rstrip() for line in done.stdout.rstrip("\n").splitlines())


def as_on_the_page(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """New lines, with those left out that the page leaves out: the first part and the last one by their lengths, one in
    between from the line that is most like its first."""
    if ELIDED not in old:
        return tuple(new)
    cuts = [-1, *(n for n, line in enumerate(old) if line == ELIDED), len(old)]
    parts = [list(old[start + 1 : end]) for start, end in pairwise(cuts)]
    lengths = [len(part) for part in parts]
    shown, at = list(new[: lengths[0]]), lengths[0]
    for part, length in zip(parts[1:-1], lengths[1:-1], strict=True):
        if not part:
            continue
        near = difflib.get_close_matches(part[0], new[at:], n=1, cutoff=0.0)
        at = list(new).index(near[0], at) if near else at
        shown += [ELIDED, *new[at : at + length]]
        at += length
    return (*shown, ELIDED, *(new[len(new) - lengths[-1] :] if lengths[-1] else ()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    pages = [Path(page).resolve() for page in asked.pages] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        archive = subprocess.run(
            ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=files, capture_output=True, check=True
        )
        subprocess.run(["tar", "--extract"], cwd=copy, input=archive.stdout, check=True)
        counts = [checked(page, copy, write=asked.write, tables=asked.tables) for page in pages]
    same, other, left = (sum(column) for column in zip(*counts, strict=True))
    print(f"{same} as the pages say, {other} otherwise, {left} not run")
    return int(other > 0 and not asked.write)


def checked(page: Path, copy: Path, *, write: bool, tables: bool) -> tuple[int, int, int]:
    """How many commands of a page print what it says, something else, and were not run."""
    counts, text = [0, 0, 0], page.read_text(encoding="utf-8")

    def again(part: re.Match[str]) -> str:
        if part["before"]:
            output_of(part["before"], copy)
        elif part["source"] and tables:
            _compare_table(page, part["source"], part["table"], copy, counts)
        elif part["block"] and part["block"].startswith("$ "):
            return "".join(f"{line}\n" for line in _run(page, examples(part["block"]), copy, counts))
        return part[0]

    updated = PART.sub(again, text)
    if write and updated != text:
        page.write_text(updated, encoding="utf-8")
    return counts[0], counts[1], counts[2]


def rows_of(table: str) -> list[list[str]]:
    """The cells of every row of a table, or words of every line of a block, that a benchmark has to print again."""
    lines = table.splitlines()
    if not table.startswith("|"):
        return [line.split() for line in lines if not line.startswith("```")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    timed = {at for at, head in enumerate(cells[0]) if TIMED.search(head)}
    return [[cell for at, cell in enumerate(row) if cell and at not in timed] for row in cells[2:]]


def printed_in_order(row: Sequence[str], line: str) -> bool:
    """Whether a line has the cells of a row, one after the other."""
    return re.search(r"(?<!\S)" + r".*?(?<!\S)".join(rf"{re.escape(cell)}(?!\S)" for cell in row), line) is not None


def _compare_table(page: Path, command: str, table: str, copy: Path, counts: list[int]) -> None:
    unset = [name for name in re.findall(r"\$(\w+)", command) if name not in os.environ]
    if unset:
        counts[2] += 1
        print(f"{page.name}: not run (needs {unset[0]}): {command}")
        return
    printed = output_of(command, copy)
    missing = [row for row in rows_of(table) if not any(printed_in_order(row, line) for line in printed)]
    counts[int(bool(missing))] += 1
    if missing:
        print(f"{page.name}: {command}", *(f"no longer printed: {' | '.join(row)}" for row in missing), sep="\n  ")
        print("  it printed", *printed, sep="\n    ", flush=True)


def _run(page: Path, block: Sequence[Example], copy: Path, counts: list[int]) -> Iterator[str]:
    for example in block:
        yield from example.command
        reason, old = reason_not_to_run(example, copy), example.printed
        new = old if reason else as_on_the_page(old, printed_by(example, copy))
        counts[2 if reason else int(new != old)] += 1
        if reason:
            print(f"{page.name}: not run ({reason}): {example.command[0]}")
        elif new != old:
            print(f"{page.name}: {example.command[0]}", *difflib.unified_diff(old, new, lineterm="", n=0), sep="\n  ")
        yield from new


if __name__ == "__main__":
    sys.exit(main())
