"""Sharding while loading, as in TVM's Disco and MLC: `{"name": [[function, [shape, dtype], numbers ...], ...]}`.

A parameter that is not listed, or has no steps, is replicated. The first dim of the last step's shape is the number of
ranks. Functions are those of `shardplan.loading.steps`, or the user's by dotted name; a file cannot make this program
import anything, so the user says which modules it may name.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard, TypeVar

import numpy as np

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.loading.checkpoint import Checkpoint
from shardplan.loading.load import LocalTensor
from shardplan.loading.ranged import Array, Reader, carrier
from shardplan.loading.steps import Function, Step, find_builtin, runs_after
from shardplan.text_files import read_bytes
from shardplan.units import counted

ShardInfo = Mapping[str, tuple[Step, ...]]
DTYPES: dict[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
    "e4m3_float8": "F8_E4M3", "e5m2_float8": "F8_E5M2", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""Types as TVM writes them -> as safetensors does."""
_SHOWN = 8
T = TypeVar("T")


def read_shard_info(path: str | Path) -> ShardInfo:
    """The steps in the JSON file at `path`. Raises `ShardplanError` (`unreadable-shard-info`, `bad-shard-info`)."""
    try:
        text = read_bytes(path)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        summary = f"cannot read the steps: {reason[:1].lower()}{reason[1:]}"
        raise ShardplanError(error("unreadable-shard-info", summary, file=str(path))) from None
    return parse_shard_info(text, str(path))


def parse_shard_info(text: str | bytes, path: str = "shard_info.json") -> ShardInfo:
    """The steps in JSON text; `path` is named in errors. Raises `ShardplanError` (`bad-shard-info`)."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        _refuse(path, "this is not JSON")
    if not isinstance(document, dict):
        _refuse(path, "this is no table from parameters to steps")
    return {name: _steps(name, rows, path) for name, rows in document.items()}


def write_shard_info(info: ShardInfo) -> str:
    """The JSON text, one parameter per line."""
    rows = []
    for name, steps in info.items():
        listed = [[step.function, [list(step.shape), step.dtype], *step.numbers] for step in steps]
        rows.append(f"  {json.dumps(name)}: {json.dumps(listed)}")
    return "{\n" + ",\n".join(rows) + "\n}\n" if rows else "{}\n"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Steps of one parameter with their functions."""

    steps: tuple[Step, ...]
    functions: tuple[Function, ...]


