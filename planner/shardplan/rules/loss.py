"""Losses: samples are independent, classes are looked up."""

from __future__ import annotations

from shardplan.rules.equation import letters
from shardplan.rules.row import Entry, Row, by
from shardplan.rules.signature import Signature
from shardplan.rules.types import InnerCollective


def loss(signature: Signature) -> Row:
    """`NegativeLogLikelihoodLoss`, `SoftmaxCrossEntropyLoss`: samples are independent; classes are looked up.

    Sums and unweighted means over the samples are partial. A weighted mean, or one that ignores a class, divides by
    a sum over all samples, which is merged inside. Cross entropy split by classes also merges the softmax statistics.
    """
    samples = ["n", *letters("y", signature.rank() - 2)]
    scores = [samples[0], "~c" if signature.kind == "SoftmaxCrossEntropyLoss" else "@c", *samples[1:]]
    how = signature.text("reduction", "mean")
    is_weighted = signature.has(2) or "ignore_index" in dict(signature.attributes)
    notes, inner = "", {}
    if how == "mean" and is_weighted:
        notes = " ;" + "".join(f" {factor}:merge" for factor in (*samples, "c"))
        few = InnerCollective("all_reduce", 2 * signature.result().size_bytes)
        inner = dict.fromkeys((*samples, "c") if "@c" in scores else samples, (few,))
    elif how == "mean":
        notes = " ;" + "".join(f" {sample}:mean" for sample in samples)
    operands = [" ".join(scores), " ".join(samples), "c"][: len(signature.operands)]
    results = [" ".join(samples) if how == "none" else "", " ".join(scores)][: len(signature.results)]
    return Row(
        f"{', '.join(operands)} -> {', '.join(results)}{notes}",
        saves="0 1 2",
        work=5,
        statistics=(3, 0),
        inner=inner,
    )


TABLE: tuple[Entry, ...] = (by("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", loss),)
