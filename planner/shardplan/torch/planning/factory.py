"""Factories: functions of a user's package that build a module and its inputs, named as `my_pkg.module:build`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from shardplan.errors import ShardplanError, did_you_mean, error
from shardplan.model.types import Model
from shardplan.torch.planning.plan import read_module

_EXPECTED = "return (module, example_inputs) or (module, example_inputs, loss)"
_MOST = 3


def read_factory(module: str, function: str, sizes: Mapping[str, int]) -> Model:
    """The model that `function` of `module` builds, called with `sizes` (what `--dim` gives).

    Modules of the working directory are found, too. Raises `ShardplanError`: `no-factory`, `unknown-dim`,
    `bad-factory`, and as `read_module`.
    """
    factory = _found(module, function)
    _check_sizes(factory, f"{module}:{function}", sizes)
    made = _called(factory, f"{module}:{function}", sizes)
    model = read_module(made[0], made[1], loss=made[2] if len(made) == _MOST else None)
    return replace(model, dims=dict(sorted(sizes.items())))


def _found(module: str, function: str) -> Callable[..., Any]:
    given = f"{module}:{function}"
    with _working_directory_on_path():
        try:
            imported = importlib.import_module(module)
        except (Exception, SystemExit) as problem:
            missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
            if missing is not None and f"{module}.".startswith(f"{missing}."):
                hint = "MODEL is an ONNX file, transformer:..., or package.module:function, found from here"
                raise ShardplanError(
                    error("no-factory", f"'{given}': there is no module '{missing}'", hint=hint)
                ) from None
            raise ShardplanError(_raised(given, f"importing {module}", problem)) from problem
    factory = getattr(imported, function, None)
    if not callable(factory):
        near = did_you_mean(function, [name for name, value in vars(imported).items() if inspect.isfunction(value)])
        raise ShardplanError(error("no-factory", f"'{given}': {module} has no function '{function}'", hint=near))
    return factory  # type: ignore[no-any-return]


@contextlib.contextmanager
def _working_directory_on_path() -> Iterator[None]:
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _check_sizes(factory: Callable[..., Any], given: str, sizes: Mapping[str, int]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    known = ", ".join(parameters) or "none"
    faults = [
        error("unknown-dim", f"'{given}' takes no '{name}'", hint=did_you_mean(name, parameters) or f"it takes {known}")
        for name in sizes
        if name not in parameters
    ]
    if faults:
        raise ShardplanError(*faults)


def _called(factory: Callable[..., Any], given: str, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    with _working_directory_on_path():
        try:
            made = factory(**sizes)
        except ShardplanError:
            raise
        except (Exception, SystemExit) as problem:
            raise ShardplanError(_raised(given, "it", problem)) from problem
    whole = made if isinstance(made, tuple) else (made,)
    if not (2 <= len(whole) <= _MOST) or not isinstance(whole[0], nn.Module):
        found = ", ".join(type(each).__name__ for each in whole)
        raise ShardplanError(error("bad-factory", f"'{given}' returned ({found})", hint=_EXPECTED))
    return whole


def _raised(given: str, what: str, problem: Exception | SystemExit) -> Any:
    """What a module or a function of the user's raised. One that ends the process is most often a program without a
    guard, whose exit code would be read as an answer of ours."""
    said = f"{type(problem).__name__}: {problem}".strip()
    hint = "keep what only a program does under if __name__ == '__main__'" if isinstance(problem, SystemExit) else ""
    return error("bad-factory", f"'{given}': {what} failed", detail=said, hint=hint)
