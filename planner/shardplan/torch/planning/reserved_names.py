"""Tensors of a module whose names `torch.fx.GraphModule` has for something else (`code`, `graph`), or Python has
(`class`): torch exports such modules, and fails where it makes a graph module of the program."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

_RESERVED = frozenset((*dir(torch.fx.GraphModule), "meta")) - frozenset(dir(nn.Module))


def reserved_names(model: object) -> dict[str, str]:
    """By its name every parameter and buffer that has a reserved one, or stands in a module that has a keyword of
    Python for its name (`heads["class"]`), and a name that nothing has."""
    if not isinstance(model, nn.Module):
        return {}
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    taken = {name for name, _ in tensors}
    found = {}
    for name in sorted(taken):
        steps = name.split(".")
        if not any(map(keyword.iskeyword, steps)) and not (name in _RESERVED and len(steps) == 1):
            continue
        other = ".".join(f"{step}_" if keyword.iskeyword(step) or len(steps) == 1 else step for step in steps)
        while other in taken or hasattr(model, other):
            other += "_"
        taken.add(other)
        found[name] = other
    return found


def renamed(program: ExportedProgram, names: Mapping[str, str]) -> ExportedProgram:
    """`program`, changed, with other names of tensors."""
    signature = program.graph_signature
    signature.input_specs = [
        replace(spec, target=names[spec.target]) if spec.target in names else spec for spec in signature.input_specs
    ]
    signature.output_specs = [
        replace(spec, target=names[spec.target]) if spec.target in names else spec for spec in signature.output_specs
    ]
    for held in (program.state_dict, program.constants):
        for name in [name for name in held if name in names]:
            held[names[name]] = held.pop(name)
    return program


def restore(program: Any, names: Mapping[str, str]) -> None:
    """Give the weights of an ONNX program of torch's exporter their own names again."""
    weights = program.model.graph.initializers
    for name, other in names.items():
        if other in weights:
            value = weights.pop(other)
            value.name = name
            weights[name] = value
