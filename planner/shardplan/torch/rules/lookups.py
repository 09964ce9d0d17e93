"""Indexing by several tensors, and assignment to items by numbers or masks.

Dims that numbers point into are whole; those that are only carried along stay split, and so does one in which the
numbers are those of the rows themselves (`x[arange(len(x))[:, None], chosen]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.signatures import CONSTANT
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.views import reshape

_NUMBERS = (torch.int32, torch.int64)
Index = Sequence[Value | None]
"""For every dim numbers, a mask of this and the next dims, or None for all of it; dims behind it are taken whole."""


def are_numbers(item: Any) -> bool:
    """Whether an item of an index is a tensor, an array or a list of whole numbers."""
    if isinstance(item, (Value, torch.Tensor)):
        return item.dtype in _NUMBERS
    if isinstance(item, np.ndarray):
        return bool(item.dtype.kind == "i")
    return isinstance(item, list) and all(type(each) is int for each in item)


def as_numbers(engine: Engine, item: Any) -> Value:
    """A tensor, an array or a list of numbers as a value."""
    is_plain = isinstance(item, (list, np.ndarray))
    return as_value(engine, torch.tensor(item, device=engine.groups.device) if is_plain else item)


def taken(engine: Engine, value: Value, dim: int, numbers: Sequence[Value]) -> Value:
    """What numbers point to together, one tensor of them for `dim` and each of the dims behind it."""
    shape = torch.broadcast_shapes(*(each.shape for each in numbers))
    own = {dim + place: _row(each, len(shape), value.shape[dim + place]) for place, each in enumerate(numbers)}
    rows = next(((place, row) for place, row in own.items() if row is not None), None)
    names = [f"x{rows[0]}" if rows and place == rows[1] else f"n{place}" for place in range(len(shape))]
    given = [each for place, each in enumerate(numbers) if rows is None or dim + place != rows[0]]
    dims: Dims = tuple((f"x{place}",) for place in range(value.rank))
    behind = dim + len(numbers)
    made = (*value.shape[:dim], *shape, *value.shape[behind:])
    signatures = [value.key.signature, *(each.key.signature for each in given[-1:])]
    sizes = {f"x{place}": size for place, size in enumerate(value.shape)} | dict(zip(names, shape, strict=True))

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        local, places = locals_[0], list(locals_[1:])
        if rows is not None:
            counted = torch.arange(local.shape[rows[0]], device=local.device)
            places.insert(rows[0] - dim, counted.reshape(-1, *(1 for _ in shape[rows[1] + 1 :])))
        return local[(*(slice(None),) * dim, *places)]

    call = Call(
        [value, *given], [dims, *(_aligned(each.shape, shape, names) for each in given)],
        [(*dims[:dim], *((name,) for name in names), *dims[behind:])], [made],
        [Key(engine.graph.signatures.leaf("lookup", *signatures), made)], sizes, run,
        frozenset(f"x{place}" for place in range(dim, behind) if rows is None or place != rows[0]), (frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def index_put(engine: Engine, op: Op) -> Any:
    """`index_put`, by ATen too: as `placed`."""
    given = {**dict(zip(("input", "indices", "values", "accumulate"), op.args, strict=False)), **op.kwargs}
    index = [None if item is None else as_value(engine, item) for item in given["indices"]]
    value, adds = as_value(engine, given["input"]), bool(given.get("accumulate"))
    made = placed(engine, value, index, given["values"], adds=adds)
    return replicated(engine, op) if made is None else made


def placed(engine: Engine, value: Value, index: Index, items: Any, *, adds: bool = False) -> Value | None:
    """A value with items set, or added, where numbers or a mask say; None for a form that is not known here."""
    stated = [place for place, item in enumerate(index) if item is not None]
    given = [item for item in index if item is not None]
    if not given or stated != list(range(stated[0], stated[0] + len(given))):
        return None
    if len(given) == 1 and given[0].dtype == torch.bool:
        return _masked(engine, value, stated[0], given[0], items, adds=adds)
    if any(each.dtype not in _NUMBERS for each in given):
        return None
    return _numbered(engine, value, stated[0], given, items, adds=adds)


def _masked(engine: Engine, value: Value, dim: int, mask: Value, items: Any, *, adds: bool) -> Value | None:
    """Items that do not depend on how many the mask picks: a choice."""
    behind = value.rank - dim - mask.rank
    if behind < 0 or not mask.rank or len(getattr(items, "shape", ())) > behind:
        return None
    for _ in range(behind):
        mask = reshape(engine, Op("unsqueeze", torch.unsqueeze, [mask, mask.rank]))

    def chosen(places: Any, set_: Any, kept: Any) -> Any:
        own = set_.to(kept.dtype) if isinstance(set_, torch.Tensor) else set_
        return torch.where(places, kept + own if adds else own, kept)

    return elementwise(engine, Op("where", chosen, [mask, items, value]))


def _numbered(
    engine: Engine, value: Value, dim: int, numbers: Sequence[Value], items: Any, *, adds: bool
) -> Value | None:
    shape = torch.broadcast_shapes(*(each.shape for each in numbers))
    names = [f"n{place}" for place in range(len(shape))]
    dims: Dims = tuple((f"x{place}",) for place in range(value.rank))
    kept = dims[:dim], dims[dim + len(numbers) :]
    whole = (*value.shape[:dim], *shape, *value.shape[dim + len(numbers) :])
    placed_ = [name for group in (*kept[0], *((each,) for each in names), *kept[1]) for name in group]
    is_tensor = isinstance(items, (Value, torch.Tensor))
    sources = [as_value(engine, items)] if is_tensor else []
    if any(each.rank > len(whole) for each in sources):
        return None
    operands = [value, *numbers, *sources]

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        local, places = locals_[0], locals_[1 : 1 + len(numbers)]
        own = (
            locals_[-1].to(local.dtype) if is_tensor else torch.full((), items, dtype=local.dtype, device=local.device)
        )
        return torch.ops.aten.index_put(local, [*[None] * dim, *places], own, adds)

    shapes = [*(_aligned(each.shape, shape, names) for each in numbers)]
    shapes += [_aligned(each.shape, whole, placed_) for each in sources]
    is_linear = is_tensor or adds or not items
    sizes = {f"x{place}": size for place, size in enumerate(value.shape)} | dict(zip(names, shape, strict=True))
    key = Key(engine.graph.signatures.nonlinear([each.key.signature for each in operands]), value.shape)
    call = Call(
        operands, [dims, *shapes], [dims], [value.shape], [key], sizes, run,
        frozenset((*(f"x{place}" for place in range(dim, dim + len(numbers))), *names)),
        (frozenset({0, len(operands) - 1} if is_tensor else {0}),) if is_linear else (),
    )  # fmt: skip
    return engine.run(call)[0]


def _aligned(shape: Sequence[int], whole: Sequence[int], names: Sequence[str]) -> Dims:
    """Factors of dims that are broadcast to `whole`, whose dims have the factors `names`."""
    offset = len(whole) - len(shape)
    return tuple((names[place + offset],) if size == whole[place + offset] else () for place, size in enumerate(shape))


def _row(numbers: Value, rank: int, size: int) -> int | None:
    """The dim, of `rank`, along which numbers count the rows of a dim of `size`, in order; else None."""
    local, long = numbers.local, [place for place, each in enumerate(numbers.shape) if each != 1]
    if numbers.key.signature != CONSTANT or type(local) is not torch.Tensor or len(long) != 1:  # a node has no numbers
        return None
    if numbers.shape[long[0]] != size or not bool((local.flatten() == torch.arange(size, device=local.device)).all()):
        return None
    return long[0] + rank - numbers.rank
