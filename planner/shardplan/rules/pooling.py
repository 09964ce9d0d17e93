"""Pooling and resampling: batch and channels are free, space at the price of a halo."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardplan.rules import windows
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature

_EXACT = 1e-5
"""Relative: scales are stored in single precision."""


def pool(signature: Signature) -> Row | None:
    """`MaxPool`, `AveragePool`, `LpPool`; indices of maxima count over the whole tensor, so they keep it whole."""
    if signature.made(1):
        return Row("_* -> _*, _*", cost="memory", saves="r1")
    kernel = signature.integers("kernel_shape") or ()
    found = windows.windows(signature, kernel)
    space = windows.text(found)
    is_average = signature.kind == "AveragePool"
    return Row(
        f"n c {space} -> n c {space}",
        cost="memory",
        linear=((0,),) if is_average else (),
        saves="" if is_average else "0 r0",
        limits=windows.limits(found),
        inner=windows.halos(signature, found),
    )


def resize(signature: Signature) -> Row:
    """`Resize`, `Upsample`: dims of scale 1 split, and those enlarged by a whole factor to the nearest element.

    The scale counts, not the sizes: 4 elements by 1.2 are 4 elements, but other ones.
    """
    before, after = signature.shape(), signature.result().shape
    is_nearest = signature.text("mode", "nearest") == "nearest" and _repeats(signature)
    dims, made = [], []
    sizes: dict[str, int] = {}
    scales = _scales(signature)
    for dim, (size, enlarged) in enumerate(zip(before, after, strict=True)):
        name = f"x{dim}"
        is_exact = abs(size * scales[dim] - enlarged) < _EXACT * enlarged
        if not is_exact or (size != enlarged and not (is_nearest and size and enlarged % size == 0)):
            dims.append("_")
            made.append("_")
            continue
        dims.append(name)
        made.append(name if size == enlarged else f"({name} !copies{dim})")
        if size != enlarged:
            sizes[f"copies{dim}"] = enlarged // size
    fills = signature.text("coordinate_transformation_mode") == "tf_crop_and_resize"  # with a value that is added once
    linear = () if fills else ((0,),)
    return Row(f"{' '.join(dims)}{signature.rest} -> {' '.join(made)}", cost="memory", linear=linear, sizes=sizes)


def _scales(signature: Signature) -> list[float]:
    """By what each dim is scaled; not a number where that depends on data, or where a part is cut out first."""
    rank = signature.rank()
    axes = [axis % rank for axis in signature.integers("axes") or range(rank)]
    scales = [1.0] * rank
    for axis, scale in zip(axes, _asked_scales(signature, axes) or [math.nan] * len(axes), strict=True):
        scales[axis] = scale
    if signature.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = signature.numbers(1) or ()
        for place, axis in enumerate(axes):
            if len(roi) != 2 * len(axes) or (roi[place], roi[place + len(axes)]) != (0.0, 1.0):
                scales[axis] = math.nan
    return scales


def _asked_scales(signature: Signature, axes: Sequence[int]) -> Sequence[float] | None:
    """The scales of `axes` as the operator has them; None where they depend on data."""
    if signature.kind == "Upsample" and signature.version < 9:
        plain = (1.0, 1.0, signature.number("height_scale"), signature.number("width_scale"))
        return plain if signature.version < 7 else signature.floats("scales")
    at = 2 if signature.kind == "Resize" and signature.version >= 11 else 1
    if signature.has(at) and signature.operand(at).elements:
        return signature.numbers(at)
    if not signature.has(3):
        return None
    policy = signature.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        made = signature.result().shape
        return [made[axis] / max(1, signature.shape()[axis]) for axis in axes]
    sizes = signature.numbers(3)
    if sizes is None:
        return None
    ratios = [size / max(1, signature.shape()[axis]) for size, axis in zip(sizes, axes, strict=True)]
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _repeats(signature: Signature) -> bool:
    """Whether nearest-element resizing by a whole factor is plain repetition."""
    if signature.version < 11 or signature.kind == "Upsample":
        return True
    coordinates = signature.text("coordinate_transformation_mode", "half_pixel")
    rounding = signature.text("nearest_mode", "round_prefer_floor")
    return (coordinates, rounding) in {
        ("asymmetric", "floor"),
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "round_prefer_ceil"),
    }


TABLE: tuple[Entry, ...] = (
    row("MaxRoiPool", "_ c _*, r _ -> r c _*", cost="memory", saves="0 1"),
    row("RoiAlign", "_ c _*, r _, r -> r c _*", cost="memory", linear=((0,),), saves="1 2"),
    row("GridSample", "n c _*, n o* _ -> n c o*", cost="memory", linear=((0,),), saves="0 1", work=8),
    row("AffineGrid", "n _ _, _ -> n _*", linear=((0,),), work=4),
    by("MaxPool AveragePool LpPool", pool),
    by("Resize Upsample", resize, reads=(1, 2, 3)),
)
