"""From a module to an ONNX graph for planning: with its own parameter names and tensors, without weights.

`torch.onnx.export` writes it, without its optimizer, which makes weights of its own. What a module returns beside
tensors (caches of keys and values) is left out.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardplan.errors import ShardplanError, error, warn
from shardplan.torch.argument_paths import named_tensors, tensors_in
from shardplan.torch.exported.program import with_fake_parameters, without_looking_into_masks
from shardplan.torch.plain_forms import in_plain_forms
from shardplan.torch.planning.batch_statistics import by_batch, training_norms
from shardplan.torch.planning.below_autograd import below_autograd, ending_transforms
from shardplan.torch.planning.complex_pairs import has_complex_numbers, in_pairs
from shardplan.torch.planning.example_runs import has_values, run_example
from shardplan.torch.planning.example_values import ExampleValues
from shardplan.torch.planning.largest_shapes import LargestShapes
from shardplan.torch.planning.onnx_forms import onnx_forms
from shardplan.torch.planning.program_caches import kept_out_of_caches
from shardplan.torch.planning.refusals import (
    is_of_a_check,
    is_of_complex_numbers,
    is_of_data,
    is_of_tracing,
    refusal,
    said_of,
)
from shardplan.torch.planning.reserved_names import renamed, reserved_names, restore
from shardplan.torch.planning.stand_ins import stand_in, unknown_operator
from shardplan.torch.with_loss import INPUT, WithLoss, argument_names

_WEIGHTS = "weights"
"""The file in which the weights would be; it is never opened."""


def weights_of(model: nn.Module) -> dict[str, bool]:
    """The float tensors of a module, and whether they are trained."""
    inner = model.model if isinstance(model, WithLoss) else model
    owned = _owned(inner)
    return {
        name: isinstance(tensor, nn.Parameter) and tensor.requires_grad
        for name, tensor in owned.items()
        if tensor.is_floating_point()
    }


def onnx_bytes(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    by_example: bool = False,
    trains: bool = False,
) -> bytes:
    """The graph of `model(*args, **kwargs)`, a forward pass as in evaluation, so that dropout is left out of it.
    `by_example`: what the program reads from values is as in these arguments, in place of the largest shapes.
    `trains`: batch norms in training take the statistics of their batch.

    Nothing of the model is changed and no weight copied; it may be on the meta device. Raises `ShardplanError`
    (`cannot-export`, `missing-package`).
    """
    _check_packages()
    names = _input_names(model, args, kwargs)
    inner, shapes = model.model if isinstance(model, WithLoss) else model, LargestShapes()
    norms = training_norms(inner) if trains else frozenset[str]()
    try:
        with (
            _quiet(),
            _evaluating(inner),
            sdpa_kernel(SDPBackend.MATH),  # which torch writes into the graph; others lay out results in another way
            _returning_tensors(inner, model, shapes),
            with_fake_parameters(inner, args, dict(kwargs)) as (given, named),
        ):
            export = _as_in_example if by_example else _exported
            program = export(inner, given, named, names, shapes)
            by_batch(program, norms)
            _strip(program, inner)
            data: bytes = program.model_proto.SerializeToString()
    except ShardplanError:
        raise
    except Exception as problem:
        raise ShardplanError(refusal(problem)) from problem
    if shapes.told or shapes.guessed:
        warn(_AS_IN_EXAMPLE if shapes.told else _GUESSED)
    return data


_AS_IN_EXAMPLE = "the model has branches or sizes that depend on data: it is planned as with these example inputs"
_GUESSED = "the model has branches that depend on data: it is planned as if their conditions did not hold"


def _exported(model: nn.Module, args: Any, kwargs: Any, names: list[str], shapes: LargestShapes) -> Any:
    """The export with the largest shapes. Where that fails, numbers and conditions are those of the example, or
    guesses; where that fails too, so is what masks pick."""
    try:
        return _in_real_numbers(model, args, kwargs, names)
    except Exception as problem:
        is_real, ways = has_values(model, args, kwargs), list[Callable[..., Any]]()
        if is_of_data(problem):
            numbers_as_in_example = functools.partial(_as_in_example, also_masks=False)
            ways += [numbers_as_in_example, _guessed] if is_real else [_guessed]
        if (ways or shapes.enlarged) and is_real:
            ways.append(_as_in_example)
        for way in ways:
            with contextlib.suppress(Exception):  # the first problem says more of the program
                return way(model, args, kwargs, names, shapes)
        raise


def _as_in_example(
    model: nn.Module, args: Any, kwargs: Any, names: list[str], shapes: LargestShapes, *, also_masks: bool = True
) -> Any:
    """The export with what the program reads from values of the example, with which it is run once."""
    shapes.example, shapes.guesses, shapes.guessed = ExampleValues(also_masks=also_masks), False, 0
    try:
        run_example(model, args, kwargs)
        shapes.example.is_example = False
        made = _in_real_numbers(model, args, kwargs, names)
        shapes.told = True
        return made
    finally:
        shapes.example = None


def _guessed(model: nn.Module, args: Any, kwargs: Any, names: list[str], shapes: LargestShapes) -> Any:
    """The export as if no condition on data held but those that the program checks."""
    shapes.guesses = True
    while True:
        shapes.asked = shapes.guessed = 0
        try:
            return _in_real_numbers(model, args, kwargs, names)
        except Exception as problem:
            last = shapes.asked
            if not is_of_a_check(problem) or not last or last in shapes.held:
                raise
        shapes.held.add(last)  # a program that fails on the guess checks what it is given


@kept_out_of_caches()
def _in_real_numbers(model: nn.Module, args: Any, kwargs: Any, names: list[str]) -> Any:
    """As `_traced`; what torch's exporter cannot write for complex numbers, once more with pairs of real ones. Nothing
    of it stays in caches of the program."""
    try:
        return _traced(model, args, kwargs, names)
    except Exception as problem:
        program = None if is_of_data(problem) else _in_graph(model, args, kwargs)
        if program is None or not has_complex_numbers(program):
            raise
        is_told = is_of_complex_numbers(problem)
        with contextlib.nullcontext() if is_told else contextlib.suppress(Exception):  # the first says more of it
            return _by_torch(in_pairs(program), args, kwargs, names)
        raise


def _in_graph(model: nn.Module, args: Any, kwargs: Any) -> ExportedProgram | None:
    """The program as a graph of torch's; None where it cannot be one."""
    with contextlib.suppress(Exception):
        return torch.export.export(model, args, kwargs, strict=False)
    return None


