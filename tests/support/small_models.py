"""Small models of the kinds that people plan, as ONNX text: each runs in milliseconds and splits on 2 and 8 devices.

Weights are the values that the text declares without data; they become initializers without payload, so every run draws
its own.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import parser

from shardplan.model.read import read_model
from shardplan.model.types import Model

FOUR_GEMMS = """
mlp (float[BATCH,6] x) => (float[BATCH,14] y)
<float[6,8] w1, float[8] b1, float[8,10] w2, float[10] b2, float[10,12] w3, float[12] b3, float[12,14] w4,
 float[14] b4> {
  h1 = Gemm (x, w1, b1)
  a1 = Relu (h1)
  h2 = Gemm (a1, w2, b2)
  h3 = Gemm (h2, w3, b3)
  a3 = Relu (h3)
  y = Gemm (a3, w4, b4)
}"""
"""What Alpa's tests of manual sharding cut into two stages; BATCH stands for a number."""
HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>'


def proto_of(text: str, opset: int = 23) -> onnx.ModelProto:
    """The model of `text`, its declared values as initializers with external data that does not exist."""
    model = parser.parse_model(HEAD.format(opset=opset) + text)
    made = {name for node in model.graph.node for name in node.output}
    kept = []
    for info in model.graph.value_info:
        if info.name in made:
            kept.append(info)
            continue
        tensor = onnx.TensorProto(name=info.name, data_type=info.type.tensor_type.elem_type)
        tensor.dims.extend(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent.bin")
        model.graph.initializer.append(tensor)
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return model


def small_model(name: str, folder: Path) -> Model:
    """One of `MODELS`, read from a file in `folder`."""
    opset, text = MODELS[name]
    path = folder / f"{name}.onnx"
    onnx.save(proto_of(text, opset), path)
    return read_model(path)


MLP = """
mlp (float[8,32] x) => (float[8,16] y) <float[32,64] w1, float[64] b1, float[64,16] w2, float[16] b2> {
  h = Gemm (x, w1, b1)
  a = Relu (h)
  z = MatMul (a, w2)
  y = Add (z, b2)
}"""

GPT_BLOCK = """
gpt (int64[4,8] ids) => (float[4,8,32] logits)
<float[32,16] wte, float[8,16] wpe, float[16] g1, float[16] c1, float[16,48] wqkv, float[48] bqkv,
 float[16,16] wo, float[16] bo, float[16] g2, float[16] c2, float[16,64] w1, float[64] b1, float[64,16] w2,
 float[16] b2> {
  positions = Constant <value = int64[1,8] {0,1,2,3,4,5,6,7}> ()
  sizes = Constant <value = int64[3] {16,16,16}> ()
  heads = Constant <value = int64[4] {4,8,4,4}> ()
  flat = Constant <value = int64[3] {4,8,16}> ()
  token = Gather (wte, ids)
  place = Gather (wpe, positions)
  x = Add (token, place)
  n1 = LayerNormalization (x, g1, c1)
  p = MatMul (n1, wqkv)
  qkv = Add (p, bqkv)
  q, k, v = Split <axis = 2> (qkv, sizes)
  q4 = Reshape (q, heads)
  k4 = Reshape (k, heads)
  v4 = Reshape (v, heads)
  qt = Transpose <perm = [0,2,1,3]> (q4)
  kt = Transpose <perm = [0,2,3,1]> (k4)
  vt = Transpose <perm = [0,2,1,3]> (v4)
  s = MatMul (qt, kt)
  scale = Constant <value = float {0.5}> ()
  scaled = Mul (s, scale)
  mask = Constant <value = float[8,8] {0,-9,-9,-9,-9,-9,-9,-9, 0,0,-9,-9,-9,-9,-9,-9, 0,0,0,-9,-9,-9,-9,-9,
    0,0,0,0,-9,-9,-9,-9, 0,0,0,0,0,-9,-9,-9, 0,0,0,0,0,0,-9,-9, 0,0,0,0,0,0,0,-9, 0,0,0,0,0,0,0,0}> ()
  masked = Add (scaled, mask)
  w = Softmax <axis = -1> (masked)
  o = MatMul (w, vt)
  ot = Transpose <perm = [0,2,1,3]> (o)
  of = Reshape (ot, flat)
  op = MatMul (of, wo)
  ob = Add (op, bo)
  r = Add (x, ob)
  n2 = LayerNormalization (r, g2, c2)
  u = MatMul (n2, w1)
  ub = Add (u, b1)
  ug = Gelu (ub)
  d = MatMul (ug, w2)
  db = Add (d, b2)
  y = Add (r, db)
  head = Transpose (wte)
  logits = MatMul (y, head)
}"""

LLAMA_BLOCK = """
llama (float[4,8,32] x, int64[4,8] position_ids) => (float[4,8,32] y, float[4,4,8,4] key)
<float[32] g1, float[32,32] wq, float[32,16] wk, float[32,16] wv, float[32,32] wo, float[32] g2,
 float[32,64] gate, float[32,64] up, float[64,32] down> {
  quarter = Constant <value = float[1,2,1] {1.0, 0.1}> ()
  wide = Unsqueeze (position_ids, one)
  one = Constant <value = int64[1] {1}> ()
  widef = Cast <to = 1> (wide)
  freqs = MatMul (quarter, widef)
  angles = Transpose <perm = [0,2,1]> (freqs)
  both = Concat <axis = -1> (angles, angles)
  cos = Cos (both)
  sin = Sin (both)
  cosh = Unsqueeze (cos, one)
  sinh = Unsqueeze (sin, one)
  n = RMSNormalization (x, g1)
  q = MatMul (n, wq)
  k = MatMul (n, wk)
  v = MatMul (n, wv)
  qheads = Constant <value = int64[4] {4,8,-1,4}> ()
  q4 = Reshape (q, qheads)
  k4 = Reshape (k, qheads)
  v4 = Reshape (v, qheads)
  qt = Transpose <perm = [0,2,1,3]> (q4)
  kt = Transpose <perm = [0,2,1,3]> (k4)
  vt = Transpose <perm = [0,2,1,3]> (v4)
  zero = Constant <value = int64[1] {0}> ()
  two = Constant <value = int64[1] {2}> ()
  end = Constant <value = int64[1] {9223372036854775807}> ()
  last = Constant <value = int64[1] {3}> ()
  q1 = Slice (qt, zero, two, last)
  q2 = Slice (qt, two, end, last)
  q2n = Neg (q2)
  qr = Concat <axis = -1> (q2n, q1)
  qc = Mul (qt, cosh)
  qs = Mul (qr, sinh)
  qe = Add (qc, qs)
  k1 = Slice (kt, zero, two, last)
  k2 = Slice (kt, two, end, last)
  k2n = Neg (k2)
  kr = Concat <axis = -1> (k2n, k1)
  kc = Mul (kt, cosh)
  ks = Mul (kr, sinh)
  key = Add (kc, ks)
  a = Attention <is_causal = 1> (qe, key, vt)
  at = Transpose <perm = [0,2,1,3]> (a)
  flat = Constant <value = int64[3] {4,8,32}> ()
  af = Reshape (at, flat)
  o = MatMul (af, wo)
  r = Add (x, o)
  n2 = RMSNormalization (r, g2)
  g = MatMul (n2, gate)
  gs = Sigmoid (g)
  gg = Mul (g, gs)
  u = MatMul (n2, up)
  gu = Mul (gg, u)
  d = MatMul (gu, down)
  y = Add (r, d)
}"""

CONV_NET = """
conv (float[4,4,16,16] x) => (float[4,8] y)
<float[8,4,3,3] w1, float[8] b1, float[8] s1, float[8] t1, float[8] m1, float[8] v1, float[16,4,3,3] w2, float[16,8] w3,
 float[8] b3> {
  a = Conv <pads = [1,1,1,1], kernel_shape = [3,3]> (x, w1, b1)
  n = BatchNormalization (a, s1, t1, m1, v1)
  r = Relu (n)
  p = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (r)
  c = Conv <pads = [1,1,1,1], kernel_shape = [3,3], group = 2> (p, w2)
  q = AveragePool <kernel_shape = [2,2], strides = [2,2]> (c)
  g = GlobalAveragePool (q)
  f = Flatten (g)
  y = Gemm (f, w3, b3)
}"""

MOE = """
moe (float[4,8,16] x) => (float[4,8,16] y) <float[16,4] router, float[4,16,32] up, float[4,32,16] down> {
  logits = MatMul (x, router)
  p = Softmax <axis = -1> (logits)
  best = ArgMax <axis = -1, keepdims = 0> (p)
  four = Constant <value = int64 {4}> ()
  levels = Constant <value = float[2] {0,1}> ()
  pick = OneHot <axis = -1> (best, four, levels)
  gate = Mul (p, pick)
  into = Einsum <equation = "bse,bsd->ebsd"> (pick, x)
  h = Einsum <equation = "ebsd,edf->ebsf"> (into, up)
  a = Relu (h)
  o = Einsum <equation = "ebsf,efd->ebsd"> (a, down)
  y = Einsum <equation = "ebsd,bse->bsd"> (o, gate)
}"""

LSTM = """
lstm (int64[4,6] ids) => (float[6,4,32] y)
<float[32,16] table, float[2,32,16] w, float[2,32,8] r, float[2,64] b, float[16,32] out> {
  x = Gather (table, ids)
  xt = Transpose <perm = [1,0,2]> (x)
  h, last, cell = LSTM <hidden_size = 8, direction = "bidirectional"> (xt, w, r, b)
  ht = Transpose <perm = [0,2,1,3]> (h)
  flat = Constant <value = int64[3] {6,4,16}> ()
  hf = Reshape (ht, flat)
  y = MatMul (hf, out)
}"""

VIEWS = """
views (float[8,4,16] x) => (float[8,4,4] y, float[8,64] z, float[1,8,16] m) <float[1,1,16] c> {
  sum = Add (x, c)
  shape = Constant <value = int64[3] {8,4,16}> ()
  e = Expand (c, shape)
  s = Sub (sum, e)
  starts = Constant <value = int64[2] {4,1}> ()
  ends = Constant <value = int64[2] {8,4}> ()
  axes = Constant <value = int64[2] {2,1}> ()
  cut = Slice (s, starts, ends, axes)
  before = Constant <value = int64[6] {0,1,0,0,0,0}> ()
  y = Pad (cut, before)
  flat = Constant <value = int64[2] {8,-1}> ()
  f = Reshape (s, flat)
  twice = Concat <axis = 1> (f, f)
  one, other = Split <axis = 1, num_outputs = 2> (twice)
  z = Sum (one, other, f)
  middle = Constant <value = int64[1] {1}> ()
  mean = ReduceMean (s, middle)
  top = ReduceMax <keepdims = 0> (s, middle)
  mm = Squeeze (mean)
  all = Add (mm, top)
  zero = Constant <value = int64[1] {0}> ()
  m = Unsqueeze (all, zero)
}"""

MODELS: dict[str, tuple[int, str]] = {
    "mlp": (23, MLP),
    "gpt": (23, GPT_BLOCK),
    "llama": (23, LLAMA_BLOCK),
    "conv": (21, CONV_NET),
    "moe": (23, MOE),
    "lstm": (21, LSTM),
    "views": (23, VIEWS),
}
