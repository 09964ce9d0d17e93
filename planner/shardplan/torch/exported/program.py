"""Exported programs: a module as a graph by `torch.export`, its arguments, results and parameters."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import sys
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import predispatch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.torch.eager.composites import is_composite
from shardplan.torch.exported.attribute_paths import writing_keywords
from shardplan.torch.exported.grad_modes import inline_grad_modes, refuse_changed_weights
from shardplan.torch.exported.numbers import numbers_as_tensors
from shardplan.torch.exported.own_functions import marking_own_functions, remember_calls
from shardplan.torch.exported.reentrant import refuse_pieces_of_hooked_weights
from shardplan.torch.exported.set_buffers import writing_set_buffers
from shardplan.torch.exported.untraceable import having, refusing_untraceable, untraceable
from shardplan.torch.plain_forms import in_plain_forms
from shardplan.torch.planning.example_runs import has_values, with_own_numbers
from shardplan.torch.planning.refusals import cause_of, is_of_data
from shardplan.torch.rules.dispatch import has_rule
from shardplan.torch.rules.function_names import in_place
from shardplan.torch.rules.views import is_view
from shardplan.torch.strides import in_order


def export_program(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The model as a graph, by `torch.export`. Raises `ShardplanError` (`cannot-export`)."""
    _refuse_names_of_graphs(model)
    try:
        with (
            marking_own_functions() as calls,
            refusing_untraceable(),
            without_looking_into_masks(),
            in_plain_forms(),
            with_fake_parameters(model, args, kwargs) as given,
            writing_set_buffers(model),
        ):
            program = _exported(model, *given)
    except ShardplanError:
        raise
    except Exception as problem:
        raise ShardplanError(_refusal(problem)) from problem
    if any(spec.kind == InputKind.CUSTOM_OBJ for spec in program.graph_signature.input_specs):
        summary = "a graph cannot hold all of this model: it has objects that are no tensors (torch.Generator)"
        hint = "apply a plan without stages with parallelize, or draw by torch.manual_seed alone"
        raise ShardplanError(error("cannot-export", summary, hint=hint))
    for node in program.graph.nodes:
        if not all(isinstance(size, int) for size in getattr(node.meta.get("val"), "shape", ())):
            summary = f"'{node.name}' has a shape that depends on data, and a graph has fixed ones"
            hint = "apply a plan without stages with parallelize, or write it with masks: torch.where, masked_fill"
            raise ShardplanError(error("cannot-export", summary, hint=hint))
    refuse_pieces_of_hooked_weights(program, model)
    inline_grad_modes(program)
    refuse_changed_weights(program)
    program = _with_rules(_in_known_operators(program))
    _refuse_control_flow(program)
    _read_in_order(program)
    numbers_as_tensors(program)
    remember_calls(program.graph_module, calls)
    return program


def _refuse_names_of_graphs(model: nn.Module) -> None:
    """Refuses tensors and modules whose names torch's graphs have for something else."""
    names = {name.split(".")[0] for name, _ in (*model.named_parameters(), *model.named_buffers())}
    if taken := sorted(name for name in names if name in _OF_GRAPHS or hasattr(fx.GraphModule, name)):
        summary = f"a graph cannot hold '{taken[0]}' of this model: a graph of torch has an attribute of that name"
        hint = "call it otherwise in the model, or apply a plan without stages with parallelize: it needs no graph"
        raise ShardplanError(error("cannot-export", summary, hint=hint))


