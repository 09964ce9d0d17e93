"""`solve --for FORMAT`: for every format, what is planned for it is exported to it without a refusal."""

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from forced_plans import cluster_of
from small_models import proto_of
from tensor_parallel import MIXTRAL, QWEN, one_layer

from shardplan import make_plan
from shardplan.cluster.mesh import merged
from shardplan.errors import InfeasibleError, ShardplanError
from shardplan.export.targets import TARGETS as FORMATS
from shardplan.export.targets import find_target
from shardplan.export.types import Source
from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.read import read_model, read_model_bytes
from shardplan.planning import Planner, answers, for_runtime
from shardplan.planning.answers import Answers
from shardplan.planning.chain import answering
from shardplan.planning.finer import CoarsePlans, least_s
from shardplan.planning.for_runtime import RuntimePlans, best_for_runtime
from shardplan.planning.instance import instance_of
from shardplan.planning.recipes import RECIPES
from shardplan.planning.runtimes import RUNTIMES
from shardplan.planning.runtimes.trainer import check_kind, dividing
from shardplan.planning.search import NoBetterError, Search
from shardplan.request import TARGETS, Request
from shardplan.study.instance import load_model, read

ROUNDED_S = 1e-9
"""Times of a plan are in nanoseconds, bounds are not."""

LSTM = """
lm (int64[8,12] ids) => (float[8,12,48] logits)
<float[48,16] embed, float[1,64,16] w, float[1,64,16] r, float[1,128] b, float[48,16] head> {
  x = Gather (embed, ids)
  xt = Transpose <perm = [1,0,2]> (x)
  y, h, c = LSTM <hidden_size = 16> (xt, w, r, b)
  axes = Constant <value = int64[1] {1}> ()
  s = Squeeze (y, axes)
  st = Transpose <perm = [1,0,2]> (s)
  headt = Transpose (head)
  logits = MatMul (st, headt)
}"""
"""A recurrent language model, time major inside."""
VISION = """
vision (float[8,3,8,8] image, int64[8] label) => (float loss)
<float[16,3,2,2] patch, float[16] patch_bias, float[1,17,16] position, float[1,1,16] cls, float[16] g, float[16] b,
 float[16,48] qkv, float[48] qkv_bias, float[16,16] out, float[16] out_bias, float[16,10] head, float[10] head_bias> {
  p = Conv <strides = [2,2]> (image, patch, patch_bias)
  flat = Constant <value = int64[3] {8,16,16}> ()
  f = Reshape (p, flat)
  t = Transpose <perm = [0,2,1]> (f)
  many = Constant <value = int64[3] {8,1,16}> ()
  c = Expand (cls, many)
  s = Concat <axis = 1> (c, t)
  x = Add (s, position)
  n = LayerNormalization (x, g, b)
  m = MatMul (n, qkv)
  mb = Add (m, qkv_bias)
  sizes = Constant <value = int64[3] {16,16,16}> ()
  q, k, v = Split <axis = 2> (mb, sizes)
  a = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v)
  o = MatMul (a, out)
  ob = Add (o, out_bias)
  r = Add (x, ob)
  zero = Constant <value = int64 {0}> ()
  first = Gather <axis = 1> (r, zero)
  logits = Gemm (first, head, head_bias)
  loss = SoftmaxCrossEntropyLoss (logits, label)
}"""
"""A vision transformer with a fused q, k, v, weights stored [in, out], a class token and a loss."""


