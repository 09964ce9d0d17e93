"""The steps of a tutorial: files to write and commands to run, in order."""

import re
from pathlib import Path

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
_STEP = re.compile(r"<!-- (file|run)(?:: ([^>]*?))? -->\n```(\w+)\n(.*?)```", re.DOTALL)


def steps(name: str) -> list[tuple[str, str, str, str]]:
    """Of every step its kind (`file` or `run`), the name of the file or a word that is printed, language and text."""
    return _STEP.findall((TUTORIALS / f"{name}.md").read_text(encoding="utf-8"))
