"""Batch norms of an exported graph that take the statistics of their batch.

Programs are exported as in evaluation, where torch writes a batch norm as one by given statistics. One that trains
computes them: where the batch is split, every process needs those of all parts, which is communication to be priced.
"""

from __future__ import annotations

import ast
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch's exporter says of which module and which operation a node is, the outermost module first."""
_ALWAYS = "_native_batch_norm_legit_functional"
"""The operation of `functional.batch_norm(training=True)`, which goes by its batch in evaluation too."""
_IN_EVALUATION = "_native_batch_norm_legit_no_training"


def training_norms(model: nn.Module) -> frozenset[str]:
    """The batch norms of a module that are in training, under all their names. Those that keep no averages compute
    their statistics in evaluation too, and are exported so."""
    named = model.named_modules(remove_duplicate=False)
    return frozenset(
        name for name, each in named if isinstance(each, _BatchNorm) and each.training and each.running_mean is not None
    )


def by_batch(program: Any, training: frozenset[str]) -> None:
    """Makes the batch norms of the modules `training`, and those that are never by given statistics, training ones in
    an exported program: their running averages are results, as ONNX has it."""
    import onnx_ir  # noqa: PLC0415 - of the extra, and only for planning

    for node in program.model.graph.all_nodes():
        if node.op_type != "BatchNormalization" or not _goes_by_batch(node, training):
            continue
        node.attributes["training_mode"] = onnx_ir.AttrInt64("training_mode", 1)
        node.resize_outputs(3)
        made = node.outputs[0]
        for average, old in zip(node.outputs[1:], node.inputs[3:5], strict=True):
            average.name = f"{made.name}_{old.name}"
            average.shape, average.type = old.shape, old.type


def _goes_by_batch(node: Any, training: frozenset[str]) -> bool:
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    if not scopes:
        return False
    *modules, operation = scopes
    if operation.startswith(_ALWAYS):
        return True
    return operation.startswith(_IN_EVALUATION) and bool(training.intersection(modules))
