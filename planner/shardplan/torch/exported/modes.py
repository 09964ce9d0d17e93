"""Training and evaluation of a model that is a graph. A graph is of the mode in which the model was exported, so there
is one for each mode; the others are written when they are first asked for, from a copy of the model without weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, fx, nn
from torch.fx.graph_module import _copy_attr
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.torch.applied_plan import AppliedPlan, remember, run_eagerly, stay_uncompiled
from shardplan.torch.exported.program import tensor_tree

Mode = tuple[bool, ...]
"""Of every module of a model, whether it trains."""


class Modes(Protocol):
    """How a graph is called, and comes into another mode."""

    def begin(self, graph: PlannedGraph, *, training: bool) -> None:
        """`graph` is from here on that of `model.train(training)`."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The placeholders of the graph, of the arguments of a forward pass, which begins."""

    def results(self, outputs: Any) -> Any:
        """What the model returns, of the outputs of the graph."""


class PlannedGraph(fx.GraphModule):  # type: ignore[misc]
    """A model as a graph with a plan written into it. `modes`: how it is called, and what writes it in other modes than
    its first."""

    modes: Modes | None = None

    def train(self, mode: bool = True) -> PlannedGraph:
        """As of any module: the graph of the other mode takes the place of this one.

        Raises `ShardplanError` as `parallelize_exported`, and `fixed-mode`.
        """
        if self.modes is not None:
            self.modes.begin(self, training=mode)
        super().train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedGraph:
        """A graph under the same plan, with its own weights, mode and hooks. Torch's own copies have neither modes nor
        hooks, nor tensors that the graph does not read."""
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        type(made).__name__ = type(self).__name__
        made.graph = made.graph  # it is to know its module, and to be compiled for it
        return made

    def __reduce__(self) -> NoReturn:
        """Raises `ShardplanError` (`pickled-graph`)."""
        summary = (
            "a graph under a plan cannot be written as it is (torch.save, pickle): it sends between these processes"
        )
        hint = "save its state: shardplan.torch.save_checkpoint, save or full_state_dict, or its state_dict()"
        raise ShardplanError(error("pickled-graph", summary, hint=hint))


def run_graph_under(graph: PlannedGraph, applied: AppliedPlan) -> None:
    """Sets the hooks of a graph that a plan has been written into, which ask its `modes`; autograd saves what the plan
    saves. A copy of the graph has the same hooks, and modes of its own."""

    def enter(module: PlannedGraph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _modes(module).arguments(args, kwargs)
        applied.begin_forward(module)
        return given, {}

    def leave(module: PlannedGraph, args: Any, output: Any) -> Any:
        del args
        applied.end_forward()
        return None if output is None else _modes(module).results(output)

    run_eagerly(graph, enter, leave)
    remember(graph, applied)


def _modes(graph: PlannedGraph) -> Modes:
    assert graph.modes is not None
    return graph.modes


@dataclass(frozen=True)
class UnweightedModel:
    """A copy of a model with its weights on the meta device, and what it was exported with. `reason`: why there is no
    such copy, where `model` is None."""

    model: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str = ""

    @staticmethod
    def of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UnweightedModel:
        """That of a model which no plan has been applied to."""
        tensors = {id(tensor): tensor for _, tensor in (*model.named_parameters(), *model.named_buffers())}
        without = {key: _unweighted(tensor) for key, tensor in tensors.items()}
        args, kwargs = pytree.tree_map_only(Tensor, _unweighted, (tuple(args), kwargs))
        try:
            return UnweightedModel(copy.deepcopy(model, without), args, kwargs)
        except Exception as problem:  # noqa: BLE001 - a model may hold anything
            return UnweightedModel(None, args, kwargs, f"{type(problem).__name__}: {problem}".splitlines()[0])

    @property
    def mode(self) -> Mode:
        """That in which it is now."""
        return () if self.model is None else tuple(module.training for module in self.model.modules())

    def in_mode(self, *, training: bool, was: bool) -> nn.Module:
        """The model after `train(training)`; `was`: whether it trained before.

        Raises `ShardplanError` (`fixed-mode`) if there is no copy, and it is to be in another mode.
        """
        if self.model is not None:
            return self.model.train(training)
        if training == was:
            return nn.Module()
        wanted, found = ("training", "evaluation") if training else ("evaluation", "training")
        summary = f"the graph was exported in {found} mode, and the model cannot be copied for one in {wanted} mode"
        hint = "apply a plan without stages with parallelize, which runs the model itself"
        raise ShardplanError(error("fixed-mode", summary, detail=f"copy.deepcopy: {self.reason}", hint=hint))


def _unweighted(tensor: Tensor) -> Tensor:
    made = torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
    return nn.Parameter(made.detach(), tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def root_for(graph: fx.GraphModule, rest: nn.Module) -> nn.Module:
    """What another graph over the tensors of `graph` is written on: these, those of `rest` that it does not read, and
    its modules, whose names are taken."""
    own, others = _tensors(graph), _tensors(rest)
    newer = {id(others[name]): tensor for name, tensor in own.items() if name in others}
    root = tensor_tree({name: newer.get(id(tensor), tensor) for name, tensor in others.items()} | own)
    for name, module in graph.named_children():
        if name not in root._modules:  # noqa: SLF001 - as torch has them
            root.add_module(name, module)
    return root


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor
        for found in (module.named_parameters, module.named_buffers)
        for name, tensor in found(remove_duplicate=False)
    }


def exchange(graph: fx.GraphModule, made: fx.Graph, holder: nn.Module) -> None:
    """`graph` runs `made` from here on; `holder` has what that reads."""
    for node in made.nodes:
        if node.op in {"get_attr", "call_module"}:
            _copy_attr(holder, graph, node.target)
    graph.graph = made
    graph.__dict__.pop("forward", None)
    stay_uncompiled(graph)
