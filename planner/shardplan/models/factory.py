"""Names of factories, `package.module:function`: functions that build a model for the command line."""

from __future__ import annotations

import re

from shardplan.text_files import is_there

_FACTORY = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


def factory_of(given: str) -> tuple[str, str] | None:
    """`my_pkg.module:build` -> the module and the function; None for what is no such name, or a file."""
    found = _FACTORY.fullmatch(given)
    return None if found is None or is_there(given) else (found[1], found[2])


def title_of_factory(given: str) -> str | None:
    """`my_pkg.module:build` -> `module.build`, a name for files; None for what is no such name."""
    found = factory_of(given)
    return f"{found[0].rpartition('.')[2]}.{found[1]}" if found else None
