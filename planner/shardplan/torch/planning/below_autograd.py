"""Programs that differentiate inside (`torch.autograd.grad`, `torch.func.grad`, `vmap`, `jvp`), made exportable.

Torch's exporter traces above autograd, where gradients and transforms of `torch.func` leave no trace, and fails. Here
the program is traced below them, where they have become operators of ATen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from shardplan.torch.exported.program import parameter_tree


def below_autograd(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """A module that computes what `model` does with such arguments, called as it is, its tensors under their names.
    Arguments that are no tensors are those given here."""
    made = parameter_tree(model)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(owned: dict[str, Tensor], *tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        given, named = pytree.tree_unflatten(filled, spec)
        with stateless._reparametrize_module(model, owned):  # noqa: SLF001 - `functional_call`, without its checks
            return model(*given, **named)

    trace = make_fx(run, decomposition_table=_forms(), tracing_mode="fake", _allow_non_fake_inputs=True)
    graph = trace(_owned(made), *(leaves[place] for place in places))

    def forward(*given: Any, **named: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, Tensor)]
        return graph(_owned(made), *tensors)

    made.forward = forward
    return made


def _owned(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; one that has two names is there once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _forms() -> dict[Any, Any]:
    """Operators that autograd calls only in backward, in terms of operators of forward passes: exporters have no forms
    of them."""
    of_backward = {func: form for func, form in decomposition_table.items() if "_backward" in str(func)}
    return {**of_backward, torch.ops.aten.convolution_backward.default: _convolution_backward}


def _convolution_backward(
    gradient: Tensor, value: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the value, the weight and the bias, as convolutions; neither ONNX nor torch has a form of this
    operator."""
    del bias_sizes, output_padding
    size = zip(value.shape[2:], gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    rest = [own - ((out - 1) * step - 2 * pad + wide * (kernel - 1) + 1) for own, out, kernel, step, pad, wide in size]
    more = [0] * len(rest) if transposed else rest
    of_value = torch.convolution(gradient, weight, None, stride, padding, dilation, not transposed, more, groups)
    moved, still = (gradient, value) if transposed else (value, gradient)
    of_weight = None
    if wanted[1]:
        made = torch.convolution(
            _by_channel(moved, groups, first=False), _by_channel(still, groups, first=True), None, dilation, padding,
            stride, False, [0] * len(rest), groups,
        )  # fmt: skip
        of_weight = _cut(made.transpose(0, 1), weight)
    of_bias = gradient.sum([0, *range(2, gradient.dim())]) if wanted[2] else None
    return _cut(of_value, value) if wanted[0] else None, of_weight, of_bias


def _cut(made: Tensor, like: Tensor) -> Tensor:
    """The first entries of the dims of space."""
    for dim, size in enumerate(like.shape[2:], 2):
        made = made.narrow(dim, 0, size)
    return made


def _by_channel(value: Tensor, groups: int, *, first: bool) -> Tensor:
    """`[batch, groups * channels, ...]` with channels as the batch: of every group its own, or (`first`) all."""
    apart = value.unflatten(1, (groups, -1)).movedim(0, 2)
    return apart.flatten(0, 1) if first else apart.transpose(0, 1).flatten(1, 2)


@contextlib.contextmanager
def ending_transforms() -> Iterator[None]:
    """Ends transforms of `torch.func` that a failed exporter has left active: everything that torch does later in the
    process would be part of them."""
    begun = torch._C._functorch.get_dynamic_layer_stack_depth()  # noqa: SLF001 - there is no public name
    refused = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(begun)  # noqa: SLF001
        if refused is None:
            torch._C._autograd._saved_tensors_hooks_enable()  # noqa: SLF001
