"""Schemes of recomputation in the words of trainers: which layers, and what of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardplan.errors import ShardplanError, error
from shardplan.graph.options import Layers, Remat
from shardplan.graph.recomputed_modules import MODULES, check_modules
from shardplan.model.types import Model
from shardplan.rules import model_rules
from shardplan.units import whole_number

_OF_ALL: Mapping[str, Remat] = {
    "none": "none", "selective": "selective", "core_attn": "selective", "alternate": "alternate", "op": "alternate",
    "full": "full",
}  # fmt: skip
"""Words for what is recomputed of every layer. Megatron-LM and torchtitan mean different things by `selective`;
`core_attn`, a module of the one, and `op`, an option of the other, are unambiguous."""
_SCHEMES: Mapping[str, Literal["block", "every", "uniform"]] = {
    "block": "block", "every": "every", "uniform": "uniform",
}  # fmt: skip
ALLOWED = (
    "none, selective (or core_attn), alternate (or op), full, block:N, every:N, uniform:N, "
    f"or modules of layers with commas between: core_attn, {', '.join(MODULES)}"
)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What is recomputed: of which layers if not of all, and which modules if not what the word says."""

    remat: Remat
    layers: Layers | None = None
    modules: tuple[str, ...] = ()


def recompute_of(text: str) -> Recomputation:
    """What is recomputed: `full`, `block:4`, `moe_act,layernorm`. Every single layer is `full`, and none is `none`.

    Raises `ShardplanError` (`bad-argument`) for any other text.
    """
    if text in _OF_ALL:
        return Recomputation(_OF_ALL[text])
    words = text.replace(",", " ").split()
    if words and set(words) <= {"core_attn", *MODULES}:
        return Recomputation("selective", modules=tuple(sorted(set(words))))
    word, _, digits = text.partition(":")
    number = whole_number(digits)
    if word not in _SCHEMES or number is None or (number == 0 and word != "block"):
        summary = f"--recompute '{text}' is no scheme of recomputation that can be priced"
        hint = f"{ALLOWED}; docs/price.md lists what trainers call them"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    if number == 0:
        return Recomputation("none")
    return Recomputation("full", None if number == 1 and word != "block" else Layers(_SCHEMES[word], number))


def recompute_in(model: Model, text: str) -> Recomputation:
    """`recompute_of`, for a model that has the modules. Raises `ShardplanError` (`bad-argument`) if it has not."""
    meant = recompute_of(text)
    if meant.modules:
        check_modules(model, model_rules(model), meant.modules)
    return meant
