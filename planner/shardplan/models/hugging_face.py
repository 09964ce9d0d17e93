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
from shardplan.models.architecture import MAYBE, Architecture
from shardplan.models.architectures import ARCHITECTURES, FLAT
from shardplan.models.layer_kinds import (
    FURTHER,
    further,
    further_modules,
    mixers,
    of_pattern,
    pattern_of,
    routed,
    windows,
)
from shardplan.models.names import NAMES
from shardplan.models.spec import TransformerSpec
from shardplan.models.transformer import build
from shardplan.models.unknown_types import EXPORT, unknown_type
from shardplan.text_files import MARK, read_text

_DTYPES: Final = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
_STORED: Final = ("fp8", "mxfp4")
"""Types in which weights are published that were trained in `dtype`: DeepSeek-V3, Kimi K2, gpt-oss."""
_OF_ALL: Final = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
"""Keys that stand beside `text_config` and hold for it."""
_HASH: Final = re.compile("[0-9a-f]{40}")
_BOUND: Final = ("batch", "seq", "mtp")
_SWITCHES: Final = (
    "tie_word_embeddings", "use_sliding_window", "block_auto_adjust_ff_dim", "new_decoder_architecture"
)  # fmt: skip
"""Keys that are true or false, besides those that an architecture names."""
_LONGEST = 2048
"""Tokens of a sequence where nobody says how many; many configurations name far more than anybody trains with."""


def is_config(given: str) -> bool:
    """Whether MODEL is a configuration: a file of JSON that is no plan."""
    return given.endswith(".json") and not given.endswith(".plan.json")


def configured(path: str | Path, dims: Mapping[str, int]) -> Model:
    """The transformer that a `config.json` describes; `dims` give `batch` and `seq`, which it leaves open, and `mtp`,
    how many further tokens are predicted: none where nobody says, as in transformers.

    Raises `ShardplanError` with every key that is not supported: `bad-config`, `unknown-architecture`, `unknown-dim`.
    """
    config = read_config(path)
    model = build(spec_of(config, dims, str(path)), title_of_config(path, config))
    kind, text = str(config["model_type"]), text_of(config)
    if further_modules(text) and "mtp" not in dims:
        summary = f"'{path}' names modules that predict further tokens ({FURTHER}), which are left out"
        hint = "--dim mtp=1 takes one in, as Megatron trains it, --dim mtp=0 none, as transformers has it"
        model = replace(model, warnings=(*model.warnings, warning("further-tokens", summary, hint=hint)))
    if text is config:
        return model
    summary = f"'{path}' describes a '{kind}'; its text part, '{text['model_type']}', is the model"
    told = warning("text-part", summary, hint=f"to plan all of it, {EXPORT}")
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
        text = read_text(path).removeprefix(MARK)
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
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


def _unique(pairs: list[tuple[str, Any]], path: str | Path) -> dict[str, Any]:
    """The object of these pairs. Raises `ShardplanError` (`bad-config`) for a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        summary = f"{path}: {json.dumps(twice)} is there twice"
        raise ShardplanError(error("bad-config", summary, hint="keep one of them"))
    return found


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the text part of a model that sees or hears as well; `config` itself where that is one."""
    text, kind = config.get("text_config"), config["model_type"]
    if not isinstance(text, dict) or "model_type" not in text:
        return {**config, "model_type": FLAT[kind]} if kind in FLAT else config
    if kind in ARCHITECTURES:
        return config
    outside = {key: config[key] for key in _OF_ALL if key in config}
    return {**outside, **text}


