"""Plans of tensor parallelism as people write it, solved under constraints that leave nothing else."""

from __future__ import annotations

from pathlib import Path

import onnx
from small_models import proto_of

from shardplan.cli import main
from shardplan.export.tp_plan import constraints_from_tp_plan
from shardplan.plan.file import read_plan
from shardplan.plan.types import Plan

LAYER = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
"""`LlamaConfig.base_model_tp_plan` of transformers 5."""
LLAMA = {
    "model.embed_tokens": "embedding_rowwise",
    **{f"model.{name}": style for name, style in LAYER.items()},
    "lm_head": "colwise_gather_output",
}


def solved(model: str, folder: Path, constraints: str, *options: str, mesh: str = "gpu=4") -> Plan:
    """The plan of `model` under `constraints` (YAML)."""
    given, made = folder / "constraints.yaml", folder / "made.plan.json"
    given.write_text(constraints)
    arguments = ["solve", model, "--mesh", mesh, "--constraints", str(given), "-o", str(made), "-q", *options]
    assert main([*arguments, "--memory-limit", "10TiB"]) == 0
    return read_plan(made)


def planned(model: str, folder: Path, tp_plan: dict[str, str], *options: str, mesh: str = "gpu=4") -> Plan:
    """The plan that `tp_plan` is."""
    return solved(model, folder, constraints_from_tp_plan(tp_plan, "gpu"), *options, mesh=mesh)


QWEN = """
qwen (int64[2,8] ids) => (float[2,8,64] logits)
<float[64,32] embed, float[32] g1, float[32,32] wq, float[16,32] wk, float[16,32] wv, float[32,32] wo, float[4] gq,
 float[4] gk, float[32] g2, float[64,32] gate, float[64,32] up, float[32,64] down, float[32] g3, float[64,32] head> {
  x = Gather (embed, ids)
  n = RMSNormalization (x, g1)
  wqt = Transpose (wq)
  q = MatMul (n, wqt)
  wkt = Transpose (wk)
  k = MatMul (n, wkt)
  wvt = Transpose (wv)
  v = MatMul (n, wvt)
  heads = Constant <value = int64[4] {2,8,-1,4}> ()
  q4 = Reshape (q, heads)
  k4 = Reshape (k, heads)
  v4 = Reshape (v, heads)
  qn = RMSNormalization (q4, gq)
  kn = RMSNormalization (k4, gk)
  qt = Transpose <perm = [0,2,1,3]> (qn)
  kt = Transpose <perm = [0,2,1,3]> (kn)
  vt = Transpose <perm = [0,2,1,3]> (v4)
  a = Attention <is_causal = 1> (qt, kt, vt)
  at = Transpose <perm = [0,2,1,3]> (a)
  flat = Constant <value = int64[3] {2,8,-1}> ()
  af = Reshape (at, flat)
  wot = Transpose (wo)
  o = MatMul (af, wot)
  r = Add (x, o)
  n2 = RMSNormalization (r, g2)
  gatet = Transpose (gate)
  g = MatMul (n2, gatet)
  gs = Sigmoid (g)
  gg = Mul (g, gs)
  upt = Transpose (up)
  u = MatMul (n2, upt)
  gu = Mul (gg, u)
  downt = Transpose (down)
  d = MatMul (gu, downt)
  y = Add (r, d)
  n3 = RMSNormalization (y, g3)
  headt = Transpose (head)
  logits = MatMul (n3, headt)
}"""
_MLP_PART = QWEN.index("  gatet = Transpose (gate)"), QWEN.index("  y = Add (r, d)")
MIXTRAL = (
    QWEN[: _MLP_PART[0]]
    + """
  routert = Transpose (router)
  routes = MatMul (n2, routert)
  p = Softmax <axis = -1> (routes)
  both = Einsum <equation = "bsh,efh->ebsf"> (n2, gate_up)
  halves = Constant <value = int64[2] {32,32}> ()
  g, u = Split <axis = 3> (both, halves)
  gs = Sigmoid (g)
  gg = Mul (g, gs)
  gu = Mul (gg, u)
  each = Einsum <equation = "ebsi,ehi->ebsh"> (gu, down_all)
  d = Einsum <equation = "ebsh,bse->bsh"> (each, p)
"""
    + QWEN[_MLP_PART[1] :]
).replace(
    "float[64,32] gate, float[64,32] up, float[32,64] down,",
    "float[4,32] router, float[4,64,32] gate_up, float[4,32,32] down_all,",
)
"""The same with a mixture of experts whose gate and up are fused, every expert for every token."""
_LAYER, _ATTENTION, _MLP = "model.layers.0", "model.layers.0.self_attn", "model.layers.0.mlp"
_MODULES = {
    "embed": "model.embed_tokens", "g1": f"{_LAYER}.input_layernorm", "g2": f"{_LAYER}.post_attention_layernorm",
    "wq": f"{_ATTENTION}.q_proj", "wk": f"{_ATTENTION}.k_proj", "wv": f"{_ATTENTION}.v_proj",
    "wo": f"{_ATTENTION}.o_proj", "gq": f"{_ATTENTION}.q_norm", "gk": f"{_ATTENTION}.k_norm",
    "gate": f"{_MLP}.gate_proj", "up": f"{_MLP}.up_proj", "down": f"{_MLP}.down_proj", "g3": "model.norm",
    "head": "lm_head", "router": f"{_MLP}.gate", "gate_up": f"{_MLP}.experts.gate_up_proj",
    "down_all": f"{_MLP}.experts.down_proj",
}  # fmt: skip


def one_layer(text: str, folder: Path) -> Path:
    """`QWEN` or `MIXTRAL` as a file; weights are [out, in], without data, and named as in the checkpoint."""
    model = proto_of(text)
    for tensor in model.graph.initializer:
        tensor.name = _weight(tensor.name)
    for node in model.graph.node:
        weights = [name.removesuffix("t") if name not in _MODULES else name for name in node.input]
        owner = next((_MODULES[name] for name in weights if name in _MODULES), "")
        if owner and node.op_type != "Transpose":
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", owner, "op"]))
        for place, name in enumerate(node.input):
            if name in _MODULES:
                node.input[place] = _weight(name)
    onnx.save(model, folder / "one_layer.onnx")
    return folder / "one_layer.onnx"


def _weight(name: str) -> str:
    module = _MODULES[name]
    return module if ".experts." in module else f"{module}.weight"