DECODER = """
decoder (int64[BATCH,6] ids, float[1,1,6,6] mask) => (float[BATCH,6,64] logits)
<float[64,32] embed, float[32] g, float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32] h,
 float[32,128] up, float[128,32] down, float[32] f, float[32,64] head> {
  two = Constant <value = float {2.0}> ()
  last = Constant <value = int64[1] {-1}> ()
  tiny = Constant <value = float {0.00001}> ()
  heads = Constant <value = int64[4] {BATCH,6,4,8}> ()
  flat = Constant <value = int64[3] {BATCH,6,32}> ()
  x = Gather (embed, ids)
  RMS(x, g, n)
  q = MatMul (n, wq) q4 = Reshape (q, heads) qh = Transpose <perm = [0,2,1,3]> (q4)
  k = MatMul (n, wk) k4 = Reshape (k, heads) kh = Transpose <perm = [0,2,1,3]> (k4)
  v = MatMul (n, wv) v4 = Reshape (v, heads) vh = Transpose <perm = [0,2,1,3]> (v4)
  ATTENTION
  a4 = Transpose <perm = [0,2,1,3]> (ah) a = Reshape (a4, flat)
  o = MatMul (a, wo)
  r = Add (x, o)
  RMS(r, h, m)
  u = MatMul (m, up) s = Sigmoid (u) d = MatMul (s, down)
  t = Add (r, d)
  RMS(t, f, z)
  logits = MatMul (z, head)
}"""
"""A layer of a decoder with a causal mask; norms and attention are operators, or several for each."""
_RMS = r"""
  \3_square = Pow (\1, two) \3_mean = ReduceMean (\3_square, last) \3_above = Add (\3_mean, tiny)
  \3_root = Sqrt (\3_above) \3_factor = Reciprocal (\3_root) \3_normed = Mul (\1, \3_factor)
  \3 = Mul (\3_normed, \2)
"""
SLOW = """
extends: builtin:generic
name: slow
device: {hbm_gbps: 5, peak_tflops: {fp32: 0.002, tf32: 0.002, bf16: 0.002}}
levels: {up: {base_us: 0.01}, net: {base_us: 0.01}}
"""
"""A cluster on which compute costs more than what is sent."""
_ATTENTION = """
  kt = Transpose <perm = [0,1,3,2]> (kh) raw = MatMul (qh, kt) masked = Add (raw, mask) share = Softmax (masked)
  ah = MatMul (share, vh)
"""


def decoder(batch=8, *, decomposed):
    text = DECODER.replace("BATCH", str(batch))
    fused = r"\3 = RMSNormalization (\1, \2)", "ah = Attention (qh, kh, vh, mask)"
    norm, attention = (_RMS, _ATTENTION) if decomposed else fused
    text = re.sub(r"RMS\((\w+), (\w+), (\w+)\)", norm, text).replace("ATTENTION", attention)
    return read_model_bytes(proto_of(text, 20 if decomposed else 23).SerializeToString(), "decoder")


def small(text):
    return read_model_bytes(proto_of(text).SerializeToString(), "small")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sizes = "layers=1,batch=8,seq=64,vocab=512,hidden=64,heads=8,ffn=128"
    return {
        "llama": f"transformer:llama3-8b,{sizes},kv_heads=4",
        "mixtral": f"transformer:mixtral-8x7b,{sizes},kv_heads=4",
        "gpt": f"transformer:gpt-1.7b,{sizes}",
        "bert": f"transformer:bert-base,{sizes}",
        "qwen": str(one_layer(QWEN, folder)),
        "stacked experts": str(one_layer(MIXTRAL, folder)),
        "recurrent": small(LSTM),
        "vision": small(VISION),
    }


_PLANNED = {}


def planned(model, mesh, target, mode, **asked):
    """A plan, made once for all tests that ask the same."""
    key = (model if isinstance(model, str) else id(model), mesh, target, mode, repr(asked))
    if key not in _PLANNED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _PLANNED[key] = make_plan(model, mesh, target=target, mode=mode, effort="quick", **asked)
    return _PLANNED[key]


def refusals(plan, target, model=None):
    found = find_target(target)
    given = [Source(load_model(model, {}) if isinstance(model, str) else model, None)] if found.needs_model else []
    return [str(each) for each in found.load()(plan, *given).refused if each.severity == "error"]


SAME = {"jax": "shardy", "megatron": "maxtext"}
"""Formats with equal limits."""
ALL = sorted(set(TARGETS) - {"", *SAME.values()})


