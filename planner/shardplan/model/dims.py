"""Symbolic dims of a model: their names, the values given by `--dim NAME=N`, and the sizes that follow."""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.model.draft import Dim, Draft, Node, Stored
from shardplan.model.nested import inner_name, nested_graphs
from shardplan.model.size_names import TRIP

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


@dataclass(frozen=True, slots=True)
class Binding:
    """Sizes by dim name; of dims without a name as `input[0]`; and trip counts of loops as `trip:NAME`."""

    sizes: Mapping[str, int]

    @property
    def trips(self) -> dict[str, int]:
        """Trip counts of loops by name, as far as they were given."""
        return _trips(self.sizes)

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


def _parse(text: str) -> ast.expr | None:
    if len(text) > _LONGEST_EXPRESSION:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if _is_arithmetic(tree) else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_arithmetic(tree: ast.expr) -> bool:
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


def _evaluate(tree: ast.expr, sizes: Mapping[str, int]) -> int:
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
    needed = _open_dims(draft, Binding({}))
    stored = _names([*draft.inputs.values(), *draft.stored.values()])
    named = {name: size for name, size in dims.items() if not name.startswith(TRIP)}
    problems = _bad_sizes(dims) + _unknown_names(named, list(needed), stored) + _unknown_loops(draft, _trips(dims))
    binding = Binding(dict(dims))
    if not problems:
        unbound = {name: uses for name, uses in _open_dims(draft, binding).items() if name not in dims}
        problems = ([_unbound(unbound)] if unbound else []) or _impossible(draft, binding)
    if problems:
        raise ShardplanError(*problems)
    return binding


def _open_dims(draft: Draft, binding: Binding) -> dict[str, list[str]]:
    """Names in dims of graph inputs that have no size under `binding` -> inputs in which they occur."""
    found: dict[str, list[str]] = {}
    for name, stored in draft.inputs.items():
        for place, dim in enumerate(stored.shape or ()):
            unnamed = f"{name}[{place}]"
            if binding.size(dim, unnamed) is None:
                for symbol in (unnamed,) if dim is None else names_of(str(dim)):
                    uses = found.setdefault(symbol, [])
                    if name not in uses:
                        uses.append(name)
    return found


def _names(values: Iterable[Stored]) -> set[str]:
    texts = {dim for stored in values for dim in stored.shape or () if isinstance(dim, str)}
    return texts | {name for text in texts for name in names_of(text)}


def _bad_sizes(dims: Mapping[str, int]) -> list[Diagnostic]:
    bad = {name: size for name, size in sorted(dims.items()) if type(size) is not int or size < 1}
    return [
        error("bad-trip", f"{trip_flag(name.removeprefix(TRIP), size)}: a trip count is a whole number, at least 1")
        if name.startswith(TRIP)
        else error("bad-dim", f"--dim {name}={size}: a dim must be a whole number of at least 1")
        for name, size in bad.items()
    ]


def _trips(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(TRIP): size for name, size in sizes.items() if name.startswith(TRIP)}


def _unknown_loops(draft: Draft, trips: Mapping[str, int]) -> list[Diagnostic]:
    loops = _loop_names(draft.nodes) if trips else []
    detail = f"loops of the model: {', '.join(loops)}" if loops else "the model has no loops"
    return [
        error(
            "unknown-trip",
            f"{trip_flag(name, trips[name])}: no loop is called '{name}'",
            detail=detail,
            hint=did_you_mean(name, loops),
        )
        for name in sorted(set(trips) - set(loops))
    ]


def _loop_names(nodes: Iterable[Node]) -> list[str]:
    """The names of all loops, those inside others as `outer/inner`."""
    found: list[str] = []
    waiting = [(node.name, node.proto) for node in reversed(list(nodes))]
    while waiting:
        name, proto = waiting.pop()
        if proto.op_type in {"Loop", "Scan"}:
            found.append(name)
        for attribute, graph in nested_graphs(proto):
            outer = f"{name}/{attribute}" if proto.op_type == "If" else name
            inside = [(inner_name(outer, entry, index), entry) for index, entry in enumerate(graph.node)]
            waiting += reversed(inside)
    return found


def _unknown_names(dims: Mapping[str, int], needed: list[str], stored: set[str]) -> list[Diagnostic]:
    allowed = needed or sorted(stored)
    detail = f"symbolic dims of the model: {', '.join(allowed)}"
    if not allowed:
        detail = "all shapes of the model are fixed; it has no symbolic dims"
    return [
        error(
            "unknown-dim",
            f"--dim {name}={dims[name]}: no dim is called '{name}'",
            detail=detail,
            hint="give --dim once for each dim" if "=" in name else did_you_mean(name, {*needed, *stored}),
        )
        for name in sorted(set(dims) - set(needed) - stored)
    ]


def _unbound(uses: Mapping[str, list[str]]) -> Diagnostic:
    lines = [f"{name}: in input {', '.join(repr(entry) for entry in inputs[:4])}" for name, inputs in uses.items()]
    several = "dims have" if len(uses) > 1 else "dim has"
    return error(
        "unbound-dim",
        f"{len(uses)} symbolic {several} no size: {', '.join(uses)}",
        detail="\n".join(lines),
        hint=f"give {' '.join(flag(name, 'N') for name in uses)}",
    )


def flag(name: str, size: int | str) -> str:
    """The command line flag that binds `name`, quoted for a shell where needed."""
    return f"--dim {shlex.quote(f'{name}={size}')}"


def trip_flag(name: str, iterations: int | str) -> str:
    """The command line flag that gives the trip count of a loop, quoted for a shell where needed."""
    return f"--trip {shlex.quote(f'{name}={iterations}')}"


def _impossible(draft: Draft, binding: Binding) -> list[Diagnostic]:
    """Input dims whose expression has no value, or one below zero."""
    problems = []
    for name, stored in draft.inputs.items():
        for place, dim in enumerate(stored.shape or ()):
            size = binding.size(dim, f"{name}[{place}]")
            if size is None:
                problems.append(error("bad-dim", f"dim {place} of input '{name}' is {dim}, which has no value"))
            elif size < 0:
                problems.append(error("bad-dim", f"dim {place} of input '{name}' is {dim} = {size}, below zero"))
    return problems


def is_static(shape: tuple[int | None, ...] | None) -> bool:
    """Whether every size is known."""
    return shape is not None and None not in shape
