"""Tracing to FX: operations on traced tensors become nodes of a graph.

A traced tensor is a node with the shape and dtype of a local tensor. The sharding rules run on traced tensors as on
local ones; the operations that they call become the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from shardplan.layout.legal import local_shape
from shardplan.runtime.issue_order import Mark, Marks
from shardplan.torch.collectives.order import Label, content_of
from shardplan.torch.collectives.routes import Route
from shardplan.torch.execution import WHOLE, LocalExecution
from shardplan.torch.exported.attribute_paths import AttributePath
from shardplan.torch.exported.modes import PlannedGraph
from shardplan.torch.process_groups import ProcessGroups
from shardplan.torch.propagation.engine import Backend


class Traced(Tensor):  # type: ignore[misc]
    """A node of the graph under construction. `meta`: a tensor of its shape and dtype on the meta device; `content`:
    the sum of the contents of the constants in it."""

    node: fx.Node
    meta: Tensor
    writer: Writer
    content: float

    @staticmethod
    def of(node: fx.Node, meta: Tensor, writer: Writer, content: float = 0.0) -> Traced:
        """A traced tensor at `node`."""
        make = Tensor._make_wrapper_subclass  # noqa: SLF001 - torch documents no other way
        made: Traced = make(Traced, meta.shape, dtype=meta.dtype, device=writer.device)
        made.node, made.meta, made.writer, made.content = node, meta, writer, content
        node.meta["trains"] = meta.requires_grad
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


_METHODS = frozenset(("method_descriptor", "wrapper_descriptor"))
_WRITTEN_IN_PYTHON = "torch._tensor"
"""Where the methods of tensors are that are not written in C (`x ** 2`); a graph finds them by name alone."""


class PlannedMove(nn.Module):  # type: ignore[misc]
    """A node that makes a move of the plan."""

    def __init__(self, backend: Backend, route: Route, label: Label) -> None:
        super().__init__()
        self.backend, self.route, self.label = backend, route, label

    def forward(self, local: Tensor) -> Tensor:
        """The local tensor after the move."""
        return self.backend.move(local, self.route, self.label)

    def extra_repr(self) -> str:
        """What moves."""
        kinds = ", ".join(step.collective.kind for step in self.route.forward) or "nothing"
        back = ", ".join(step.collective.kind for step in self.route.backward) or "nothing"
        return f"{self.label.name or 'value'}: forward {kinds}; backward {back}"


class WeightHold(nn.Module):  # type: ignore[misc]
    """A node at which the prefetched weights are available."""

    def __init__(self, backend: Backend, names: Sequence[str]) -> None:
        super().__init__()
        self.backend, self.names = backend, names

    def forward(self, *locals_: Tensor) -> None:
        """Nothing."""
        self.backend.hold(self.names, locals_)


class IssueMark(nn.Module):  # type: ignore[misc]
    """A node at which weights are issued: in forward for later operators, in backward for earlier ones."""

    def __init__(self, backend: LocalExecution, mark: Mark) -> None:
        super().__init__()
        self.backend, self.mark = backend, mark

    def forward(self, local: Tensor) -> None:
        """Nothing; `local`: the result after which they are issued."""
        self.backend.reached(local, self.mark)


class UpdateGather(nn.Module):  # type: ignore[misc]
    """A node that gathers updated weights from the shards of the optimizer."""

    def __init__(self, backend: Backend, routes: Sequence[Route], label: Label) -> None:
        super().__init__()
        self.backend, self.routes, self.label = backend, routes, label

    def forward(self, *locals_: Tensor) -> tuple[Tensor, ...]:
        """The weights in the layouts that the plan keeps."""
        return tuple(self.backend.gather_updated(locals_, self.routes, self.label))


class GradientWait(nn.Module):  # type: ignore[misc]
    """A node for weights whose gradients are awaited at the end of backward."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend

    def forward(self, *locals_: Tensor) -> tuple[Tensor, ...]:
        """The weights."""
        return tuple(self.backend.await_gradients(locals_))


