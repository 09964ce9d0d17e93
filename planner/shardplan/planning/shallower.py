"""Deep models: a model with fewer copies of its repeated blocks is searched, and its plan is one of the whole model.

The time of a search grows with the number of operators. Copies of a block are equal, so the best layouts of a few are
those of all. In the shallow model each copy holds as many bytes as the copies that it stands for.
"""

from __future__ import annotations

from dataclasses import replace

from shardplan.model.shallow import shallow
from shardplan.model.types import Model
from shardplan.planning.constants import MANY_OPERATORS, SHALLOW_COPIES
from shardplan.planning.finer import Transferable
from shardplan.planning.instance import Instance


def shallower(instance: Instance) -> Model | None:
    """A shallow form of the model, if it is deep and nothing that was asked names its copies."""
    options, model = instance.options, instance.model
    is_deep = len(model.operators) >= MANY_OPERATORS and any(
        len(block.copies) > SHALLOW_COPIES for block in model.blocks
    )
    names = bool(options.constraints) or instance.decided or instance.offer or model.padding or options.full_layers
    is_plain = options.cost_model.is_ours and not (names or instance.every_choice or instance.chooses_remat)
    return shallow(model, SHALLOW_COPIES) if is_deep and is_plain else None


def deepened(coarser: Transferable, thin: Model, model: Model) -> Transferable:
    """The plan of a shallow model for the whole one: every copy of a block is as the one at its share of the depth."""
    decided = coarser.decided.with_layers_of(model, coarser.decided, thin, ())
    return replace(coarser, decided=decided, recompute=None, planes=())
