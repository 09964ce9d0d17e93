"""`shardplan split`: what it prints, what it refuses, and that it does the same again."""

import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from safetensors_files import write_safetensors
from small_plans import plan_of

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.loading import split as splitting
from shardplan.loading.presharded import load_presharded
from shardplan.plan.file import write_plan

SCHEMA = json.loads((files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8"))
WEIGHTS = {
    "up.weight": np.arange(4096, dtype=np.float32).reshape(64, 64),
    "down.weight": np.arange(4096, dtype=np.float32).reshape(64, 64),
}


@pytest.fixture
def inputs(folder: Path) -> Path:
    """`m.safetensors` and plans for one axis of 2 (`two.json`) and for 2 x 2 with replicas (`four.json`)."""
    write_safetensors(folder / "m.safetensors", WEIGHTS)
    layouts = {"up.weight": ((64, 64), Layout.of(S(0))), "down.weight": ((64, 64), Layout.of(S(1)))}
    write_plan(plan_of(Mesh.of(tp=2), layouts), "two.json")
    both = {name: (shape, Layout.of(R, *layout.placements)) for name, (shape, layout) in layouts.items()}
    write_plan(plan_of(Mesh.of(dp=2, tp=2), both), "four.json")
    return folder


def test_a_split_and_the_same_again(shardplan, inputs):
    run = shardplan("split", "m.safetensors", "two.json", "-o", "out")
    assert (run.code, run.err) == (0, "")
    assert re.fullmatch(
        "checkpoint  2 tensors, 32 KiB\n"
        "ranks       2 \\(tp=2\\)\n"
        "wrote       out: 2 files, 32.6 KiB; every rank reads one, 16.3 KiB or less\n"
        "memory      [0-9.]+ [MG]iB at the peak of this command\n",
        run.out,
    )  # fmt: skip
    assert load_presharded("out", 1, ranks=2)["up.weight"].array[0, 0] == 2048
    assert "unchanged   out: 2 files, 32.6 KiB; " in shardplan("split", "m.safetensors", "two.json", "-o", "out").out


def test_replicas_and_the_document(shardplan, inputs):
    run = shardplan("split", "m.safetensors", "four.json", "-o", "out", "--json")
    document = json.loads(run.out)
    Draft202012Validator(SCHEMA).validate(document)
    files = [["rank-00000-of-00004.safetensors"], ["rank-00001-of-00004.safetensors"]]
    assert document["result"]["files"] == files * 2
    assert "wrote       again: 2 files, 32.6 KiB; every rank reads one" in (
        shardplan("split", "m.safetensors", "four.json", "-o", "again").out
    )


def test_shards_written_once(shardplan, inputs):
    """Replicas that differ in one weight would each repeat all others; a note says what to do."""
    layouts = {"up.weight": ((64, 64), Layout.of(S(0), R)), "down.weight": ((64, 64), Layout.of(R, R))}
    write_plan(plan_of(Mesh.of(dp=4, tp=1), layouts), "zero.json")
    run = shardplan("split", "m.safetensors", "zero.json", "-o", "each")
    assert run.err == (
        "note[repeated-shards]: the files take 81.1 KiB for a checkpoint of 32 KiB: what ranks share is repeated\n"
        "hint: --once writes every shard once; ranks read several files\n"
    )
    run = shardplan("split", "m.safetensors", "zero.json", "-o", "once", "--once")
    assert run.err == ""
    assert "wrote       once: 5 files, 33.1 KiB; every rank reads 2 of them, 20.4 KiB or less" in run.out
    for rank in range(4):
        assert load_presharded("once", rank)["up.weight"].array[0, 0] == 1024 * rank


def test_everything_that_is_wrong_is_said_together(shardplan, inputs):
    run = shardplan("split", "absent.safetensors", "m.safetensors", "-o", "out", "--rename", "model")
    assert run.code == 2
    assert run.err == (
        "error[bad-rename]: --rename 'model' is not OLD=NEW\n"
        "hint: write for example --rename =transformer. where the checkpoint leaves a prefix out\n"
        "m.safetensors: error[not-a-plan]: this is not a plan of shardplan: it is not text\n"
        "hint: plans are written by shardplan solve\n"
        "absent.safetensors: error[unreadable-checkpoint]: cannot read the checkpoint: no such file or directory\n"
    )
    assert not Path("out").exists()


def test_names_that_differ_by_a_prefix(shardplan, inputs):
    write_safetensors(inputs / "inner.safetensors", {f"model.{name}": array for name, array in WEIGHTS.items()})
    refused = shardplan("split", "inner.safetensors", "two.json", "-o", "out")
    assert refused.code == 2
    assert "hint: the checkpoint's names begin with 'model.': rename it to '' (--rename model.=)" in refused.err
    assert shardplan("split", "inner.safetensors", "two.json", "-o", "out", "--rename", "model.=").code == 0
    assert set(load_presharded("out", 0)) == {"model.up.weight", "model.down.weight"}


def test_interrupting_is_no_loss(shardplan, inputs, monkeypatch):
    copy = splitting._copy

    def interrupted(reader, outputs, entry, targets):
        if entry.name == "down.weight":
            raise KeyboardInterrupt
        yield from copy(reader, outputs, entry, targets)

    monkeypatch.setattr(splitting, "_copy", interrupted)
    run = shardplan("split", "m.safetensors", "two.json", "-o", "out")
    assert run.code == 130
    assert "interrupted; what is in out is kept: the same command goes on from there\n" in run.err
    monkeypatch.setattr(splitting, "_copy", copy)
    run = shardplan("split", "m.safetensors", "two.json", "-o", "out")
    assert run.out.endswith("resumed     16 KiB of the checkpoint had been done before\n")
    assert load_presharded("out", 1)["down.weight"].array[1, 0] == 96
