"""What is said of a `model_type` that no description has."""

from __future__ import annotations

import re
from typing import Final

from shardplan.errors import Diagnostic, error
from shardplan.models.architectures import ARCHITECTURES, MISSING

EXPORT: Final = "plan the module itself: shardplan.torch.plan, or my_pkg.module:build as MODEL"
_OTHERS: Final = frozenset({
    *MISSING, "gemma3n_text", "glm4v", "glm4v_moe", "llava", "mllama", "molmo2", "pixtral", "roc_bert", "zamba",
    "zamba2",
})  # fmt: skip
"""Types of transformers that differ from a supported one by a letter: other models, no misspellings."""
_SHORT: Final = 5
"""Letters of a name below which a letter more or less makes another name."""


def unknown_type(kind: str, path: str) -> Diagnostic:
    """Why `kind` cannot be planned, and what to do instead. Another type is only named where `kind` is a misspelling
    of it: the nearest name would be another model."""
    said = f"{path}: model_type '{kind}' is not supported"
    if kind in MISSING:
        return error("unknown-architecture", f"{said}: a description cannot express {MISSING[kind]}", hint=EXPORT)
    if meant := _misspelled(kind):
        return error("unknown-architecture", said, hint=f"did you mean '{meant}'?")
    return error("unknown-architecture", said, hint=f"docs/command-line.md lists the types that are; else {EXPORT}")


def _misspelled(kind: str) -> str:
    """The supported type that differs by case, separators, or one letter; `""` where there is none or more than one.
    Numbers are versions, which are never misspelled."""
    plain = _plain(kind)
    alike = [each for each in ARCHITECTURES if _plain(each) == plain]
    if not alike and kind not in _OTHERS:
        alike = [
            each
            for each in ARCHITECTURES
            if len(each) >= _SHORT and _digits(each) == _digits(kind) and _less_one(_plain(each)) & _less_one(plain)
        ]
    return alike[0] if len(alike) == 1 else ""


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _digits(name: str) -> str:
    return re.sub("[^0-9]", "", name)


def _less_one(name: str) -> set[str]:
    """A name, and it without each of its letters: two names that share one of them differ by a letter at most."""
    return {name, *(name[:place] + name[place + 1 :] for place in range(len(name)))}
