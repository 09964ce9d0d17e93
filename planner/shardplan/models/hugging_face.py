"""From a Hugging Face `config.json` to a model: its keys become the sizes of a described transformer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error, warning
from shardplan.model.types import Model
from shardplan.models.architectures import ARCHITECTURES, Architecture
from shardplan.models.spec import TransformerSpec
from shardplan.models.transformer import build
from shardplan.text_files import read_text

_EXPORT = "plan the module itself: shardplan.torch.plan, or my_pkg.module:build as MODEL"
_DTYPES: Final = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
_STORED: Final = ("fp8", "mxfp4")
"""Types in which weights are published that were trained in `dtype`: DeepSeek-V3, Kimi K2, gpt-oss."""
_OF_ALL: Final = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
"""Keys that stand beside `text_config` and hold for it."""
_HASH: Final = re.compile("[0-9a-f]{40}")
_BOUND: Final = ("batch", "seq")
_LONGEST = 2048
"""Tokens of a sequence where nobody says how many; many configurations name far more than anybody trains with."""


def is_config(given: str) -> bool:
    """Whether MODEL is a configuration: a file of JSON that is no plan."""
    return given.endswith(".json") and not given.endswith(".plan.json")


def configured(path: str | Path, dims: Mapping[str, int]) -> Model:
    """The transformer that a `config.json` describes; `dims` give `batch` and `seq`, which it leaves open.

    Raises `ShardplanError` with every key that is not supported: `bad-config`, `unknown-architecture`, `unknown-dim`.
    """
    config = read_config(path)
    model = build(spec_of(config, dims, str(path)), title_of_config(path, config))
    kind, text = str(config["model_type"]), text_of(config)
    if text is config:
        return model
    summary = f"'{path}' describes a '{kind}'; its text part, '{text['model_type']}', is the model"
    told = warning("text-part", summary, hint=f"to plan all of it, {_EXPORT}")
    return replace(model, warnings=(*model.warnings, told))


def title_of_config(path: str | Path, config: Mapping[str, Any]) -> str:
    """What a configuration is called: its file where that is not just `config`; else its folder as it was given; else,
    also for the snapshots that Hugging Face keeps by their hash, its `_name_or_path` or `model_type`."""
    file = Path(path)
    folder = file.parent.name
    if file.stem != "config":
        return file.stem
    if folder and folder != ".." and not _HASH.fullmatch(folder):
        return folder
    named = config.get("_name_or_path")
    return (PurePosixPath(named).name if isinstance(named, str) else "") or str(config["model_type"])


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys of a `config.json`. Raises `ShardplanError` (`no-file`, `bad-config`)."""
    try:
        found = json.loads(read_text(path))
    except OSError as problem:
        raise ShardplanError(error("no-file", f"cannot read '{path}': {problem.strerror}")) from None
    except ValueError as problem:
        raise ShardplanError(error("bad-config", f"'{path}' is no JSON", detail=str(problem))) from None
    except RecursionError:
        raise ShardplanError(error("bad-config", f"'{path}' is nested too deeply")) from None
    if not isinstance(found, dict) or "model_type" not in found:
        hint = "MODEL is an ONNX file, a config.json of Hugging Face, transformer:..., or package.module:function"
        raise ShardplanError(error("bad-config", f"'{path}' has no 'model_type', so it is no config.json", hint=hint))
    for keys, place in ((found, ""), (found.get("text_config"), "text_config.")):
        kind = keys.get("model_type", "") if isinstance(keys, dict) else ""
        if not isinstance(kind, str):
            said = f'{path}: {place}model_type is {json.dumps(kind)}, it must be a name such as "llama"'
            raise ShardplanError(error("bad-config", said))
    return found


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the text part of a model that sees or hears as well; `config` itself where that is one."""
    text = config.get("text_config")
    if config["model_type"] in ARCHITECTURES or not isinstance(text, dict) or "model_type" not in text:
        return config
    outside = {key: config[key] for key in _OF_ALL if key in config}
    return {**outside, **text}


def spec_of(config: Mapping[str, Any], dims: Mapping[str, int], path: str) -> TransformerSpec:
    """The description that the keys of a configuration come to. Raises `ShardplanError` as `configured`."""
    config = text_of(config)
    kind = str(config["model_type"])
    architecture = ARCHITECTURES.get(kind)
    if architecture is None:
        hint = did_you_mean(kind, ARCHITECTURES) or f"known are {', '.join(ARCHITECTURES)}; else {_EXPORT}"
        raise ShardplanError(error("unknown-architecture", f"{path}: model_type '{kind}' is not supported", hint=hint))
    config = {**architecture.assumed, **config}
    sizes, faults = _sizes(architecture, config, path)
    longest = config.get(architecture.positions)
    seq = dims.get("seq", min(longest, _LONGEST) if isinstance(longest, int) else _LONGEST)
    faults += _refused(architecture, config, path)
    window, wrong = _windows(config, seq, path)
    pattern, more = _pattern(config, path) if architecture.style == "nemotron" else ("", [])
    faults += wrong + more + _chunked(architecture, config, seq, path)
    faults += [
        error("unknown-dim", f"{path} leaves no '{name}' open", hint=did_you_mean(name, _BOUND) or "batch, seq")
        for name in dims
        if name not in _BOUND
    ]
    if faults:
        raise ShardplanError(*faults)
    named = config.get("dtype", config.get("torch_dtype")) or "bfloat16"
    asked: dict[str, Any] = {**sizes, **architecture.given, **window, "seq": seq, "dtype": _DTYPES[str(named)]}
    asked |= {name: bool(config.get(key, False)) for name, key in architecture.flags.items()}
    if pattern:
        asked = _of_pattern(asked, pattern, config)
    if "shared_gate" in asked and not asked.get("shared_ffn"):
        del asked["shared_gate"]
    if "batch" in dims:
        asked["batch"] = dims["batch"]
    tied = config.get("tie_word_embeddings", architecture.tied)
    return TransformerSpec(style=architecture.style, head="tied" if tied else "untied", **asked)  # type: ignore[arg-type]


def _sizes(architecture: Architecture, config: Mapping[str, Any], path: str) -> tuple[dict[str, int], list[Diagnostic]]:
    sizes, faults = dict[str, int](), list[Diagnostic]()
    for name, keys in architecture.sizes.items():
        key = next((each for each in keys.split("|") if each in config), keys.split("|")[0])
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            sizes[name] = value
        elif value is not None:
            faults.append(error("bad-config", f"{path}: {key} is {json.dumps(value)}, it must be a whole number"))
        elif name not in architecture.optional:
            faults.append(error("bad-config", f"{path}: there is no '{key}'", hint="save the configuration whole"))
    for made, combine in ((architecture.sums, sum), (architecture.products, math.prod)):
        for name, parts in made.items():
            values = [config.get(part) for part in parts]
            if all(isinstance(value, int) for value in values):
                sizes[name] = combine(values)  # type: ignore[arg-type]
            else:
                said = " and ".join(parts)
                faults.append(error("bad-config", f"{path}: {said} must be whole numbers", hint="save it whole"))
    return sizes, faults


def _refused(architecture: Architecture, config: Mapping[str, Any], path: str) -> list[Diagnostic]:
    """Keys with values that make a model that is not supported."""
    only = {**architecture.only, architecture.activation: architecture.activations}
    faults = [
        _cannot(path, key, config[key], " or ".join(json.dumps(value) for value in allowed))
        for key, allowed in only.items()
        if config.get(key, allowed[0]) not in allowed
    ]
    stored = config.get("quantization_config")
    if stored is not None and (not isinstance(stored, dict) or stored.get("quant_method") not in _STORED):
        faults.append(_cannot(path, "quantization_config", config["quantization_config"], "null"))
    named = config.get("dtype", config.get("torch_dtype"))
    if named is not None and not (isinstance(named, str) and named in _DTYPES):
        faults.append(_cannot(path, "dtype", named, " or ".join(json.dumps(value) for value in _DTYPES)))
    return faults


def _windows(config: Mapping[str, Any], seq: int, path: str) -> tuple[dict[str, int], list[Diagnostic]]:
    """Sliding windows as a description has them. One that is no shorter than the sequence changes nothing."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    kinds = config.get("layer_types")
    if not isinstance(window, int) or window >= seq:
        return {}, []
    if not isinstance(kinds, list):
        every = config.get("sliding_window_pattern", 0)
        return {"window": window, "window_every": every if isinstance(every, int) else 0}, []
    if "sliding_attention" not in kinds:
        return {}, []
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else 0
    is_whole = [bool(every) and place % every == every - 1 for place in range(len(kinds))]
    if kinds == ["full_attention" if whole else "sliding_attention" for whole in is_whole]:
        return {"window": window, "window_every": every}, []
    hint = f"every n-th layer may see all: --dim seq={window}, or {_EXPORT}"
    return {}, [error("bad-config", f"{path}: layer_types are in an order that is not supported", hint=hint)]


