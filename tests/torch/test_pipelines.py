"""Plans with stages in torch: two stages of two processes, or four of one, train as one process does."""

import functools
import pathlib
import tempfile

import pytest

pytest.importorskip("torch")

from forced_plans import cluster_of
from tiny_models import Sizes, megatron, tiny_gpt, tiny_llama, tiny_moe

from shardplan.constraints.parse import parse_constraints
from shardplan.graph.options import PlanOptions
from shardplan.stages.plan import plan_stages
from shardplan.stages.schedule import parse_schedule

EIGHT, GROUPED = Sizes(batch=8), Sizes(batch=8, kv_heads=2)
TINIES = {
    "gpt tied": functools.partial(tiny_gpt, EIGHT, tied=True),
    "gpt packed": functools.partial(tiny_gpt, EIGHT, fused=True),
    "llama": functools.partial(tiny_llama, GROUPED),
    "moe": functools.partial(tiny_moe, GROUPED),
}
BATCH = "axes:\n  gpu: {inputs: 0}\n"


@functools.cache
def tiny_of(name):
    return TINIES[name]()


@functools.cache
def model_of(name):
    with tempfile.TemporaryDirectory() as folder:
        return tiny_of(name).model(pathlib.Path(folder))


def plan_of(name, *, inside="", schedule="1f1b", micro=2, stages=2, mode="training", **options):
    text = {"": "", "batch": BATCH}.get(inside) if inside in {"", "batch"} else megatron(tiny_of(name), sequence=True)
    constraints = parse_constraints(text, "inside.yaml") if text else ()
    asked = PlanOptions(mode=mode, microbatches=micro, constraints=constraints, **options)
    return plan_stages(model_of(name), cluster_of("2x2"), asked, parse_schedule(schedule), stages)


CASES = {
    "weights of two stages": ("gpt tied", {}),
    "Megatron inside": ("gpt packed", {"inside": "Megatron"}),
    "more microbatches than stages": ("llama", {"inside": "Megatron", "micro": 4}),
    "gpipe": ("moe", {"inside": "Megatron", "schedule": "gpipe"}),
    "interleaved": ("gpt tied", {"schedule": "interleaved:2", "micro": 4}),
    "four stages of one device": ("gpt tied", {"stages": 4, "micro": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_trains_as_one_process_and_sends_what_its_stages_say(four, case):
    name, options = CASES[case]
    plan = plan_of(name, **options)
    results = four.run("torch_pipelines", "train", tiny_of(name), plan)
    for seen in results:
        assert seen.loss_error < 1e-5
        assert seen.gradient_error < 1e-5
        assert {key: pair for key, pair in seen.differences.items() if key[0] == "backward"} == {}
    assert results[0].differences == {}
    whole = len(tiny_of(name).weights)
    assert 0 < results[0].parameters < whole
