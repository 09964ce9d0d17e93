"""Losses."""

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
    rank = signature.rank()
    samples = ["n", *letters("y", rank - 2)] if rank > 1 else []
    classes = "~c" if signature.kind == "SoftmaxCrossEntropyLoss" else "@c"
    scores = [*samples[:1], classes, *samples[1:]]
    how = signature.text("reduction", "mean")
    ignores = "ignore_index" in dict(signature.attributes)
    combined = {"none": "", "sum": "sum", "mean": "merge" if signature.has(2) or ignores else "mean"}[how]
    made = " ".join(samples) if how == "none" else ""
    notes = "".join(f" {sample}:{combined}" for sample in samples) if combined in {"mean", "merge"} else ""
    operands = [" ".join(scores), " ".join(samples), "c"][: len(signature.operands)]
    results = [made, " ".join(scores)][: len(signature.results)]
    few = InnerCollective("all_reduce", 2 * signature.result().size_bytes)
    return Row(
        f"{', '.join(operands)} -> {', '.join(results)}" + (f" ;{notes}" if notes else ""),
        saves="0 1 2",
        work=5,
        statistics=(3, 0),
        inner=dict.fromkeys(samples, (few,)) if combined == "merge" else {},
    )


TABLE: tuple[Entry, ...] = (by("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", loss),)
