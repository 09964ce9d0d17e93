"""The researcher's tutorial says what a reader gets."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "researcher.md"


def test_the_tutorial_runs_as_it_stands(monkeypatch):
    monkeypatch.chdir(ROOT)
    sessions = re.findall(r"```pycon\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(sessions), {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(examples)
    assert (result.failed, result.attempted > 10) == (0, True)
