"""Writing a program instead of running it: operations on traced tensors become nodes of an FX graph.

A traced tensor is a place in the graph, with the shape and dtype of the local part. The rules of the engine run on it
as on any tensor; what they do to local parts is what is written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from shardplan.layout.legal import local_shape
from shardplan.torch.engine import Backend
from shardplan.torch.grid import Grid
from shardplan.torch.moves import Route


class Traced(Tensor):  # type: ignore[misc]
    """A node of the graph that is being written. `meta`: a tensor like the one it will be, on the meta device."""

    node: fx.Node
    meta: Tensor
    writer: Writer

    @staticmethod
    def of(node: fx.Node, meta: Tensor, writer: Writer) -> Traced:
        """A traced tensor at `node`."""
        make = Tensor._make_wrapper_subclass  # noqa: SLF001 - torch documents no other way
        made: Traced = make(Traced, meta.shape, dtype=meta.dtype, device=writer.device)
        made.node, made.meta, made.writer = node, meta, writer
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name == "requires_grad":
                return args[0].meta.requires_grad
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as torch's own subclasses do
                return func(*args, **kwargs)
        writer = next(_traced((args, kwargs))).writer
        return writer.call(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every function is taken at `__torch_function__`."""
        raise RuntimeError(f"{func} met a traced tensor below torch's functions")

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Traced({self.node.name}, shape={tuple(self.meta.shape)})"


def _traced(argument: Any) -> Iterator[Traced]:
    if isinstance(argument, Traced):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from _traced(item)
    elif isinstance(argument, dict):
        yield from _traced(list(argument.values()))


class Mover(nn.Module):  # type: ignore[misc]
    """A move of the plan in a graph."""

    def __init__(self, backend: Backend, route: Route, label: str) -> None:
        super().__init__()
        self.backend, self.route, self.label = backend, route, label

    def forward(self, local: Tensor) -> Tensor:
        """The local tensor after the move."""
        return self.backend.move(local, self.route, self.label)

    def extra_repr(self) -> str:
        """What moves."""
        kinds = ", ".join(step.collective.kind for step in self.route.forward) or "nothing"
        back = ", ".join(step.collective.kind for step in self.route.backward) or "nothing"
        return f"{self.label or 'value'}: forward {kinds}; backward {back}"


class Bringer(nn.Module):  # type: ignore[misc]
    """New weights on their way from where the optimizer made them, in a graph."""

    def __init__(self, backend: Backend, routes: Sequence[Route]) -> None:
        super().__init__()
        self.backend, self.routes = backend, routes

    def forward(self, *locals_: Tensor) -> tuple[Tensor, ...]:
        """The weights as the plan keeps them."""
        return tuple(self.backend.bring(locals_, self.routes))


