"""Layouts of a parameter in the dims of its module, which may be a transpose of the checkpoint's."""

from __future__ import annotations

from shardplan.layout.layout import Layout
from shardplan.plan.orientation import checkpoint_layout, graph_layout
from shardplan.plan.types import TensorDecision
from shardplan.runtime.names import Named


def in_module_dims(layout: Layout, named: Named) -> Layout:
    """`layout`, in the dims of the plan, in the dims of the module."""
    return graph_layout(checkpoint_layout(layout, named.decision.perm), named.perm)


def stored_layout(decision: TensorDecision) -> Layout:
    """The layout in which a process stores a parameter, in the plan's dims: that of its optimizer state, from where a
    step gathers it to the kept layout."""
    return decision.optimizer if decision.optimizer is not None else decision.layout
