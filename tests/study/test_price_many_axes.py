"""Configurations with more mesh axes than all layouts are considered for: memory by hand, times by other meshes."""

import math

import pytest

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.graph.hidden_state import hidden_of
from shardplan.graph.options import PlanOptions
from shardplan.models import described
from shardplan.planning.parallelism import DATA, TENSOR, Parallelism, restriction
from shardplan.study import fixed_runs

DENSE = "transformer:layers=2,hidden=512,heads=8,kv_heads=8,vocab=1024,seq=256"
EXPERTS = "transformer:layers=1,hidden=256,heads=8,kv_heads=8,ffn=512,vocab=1024,seq=256,experts=8,top_k=2"


def elements(model) -> tuple[int, int]:
    """The parameters of experts, and all others."""
    shapes = [model.tensor(parameter.tensor).shape for parameter in model.parameters]
    return tuple(sum(math.prod(shape) for shape in shapes if (len(shape) == 3) == stacked) for stacked in (True, False))


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        (4, {"tp": 8, "cp": 2, "dp": 16, "ep": 8}),
        (5, {"tp": 2, "cp": 2, "dp": 16, "ep": 8}),
        (6, {"tp": 8, "cp": 4, "dp": 64, "ep": 8, "cluster": "trn2-16"}),
    ],
)
@pytest.mark.parametrize("zero", [1, 3])
def test_state_is_what_megatron_counts(axes, options, zero):
    """Experts are cut over tp x ep, all else over tp, and the optimizer's state over all ranks."""
    priced = shardplan.price(EXPERTS, zero=zero, **options)
    experts, others = elements(described(EXPERTS))
    tp, every = options["tp"], options["tp"] * options["cp"] * options["dp"]
    held = experts / tp / options["ep"] + others / tp if zero == 1 else (experts + others) / every
    assert len(priced.plan.mesh.shape) == axes
    assert priced.peak.parameters == pytest.approx(2 * held, rel=0.03)  # bf16; normalisations are whole
    assert priced.peak.optimizer == pytest.approx(12 * (experts + others) / every, rel=0.03)  # fp32: weight and moments


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (DENSE, {"tp": 8, "dp": 16, "zero": 1, "sequence_parallel": True}),
        (DENSE, {"tp": 8, "cp": 2, "dp": 16, "zero": 1}),
        (DENSE, {"tp": 2, "cp": 2, "dp": 8, "zero": 3}),
        (EXPERTS, {"tp": 8, "dp": 16, "ep": 8, "zero": 1}),
    ],
)
def test_few_axes_cost_the_same_among_the_layouts_left_open(model, options, monkeypatch):
    every = shardplan.price(model, **options)
    monkeypatch.setattr(fixed_runs, "MOST_WHOLE", 0)
    limited = shardplan.price(model, **options)
    assert limited.plan.summary.step_ns == pytest.approx(every.plan.summary.step_ns, rel=1e-3)
    assert limited.peak.total == pytest.approx(every.peak.total, rel=1e-3)


@pytest.mark.parametrize("zero", [0, 1])
def test_an_axis_cut_in_three_costs_what_it_costs_whole(zero, monkeypatch):
    """Data parallelism over one link, as one axis of eight and as three of two."""
    model, profile = described(f"{DENSE},batch=8"), load_profile("h100-dgx")
    monkeypatch.setattr(fixed_runs, "MOST_WHOLE", 0)
    parallelism = Parallelism(tensor=8, data=8, zero=zero)

    def plan(mesh, kinds):
        fixed = fixed_runs.Fixed(kinds, restriction(parallelism, kinds, hidden_of(model)), zero, sharded=False)
        options = PlanOptions(shard_optimizer=zero == 1, effort="quick", in_time=False)
        return fixed_runs.FixedRuns(model, make_cluster(profile, mesh), options, fixed, None).under(1 << 40).plan

    whole = plan("net=8,up=8", (DATA, TENSOR))
    cut = plan("net0=2,net1=2,net2=2,up=8", (DATA, DATA, DATA, TENSOR))
    assert cut.summary.step_ns == pytest.approx(whole.summary.step_ns, rel=1e-3)
    assert cut.summary.memory.total == pytest.approx(whole.summary.memory.total, rel=1e-3)


def test_twice_the_context_ranks_halve_activations_and_work():
    options = {"tp": 2, "dp": 16, "ep": 8, "zero": 1}
    two, four = (shardplan.price("transformer:mixtral-8x7b,layers=2", cp=cp, **options) for cp in (2, 4))  # five axes
    assert four.spent.compute_ns == pytest.approx(two.spent.compute_ns / 2, rel=0.1)
    # keys, values, and what comes back from experts are whole
    assert two.peak.activations / 2 < four.peak.activations < 0.7 * two.peak.activations


@pytest.mark.parametrize("zero", [0, 3])
def test_weights_of_convolutions_are_no_experts(zero):
    """The weight of a state space's convolution has three dims, too: its channels are no experts."""
    sizes = (
        "layers=4,hidden=256,heads=8,kv_heads=2,ffn=128,vocab=1024,seq=256,pattern=MEM*,style=nemotron,state_heads=8"
    )
    model = f"transformer:{sizes},experts=8,top_k=2,routing=dropless"
    priced = shardplan.price(model, zero=zero, tp=2, dp=32, ep=8, micro_batch=1)
    held = {row.name: row.layout for row in priced.plan.tensors if row.name.endswith("conv1d.weight")}
    sizes_of = [
        [size for size, one in zip(priced.plan.mesh.shape, layout.placements, strict=True) if one.is_shard]
        for layout in held.values()
    ]
    assert {math.prod(sizes) for sizes in sizes_of} == {2 if zero == 0 else 64}


def test_expert_ways_need_experts():
    with pytest.raises(ShardplanError, match="there are no experts to spread: no weight has one matrix for each"):
        shardplan.price("transformer:layers=2,hidden=256,heads=8,ffn=512,mixers=M*,style=bamba", dp=2, ep=2)


def test_one_expert_per_device_is_a_plain_product():
    """Of the same operations: two experts of 4096 for a token, each device has one; or an MLP of 8192."""
    sizes, options = "layers=2,hidden=2048,heads=16,vocab=512,seq=2048", {"dp": 8, "zero": 1, "global_batch": 16}
    routed = f"transformer:{sizes},ffn=4096,experts={{}},top_k=2,routing=dropless"
    dense = shardplan.price(f"transformer:{sizes},ffn=8192", **options).spent.compute_ns
    one, two = (shardplan.price(routed.format(count), ep=8, **options).spent.compute_ns for count in (8, 16))
    assert one == pytest.approx(dense, rel=0.2)
    assert two > 1.5 * one  # two matrices on each device, at the measured rate of grouped products
