"""Documents are read whole, and no more of them than any document has."""

from pathlib import Path

import pytest

from shardplan import text_files
from shardplan.errors import ShardplanError
from shardplan.yaml_source import compose


def refused(text: str) -> str:
    with pytest.raises(ShardplanError) as caught:
        compose(text, "f.yaml")
    return str(caught.value)


def doubling(levels: int) -> str:
    return "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, levels))


def chain(levels: int) -> str:
    return "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, levels))


@pytest.mark.parametrize("text", [doubling(20), chain(40), chain(4000), "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_stand_for_as_much_as_could_be_written(text):
    assert refused(text).startswith("f.yaml: error[yaml-syntax]: its aliases stand for more than 200,000 entries")


@pytest.mark.parametrize("text", [doubling(10), chain(20), "a: &a 1\nb: [*a, *a]"])
def test_aliases_of_people_are_read(text):
    compose(text, "f.yaml")


def test_long_documents():
    assert "more than 2,097,152 characters" in refused("a: b\n" * 500_000)


@pytest.mark.parametrize(
    "command",
    [
        ("solve", "transformer:llama3-8b", "-c", "/dev/zero"),
        ("solve", "transformer:llama3-8b", "--constraints", "/dev/zero"),
        ("evaluate", "transformer:llama3-8b", "--fix", "/dev/zero"),
        ("calibrate", "nccl", "/dev/zero", "-o", "-"),
        ("profiles", "check", "/dev/zero"),
    ],
)
def test_files_without_an_end(command, capsys, monkeypatch):
    from shardplan.cli import main

    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 20)
    assert main(command) == 2
    assert "it is larger than 1 MiB, which no document of its kind is" in capsys.readouterr().err


def test_line_ends(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"a\r\nb\rc\n")
    assert text_files.read_text(tmp_path / "f") == "a\nb\nc\n"