_OF_GRAPHS = frozenset(("meta", "shape_env"))
"""Attributes that graphs have beside those of their class."""


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """By `torch.export`; branches on numbers that are the program's own are taken as in a run of it."""

    def export() -> ExportedProgram:
        with _quiet():
            return torch.export.export(model, args, kwargs, strict=False)

    try:
        return export()
    except Exception as problem:
        if not is_of_data(problem) or not has_values(model, args, kwargs):
            raise
        with contextlib.suppress(Exception):  # the first problem says more of the program
            return with_own_numbers(export, model, args, kwargs)
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context: torch neither logs nor prints the graph of an export that fails, which is refused in words or goes
    another way; what the program itself prints comes through where it succeeds."""
    logger, said = logging.getLogger("torch.fx.experimental.symbolic_shapes"), io.StringIO()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(said):
            yield
        sys.stderr.write(said.getvalue())
    finally:
        logger.setLevel(level)


def _refusal(problem: Exception) -> Diagnostic:
    said = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    hint = "apply a plan without stages with parallelize: it needs no graph"
    if "not a known type" in said or "pytree" in said:
        hint = f"return tensors, in tuples or dicts (Hugging Face: use_cache=False), or {hint}"
    found = cause_of(said)
    if found is None:
        return error("cannot-export", f"torch.export cannot write this model as a graph: {said}", hint=hint)
    why, helps = found
    summary = f"torch.export cannot write this model as a graph: {why}"
    return error("cannot-export", summary, detail=said, hint=f"{hint}; or {helps}")


def _changes_view(node: fx.Node) -> bool:
    """Whether an operator changes a view, or what views of it are read of; or tensors of a list, or one that it is
    given for its result (`out=`)."""
    written = arguments_written(node) if node.op == "call_function" else []
    if isinstance(node.target, OpOverload) and any(node.kwargs.get(name) is not None for name in _outputs(node.target)):
        return True
    if not written:
        return False
    later = set(itertools.takewhile(lambda each: each.op != "output", _after(node)))
    for argument in written:
        if not isinstance(argument, fx.Node):
            return isinstance(argument, (tuple, list))
        views = [each for each in argument.users if each is not node and each not in later and is_view(each.target, ())]
        if is_view(argument.target, ()) or any(set(view.users) & later for view in views):
            return True
    return False


def arguments_written(node: fx.Node) -> list[Any]:
    """The arguments into which an operator writes, as its schema says; that of a batch norm does not of its sums."""
    if not isinstance(node.target, OpOverload):
        return list(node.args[:1]) if in_place(node.target) else []
    schema = zip(node.target._schema.arguments, node.args, strict=False)  # noqa: SLF001 - there is no public name
    return [
        given
        for told, given in schema
        if told.name in _SUMS or (told.alias_info is not None and told.alias_info.is_write)
    ]


def _outputs(operator: OpOverload) -> Iterator[str]:
    """Names of the tensors that an operator is given for its results."""
    return (each.name for each in operator._schema.arguments if each.is_out)  # noqa: SLF001 - as above


_SUMS = frozenset(("running_mean", "running_var"))


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while node.op != "output":
        node = node.next
        yield node


def _in_known_operators(program: ExportedProgram) -> ExportedProgram:
    """A program that changes views in place, or has transforms of `torch.func` in it (`vmap`), as one that does
    neither, nor anything else in place: what buffers are to be is among its results."""
    if any(_is_of_transform(node) or _changes_view(node) for node in program.graph.nodes):
        with writing_keywords():
            return program.run_decompositions({})
    return program


def _with_rules(program: ExportedProgram) -> ExportedProgram:
    """A program in which operators without a rule that torch takes apart (`istft`) are taken apart."""
    known = torch.export.default_decompositions()
    while True:
        unknown = {node.target for node in program.graph.nodes if _is_unknown_composite(node) and node.target in known}
        if not unknown:
            return program
        with writing_keywords():
            program = program.run_decompositions({each: known[each] for each in unknown})


def _is_unknown_composite(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and not has_rule(node.target) and is_composite(node.target)


def _refuse_control_flow(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        if isinstance(node.target, HigherOrderOperator) and node.target.name() in _CONTROL_FLOW:
            raise untraceable(f"it branches, loops or attends by a function of its own (torch's {node.target.name()})")


_CONTROL_FLOW = frozenset(("cond", "while_loop", "scan", "map_impl", "associative_scan", "flex_attention"))


def _read_in_order(program: ExportedProgram) -> None:
    """Writes strides, which the program says of its own memory, as those of the contiguous tensors of a process."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.as_strided.default:
            source, size, stride, *offset = node.args
            memory = source.meta["val"]
            if not memory.is_contiguous() or memory.storage_offset():
                node.args = (source, size, *in_order(memory, size, stride, *offset))


def _is_of_transform(node: fx.Node) -> bool:
    module = getattr(node.target, "__module__", "")
    return node.op == "call_function" and bool(module == predispatch.__name__)


@contextlib.contextmanager
def without_looking_into_masks() -> Iterator[None]:
    """Context: torch's encoder and decoder do not check whether a mask is causal (to choose a kernel); a graph has no
    values to check."""

    def told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        del mask, size
        return bool(is_causal)

    with having(transformer, "_detect_is_causal_mask", told):
        yield


