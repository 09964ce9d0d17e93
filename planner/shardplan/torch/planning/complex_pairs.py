"""Complex numbers as pairs of real ones, since ONNX has no complex numbers.

A module is exported as a graph once and run node by node, with a pair in place of every complex tensor; so a second
export sees real tensors alone. What has no form here (transforms of Fourier) is given complex numbers, made of pairs:
some of that torch's exporter can write.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardplan.torch.exported.program import parameter_tree
from shardplan.torch.rules.function_names import name_of


class Pair(NamedTuple):
    """A complex tensor: its real part and its imaginary part, of equal shape."""

    real: Tensor
    imag: Tensor


def in_pairs(program: ExportedProgram) -> nn.Module:
    """A module that computes what `program` does, called as it is, its parameters under their names."""
    known = torch.export.default_decompositions()
    asked = {node.target for node in program.graph.nodes if _is_complex(node) and name_of(node.target) not in _KNOWN}
    apart = {func: form for func, form in known.items() if name_of(func).startswith("fft_") or func in asked}
    graph = program.run_decompositions(apart).module(check_guards=False)
    made = parameter_tree(graph)
    interpreter = _OnPairs(graph, made)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return interpreter.run(*pytree.tree_leaves((args, kwargs), is_leaf=_is_nothing), enable_io_processing=False)

    made.forward = forward
    return made


def has_complex_numbers(program: ExportedProgram) -> bool:
    """Whether a program computes with complex numbers."""
    return any(map(_is_complex, program.graph.nodes))


def _is_complex(node: fx.Node) -> bool:
    """Whether an operator is given complex numbers, or makes some."""
    held = pytree.tree_leaves([each.meta.get("val") for each in (node, *node.all_input_nodes)])
    return node.op == "call_function" and any(isinstance(each, Tensor) and each.is_complex() for each in held)


def _is_nothing(argument: Any) -> bool:
    return argument is None


class _OnPairs(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph with pairs in place of complex tensors, and with the parameters and buffers of `owner`."""

    def __init__(self, graph: fx.GraphModule, owner: nn.Module) -> None:
        super().__init__(graph)
        self.owned = {
            name: (owner.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, _ in [*owner.named_parameters(), *owner.named_buffers()]
        }

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _as_pairs(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = getattr(*self.owned[target]) if target in self.owned else super().get_attr(target, args, kwargs)
        return _as_pairs(found)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(target, OpOverload):
            return super().call_function(target, args, kwargs)
        return _on_pairs(target, args, kwargs)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _apart(super().output(target, args, kwargs), torch.view_as_real)


def _on_pairs(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = name_of(func)
    form = _MADE.get(name)
    dtype = kwargs.get("dtype")
    if name in _NEW and (dtype.is_complex if dtype is not None else any(isinstance(each, complex) for each in args)):
        form = functools.partial(_new, func)
    if form is None and _has_pairs((args, kwargs)):
        form = _FORMS.get(name) or (functools.partial(_each, func) if name in _EACH else None)
    elif form is None and name in _ARITHMETIC and any(isinstance(each, complex) for each in args):
        form = _FORMS.get(name)
    if form is not None:
        return form(*args, **kwargs)
    return _as_pairs(func(*_apart(args), **_apart(kwargs)))


def _has_pairs(given: Any) -> bool:
    return any(isinstance(leaf, Pair) for leaf in pytree.tree_leaves(given, is_leaf=_is_pair))


def _is_pair(leaf: Any) -> bool:
    return isinstance(leaf, Pair)


def _as_pairs(made: Any) -> Any:
    """With pairs in place of complex tensors."""

    def pair(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_complex():
            return leaf
        both = torch.view_as_real(leaf)
        return Pair(both.select(-1, 0), both.select(-1, 1))

    return pytree.tree_map(pair, made, is_leaf=_is_pair)


def _apart(given: Any, then: Callable[[Tensor], Tensor] = lambda whole: whole) -> Any:
    """With complex tensors in place of pairs."""

    def joined(leaf: Any) -> Any:
        return then(torch.view_as_complex(_both(leaf))) if isinstance(leaf, Pair) else leaf

    return pytree.tree_map(joined, given, is_leaf=_is_pair)


def _both(pair: Pair) -> Tensor:
    return torch.stack([pair.real, pair.imag], -1)


_EACH = frozenset(
    ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "unsqueeze",
     "squeeze", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "select", "slice", "narrow",
     "index", "index_select", "gather", "take_along_dim", "cat", "stack", "split", "split_with_sizes", "chunk",
     "unbind", "clone", "contiguous", "alias", "detach", "detach_", "neg", "sum", "mean", "cumsum", "roll", "flip",
     "diagonal", "slice_scatter", "select_scatter", "index_put", "index_add", "scatter", "scatter_add", "tril", "triu",
     "zeros_like", "empty_like", "new_zeros", "new_empty", "lift_fresh_copy", "constant_pad_nd", "pad", "resolve_neg")
)  # fmt: skip
"""What is done to both parts alike."""


def _each(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of both parts; real tensors in lists with pairs have no imaginary part."""

    def part(number: int) -> Any:
        def of(argument: Any) -> Any:
            if isinstance(argument, Pair):
                return argument[number]
            if isinstance(argument, (list, tuple)) and any(map(_is_pair, argument)):
                return [each[number] if isinstance(each, Pair) else each * (1 - number) for each in argument]
            return argument

        return func(*map(of, args), **{key: of(value) for key, value in kwargs.items()})

    real, imag = part(0), part(1)
    return Pair(real, imag) if isinstance(real, Tensor) else [*itertools.starmap(Pair, zip(real, imag, strict=True))]


def _parts(given: Any) -> tuple[Any, Any]:
    """Both parts of a pair or a number; the second is None where there is none."""
    if isinstance(given, Pair):
        return given
    return (given.real, given.imag) if isinstance(given, complex) else (given, None)


def _multiplied(one: Any, other: Any, by: Callable[[Any, Any], Tensor] = torch.mul) -> Any:
    """A product, or another function that is linear in both."""
    (a, b), (c, d) = _parts(one), _parts(other)
    if b is None or d is None:
        made = [None if x is None or y is None else by(x, y) for x, y in ((a, c), (a, d), (b, c))]
        return Pair(made[0], made[1] if made[1] is not None else made[2])
    return Pair(by(a, c) - by(b, d), by(a, d) + by(b, c))


def _added(one: Any, other: Any, alpha: float = 1, sign: int = 1) -> Pair:
    (a, b), (c, d) = _parts(one), _parts(other)
    real = a + sign * alpha * c
    none = torch.zeros_like(real)
    return Pair(real, (none if b is None else none + b) + (0 if d is None else sign * alpha * d))


def _subtracted(one: Any, other: Any, alpha: float = 1) -> Pair:
    return _added(one, other, alpha, -1)


def _size(pair: Pair) -> Tensor:
    return (pair.real.square() + pair.imag.square()).sqrt()


def _conjugate(pair: Pair) -> Pair:
    return Pair(pair.real, -pair.imag)


def _divided(one: Any, other: Any) -> Any:
    c, d = _parts(other)
    if d is None:
        return Pair(*(part / c for part in one))
    inverse = 1 / (c * c + d * d)
    return _multiplied(one, Pair(c * inverse, -d * inverse))


def _turned(size: Any, angle: Tensor) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


def _angle(pair: Pair) -> Tensor:
    return torch.atan2(pair.imag, pair.real)


def _exponential(pair: Pair) -> Pair:
    return _turned(pair.real.exp(), pair.imag)


def _logarithm(pair: Pair) -> Pair:
    return Pair(_size(pair).log(), _angle(pair))


def _power(base: Any, exponent: Any) -> Pair:
    if isinstance(exponent, int) and 0 < exponent <= _SMALL:
        product: Pair = functools.reduce(_multiplied, [base] * exponent)
        return product
    logarithm = _logarithm(base) if isinstance(base, Pair) else torch.as_tensor(base).log()
    return _exponential(_multiplied(logarithm, exponent))


_SMALL = 4
"""Powers up to this one are products."""


def _is_whole(item: Any) -> bool:
    return isinstance(item, (Tensor, Pair))


def _cast(given: Any, *args: Any, **kwargs: Any) -> Any:
    """`to` in its forms: a complex dtype is that of its parts."""
    wanted = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.dtype)]
    wanted += [item.real.dtype.to_complex() if _is_pair(item) else item.dtype for item in args if _is_whole(item)]
    if not wanted:
        return given
    real = wanted[0].to_real()
    if isinstance(given, Pair):
        return Pair(given.real.to(real), given.imag.to(real)) if wanted[0].is_complex else given.real.to(wanted[0])
    if not wanted[0].is_complex:
        return given.to(wanted[0])
    return Pair(given.to(real), torch.zeros_like(given, dtype=real))


def _chosen(condition: Tensor, one: Any, other: Any) -> Pair:
    (a, b), (c, d) = _parts(one), _parts(other)
    nothing = torch.zeros_like(next(part for part in (b, d) if isinstance(part, Tensor)))
    return Pair(torch.where(condition, a, c), torch.where(condition, *(nothing if x is None else x for x in (b, d))))


def _copied(into: Any, source: Any, non_blocking: bool = False) -> Any:
    """What is written over `into`, in its shape; a real tensor takes the real part."""
    del non_blocking
    real, imag = _parts(source)
    if not isinstance(into, Pair):
        return torch.ops.aten.copy(into, real)
    return Pair(
        torch.ops.aten.copy(into.real, real),
        torch.zeros_like(into.imag) if imag is None else torch.ops.aten.copy(into.imag, imag),
    )


def _filled(pair: Pair, mask: Tensor, value: Any) -> Pair:
    real, imag = _parts(value)
    return Pair(pair.real.masked_fill(mask, real), pair.imag.masked_fill(mask, 0 if imag is None else imag))


def _einsum(equation: str, operands: Sequence[Any], path: Any = None) -> Any:
    """Every choice of one part of each operand, with the power of i that it has."""
    del path
    parts = [_parts(each) for each in operands]
    sums: list[Any] = [0, 0]
    for places in itertools.product((0, 1), repeat=len(parts)):
        chosen = [part[place] for part, place in zip(parts, places, strict=True)]
        if any(each is None for each in chosen):
            continue
        power = sum(places)
        term = torch.einsum(equation, *chosen)
        sums[power % 2] = sums[power % 2] + (-term if power % 4 > 1 else term)
    return Pair(*sums)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    made = _multiplied(x, weight, torch.nn.functional.linear)
    return made if bias is None else _added(made, bias)


def _sum_of_product(bias: Any, one: Any, other: Any, **kwargs: Any) -> Any:
    product = _multiplied(one, other, torch.matmul)
    return _added(product if kwargs.get("alpha", 1) == 1 else _multiplied(product, kwargs["alpha"]), bias)


def _norm(pair: Pair, *args: Any, **kwargs: Any) -> Tensor:
    made: Tensor = torch.linalg.vector_norm(_size(pair), *args, **kwargs)
    return made


def _ones_like(pair: Pair, **_: Any) -> Pair:
    return Pair(torch.ones_like(pair.real), torch.zeros_like(pair.imag))


def _new(func: OpOverload, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Pair:
    """A constant of a complex type: torch's exporter gives it the shape of a real one."""
    real = dtype.to_real() if dtype is not None else torch.get_default_dtype()
    parts = [[getattr(each, part) if isinstance(each, complex) else each for each in args] for part in _PARTS]
    one = func(*parts[0], dtype=real, **kwargs)
    is_filled = any(isinstance(each, complex) for each in args)
    return Pair(one, func(*parts[1], dtype=real, **kwargs) if is_filled else torch.zeros_like(one))


_PARTS = ("real", "imag")
_NEW = frozenset(("zeros", "ones", "full", "empty"))


def _product_of(function: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda one, other, *_: _multiplied(one, other, function)


_MADE: Mapping[str, Callable[..., Any]] = {
    "complex": Pair,
    "polar": _turned,
    "_neg_view": lambda given: Pair(-given.real, -given.imag) if isinstance(given, Pair) else -given,
    "view_as_complex": lambda both: Pair(both.select(-1, 0), both.select(-1, 1)),
    **dict.fromkeys(("to", "_to_copy", "type_as"), _cast),
}
"""What makes pairs of real tensors."""
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": _added,
    "sub": _subtracted,
    "rsub": lambda one, other, alpha=1: _subtracted(other, one, alpha),
    "mul": _multiplied,
    **dict.fromkeys(("div", "true_divide"), _divided),
    "pow": _power,
}
_FORMS: Mapping[str, Callable[..., Any]] = {
    **_ARITHMETIC,
    "real": lambda pair: pair.real,
    "imag": lambda pair: pair.imag,
    "view_as_real": _both,
    **dict.fromkeys(("conj", "_conj", "conj_physical", "_conj_physical"), _conjugate),
    "resolve_conj": lambda pair: pair,
    "adjoint": lambda pair: _conjugate(Pair(pair.real.mT, pair.imag.mT)),
    "abs": _size,
    "angle": _angle,
    "sgn": lambda pair: _divided(pair, _size(pair)),
    "exp": _exponential,
    "log": _logarithm,
    "sqrt": lambda pair: _turned(_size(pair).sqrt(), _angle(pair) / 2),
    "square": lambda pair: _multiplied(pair, pair),
    "reciprocal": lambda pair: _divided(Pair(torch.ones_like(pair.real), torch.zeros_like(pair.imag)), pair),
    "where": _chosen,
    "masked_fill": _filled,
    "copy": _copied,
    "einsum": _einsum,
    "linear": _linear,
    **dict.fromkeys(("addmm", "baddbmm"), _sum_of_product),
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), _product_of(torch.matmul)),
    **dict.fromkeys(("outer", "ger"), _product_of(torch.outer)),
    "linalg_vector_norm": _norm,
    "ones_like": _ones_like,
    "_assert_tensor_metadata": lambda *_, **__: None,
}
_KNOWN = frozenset((*_FORMS, *_MADE, *_NEW, *_EACH))
"""All that has a form here; what torch takes apart need not have one."""
