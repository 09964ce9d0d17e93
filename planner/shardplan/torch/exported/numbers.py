"""Numbers that a program reads of tensors (`item`, `tolist`, `float(x)`), as tensors without dims that no gradient goes
through: a graph has no other numbers that depend on data."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._ops import OpOverload
from torch.export import ExportedProgram

from shardplan.torch.exported.untraceable import untraceable

_ITEMS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)  # noqa: SLF001 - torch calls it so
_DETACH = torch.ops.aten.detach.default
_ARITHMETIC = operator.add.__module__


def numbers_as_tensors(program: ExportedProgram) -> None:
    """Let numbers be tensors, in place. Raises `ShardplanError` (`cannot-export`) where only a number will do."""
    for node in list(program.graph.nodes):
        if node.target in _ITEMS:
            _check(node)
            node.target = _DETACH
            node.meta["val"] = node.args[0].meta["val"].detach()
    program.graph_module.recompile()


def _check(number: fx.Node) -> None:
    """That whatever reads a number takes a tensor."""
    for user in number.users:
        if getattr(user.target, "__module__", "") == _ARITHMETIC:
            _check(user)
        elif user.users and not _takes_tensor(user, number):
            name = getattr(user.target, "__name__", user.name)
            raise untraceable(f"'{name}' takes a number that is read of a tensor ('{number.name}')")


def _takes_tensor(user: fx.Node, number: fx.Node) -> bool:
    if not isinstance(user.target, OpOverload):
        return False
    arguments = user.target._schema.arguments  # noqa: SLF001 - there is no public name
    given = [*zip(arguments, user.args, strict=False)]
    given += [(each, user.kwargs[each.name]) for each in arguments if each.name in user.kwargs]
    return all(isinstance(each.type, torch.TensorType) for each, value in given if value is number)