class ShardInfoLoader:
    """Loads the shards of a checkpoint by steps.

    `functions`: the user's functions by name, `f(array, *numbers) -> array`, bits as `loading.ranged` carries them.
    `modules`: modules that dotted names (`package.module.function`) may be imported from.

    Raises `ShardplanError` with every fault: `wrong-rank-count` (a last step for another number of ranks),
    `unknown-function`, `unknown-weight` (steps for what the checkpoint does not have).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        info: ShardInfo,
        ranks: int,
        functions: Mapping[str, Function] | None = None,
        modules: Collection[str] = (),
    ) -> None:
        self._checkpoint, self.ranks = checkpoint, ranks
        faults: list[Diagnostic] = []
        self._recipes: dict[str, _Recipe] = {}
        for name, steps in info.items():
            found = [_find_function(name, step, functions or {}, modules, faults) for step in steps]
            if name not in checkpoint.entries:
                hint = did_you_mean(name, checkpoint.entries)
                faults.append(error("unknown-weight", f"the checkpoint has no tensor '{name}'", hint=hint))
            elif steps and (not steps[-1].shape or steps[-1].shape[0] != ranks):
                faults.append(_wrong_count(name, steps[-1], ranks))
            elif all(found):
                self._recipes[name] = _Recipe(steps, tuple(function for function in found if function))
        if faults:
            raise ShardplanError(*faults[:_SHOWN])

    def load(self, name: str, rank: int, reader: Reader | None = None) -> LocalTensor:
        """The shard of one parameter; only its own bytes are read where the steps just rearrange.

        Raises `ShardplanError`: `unknown-weight`, `unknown-rank`, `bad-step` (a result that is not as declared).
        """
        if not 0 <= rank < self.ranks:
            raise ShardplanError(error("unknown-rank", f"there is no rank {rank}: ranks are 0 to {self.ranks - 1}"))
        entry = self._checkpoint.entry(name)
        recipe = self._recipes.get(name)
        with Reader() as own:
            source = reader or own
            if recipe is None or not recipe.steps:
                return LocalTensor(name, entry.dtype, source.whole(entry))
            dtype = DTYPES[recipe.steps[-1].dtype]
            runs = _guard(name, recipe.steps[-1], lambda: runs_after(recipe.steps, entry.shape, rank))
            if runs is not None and dtype == entry.dtype:
                shard = source.part(entry, runs)
                _check_result(name, recipe.steps[-1], (self.ranks, *shard.shape), shard)
                return LocalTensor(name, dtype, shard)
            shards = _run(name, recipe, source.whole(entry))
            return LocalTensor(name, dtype, np.asarray(shards[rank], order="C"))


def _find_function(
    name: str, step: Step, functions: Mapping[str, Function], modules: Collection[str], faults: list[Diagnostic]
) -> Function | None:
    given = functions.get(step.function)
    if given is not None:
        return _with_numbers(given, step)
    builtin = find_builtin(step)
    if builtin is not None:
        return builtin
    module, _, attribute = step.function.replace(":", ".").rpartition(".")
    if module in modules:
        found = getattr(importlib.import_module(module), attribute, None)
        if callable(found):
            return _with_numbers(found, step)
    summary = f"'{name}': there is no function '{step.function}'"
    hint = did_you_mean(step.function, [*functions, *_BUILTIN]) or "give it in functions="
    if module and module not in modules:
        hint = f"to let it be imported, pass modules=['{module}']"
    faults.append(error("unknown-function", summary, hint=hint))
    return None


_BUILTIN = ("shard_dim_0", "reorganise_dim_0", "shard_segments_0", "shard_mesh", "once", "reshape", "shard_qkv_0")


def _with_numbers(function: Function, step: Step) -> Function:
    return lambda array: function(array, *step.numbers)


def _run(name: str, recipe: _Recipe, array: Array) -> Array:
    """All steps on the whole array, every result checked against what is declared."""
    for step, function in zip(recipe.steps, recipe.functions, strict=True):
        array = np.asarray(_guard(name, step, functools.partial(function, array)))
        _check_result(name, step, array.shape, array)
    return array


def _guard(name: str, step: Step, act: Callable[[], T]) -> T:
    try:
        return act()
    except (ValueError, TypeError, IndexError) as problem:
        summary = f"'{name}': step '{step.function}' failed: {problem}"
        raise ShardplanError(error("bad-step", summary)) from None


def _check_result(name: str, step: Step, shape: tuple[int, ...], array: Array) -> None:
    if shape != step.shape or array.dtype != carrier(DTYPES[step.dtype]):
        declared = f"{list(step.shape)} {step.dtype} is declared"
        summary = f"'{name}': step '{step.function}' gives {list(shape)} {array.dtype}, but {declared}"
        raise ShardplanError(error("bad-step", summary))


def _wrong_count(name: str, step: Step, ranks: int) -> Diagnostic:
    found = f"{counted(step.shape[0], 'shard')}" if step.shape else "no shards"
    summary = f"'{name}': step '{step.function}' gives {found} for {counted(ranks, 'rank')}"
    return error("wrong-rank-count", summary, hint="export the steps again from the plan for this number of ranks")


def _steps(name: str, rows: object, path: str) -> tuple[Step, ...]:
    if not isinstance(rows, list):
        _refuse(path, f"'{name}' has no list of steps")
    return tuple(_step(name, row, path) for row in rows)


def _step(name: str, row: object, path: str) -> Step:
    match row:
        case [str(function), [list(given), str(dtype)], *numbers] if _are_integers(given) and _are_integers(numbers):
            shape: list[int] = given
        case _:
            what = f"a step is [function, [shape, dtype], numbers ...], found {json.dumps(row)[:80]}"
            _refuse(path, f"'{name}': {what}")
    if dtype not in DTYPES:
        known = f"types are {', '.join(sorted(DTYPES))}"
        _refuse(path, f"'{name}': '{dtype}' is no type", did_you_mean(dtype, DTYPES) or known)
    if min(shape, default=0) < 0:
        _refuse(path, f"'{name}': {shape} is no shape")
    return Step(function, tuple(shape), dtype, tuple(numbers))


def _are_integers(values: list[object]) -> TypeGuard[list[int]]:
    return all(type(value) is int for value in values)


def _refuse(path: str, summary: str, hint: str = "") -> NoReturn:
    raise ShardplanError(error("bad-shard-info", summary, file=path, hint=hint))
