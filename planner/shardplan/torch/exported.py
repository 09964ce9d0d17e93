"""A model under a plan as a graph: exported once, every node made local, every move of the plan a node.

The graph that comes back works on local tensors with local sizes; nothing is decided while it runs.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from shardplan.errors import ShardplanError, error
from shardplan.layout.layout import Layout
from shardplan.plan.types import Plan, TensorDecision
from shardplan.runtime.names import Named, Rename
from shardplan.torch.dispatch import apply
from shardplan.torch.engine import Engine
from shardplan.torch.fused import part_name, parts_of
from shardplan.torch.parallelize import (
    Applied,
    attach,
    input_part,
    match_inputs,
    output_tensor,
    prepare,
    run_eagerly,
)
from shardplan.torch.parameters import local_part, parameter_value
from shardplan.torch.strictness import check_record
from shardplan.torch.together import Weights
from shardplan.torch.values import Value
from shardplan.torch.writing import Traced, Writer


def parallelize_exported(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    plan: Plan,
    mesh: DeviceMesh,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    strict: bool = True,
) -> fx.GraphModule:
    """The graph of `model` (by `torch.export`, with the shapes of `example_inputs`) with `plan` written into it.

    The result is called as the model is, returns DTensors in the layouts of the plan's outputs, and holds the model's
    parameters as DTensors under their own names. All that `strict` refuses (see `parallelize`) is refused here, before
    anything runs.

    Raises `ShardplanError` as `parallelize`, and `cannot-export` with what torch says.
    """
    applied = prepare(model, plan, mesh, rename=rename, ignore=ignore, strict=strict)
    program = exported(model, example_inputs, dict(example_kwargs or {}))
    attach(model, applied)
    root = holder(model)
    writer = Writer(root, applied.now, applied.grid)
    engine = applied.engine.with_backend(writer)
    outputs = Rewriting(program, applied, engine, writer).run()
    if strict:
        check_record(engine)
    writer.graph.output(outputs)
    writer.graph.lint()
    made = fx.GraphModule(root, writer.graph, type(model).__name__)
    _finish(made, program, applied)
    return made


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The model as a graph, by `torch.export`. Raises `ShardplanError` (`cannot-export`)."""
    try:
        with _filled(model, args, kwargs) as given:
            return torch.export.export(model, *given, strict=False)
    except Exception as problem:
        text = str(problem).strip().splitlines()
        summary = f"torch.export cannot write this model as a graph: {text[0] if text else type(problem).__name__}"
        hint = "apply a plan without stages with parallelize: it needs no graph"
        raise ShardplanError(error("cannot-export", summary, hint=hint)) from problem


