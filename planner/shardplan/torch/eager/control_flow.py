"""Branches and loops of `torch.cond` and `torch.while_loop`, run as Python's own: a number of a planned tensor decides.

Torch would trace them, for which planned tensors have no use: they run operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op


def _chosen(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    return (true_fn if bool(pred) else false_fn)(*operands)


def _repeated(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Any], others: Sequence[Any] = ()
) -> Any:
    while bool(cond_fn(*carried, *others)):
        made = body_fn(*carried, *others)
        carried = made if isinstance(made, (tuple, list)) else (made,)
    return tuple(carried)


CONTROL_FLOW: Mapping[Any, Callable[..., Any]] = {cond_op: _chosen, while_loop_op: _repeated}
"""What a planned tensor is given to, and what is called in its place."""