class GradientBucket(nn.Module):  # type: ignore[misc]
    """A node for the stand-ins of weights, whose gradients are sent as one bucket."""

    def __init__(self, backend: Backend, routes: Sequence[Route], label: Label) -> None:
        super().__init__()
        self.backend, self.routes, self.label = backend, routes, label

    def forward(self, *locals_: Tensor) -> tuple[Tensor, ...]:
        """The stand-ins."""
        return tuple(self.backend.bucket_gradients(locals_, self.routes, self.label))


class ValuedWeight(nn.Module):  # type: ignore[misc]
    """A node for a weight with its value, of which its reader may take a part; its gradient is its stand-in's."""

    def __init__(self, backend: Backend, route: Route | None, label: Label) -> None:
        super().__init__()
        self.backend, self.route, self.label = backend, route, label

    def forward(self, stand_in: Tensor, local: Tensor) -> Tensor:
        """The weight."""
        made: Tensor = self.backend.valued(stand_in, local, self.route, self.label)
        return made


class Writer:
    """Builds a graph over the tensors of `root`. `backend`: executes moves when the graph runs."""

    def __init__(self, root: nn.Module, backend: LocalExecution, groups: ProcessGroups) -> None:
        self.root, self.backend, self.device, self.mesh = root, backend, groups.device, groups.mesh
        self._marks = Marks(backend.issue_order)
        self.graph = fx.Graph()
        self._moves = sum(name.startswith("move_") for name in root._modules)  # noqa: SLF001 - as torch has them

    def placeholder(self, name: str, meta: Tensor) -> Traced:
        """An argument of the program."""
        return Traced.of(self.graph.placeholder(name), meta, self)

    def attribute(self, name: str, meta: Tensor) -> Traced:
        """A tensor that the root module holds."""
        tensor = attrgetter(name)(self.root)
        content = content_of(tensor) if type(tensor) in WHOLE else 0.0
        return Traced.of(self.graph.get_attr(AttributePath(name)), meta, self, content)

    @property
    def tells_lineage(self) -> bool:
        """Moves are told apart when they are written."""
        return True

    @staticmethod
    def content(constant: Any) -> float:
        """What tells a constant from others."""
        return constant.content if isinstance(constant, Traced) else content_of(constant)

    def module(self, name: str, module: nn.Module, local: Traced, meta: Tensor) -> Traced:
        """The result of a module that is added to the root."""
        self.root.add_module(name, module)
        return Traced.of(self.graph.call_module(name, (local.node,)), meta, self)

    def move(self, local: Traced, route: Route, label: Label) -> Traced:
        """A move as a module of its own."""
        if route.is_identity:
            return local
        shape = local_shape(route.target.forward, self.mesh, route.shape)
        meta = torch.empty(shape, dtype=local.meta.dtype, device="meta", requires_grad=local.meta.requires_grad)
        self._moves += 1
        return self.module(f"move_{self._moves}", PlannedMove(self.backend, route, label), local, meta)

    def hold(self, names: Sequence[str], locals_: Sequence[Traced]) -> None:
        """A node at which weights are there."""
        self._call(WeightHold(self.backend, names), locals_)

    def passed(self, local: Traced, operator: int) -> None:
        """A node at the result of an operator, if anything is issued there."""
        mark = self._marks.at(operator)
        if mark is not None and isinstance(local, Traced):
            self._call(IssueMark(self.backend, mark), [local])

    def gather_updated(self, locals_: Sequence[Traced], routes: Sequence[Route], label: Label) -> list[Traced]:
        """Updated weights, by a module of its own."""
        return self._several(UpdateGather(self.backend, routes, label), locals_, routes, trains=False)

    def await_gradients(self, locals_: Sequence[Traced]) -> list[Traced]:
        """Weights whose gradients are waited for at the end of backward, by a module of its own."""
        return self.results_of(GradientWait(self.backend), locals_, [traced.meta for traced in locals_])

    def bucket_gradients(self, locals_: Sequence[Traced], routes: Sequence[Route], label: Label) -> list[Traced]:
        """Stand-ins of weights whose gradients are sent as one bucket, by a module of its own."""
        return self._several(GradientBucket(self.backend, routes, label), locals_, routes, trains=True)

    def valued(self, stand_in: Traced, local: Traced, route: Route | None, label: Label) -> Traced:
        """A weight with its value, by a module of its own."""
        made: Traced = self._results(
            self._call(ValuedWeight(self.backend, route, label), [stand_in, local]), stand_in.meta
        )
        return made

    def results_of(self, module: nn.Module, given: Sequence[Traced], metas: Sequence[Tensor]) -> list[Traced]:
        """The results, like `metas`, of a module of its own."""
        made: list[Traced] = self._results(self._call(module, given), list(metas))
        return made

    def _call(self, module: nn.Module, given: Sequence[Traced]) -> fx.Node:
        self._moves += 1
        name = f"move_{self._moves}"
        self.root.add_module(name, module)
        return self.graph.call_module(name, tuple(traced.node for traced in given))

    def _several(
        self, module: nn.Module, given: Sequence[Traced], routes: Sequence[Route], *, trains: bool
    ) -> list[Traced]:
        """The results of a module of weights, in the layouts to which `routes` lead."""
        shapes = [local_shape(route.target.forward, self.mesh, route.shape) for route in routes]
        metas = [
            torch.empty(shape, dtype=traced.meta.dtype, device="meta", requires_grad=trains)
            for shape, traced in zip(shapes, given, strict=False)
        ]
        return self.results_of(module, given, metas)

    def describe(self, local: Tensor) -> tuple[torch.dtype, bool]:
        """Dtype of a tensor, and whether a gradient comes back to it."""
        return local.dtype, bool(local.requires_grad)

    def finish(self, outputs: Sequence[Any], name: str) -> PlannedGraph:
        """The graph with `outputs`, as a module called `name`."""
        self.graph.output(list(outputs))
        self.graph.lint()
        return PlannedGraph(self.root, self.graph, name)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function or method on traced tensors. Devices among its arguments become this process's device,
        whichever device the program was written on."""
        args, kwargs = _on(self.device, self._constants(args)), _on(self.device, self._constants(kwargs))
        given = _on(_META, _map_traced((args, kwargs), lambda traced: traced.meta))
        meta = func(*given[0], **given[1])
        nodes, named = _map_traced(args, lambda traced: traced.node), _map_traced(kwargs, lambda traced: traced.node)
        name = getattr(func, "__name__", "")
        is_method = type(func).__name__ in _METHODS or getattr(func, "__module__", "") == _WRITTEN_IN_PYTHON
        if is_method or getattr(Tensor, name, None) is func:
            node = self.graph.call_method(name, tuple(nodes), named)
        else:
            node = self.graph.call_function(func, tuple(nodes), named)
        return self._results(node, meta, sum(traced.content for traced in _traced((args, kwargs))))

    def _constants(self, argument: Any) -> Any:
        """Concrete tensors become buffers of the root."""
        if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
            return type(argument)(self._constants(item) for item in argument)
        if isinstance(argument, dict):
            return {key: self._constants(item) for key, item in argument.items()}
        if isinstance(argument, Traced) or not isinstance(argument, Tensor):
            return argument
        name = f"constant_{len(list(self.root.buffers(recurse=False)))}"
        self.root.register_buffer(name, argument.to(self.device), persistent=False)
        return self.attribute(name, argument.to("meta"))

    def _results(self, node: fx.Node, meta: Any, content: float = 0.0) -> Any:
        if isinstance(meta, Tensor):
            return Traced.of(node, meta, self, content)
        if isinstance(meta, (tuple, list)):
            picked = [
                self._results(self.graph.call_function(pick, (node, place)), item, content)
                for place, item in enumerate(meta)
            ]
            return picked if isinstance(meta, list) else tuple(picked)
        return meta


_META = torch.device("meta")


def _on(device: torch.device, argument: Any) -> Any:
    """An argument with `device` for every device in it."""
    if isinstance(argument, torch.device):
        return device
    if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
        return type(argument)(_on(device, item) for item in argument)
    if isinstance(argument, dict):
        return {key: _on(device, item) for key, item in argument.items()}
    return argument


def pick(results: Any, place: int) -> Any:
    """One of several results."""
    return results[place]


def _map_traced(argument: Any, act: Any) -> Any:
    if isinstance(argument, Traced):
        return act(argument)
    if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
        return type(argument)(_map_traced(item, act) for item in argument)
    if isinstance(argument, dict):
        return {key: _map_traced(item, act) for key, item in argument.items()}
    return argument
