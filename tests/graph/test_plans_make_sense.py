"""Plans of real models under shipped profiles do what an engineer who knows the hardware would do."""

import itertools
from pathlib import Path

import pytest

import shardplan
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.graph.options import PlanOptions
from shardplan.model.read import read_model
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.models import described
from shardplan.planning import plan_model
from shardplan.planning.chain import Question, answer
from shardplan.planning.instance import CostGraphs, instance_of
from shardplan.planning.judge import judged
from shardplan.planning.recipes import RECIPES

BLOCK = "transformer:style=gpt,layers=1,hidden=768,heads=12,vocab=8192,seq=1024,batch=16"
ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"


def committed(name):
    """A plan of this repository; that it is what planning gives, byte by byte, is a test of its own."""
    return shardplan.load(ROOT / "plans" / f"{name}.plan.json")


def planned(name, profile, mesh, dims=None, **options):
    model = read_model(MODELS / f"{name}.onnx", dims or {})
    return plan_model(model, make_cluster(load_profile(profile), mesh), PlanOptions(effort="quick", **options))


@pytest.fixture(scope="module")
def llama():
    """Llama-3 8B on 4 DGX machines: 8 sequences a step, fast links inside a machine, slow ones between."""
    return committed("llama3_8b.4x8")


def test_llama_puts_the_batch_on_machines(llama):
    """But for products of some of the first layers, whose gradients are the last to be reduced."""
    machine = 0
    for operator in llama.operators:
        if operator.module.startswith("model.layers.28.") and operator.op_type in ("MatMul", "Attention"):
            assert operator.split[machine] == "b", operator


def test_llama_splits_heads_and_columns_inside_machines(llama):
    gpu = 1
    of = {op.module: op.split[gpu] for op in llama.operators if op.module.startswith("model.layers.28.")}
    for column in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert of[f"model.layers.28.{column}"] == "n"
    assert of["model.layers.28.mlp.down_proj"] == "k"


def test_layers_of_llama_are_alike_but_for_one_change(llama):
    """Compute and what runs beside it may be balanced by some of the first layers, which are all alike again."""
    splits = [
        tuple(llama.operators[index].split for index in copy)
        for _, copies in llama.blocks
        for copy in copies[1:-1]  # the first and last layer have other neighbours
    ]
    assert sum(one != other for one, other in itertools.pairwise(splits)) <= 1


def test_llama_stays_within_memory_and_says_so(llama):
    assert llama.summary.gap <= 0.06
    assert llama.summary.objective_ns == pytest.approx(llama.summary.step_ns, rel=1e-6)
    assert llama.summary.bound_ns == pytest.approx(llama.summary.step_bound_ns, rel=1e-6)
    assert llama.summary.memory.total <= llama.summary.memory_limit_bytes


def test_a_tiny_batch_of_a_model_that_fits_is_tensor_parallel():
    plan = planned("gpt2_small_dyn", "h100-dgx", "1x8", {"batch": 1, "seq": 512})
    splits = {op.module: op.split[1] for op in plan.operators if op.op_type == "Gemm"}
    assert splits["transformer.h.5.mlp.c_fc"] == "n"
    assert splits["transformer.h.5.mlp.c_proj"] == "k"


def product(rows, inner, columns, count=4):
    """`count` products in a row with alternating widths; the input's gradient is wanted nowhere."""
    tensors = {"x0": Tensor("x0", (rows, inner), "bfloat16", "input")}
    operators, parameters = [], []
    for index in range(count):
        wide, tall = (inner, columns) if index % 2 == 0 else (columns, inner)
        tensors[f"w{index}"] = Tensor(f"w{index}", (wide, tall), "bfloat16", "parameter")
        tensors[f"x{index + 1}"] = Tensor(f"x{index + 1}", (rows, tall), "bfloat16", "activation")
        parameters.append(Parameter(f"w{index}", f"w{index}", f"w{index}"))
        operators.append(Operator(f"dot{index}", "MatMul", (f"x{index}", f"w{index}"), (f"x{index + 1}",), version=21))
    names = f"x{count}"
    return Model("products", tuple(operators), tensors, tuple(parameters), ("x0",), (names,), {}, opset=21)


@pytest.mark.parametrize(
    ("rows", "width", "moves_weights"),
    [(64, 16384, False), (1 << 20, 1024, True)],
    ids=["large weights", "large activations"],
)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_smaller_thing_moves(rows, width, moves_weights, mode):
    plan = plan_model(
        product(rows, width, width), make_cluster(load_profile("h100-dgx"), "8"), PlanOptions(effort="quick", mode=mode)
    )
    moved = {"weight": 0, "activation": 0}
    for move in plan.moves:
        kind = "weight" if move.tensor.startswith("w") else "activation"
        moved[kind] += sum(step.payload_bytes for step in move.steps)
    assert moved["activation" if moves_weights else "weight"] == 0


@pytest.mark.parametrize("name", ["gpt2_small", "gshard_moe", "one block"])
def test_no_hand_written_plan_is_better(name):
    """Layouts that experts write, with the best of the rest, are scheduled too: none of them is faster."""
    model = described(BLOCK) if name == "one block" else read_model(MODELS / f"{name}.onnx")
    cluster = make_cluster(load_profile("h100-dgx"), "4x4")
    plan = (
        committed("gpt2_small.4x4") if name == "gpt2_small" else plan_model(model, cluster, PlanOptions(effort="quick"))
    )
    step_s = plan.summary.step_ns / 1e9
    graphs = CostGraphs(instance_of(model, cluster, PlanOptions(), print))
    limit, forced = graphs.instance.limit_bytes, {}
    for recipe, restriction in RECIPES.items():
        found = answer(graphs, Question(limit, restriction=restriction))
        forced[recipe] = min(
            (one.step_s for one in judged(found.candidates, limit) if one.keeps(limit)), default=float("inf")
        )
    assert any(seconds < float("inf") for seconds in forced.values())
    assert all(step_s <= 1.005 * seconds for seconds in forced.values()), (step_s, forced)
