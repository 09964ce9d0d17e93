"""What ranks do in many tests alike, without what torch would work out anew in each: the graph of a model, which is
exported once, and a step of gradient descent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardplan.torch.exported.program import export_program

_PROGRAMS: dict[Any, ExportedProgram] = {}


@contextlib.contextmanager
def exported_once(*key: Any) -> Iterator[None]:
    """Within this context, a model whose graph an earlier test of this process has asked `torch.export` for is not
    exported again; what a plan does with the graph is done anew. `key`: what makes this model and no other."""

    def program_of(model: nn.Module, args: Any, kwargs: Any) -> ExportedProgram:
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in pytree.tree_leaves((args, kwargs)))
        whole = (key, shapes, model.training, frozenset(parameter.device for parameter in model.parameters()))
        if whole not in _PROGRAMS:
            _PROGRAMS[whole] = export_program(model, args, kwargs)
        return _PROGRAMS[whole]

    with (
        mock.patch("shardplan.torch.exported.parallelize.export_program", program_of),
        mock.patch("shardplan.torch.pipelines.build.export_program", program_of),
    ):
        yield


class Descent:
    """Gradient descent on what a rank holds of a model or a pipeline, for two steps that differ. An optimizer of torch
    does the same to DTensors, but torch works out first how, for each layout; tests of training take one."""

    def __init__(self, model: Any, rate: float) -> None:
        self.parameters, self.rate = list(model.parameters()), rate

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A gradient is in the layout of its weight."""
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if isinstance(parameter, DTensor):
                assert gradient.placements == parameter.placements
                parameter.to_local().sub_(gradient.to_local(), alpha=self.rate)
            else:
                parameter.sub_(gradient, alpha=self.rate)
