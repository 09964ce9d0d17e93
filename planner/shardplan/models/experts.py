"""A mixture of experts as einsums over one-hot dispatch masks, after GShard: every expert has a fixed capacity."""

from __future__ import annotations

from functools import partial

import numpy as np

from shardplan.models.graph import GraphWriter
from shardplan.models.spec import TransformerSpec
from shardplan.models.xielu import xielu


def routed_mlp(graph: GraphWriter, spec: TransformerSpec, x: str, router: str, module: str) -> str:
    """[batch, seq, hidden] -> the same, through `top_k` of the experts per token.

    Letters: b sequences, s tokens, k choices of a token, e experts, c slots of an expert, h hidden, f inner.
    """
    batch, seq = spec.batch, spec.seq
    dispatch, combine = _routes(graph, spec, x, router)
    by_slot = (spec.experts, batch, spec.expert_slots, spec.hidden)
    taken = graph.apply("Einsum", [dispatch, x], by_slot, module, equation="bsec,bsh->ebch")
    done = _each_expert(graph, spec, taken, module)
    return graph.apply("Einsum", [combine, done], (batch, seq, spec.hidden), module, equation="bsec,ebch->bsh")


def dropless_mlp(
    graph: GraphWriter,
    spec: TransformerSpec,
    x: str,
    router: str,
    module: str,
    latent: tuple[str, ...] = (),
) -> str:
    """The same by index, as grouped products have it: tokens are brought to the slots of their experts and back, and
    nothing is multiplied by masks. The fullest expert has `skew` times its fair share; the others wait for it.
    `latent`: modules that bring tokens to the size in which experts take them, and back."""
    b, s, k, e, c, h = spec.batch, spec.seq, spec.top_k, spec.experts, spec.expert_slots, spec.expert_size
    shares, chosen = _choices(graph, spec, x, router)
    if latent:
        x = _linear(graph, spec, x, latent[0], (spec.hidden, h))
    on_off = graph.constant("off_on", np.array([0, 1], dtype=np.float32), spec.dtype)
    mask = graph.apply("OneHot", [chosen, _scalar(graph, e), on_off], (b, s, k, e), router, axis=-1)
    by_expert = graph.apply("ReduceSum", [mask, graph.integers(2)], (b, s, e), router, keepdims=0)
    token, slot, in_time = _slots(graph, spec, mask, by_expert, chosen, router)
    taken = graph.apply("GatherND", [x, token], (b, e, c, h), module, batch_dims=1)
    taken = graph.apply("Transpose", [taken], (e, b, c, h), module, perm=(1, 0, 2, 3))
    done = _each_expert(graph, spec, taken, module)
    done = graph.apply("Transpose", [done], (b, e, c, h), module, perm=(1, 0, 2, 3))
    done = graph.reshape(done, (b, e * c, h), module)
    back = graph.apply("GatherND", [done, slot], (b, s, k, h), module, batch_dims=1)
    shares = graph.apply("Mul", [shares, in_time], (b, s, k), router)
    done = graph.apply("Einsum", [back, shares], (b, s, h), module, equation="bskh,bsk->bsh")
    return _linear(graph, spec, done, latent[1], (h, spec.hidden)) if latent else done


def _linear(graph: GraphWriter, spec: TransformerSpec, x: str, module: str, shape: tuple[int, int]) -> str:
    weight = graph.weight(f"{module}.weight", shape, transposed=True)
    return graph.apply("MatMul", [x, weight], (spec.batch, spec.seq, shape[1]), module)


def _slots(
    graph: GraphWriter, spec: TransformerSpec, mask: str, by_expert: str, chosen: str, router: str
) -> tuple[str, str, str]:
    """Which token every slot takes [b, e, c, 1], to which slot every choice goes [b, s, k, 1], and whether it came
    before that expert was full [b, s, k]. Tokens queue up by their place in the sequence."""
    b, s, k, e, c = spec.batch, spec.seq, spec.top_k, spec.experts, spec.expert_slots
    early = graph.long_constant("early", (s, 1), partial(np.arange, s, 0, -1, dtype=np.float32), spec.dtype)
    urgent = graph.apply("Mul", [by_expert, early], (b, s, e), router)
    urgent = graph.apply("Transpose", [urgent], (b, e, s), router, perm=(0, 2, 1))
    results = [((b, e, c), spec.dtype), ((b, e, c), "int64")]
    token = graph.apply_many("TopK", [urgent, graph.integers(c)], results, router, attributes={"axis": -1})[1]
    token = graph.apply("Unsqueeze", [token, graph.integers(3)], (b, e, c, 1), router, dtype="int64")
    ahead = graph.apply("CumSum", [by_expert, _scalar(graph, 1)], (b, s, e), router, exclusive=1)
    place = graph.apply("Einsum", [mask, ahead], (b, s, k), router, equation="bske,bse->bsk")
    full = graph.constant("slots", np.array(c, dtype=np.float32), spec.dtype)
    in_time = graph.apply("Less", [place, full], (b, s, k), router, dtype="bool")
    in_time = graph.apply("Cast", [in_time], (b, s, k), router, to=_CAST[spec.dtype])
    place = graph.apply("Cast", [place], (b, s, k), router, dtype="int64", to=7)
    place = graph.apply("Min", [place, graph.integers(c - 1)], (b, s, k), router, dtype="int64")
    first = graph.apply("Mul", [chosen, graph.integers(c)], (b, s, k), router, dtype="int64")
    slot = graph.apply("Add", [first, place], (b, s, k), router, dtype="int64")
    return token, graph.apply("Unsqueeze", [slot, graph.integers(3)], (b, s, k, 1), router, dtype="int64"), in_time


