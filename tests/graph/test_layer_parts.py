"""Normalisations and attention, found by what operators do."""

import pytest
from small_models import proto_of

from shardplan.graph.layer_parts import heads_of, norms_of
from shardplan.model.read import read_model_bytes

NUMBERS = """
  two = Constant <value = float {2.0}> ()
  last = Constant <value = int64[1] {-1}> ()
  tiny = Constant <value = float {0.00001}> ()
"""
RMS = """
  square = Pow (x, two)
  mean = ReduceMean (square, last)
  above = Add (mean, tiny)
  root = Sqrt (above)
  factor = Reciprocal (root)
  normed = Mul (x, factor)
  y = Mul (normed, g)
"""
RMS_IN_FP32 = """
  wide = Cast <to = 1> (x)
  square = Mul (wide, wide)
  mean = ReduceMean (square, last)
  above = Add (mean, tiny)
  root = Sqrt (above)
  normed = Div (wide, root)
  narrow = Cast <to = 1> (normed)
  y = Mul (g, narrow)
"""
LAYER_NORM = """
  center = ReduceMean (x, last)
  apart = Sub (x, center)
  square = Pow (apart, two)
  mean = ReduceMean (square, last)
  above = Add (mean, tiny)
  root = Sqrt (above)
  normed = Div (apart, root)
  scaled = Mul (normed, g)
  y = Add (scaled, g)
"""
WITHOUT_KEPT_DIM = """
  square = Mul (x, x)
  mean = ReduceMean <keepdims = 0> (square, last)
  above = Add (mean, tiny)
  root = Sqrt (above)
  column = Unsqueeze (root, last)
  normed = Div (x, column)
  y = Mul (normed, g)
"""


def built(body, inputs="float[4,8,16] x", weights="float[16] g", made="float[4,8,16] y"):
    text = f"m ({inputs}) => ({made}) <{weights}> {{ {NUMBERS} {body} }}"
    return read_model_bytes(proto_of(text, 20).SerializeToString(), "m")


@pytest.mark.parametrize("body", [RMS, RMS_IN_FP32, LAYER_NORM, WITHOUT_KEPT_DIM])
def test_a_decomposed_norm_is_one_with_its_scale_and_shift(body):
    model = built(body)
    (norm,) = norms_of(model)
    assert norm.source == "x"
    made = [operator.outputs[0] for operator in model.operators]
    assert list(norm.values) == [name for name in made if model.tensor(name).shape == (4, 8, 16)]


def test_norms_of_norms_are_two():
    """The first has no weight, and is no part of the second."""
    first = RMS.replace("y = Mul (normed, g)", "").replace("normed", "z")
    second = RMS.replace("(x", "(z")
    for name in ("square", "mean", "above", "root", "factor"):
        second = second.replace(name, f"{name}2")
    assert [norm.source for norm in norms_of(built(first + second))] == ["x", "z"]


@pytest.mark.parametrize(
    "body",
    [
        "e = Exp (x) s = ReduceSum (e, last) y = Div (e, s)",  # a softmax
        "c = ReduceMean (x, last) y = Sub (x, c)",
        "r = Constant <value = int64[1] {1}> () c = ReduceMean (x, r) s = Sigmoid (c) y = Mul (x, s)",  # over rows
        "u = Mul (g, x) c = ReduceMean (u, last) s = Sqrt (c) y = Div (x, s)",  # a mean of something else
    ],
)
def test_what_is_no_norm(body):
    assert norms_of(built(body)) == ()


QKV = "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)"
SPLIT = "shape = Constant <value = int64[4] {4,8,2,8}> ()" + "".join(
    f" {name}4 = Reshape ({name}, shape) {name}h = Transpose <perm = [0,{order}]> ({name}4)"
    for name, order in (("q", "2,1,3"), ("k", "2,3,1"), ("v", "2,1,3"))
)
BY_HEAD = f"""
  {QKV} {SPLIT}
  raw = MatMul (qh, kh)
  scaled = Mul (raw, two)
  masked = Add (scaled, mask)
  share = Softmax (masked)
  y = MatMul (share, vh)
"""
HEADS_IN_THE_BATCH = f"""
  {QKV} {SPLIT}
  merged = Constant <value = int64[3] {{8,8,8}}> ()
  q3 = Reshape (qh, merged) k3 = Reshape (kh, merged) v3 = Reshape (vh, merged)
  raw = MatMul (q3, k3)
  share = Softmax (raw)
  y = MatMul (share, v3)
"""


@pytest.mark.parametrize(("body", "made"), [(BY_HEAD, "float[4,2,8,8] y"), (HEADS_IN_THE_BATCH, "float[8,8,8] y")])
def test_heads_of_decomposed_attention(body, made):
    model = built(
        body, "float[4,8,16] x, float[1,1,8,8] mask", "float[16,16] wq, float[16,16] wk, float[16,16] wv", made
    )
    assert heads_of(model) == {2}


def test_a_choice_of_experts_has_no_heads():
    model = built("raw = MatMul (x, w) y = Softmax (raw)", weights="float[16,8] w", made="float[4,8,8] y")
    assert heads_of(model) == frozenset()