@contextlib.contextmanager
def with_fake_parameters(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The arguments to export a model with, every tensor once: torch treats a tensor that is given twice as one
    argument. Within the context, a model on the meta device has fake parameters on the device of its arguments, and so
    have arguments that are on the meta device themselves."""
    args, kwargs = _apart((args, kwargs))
    owned = [
        (store, name, tensor)
        for module in model.modules()
        for store in (module._parameters, module._buffers)  # noqa: SLF001 - put back below
        for name, tensor in store.items()
        if tensor is not None
    ]
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not any(tensor.is_meta for tensor in (*tensors, *(tensor for _, _, tensor in owned))):
        yield args, kwargs
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    device = next((tensor.device for tensor in tensors if not tensor.is_meta), torch.device("cpu"))
    given = pytree.tree_map_only(Tensor, lambda tensor: _fake_like(tensor, mode, device), (args, kwargs))
    looks = {id(tensor): _fake_like(tensor, mode, device) for _, _, tensor in owned}
    try:
        for store, name, tensor in owned:
            store[name] = looks[id(tensor)]
        yield given
    finally:
        for store, name, tensor in owned:
            store[name] = tensor


def _apart(given: Any) -> Any:
    """The same structure, in which no two tensors are one."""
    seen: set[int] = set()

    def own(tensor: Tensor) -> Tensor:
        first = id(tensor) not in seen
        seen.add(id(tensor))
        return tensor if first else tensor.clone()

    return pytree.tree_map_only(Tensor, own, given)


def _fake_like(tensor: Tensor, mode: FakeTensorMode, device: torch.device) -> Tensor:
    if not tensor.is_meta:
        return mode.from_tensor(tensor)
    with mode:
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def parameter_tree(model: nn.Module, without: Container[str] = ()) -> nn.Module:
    """A module with the parameters and buffers of `model` under their names, except those in `without`."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return tensor_tree({name: tensor for name, tensor in tensors if name not in without})


def tensor_tree(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module that has these tensors, by their names, and nothing else."""
    root = nn.Module()
    for name, tensor in tensors.items():
        _hold(root, name, tensor)
    return root


def hold_all(graph: nn.Module, model: nn.Module) -> None:
    """Makes the state of a graph that of `model`: torch's graphs hold what they read, under one name each, and all of
    it as if checkpoints had it."""
    state = model.state_dict(keep_vars=True)
    own = {name for name, _ in (*graph.named_parameters(), *graph.named_buffers())}
    for name, tensor in state.items():
        if name not in own and isinstance(tensor, Tensor):
            _hold(graph, name, tensor)
    for name, _ in graph.named_buffers(remove_duplicate=False):
        if name not in state:
            path, _, attribute = name.rpartition(".")
            graph.get_submodule(path)._non_persistent_buffers_set.add(attribute)  # noqa: SLF001 - there is no public way


def _hold(root: nn.Module, name: str, tensor: Tensor) -> None:
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


def input_specs(program: ExportedProgram) -> dict[str, InputSpec]:
    """What the placeholders of a program are, by name."""
    return {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}


def is_tensor_argument(spec: InputSpec) -> bool:
    """Whether a placeholder is a tensor that the program is called with."""
    return spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)


def argument_names(program: ExportedProgram) -> list[str]:
    """The tensors that a program is called with, in order."""
    return [name for name, spec in input_specs(program).items() if is_tensor_argument(spec)]


def shapes_of_arguments(program: ExportedProgram) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that a program is called with, in order."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {name: tuple(values[name].shape) for name in argument_names(program)}


def changed_buffers(program: ExportedProgram) -> dict[str, fx.Node]:
    """Nodes of what buffers are to be, by their names, of a program that changes nothing in place."""
    node = next(node for node in program.graph.nodes if node.op == "output")
    specs = program.graph_signature.output_specs
    kind = OutputKind.BUFFER_MUTATION
    return {str(spec.target): each for each, spec in zip(node.args[0], specs, strict=True) if spec.kind == kind}


def user_outputs(program: ExportedProgram) -> list[Any]:
    """What a program gives back, as nodes of its graph or constants."""
    node = next(node for node in program.graph.nodes if node.op == "output")
    kinds = program.graph_signature.output_specs
    return [a for a, spec in zip(node.args[0], kinds, strict=True) if spec.kind.name == "USER_OUTPUT"]