@contextlib.contextmanager
def _filled(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The arguments to export a model with. While that happens, a model on the meta device looks as if it were where
    its arguments are."""
    owned = [
        (store, name, tensor)
        for module in model.modules()
        for store in (module._parameters, module._buffers)  # noqa: SLF001 - put back below
        for name, tensor in store.items()
        if tensor is not None
    ]
    if not any(tensor.is_meta for _, _, tensor in owned):
        yield args, kwargs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = pytree.tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
    device = next((leaf.device for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)), torch.device("cpu"))
    looks = {id(tensor): _alike(tensor, mode, device) for _, _, tensor in owned}
    try:
        for store, name, tensor in owned:
            store[name] = looks[id(tensor)]
        yield given
    finally:
        for store, name, tensor in owned:
            store[name] = tensor


def _alike(tensor: Tensor, mode: FakeTensorMode, device: torch.device) -> Tensor:
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def holder(model: nn.Module, without: Container[str] = ()) -> nn.Module:
    """A module with the parameters and buffers of `model` under their names, but those in `without`."""
    root = nn.Module()
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        if name in without:
            continue
        path, _, attribute = name.rpartition(".")
        owner = root
        for part in path.split(".") if path else ():
            if part not in owner._modules:  # noqa: SLF001 - a tree of empty modules
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(attribute, tensor)
        else:
            owner.register_buffer(attribute, tensor)
    return root


class LocalPart(nn.Module):  # type: ignore[misc]
    """The part of a DTensor that this process holds."""

    def __init__(self, applied: Applied) -> None:
        super().__init__()
        self.applied = applied

    def forward(self, tensor: DTensor) -> Tensor:
        """The local tensor."""
        return local_part(self.applied, tensor)


class InputPart(nn.Module):  # type: ignore[misc]
    """The part of an argument that this process keeps."""

    def __init__(self, applied: Applied, decision: TensorDecision) -> None:
        super().__init__()
        self.applied, self.decision = applied, decision

    def forward(self, tensor: Tensor) -> Tensor:
        """The local tensor, in the layout of the plan's input."""
        return input_part(self.applied, self.decision, tensor).local


class Output(nn.Module):  # type: ignore[misc]
    """A local tensor as the DTensor that the program gives back."""

    def __init__(self, applied: Applied, layout: Layout, shape: tuple[int, ...], *, grad: bool) -> None:
        super().__init__()
        self.applied, self.layout, self.shape, self.grad = applied, layout, shape, grad

    def forward(self, local: Tensor) -> DTensor:
        """The DTensor."""
        return output_tensor(self.applied.engine, local, self.layout, self.shape, grad=self.grad)


class Rewriting:
    """The exported graph, node by node, on values whose local parts are places in the new graph."""

    def __init__(self, program: ExportedProgram, applied: Applied, engine: Engine, writer: Writer) -> None:
        self.program, self.applied, self.engine, self.writer = program, applied, engine, writer
        self.values: dict[fx.Node, Any] = {}
        self.parts = LocalPart(applied)

    def run(self) -> list[fx.Node]:
        """Write everything; the nodes of the outputs."""
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
        return [self.output(argument) for argument in self.results()]

    def wants(self, node: fx.Node) -> bool:
        """Whether a node is to be written."""
        del node
        return True

    def partners(self, names: Sequence[str]) -> Mapping[str, TensorDecision]:
        """The plan's inputs by the arguments of the program."""
        return match_inputs(names, self.applied.inputs)

    def results(self) -> Sequence[Any]:
        """What the program gives back, as nodes of the exported graph or constants."""
        return user_outputs(self.program)

    def _placeholder(self, node: fx.Node, spec: InputSpec, partner: Mapping[str, TensorDecision]) -> Any:
        if spec.kind == InputKind.USER_INPUT:
            return self._argument(node, partner)
        name, named = str(spec.target), self._named(spec)
        if named is not None:
            return self._parameter(named)
        if spec.kind == InputKind.CONSTANT_TENSOR:
            tensor = self.program.constants[name].to(self.applied.grid.device)
            name = f"constant_{name.replace('.', '_')}"
            self.writer.root.register_buffer(name, tensor, persistent=False)
        else:
            tensor = self._held(name)
        meta = torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        return self.writer.attribute(name, meta)

    def _held(self, name: str) -> Any:
        path, _, attribute = name.rpartition(".")
        return getattr(self.writer.root.get_submodule(path), attribute)

    def _weights(self, specs: Mapping[str, InputSpec]) -> Weights:
        """The parameters of the program, as this process holds them."""
        held: dict[str, tuple[Named, Traced]] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and self.wants(node):
                named = self._named(specs[node.name])
                if named is not None and named.decision.name not in held:
                    held[named.decision.name] = named, self.weight(str(specs[node.name].target), named)
        return Weights(self.engine, self.applied.shared, held)

    def _named(self, spec: InputSpec) -> Named | None:
        kinds = {InputKind.PARAMETER, InputKind.BUFFER}
        return self.applied.named.get(str(spec.target)) if spec.kind in kinds else None

    def weight(self, name: str, named: Named) -> Traced:
        """What this process holds of a parameter."""
        parts = parts_of(named.layout, self.applied.grid.mesh)
        if parts is None:
            return self._local(name)
        joined: Traced = parts.join([self._local(part_name(name, number)) for number in range(len(parts.sizes))])
        return joined

    def _local(self, name: str) -> Traced:
        tensor = self._held(name)
        local = tensor.to_local()
        meta = torch.empty_like(local, device="meta").requires_grad_(tensor.requires_grad and self.applied.trains)
        return self.writer.module("local_part", self.parts, self.writer.attribute(name, meta), meta)

    def _parameter(self, named: Named) -> Value:
        _, local = self.weights.held[named.decision.name]
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
        value = input_part(self.applied, decision, whole)
        meta = value.local
        part = self.writer.module(f"input_{node.name}", InputPart(self.applied, decision), place, meta)
        return Value(part, value.layout, value.shape, value.dtype, value.grad, value.key)

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Value) for leaf in leaves):
            if not node.users:
                return None  # checks of metadata
            return apply(self.engine, node.target, args, kwargs)
        return self._constant(node, args, kwargs)

    def _constant(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """What is computed from constants alone: the same on every process."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self.applied.grid.device}
        if any(isinstance(leaf, Traced) for leaf in pytree.tree_leaves((args, kwargs))):
            return self.writer.call(node.target, args, kwargs)
        example = node.meta.get("val")
        if not isinstance(example, Tensor):
            return node.target(*args, **kwargs)
        made = self.writer.graph.call_function(node.target, tuple(args), kwargs)
        return Traced.of(made, torch.empty(example.shape, dtype=example.dtype, device="meta"), self.writer)

    def _given(self, argument: Any) -> Any:
        return fx.map_arg(argument, lambda node: self.values[node])

    def output(self, argument: Any) -> Any:
        """The node of a result in the new graph."""
        value = self.values[argument] if isinstance(argument, fx.Node) else argument
        if isinstance(value, Traced):
            return value.node
        if not isinstance(value, Value):
            return value
        value = self.engine.kept(value)
        module = Output(self.applied, value.layout, value.shape, grad=value.grad)
        name = f"output_{len([m for m in self.writer.root._modules if m.startswith('output_')])}"  # noqa: SLF001
        return self.writer.module(name, module, value.local, value.local.meta).node


def input_specs(program: ExportedProgram) -> dict[str, InputSpec]:
    """What the placeholders of a program are, by name."""
    return {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}


def is_tensor_argument(spec: InputSpec) -> bool:
    """Whether a placeholder is a tensor that the program is called with."""
    return spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)


def argument_names(program: ExportedProgram) -> list[str]:
    """The tensors that a program is called with, in order."""
    return [name for name, spec in input_specs(program).items() if is_tensor_argument(spec)]


def user_outputs(program: ExportedProgram) -> list[Any]:
    """What a program gives back, as nodes of its graph or constants."""
    node = next(node for node in program.graph.nodes if node.op == "output")
    kinds = program.graph_signature.output_specs
    return [a for a, spec in zip(node.args[0], kinds, strict=True) if spec.kind.name == "USER_OUTPUT"]


def _finish(made: fx.GraphModule, program: ExportedProgram, applied: Applied) -> None:
    """Call it as the model is called, and let autograd bring again what the plan brings again."""
    spec_out = program.call_spec.out_spec

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del module
        applied.start_saving()
        return (*args, *kwargs.values()), {}

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        applied.stop_saving()
        return None if output is None else pytree.tree_unflatten(output, spec_out)

    run_eagerly(made, enter, leave)
    object.__setattr__(made, "_shardplan", applied)
