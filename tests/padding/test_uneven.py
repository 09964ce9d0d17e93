"""`--uneven`: sizes that axes do not divide are held as larger ones where that makes the step shorter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from shardplan import make_plan
from shardplan.errors import ShardplanError
from shardplan.plan.file import read_plan
from shardplan.plan.format.encode import dumps
from shardplan.plan.padding import pads_of
from shardplan.study.instance import load_model
from shardplan.study.sweep import items_of

BATCH = "transformer:layers=2,hidden=1024,heads=16,vocab=8192,seq=512,batch=15"


def test_a_batch_that_no_axis_divides_is_held_as_the_next_that_all_do():
    even = make_plan(BATCH, "4x4", effort="quick")
    uneven = make_plan(BATCH, "4x4", uneven=True, effort="quick")
    asked = make_plan(BATCH, "4x4", pads={"input_ids[0]": 16}, effort="quick")
    assert pads_of(uneven) == {"input_ids[0]": 16}
    assert uneven.summary.step_ns < 0.9 * even.summary.step_ns
    assert dumps(uneven) == dumps(asked), "the same plan as of the model that is asked for so"


def test_sizes_that_divide_stay_as_they_are():
    model = BATCH.replace("layers=2", "layers=1").replace("batch=15", "batch=16")
    assert dumps(make_plan(model, "2x2", uneven=True, effort="quick")) == dumps(make_plan(model, "2x2", effort="quick"))


def test_the_command_says_what_is_held(tmp_path, shardplan):
    path = tmp_path / "a.plan.json"
    ran = shardplan("solve", BATCH, "--mesh", "4x4", "--uneven", "--no-advice", "-o", str(path))
    assert ran.code == 0
    assert "padded    input_ids[0] held as 16\n" in ran.out
    assert "padded    input_ids[0] held as 16\n" in shardplan("show", str(path)).out
    assert shardplan("check", str(path)).code == 0
    assert pads_of(read_plan(path)) == {"input_ids[0]": 16}
    refused = shardplan("export", str(path), "--to", "jax")
    assert (refused.code, "error[padded-plan]" in refused.err) == (2, True)


def test_a_size_that_is_held_larger_twice_leaves_a_fresh_plan(folder, shardplan):
    """As 8 elements of which 3 machines, then 5 devices are to hold as many."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[8, 1, 16] x) => (float[8, 4, 16] y)
          <int64[2] s = {4, 1}> { h = MatMul(x, w) y = Expand(h, s) }"""
    slow = (
        "extends: builtin:generic\nname: slow\ndevice: {hbm_gbps: 2}\nlevels: {up: {base_us: 0.1}, net: {base_us: 0.1}}"
    )
    (folder / "slow.yaml").write_text(slow, encoding="utf-8")
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((16, 16), np.float32), "w"))
    onnx.save(model, "m.onnx")
    shardplan("solve", "m.onnx", "--mesh", "3x5", "-c", "slow.yaml", "--uneven", "--no-advice", "-o", "a.plan.json")
    assert pads_of(read_plan("a.plan.json")) == {"w[1]": 18, "x[0]": 10}
    assert shardplan("check", "a.plan.json").code == 0
    assert shardplan("verify", "m.onnx", "a.plan.json").code == 0


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"mesh": "auto"}, "uneven goes with one mesh, and not with mesh auto\nhint: choose the mesh without uneven"),
        ({"mesh": "4x4", "stages": 2}, "uneven goes with one mesh, and not with stages 2"),
        (
            {"mesh": "4x4", "target": "tp-plan"},
            "not with target tp-plan\nhint: a runtime reads weights of the",
        ),
    ],
)
def test_it_goes_with_one_mesh(others, message):
    with pytest.raises(ShardplanError) as caught:
        make_plan(BATCH, uneven=True, **others, effort="quick")
    assert message in str(caught.value)


def test_padding_is_no_throughput():
    model = load_model(BATCH, {"pad:input_ids[0]": 16})
    assert items_of(model) == ("tokens", 15 * 512)
