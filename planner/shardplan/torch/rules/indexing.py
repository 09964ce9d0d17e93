"""Indexing: rows by number, gather and scatter by number, assignment to items.

The dim that numbers point into is whole; dims that values and numbers share, and those that are only carried along,
stay split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Dims, Site, Value
from shardplan.torch.rules.elementwise import as_value, elementwise
from shardplan.torch.rules.fallback import replicated
from shardplan.torch.rules.lookups import are_numbers, as_numbers, placed, taken
from shardplan.torch.rules.slicing import basic_item, is_basic

MADE_NEW = frozenset(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"))
SCATTERS = frozenset(("scatter", "scatter_add", "scatter_reduce"))
INDEXED = frozenset(("index_add", "index_copy", "index_fill"))


def made_new(engine: Engine, op: Op) -> Value:
    """A constant that takes only dtype and device from a value; every process has it whole."""
    made = op.func(op.args[0].local, *op.args[1:], **op.kwargs)
    return engine.constant(made, tuple(made.shape))


def getitem(engine: Engine, op: Op) -> Value:
    """Indexing with integers, slices, `None`, `...` and, besides, tensors or lists of numbers that stand side by side.
    With other tensors every process does all of it."""
    value, given = op.args[0], op.args[1]
    index = list(given) if isinstance(given, tuple) else [given]
    if all(is_basic(item) for item in index):
        return basic_item(engine, value, index)
    numbered = [place for place, item in enumerate(index) if not is_basic(item)]
    first = numbered[0]
    are_apart = numbered != list(range(first, first + len(numbered)))
    is_mixed = any(isinstance(item, int) for item in index) or not all(are_numbers(index[p]) for p in numbered)
    if are_apart or is_mixed:
        return replicated(engine, op)  # type: ignore[no-any-return]
    numbers = [as_numbers(engine, index[place]) for place in numbered]
    dim = _dim_of(index, first, value.rank)
    left = basic_item(engine, value, [slice(None) if place in numbered else item for place, item in enumerate(index)])
    return _taken(engine, left, dim, numbers[0]) if len(numbers) == 1 else taken(engine, left, dim, numbers)


def index(engine: Engine, op: Op) -> Value:
    """ATen's form of an index of tensors, with None for whole dims."""
    items = tuple(slice(None) if item is None else item for item in op.args[1])
    return getitem(engine, Op("getitem", torch.Tensor.__getitem__, [op.args[0], items]))


def where(engine: Engine, op: Op) -> Any:
    """A choice between two values; the places of what is true in one, which are numbers of the whole."""
    return replicated(engine, op) if len(op.args) + len(op.kwargs) == 1 else elementwise(engine, op)


def index_select(engine: Engine, op: Op) -> Value:
    """Rows of a dim by number."""
    given = {**dict(zip(("input", "dim", "index"), op.args, strict=False)), **op.kwargs}
    value = as_value(engine, given["input"])
    return _taken(engine, value, int(given["dim"]) % value.rank, as_value(engine, given["index"]))


def gather(engine: Engine, op: Op) -> Value:
    """`gather`, and `take_along_dim` of shapes that do not broadcast: an element for every number."""
    names = ("input", "dim", "index") if op.name == "gather" else ("input", "indices", "dim")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    value, numbers = as_value(engine, given["input"]), as_value(engine, given.get("index", given.get("indices")))
    if given.get("dim") is None or value.rank != numbers.rank or not value.rank:
        return replicated(engine, op)  # type: ignore[no-any-return]
    dim = int(given["dim"]) % value.rank
    dims, own, sizes, whole = _beside(value.shape, numbers.shape, dim)
    if op.name != "gather" and any(factor.startswith("n") for group in own for factor in group if factor != f"n{dim}"):
        return replicated(engine, op)  # type: ignore[no-any-return]
    made = _gathered if op.name == "gather" else _taken_along
    key = Key(engine.graph.signatures.nonlinear([value.key.signature, numbers.key.signature]), numbers.shape)
    call = Call(
        [value, numbers], [dims, own], [own], [numbers.shape], [key], sizes,
        lambda locals_, _: made(locals_, dim), whole - {f"n{dim}"}, (frozenset({0}),),
    )  # fmt: skip
    return engine.run(call)[0]


