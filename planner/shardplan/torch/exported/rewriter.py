"""Rewriting of an exported graph to local tensors: every node by its sharding rule, with the moves of the plan."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.tensor import DTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.plan.types import TensorDecision
from shardplan.runtime.names import Named
from shardplan.torch.applied_plan import AppliedPlan
from shardplan.torch.arguments import input_value, match_inputs, output_tensor, refuse_shape
from shardplan.torch.exported.own_backward import with_own_backward
from shardplan.torch.exported.own_functions import call_of, is_marker
from shardplan.torch.exported.program import argument_names, changed_buffers, input_specs, user_outputs
from shardplan.torch.exported.writer import Traced, Writer
from shardplan.torch.gradients.bucketing import BucketedWeights
from shardplan.torch.parameters.distribution import local_shard, parameter_value
from shardplan.torch.parameters.fused import part_names, parts_of
from shardplan.torch.propagation.engine import Engine
from shardplan.torch.propagation.values import Value
from shardplan.torch.rules.dispatch import apply
from shardplan.torch.rules.elementwise import as_value
from shardplan.torch.rules.function_names import in_place, out_of_place


def write_back(stored: Tensor, local: Tensor) -> Tensor:
    """Sets the stored part of a buffer to `local`."""
    return stored.detach().copy_(local.detach())


class LocalShard(nn.Module):  # type: ignore[misc]
    """A node that takes the local shard of a DTensor."""

    def __init__(self, applied: AppliedPlan) -> None:
        super().__init__()
        self.applied = applied

    def forward(self, tensor: DTensor) -> Tensor:
        """The local tensor."""
        return local_shard(tensor, trains=self.applied.trains)


class LocalInput(nn.Module):  # type: ignore[misc]
    """A node that takes the local part of an argument."""

    def __init__(self, applied: AppliedPlan, decision: TensorDecision) -> None:
        super().__init__()
        self.applied, self.decision = applied, decision

    def forward(self, tensor: Tensor) -> Tensor:
        """The local tensor, in the layout of the plan's input. A graph has fixed shapes, and gives inputs no gradient.

        Raises `ShardplanError`: `wrong-shape`, `input-gradient`.
        """
        if tensor.requires_grad and torch.is_grad_enabled():
            summary = f"input '{self.decision.name}' is to have a gradient, which this graph does not bring together"
            hint = "detach it, or apply the plan with parallelize, which gives inputs their gradients"
            raise ShardplanError(error("input-gradient", summary, hint=hint))
        refuse_shape(self.applied, self.decision, tuple(tensor.shape), is_graph=True)
        return input_value(self.applied, self.decision, tensor).local


class OutputTensor(nn.Module):  # type: ignore[misc]
    """A node that makes a local result the DTensor that the program returns."""

    def __init__(self, applied: AppliedPlan, layout: Layout, shape: tuple[int, ...], *, grad: bool) -> None:
        super().__init__()
        self.applied, self.layout, self.shape, self.grad = applied, layout, shape, grad

    def forward(self, local: Tensor) -> DTensor:
        """The DTensor."""
        return output_tensor(self.applied.engine, local, self.layout, self.shape, grad=self.grad)


def _is_returned(node: fx.Node) -> bool:
    """Whether results of the program depend on a node."""
    seen, ahead = {node}, [node]
    while ahead:
        users = set(ahead.pop().users) - seen
        seen |= users
        ahead += users
    return any(each.op == "output" for each in seen)


class GraphRewriter:
    """Runs the exported graph node by node on values whose local parts are nodes of the new graph."""

    def __init__(self, program: ExportedProgram, applied: AppliedPlan, engine: Engine, writer: Writer) -> None:
        self.program, self.applied, self.engine, self.writer = program, applied, engine, writer
        self.values: dict[fx.Node, Any] = {}
        self.shards = LocalShard(applied)

    def run(self) -> list[fx.Node]:
        """Writes the whole graph; returns the nodes of the outputs."""
        specs = input_specs(self.program)
        partner = self.partners(argument_names(self.program))
        self.weights = self._weights(specs)
        for node in self.program.graph.nodes:
            if not self.wants(node):
                continue
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node, specs[node.name], partner)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op != "output":
                self.values[node] = None
        outputs = [self.output(argument) for argument in self.results()]
        self._write_buffers(specs)
        return outputs

    def _write_buffers(self, specs: Mapping[str, InputSpec]) -> None:
        """Nodes that write back the buffers that the program has changed."""
        changed = changed_buffers(self.program)
        for node in self.program.graph.nodes:
            spec = specs.get(node.name) if node.op == "placeholder" else None
            if spec is None or spec.kind != InputKind.BUFFER or node not in self.values:
                continue
            own, made = self.values[node], changed.get(str(spec.target))
            value = self.values.get(made, own) if made is not None else own
            named = self._named(spec)
            if named is None and value is not own:
                self.engine.write(own, as_value(self.engine, value))
            elif named is not None and isinstance(value, Value):
                self._write_buffer(str(spec.target), named, value)

    def _write_buffer(self, name: str, named: Named, value: Value) -> None:
        _, stored = self.weights.shards[named.decision.name]
        if value.local is not stored or value.layout.forward != named.layout.forward:
            local = self.engine.convert(value, named.layout, inner=True).local
            for held, piece in self._pieces(name, named, stored, local):
                self.writer.call(write_back, (held, piece), {})

    def _pieces(self, name: str, named: Named, stored: Traced, local: Any) -> list[tuple[Traced, Any]]:
        """The tensors in which a buffer is stored, with the new value of each."""
        parts = parts_of(named.layout, self.applied.groups.mesh)
        if parts is None:
            return [(stored, local)]
        return list(zip(map(self._local, part_names(name, parts)), parts.split_local(local), strict=True))

    def wants(self, node: fx.Node) -> bool:
        """Whether a node is to be written."""
        del node
        return True

    def partners(self, names: Sequence[str]) -> Mapping[str, TensorDecision]:
        """The plan's inputs by the arguments of the program."""
        return match_inputs(names, self.applied.inputs)

    def results(self) -> Sequence[Any]:
        """The results of the program, as nodes of the exported graph or constants."""
        return user_outputs(self.program)

    def _placeholder(self, node: fx.Node, spec: InputSpec, partner: Mapping[str, TensorDecision]) -> Any:
        if spec.kind == InputKind.USER_INPUT:
            return self._argument(node, partner)
        name, named = str(spec.target), self._named(spec)
        if named is not None:
            return named
        if spec.kind == InputKind.CONSTANT_TENSOR:
            tensor = self.program.constants[name].to(self.applied.groups.device)
            name = f"constant_{name.replace('.', '_')}"
            self.writer.root.register_buffer(name, tensor, persistent=False)
        else:
            tensor = self._tensor(name)
            if name in self.applied.left_alone and _is_returned(node):
                self.engine.record.unnamed.add(name)
        meta = torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        return self.writer.attribute(name, meta)

    def _tensor(self, name: str) -> Any:
        path, _, attribute = name.rpartition(".")
        return getattr(self.writer.root.get_submodule(path), attribute)

    def _weights(self, specs: Mapping[str, InputSpec]) -> BucketedWeights:
        """The parameters of the program with what this process holds of them."""
        shards: dict[str, tuple[Named, Traced]] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and self.wants(node):
                named = self._named(specs[node.name])
                if named is not None and named.decision.name not in shards:
                    shards[named.decision.name] = named, self.weight(str(specs[node.name].target), named)
        return BucketedWeights(self.engine, self.applied.buckets, shards)

    def _named(self, spec: InputSpec) -> Named | None:
        kinds = {InputKind.PARAMETER, InputKind.BUFFER}
        return self.applied.named.get(str(spec.target)) if spec.kind in kinds else None

    def weight(self, name: str, named: Named) -> Traced:
        """What this process holds of a parameter."""
        parts = parts_of(named.layout, self.applied.groups.mesh)
        if parts is None:
            return self._local(name)
        joined: Traced = parts.join([*map(self._local, part_names(name, parts))])
        return joined

    def _local(self, name: str) -> Traced:
        tensor = self._tensor(name)
        local = tensor.to_local()
        meta = torch.empty_like(local, device="meta").requires_grad_(tensor.requires_grad and self.applied.trains)
        return self.writer.module("local_part", self.shards, self.writer.attribute(name, meta), meta)

    def _parameter(self, named: Named) -> Value:
        _, local = self.weights.shards[named.decision.name]
        return parameter_value(self.engine, named, local, self.weights)

    def _argument(self, node: fx.Node, partner: Mapping[str, TensorDecision]) -> Any:
        example = node.meta.get("val")
        if not isinstance(example, Tensor):
            self.writer.placeholder(node.name, torch.empty(0, device="meta"))
            return example
        whole = torch.empty(example.shape, dtype=example.dtype, device="meta")
        place = self.writer.placeholder(node.name, whole)
        if node.name not in partner:
            return self.engine.constant(place, example.shape)
        decision = partner[node.name]
        value = input_value(self.applied, decision, whole)
        meta = value.local
        part = self.writer.module(f"input_{node.name}", LocalInput(self.applied, decision), place, meta)
        return replace(value, local=part)

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if is_marker(node):
            return with_own_backward(call_of(node), args[:3], self.applied, self.engine, self.writer)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if not node.users and not in_place(node.target):
            return None  # checks of metadata
        return self._operation(node, args, kwargs)

    def _operation(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operator of torch, of values or of constants."""
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Value) for leaf in leaves):
            changes = in_place(node.target)
            target = out_of_place(node.target) if isinstance(args[0], Value) else node.target
            made = apply(self.engine, target, args, kwargs)
            if changes and isinstance(made, Value):
                self._change(args[0], made)
                return args[0]
            return made
        return self._constant(node, args, kwargs)

    def _change(self, target: Any, made: Value) -> None:
        """The operand of an in-place operator, a value or a constant, is `made` from here on."""
        if not isinstance(target, Value):
            if made.local is not target:
                self.engine.write(target, made)
            return
        for name in ("local", "layout", "dtype", "grad", "key", "forms", "reads", "lineage"):
            setattr(target, name, getattr(made, name))

    def _constant(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """What is computed from constants alone: the same on every process."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self.applied.groups.device}
        if any(isinstance(leaf, Traced) for leaf in pytree.tree_leaves((args, kwargs))):
            return self.writer.call(node.target, args, kwargs)
        example = node.meta.get("val")
        if not isinstance(example, Tensor):
            return node.target(*args, **kwargs)
        made = self.writer.graph.call_function(node.target, tuple(args), kwargs)
        return Traced.of(made, torch.empty(example.shape, dtype=example.dtype, device="meta"), self.writer)

    def _given(self, argument: Any) -> Any:
        return fx.map_arg(argument, self.value_at)

    def value_at(self, node: fx.Node) -> Any:
        """The value of a node. A parameter is written where it is first read, so that autograd runs the backward that
        sends its gradient before the backward of earlier nodes."""
        if isinstance(self.values[node], Named):
            self.values[node] = self._parameter(self.values[node])
        return self.values[node]

    def output(self, argument: Any) -> Any:
        """The node of a result in the new graph."""
        value = self.value_at(argument) if isinstance(argument, fx.Node) else argument
        if isinstance(value, Traced):
            return value.node
        if not isinstance(value, Value):
            return value
        value = self.engine.as_output(value)
        module = OutputTensor(self.applied, value.layout, value.shape, grad=value.grad)
        name = f"output_{len([m for m in self.writer.root._modules if m.startswith('output_')])}"  # noqa: SLF001
        return self.writer.module(name, module, value.local, value.local.meta).node
