"""Escaping of untrusted text for its destination: a terminal or log, Markdown, GitHub's commands, DOT, JSON.

Names come from files that anybody may have made. A terminal obeys escapes, a reader believes marks that turn the
direction of writing, CI systems obey lines such as `::error::` and `##[error]`, and Markdown obeys its own characters.
"""

from __future__ import annotations

import json
import re

CONTROLS = "\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Control characters, line ends and marks that change the direction of writing, as ranges of a pattern: names that hold
one are refused, since a log or a page would obey them."""
_NOT_ASCII = re.compile(r"[^\n\t -~]")
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#(?:\[|vso\[|teamcity\[))", re.MULTILINE)
"""How lines begin that GitHub obeys, and what its runner, Azure Pipelines and TeamCity obey anywhere in a line."""
_IN_CODE = str.maketrans({"`": "'", "|": "\\x7c"})
_MARKUP = re.compile(r"[\\`*\[\]#|~>]|(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])")


def visible(text: str) -> str:
    r"""Lines for a terminal or a log: what nobody would see, or somebody would obey, is written out (`\x1b`)."""
    return _COMMAND.sub(lambda found: f"{found[1] or ''}\\x{ord(found[0][-1]):02x}", _NOT_ASCII.sub(_written, text))


def one_line(text: str) -> str:
    """`visible`, with line ends and tabs written out too."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def _written(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def markdown(text: str) -> str:
    """A line of prose in Markdown, in which nothing of `text` is markup, a mention or a comment."""
    escaped = _MARKUP.sub(r"\\\g<0>", one_line(text)).replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")


def markdown_code(text: str) -> str:
    """A code span in Markdown, also inside of a table, where even a bar with a backslash may end a cell; empty for no
    text."""
    return f"`{one_line(text).translate(_IN_CODE)}`" if text else ""


def markdown_comment(text: str) -> str:
    """A comment in Markdown or HTML."""
    return f"<!-- {re.sub('-(?=-)', '- ', one_line(text))} -->"


def command_message(text: str) -> str:
    """The message of a workflow command of GitHub, as one line; `%0A` between two of them begins another."""
    return one_line(text).replace("%", "%25")


def command_property(text: str) -> str:
    """A property of a workflow command, which ends at a comma or a colon."""
    return command_message(text).replace(":", "%3A").replace(",", "%2C")


def dot(text: str) -> str:
    """The inside of a quoted string of Graphviz."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def quoted(text: str) -> str:
    """A string in double quotes for Python and YAML, ASCII throughout, so that no reader's encoding matters.

    JSON's escapes are not it: they write a character beyond U+FFFF as two halves, which both read as two characters.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f").encode("ascii", "backslashreplace").decode()


def json_text(text: str) -> str:
    """A JSON document for standard output: what `visible` writes out is escaped in its strings."""
    return _COMMAND.sub(_json_escape, _NOT_ASCII.sub(_json_escape, text))


def _json_escape(found: re.Match[str]) -> str:
    character = found[0][-1]
    if character.isprintable() and not character.isascii():
        return found[0]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
