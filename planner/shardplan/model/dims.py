"""Symbolic dims: which the model has, what `--dim NAME=N` says of them, and the sizes that follow."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.model.draft import Dim, Draft, Stored

_LONGEST_EXPRESSION = 400
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "mod": operator.mod,
    "floor": lambda value: value,
    "floordiv": operator.floordiv,
    "cleandiv": operator.floordiv,
    "ceildiv": lambda above, below: -(-above // below),
}
_Tree = ast.expr


@dataclass(frozen=True, slots=True)
class Binding:
    """Sizes by dim name. `sizes` also binds dims without a name, as `input[0]`."""

    sizes: Mapping[str, int]

    def shape_of(self, name: str, stored: Stored) -> tuple[int | None, ...] | None:
        """The shape of value `name` as far as it is known."""
        if stored.shape is None:
            return None
        return tuple(
            [dim if type(dim) is int else self.size(dim, f"{name}[{place}]") for place, dim in enumerate(stored.shape)]
        )

    def size(self, dim: Dim, place: str) -> int | None:
        """The size of one stored dim; `place` is its name when it has none of its own."""
        if isinstance(dim, int):
            return dim
        if dim is None:
            return self.sizes.get(place)
        return self.sizes[dim] if dim in self.sizes else evaluate(dim, self.sizes)


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a dim expression such as `s43*s53` or `past + 1`; None where a name in it has no size."""
    tree = _parse(text)
    try:
        return None if tree is None else _evaluate(tree, sizes)
    except (KeyError, ZeroDivisionError, TypeError, RecursionError):
        return None


def names_of(text: str) -> tuple[str, ...]:
    """The names in a dim expression, in order; the whole text where it is no arithmetic (`batch size`)."""
    tree = _parse(text)
    if tree is None:
        return (text,)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(names))


def _parse(text: str) -> _Tree | None:
    if len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if _is_arithmetic(tree) else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_arithmetic(tree: _Tree) -> bool:
    if isinstance(tree, ast.Name):
        return True
    if isinstance(tree, ast.Constant):
        return type(tree.value) is int
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub) and _is_arithmetic(tree.operand)
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATORS and _is_arithmetic(tree.left) and _is_arithmetic(tree.right)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return tree.func.id.lower() in _FUNCTIONS and not tree.keywords and all(map(_is_arithmetic, tree.args))
    return False


def _evaluate(tree: _Tree, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.Constant):
        return int(str(tree.value))
    if isinstance(tree, ast.UnaryOp):
        return -_evaluate(tree.operand, sizes)
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)](_evaluate(tree.left, sizes), _evaluate(tree.right, sizes))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return _FUNCTIONS[tree.func.id.lower()](*(_evaluate(entry, sizes) for entry in tree.args))
    raise TypeError(ast.dump(tree))


def bind(draft: Draft, dims: Mapping[str, int]) -> Binding:
    """Check `dims` against the names that occur in the model and bind every dim of every graph input.

    Raises `ShardplanError`: names the model does not have, sizes below one, input dims left without a size.
    """
    needed = _open_dims(draft)
    problems = _bad_sizes(dims) + _unknown_names(dims, needed, _names(draft.stored.values()), _has_symbols(draft))
    binding = Binding(dict(dims))
    unbound = [name for name in needed if name not in dims]
    unbound = [name for name in unbound if not _is_covered(name, draft, binding)]
    if unbound and not problems:
        problems.append(_unbound(unbound, needed))
    problems += _negative(draft, binding) if not problems else []
    if problems:
        raise ShardplanError(*problems)
    return binding


def _open_dims(draft: Draft) -> dict[str, list[str]]:
    """Names that the graph inputs leave open -> inputs in which they occur."""
    found: dict[str, list[str]] = {}
    for name, stored in draft.inputs.items():
        for place, dim in enumerate(stored.shape or ()):
            if isinstance(dim, int):
                continue
            for symbol in (f"{name}[{place}]",) if dim is None else names_of(dim):
                uses = found.setdefault(symbol, [])
                if name not in uses:
                    uses.append(name)
    return found


def _has_symbols(draft: Draft) -> bool:
    return any(isinstance(dim, str) for stored in draft.stored.values() for dim in stored.shape or ())


def _names(values: Iterable[Stored]) -> set[str]:
    texts = {dim for stored in values for dim in stored.shape or () if isinstance(dim, str)}
    return texts | {name for text in texts for name in names_of(text)}


def _is_covered(symbol: str, draft: Draft, binding: Binding) -> bool:
    """Whether every input dim with `symbol` has a size all the same (its whole expression was bound)."""
    return all(
        binding.size(dim, f"{name}[{place}]") is not None
        for name, stored in draft.inputs.items()
        for place, dim in enumerate(stored.shape or ())
        if isinstance(dim, str) and symbol in names_of(dim)
    ) and not symbol.endswith("]")


def _bad_sizes(dims: Mapping[str, int]) -> list[Diagnostic]:
    text = "a dim must be a whole number of at least 1"
    return [
        error("bad-dim", f"--dim {name}={size}: {text}")
        for name, size in sorted(dims.items())
        if type(size) is not int or size < 1
    ]


def _unknown_names(
    dims: Mapping[str, int], needed: Mapping[str, object], stored: set[str], has_symbols: bool
) -> list[Diagnostic]:
    problems = []
    for name in sorted(set(dims) - set(needed) - stored):
        if needed or has_symbols:
            allowed = f"symbolic dims of the model: {', '.join(needed) or ', '.join(sorted(stored))}"
        else:
            allowed = "all shapes of the model are fixed; it has no symbolic dims"
        hint = did_you_mean(name, {*needed, *stored})
        problems.append(
            error("unknown-dim", f"--dim {name}={dims[name]}: no dim is called '{name}'", detail=allowed, hint=hint)
        )
    return problems


def _unbound(unbound: list[str], uses: Mapping[str, list[str]]) -> Diagnostic:
    lines = [f"{name}: in input {', '.join(repr(entry) for entry in uses[name][:4])}" for name in unbound]
    flags = " ".join(flag(name, "N") for name in unbound)
    several = "dims have" if len(unbound) > 1 else "dim has"
    return error(
        "unbound-dim",
        f"{len(unbound)} symbolic {several} no size: {', '.join(unbound)}",
        detail="\n".join(lines),
        hint=f"give {flags}",
    )


def flag(name: str, size: int | str) -> str:
    """The command line flag that binds `name`, quoted for a shell where needed."""
    return f"--dim {name}={size}" if name.isidentifier() else f"--dim '{name}={size}'"


def _negative(draft: Draft, binding: Binding) -> list[Diagnostic]:
    problems = []
    for name, stored in draft.inputs.items():
        for place, dim in enumerate(stored.shape or ()):
            size = binding.size(dim, f"{name}[{place}]")
            if size is not None and size < 0:
                problems.append(error("bad-dim", f"dim {place} of input '{name}' is {dim} = {size}, below zero"))
    return problems


def is_static(shape: tuple[int | None, ...] | None) -> bool:
    """Whether every size is known."""
    return shape is not None and None not in shape


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    return math.prod(shape)
