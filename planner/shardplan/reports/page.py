"""The HTML file of a report: a document, the style and the program that draws it, in one page.

Names in a document come from files that anybody may have made. They travel as JSON that no HTML parser ends early,
the program writes them as text only, and a content security policy allows no other program and no address.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from shardplan.escapes import one_line

_ASSETS: Final = Path(__file__).parent / "assets"
_PROGRAM: Final = ("common.js", "tables.js", "plan.js", "model.js", "schedule.js", "studies.js", "main.js")
"""Parts of the program, in the order in which they are read."""


def page(document: Mapping[str, object]) -> str:
    """The HTML of a report. `document`: `kind`, `title` and what the views of that kind show, as plain data."""
    program = "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in _PROGRAM)
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    title = escape(one_line(str(document.get("title", ""))))
    return (
        (_ASSETS / "page.html")
        .read_text(encoding="utf-8")
        .replace("{{digest}}", digest)
        .replace("{{style}}", (_ASSETS / "style.css").read_text(encoding="utf-8"))
        .replace("{{program}}", program)
        .replace("{{title}}", title)
        .replace("{{document}}", _embedded(document))
    )


def _embedded(document: Mapping[str, object]) -> str:
    """JSON inside of a `script` element, which ends at `</script` and changes its reading at `<!--`."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