@pytest.mark.parametrize(
    ("name", "mode", "targets"),
    [
        ("llama", "training", ALL),
        ("vision", "training", ["tp-plan", "deepspeed", "fsdp2", "torchtitan", "jax"]),
        *((name, "training", ["fsdp2", "torchtitan"]) for name in ("gpt", "bert", "qwen", "recurrent")),
        *((name, "training", ["tp-plan", "torchtitan"]) for name in ("mixtral", "stacked experts")),
        *((name, "inference", ["tp-plan"]) for name in ("llama", "vision", "stacked experts")),
    ],
)
def test_what_is_planned_for_a_format_is_exported_to_it(models, name, mode, targets):
    for target in targets:
        plan = planned(models[name], "1x4" if target == "megatron" else "2x2", target, mode)
        assert plan.model["target"] == target
        for each in (target, SAME.get(target)):
            assert each is None or refusals(plan, each, models[name]) == []


@pytest.mark.parametrize("mesh", ["1x8", "machine=4,gpu=2"])
@pytest.mark.parametrize("target", ["torchtitan"])
def test_on_meshes_of_other_shapes_and_names(models, target, mesh):
    plan = planned(models["llama"], mesh, target, "training", cluster="h100-dgx")
    assert refusals(plan, target) == []


def test_an_axis_of_one_device_is_no_axis_of_a_runtime(models):
    """Under memory that data parallelism does not keep, weights are split over the other axis."""
    unlimited = planned(models["llama"], "1x4", "torchtitan", "training").summary.memory.total
    plan = planned(models["llama"], "1x4", "torchtitan", "training", memory_limit=unlimited // 2)
    assert any(p.is_shard for t in plan.tensors if t.role == "parameter" for p in t.layout.placements)
    assert refusals(plan, "torchtitan") == []


@pytest.mark.parametrize("name", ["llama"])
def test_limits_have_a_price(models, name):
    """No plan that a format says is faster than the bound of any plan, and the bound of a format is below its plan."""
    free = planned(models[name], "2x2", "", "training").summary
    for target in ("deepspeed", "torchtitan"):
        said = planned(models[name], "2x2", target, "training").summary
        assert said.step_ns >= free.bound_ns
        assert said.bound_ns <= said.step_ns


def test_a_format_that_says_more_is_no_slower(models):
    """A portable tp_plan is a tp_plan, and AutoTP's columns and rows are both."""
    steps = {
        target: planned(models["llama"], "2x2", target, "training", gap=0.0).summary.step_ns
        for target in ("tp-plan", "tp-plan-portable", "deepspeed")
    }
    assert steps["tp-plan"] <= 1.02 * steps["tp-plan-portable"]
    assert steps["tp-plan-portable"] <= 1.02 * steps["deepspeed"]


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "jax"])
def test_a_finer_mesh_over_the_same_links_is_no_slower(models, target):
    """Neighbouring axes with one role say what the axis says of which they are parts."""
    coarse, fine = (planned(models["llama"], mesh, target, "training") for mesh in ("1x4", "1x2x2"))
    assert fine.summary.step_ns <= coarse.summary.step_ns
    assert refusals(fine, target, models["llama"]) == []


def test_where_everything_is_said_no_other_format_is_faster(models):
    found = {each: make_plan(models["llama"], "1x8", target=each).summary for each in ("", "jax", "tp-plan")}
    assert found["jax"].step_ns <= found["tp-plan"].step_ns
    assert found["jax"].step_ns == found[""].step_ns


def test_memory_that_no_such_plan_keeps(models):
    with pytest.raises(InfeasibleError) as raised:
        planned(models["gpt"], "2x2", "deepspeed", "training", memory_limit="1 MiB")
    first = raised.value.diagnostics[0]
    assert first.summary.startswith("no plan that deepspeed can express fits in memory")
    assert first.hint.startswith("leave out --for deepspeed")


ODD = "transformer:layers=1,hidden=256,heads=8,vocab=511,seq=63,batch=7"


