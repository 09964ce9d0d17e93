"""Operators that make constants or random numbers, and operators that cannot be split."""

from __future__ import annotations

from shardplan.rules.row import Entry, Row, by, replicated, row
from shardplan.rules.signature import Signature


def transform(signature: Signature) -> Row | None:
    """`DFT`: every dim but the transformed one and the pairs of real and imaginary part."""
    rank, axis = signature.rank(), signature.integer("axis", 1)
    if signature.version >= 20:
        given = signature.constant(2) if signature.has(2) else (-2,)
        if given is None:
            return None
        axis = given[0]
    names = [f"x{dim}" if dim not in {axis % rank, rank - 1} else "_" for dim in range(rank)]
    dims = " ".join(names)
    return Row(f"{dims}{signature.rest} -> {dims}", cost="memory", linear=((0,),), work=20)


TABLE: tuple[Entry, ...] = (
    row("Constant", "_*, ... -> x*", cost="free"),
    row("ConstantOfShape RandomNormal RandomUniform", "_*, ... -> x*", cost="free"),
    row("RandomNormalLike RandomUniformLike Bernoulli", "x* -> x*", work=4),
    row("Multinomial", "b _ -> b _", cost="memory"),
    row(
        "EyeLike Range BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
        "_*, ... -> _*",
        cost="free",
        why="every device makes the whole itself",
    ),
    row("Shape Size", "x* -> _* ; x:merge", cost="free"),
    row("MaxUnpool", "_*, ... -> _*", cost="memory", why="indices count over the whole tensor"),
    by("DFT", transform, reads=(2,)),
    row("STFT", "b _*, _*, _*, _* -> b _ _ _", cost="memory", linear=((0,),), work=20),
    replicated("NonZero Unique Compress NonMaxSuppression", why="data decides how many elements there are"),
    replicated("If Loop Scan", why="its body is planned in its place; kept as one piece, every device runs it whole"),
    replicated("SequenceMap", why="every device runs the nested graph whole"),
    replicated(
        "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength"
        " SplitToSequence Optional OptionalGetElement OptionalHasElement",
        why="sequences and optional values are no tensors",
    ),
    replicated("StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer", why="works on strings"),
    replicated("ImageDecoder", why="reads a file"),
)