def _traced(model: nn.Module, args: Any, kwargs: Any, names: list[str]) -> Any:
    """The program traced by torch's exporter; if that fails, traced below autograd."""
    try:
        with ending_transforms():
            return _by_torch(model, args, kwargs, names)
    except Exception as problem:
        if not is_of_tracing(problem) or is_of_data(problem) or is_of_complex_numbers(problem):
            raise
        with contextlib.suppress(Exception), ending_transforms():  # the first problem says more of the program
            return _by_torch(below_autograd(model, args, kwargs), args, kwargs, names)
        raise


def _by_torch(model: nn.Module, args: Any, kwargs: Any, names: list[str]) -> Any:
    reserved = reserved_names(model)
    if reserved:
        model = renamed(torch.export.export(model, args, kwargs, strict=False), reserved)
    program = _written(model, args, kwargs, names)
    restore(program, reserved)
    return program


def _written(model: Any, args: Any, kwargs: Any, names: list[str]) -> Any:
    """The program that torch's exporter writes, once more for each operator of which it knows no ONNX form."""
    forms = onnx_forms()
    while True:
        try:
            return torch.onnx.export(
                model, args, kwargs=kwargs, dynamo=True, optimize=False, verbose=False, input_names=names,
                custom_translation_table=forms,
            )  # fmt: skip
        except Exception as problem:
            operator = None if is_of_complex_numbers(problem) else unknown_operator(said_of(problem))
            if operator is None or operator in forms:
                raise
            forms[operator] = stand_in(operator)