@pytest.mark.parametrize("target", ["megatron", "maxtext"])
def test_sizes_that_no_degrees_divide_are_told(target):
    with pytest.raises(InfeasibleError) as raised:
        make_plan(ODD, "2x3", cluster="generic", target=target)
    (fault,) = raised.value.diagnostics
    assert fault.summary == (
        f"no plan that {target} can express: sizes of 'transformer' do not divide over machine=2 x gpu=3"
    )
    assert "7 rows do not divide over 6 ranks and 1 microbatches" in fault.detail
    assert fault.hint.startswith(f"leave out --for {target}")


def test_constraints_hold_too(models):
    plan = planned(models["llama"], "machine=2,gpu=4", "tp-plan", "training", pins=["lm_head.weight=replicate"])
    head = next(tensor for tensor in plan.tensors if tensor.checkpoint == "lm_head.weight")
    assert not any(placement.is_shard for placement in head.layout.placements)
    assert refusals(plan, "tp-plan") == []


def test_words_of_the_request_are_runtimes_and_formats():
    assert set(TARGETS) - {""} == RUNTIMES.keys()
    assert RUNTIMES.keys() <= {target.name for target in FORMATS}
    assert find_target("transformers").name == "tp-plan"


def test_roles_of_axes():
    """One axis of tensor parallelism; torchtitan's in the order of its ranks, and by their names."""
    assert set(RUNTIMES["tp-plan"].arrangements(Mesh.of(machine=2, gpu=2))) == {
        ("data", "data"), ("data", "tensor"), ("tensor", "data"),
    }  # fmt: skip
    titan = set(RUNTIMES["torchtitan"].arrangements(Mesh.of(machine=2, gpu=2)))
    assert ("dp", "tp") in titan
    assert ("tp", "dp") not in titan
    assert set(RUNTIMES["torchtitan"].arrangements(Mesh.of(dp=2, tp=2))) == {("dp", "tp")}
    assert set(RUNTIMES["jax"].arrangements(Mesh.of(machine=2, gpu=2))) == {("any", "any")}


def test_roles_that_bring_nothing_are_not_searched_to_the_end(models):
    """What is enough ends a search with a bound that is one; plans that are shorter are found all the same."""
    instance = read(Request(model=models["llama"], mesh="2x2", target="tp-plan", mode="training", effort="quick"))
    own = instance_of(instance.model, instance.cluster, instance.options, pytest.fail)
    plans = RuntimePlans(Answers(own, pytest.fail), RUNTIMES["tp-plan"], CoarsePlans())

    def step_and_bound(enough_s):
        found = plans.with_roles(("data", "tensor"), Search.of(own), enough_s)
        return found.candidate.step_s, found.bound_s

    step_s, bound_s = step_and_bound(math.inf)
    assert step_and_bound(1.01 * step_s) == (step_s, bound_s)
    for enough_s in (0.0, 0.5 * bound_s, 0.99 * bound_s):
        with pytest.raises(NoBetterError) as raised:
            step_and_bound(enough_s)
        assert enough_s <= raised.value.bound_s <= step_s + ROUNDED_S


def test_roles_are_searched_in_the_order_of_their_estimates(models, monkeypatch):
    """The first roles are those of the best plan, so that most others are only proven to be slower; a search that is
    interrupted tries no others."""
    asked, is_stopped = [], False
    with_roles = RuntimePlans.with_roles

    def heard(self, roles, search, enough_s=math.inf):
        if len(roles) == len(own.cluster.mesh) and self.answers is answers:
            asked.append(roles)
        found = with_roles(self, roles, search, enough_s)
        search.interruption.asked_s = 0.0 if is_stopped else math.inf
        return found

    monkeypatch.setattr(RuntimePlans, "with_roles", heard)
    instance = read(Request(model=models["llama"], mesh="2x2", target="megatron", mode="training", effort="quick"))
    own = instance_of(instance.model, instance.cluster, instance.options, pytest.fail)

    def step_and_bound():
        found = best_for_runtime(answers, RUNTIMES["megatron"], Search.of(own), coarse=CoarsePlans())
        return found.candidate.step_s, found.bound_s

    answers = Answers(own, pytest.fail)
    best_s, bound_s = step_and_bound()
    every, named = [*asked], [*RUNTIMES["megatron"].arrangements(own.cluster.mesh)]
    assert every != sorted(every, key=named.index)
    is_stopped, answers = True, Answers(own, pytest.fail)
    asked.clear()
    first_s, first_bound_s = step_and_bound()
    assert asked == every[:1]
    assert best_s <= first_s <= 1.01 * best_s
    assert first_bound_s <= bound_s <= best_s


