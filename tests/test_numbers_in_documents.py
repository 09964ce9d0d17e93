"""Numbers with units in the prose of README and docs/ say where they come from.

A section that has some names the benchmark or test that prints or holds them (`benchmarks/NAME.py`, `tests/...`), in
its text or in a comment `<!-- from: python benchmarks/NAME.py ... -->` above a table, which `benchmarks/docs.py
--tables` runs again; or a comment `<!-- given: ... -->` says what they are that needs no run: limits that the code
sets, definitions, what others have published. What commands print stands in ```console blocks, which
`benchmarks/docs.py` runs again.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNITS = "%|[kMGTP]?B|[KMGT]iB|[GM]B/s|Gbit/s|Gb/s|[PT]?FLOP/s|bytes|[num]?s|seconds?|minutes?|hours?|times|points"
NUMBER = re.compile(rf"(?<![\w.`-])\d[\d,.]*(?:e-?\d+)? ?(?:{UNITS})(?![\w-])")
SOURCE = re.compile(r"\b(?:benchmarks|tests)/[\w/]+\.py")
GIVEN = re.compile(r"<!-- given: [^>]+ -->")


def sections(text: str) -> list[str]:
    """A page from heading to heading; a line that looks like one inside of a block is none."""
    parts, fenced = [""], False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            parts.append("")
        parts[-1] += line
    return parts


def prose(section: str) -> str:
    """Without blocks, code, comments and where links lead."""
    for left_out in (r"^```.*?^```", r"`[^`\n]*`", r"<!--.*?-->", r"\]\([^)]*\)"):
        section = re.sub(left_out, "", section, flags=re.DOTALL | re.MULTILINE)
    return section


def without_source(text: str) -> list[tuple[str, list[str]]]:
    """Sections that have numbers and do not say whose they are: heading and numbers."""
    return [
        (section.split("\n", 1)[0], found)
        for section in sections(text)
        if (found := NUMBER.findall(prose(section))) and not SOURCE.search(section) and not GIVEN.search(section)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_say_where_they_come_from(page: Path):
    text = page.read_text(encoding="utf-8")
    assert without_source(text) == []
    assert [name for name in SOURCE.findall(text) if not (ROOT / name).is_file()] == []
    assert [one for one in sections(text) if GIVEN.search(one) and not NUMBER.search(prose(one))] == []


def test_what_is_found():
    assert without_source("# A\ntakes 3.5 s on 4 x 4\n") == [("# A", ["3.5 s"])]
    assert without_source("# A\n```console\n3 s\n```\nand `4 GiB`, 12 layers\n") == []
    assert without_source("# A\n3 s, by `benchmarks/zoo.py`\n## B\n4 %\n") == [("## B", ["4 %"])]
    assert without_source("# A\n<!-- given: a limit -->\nat most 10 MiB\n") == []


@pytest.fixture(scope="module")
def docs():
    spec = importlib.util.spec_from_file_location("docs_benchmark", ROOT / "benchmarks" / "docs.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_of_the_pages_is_run_again(docs, tmp_path):
    """But for those of other programs; what they read is in the checkout, or made by a command above them (`solve`
    writes into plans/)."""
    for page in PAGES:
        made: set[str] = set()
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^```(?!console$)\w*\n\$ ", text, re.MULTILINE), page.name
        for part in docs.PART.finditer(text):
            made |= set((part["before"] or "").split())
            for example in docs.examples(part["block"]) if (part["block"] or "").startswith("$ ") else ():
                if not docs.reason_not_to_run(example, ROOT).startswith("another"):
                    read = set(docs.READS.findall(example.text))
                    written = set(docs.WRITES.findall(example.text))
                    missing = [name for name in read - made - written if not (ROOT / name).exists()]
                    assert [name for name in missing if not name.startswith("plans/")] == [], page.name
                    made |= written


def test_rows_that_a_benchmark_prints_no_longer_are_found(docs):
    table = "| model | step ms | CPU s |\n|---|---|---|\n| gpt2 | 10.7 | 4.4 |\n| llama | 121 | |\n"
    assert docs.rows_of(table) == [["gpt2", "10.7"], ["llama", "121"]]
    assert docs.printed_in_order(["gpt2", "10.7"], "| gpt2 | optimal | 10.7 | 5.0 |")
    assert not docs.printed_in_order(["gpt2", "10.7"], "gpt2 110.7")
    assert not docs.printed_in_order(["gpt2", "10.7"], "10.7 gpt2")


def test_a_table_of_data_that_are_not_here_is_told_of_and_not_run(docs, capsys):
    counts = [0, 0, 0]
    docs._compare_table(ROOT / "README.md", "false $NO_SUCH_FOLDER", "| a |\n|---|\n| 1 |\n", ROOT, counts)
    assert counts == [0, 0, 1]
    assert "not run (needs NO_SUCH_FOLDER)" in capsys.readouterr().out


def test_the_edit_that_check_is_shown_to_find_is_one():
    """The `sed` of docs/ci.md changes one line of the committed plan, whatever it overlaps."""
    (command,) = re.findall(
        r"^\$ (sed .*) > edited\.plan\.json$", (ROOT / "docs/ci.md").read_text("utf-8"), re.MULTILINE
    )
    edited = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    whole = (ROOT / "plans/gpt2_small.4x4.plan.json").read_text("utf-8")
    changed = [new for old, new in zip(whole.splitlines(), edited.splitlines(), strict=True) if old != new]
    assert changed == ['    "hidden_us": 9999.5,']


def test_every_picture_is_taken_by_the_command_that_says_so():
    taken = set(re.findall(r'"(report[\w-]*)": \(', (ROOT / "benchmarks/report.py").read_text("utf-8")))
    shown = {name for page in PAGES for name in re.findall(r"images/([\w-]+)\.png", page.read_text("utf-8"))}
    assert shown == taken == {file.stem for file in (ROOT / "docs/images").iterdir()}
