"""Pooling and resampling: batch and channels are free, space at the price of a halo."""

from __future__ import annotations

from shardplan.rules import windows
from shardplan.rules.row import Entry, Row, by, row
from shardplan.rules.signature import Signature


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
    """`Resize`, `Upsample`: dims of scale 1 split, and those enlarged by a whole factor to the nearest element."""
    before, after = signature.shape(), signature.result().shape
    is_nearest = signature.text("mode", "nearest") == "nearest" and _repeats(signature)
    dims, made = [], []
    sizes: dict[str, int] = {}
    for dim, (size, enlarged) in enumerate(zip(before, after, strict=True)):
        name = f"x{dim}"
        if size != enlarged and not (is_nearest and size and enlarged % size == 0):
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
    by("Resize Upsample", resize),
)
