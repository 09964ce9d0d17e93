"""Whatever a name holds, no reader of the output obeys it."""

import ast
import json
import re
import subprocess
from shutil import which

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardplan import escapes
from shardplan.errors import error

HOSTILE = (
    "a", "::", "##[", "##vso[", "\n", "\r", "\x1b[2J", "\x07", "\u202e", "\u2028", "\x85", "\ud800", "`", "|", "<",
    "-->", "--", "![x](y)", "@me", "https://a", "%0A", ",", ":", '"', "\\", "\t", " ", "*", "é", "→", "]", "&lt;",
)  # fmt: skip
texts = st.lists(st.sampled_from(HOSTILE) | st.characters(), max_size=8).map("".join)


def obeyed(line: str) -> bool:
    """As GitHub's runner finds commands, of both forms, and Azure Pipelines."""
    return line.lstrip().startswith("::") or re.search(r"##(\[|vso\[|teamcity\[)", line) is not None


@given(texts)
def test_terminals_and_logs(text):
    shown = escapes.visible(text)
    assert all(one.isprintable() for one in shown if one not in "\n\t")
    assert not any(map(obeyed, shown.splitlines()))
    assert escapes.visible(shown) == shown
    assert len(escapes.one_line(text).splitlines()) <= 1


@given(texts, texts, texts)
def test_diagnostics(file, summary, detail):
    head, *rest = str(error("code", summary, file=f"f{file}", detail=detail, hint=f"h{summary}")).split("\n")
    assert "error[code]: " in head
    assert not any(map(obeyed, [head, *rest]))
    assert all(line.startswith("  ") for line in rest[:-1])
    assert rest[-1].startswith("hint: h")


@given(texts)
def test_strings_of_python_and_yaml(text):
    """As YAML at least what UTF-8 can hold; nobody can write the rest into a file."""
    written = escapes.quoted(text)
    assert written.isascii()
    assert len(written.splitlines()) == 1
    assert ast.literal_eval(written) == text
    if not any("\ud800" <= one <= "\udfff" for one in text):
        assert yaml.safe_load(written) == text


@given(texts)
def test_workflow_commands_hold_one_command(text):
    command = f"::error file={escapes.command_property(text)},title=t::{escapes.command_message(text)}"
    assert len(command.splitlines()) == 1
    name, _, message = command[2:].partition("::")
    assert [entry.partition("=")[0] for entry in name.removeprefix("error ").split(",")] == ["file", "title"]
    assert "##[" not in message


@given(texts)
def test_cells_of_markdown(text):
    """A code span ends at the backtick; `\\\\|` ends a cell as `|` does."""
    cell = escapes.markdown_code(text)
    assert (cell == "") == (text == "")
    assert cell.count("`") in (0, 2)
    assert "|" not in cell
    assert escapes.markdown_comment(text).count("--") == 2


@given(texts)
def test_prose_of_markdown(text):
    prose = escapes.markdown(text).replace("<!-- -->", "")
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*\[\]|~#>]", prose)
    assert "<" not in prose
    assert not re.search(r"@(?!<!-- -->)", escapes.markdown(text))


@given(texts)
def test_documents_stay_what_they_are(text):
    document = json.dumps({"name": text, "é": [text]}, ensure_ascii=False, indent=1)
    shown = escapes.json_text(document)
    assert json.loads(shown) == json.loads(document)
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert not any(map(obeyed, shown.splitlines()))


@given(texts)
def test_strings_of_graphviz_end_where_they_should(text):
    inside = escapes.dot(text)
    assert re.fullmatch(r'(?:[^"\\\n]|\\.)*', inside)


@pytest.mark.skipif(which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_them():
    for text in HOSTILE:
        done = subprocess.run(
            ["dot", "-Tdot"], input=f'digraph {{ "{escapes.dot(text)}" }}', text=True, check=False, capture_output=True
        )
        assert done.returncode == 0, text