def _each_expert(graph: GraphWriter, spec: TransformerSpec, taken: str, module: str) -> str:
    """[e, b, c, h] -> the same, every expert's slots through its own MLP."""
    experts, slots = spec.experts, spec.expert_slots

    def einsum(equation: str, left: str, right: str, shape: tuple[int, ...]) -> str:
        return graph.apply("Einsum", [left, right], shape, module, equation=equation)

    def weight(name: str, inner: int, outer: int) -> str:
        return graph.weight(f"{module}.{name}.weight", (experts, inner, outer))

    size = spec.expert_size
    by_slot, inside = (experts, spec.batch, slots, size), (experts, spec.batch, slots, spec.inner)
    up = einsum("ebch,ehf->ebcf", taken, weight("up", size, spec.inner), inside)
    if spec.look.gated:
        gate = einsum("ebch,ehf->ebcf", taken, weight("gate", size, spec.inner), inside)
        share = graph.apply("Sigmoid", [gate], inside, module)
        gate = graph.apply("Mul", [gate, share], inside, module)
        active = graph.apply("Mul", [gate, up], inside, module)
    else:
        active = activated(graph, spec, up, inside, module)
    return einsum("ebcf,efh->ebch", active, weight("down", spec.inner, size), by_slot)


def activated(graph: GraphWriter, spec: TransformerSpec, x: str, shape: tuple[int, ...], module: str) -> str:
    """What an MLP without a gate does between its products."""
    if spec.act in {"relu", "relu2"}:
        x = graph.apply("Relu", [x], shape, module)
        return x if spec.act == "relu" else graph.apply("Mul", [x, x], shape, module)
    if spec.act == "xielu":
        return xielu(graph, x, shape, module)
    return graph.apply("Gelu", [x], shape, module, approximate="none" if spec.style == "bert" else "tanh")


def _routes(graph: GraphWriter, spec: TransformerSpec, x: str, router: str) -> tuple[str, str]:
    """Which token goes to which slot of which expert, [b, s, e, c], as a mask and weighted by the router's share.

    Choices queue up by rank, then by place in the sequence; who comes after the last slot is dropped (`OneHot` marks
    nothing for an index out of range).
    """
    b, s, k, e, c = spec.batch, spec.seq, spec.top_k, spec.experts, spec.expert_slots
    share, chosen = _choices(graph, spec, x, router)
    on_off = graph.constant("off_on", np.array([0, 1], dtype=np.float32), spec.dtype)
    mask = graph.apply("OneHot", [chosen, _scalar(graph, e), on_off], (b, s, k, e), router, axis=-1)
    place = _queue(graph, spec, mask, router)
    slot = graph.apply("OneHot", [place, _scalar(graph, c), on_off], (b, s, k, c), router, axis=-1)
    dispatch = graph.apply("Einsum", [mask, slot], (b, s, e, c), router, equation="bske,bskc->bsec")
    share = graph.apply("Unsqueeze", [share, graph.integers(3)], (b, s, k, 1), router)
    weighted = graph.apply("Mul", [mask, share], (b, s, k, e), router)
    combine = graph.apply("Einsum", [weighted, slot], (b, s, e, c), router, equation="bske,bskc->bsec")
    return dispatch, combine


def _choices(graph: GraphWriter, spec: TransformerSpec, x: str, router: str) -> tuple[str, str]:
    """[b, s, h] -> shares and numbers of the experts that every token chooses, each [b, s, k]."""
    b, s, k, e = spec.batch, spec.seq, spec.top_k, spec.experts
    weight = graph.weight(f"{router}.weight", (spec.hidden, e), transposed=True)
    scores = graph.apply("MatMul", [x, weight], (b, s, e), router)
    scores = graph.apply("Cast", [scores], (b, s, e), router, dtype="float", to=1)
    shares = graph.apply("Softmax", [scores], (b, s, e), router, dtype="float", axis=-1)
    results = [((b, s, k), "float"), ((b, s, k), "int64")]
    share, chosen = graph.apply_many("TopK", [shares, graph.integers(k)], results, router, attributes={"axis": -1})
    return graph.apply("Cast", [share], (b, s, k), router, to=_CAST[spec.dtype]), chosen


def _queue(graph: GraphWriter, spec: TransformerSpec, mask: str, router: str) -> str:
    """[b, s, k, e] -> [b, s, k]: the place of every choice in the queue of its expert."""
    b, s, k, e = spec.batch, spec.seq, spec.top_k, spec.experts
    ranked = graph.apply("Transpose", [mask], (b, k, s, e), router, perm=(0, 2, 1, 3))
    line = graph.reshape(ranked, (b, k * s, e), router)
    ahead = graph.apply("CumSum", [line, _scalar(graph, 1)], (b, k * s, e), router, exclusive=1)
    own = graph.apply("Mul", [ahead, line], (b, k * s, e), router)
    place = graph.apply("ReduceSum", [own, graph.integers(2)], (b, k * s), router, keepdims=0)
    place = graph.apply("Cast", [place], (b, k * s), router, dtype="int64", to=7)
    place = graph.apply("Reshape", [place, graph.integers(b, k, s)], (b, k, s), router, dtype="int64")
    return graph.apply("Transpose", [place], (b, s, k), router, dtype="int64", perm=(0, 2, 1))


def _scalar(graph: GraphWriter, value: int) -> str:
    """A whole number as a constant without dims, as `OneHot` takes its depth and `CumSum` its axis."""
    return graph.constant(f"int64.scalar.{value}", np.array(value, dtype=np.int64))


_CAST = {"float": 1, "float16": 10, "bfloat16": 16}
"""Numbers of ONNX's element types."""
