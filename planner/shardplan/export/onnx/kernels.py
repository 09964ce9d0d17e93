"""Which nodes stand for an operator on one device: the operator itself, or more where devices talk inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardplan.errors import ShardplanError, error
from shardplan.export.onnx.attention import attention
from shardplan.export.onnx.bodies import by_body
from shardplan.export.onnx.kernel import Writer, operator_node
from shardplan.export.onnx.lookups import WRITERS as LOOKUPS
from shardplan.export.onnx.losses import likelihood
from shardplan.export.onnx.recurrent import recurrent
from shardplan.export.onnx.statistics import WRITERS as STATISTICS
from shardplan.export.onnx.windows import windows
from shardplan.program.steps import Graph
from shardplan.program.types import Local, Site
from shardplan.rules.body import has_body


def kernel_writer(site: Site) -> Writer:
    """What writes the nodes of `site`. Raises `ShardplanError` (`cannot-export`) where nothing does."""
    if site.kind in DRAWING or (site.kind == "Dropout" and _drops(site)):
        summary = f"operator '{site.operator.name}' ({site.kind}) cannot be exported: devices would draw other numbers"
        raise ShardplanError(error("cannot-export", summary, hint="export the model for inference"))
    if not site.communicates:
        return plain
    if site.kind not in WRITERS and has_body(site.kind, site.operator.version):
        return by_body(kernel_writer)
    if site.kind not in WRITERS:
        split = ", ".join(site.options[axis].label for axis in site.communicates)  # type: ignore[union-attr]
        why = f"no ONNX program is known for this kind when {split} is split, because devices then talk inside it"
        summary = f"operator '{site.operator.name}' ({site.kind}) cannot be exported: {why}"
        raise ShardplanError(error("cannot-export", summary, hint="pin the operator to another split"))
    return WRITERS[site.kind]


def _drops(site: Site) -> bool:
    """Whether a `Dropout` is in training mode."""
    return site.has(2) and (2 not in site.known or bool(site.known[2]))


def plain(graph: Graph, site: Site, local: Local, reads: Sequence[str], makes: Sequence[str]) -> None:
    """The operator on what the device holds; of a mean every device has its share."""
    shared = [
        local.shares > 1 and layout is not None and any(p.kind == "P" for p in layout.placements)
        for layout in site.result_layouts
    ]
    named = [graph.name(f"{name}/share") if share else name for name, share in zip(makes, shared, strict=True)]
    operator_node(graph, site, local.attributes, reads, named)
    for part, name, share in zip(named, makes, shared, strict=True):
        if share:
            count = graph.constant(local.shares, graph.dtype(name))
            graph.op("Div", part, count, to=name)


DRAWING = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
)
WRITERS: Mapping[str, Writer] = {
    **LOOKUPS,
    **STATISTICS,
    "Attention": attention,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"), windows),
    **dict.fromkeys(("LSTM", "RNN", "GRU"), recurrent),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), likelihood),
}
