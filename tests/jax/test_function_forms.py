"""Reads and writes by number, padding, transposed convolutions and sorts: their graphs compute what JAX does."""

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from shardplan.jax.planning.plan import onnx_program

DRAW = np.random.default_rng(0)


def f(*shape):
    return jnp.asarray(DRAW.standard_normal(shape).astype(np.float32))


def i(below, *shape):
    return jnp.asarray(DRAW.integers(below, size=shape).astype(np.int32))


def _experts(x, t):
    return jax.lax.ragged_dot(x, jnp.stack([x.T @ x, x.T * 2 @ x, x.T @ x + 1]), jnp.bincount(t, length=3))


FORMS = {
    "running products": (lambda x, _: jnp.cumprod(x, 1) + jax.lax.cumprod(x, 0, reverse=True), f(6, 5), i(1, 1)),
    "running extremes": (lambda x, _: jax.lax.cummax(x, 1, reverse=True) - jax.lax.cummin(x, 0), f(6, 5), i(1, 1)),
    "running logarithms": (
        lambda x, _: jax.lax.cumlogsumexp(x, axis=1) + jax.lax.cumlogsumexp(x, axis=0, reverse=True),
        f(6, 5),
        i(1, 1),
    ),
    "gammas": (
        lambda x, _: jax.lax.lgamma(jnp.exp(2 * x)) + jax.lax.digamma(jnp.exp(x) + 0.01),
        f(6, 5),
        i(1, 1),
    ),
    "the inverse of erf": (lambda x, _: jax.lax.erf_inv(0.99 * jnp.sin(2 * x)), f(6, 5), i(1, 1)),
    "of hyperbolas": (lambda x, _: jnp.arcsinh(x) + jnp.arccosh(1 + x * x) + jnp.arctanh(jnp.sin(x)), f(6, 5), i(1, 1)),
    "groups of rows": (_experts, f(6, 5), i(3, 6)),
    "by two keys": (lambda x, t: x[jnp.lexsort((x[:, 0], t))], f(6, 5), i(2, 6)),
    "by two keys, mapped": (
        lambda x, t: jax.lax.sort((jnp.broadcast_to(t, (6, 5)), -x, x * 2), dimension=1, num_keys=2)[2],
        f(6, 5),
        i(2, 5),
    ),
    "buckets": (lambda x, t: t.astype(jnp.float32)[jnp.searchsorted(jnp.linspace(-1, 1, 6), x)], f(6, 5), i(9, 7)),
    "in another order": (jax.vmap(lambda row, k: row[k], (1, 0)), f(6, 5), i(6, 5, 6)),
    "a branch that is known": (
        lambda x, _: jax.lax.platform_dependent(x, cpu=lambda x: x * 2, default=lambda x: x + x),
        f(6, 5),
        i(1, 1),
    ),
    "rows and labels": (lambda x, t: x[jnp.arange(6), t], f(6, 5), i(5, 6)),
    "rows, places and labels": (lambda x, t: x[jnp.arange(6)[:, None], jnp.arange(5), t], f(6, 5, 4), i(4, 6, 5)),
    "the last of each": (lambda x, t: x[jnp.arange(6), t], f(6, 5, 4), i(5, 6)),
    "rows of the second dim": (lambda x, t: x[:, jnp.arange(5), t], f(6, 5, 4), i(4, 5)),
    "pairs": (lambda x, t: x[t[:, 0], t[:, 1]], f(6, 5, 4), i(5, 7, 2)),
    "pairs apart": (lambda x, t: x[t[:, 0], :, t[:, 1]], f(6, 5, 4), i(4, 7, 2)),
    "last two": (lambda x, t: x[:, t[0], t[1]], f(6, 5, 4), i(4, 2, 3)),
    "column": (lambda x, t: x[:, t], f(6, 5, 4), i(5, 2, 3)),
    "last dim": (lambda x, t: jnp.take(x, t, -1), f(6, 5, 4), i(4, 2, 3)),
    "along": (lambda x, t: jnp.take_along_axis(x, t, 1), f(6, 5, 4), i(5, 6, 3, 4)),
    "mapped scalar": (lambda x, t: jax.vmap(lambda k: x[k])(t), f(6, 5), i(6, 7)),
    "mapped twice": (
        lambda x, t: jax.vmap(jax.vmap(lambda k: jax.lax.dynamic_index_in_dim(x, k, 0, False)))(t),
        f(6, 5),
        i(6, 7, 3),
    ),
    "mapped rows": (jax.vmap(lambda a, k: a[k]), f(6, 5, 4), i(5, 6)),
    "mapped many": (jax.vmap(lambda a, k: a[k]), f(6, 5, 4), i(5, 6, 3)),
    "one of two": (lambda x, t: jax.lax.cond(t[0] > 2, lambda x: x * 2, lambda x: x - 1, x), f(6, 5), i(5, 7)),
    "one of three": (
        lambda x, t: jax.lax.switch(t.sum() - 9, [jnp.sin, lambda x: x.T.reshape(6, 5), jnp.exp], x),
        f(6, 5),
        i(9, 3),
    ),
    "negative": (lambda x, t: x[t - 5], f(6, 5), i(5, 7)),
    "static list": (lambda x, t: x[jnp.array([0, 2, 4])] * t.sum(), f(6, 5), i(6, 7)),
    "set": (lambda x, t: x.at[t].set(1.0), f(6, 5), i(6, 3)),
    "set rows": (lambda x, t: x.at[1].set(t[0].astype(jnp.float32)), f(6, 5), i(6, 3)),
    "add rows": (lambda x, t: jnp.zeros((5, 5)).at[t].add(x), f(6, 5), i(5, 6)),
    "segments": (lambda x, t: jax.ops.segment_sum(x, t, 5), f(6, 5), i(5, 6)),
    "add to columns": (lambda x, t: x.at[:, t].add(2.0), f(6, 5), i(5, 3)),
    "add to pairs": (lambda x, t: x.at[t[:, 0], t[:, 1]].add(1.0), f(6, 5, 4), i(5, 7, 2)),
    "bincount": (lambda x, t: jnp.bincount(t, length=6) * x.sum(), f(6, 5), i(6, 7)),
    "written part": (lambda x, t: jax.lax.dynamic_update_slice(x, x[:2, :3] * 2, (t[0], t[1])), f(6, 5), i(3, 2)),
    "written too far": (lambda x, t: jax.lax.dynamic_update_slice(x, x[:2] * 2, (t[0] + 9, 0)), f(6, 5), i(3, 2)),
    "cache": (lambda x, t: jax.lax.dynamic_update_slice_in_dim(x, x[:, :1] + 1, t[0], 1), f(6, 5, 4), i(5, 2)),
    "spread": (lambda x, t: jax.lax.pad(x, 0.5, ((1, 2, 1), (-1, 3, 2))) * t.sum(), f(6, 5), i(5, 2)),
    "cut by padding": (lambda x, t: jax.lax.pad(x, 0.0, ((-1, -2, 0), (0, -1, 1))) * t.sum(), f(6, 5), i(5, 2)),
    "transposed": (
        lambda x, w: jax.lax.conv_transpose(x, w, (2, 3), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        f(2, 5, 4, 3),
        f(4, 3, 3, 6),
    ),
    "transposed valid": (
        lambda x, w: jax.lax.conv_transpose(x, w, (2,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")),
        f(2, 5, 3),
        f(2, 3, 6),
    ),
    "transposed dilated": (
        lambda x, w: jax.lax.conv_transpose(
            x, w, (3,), "SAME", rhs_dilation=(2,), dimension_numbers=("NCW", "OIW", "NCW"), transpose_kernel=True
        ),
        f(2, 3, 5),
        f(3, 6, 3),
    ),
    "transposed short": (
        lambda x, w: jax.lax.conv_transpose(x, w, (4,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        f(2, 5, 3),
        f(2, 3, 6),
    ),
    "scan by halves": (lambda x, t: jax.lax.associative_scan(jnp.add, x, axis=1) * t.sum(), f(6, 7), i(5, 2)),
    "nested where": (lambda x, t: jnp.select([x > 1, x > 0], [x, 2 * x], -x) + t.sum(), f(5, 5), i(5, 2)),
    "a block of rows": (lambda x, t: jnp.zeros((8, 9)).at[2:8, :5].set(x) + t.sum(), f(6, 5), i(5, 2)),
    "added to a block": (lambda x, t: x.at[1:4, t[0]].add(2.0), f(6, 5), i(5, 2)),
    "frequencies": (lambda x, _: jnp.abs(jnp.fft.rfft(x, axis=0)) * jnp.fft.fftfreq(5), f(6, 5), i(1, 1)),
    "even frequencies": (lambda x, _: jnp.fft.irfft2(jnp.fft.rfft2(x) * (1 + 2j)), f(3, 5, 6), i(1, 1)),
    "odd frequencies": (lambda x, _: jnp.fft.irfft(jnp.conj(jnp.fft.rfft(x)), 5), f(6, 5), i(1, 1)),
    "planes of frequencies": (lambda x, _: jnp.fft.ifft2(jnp.fft.fft2(x) * jnp.exp(1j * x)).imag, f(3, 4), i(1, 1)),
    "half of the frequencies": (
        lambda x, w: jnp.fft.irfft(
            jnp.zeros((6, 4), complex).at[:, :3].set(jnp.fft.rfft(x)[:, :3] @ (w + 1j * w.T)), 7
        ),
        f(6, 7),
        i(9, 3, 3),
    ),
    "complex quotients": (lambda x, _: (jnp.fft.fft(x) / (2 + jnp.fft.fft(x[::-1]))).real, f(6, 5), i(1, 1)),
    "complex states": (
        lambda x, _: jax.lax.scan(lambda c, z: (c * (0.5 + 0.1j) + z, c), jnp.fft.fft(x[0]), x)[1].imag,
        f(6, 5),
        i(1, 1),
    ),
    "complex branches": (
        lambda x, t: jax.lax.cond(t[0] > 2, lambda z: z * 1j, lambda z: z**2, jnp.fft.fft(x)).real,
        f(6, 5),
        i(5, 2),
    ),
    "slopes of a spectrum": (
        jax.grad(lambda x, _: jnp.sum(jnp.abs(jnp.fft.rfft(x) * (1 + 1j)) ** 2)),
        f(6, 5),
        i(1, 1),
    ),
    "parts of rows": (lambda x, t: x[t, 1:3] + x[1:3, t % 5].sum(), f(6, 5, 4), i(6, 3)),
    "frames": (lambda x, t: jax.vmap(lambda k: jax.lax.dynamic_slice_in_dim(x, k, 2, 0))(t), f(6, 5), i(5, 3)),
    "frames, each of its own": (jax.vmap(lambda a, k: jax.lax.dynamic_slice(a, (k, 1), (2, 3))), f(6, 5, 4), i(4, 6)),
    "written frames": (
        jax.vmap(lambda a, k: jax.lax.dynamic_update_slice(a, a[:2] * 2, (k, 0))),
        f(6, 5, 4),
        i(4, 6),
    ),
    "written each of its own": (jax.vmap(lambda a, k: a.at[k].add(a[0])), f(6, 5, 4), i(5, 6)),
    "added to parts of rows": (lambda x, t: x.at[t, 1:3].add(x[:3, 1:3]), f(6, 5, 4), i(6, 3)),
    "windows without channels": (
        lambda x, _: (
            jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3), (1, 2, 2), "SAME")
            - jax.lax.reduce_window(x, jnp.inf, jax.lax.min, (1, 3, 3), (1, 2, 2), "SAME")
        ),
        f(3, 5, 4),
        i(1, 1),
    ),
    "windows of all dims": (
        lambda x, _: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 3), (1, 2), "VALID"),
        f(6, 5),
        i(1, 1),
    ),
    "angles": (lambda x, _: jnp.arctan2(x, x[::-1] - 1) + jnp.cbrt(x), f(6, 5), i(1, 1)),
    "a branch on what a loop makes of constants": (
        lambda x, _: (
            lambda most: jax.lax.cond(
                jax.lax.fori_loop(0, 3, lambda _, total: total + most, 0) > 2, lambda x: x * 2, lambda x: x - 1, x
            )
        )(jnp.max(jnp.arange(3))),
        f(6, 5),
        i(1, 1),
    ),
    "nearly the largest": (lambda x, _: jax.lax.approx_max_k(x, 3, reduction_dimension=0)[0], f(6, 5), i(5, 5)),
    "all of no dims": (lambda x, t: jnp.where(jnp.all(t > 2, axis=()), x, 0), f(5, 6), i(5, 5, 6)),
    "sums over the mapped": (
        jax.vmap(lambda x, _: (x - jax.lax.pmean(x, "rows")) / jax.lax.psum(jnp.abs(x), "rows"), axis_name="rows"),
        f(5, 6),
        i(5, 5),
    ),
    "extremes of the mapped": (
        jax.vmap(lambda x, _: jax.lax.pmax(x, "rows") * x - jax.lax.pmin(x, "rows"), axis_name="rows"),
        f(5, 6),
        i(5, 5),
    ),
    "product of bytes": (
        lambda x, t: jnp.matmul(t.astype(jnp.int8), t.T.astype(jnp.int8), preferred_element_type=jnp.int32) * x[0, 0],
        f(5, 5),
        i(9, 4, 3),
    ),
    "product of bytes and floats": (lambda x, t: jax.lax.dot(t.astype(jnp.int8), x), f(5, 6), i(9, 4, 5)),
    "product of 8-bit floats": (
        lambda x, w: jax.lax.dot(
            x.astype(jnp.float8_e4m3fn), w.astype(jnp.float8_e5m2), preferred_element_type=jnp.float32
        ),
        f(5, 6),
        f(6, 4),
    ),
    "sorted": (lambda x, t: jnp.sort(x, 1) + t.sum(), f(5, 5), i(5, 2)),
    "argsorted": (lambda x, t: jnp.argsort(x, 1) + t.sum(), f(5, 5), i(5, 2)),
}


RUN_SINCE = {
    "mapped scalar": (1, 23), "mapped twice": (1, 23), "buckets": (1, 22), "complex states": (1, 22),
    "a branch on what a loop makes of constants": (1, 22),
}  # fmt: skip
"""The first release of onnx whose evaluator runs a form: older ones gather by no unsigned number, and their loops read
nothing from outside of their bodies."""


@pytest.mark.parametrize("name", FORMS)
def test_the_graph_computes_what_the_function_does(name):
    if tuple(map(int, onnx.__version__.split(".")[:2])) < RUN_SINCE.get(name, ()):
        pytest.skip("onnx's own evaluator cannot run it")
    fn, *batch = FORMS[name]
    proto = onnx_program(lambda _, *batch: fn(*batch), {}, *batch)
    onnx.checker.check_model(proto, full_check=True)
    feeds = dict(zip((value.name for value in proto.graph.input), map(np.asarray, batch), strict=True))
    (ours,), theirs = ReferenceEvaluator(proto).run(None, feeds), np.asarray(fn(*batch))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x, labels: x[jnp.arange(6), labels], "GatherElements"),
        (lambda x, labels: x[jnp.arange(6), labels % 4, labels % 5], "GatherND"),
    ],
)
def test_numbers_that_count_the_rows_do_not_choose(fn, kind):
    """`logits[arange(n), labels]` splits by rows, as `take_along_axis` does: nothing is gathered for it."""
    proto = onnx_program(
        lambda _, x, labels: fn(x, labels), {}, f(6, *((5,) if kind != "GatherND" else (4, 5))), i(5, 6)
    )
    (node,) = [each for each in proto.graph.node if each.op_type.startswith("Gather")]
    assert node.op_type == kind
    if kind == "GatherND":
        assert next(each.i for each in node.attribute if each.name == "batch_dims") == 1
