"""The tutorial about a torch module, its commands run in this process and its program on the ranks that there are.
`tests/test_tutorials.py` runs it word by word, which loads torch six times."""

import shlex
from pathlib import Path

import pytest
from tutorial_steps import steps

pytest.importorskip("torch")

from shardplan.cli import main

TORCHRUN = ["torchrun", "--nproc-per-node", "4"]


def test_its_files_and_commands_work(four, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("SHARDPLAN_ADVICE")
    trained = False
    for kind, word, _, text in steps("ml-engineer"):
        if kind == "file":
            Path(word).write_text(text)
            continue
        for program, *args in map(shlex.split, text.splitlines()):
            if program == "shardplan":
                assert main(args) == 0
            else:
                assert [program, *args[:2]] == TORCHRUN
                (script,) = args[2:]
                capsys.readouterr()
                printed = "".join(four.run("torch_cases", "script_in", str(tmp_path), script))
                assert word in printed
                trained = True
    assert trained