def spec_of(config: Mapping[str, Any], dims: Mapping[str, int], path: str) -> TransformerSpec:
    """The description that the keys of a configuration come to. Raises `ShardplanError` as `configured`."""
    config = text_of(config)
    kind = str(config["model_type"])
    architecture = ARCHITECTURES.get(kind)
    if architecture is None:
        raise ShardplanError(unknown_type(kind, path))
    config = {**architecture.assumed, **_flat(config)}
    architecture = next((row for key, row in architecture.instead.items() if config.get(key)), architecture)
    sizes, faults = _sizes(architecture, config, path)
    longest = config.get(architecture.positions)
    seq = dims.get("seq", min(longest, _LONGEST) if isinstance(longest, int) else _LONGEST)
    faults += _refused(architecture, config, path)
    window, wrong = windows(architecture, config, sizes, seq, path, EXPORT)
    mixed, faulty = routed(architecture, config, sizes, path)
    mixing, mistaken = mixers(architecture, config, sizes.get("layers", 0), path)
    is_hybrid = architecture.style == "nemotron" and "pattern" not in architecture.given
    pattern, more = pattern_of(config, path) if is_hybrid else ("", [])
    more_tokens, missing = further(config, dims.get("mtp", 0), path, hybrid=is_hybrid)
    faults += wrong + faulty + mistaken + more + missing + _chunked(architecture, config, seq, path)
    faults += [
        error("unknown-dim", f"{path} leaves no '{name}' open", hint=did_you_mean(name, _BOUND) or ", ".join(_BOUND))
        for name in dims
        if name not in _BOUND
    ]
    if faults:
        raise ShardplanError(*faults)
    asked: dict[str, Any] = {
        "style": architecture.style,
        **sizes,
        **architecture.given,
        **window,
        **mixed,
        **mixing,
        **more_tokens,
        "seq": seq,
    }
    asked["dtype"] = _DTYPES[_dtype(config) or "bfloat16"]
    asked |= {name: bool(config.get(key, False)) for name, key in architecture.flags.items()}
    for key, cases in architecture.cases.items():
        value = config.get(key)
        asked |= cases[value if isinstance(value, int) and value in cases else bool(value)]
    if NAMES[architecture.style].positions and isinstance(longest, int):
        asked["positions"] = longest + architecture.spare
    if pattern:
        asked = of_pattern(asked, pattern, config)
    if "shared_gate" in asked and not asked.get("shared_ffn"):
        del asked["shared_gate"]
    if "batch" in dims:
        asked["batch"] = dims["batch"]
    tied = config.get("tie_word_embeddings", architecture.tied)
    return TransformerSpec(head="tied" if tied else "untied", **asked)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a configuration, and those of the objects in it as object.key."""
    inner = {
        f"{name}.{key}": value for name, each in config.items() if isinstance(each, dict) for key, value in each.items()
    }
    return {**inner, **config}


def _dtype(config: Mapping[str, Any]) -> Any:
    """The type of weights, `None` where the configuration leaves it to the checkpoint."""
    named = config.get("dtype") or config.get("torch_dtype")
    if not isinstance(named, str):
        return named
    return None if named == "auto" else named.removeprefix("torch.")


def _sizes(architecture: Architecture, config: Mapping[str, Any], path: str) -> tuple[dict[str, int], list[Diagnostic]]:
    sizes, faults = dict[str, int](), list[Diagnostic]()
    for name, keys in architecture.sizes.items():
        names = keys.split("|")
        key = next((each for each in names if config.get(each) is not None), names[0])
        value = _alike(config.get(key))
        if isinstance(value, int) and not isinstance(value, bool):
            sizes[name] = value
            faults += _too_small(name, key, value, path)
        elif value is not None:
            faults.append(error("bad-config", f"{path}: {key} is {json.dumps(value)}, it must be a whole number"))
        elif name not in architecture.optional:
            faults.append(error("bad-config", f"{path}: there is no '{key}'", hint="save the configuration whole"))
    if architecture.adjusted and "ffn" in sizes and config.get("block_auto_adjust_ff_dim", True):
        factor, multiple = config.get("block_ffn_dim_multiplier"), config.get("block_multiple_of", 256)
        if isinstance(factor or 1.0, int | float) and isinstance(multiple, int) and multiple > 0:
            sizes["ffn"] = -(-int((factor or 1.0) * (2 * sizes["ffn"] // 3)) // multiple) * multiple
        else:
            faults.append(error("bad-config", f"{path}: block_multiple_of must be a positive whole number"))
    for made, combine in ((architecture.sums, sum), (architecture.products, math.prod)):
        for name, parts in made.items():
            none = 0 if combine is math.prod else None  # "n_shared_experts": null
            values = [none if config.get(part, part) is None else config.get(part) for part in parts]
            if all(isinstance(value, int) for value in values):
                sizes[name] = combine(values)  # type: ignore[arg-type]
            else:
                said = " and ".join(parts)
                faults.append(error("bad-config", f"{path}: {said} must be whole numbers", hint="save it whole"))
    return sizes, faults


def _too_small(name: str, key: str, value: int, path: str) -> list[Diagnostic]:
    """A number of heads, or their size, that would be taken for none given."""
    if value > 0 or name not in MAYBE:
        return []
    hint = "leave the key out for what its architecture has"
    return [error("bad-config", f"{path}: {key} is {value}, it must be at least 1", hint=hint)]


def _alike(value: Any) -> Any:
    """The number that a list has for every layer (Hunyuan); the value itself where it is no such list."""
    return value[0] if isinstance(value, list) and value and all(each == value[0] for each in value) else value


def _refused(architecture: Architecture, config: Mapping[str, Any], path: str) -> list[Diagnostic]:
    """Keys with values that make a model that is not supported."""
    only = {**architecture.only, architecture.activation: architecture.activations}
    faults = [
        _cannot(path, key, config[key], " or ".join(json.dumps(value) for value in allowed))
        for key, allowed in only.items()
        if config.get(key, allowed[0]) not in allowed
    ]
    faults += [
        error("bad-config", f"{path}: {key} is {json.dumps(config[key])}, it must be true or false")
        for key in dict.fromkeys((*_SWITCHES, *architecture.flags.values(), *architecture.cases))
        if isinstance(config.get(key), str | list | dict)
    ]
    faults += [
        _cannot(path, key, config[key], f"that of {other}")
        for key, other in architecture.same.items()
        if config.get(key) is not None and config[key] != config.get(other)
    ]
    stored = config.get("quantization_config")
    if stored is not None and (not isinstance(stored, dict) or stored.get("quant_method") not in _STORED):
        faults.append(_cannot(path, "quantization_config", config["quantization_config"], "null"))
    named = _dtype(config)
    if named is not None and not (isinstance(named, str) and named in _DTYPES):
        faults.append(_cannot(path, "dtype", named, " or ".join(json.dumps(value) for value in _DTYPES)))
    return faults


def _chunked(architecture: Architecture, config: Mapping[str, Any], seq: int, path: str) -> list[Diagnostic]:
    """A sequence that is longer than the chunks of its attention."""
    chunk = config.get(architecture.within) if architecture.within else None
    if not isinstance(chunk, int) or chunk >= seq:
        return []
    summary = f"{path}: {architecture.within} is {chunk}, so that a sequence of {seq} is seen in parts"
    return [error("bad-config", summary, hint=f"--dim seq={chunk} at most, or {EXPORT}")]


def _cannot(path: str, key: str, value: Any, allowed: str) -> Diagnostic:
    said = json.dumps(value)
    short = said if len(said) <= 40 else said[:37] + "..."
    return error("bad-config", f"{path}: {key} is {short}, which is not supported; it must be {allowed}", hint=EXPORT)