class Bundle(nn.Module):  # type: ignore[misc]
    """Weights in a graph whose gradients go home together; what replaces them comes after them."""

    def __init__(self, backend: Backend, routes: Sequence[Route]) -> None:
        super().__init__()
        self.backend, self.routes = backend, routes

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The weights, or what replaces them."""
        count = len(self.routes)
        return tuple(self.backend.together(tensors[:count], self.routes, tensors[count:]))


class Writer:
    """Writes a graph. `backend`: what moves when the graph runs."""

    def __init__(self, root: nn.Module, backend: Backend, grid: Grid) -> None:
        self.root, self.backend, self.device, self.mesh = root, backend, grid.device, grid.mesh
        self.graph = fx.Graph()
        self._moves = 0

    def placeholder(self, name: str, meta: Tensor) -> Traced:
        """An argument of the program."""
        return Traced.of(self.graph.placeholder(name), meta, self)

    def attribute(self, name: str, meta: Tensor) -> Traced:
        """A tensor that the root module holds."""
        return Traced.of(self.graph.get_attr(name), meta, self)

    def module(self, name: str, module: nn.Module, local: Traced, meta: Tensor) -> Traced:
        """The result of a module that is added to the root."""
        self.root.add_module(name, module)
        return Traced.of(self.graph.call_module(name, (local.node,)), meta, self)

    def move(self, local: Traced, route: Route, label: str) -> Traced:
        """A move as a module of its own."""
        if route.is_identity:
            return local
        shape = local_shape(route.target.forward, self.mesh, route.shape)
        meta = torch.empty(shape, dtype=local.meta.dtype, device="meta", requires_grad=local.meta.requires_grad)
        self._moves += 1
        return self.module(f"move_{self._moves}", Mover(self.backend, route, label), local, meta)

    def bring(self, locals_: Sequence[Traced], routes: Sequence[Route]) -> list[Traced]:
        """New weights, by a module of its own."""
        return self._several(Bringer(self.backend, routes), locals_, routes, trains=False)

    def together(self, locals_: Sequence[Traced], routes: Sequence[Route], news: Sequence[Traced]) -> list[Traced]:
        """Weights whose gradients go home together, by a module of its own."""
        return self._several(Bundle(self.backend, routes), [*locals_, *news], routes, trains=True)

    def _several(
        self, module: nn.Module, given: Sequence[Traced], routes: Sequence[Route], *, trains: bool
    ) -> list[Traced]:
        """The results of a module of weights, in the layouts to which `routes` lead."""
        self._moves += 1
        name = f"move_{self._moves}"
        self.root.add_module(name, module)
        node = self.graph.call_module(name, tuple(traced.node for traced in given))
        shapes = [local_shape(route.target.forward, self.mesh, route.shape) for route in routes]
        metas = [
            torch.empty(shape, dtype=traced.meta.dtype, device="meta", requires_grad=trains)
            for shape, traced in zip(shapes, given, strict=False)
        ]
        made: list[Traced] = self._results(node, metas)
        return made

    def describe(self, local: Tensor) -> tuple[torch.dtype, bool]:
        """Dtype of a tensor, and whether a gradient comes back to it."""
        return local.dtype, bool(local.requires_grad)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function or method on traced tensors."""
        args, kwargs = self._held(args), self._held(kwargs)
        meta = func(*_map(args, lambda traced: traced.meta), **_map(kwargs, lambda traced: traced.meta))
        nodes, named = _map(args, lambda traced: traced.node), _map(kwargs, lambda traced: traced.node)
        name = getattr(func, "__name__", "")
        if type(func).__name__ in {"method_descriptor", "wrapper_descriptor"} or getattr(Tensor, name, None) is func:
            node = self.graph.call_method(name, tuple(nodes), named)
        else:
            node = self.graph.call_function(func, tuple(nodes), named)
        return self._results(node, meta)

    def _held(self, argument: Any) -> Any:
        """Tensors that are there already become buffers of the root."""
        if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
            return type(argument)(self._held(item) for item in argument)
        if isinstance(argument, dict):
            return {key: self._held(item) for key, item in argument.items()}
        if isinstance(argument, Traced) or not isinstance(argument, Tensor):
            return argument
        name = f"held_{len(list(self.root.buffers(recurse=False)))}"
        self.root.register_buffer(name, argument.to(self.device), persistent=False)
        return self.attribute(name, argument.to("meta"))

    def _results(self, node: fx.Node, meta: Any) -> Any:
        if isinstance(meta, Tensor):
            return Traced.of(node, meta, self)
        if isinstance(meta, (tuple, list)):
            picked = [
                self._results(self.graph.call_function(_pick, (node, place)), item) for place, item in enumerate(meta)
            ]
            return picked if isinstance(meta, list) else tuple(picked)
        return meta


def _pick(results: Any, place: int) -> Any:
    """One of several results."""
    return results[place]


def _map(argument: Any, act: Any) -> Any:
    if isinstance(argument, Traced):
        return act(argument)
    if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
        return type(argument)(_map(item, act) for item in argument)
    if isinstance(argument, dict):
        return {key: _map(item, act) for key, item in argument.items()}
    return argument
