"""What the pages on exports and loading show is what comes out."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import shardplan
from shardplan.export.jax_specs import export_jax
from shardplan.export.shard_info import export_shard_info
from shardplan.export.shardy import export_shardy
from shardplan.export.tp_plan import export_tp_plan

ROOT = Path(__file__).parents[2]
FRAMEWORKS = (ROOT / "docs" / "exports-frameworks.md").read_text(encoding="utf-8")
LOADING = (ROOT / "docs" / "loading.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plan():
    return shardplan.load(ROOT / "plans" / "gpt2_small.4x4.plan.json")


def shown(page: str, kind: str, beginning: str) -> str:
    """The block of a page that begins so."""
    found = re.search(rf"```{kind}\n({re.escape(beginning)}.*?)```", page, re.DOTALL)
    assert found, beginning
    return found[1]


def test_shardings_of_frameworks():
    llama = shardplan.load(ROOT / "plans" / "llama3_8b.4x8.plan.json")
    specs = shown(FRAMEWORKS, "python", "PARAMETERS = {").removesuffix("    ...\n")
    assert specs in export_jax(llama).text
    assert shown(FRAMEWORKS, "mlir", "module").rstrip("\n") in export_shardy(llama).text
    refused = "\n".join(map(str, export_tp_plan(llama).refused))
    assert shown(FRAMEWORKS, "console", "$ shardplan export plans/llama3_8b.4x8.plan.json --to tp-plan\n").endswith(
        f"--to tp-plan\n{refused}\n"
    )


def test_constraints_of_a_tp_plan():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(shown(FRAMEWORKS, "python", "from shardplan.export.tp_plan"))
    assert printed.getvalue().strip() == shown(FRAMEWORKS, "yaml", "inputs").strip()


def test_slices_and_steps(plan):
    pieces = shardplan.slices(plan, "transformer.wpe.weight", rank=6)
    assert f"# {pieces}\n" in shown(LOADING, "python", "import shardplan")
    steps = json.loads(export_shard_info(plan).text)
    for name, listed in json.loads(shown(LOADING, "json", "{\n")).items():
        assert steps[name] == listed
