"""What a configuration says of single layers: sliding windows, which MLPs are mixtures of experts, and the layers that
predict further tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from shardplan.errors import Diagnostic, error
from shardplan.models.architectures import Architecture

_SEES: Final = {"sliding_attention": "W", "full_attention": "F"}
_AS_WHOLE: Final = {**_SEES, "chunked_attention": "F"}
"""Letters of layers; a chunk that is no shorter than the sequence is all of it."""
_LETTERS: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def windows(
    architecture: Architecture, config: Mapping[str, Any], sizes: Mapping[str, int], seq: int, path: str, else_do: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Sliding windows as a description has them. One that is no shorter than the sequence changes nothing."""
    listed = config.get("layer_types")
    kinds = listed if isinstance(listed, list) and architecture.style != "nemotron" else []
    if other := [kind for kind in kinds if not isinstance(kind, str) or kind not in _AS_WHOLE]:
        said = f"{path}: layer_types has {json.dumps(other[0])}, which is not supported"
        return {}, [error("bad-config", said, hint=f"layers may be {' or '.join(_SEES)}; else {else_do}")]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if not isinstance(window, int) or not 0 < window < seq:
        return {}, []
    if kinds:
        pattern = "".join(_AS_WHOLE[kind] for kind in kinds)
    else:
        pattern = _unlisted(architecture, config, sizes.get("layers", 0))
    return ({"window": window, "window_pattern": pattern} if "W" in pattern else {}), []


def _unlisted(architecture: Architecture, config: Mapping[str, Any], layers: int) -> str:
    """Letters of the layers where no list says them."""
    first = config.get("max_window_layers")
    if architecture.windowed != "all" and isinstance(first, int):
        after = architecture.windowed == "after max_window_layers"
        return "".join("FW"[place >= first if after else place < first and not place % 2] for place in range(layers))
    every = config.get("sliding_window_pattern")
    if isinstance(every, str) and every and not set(every) - set("LG"):  # local and global, as EXAONE 4 writes it
        return every.replace("L", "W").replace("G", "F")
    return "W" * (every - 1) + "F" if isinstance(every, int) and every > 0 else "W"


def routed(
    architecture: Architecture, config: Mapping[str, Any], sizes: Mapping[str, int], path: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Which MLPs are experts, where a list says so; instead of `moe_every`."""
    faults = []
    lists = dict[str, set[int]]()
    for key in (architecture.routed, architecture.unrouted):
        value = config.get(key) if key else None
        if isinstance(value, list) and all(type(place) is int for place in value):
            lists[key] = set(value)
        elif value is not None:
            said = f"{path}: {key} is {json.dumps(value)}, it must be a list of numbers of layers"
            faults.append(error("bad-config", said))
    only, dense = lists.get(architecture.routed), lists.get(architecture.unrouted, set())
    if faults or (only is None and not dense):
        return {}, faults
    every = max(1, sizes.get("moe_every", 1))
    places = range(sizes.get("layers", 0))
    chosen = {place for place in places if place % every == every - 1} if only is None else only
    return {"moe_pattern": "".join("DE"[place in chosen - dense] for place in places), "moe_every": 1}, []


def pattern_of(config: Mapping[str, Any], path: str) -> tuple[str, list[Diagnostic]]:
    """What the layers of a hybrid are, a letter for each, which configurations say as letters or as words."""
    return _pattern(config, "hybrid_override_pattern", ("layers_block_type", "layer_types"), path)


def _pattern(
    config: Mapping[str, Any], letters: str, words: tuple[str, ...], path: str
) -> tuple[str, list[Diagnostic]]:
    """Letters of layers by the key `letters`, or by the first of `words` that is there."""
    kinds = next((config[key] for key in words if key in config), None)
    pattern = config.get(letters)
    if isinstance(kinds, list) and all(isinstance(kind, str) and kind in _LETTERS for kind in kinds):
        pattern = "".join(_LETTERS[kind] for kind in kinds)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS.values()):
        summary = f"{path}: there is no {letters} of the letters M, *, - and E"
        return "", [error("bad-config", summary, hint=f"or {words[0]}, a list of their names")]
    return pattern, []


FURTHER: Final = "num_nextn_predict_layers"


def further_modules(config: Mapping[str, Any]) -> int:
    """Modules that predict further tokens and have weights of their own."""
    found = config.get(FURTHER)
    return found if type(found) is int and found > 0 else 0


def further(
    config: Mapping[str, Any], asked: int, path: str, *, hybrid: bool
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """What predicts `asked` further tokens. One module may be run again for each of them (Nemotron 3 Super)."""
    if asked < 1:
        return {}, []
    modules = further_modules(config)
    if not modules or 1 < modules < asked:
        told = f"{FURTHER} is {modules}" if modules else f"there is no {FURTHER}"
        summary = f"{path}: {told}, so that not {asked} further tokens are predicted"
        hint = f"--dim mtp={modules} at most" if modules else "leave out --dim mtp"
        return {}, [error("bad-config", summary, hint=hint)]
    sizes: dict[str, Any] = {"mtp": asked, "mtp_shared": asked > modules}
    if not hybrid:
        return sizes, []
    pattern, faults = _pattern(config, "mtp_hybrid_override_pattern", ("mtp_layers_block_type",), path)
    return {**sizes, "mtp_pattern": pattern}, faults


def of_pattern(sizes: Mapping[str, Any], pattern: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes without those of experts where the pattern has none: configurations give them all the same."""
    asked = {**sizes, "pattern": pattern, "layers": len(pattern)}
    if "E" in pattern + asked.get("mtp_pattern", ""):
        return asked if config.get("n_shared_experts", 1) else {**asked, "shared_ffn": 0}
    experts = ("experts", "top_k", "shared_ffn", "expert_latent", "routing")
    return {**{name: size for name, size in asked.items() if name not in experts}, "ffn": asked["dense_ffn"]}