def test_the_bound_holds_for_roles_that_are_not_searched(models, monkeypatch):
    """Roles are left out on more than three axes; the limit is lower here, so that the search is short."""
    monkeypatch.setattr(for_runtime, "MOST_WHOLE", 1)
    instance = read(Request(model=models["llama"], mesh="1x2x2", target="torchtitan", mode="training", effort="quick"))
    own = instance_of(instance.model, instance.cluster, instance.options, pytest.fail)
    runtime, answers = RUNTIMES["torchtitan"], Answers(own, pytest.fail)
    axes = {len(merged(own.cluster, each)[0].mesh.real_axes) for each in runtime.arrangements(own.cluster.mesh)}
    assert axes == {1, 2}
    found = best_for_runtime(answers, runtime, Search.of(own), coarse=CoarsePlans())
    assert 0 < found.bound_s <= least_s(own) < found.candidate.step_s


def test_degrees_that_divide_no_size_are_not_tried(models):
    """Eight rows over two data-parallel ranks, and no experts to spread."""
    model, mesh = load_model(models["llama"], {}), Mesh.of(machine=2, gpu=8)
    roles = {*dividing([*RUNTIMES["megatron"].arrangements(mesh)], mesh, model, PlanOptions())}
    assert ("data", "tensor") in roles
    assert not roles & {("data", "data"), ("expert", "tensor"), ("shards", "shards")}


MIXTURE = "transformer:layers=1,hidden=256,heads=4,kv_heads=4,ffn=512,vocab=512,experts=4,top_k=2"


def test_megatron_trains_experts_with_sequence_parallelism_only():
    """Its layers of experts raise a ValueError in training; MaxText's do not, nor does a forward pass."""
    model, mesh = load_model(MIXTURE, {"batch": 4, "seq": 64}), Mesh.of(machine=2, gpu=2)
    every = [*RUNTIMES["megatron"].arrangements(mesh)]
    for target, mode, is_refused in (
        ("megatron", "training", True),
        ("megatron", "inference", False),
        ("maxtext", "training", False),
    ):
        roles = {*dividing(every, mesh, model, PlanOptions(mode=mode, target=target))}
        assert (("data", "tensor") not in roles) == is_refused
        assert ("data", "sequence") in roles


def test_a_mixture_without_sequence_parallelism_is_refused_as_megatron_refuses_it():
    """One row of 63 tokens can only be cut by columns and rows."""
    model = load_model(MIXTURE, {"batch": 1, "seq": 63})
    reason = "Megatron-Core trains experts under tensor parallelism with --sequence-parallel only"
    plan = make_plan(model, "1x2", cluster="generic", target="maxtext")
    assert refusals(plan, "maxtext", model) == []
    (refused,) = refusals(plan, "megatron", model)
    assert refused.splitlines()[:2] == [
        "error[cannot-say]: Megatron-LM's arguments cannot express what this plan does",
        f"  with gpu as tensor: {reason}",
    ]
    with pytest.raises(InfeasibleError) as raised:
        make_plan(model, "1x2", cluster="generic", target="megatron")
    assert reason in raised.value.diagnostics[0].detail


@pytest.mark.parametrize(("remat", "policy"), [("none", "none"), ("full", "full"), ("selective", "minimal")])
def test_what_maxtext_recomputes(models, remat, policy):
    """It has words for nothing and for everything."""
    plan = make_plan(models["llama"], "1x2", cluster="generic", target="maxtext", remat=remat, effort="quick")
    exported = find_target("maxtext").load()(plan, Source(load_model(models["llama"], {}), None))
    assert f"remat_policy: {policy}\n" in exported.text
    said = ["warning[not-said]: MaxText's remat_policy 'minimal' saves what matrices make; the plan has 'selective'"]
    assert [str(each) for each in exported.refused] == (said if policy == "minimal" else [])


