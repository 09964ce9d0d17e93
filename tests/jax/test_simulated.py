"""Plans on 16 simulated devices: XLA sends what the plan says, and values and gradients are those of one device.

Bytes of the forward pass are equal in every collective and on every axis, where an all-reduce whose result is cut at
once counts as the reduce-scatter that the plan has (`shardplan.extras.xla.check`). The backward pass is XLA's own: it
differs in known ways (one all-reduce for each of separate q, k and v; gathered weights that are kept), so
its ratio is printed, and held where a fused q, k, v leaves little to differ in.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("jax")

from forced_plans import cluster_of
from tiny_models import megatron, tiny_gpt

from shardplan.constraints.parse import parse_constraints
from shardplan.planning import PlanOptions, plan_model
from shardplan.program.machine.verify import verify_plan

FORWARD = [
    ("gpt", "2x2", "Megatron"),
    ("gpt", "4x4", "Megatron"),
    ("gpt", "4x4", "Megatron sequence"),
    ("llama tied", "4x4", "Megatron sequence"),
    ("llama", "4x4", "ZeRO-3"),
    ("llama", "4x4", "data parallel"),
    ("moe", "4x4", "Megatron"),
    ("moe", "4x4", "solved 0.3"),
]
BOTH = [
    ("gpt fused", "4x4", "Megatron"),
    ("gpt fused", "4x4", "Megatron sequence"),
    ("gpt fused", "4x4", "solved 0.25"),
    ("llama", "4x4", "Megatron"),
]
RANDOM = [("gpt", "2x2", "random 5")]
CASES = [(*case, case in BOTH) for case in (*FORWARD, *BOTH, *RANDOM)]
PROCESSES = (("gpt", "gpt fused", "moe"), ("llama", "llama tied"))
"""Models of each process, about as much work in one as in the other."""
FURTHER = {("llama tied", "4x4", "Megatron sequence"), ("moe", "4x4", "solved 0.3"), ("llama", "4x4", "Megatron")}
"""Kinds of plans of further models, which slow tests look at: they are run when the first of these is asked for."""


class Outcomes(dict):
    """(model, mesh, plan) -> what came of it; the cases are shared out among processes."""

    def __init__(self, start, finish, folder):
        self.start, self.finish, self.folder = start, finish, folder

    def __missing__(self, asked):
        keys = ("model", "mesh", "plan", "gradients")
        cases = [dict(zip(keys, case, strict=True)) for case in CASES if (case[:3] in FURTHER) == (asked in FURTHER)]
        running = [
            self.start(
                "tests/support/jax_cases.py",
                json.dumps([case for case in cases if case["model"] in models]),
                self.folder(f"models{number}"),
            )
            for number, models in enumerate(PROCESSES)
        ]
        for process in running:
            self.update({(row["model"], row["mesh"], row["plan"]): row for row in json.loads(self.finish(process))})
        return dict(self)[asked]


@pytest.fixture(scope="module")
def outcomes(start, finish, tmp_path_factory):
    return Outcomes(start, finish, lambda name: str(tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("case", [*FORWARD, *BOTH], ids=" ".join)
def test_the_forward_pass_sends_what_the_plan_says(case, outcomes):
    found = outcomes[case]
    assert found["agrees"], found["text"]
    assert found["emitted_bytes"] == found["planned_bytes"]


@pytest.mark.parametrize("case", [*FORWARD, *BOTH, *RANDOM], ids=" ".join)
def test_values_are_those_of_one_device(case, outcomes):
    assert outcomes[case]["reference_error"] < 2e-5, "the twin is not the graph"
    assert outcomes[case]["value_error"] < 2e-5


@pytest.mark.parametrize("case", BOTH, ids=" ".join)
def test_gradients_are_those_of_one_device(case, outcomes):
    print(f"\n{' '.join(case)}\n{outcomes[case]['text']}")
    assert outcomes[case]["gradient_error"] < 1e-5


def test_a_fused_projection_sends_no_more_backward_than_planned(outcomes):
    assert outcomes["gpt fused", "4x4", "Megatron sequence"]["backward_ratio"] <= 1.0


def test_a_fused_projection_under_tight_memory_sends_hardly_more_backward_than_planned(outcomes):
    """Where the plan reduces a gradient over both axes at once, XLA does so over one after the other; where the plan
    scatters the sum of a small one, XLA keeps it whole."""
    assert outcomes["gpt fused", "4x4", "solved 0.25"]["backward_ratio"] <= 1.05


def test_a_fused_projection_under_megatron_sums_gradients_that_a_machine_shares_over_machines_alone(outcomes):
    """Ten vectors of norms, four biases of rows and the positions have the same gradient on all devices of `gpu`. The
    plan has each device take a part of the sums, and all add them up; nothing tells XLA to."""
    found = outcomes["gpt fused", "4x4", "Megatron"]
    emitted, planned = Counter(found["backward_emitted"]), Counter(found["backward_planned"])
    assert emitted - planned == {"all_reduce machine 128": 5 * 2 + 4, "all_reduce machine 2048": 1}
    assert planned - emitted == {"all_reduce machine,gpu 128": 5 * 2 + 4, "all_reduce machine,gpu 2048": 1}


def test_reduce_scatters_are_credited_one_by_one(outcomes):
    assert outcomes["gpt", "4x4", "Megatron sequence"]["scattered"] == 5
    assert outcomes["gpt", "4x4", "Megatron"]["scattered"] == 0


def test_norms_and_biases_under_sequence_parallelism_are_summed_once_over_both_axes(outcomes):
    """Five norms of two vectors and four biases, which XLA on CPU sums over one axis after the other."""
    assert outcomes["gpt fused", "4x4", "Megatron sequence"]["folded"] == 5 * 2 + 4
    assert outcomes["gpt fused", "4x4", "Megatron"]["folded"] == 0


@pytest.mark.parametrize(("mesh", "sent_bytes"), [("2x2", 20_480), ("4x4", 15_360)])
def test_xla_and_the_numpy_machine_and_the_plan_count_the_same(mesh, sent_bytes, outcomes, tmp_path):
    """Five all-reduces of [batch / machines, 16, 32] floats: the embedding, and two for each of two layers."""
    tiny = tiny_gpt()
    model = tiny.model(tmp_path)
    options = PlanOptions(constraints=parse_constraints(megatron(tiny), "megatron.yaml"), effort="quick")
    plan = plan_model(model, cluster_of(mesh), options)
    report = verify_plan(model, plan)
    assert report.verified
    assert dict(report.moved_bytes) == {"all_reduce": sent_bytes * plan.mesh.size}
    assert outcomes["gpt", mesh, "Megatron"]["planned_bytes"] == sent_bytes
    assert outcomes["gpt", mesh, "Megatron"]["emitted_bytes"] == sent_bytes


def test_a_plan_that_xla_does_not_follow_is_told(outcomes):
    found = outcomes["gpt", "2x2", "random 5"]
    assert not found["agrees"]
    assert found["emitted_bytes"] != found["planned_bytes"]