def _gathered(locals_: list[Any], dim: int) -> Any:
    return torch.gather(locals_[0], dim, locals_[1])


def _taken_along(locals_: list[Any], dim: int) -> Any:
    return torch.take_along_dim(locals_[0], locals_[1], dim)


def scatter(engine: Engine, op: Op) -> Value:
    """`scatter`, `scatter_add`, `scatter_reduce`: elements written, or added, where numbers say."""
    given = {**dict(zip(("input", "dim", "index", "src"), op.args, strict=False)), **op.kwargs}
    value, numbers = as_value(engine, given["input"]), as_value(engine, given["index"])
    dim, source = int(given["dim"]) % max(value.rank, 1), given.get("src", given.get("value"))
    adds = isinstance(source, (Value, torch.Tensor)) and math.prod(source.shape) != 1
    operands = [value, numbers, *([as_value(engine, source)] if adds else [])]
    if value.rank != numbers.rank or not value.rank or (adds and operands[2].shape != numbers.shape):
        return replicated(engine, op)  # type: ignore[no-any-return]
    dims, own, sizes, whole = _beside(value.shape, numbers.shape, dim)
    if not adds and isinstance(source, Value):
        return replicated(engine, op)  # type: ignore[no-any-return]
    more = op.args[4:]
    named = {name: item for name, item in op.kwargs.items() if name not in {"input", "dim", "index", "src", "value"}}

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        made = _OUT_OF_PLACE[op.name]
        return made(locals_[0].clone(), dim, locals_[1], locals_[2] if adds else source, *more, **named)

    plain = op.name != "scatter_reduce" and not more and "reduce" not in named
    linear = (frozenset({0, 2}) if adds else frozenset({0}),) if plain and (adds or not source) else ()
    key = Key(engine.graph.signatures.nonlinear([each.key.signature for each in operands]), value.shape)
    shapes = [dims, own, *([own] if adds else [])]
    return engine.run(Call(operands, shapes, [dims], [value.shape], [key], sizes, run, whole, linear))[0]


def indexed(engine: Engine, op: Op) -> Value:
    """`index_add`, `index_copy`, `index_fill`: rows of a dim added to, or written, by number."""
    names = ("input", "dim", "index", "value" if op.name == "index_fill" else "source")
    given = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    value, numbers = as_value(engine, given["input"]), as_value(engine, given["index"])
    dim, source = int(given["dim"]) % max(value.rank, 1), given[names[3]]
    adds = op.name != "index_fill"
    if not value.rank or (not adds and isinstance(source, (Value, torch.Tensor))):
        return replicated(engine, op)  # type: ignore[no-any-return]
    dims: Dims = tuple((f"x{place}",) for place in range(value.rank))
    own: Dims = tuple(("n",) if place == dim else (f"x{place}",) for place in range(value.rank))
    operands = [value, numbers, *([as_value(engine, source)] if adds else [])]
    more = {"alpha": given["alpha"]} if given.get("alpha", 1) != 1 else {}
    made = getattr(torch, op.name)
    sizes = {f"x{place}": size for place, size in enumerate(value.shape)} | {"n": math.prod(numbers.shape)}
    call = Call(
        operands, [dims, (("n",),) * numbers.rank, *([own] if adds else [])], [dims], [value.shape],
        [Key(engine.graph.signatures.nonlinear([each.key.signature for each in operands]), value.shape)], sizes,
        lambda locals_, _: made(locals_[0], dim, locals_[1], locals_[2] if adds else source, **more),
        frozenset({f"x{dim}", "n"}), (frozenset({0, 2}) if adds else frozenset({0}),) if adds or not source else (),
    )  # fmt: skip
    return engine.run(call)[0]


