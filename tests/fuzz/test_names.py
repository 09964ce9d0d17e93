"""A plan whose names hold line ends, escapes, marks of direction and the commands of CI systems: nobody obeys them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_run import answer

from shardplan.export.targets import TARGETS

PLAN = str(Path(__file__).parent / "plans" / "evilnames.plan.json")
TEXTS = [target.name for target in TARGETS if target.writes == "text" and not target.needs_model]
COMMANDS = [
    *(("show", PLAN, "--format", form) for form in ("text", "dot", "graphml", "slapo")),
    ("show", PLAN, "--all"),
    ("show", PLAN, "--json"),
    ("explain", PLAN),
    ("timeline", PLAN),
    ("timeline", PLAN, "--json"),
    ("check", PLAN),
    ("check", PLAN, "--json"),
    *(("export", PLAN, "--to", name) for name in TEXTS),
]


def test_the_file_is_what_it_says():
    text = Path(PLAN).read_text(encoding="utf-8")
    assert all(part in text for part in ("::error", r"\n", "\u202e"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(word for word in command if word != PLAN))
def test_every_answer(command):
    found = answer(command)
    assert not found.fault, found.out + found.said


@pytest.mark.parametrize("form", ["text", "markdown", "github", "json"])
def test_differences(form, tmp_path):
    other = tmp_path / "b\n::error::file.plan.json"
    other.write_text(Path(PLAN).read_text(encoding="utf-8").replace('"R"', '"S(0)@gpu"', 1), encoding="utf-8")
    for old, new in ((PLAN, str(other)), (str(other), PLAN)):
        found = answer(("diff", old, new, "--all", "--format", form))
        assert not found.fault, found.out + found.said
