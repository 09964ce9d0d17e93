"""Localisation of operators: attributes and shape operands for shards, from those for whole tensors.

Most operators run on shards unchanged. Those listed in `LOCALISERS` have sizes in constant operands or attributes (the
target of a `Reshape`, the bounds of a `Slice`, the number of heads), which refer to whole tensors. The local values are
the same on every device; descriptions that differ between devices are in `shardplan.program.operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardplan.errors import ShardplanError, error
from shardplan.model.attributes import integer, integers
from shardplan.program.types import Array, Local, Site

Localiser = Callable[[Site, Local], None]


def localise(site: Site) -> Local:
    """The local form of the operator at `site`. Raises `ShardplanError` if it depends on unknown values."""
    local = Local(dict(site.operator.attributes), shares=_shares(site))
    localiser = LOCALISERS.get(site.kind)
    if localiser is not None:
        localiser(site, local)
    return local


def refuse(site: Site, why: str) -> ShardplanError:
    """The error for a split that cannot be carried out."""
    split = ", ".join(
        f"{axis.name} splits {option.label}"
        for axis, option in zip(site.mesh.axes, site.options, strict=True)
        if option is not None
    )
    summary = f"cannot run operator '{site.operator.name}' ({site.kind}) on shards: {why}"
    return ShardplanError(error("cannot-execute", summary, detail=split))


def _shares(site: Site) -> int:
    """A mean over a split dim is the sum of the local means, each counting for its share."""
    return site.mesh.ways([axis for axis, option in enumerate(site.options) if option and option.averaged])


def _whole(site: Site, position: int) -> Array:
    """The values of a constant operand; a refusal where they depend on data."""
    if position not in site.known:
        raise refuse(site, f"its operand {position} depends on data")
    return site.known[position]


def _sizes(shape: Sequence[int]) -> Array:
    return np.array(shape, dtype=np.int64)


def target_shape(site: Site, local: Local) -> None:
    """`Reshape`, `Expand`: the target is the local shape of the result."""
    if "shape" in local.attributes:
        local.attributes["shape"] = site.local_result()
    else:
        local.operands[1] = _sizes(site.local_result())
        if site.kind == "Reshape" and site.operator.version >= 14:
            local.attributes["allowzero"] = 1


def filled_shape(site: Site, local: Local) -> None:
    """`ConstantOfShape`: fill what the device holds."""
    local.operands[0] = _sizes(site.local_result())


def squeeze(site: Site, local: Local) -> None:
    """`Squeeze` without axes: the dims that are 1 in the whole tensor, not those that became 1 by splitting."""
    if site.has(1) or "axes" in local.attributes:
        return
    axes = [dim for dim, size in enumerate(site.operand(0)) if size == 1]
    if site.operator.version >= 13:
        local.operands[1] = _sizes(axes)
    else:
        local.attributes["axes"] = tuple(axes)


def tile(site: Site, local: Local) -> None:
    """`Tile`: copies that are split are fewer on each device."""
    both = zip(site.local_result(), site.local_operand(0), strict=True)
    copies = [made // max(1, held) for made, held in both]
    is_old = site.has(2)  # copies along one dim, which operand 2 names
    local.operands[1] = np.array(copies[int(_whole(site, 2))]) if is_old else _sizes(copies)


def split(site: Site, local: Local) -> None:
    """`Split`: the local sizes of the parts."""
    axis = integer(site.operator.attributes, "axis", 0)
    sizes = [site.local_result(position)[axis] for position in range(len(site.result_shapes))]
    if site.operator.version >= 13 or site.has(1):
        local.operands[1] = _sizes(sizes)
        local.attributes.pop("num_outputs", None)
    else:
        local.attributes["split"] = tuple(sizes)


def slice_(site: Site, local: Local) -> None:
    """`Slice`: of a dim that is cut, every part is split alike, so bounds shrink with the parts; steps stay."""
    if site.local_result() == site.result() and site.local_operand(0) == site.operand(0):
        return
    is_old = site.operator.version < 10
    starts, ends, axes, steps = _bounds(site)
    for place, axis in enumerate(axes):
        held, made = site.local_operand(0)[axis], site.local_result()[axis]
        whole = site.operand(0)[axis]
        if held == whole:
            continue
        start = min(max(starts[place] + (whole if starts[place] < 0 else 0), 0), whole)
        if steps[place] == 1 and made != held:
            start = start * held // whole
        starts[place], ends[place] = start, start + steps[place] * (made - 1) + 1
    if is_old:
        local.attributes["starts"], local.attributes["ends"] = tuple(starts), tuple(ends)
    else:
        local.operands.update({1: _sizes(starts), 2: _sizes(ends)})


def _bounds(site: Site) -> tuple[list[int], list[int], list[int], list[int]]:
    """Starts, ends, axes and steps of a `Slice`."""
    rank = len(site.operand(0))
    if site.operator.version < 10:
        starts, ends = (integers(site.operator.attributes, name) for name in ("starts", "ends"))
        axes = integers(site.operator.attributes, "axes") or tuple(range(len(starts)))
        return list(starts), list(ends), [axis % rank for axis in axes], [1] * len(starts)
    starts, ends = (tuple(_whole(site, position).ravel().tolist()) for position in (1, 2))
    given = _whole(site, 3).ravel().tolist() if site.has(3) else range(len(starts))
    steps = _whole(site, 4).ravel().tolist() if site.has(4) else [1] * len(starts)
    return list(starts), list(ends), [int(axis) % rank for axis in given], list(steps)


def resize(site: Site, local: Local) -> None:
    """`Resize` to sizes: the local ones. The sizes of dims that are not split stay: if a ratio is kept, one of them may
    determine it, and a split dim has just that ratio."""
    made = site.local_result()
    if not site.has(3) or made == site.result():
        return
    axes = integers(site.operator.attributes, "axes") or tuple(range(len(made)))
    asked = zip(_whole(site, 3).ravel().tolist(), axes, strict=True)
    local.operands[3] = _sizes([size if made[axis] == site.result()[axis] else made[axis] for size, axis in asked])


def depth(site: Site, local: Local) -> None:
    """`OneHot`: as many classes as the new dim has."""
    made = site.local_result()
    axis = integer(site.operator.attributes, "axis", -1)
    local.operands[1] = np.full(site.operand(1), made[axis % len(made)], dtype=np.int64)


def centre(site: Site, local: Local) -> None:
    """`CenterCropPad`: the local target; dims that are split keep their size."""
    made = site.local_result()
    axes = integers(site.operator.attributes, "axes") or tuple(range(len(made)))
    local.operands[1] = _sizes([made[axis] for axis in axes])


def affine_size(site: Site, local: Local) -> None:
    """`AffineGrid`: the batch of the target size."""
    size = np.array(_whole(site, 1))
    size[0] = site.local_result()[0]
    local.operands[1] = size


def divide(**attributes: tuple[str, ...]) -> Localiser:
    """Counts that shrink with the factors they count: `divide(num_heads=("h",))`."""

    def divided(site: Site, local: Local) -> None:
        for name, factors in attributes.items():
            if name in local.attributes:
                local.attributes[name] = integer(site.operator.attributes, name, 1) // site.ways(*factors)

    return divided


LOCALISERS: Mapping[str, Localiser] = {
    "Reshape": target_shape,
    "Expand": target_shape,
    "ConstantOfShape": filled_shape,
    "Squeeze": squeeze,
    "Tile": tile,
    "Split": split,
    "Slice": slice_,
    "Resize": resize,
    "OneHot": depth,
    "CenterCropPad": centre,
    "AffineGrid": affine_size,
    "Attention": divide(q_num_heads=("h", "g"), kv_num_heads=("h",)),
    "LinearAttention": divide(q_num_heads=("h", "g"), kv_num_heads=("h",)),
    "RotaryEmbedding": divide(num_heads=("h",)),
    "GroupNormalization": divide(num_groups=("g",)),
    "com.microsoft.GroupNorm": divide(groups=("g",)),
    "com.microsoft.SkipGroupNorm": divide(groups=("g",)),
    "com.microsoft.FusedConv": divide(group=("g",)),
    "Conv": divide(group=("g",)),
    "ConvInteger": divide(group=("g",)),
    "QLinearConv": divide(group=("g",)),
    "ConvTranspose": divide(group=("g",)),
    "DeformConv": divide(group=("g",)),
    "com.microsoft.Attention": divide(num_heads=("h",)),
    "com.microsoft.MultiHeadAttention": divide(num_heads=("h",)),
    "com.microsoft.GroupQueryAttention": divide(num_heads=("h", "g"), kv_num_heads=("h",)),
    "com.microsoft.RotaryEmbedding": divide(num_heads=("h",)),
    "com.microsoft.MatMulNBits": divide(N=("n",), K=("q",)),
    "RNN": divide(hidden_size=("h",)),
    "GRU": divide(hidden_size=("h",)),
    "LSTM": divide(hidden_size=("h",)),
}
