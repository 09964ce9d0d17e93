"""`--to jax`: a module of PartitionSpecs, evaluated with jax where it is installed."""

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from example_plans import example_plan
from small_plans import plan_of, weight

from shardplan.export.jax_specs import export_jax
from shardplan.export.titan import export_titan
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.plan.file import read_plan
from shardplan.runtime.shards import shard_of

PLANS = Path(__file__).parents[2] / "plans"
MESH = Mesh.of(machine=2, gpu=2)


def small():
    layouts = {
        "embed.weight": ((8, 4), Layout.of(S(0), S(0), order=(1, 0))),
        "q.weight": ((4, 8), Layout.of(R, S(1)), (1, 0)),
        "norm": ((4,), Layout.of(R, R)),
    }
    return plan_of(MESH, layouts)


def test_the_specs():
    exported = export_jax(small())
    assert not exported.refused
    assert 'MESH = {"machine": 2, "gpu": 2}' in exported.text
    rows = ['"embed.weight": P(("gpu", "machine")),', '"q.weight": P(None, "gpu"),', '"norm": P(),']
    assert "PARAMETERS = {\n    " + "\n    ".join(rows) + "\n}\n" in exported.text
    assert "ALIASES = {}\n" in exported.text


def test_segments_are_refused_and_partial_outputs_told():
    exported = export_jax(example_plan())
    assert "\n".join(map(str, exported.refused)) == (
        "error[cannot-say]: jax cannot express that a dim is cut by segments\n"
        "  layers.0.attention.qkv.weight: dim 0 in segments of [1024, 1024, 1024] (and 1 more like this)\n"
        "hint: shardplan.jax loads and pins such a plan; solve --for jax finds the best plan "
        "that it can express, and what that costs\n"
        "warning[not-said]: loss: left as partial sums by the plan; a PartitionSpec asks for the sum"
    )


@pytest.mark.parametrize("name", ["emoji\N{GRINNING FACE}", "caf\u00e9 \u65e5\u672c", 'a "b" \\n'])
def test_names_are_read_back_as_they_are(name):
    """Above all those beyond U+FFFF, which JSON writes as two halves."""
    module = ast.parse(export_jax(plan_of(MESH, {name: ((8, 4), Layout.of(S(0), R))})).text)
    tables = {node.targets[0].id: node.value for node in module.body if isinstance(node, ast.Assign)}
    assert [key.value for key in tables["PARAMETERS"].keys] == [name]


def test_a_real_plan_is_python():
    exported = export_jax(read_plan(PLANS / "gpt2_small.4x4.plan.json"))
    compile(exported.text, "specs.py", "exec")
    assert '"transformer.wte.weight": "lm_head.weight"' in exported.text
    llama = export_jax(read_plan(PLANS / "llama3_8b.4x8.plan.json"))
    assert '"model.embed_tokens.weight": P("gpu", "machine"),' in llama.text


RUN = """
import sys
import jax, specs
assert len(jax.devices()) == 4
mesh = specs.make_mesh()
for name, sharding in sorted(specs.shardings(mesh).items()):
    shape = {"embed.weight": (8, 4), "q.weight": (4, 8), "norm": (4,)}[name]
    for device, index in sharding.devices_indices_map(shape).items():
        print(name, device.id, [dim.indices(size)[:2] for dim, size in zip(index, shape)])
"""


def test_jax_agrees_with_our_slices(tmp_path):
    """The module as written, run on four devices: every device's indices are those of `shardplan.slices`."""
    pytest.importorskip("jax")
    (tmp_path / "specs.py").write_text(export_jax(small()).text)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    given = {**os.environ, **flags, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, env=given, timeout=120, check=True
    )
    expected = {
        f"{name} {rank} {[(place.start, place.stop) for place in shard_of(small(), name, rank).pieces[0].source]}"
        for name in ("embed.weight", "q.weight", "norm")
        for rank in range(4)
    }
    assert set(done.stdout.splitlines()) == expected


def test_names_are_quoted():
    plan = plan_of(MESH, {}, tensors=(weight('a"\\b', (4,), Layout.of(S(0), R)),))
    module: dict = {}
    text = export_jax(plan).text
    exec(text[text.index("PARAMETERS") : text.index("ALIASES")], {"P": lambda *entries: entries}, module)
    assert module["PARAMETERS"] == {'a"\\b': ("machine",)}


def test_a_name_is_no_program():
    """What a file calls its model ends neither the text that it stands in nor a line."""
    plan = plan_of(MESH, {})
    hostile = replace(plan, model={**plan.model, "name": 'x"""\nraise SystemExit\n"""\\'})
    for text in (export_jax(hostile).text, export_titan(hostile).text):
        tree = ast.parse(text)
        assert "of x____raise SystemExit_____ on machine=2 x gpu=2" in ast.get_docstring(tree)
        assert not any(isinstance(node, ast.Raise) for node in tree.body)
