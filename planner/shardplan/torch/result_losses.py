"""Losses of what a model returns, computed outside of the model, where torch (2.13) is wrong of DTensors or has none.

torch finds out by an operator's decomposition how its result is sharded, and then runs its kernel on the local part.
Kernels of means divide by the number of elements that they see: gradients were too large by the number of parts.
`nll_loss` averages the means of the parts, which may have unequal weights. Here such an operator runs as its
decomposition, which counts the elements of the whole tensor, or on the tensors whole. `cosine_embedding_loss` fills a
new tensor with ones, which counted once for each part of a sum. `any` is a sum of parts for torch, and so a number of
more than 1.

torch refuses to compute with a `DTensor` and a plain tensor. What a program has as plain tensors beside results,
weights and gradients (targets, masks, noise of a generator) is whole, and the same in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_leaves, tree_map_only

from shardplan.torch.parameters.interleaved_views import forget_strategies
from shardplan.torch.placements import from_local

_ATEN = torch.ops.aten
_ELEMENTWISE = (
    _ATEN.mse_loss, _ATEN.mse_loss_backward, _ATEN.smooth_l1_loss, _ATEN.smooth_l1_loss_backward, _ATEN.huber_loss,
    _ATEN.huber_loss_backward, _ATEN.soft_margin_loss, _ATEN.soft_margin_loss_backward, _ATEN.binary_cross_entropy,
    _ATEN.binary_cross_entropy_backward, _ATEN.log_sigmoid_backward,
)  # fmt: skip
_BY_CLASS = (_ATEN.nll_loss_forward, _ATEN.nll_loss2d_forward)
_UNKNOWN = (
    _ATEN.multi_margin_loss.default, _ATEN.multi_margin_loss_backward.default,
    _ATEN.multilabel_margin_loss_forward.default, _ATEN.multilabel_margin_loss_backward.default,
    _ATEN._ctc_loss.default, _ATEN._ctc_loss.Tensor, _ATEN._ctc_loss_backward.default, _ATEN._ctc_loss_backward.Tensor,  # noqa: SLF001 - torch's names
)  # fmt: skip
"""Operators for which DTensor has no sharding."""


def correct_losses() -> None:
    """From now on losses of DTensors, and their gradients, are those of the tensors whole. What handles an operator
    already (`loss_parallel` of torch) goes on doing so."""
    take_plain_tensors()
    _make_new_tensors_whole()
    handlers = DTensor._op_dispatcher._custom_op_handlers  # noqa: SLF001 - there is no public way
    for packet in _ELEMENTWISE:
        handlers.setdefault(packet.default, _decomposed)
    for packet in _BY_CLASS:
        handlers.setdefault(packet.default, _of_whole_classes)
    for operator in _UNKNOWN:
        handlers.setdefault(operator, _whole)
    for operator in _CHECKS:
        handlers.setdefault(operator, _checked)


def take_plain_tensors() -> None:
    """From now on functions of this thread that are given DTensors take plain tensors beside them as whole on every
    process, until torch's `implicit_replication()` ends."""
    DTensor._op_dispatcher._allow_implicit_replication = True  # noqa: SLF001 - torch's own way is a context


@functools.cache
def _make_new_tensors_whole() -> None:
    """A new tensor without entries is not to be a partial sum, as one of zeros is none."""
    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs  # noqa: SLF001 - as above
    if _ATEN.zeros_like.default in known:
        known[_ATEN.empty_like.default] = known[_ATEN.zeros_like.default]
        forget_strategies()


def _decomposed(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return decomposition_table[operator](*args, **kwargs)


def _checked(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return _CHECKS[operator](*args, **kwargs)


def _are_close(*args: Any, **kwargs: Any) -> bool:
    return bool(torch.isclose(*args, **kwargs).all())


def _any(given: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Torch's own is a sum of parts, of which `float()` makes numbers larger than 1."""
    return (given != 0).sum(dim, keepdim) > 0


_CHECKS = {
    **dict.fromkeys((_ATEN.any.default, _ATEN.any.dim, _ATEN.any.dims), _any),
    _ATEN._is_all_true.default: torch.all,  # noqa: SLF001 - torch's name
    _ATEN._is_any_true.default: torch.any,  # noqa: SLF001 - torch's name
    _ATEN.allclose.default: _are_close,
}
"""Operators that look at entries (`torch.distributions` checks its arguments by `_is_all_true`), and what they are."""


def _of_whole_classes(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The loss of logarithms of shares, [classes] or [rows, classes, ...], whose rows alone may be split."""
    shares: DTensor = args[0]
    classes = min(1, shares.dim() - 1)
    by_row = [Replicate() if each.is_partial() or each.is_shard(classes) else each for each in shares.placements]
    return _decomposed(operator, (shares.redistribute(placements=by_row), *args[1:]), kwargs)


def _whole(operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Computed by every process from the tensors whole."""
    mesh = next(leaf.device_mesh for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DTensor))
    args, kwargs = tree_map_only(DTensor, DTensor.full_tensor, (args, kwargs))
    everywhere = [Replicate()] * mesh.ndim

    def placed(result: Tensor) -> DTensor:
        return from_local(result, mesh, everywhere, result.shape)

    return tree_map_only(Tensor, placed, operator(*args, **kwargs))
