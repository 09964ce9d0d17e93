"""Room for the keys and values of serving."""

import pytest
from memory_closed_forms import kv_cache_bytes
from small_models import proto_of

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.placement import S
from shardplan.model.read import read_model_bytes
from shardplan.models import described, transformer
from shardplan.planning import PlanOptions, plan_model

SIZES = {"layers": 2, "hidden": 512, "heads": 8, "kv_heads": 2, "vocab": 1024, "seq": 128, "batch": 4}


def activations(model, mesh, tokens):
    options = PlanOptions(effort="quick", mode="inference", kv_cache_tokens=tokens)
    return plan_model(model, make_cluster(load_profile("h100-dgx"), mesh), options).summary.memory.activations


@pytest.mark.parametrize(
    ("name", "per_token"), [("llama3-8b", 131072), ("llama3-70b", 327680), ("llama3-405b", 516096)]
)
def test_bytes_per_token_are_the_published_ones(name, per_token):
    """Every layer keeps the same, so two layers and the count of the rest are enough."""
    layers = {"llama3-8b": 32, "llama3-70b": 80, "llama3-405b": 126}[name]
    model = described(f"transformer:{name},layers=2,batch=1,seq=128")
    held = activations(model, "1x1", 1 << 20) - activations(model, "1x1", 0)
    assert held * layers // 2 == per_token << 20


def test_repeated_key_heads_of_exporters_are_cached_once():
    model = transformer(**SIZES)
    one = activations(model, "1x1", 4096) - activations(model, "1x1", 0)
    assert one == kv_cache_bytes(2, 2, 64, 4096, "bfloat16")


def test_a_sharded_plan_holds_a_share():
    model = transformer(**{**SIZES, "kv_heads": 8})
    whole = kv_cache_bytes(2, 8, 64, 1 << 26, "bfloat16")
    held = activations(model, "1x8", 1 << 26)
    assert whole // 8 <= held < whole // 8 + (1 << 24)


def test_a_cache_that_does_not_fit_is_infeasible_and_one_that_must_be_sharded_is():
    model = transformer(**{**SIZES, "kv_heads": 8})
    cluster = make_cluster(load_profile("h100-dgx"), "1x8")
    tokens = 2 * cluster.device.usable_bytes // kv_cache_bytes(2, 8, 64, 1, "bfloat16")
    plan = plan_model(model, cluster, PlanOptions(effort="quick", mode="inference", kv_cache_tokens=tokens))
    assert plan.summary.memory.total <= cluster.device.usable_bytes
    assert plan.model["kv_cache_tokens"] == tokens
    with pytest.raises(ShardplanError, match="infeasible"):
        plan_model(model, cluster, PlanOptions(effort="quick", mode="inference", kv_cache_tokens=20 * tokens))


def test_what_cannot_have_a_cache():
    cluster = make_cluster(load_profile("h100-dgx"), "1x2")
    with pytest.raises(ShardplanError) as caught:
        plan_model(transformer(**SIZES), cluster, PlanOptions(effort="quick", kv_cache_tokens=1))
    assert str(caught.value) == (
        "error[kv-cache]: a cache of keys and values is for serving, and this is training\nhint: add --mode inference"
    )
    decomposed = transformer(**SIZES, attention="decomposed")
    with pytest.raises(ShardplanError, match="has no attention operator whose keys and values could be cached"):
        plan_model(decomposed, cluster, PlanOptions(effort="quick", mode="inference", kv_cache_tokens=1))


def test_a_missing_peak_is_said_and_kept_in_the_plan():
    heard = []
    cluster = make_cluster(load_profile("v100-p3-16xl"), "1x2")
    plan = plan_model(transformer(**SIZES), cluster, PlanOptions(effort="quick"), on_warning=heard.append)
    assert [diagnostic.code for diagnostic in heard] == ["missing-peak"]
    assert any("has no bf16 peak; fp16 is used" in text for text in plan.warnings)


STEP = """
step (float[8,1,16] x, float[8,7,16] past) => (float[8,1,16] y, float[8,8,16] present)
<float[16,16] wq, float[16,16] wk> {
  q = MatMul (x, wq)
  k = MatMul (x, wk)
  present = Concat <axis = 1> (past, k)
  turned = Transpose <perm = [0,2,1]> (present)
  scores = MatMul (q, turned)
  share = Softmax (scores)
  y = MatMul (share, present)
}"""


def test_a_cache_that_comes_in_is_kept_as_it_is_read():
    """Of two plans with one step, whole or cut, it is the one with less memory."""
    model = read_model_bytes(proto_of(STEP).SerializeToString(), "step")
    options = PlanOptions(effort="quick", mode="inference", constraints=(parse_pin("present=[[machine,gpu]]"),))
    plan = plan_model(model, make_cluster(load_profile("generic"), "2x4"), options)
    layouts = {tensor.name: tensor.layout for tensor in plan.tensors}
    assert layouts["past"] == layouts["present"] == Layout.of(S(0), S(0))
    assert not [move for move in plan.moves if move.tensor == "past"]