def setitem(engine: Engine, op: Op) -> Value:
    """A value with some of its items set; dims of which only a part is set are whole. By tensors beside anything but
    whole dims every process does all of it."""
    value, given, items = op.args[:3]
    index = list(given) if isinstance(given, tuple) else [given]
    value = as_value(engine, value)
    if _is_mask(index, value.shape) and not getattr(items, "shape", ()):
        return elementwise(engine, Op("masked_fill", torch.masked_fill, [value, index[0], items]))
    plain = all(isinstance(item, slice) or item is Ellipsis or type(item) is int for item in index)
    if not plain or not value.rank:
        made = placed(engine, value, _stated(engine, index, value.rank), items)
        return made or replicated(engine, Op(op.name, _with_items, [value, given, items]))
    told = _filled(index, value.rank)
    dims: Dims = tuple((f"x{place}",) for place in range(value.rank))
    kept = [place for place, item in enumerate(told) if not isinstance(item, int)]
    shape = tuple(len(range(*told[place].indices(value.shape[place]))) for place in kept)
    set_: Dims = tuple((f"x{p}",) if n == value.shape[p] else (f"n{p}",) for p, n in zip(kept, shape, strict=True))
    cut = [place for place, item in enumerate(told) if isinstance(item, int) or (f"n{place}",) in set_]
    sizes = {f"x{place}": size for place, size in enumerate(value.shape)}
    sizes |= {f"n{place}": size for place, size in zip(kept, shape, strict=True)}
    operands, places, linear = [value], [dims], (frozenset({0}),)
    if isinstance(items, (Value, torch.Tensor)):
        source = as_value(engine, items)
        if source.rank > len(shape):
            return replicated(engine, Op(op.name, _with_items, [value, given, items]))  # type: ignore[no-any-return]
        offset = len(shape) - source.rank
        aligned = tuple(set_[d + offset] if size == shape[d + offset] else () for d, size in enumerate(source.shape))
        operands, places, linear = [value, source], [dims, aligned], (frozenset({0, 1}),)
    picked = tuple(item if place in cut else slice(None, None, item.step) for place, item in enumerate(told))

    def run(locals_: list[Any], site: Site) -> Any:
        del site
        return _with_items(locals_[0], picked, locals_[1] if len(locals_) > 1 else items)

    call = Call(
        operands, places, [dims], [value.shape],
        [Key(engine.graph.signatures.nonlinear([each.key.signature for each in operands]), value.shape)], sizes, run,
        frozenset(f"{kind}{place}" for place in cut for kind in "xn"), linear if len(operands) > 1 or not items else (),
    )  # fmt: skip
    return engine.run(call)[0]


def part_set(engine: Engine, op: Op) -> Value:
    """`slice_scatter`, `select_scatter`: a value with a slice of a dim, or one index of it, set."""
    names = ("input", "src", "dim", *(("start", "end", "step") if op.name == "slice_scatter" else ("index",)))
    given = {"dim": 0, **dict(zip(names, op.args, strict=False)), **op.kwargs}
    value = as_value(engine, given["input"])
    item = given["index"] if "index" in given else slice(given.get("start"), given.get("end"), given.get("step", 1))
    index = (*(slice(None),) * (int(given["dim"]) % value.rank), item)
    return setitem(engine, Op("setitem", torch.Tensor.__setitem__, [value, index, given["src"]]))


def _stated(engine: Engine, index: Sequence[Any], rank: int) -> list[Value | None]:
    """An index of tensors and whole dims, as `placed` takes it; empty if there is anything else in it."""
    hidden = rank - sum(_rank_of(item) for item in index if item is not Ellipsis)
    wide = [each for item in index for each in ([slice(None)] * hidden if item is Ellipsis else [item])]
    tensors = [isinstance(item, (Value, torch.Tensor)) or are_numbers(item) for item in wide]
    plain = (item for item, known in zip(wide, tensors, strict=True) if not known)
    if any(not isinstance(item, slice) or item != slice(None) for item in plain):
        return []
    return [as_numbers(engine, item) if known else None for item, known in zip(wide, tensors, strict=True)]


