"""What a configuration says of single layers: sliding windows, which MLPs are mixtures of experts, and the layers that
predict further tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from shardplan.errors import Diagnostic, error
from shardplan.models.architecture import Architecture

_SEES: Final = {"sliding_attention": "W", "full_attention": "F"}
_AS_WHOLE: Final = {**_SEES, "chunked_attention": "F", "local": "W", "global": "F"}
"""Letters of layers; a chunk that is no shorter than the sequence is all of it."""
_LETTERS: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def windows(
    architecture: Architecture, config: Mapping[str, Any], sizes: Mapping[str, int], seq: int, path: str, else_do: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Sliding windows as a description has them. One that is no shorter than the sequence changes nothing."""
    listed = config.get("layer_types") or config.get("attention_layers")
    has_mixers = architecture.mixer or architecture.style == "nemotron"
    kinds = listed if isinstance(listed, list) and not has_mixers else []
    if other := [kind for kind in kinds if not isinstance(kind, str) or kind not in _AS_WHOLE]:
        said = f"{path}: layer_types has {json.dumps(other[0])}, which is not supported"
        return {}, [error("bad-config", said, hint=f"layers may be {' or '.join(_SEES)}; else {else_do}")]
    window = config.get("sliding_window", config.get("window_size")) if config.get("use_sliding_window", True) else None
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
    every = config.get("sliding_window_pattern", config.get("global_attn_every_n_layers"))
    if isinstance(every, str) and every and not set(every) - set("LG"):  # local and global, as EXAONE 4 writes it
        return every.replace("L", "W").replace("G", "F")
    return "W" * (every - 1) + "F" if isinstance(every, int) and every > 0 else "W"


_ATTENTION: Final = ("full_attention", "attention")
_OTHER: Final = ("linear_attention", "mamba", "conv")
"""What configurations call a layer that is attention, and one that is not."""
_NAMED: Final = ("layer_types", "layers_block_type")
"""Keys that list what each layer is, by a word."""
_PLACES: Final = (("attn_layer_indices", 0), ("full_attn_idxs", 0), ("linear_attn_config.full_attn_layers", 1))
"""Keys that list the layers that are attention, and the number of their first layer."""


def mixers(
    architecture: Architecture, config: Mapping[str, Any], layers: int, path: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Which layers are attention: by a word for each, a list of their numbers, or their distance."""
    if not architecture.mixer:
        return {}, []
    words = next((config[key] for key in _NAMED if config.get(key)), None)
    if words is not None:
        if not isinstance(words, list) or set(map(str, words)) - {*_ATTENTION, *_OTHER}:
            said = f"{path}: layer_types must be a list of {' or '.join((*_ATTENTION, *_OTHER))}"
            return {}, [error("bad-config", said)]
        places = {place for place, word in enumerate(words) if word in _ATTENTION}
    else:
        if not any(key in config for key in (*(key for key, _ in _PLACES), "full_attention_interval")):
            said = f"{path}: there is no 'layer_types'"
            return {}, [error("bad-config", said, hint="save the configuration whole")]
        listed, first = next(((config[key], first) for key, first in _PLACES if config.get(key)), ([], 0))
        every = config.get("full_attention_interval", 0)
        if not isinstance(listed, list) or not all(type(place) is int for place in (*listed, every)):
            return {}, [error("bad-config", f"{path}: the layers that are attention must be whole numbers")]
        places = {place - first for place in listed} or {
            place for place in range(layers) if every and not (place + 1) % every
        }
    letters = "".join("*" if place in places else architecture.mixer for place in range(layers))
    unused = {} if "D" in letters else {"delta_heads": 0, "delta_key_heads": 0}
    unused |= {} if "M" in letters else {"state_heads": 0}
    return {"mixers": letters, **unused, **({} if "*" in letters else {"attention_gate": False})}, []


def routed(
    architecture: Architecture, config: Mapping[str, Any], sizes: Mapping[str, int], path: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Which MLPs are experts, where a list says so; instead of `moe_every`."""
    faults = []
    words = config.get("mlp_layer_types")
    if isinstance(words, list) and set(map(str, words)) <= {"dense", "sparse"}:
        return {"moe_pattern": "".join("DE"[word == "sparse"] for word in words), "moe_every": 1, "dense_layers": 0}, []
    if first_and_last := _between(config, sizes.get("layers", 0)):
        return first_and_last, []
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


def _between(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Experts from a first to a last layer, as ERNIE 4.5 says it."""
    keys = ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval")
    first, last, every = (config.get(key, default) for key, default in zip(keys, (None, -1, 1), strict=True))
    if not all(type(each) is int for each in (first, last, every)) or every < 1:
        return {}
    end = layers if last == -1 else last + 1
    chosen = (first <= place < end and not (place + 1) % every for place in range(layers))
    return {"moe_pattern": "".join("DE"[each] for each in chosen), "moe_every": 1, "dense_layers": 0}


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
