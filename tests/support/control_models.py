"""Small models with loops and branches, as ONNX text: what they declare without data are weights."""

from __future__ import annotations

COUNTED = """
counted (float[8,16] x) => (float[8,16] y, float[5,8,16] all) <float[16,32] up, float[32,16] down> {
  n = Constant <value = int64 {5}> ()
  go = Constant <value = bool {1}> ()
  y, all = Loop (n, go, x) <body = turn (int64 i, bool c, float[8,16] h) => (bool c2, float[8,16] h2, float[8,16] t) {
    c2 = Identity (c)
    u = MatMul (h, up)
    f = Cast <to = 1> (i)
    a = Add (u, f)
    s = Sigmoid (a)
    d = MatMul (s, down)
    h2 = Add (d, h)
    t = Tanh (h2)
  }>
}"""
"""A loop that turns five times, adds the number of the turn, and collects something of every turn."""

SWAPPED = """
swapped (float[8,16] x, float[8,16] z) => (float[8,16] a, float[8,16] b) <float[16,16] w> {
  n = Constant <value = int64 {3}> ()
  a, b = Loop (n, , x, z) <body = turn (int64 i, bool c, float[8,16] p, float[8,16] q)
      => (bool c, float[8,16] q, float[8,16] r) {
    r = MatMul (p, w)
  }>
}"""
"""A turn hands one carried value on in the place of the other."""

WHILE = """
until (float[8,16] x, bool begins) => (float[8,16] y) <float[16,16] w> {
  y = Loop (, begins, x) <body = turn (int64 i, bool c, float[8,16] h) => (bool c2, float[8,16] h2) {
    p = MatMul (h, w)
    h2 = Tanh (p)
    top = ReduceMax <keepdims = 0> (h2)
    bound = Constant <value = float {0.5}> ()
    c2 = Greater (top, bound)
  }>
}"""
"""A loop that turns as often as its data says."""

RNN = """
rnn (float[4,8] h0, float[4,6,16] xs) => (float[4,8] h, float[4,8,6] ys, float[6,4,8] back)
<float[16,8] w, float[8,8] r, float[8] b> {
  h, ys, back = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
      scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
      body = cell (float[4,8] hp, float[4,16] x) => (float[4,8] hn, float[4,8] y1, float[4,8] y2) {
    a = MatMul (x, w)
    c = MatMul (hp, r)
    s = Add (a, c)
    t = Add (s, b)
    hn = Tanh (t)
    y1 = Neg (hn)
    y2 = Abs (hn)
  }> (h0, xs)
}"""
"""A recurrent cell as a scan: backwards over the second dim, with results along other dims."""

BRANCHES = """
branches (float[8,16] x, bool c) => (float[8,16] y, float[8,16] z)
<float[16,16] w, float[16,32] up, float[32,16] down> {
  y, z = If (c) <
    then_branch = deep () => (float[8,16] a, float[8,16] a2) {
      u = MatMul (x, up)
      r = Relu (u)
      a = MatMul (r, down)
      a2 = Neg (a)
    },
    else_branch = flat () => (float[8,16] b, float[8,16] x) {
      b = MatMul (x, w)
    }>
}"""
"""Two branches that do different things; one hands on a value from outside."""

NESTED = """
nested (float[8,16] x, bool c) => (float[8,16] y) <float[16,16] w> {
  n = Constant <value = int64 {3}> ()
  go = Constant <value = bool {1}> ()
  y = Loop (n, go, x) <body = outer (int64 i, bool c1, float[8,16] h) => (bool c2, float[8,16] h2) {
    c2 = Identity (c1)
    two = Constant <value = int64 {2}> ()
    k = Loop (two, go, h) <body = inner (int64 j, bool d1, float[8,16] g0) => (bool d2, float[8,16] g2) {
      d2 = Identity (d1)
      p = MatMul (g0, w)
      g2 = Add (p, h)
    }>
    h2 = If (c) <then_branch = yes () => (float[8,16] a) { a = Tanh (k) },
                 else_branch = no () => (float[8,16] b) { b = Sigmoid (k) }>
  }>
}"""
"""A loop with a loop and a branch inside; the inner one reads what the outer one carries."""

STACKED = """
stacked (float[4,8,16] x) => (float[4,8,16] y) <float[6,16,16] w> {
  y = Scan <num_scan_inputs = 1, body = layer (float[4,8,16] h, float[16,16] one) => (float[4,8,16] r) {
    d = MatMul (h, one)
    s = Sigmoid (d)
    r = Add (h, s)
  }> (x, w)
}"""
"""Layers of one form, their weights stacked and scanned."""

CONTROL_MODELS: dict[str, str] = {
    "counted": COUNTED,
    "swapped": SWAPPED,
    "until": WHILE,
    "rnn": RNN,
    "branches": BRANCHES,
    "nested": NESTED,
    "stacked": STACKED,
}
TRIPS = {"until": {"trip:Loop_0": 4}}

DECODE = """<ir_version: 10, opset_import: ["" : 21]>
decode (float[batch,64] x, float[64,256] up, float[256,64] down, int64 steps)
    => (float[batch,64] y, float[n,batch,64] all) {
  go = Constant <value = bool {1}> ()
  y, all = Loop (steps, go, x) <body = turn (int64 i, bool c, float[batch,64] h)
      => (bool c2, float[batch,64] h2, float[batch,64] t) {
    c2 = Identity (c)
    u = MatMul (h, up)
    s = Relu (u)
    d = MatMul (s, down)
    h2 = Add (d, h)
    t = Tanh (h2)
  }>
}"""
"""A loop whose trip count is an input; its batch is symbolic."""