def _rank_of(item: Any) -> int:
    """Of how many dims an item of an index is."""
    return len(item.shape) if getattr(item, "dtype", None) == torch.bool else int(item is not None)


def _is_mask(index: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether one mask says of every element if it is set."""
    mask = index[0] if len(index) == 1 else None
    return isinstance(mask, (Value, torch.Tensor)) and mask.dtype == torch.bool and tuple(mask.shape) == shape


def _with_items(whole: Any, index: Any, items: Any) -> Any:
    made = whole.clone()
    made[index] = items
    return made


_OUT_OF_PLACE = {
    "scatter": torch.Tensor.scatter,
    "scatter_add": torch.Tensor.scatter_add,
    "scatter_reduce": torch.Tensor.scatter_reduce,
}


def _taken(engine: Engine, value: Value, dim: int, numbers: Value) -> Value:
    """Rows of `dim` by number, in the place of the dim; of a split dim every process adds those that it has."""
    dims: Dims = tuple((f"x{place}",) for place in range(value.rank))
    own: Dims = tuple((f"n{place}",) for place in range(numbers.rank))
    shape = (*value.shape[:dim], *numbers.shape, *value.shape[dim + 1 :])
    sizes = {f"x{place}": size for place, size in enumerate(value.shape)}
    sizes |= {f"n{place}": size for place, size in enumerate(numbers.shape)}
    before, rows = (slice(None),) * dim, value.shape[dim]

    def run(locals_: list[Any], site: Site) -> Any:
        local, places = locals_
        ways = site.ways(f"x{dim}")
        if ways == 1:
            return local[(*before, places)]
        held = rows // ways
        places = torch.where(places < 0, places + rows, places) - site.number(f"x{dim}") * held
        inside = (places >= 0) & (places < held)
        after = (None,) * (value.rank - dim - 1)
        return local[(*before, torch.where(inside, places, 0))].masked_fill(inside.logical_not()[(..., *after)], 0)

    key = Key(engine.graph.signatures.leaf("lookup", value.key.signature, numbers.key.signature), shape)
    whole = frozenset() if value.dtype.is_floating_point else frozenset({f"x{dim}"})
    call = Call(
        [value, numbers], [dims, own], [(*dims[:dim], *own, *dims[dim + 1 :])], [shape], [key], sizes, run, whole,
        (frozenset({0}),), ordered=frozenset({f"x{dim}"}),
    )  # fmt: skip
    return engine.run(call)[0]


def _dim_of(index: Sequence[Any], place: int, rank: int) -> int:
    """The dim of the result of the basic part of an index at which a tensor stands in it."""
    before = list(index[:place])
    if any(item is Ellipsis for item in before):
        hidden = rank - sum(item is not None and item is not Ellipsis for item in index)
        return len(before) - 1 + hidden
    return len(before)


def _filled(index: Sequence[Any], rank: int) -> list[Any]:
    """Integers and slices for all dims."""
    whole = [slice(None)] * (rank - sum(item is not Ellipsis for item in index))
    parts = list(index) if any(item is Ellipsis for item in index) else [*index, Ellipsis]
    place = next(number for number, item in enumerate(parts) if item is Ellipsis)
    return [*parts[:place], *whole, *parts[place + 1 :]]


def _beside(shape: Sequence[int], other: Sequence[int], dim: int) -> tuple[Dims, Dims, dict[str, int], frozenset[str]]:
    """Factors of a value and of numbers that point into its dim `dim`: shared where sizes are equal, else whole."""
    dims: Dims = tuple((f"x{place}",) for place in range(len(shape)))
    same = [place != dim and size == other[place] for place, size in enumerate(shape)]
    own: Dims = tuple((f"x{place}",) if equal else (f"n{place}",) for place, equal in enumerate(same))
    sizes = {f"x{place}": size for place, size in enumerate(shape)}
    sizes |= {f"n{place}": size for place, size in enumerate(other)}
    return dims, own, sizes, frozenset(f"{kind}{p}" for p, equal in enumerate(same) if not equal for kind in "xn")
