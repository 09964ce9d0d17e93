"""Settings from `shardplan.toml`, or `[tool.shardplan]` in `pyproject.toml`, in the working directory.

A key is an option's name without its dashes. At the top it holds for every verb with such an option, in a table with a
verb's name for that verb alone. The command line and the environment win over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from shardplan.errors import Diagnostic, ShardplanError, did_you_mean, error
from shardplan.text_files import MARK, read_text
from shardplan.verbs.asking import AsGiven

_KINDS: Final[tuple[tuple[type[click.ParamType[Any]], tuple[type, ...], str], ...]] = (
    (AsGiven, (dict, str), "text"),
    (type(click.BOOL), (bool, str), "true or false"),
    (type(click.INT), (int, str), "a whole number"),
    (type(click.FLOAT), (int, float, str), "a number"),
    (click.ParamType, (int, float, str), "text"),
)
"""Type of an option, the types of TOML that it takes, what is expected. Text is read as on the command line."""
_LONGEST = 40
"""Characters of a value in a message."""
Settings = dict[str, dict[str, object]]


def read_settings(group: click.Group) -> Settings:
    """Defaults for each verb of `group` by parameter name: what click takes as `default_map`.

    Raises `ShardplanError` for a file that is not TOML, for keys that no verb has, and for values of a type that an
    option does not take.
    """
    for name, path in (("shardplan.toml", ()), ("pyproject.toml", ("tool", "shardplan"))):
        table = _table(Path(name), path)
        if table is not None:
            return _by_verb(table, group, name)
    return {}


def _table(file: Path, path: tuple[str, ...]) -> Mapping[str, object] | None:
    """The table at `path`; None where there is no file or no such table."""
    if not file.is_file():
        return None
    import tomllib

    try:
        found: object = tomllib.loads(read_text(file).removeprefix(MARK))
    except RecursionError:
        raise ShardplanError(error("bad-configuration", "it is nested too deeply", file=str(file))) from None
    except OSError as problem:
        summary = f"cannot read it: {problem.strerror or problem}"
        raise ShardplanError(error("bad-configuration", summary, file=str(file))) from None
    except ValueError as problem:
        raise ShardplanError(error("bad-configuration", f"not valid TOML: {problem}", file=str(file))) from None
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    if _has_zero_byte(found):  # which no system takes in the name of a file
        raise ShardplanError(error("bad-configuration", "a value holds a zero byte", file=str(file)))
    return found if isinstance(found, Mapping) else None


def _has_zero_byte(value: object) -> bool:
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return "\0" in value if isinstance(value, str) else any(map(_has_zero_byte, entries))


def _by_verb(table: Mapping[str, object], group: click.Group, file: str) -> Settings:
    options = {verb: _options(command) for verb, command in sorted(group.commands.items())}
    everywhere = {name for names in options.values() for name in names}
    settings: Settings = {verb: {} for verb in options}
    problems: list[Diagnostic] = []
    own = {key: value for key, value in table.items() if key in options and isinstance(value, Mapping)}
    for key, value in table.items():
        if key in own:
            continue
        if key not in everywhere:
            problems.append(_unknown(key, [*everywhere, *options], file))
        for verb, named in options.items():
            if key in named:
                problems += _mistyped(key, named[key], value, file)
                settings[verb] |= _set(named[key], value)
    for verb, values in own.items():
        assert isinstance(values, Mapping)
        for key, value in values.items():
            if key in options[verb]:
                problems += _mistyped(key, options[verb][key], value, file)
                settings[verb] |= _set(options[verb][key], value)
            else:
                problems.append(_unknown(key, options[verb], file))
    if problems:
        raise ShardplanError(*problems)
    return settings


def _options(command: click.Command) -> dict[str, click.Option]:
    """Options by their names as written on the command line, without dashes: `memory-limit`."""
    return {
        flag.lstrip("-"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name != "help"
        for flag in parameter.opts
        if flag.startswith("--")
    }


def _set(option: click.Option, value: object) -> dict[str, object]:
    """A value by the name of its parameter; what may be repeated may be given once, as on the command line."""
    return {str(option.name): [value] if option.multiple and not isinstance(value, list) else value}


def _mistyped(key: str, option: click.Option, value: object, file: str) -> Iterator[Diagnostic]:
    """What is wrong with the type of a value: click converts what the command line gives, which is text, and fails
    over others. A single value of a request is left to the check of its field, which says what is allowed."""
    if isinstance(option.type, AsGiven) and not option.multiple:
        return
    kinds, expected = next((kinds, said) for type_, kinds, said in _KINDS if isinstance(option.type, type_))
    for each in value if option.multiple and isinstance(value, list) else [value]:
        if type(each) not in kinds:
            yield error("bad-argument", f"{key} is {_written(each)}; {expected} is expected", file=file)


def _written(value: object) -> str:
    """A value about as TOML has it."""
    text = json.dumps(value, default=str) if isinstance(value, bool | int | float | list | Mapping) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _unknown(key: str, known: object, file: str) -> Diagnostic:
    assert isinstance(known, list | dict)
    hint = did_you_mean(key, known) or "keys are options without their dashes, such as cluster or memory-limit"
    return error("unknown-key", f"no option is called '{key}'", hint=hint, file=file)