def _check_packages() -> None:
    try:
        import onnx_ir  # noqa: F401, PLC0415 - of the extra, and only for planning
        import onnxscript  # noqa: F401, PLC0415
    except ModuleNotFoundError as problem:
        summary = f"torch exports modules with the package {problem.name}, which is not installed"
        raise ShardplanError(error("missing-package", summary, hint="pip install 'shardplan[torch]'")) from None


def _input_names(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of the tensors among the arguments: those of the arguments that they are, or are in; with the prefix
    `input.` if a tensor of the module, or another argument, has that name."""
    pairs = [*zip(argument_names(model, args, kwargs), args, strict=True), *kwargs.items()]
    found, taken = list[str](), set(_owned(model.model if isinstance(model, WithLoss) else model))
    for called, _ in named_tensors(pairs):
        name = called
        while name in taken:
            name = f"{INPUT}{name}"
        found.append(name)
        taken.add(name)
    return found


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Context: every module is in evaluation mode, and restored afterwards; none takes a fast path that has no
    gradients, nor checks whether a mask is causal."""
    trained = [module for module in model.modules() if module.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    model.eval()
    try:
        with without_looking_into_masks(), in_plain_forms():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in trained:
            module.training = True


@contextlib.contextmanager
def _returning_tensors(inner: nn.Module, model: nn.Module, shapes: LargestShapes) -> Iterator[None]:
    """`inner` computes what `model` does, its loss too, in `shapes`, and gives the tensors of the result. So names stay
    the inner module's."""
    forward = inner.forward
    own = inner.__dict__.get("forward")

    @functools.wraps(forward)
    def flat(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        shapes.begin()
        with shapes:
            if not isinstance(model, WithLoss):
                return tuple(tensors_in(forward(*args, **kwargs)))
            given, named, targets = model.divided(args, kwargs)
            return tuple(tensors_in(model.loss(forward(*given, **named), **targets)))

    if isinstance(model, WithLoss):
        del flat.__wrapped__  # its arguments are not the model's alone
    inner.forward = flat
    try:
        yield
    finally:
        del inner.forward
        if own is not None:
            inner.forward = own


_READ = ("pkg.torch.onnx.name_scopes", "pkg.onnxscript.optimizer.folded_from")


def _strip(program: Any, model: nn.Module) -> None:
    """Moves the tensors of the module to an external file that nobody opens; removes tensors that nothing reads; and
    renames values with the name of a module's tensor, which torch gives to a buffer `index` and to the result of an
    operator of that name, or with the name of an input: `t` is also an operator."""
    import onnx_ir  # noqa: PLC0415 - as above

    graph, owned = program.model.graph, _owned(model)
    for name, value in graph.initializers.items():
        if name in owned:
            tensor = value.const_value
            value.const_value = onnx_ir.ExternalTensor(
                _WEIGHTS, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
            )
    taken = {*graph.initializers, *(value.name for value in graph.inputs)}
    for node in graph.all_nodes():
        for key in [key for key in node.metadata_props if key not in _READ]:
            del node.metadata_props[key]
        if node.op_type == "Squeeze" and _drops_nothing(node):
            node.op_type = "Identity"
            node.resize_inputs(1)
        for made in node.outputs:
            if made.name in taken:
                made.name = f"{made.name}_made_by_{node.name}"


def _drops_nothing(node: Any) -> bool:
    """Whether a `Squeeze` is given dims that are not of size 1: torch leaves them, ONNX has no such operator."""
    from onnx_ir.convenience import get_const_tensor  # noqa: PLC0415 - as above

    shape, axes = node.inputs[0].shape, get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None or axes is None:
        return False
    return all(isinstance(shape[int(axis)], int) and shape[int(axis)] > 1 for axis in axes.numpy().flatten())


def _owned(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, under all their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context: suppresses torch's messages about packages and its own deprecations, which no user can act on, and the
    graph that it prints if it fails."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