def _chunked(architecture: Architecture, config: Mapping[str, Any], seq: int, path: str) -> list[Diagnostic]:
    """A sequence that is longer than the chunks of its attention."""
    chunk = config.get(architecture.within) if architecture.within else None
    if not isinstance(chunk, int) or chunk >= seq:
        return []
    summary = f"{path}: {architecture.within} is {chunk}, so that a sequence of {seq} is seen in parts"
    return [error("bad-config", summary, hint=f"--dim seq={chunk} at most, or {_EXPORT}")]


_LETTERS: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _pattern(config: Mapping[str, Any], path: str) -> tuple[str, list[Diagnostic]]:
    """What the layers are, a letter for each, which configurations say as letters or as words."""
    kinds = config.get("layers_block_type", config.get("layer_types"))
    pattern = config.get("hybrid_override_pattern")
    if isinstance(kinds, list) and all(isinstance(kind, str) and kind in _LETTERS for kind in kinds):
        pattern = "".join(_LETTERS[kind] for kind in kinds)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS.values()):
        summary = f"{path}: there is no hybrid_override_pattern of the letters M, *, - and E"
        return "", [error("bad-config", summary, hint="or layers_block_type, a list of their names")]
    return pattern, []


def _of_pattern(sizes: Mapping[str, Any], pattern: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes without those of experts where the pattern has none: configurations give them all the same."""
    asked = {**sizes, "pattern": pattern, "layers": len(pattern)}
    if "E" in pattern:
        return asked if config.get("n_shared_experts", 1) else {**asked, "shared_ffn": 0}
    experts = ("experts", "top_k", "shared_ffn", "expert_latent", "routing")
    return {**{name: size for name, size in asked.items() if name not in experts}, "ffn": asked["dense_ffn"]}


def _cannot(path: str, key: str, value: Any, allowed: str) -> Diagnostic:
    said = json.dumps(value)
    short = said if len(said) <= 40 else said[:37] + "..."
    return error("bad-config", f"{path}: {key} is {short}, which is not supported; it must be {allowed}", hint=_EXPORT)
