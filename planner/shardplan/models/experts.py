"""A mixture of experts as einsums over one-hot dispatch masks, after GShard: every expert has a fixed capacity."""

from __future__ import annotations

import numpy as np

from shardplan.models.graph import GraphWriter
from shardplan.models.spec import TransformerSpec


def routed_mlp(graph: GraphWriter, spec: TransformerSpec, x: str, router: str, module: str) -> str:
    """[batch, seq, hidden] -> the same, through `top_k` of the experts per token.

    Letters: b sequences, s tokens, k choices of a token, e experts, c slots of an expert, h hidden, f inner.
    """
    batch, seq, experts, slots = spec.batch, spec.seq, spec.experts, spec.expert_slots
    dispatch, combine = _routes(graph, spec, x, router)

    def einsum(equation: str, left: str, right: str, shape: tuple[int, ...]) -> str:
        return graph.apply("Einsum", [left, right], shape, module, equation=equation)

    def weight(name: str, inner: int, outer: int) -> str:
        return graph.weight(f"{module}.{name}.weight", (experts, inner, outer))

    by_slot, inside = (experts, batch, slots, spec.hidden), (experts, batch, slots, spec.inner)
    taken = einsum("bsec,bsh->ebch", dispatch, x, by_slot)
    up = einsum("ebch,ehf->ebcf", taken, weight("up", spec.hidden, spec.inner), inside)
    if spec.look.gated:
        gate = einsum("ebch,ehf->ebcf", taken, weight("gate", spec.hidden, spec.inner), inside)
        share = graph.apply("Sigmoid", [gate], inside, module)
        gate = graph.apply("Mul", [gate, share], inside, module)
        active = graph.apply("Mul", [gate, up], inside, module)
    else:
        active = graph.apply("Gelu", [up], inside, module, approximate="tanh")
    done = einsum("ebcf,efh->ebch", active, weight("down", spec.inner, spec.hidden), by_slot)
    return einsum("bsec,ebch->bsh", combine, done, (batch, seq, spec.hidden))


def _routes(graph: GraphWriter, spec: TransformerSpec, x: str, router: str) -> tuple[str, str]:
    """Which token goes to which slot of which expert, [b, s, e, c], as a mask and weighted by the router's share.

    Choices queue up by rank, then by place in the sequence; who comes after the last slot is dropped (`OneHot` marks
    nothing for an index out of range).
    """
    b, s, k, e, c = spec.batch, spec.seq, spec.top_k, spec.experts, spec.expert_slots
    weight = graph.weight(f"{router}.weight", (spec.hidden, e), transposed=True)
    scores = graph.apply("MatMul", [x, weight], (b, s, e), router)
    scores = graph.apply("Cast", [scores], (b, s, e), router, dtype="float", to=1)
    shares = graph.apply("Softmax", [scores], (b, s, e), router, dtype="float", axis=-1)
    results = [((b, s, k), "float"), ((b, s, k), "int64")]
    share, chosen = graph.apply_many("TopK", [shares, graph.integers(k)], results, router, attributes={"axis": -1})
    on_off = graph.constant("off_on", np.array([0, 1], dtype=np.float32), spec.dtype)
    mask = graph.apply("OneHot", [chosen, graph.integers(e), on_off], (b, s, k, e), router, axis=-1)
    place = _queue(graph, spec, mask, router)
    slot = graph.apply("OneHot", [place, graph.integers(c), on_off], (b, s, k, c), router, axis=-1)
    dispatch = graph.apply("Einsum", [mask, slot], (b, s, e, c), router, equation="bske,bskc->bsec")
    share = graph.apply("Cast", [share], (b, s, k), router, to=_CAST[spec.dtype])
    share = graph.apply("Unsqueeze", [share, graph.integers(3)], (b, s, k, 1), router)
    weighted = graph.apply("Mul", [mask, share], (b, s, k, e), router)
    combine = graph.apply("Einsum", [weighted, slot], (b, s, e, c), router, equation="bske,bskc->bsec")
    return dispatch, combine


def _queue(graph: GraphWriter, spec: TransformerSpec, mask: str, router: str) -> str:
    """[b, s, k, e] -> [b, s, k]: the place of every choice in the queue of its expert."""
    b, s, k, e = spec.batch, spec.seq, spec.top_k, spec.experts
    ranked = graph.apply("Transpose", [mask], (b, k, s, e), router, perm=(0, 2, 1, 3))
    line = graph.apply("Reshape", [ranked, graph.integers(b, k * s, e)], (b, k * s, e), router)
    ahead = graph.apply("CumSum", [line, graph.integers(1)], (b, k * s, e), router, exclusive=1)
    own = graph.apply("Mul", [ahead, line], (b, k * s, e), router)
    place = graph.apply("ReduceSum", [own, graph.integers(2)], (b, k * s), router, keepdims=0)
    place = graph.apply("Cast", [place], (b, k * s), router, dtype="int64", to=7)
    place = graph.apply("Reshape", [place, graph.integers(b, k, s)], (b, k, s), router, dtype="int64")
    return graph.apply("Transpose", [place], (b, s, k), router, dtype="int64", perm=(0, 2, 1))


_CAST = {"float": 1, "float16": 10, "bfloat16": 16}
"""Numbers of ONNX's element types."""