def test_trainers_of_language_models_take_no_convolutional_network():
    with pytest.raises(ShardplanError) as problem:
        check_kind(read_model(Path(__file__).parents[1] / "models" / "resnet50.onnx"), "megatron")
    assert str(problem.value) == (
        "error[cannot-say]: megatron trains language models, and 'resnet50' is mostly convolutions\n"
        "hint: leave out --for megatron; --for jax and shardy say what is done to convolutions"
    )


def test_a_search_that_the_clock_ends_before_it_has_a_bound_gives_its_plan(models, monkeypatch):
    def unproven(*asked):
        found = yield from answering(*asked)
        return replace(found, solution=replace(found.solution, bound=-math.inf))

    monkeypatch.setattr(answers, "answering", unproven)
    plan = make_plan(models["llama"], "2x2", cluster="generic", target="megatron", mode="training")
    assert plan.summary.gap == 1.0


@pytest.fixture
def slow(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW, encoding="utf-8")
    return path


@pytest.mark.parametrize("decomposed", [False, True])
class TestDecomposedNormsAndAttention:
    """Exports of opset 20 have the same limits as those with one operator for each."""

    def test_heads_that_do_not_divide(self, decomposed):
        with pytest.raises(InfeasibleError) as raised:
            make_plan(decoder(1, decomposed=decomposed), "1x8", target="megatron", mode="inference")
        assert "4 attention heads do not divide over 8 ranks" in raised.value.diagnostics[0].detail.splitlines()

    @pytest.mark.parametrize("mode", ["training", "inference"])
    def test_columns_rows_and_whole_norms(self, slow, decomposed, mode):
        """Also where norms that are cut by width would be faster."""
        model = decoder(1, decomposed=decomposed)
        plan = make_plan(model, "1x4", cluster=slow, target="megatron", mode=mode, effort="quick")
        found = {tensor.name: str(tensor.layout.placements[1]) for tensor in plan.tensors if tensor.role == "parameter"}
        cut = {name: [key for key, placement in found.items() if placement == name] for name in ("S(1)", "S(0)", "R")}
        assert {"wq", "wk", "wv", "up", "head"} <= {*cut["S(1)"]}
        assert {"wo", "down"} <= {*cut["S(0)"]}
        assert cut["R"] == ["g", "h", "f"]
        assert refusals(plan, "megatron", model) == []

    def test_the_hidden_state_of_the_recipe_is_whole(self, decomposed):
        planner = Planner(decoder(decomposed=decomposed), cluster_of("1x4"), PlanOptions())
        allowed = RECIPES["Megatron"](planner.built_at()[0])
        assert {("kept", name) for name in "xrt"} <= {*allowed}

    @pytest.mark.parametrize("target", ["megatron", "maxtext"])
    def test_a_plan_that_is_no_tensor_parallelism_is_refused(self, slow, decomposed, target):
        model = decoder(1, decomposed=decomposed)
        plan = make_plan(model, "1x8", cluster=slow, mode="inference", effort="quick")
        (refused,) = refusals(plan, target, model)
        assert "4 attention heads do not divide over 8 ranks" in refused


def test_a_model_without_norms_has_no_hidden_state():
    model = small("m (float[8,16] x) => (float[8,16] y) <float[16,32] up, float[32,16] down> {"
                  " h = MatMul (x, up) y = MatMul (h, down) }")  # fmt: skip
    with pytest.raises(ShardplanError) as problem:
        make_plan(model, "1x4", target="megatron")
    said = (
        "error[cannot-say]: megatron trains language models, and no normalisation was recognised in 'small'\n"
        "  it is not known which values are the hidden state between attention and MLP\n"
        "hint: export norms and attention as operators (opset 23), or plan --for jax or shardy"
    )
    assert str(problem.value) == said
    plan = make_plan(model, "1x4")
    with pytest.raises(ShardplanError) as problem:
        refusals(plan, "megatron", model)
    assert str(problem.value) == said
